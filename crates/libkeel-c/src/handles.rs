//! Handles: numbers in the shape of pointers. They are looked up in one table per kind of object and never
//! dereferenced.
//!
//! A number contains the kind of object in its lowest bits, then an index in the table, then how often that index has
//! been used before. So a closed handle differs from the current handle at its index, until the last part wraps around:
//! after 2^45 uses of one index, on 32-bit machines after 8,192.

use crate::failure::{Failure, KEEL_BUSY, KEEL_GONE};
use libkeel::{Key, Node, Task, Ticket};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Largest number of objects of one kind that may be open in one process.
const PLACES_MAX: usize = 1 << PLACE_BITS;

const KIND_BITS: u32 = 3;
const PLACE_BITS: u32 = 16;
const GENERATION_MASK: usize = usize::MAX >> (KIND_BITS + PLACE_BITS);

struct Place<T> {
    /// How often this place has been released.
    generation: usize,
    content: Option<T>,
}

/// Objects of one kind by handle.
pub(crate) struct Table<T> {
    /// 1 or more: with 0, NULL would be a handle.
    kind: usize,
    name: &'static str,
    inner: RwLock<Places<T>>,
}

struct Places<T> {
    places: Vec<Place<T>>,
    free: Vec<usize>,
}

/// The task of a handle; the thread that runs it holds the lock.
pub(crate) type SharedTask = Arc<Mutex<Task>>;

pub(crate) static NODES: Table<Node> = Table::new(1, "node");
pub(crate) static KEYS: Table<Arc<Key>> = Table::new(2, "key");
pub(crate) static TICKETS: Table<Ticket> = Table::new(3, "ticket");
pub(crate) static TASKS: Table<SharedTask> = Table::new(4, "task");

impl<T: Clone> Table<T> {
    const fn new(kind: usize, name: &'static str) -> Self {
        Self {
            kind,
            name,
            inner: RwLock::new(Places {
                places: Vec::new(),
                free: Vec::new(),
            }),
        }
    }

    /// Creates a handle for an object.
    pub(crate) fn insert(&self, content: T) -> Result<usize, Failure> {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        let place = match inner.free.pop() {
            Some(place) => place,
            None if inner.places.len() < PLACES_MAX => {
                inner.places.push(Place {
                    generation: 0,
                    content: None,
                });
                inner.places.len() - 1
            }
            None => {
                let text = format!(
                    "{PLACES_MAX} handles of a {} are open; close some",
                    self.name
                );
                return Err(Failure::new(KEEL_BUSY, text));
            }
        };
        inner.places[place].content = Some(content);
        let generation = inner.places[place].generation & GENERATION_MASK;
        Ok((generation << PLACE_BITS | place) << KIND_BITS | self.kind)
    }

    /// Returns the object of a handle.
    pub(crate) fn get(&self, handle: usize) -> Result<T, Failure> {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        let place = self.find(&inner, handle)?;
        inner.places[place]
            .content
            .clone()
            .ok_or_else(|| self.closed())
    }

    /// Removes a handle. The caller drops the object, outside of the lock.
    pub(crate) fn remove(&self, handle: usize) -> Result<T, Failure> {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        let place = self.find(&inner, handle)?;
        let content = inner.places[place].content.take();
        let content = content.ok_or_else(|| self.closed())?;
        inner.places[place].generation = inner.places[place].generation.wrapping_add(1);
        inner.free.push(place);
        Ok(content)
    }

    fn find(&self, inner: &Places<T>, handle: usize) -> Result<usize, Failure> {
        if handle & ((1 << KIND_BITS) - 1) != self.kind {
            return Err(Failure::invalid(format!(
                "this is no handle of a {}",
                self.name
            )));
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
        Failure::new(
            KEEL_GONE,
            format!("the handle of this {} has been closed", self.name),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{KEEL_INVALID, KEEL_OK, guard};

    #[test]
    fn only_an_open_handle_of_its_kind_is_one() {
        let table = Table::new(2, "thing");
        let other = Table::new(3, "other");
        let code = |result: Result<i32, Failure>| guard(|| result.map(drop));
        let first = table.insert(5).unwrap();
        let second = table.insert(6).unwrap();
        assert_eq!(
            (table.get(first).unwrap(), table.get(second).unwrap()),
            (5, 6)
        );
        assert_eq!(code(table.remove(first)), KEEL_OK);
        assert_eq!(code(table.get(first)), KEEL_GONE);
        assert_eq!(code(table.remove(first)), KEEL_GONE);
        // Its place now contains another object with another handle.
        let third = table.insert(7).unwrap();
        assert_ne!(third, first);
        assert_eq!(code(table.get(first)), KEEL_GONE);
        assert_eq!(table.get(third).unwrap(), 7);
        for wrong in [0, 1, 2 | 1 << 10, usize::MAX, other.insert(1).unwrap()] {
            assert_eq!(code(table.get(wrong)), KEEL_INVALID, "{wrong:#x}");
        }
    }

    #[test]
    fn there_are_only_so_many() {
        let table = Table::new(1, "thing");
        let handles: Vec<_> = (0..PLACES_MAX).map(|n| table.insert(n).unwrap()).collect();
        assert!(table.insert(0).is_err());
        table.remove(handles[9]).unwrap();
        table.insert(0).unwrap();
        assert_eq!(table.get(handles[10]).unwrap(), 10);
    }
}
