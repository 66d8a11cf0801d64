//! Handles: numbers in the form of pointers. They are looked up in one table per kind of object and never dereferenced.
//!
//! The lowest bits of a number hold the kind of the object. The next bits are its index in the table, and the rest
//! tells how often that index was used before. So a closed handle differs from the handle that has its index now. The
//! last part wraps around after 2^45 uses of one index, on 32-bit machines after 8,192.

use crate::failure::Failure;
use base::error::Code;
use std::sync::{PoisonError, RwLock};

const KIND_BITS: u32 = 3;
const PLACE_BITS: u32 = 16;
const GENERATION_MASK: usize = usize::MAX >> (KIND_BITS + PLACE_BITS);

/// Largest number of objects of one kind that may be open in one process.
pub const PLACES_LIMIT: usize = 1 << PLACE_BITS;

struct Place<T> {
    /// How often this place has been released.
    generation: usize,
    content: Option<T>,
}

struct Places<T> {
    places: Vec<Place<T>>,
    free: Vec<usize>,
}

/// Objects of one kind by handle.
pub struct Table<T> {
    kind: usize,
    name: &'static str,
    closed: &'static str,
    places_max: usize,
    inner: RwLock<Places<T>>,
}

impl<T: Clone> Table<T> {
    /// Creates an empty table. `kind`: 1 to 7, another one for each table of a library; with 0, NULL would be a handle.
    /// `name` names an object in a message; `closed` is the message about a closed handle. `places_max`: at most
    /// [`PLACES_LIMIT`].
    ///
    /// # Panics
    /// `kind` or `places_max` is out of range. A static table does not compile then.
    #[must_use]
    pub const fn new(
        kind: usize,
        name: &'static str,
        closed: &'static str,
        places_max: usize,
    ) -> Self {
        assert!(kind > 0 && kind < 1 << KIND_BITS && places_max <= PLACES_LIMIT);
        Self {
            kind,
            name,
            closed,
            places_max,
            inner: RwLock::new(Places {
                places: Vec::new(),
                free: Vec::new(),
            }),
        }
    }

    /// Creates a handle for an object.
    ///
    /// # Errors
    /// [`Code::Busy`] if the table is full.
    pub fn insert(&self, content: T) -> Result<usize, Failure> {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        let place = match inner.free.pop() {
            Some(place) => place,
            None if inner.places.len() < self.places_max => {
                inner.places.push(Place {
                    generation: 0,
                    content: None,
                });
                inner.places.len() - 1
            }
            None => {
                let text = format!(
                    "{} handles of a {} are open; close some",
                    self.places_max, self.name
                );
                return Err(Failure::of(Code::Busy, text));
            }
        };
        inner.places[place].content = Some(content);
        let generation = inner.places[place].generation & GENERATION_MASK;
        Ok((generation << PLACE_BITS | place) << KIND_BITS | self.kind)
    }

    /// Returns the object of a handle.
    ///
    /// # Errors
    /// [`Code::Invalid`] if this is no handle of the table, [`Code::Gone`] if it has been closed.
    pub fn get(&self, handle: usize) -> Result<T, Failure> {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        let place = self.find(&inner, handle)?;
        let content = inner.places[place].content.clone();
        content.ok_or_else(|| self.closed())
    }

