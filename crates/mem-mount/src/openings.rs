//! Objects that programs have open through the view: files, with their descriptors of stubs, and directory listings.

use std::collections::HashMap;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use mem::{Attachment, Attributes, Entry, Node, Opened, Result};

/// The number of names that are read from a directory at a time.
const NAMES_AT_ONCE: usize = 512;

/// A file that a program has open.
pub(crate) struct OpenFile {
    /// The file.
    pub(crate) node: Node,
    /// Its open file description; `None` if the region is open for reading only, because a description would be a
    /// change.
    pub(crate) description: Option<Description>,
}

/// An open file description of the region, and the descriptor of the stub that keeps it.
pub(crate) struct Description {
    pub(crate) opened: Opened,
    pub(crate) stub: OwnedFd,
}

impl Description {
    /// # Errors
    /// Those of [`Attachment::open_description`].
    pub(crate) fn open(
        attachment: &Attachment,
        attributes: &Attributes,
        flags: libc::c_int,
    ) -> Result<Self> {
        let (stub, opened) = attachment.open_description(attributes, flags | libc::O_CLOEXEC)?;
        Ok(Self {
            opened,
            stub: owned(stub),
        })
    }

    /// Closes it; a file without names is freed with its last description.
    pub(crate) fn close(self, attachment: &Attachment) {
        attachment.closing(&self.opened);
        drop(self.stub);
        // If it fails, a sweep frees the file later.
        attachment.closed(&self.opened).ok();
    }
}

fn owned(descriptor: RawFd) -> OwnedFd {
    // SAFETY: it was opened for the caller of the description, and no other code knows it.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

/// The names read from an open directory.
#[derive(Default)]
pub(crate) struct Listing {
    /// The position behind which `names` begins.
    from: u64,
    /// In reverse order of the directory: the next one is the last element.
    names: Vec<Entry>,
}

impl Listing {
    /// Returns the next name behind `position`. Calls `list` if no name is left.
    ///
    /// # Errors
    /// Those of `list`.
    pub(crate) fn next(
        &mut self,
        position: u64,
        list: impl FnOnce(u64, usize) -> Result<Vec<Entry>>,
    ) -> Result<Option<Entry>> {
        if position == 0 || self.from != position || self.names.is_empty() {
            self.names = list(position, NAMES_AT_ONCE)?;
            self.names.reverse();
        }
        let next = self.names.pop();
        if let Some(next) = &next {
            self.from = next.position;
        }
        Ok(next)
    }

    /// Puts back an entry that did not fit in a reply.
    pub(crate) fn put_back(&mut self, position: u64, entry: Entry) {
        self.names.push(entry);
        self.from = position;
    }
}

/// Objects by the number under which the kernel knows them.
pub(crate) struct Table<T> {
    things: RwLock<(u64, HashMap<u64, Arc<T>>)>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            things: RwLock::new((0, HashMap::new())),
        }
    }
}

impl<T> Table<T> {
    pub(crate) fn add(&self, thing: T) -> u64 {
        let mut things = self.things.write().unwrap_or_else(PoisonError::into_inner);
        things.0 += 1;
        let number = things.0;
        things.1.insert(number, Arc::new(thing));
        number
    }

    pub(crate) fn get(&self, number: u64) -> Option<Arc<T>> {
        let things = self.things.read().unwrap_or_else(PoisonError::into_inner);
        things.1.get(&number).cloned()
    }

    pub(crate) fn remove(&self, number: u64) -> Option<Arc<T>> {
        let mut things = self.things.write().unwrap_or_else(PoisonError::into_inner);
        things.1.remove(&number)
    }

    pub(crate) fn take_all(&self) -> Vec<Arc<T>> {
        let mut things = self.things.write().unwrap_or_else(PoisonError::into_inner);
        things.1.drain().map(|(_, thing)| thing).collect()
    }
}

/// Locks a mutex even if it is poisoned: the guarded data is whole at any time.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_goes_on_where_it_was_and_anywhere_else() {
        let entry = |position| Entry {
            position,
            inode: position,
            name: b"x".to_vec(),
        };
        let list = |behind, count| {
            let all = (10..2000).filter(|position| *position > behind);
            Ok(all.take(count).map(entry).collect())
        };
        let mut listing = Listing::default();
        let mut seen = Vec::new();
        let mut position = 0;
        while let Some(next) = listing.next(position, list).unwrap() {
            position = next.position;
            if position % 7 == 0 && seen.last() != Some(&position) {
                // This one does not fit: the kernel asks again from the previous position.
                let before = position - 1;
                listing.put_back(before, next);
                let again = listing.next(before, list).unwrap().unwrap();
                assert_eq!(again.position, position);
            }
            seen.push(position);
        }
        assert_eq!(seen, (10..2000).collect::<Vec<_>>());
        assert_eq!(listing.next(500, list).unwrap().unwrap().position, 501);
        assert_eq!(listing.next(0, list).unwrap().unwrap().position, 10);
        assert_eq!(listing.next(1999, list).unwrap(), None);
    }
}
