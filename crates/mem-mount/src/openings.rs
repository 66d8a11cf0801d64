//! What programs have open through the view: files, with their descriptors of stubs, and listings of directories.

use std::collections::HashMap;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use mem::{Attachment, Attributes, Entry, Node, Opened, Result};

/// Names that are taken from a directory at a time.
const NAMES_AT_ONCE: usize = 512;

/// A file that a program has open.
pub(crate) struct OpenFile {
    /// Which file.
    pub(crate) node: Node,
    /// Its open file description; none where the region is open for reading only, for that would be a change.
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

    /// Gives it back; a file that has no name any more goes with its last description.
    pub(crate) fn close(self, attachment: &Attachment) {
        attachment.closing(&self.opened);
        drop(self.stub);
        // Should it fail, a sweep does it later.
        attachment.closed(&self.opened).ok();
    }
}

fn owned(descriptor: RawFd) -> OwnedFd {
    // SAFETY: it was opened for whoever asked for the description, who alone knows it.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

/// Names of an open directory, as far as they have been read.
#[derive(Default)]
pub(crate) struct Listing {
    /// The position behind which `names` begins.
    from: u64,
    /// In the order of the directory, the next one last.
    names: Vec<Entry>,
}

impl Listing {
    /// The next name behind `position`, by `list` where none is left.
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

    /// Puts back what found no room in an answer.
    pub(crate) fn put_back(&mut self, position: u64, entry: Entry) {
        self.names.push(entry);
        self.from = position;
    }
}

/// Things by the number that the kernel names them by.
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

/// A lock that a panic elsewhere does not close: what it guards is whole at any time.
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
                // No room for this one: the kernel asks again behind the one before.
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