    /// Removes a handle. The caller drops the object, outside of the lock.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn remove(&self, handle: usize) -> Result<T, Failure> {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        let place = self.find(&inner, handle)?;
        inner.take(place).ok_or_else(|| self.closed())
    }

    /// Removes the handles of some objects. The caller drops the objects, outside of the lock.
    pub fn remove_all(&self, is_meant: impl Fn(&T) -> bool) -> Vec<T> {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        let mut removed = Vec::new();
        for place in 0..inner.places.len() {
            if inner.places[place].content.as_ref().is_some_and(&is_meant) {
                removed.extend(inner.take(place));
            }
        }
        removed
    }

    fn find(&self, inner: &Places<T>, handle: usize) -> Result<usize, Failure> {
        if handle & ((1 << KIND_BITS) - 1) != self.kind {
            let text = format!("this is no handle of a {}", self.name);
            return Err(Failure::invalid(text));
        }
        let place = handle >> KIND_BITS & ((1 << PLACE_BITS) - 1);
        let generation = handle >> (KIND_BITS + PLACE_BITS);
        match inner.places.get(place) {
            Some(found)
                if found.generation & GENERATION_MASK == generation && found.content.is_some() =>
            {
                Ok(place)
            }
            Some(_) => Err(self.closed()),
            None => Err(Failure::invalid("this handle has never been given out")),
        }
    }

    fn closed(&self) -> Failure {
        Failure::of(Code::Gone, self.closed)
    }
}

impl<T> Places<T> {
    fn take(&mut self, place: usize) -> Option<T> {
        let found = self.places.get_mut(place)?;
        let content = found.content.take()?;
        found.generation = found.generation.wrapping_add(1);
        self.free.push(place);
        Some(content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::guard;

    fn code<T>(result: Result<T, Failure>) -> Option<Code> {
        Code::from_c_value(guard("", || result.map(|_| ())))
    }

    fn table<T: Clone>(kind: usize, places_max: usize) -> Table<T> {
        Table::new(kind, "thing", "the handle has been closed", places_max)
    }

    #[test]
    fn an_open_handle_differs_from_closed_and_foreign_ones() {
        let table = table(2, 3);
        let other = self::table(3, 3);
        let first = table.insert("first").unwrap();
        let second = table.insert("second").unwrap();
        let foreign = other.insert("foreign").unwrap();
        assert!(first != 0 && first != second && first != foreign);
        assert_eq!(table.get(first).unwrap(), "first");
        assert_eq!(table.remove(first).unwrap(), "first");
        assert_eq!(code(table.get(first)), Some(Code::Gone));
        assert_eq!(code(table.remove(first)), Some(Code::Gone));
        // Another object in the same place has another handle.
        let third = table.insert("third").unwrap();
        assert_ne!(third, first);
        assert_eq!(code(table.get(first)), Some(Code::Gone));
        assert_eq!(table.get(third).unwrap(), "third");
        let beyond = third + (1 << (KIND_BITS + 8));
        for wrong in [0, 1, foreign, usize::MAX, third | 7, beyond] {
            assert_eq!(code(table.get(wrong)), Some(Code::Invalid), "{wrong:#x}");
        }
        table.insert("fourth").unwrap();
        assert_eq!(code(table.insert("fifth")), Some(Code::Busy));
        assert_eq!(table.remove_all(|name| name.starts_with('t')), ["third"]);
        assert_eq!(code(table.get(third)), Some(Code::Gone));
        assert_eq!(table.get(second).unwrap(), "second");
        table.insert("fifth").unwrap();
    }

    #[test]
    fn a_full_table_refuses_an_object_until_one_is_removed() {
        let table = table(1, PLACES_LIMIT);
        let handles: Vec<_> = (0..PLACES_LIMIT)
            .map(|number| table.insert(number).unwrap())
            .collect();
        assert!(table.insert(0).is_err());
        table.remove(handles[9]).unwrap();
        table.insert(0).unwrap();
        assert_eq!(table.get(handles[10]).unwrap(), 10);
    }

    #[test]
    fn the_uses_of_a_place_wrap_around_without_harm() {
        let table = table(1, 1);
        let first = table.insert(()).unwrap();
        table.remove(first).unwrap();
        table.inner.write().unwrap().places[0].generation = GENERATION_MASK;
        let last = table.insert(()).unwrap();
        assert!(table.get(last).is_ok() && table.get(first).is_err());
        table.remove(last).unwrap();
        let again = table.insert(()).unwrap();
        assert!(table.get(again).is_ok() && table.get(last).is_err());
    }
}
