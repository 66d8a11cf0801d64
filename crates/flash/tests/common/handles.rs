//! Handles that stay open during calls, and their expected states.

use base::block::BlockDevice;
use base::sim::Random;
use flash::{Error, FileHandle, Store};

use super::operation::{Content, Operation};
use std::collections::BTreeMap;

/// Maximum number of stale handles that are kept to check that they stay stale.
const STALE_MAX: usize = 12;

/// A handle that the test holds.
struct OpenHandle {
    file: FileHandle,
    name: String,
    /// How often it was opened and not yet closed.
    count: u32,
}

/// The handles that a test holds: the current file of each, and those that must be stale.
#[derive(Default)]
pub struct Kept {
    held: Vec<OpenHandle>,
    stale: Vec<FileHandle>,
}

impl Kept {
    /// Returns the handle held on the file that is called `name` now.
    pub fn of(&self, name: &str) -> Option<FileHandle> {
        self.held
            .iter()
            .find(|held| held.name == name)
            .map(|held| held.file)
    }

    /// Opens a file once more; the second handle must equal the first one.
    pub fn open<D: BlockDevice>(&mut self, store: &mut Store<D>, name: &str, context: &str) {
        let file = store
            .open_file(name)
            .unwrap_or_else(|error| panic!("{context}: {name} does not open: {error}"));
        match self.held.iter_mut().find(|held| held.name == name) {
            Some(held) => {
                assert_eq!(held.file, file, "{context}: {name} has two handles");
                held.count += 1;
            }
            None => self.held.push(OpenHandle {
                file,
                name: name.to_owned(),
                count: 1,
            }),
        }
    }

    /// Closes a random handle once.
    pub fn close<D: BlockDevice>(&mut self, store: &mut Store<D>, random: &mut Random) {
        if self.held.is_empty() {
            return;
        }
        let place = random.index(self.held.len());
        let held = &mut self.held[place];
        store.close_file(held.file);
        held.count -= 1;
        if held.count == 0 {
            let held = self.held.swap_remove(place);
            self.let_go(held.file);
        }
    }

    pub fn count(&self) -> usize {
        self.held.len()
    }

    /// Records the effect of a successful call on the handles.
    pub fn after(&mut self, operation: &Operation) {
        match operation {
            Operation::Delete(name) | Operation::Replace(name, _) => self.forget(name),
            Operation::Rename(from, to) if from != to => {
                self.forget(to);
                for held in &mut self.held {
                    if held.name == *from {
                        held.name.clone_from(to);
                    }
                }
            }
            Operation::Reopen => *self = Self::default(),
            _ => {}
        }
    }

    fn forget(&mut self, name: &str) {
        while let Some(place) = self.held.iter().position(|held| held.name == name) {
            let held = self.held.swap_remove(place);
            self.let_go(held.file);
        }
    }

    fn let_go(&mut self, file: FileHandle) {
        if self.stale.len() == STALE_MAX {
            self.stale.remove(0);
        }
        self.stale.push(file);
    }

    /// Requires that every held handle shows its file, and that every call refuses a stale one and changes nothing.
    pub fn check<D: BlockDevice, C: Content>(
        &self,
        store: &mut Store<D>,
        model: &BTreeMap<String, C>,
        random: &mut Random,
        context: &str,
    ) {
        for held in &self.held {
            let content = model[&held.name].bytes();
            assert_eq!(
                store.length(held.file).ok(),
                Some(content.len() as u64),
                "{context}: length by the handle of {}",
                held.name
            );
            let offset = random.index(content.len() + 2);
            let mut bytes = vec![0xa5; random.index(9000) + 1];
            let count = store
                .read(held.file, offset as u64, &mut bytes)
                .unwrap_or_else(|error| panic!("{context}: handle of {}: {error}", held.name));
            let start = offset.min(content.len());
            let expected = &content[start..(start + bytes.len()).min(content.len())];
            assert!(
                bytes[..count] == *expected,
                "{context}: the handle of {} reads something else at {offset}",
                held.name
            );
        }
        for file in &self.stale {
            let refused = [
                store.length(*file).map(|_| ()),
                store.read(*file, 0, &mut [0; 10]).map(|_| ()),
                store.append(*file, b"stale"),
                store.append_nosync(*file, b"stale"),
                store.write_at(*file, 0, b"stale"),
                store.write_at_nosync(*file, 0, b"stale"),
                store.truncate(*file, 0),
            ];
            for (call, result) in refused.iter().enumerate() {
                assert!(
                    matches!(result, Err(Error::StaleHandle)),
                    "{context}: call {call} by a stale handle: {result:?}"
                );
            }
            // Closing a handle that is already closed must have no effect.
            store.close_file(*file);
        }
    }
}
