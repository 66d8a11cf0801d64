//! Files that were deleted, or replaced by a rename, while a program has them open.
//!
//! The store removes such a file at once; POSIX keeps it until it is closed. So the mount renames it to a hidden name
//! and deletes it at the last close. Hidden names begin with a number that only this store has; the mount shows no name
//! with this prefix and refuses to create one.
//!
//! Hidden files left by a killed process are deleted at the next mount. A mount creates a marker before it hides its
//! first file, and deletes it at its end. So one look-up tells whether there are any.
//!
//! Replacing an open file takes two renames, and the name must not be missing after a power cut in between. So the
//! intent is recorded first, and the next mount completes it.

use base::block::BlockDevice;
use flash::{Error, Result, Store};

use crate::limits::OPEN_FILES_MAX;

/// The purpose of the store's secret number.
const PURPOSE: &str = "mount: files deleted while open";

/// Number of hidden names tried when the table has no room for one.
const NAMES_TRIED_MAX: usize = 8;

/// The remains of an earlier, killed mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Number of files deleted now that had been deleted while they were open.
    pub files_deleted: u64,
    /// Number of interrupted renames that were completed.
    pub renames_finished: u64,
    /// Whether some remains cannot be read; hidden files may be left in the store.
    pub is_damaged: bool,
}

/// The hidden names of a store.
pub(crate) struct Hidden {
    prefix: String,
    /// For each number, whether a file has this hidden name.
    taken: Vec<bool>,
    has_marker: bool,
    /// Whether the store takes names of this length.
    fits: bool,
    /// Whether hidden files of an earlier mount must be kept.
    keeps_leftovers: bool,
}

impl Hidden {
    pub(crate) fn of<D: BlockDevice>(store: &Store<D>) -> Self {
        let prefix = format!(".deleted-{:016x}", store.secret(PURPOSE));
        let name_bytes = prefix.len() + "-".len() + 3;
        Self {
            fits: name_bytes <= usize::from(store.layout().name_bytes_max),
            prefix,
            taken: vec![false; OPEN_FILES_MAX],
            has_marker: false,
            keeps_leftovers: false,
        }
    }

    /// Returns whether this name is a hidden name of this store.
    pub(crate) fn is_hidden(&self, name: &str) -> bool {
        name.starts_with(&self.prefix)
    }

    /// Deletes hidden files that an earlier mount could not delete. Costs one look-up, unless an earlier mount was
    /// killed after it had hidden a file.
    ///
    /// Damage does not prevent mounting. In that case hidden files stay: one of them may be the only copy of some data.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) fn clean_up<D: BlockDevice>(&mut self, store: &mut Store<D>) -> Result<Leftovers> {
        let mut found = Leftovers::default();
        if !self.fits {
            return Ok(found);
        }
        let cleaned = self.clean_up_into(store, &mut found);
        if let Err(error @ (Error::Device(_) | Error::Failed)) = cleaned {
            return Err(error);
        }
        if cleaned.is_err() {
            found.is_damaged = true;
            self.keeps_leftovers = true;
            for number in 0..self.taken.len() {
                // A name that cannot be looked up may exist, and hiding another file under it would replace it.
                let is_free = matches!(exists(store, &self.name(number as u16)), Ok(false));
                self.taken[number] = !is_free;
            }
        }
        Ok(found)
    }

    fn clean_up_into<D: BlockDevice>(
        &mut self,
        store: &mut Store<D>,
        found: &mut Leftovers,
    ) -> Result<()> {
        if !exists(store, &self.marker())? {
            return Ok(());
        }
        self.has_marker = true;
        found.renames_finished += u64::from(self.finish_rename(store)?);
        for number in 0..self.taken.len() {
            found.files_deleted += u64::from(delete_if_there(store, &self.name(number as u16))?);
        }
        self.remove_marker(store)
    }

    /// Renames the file called `name` to a hidden name. Returns its number and the hidden name.
    ///
    /// # Errors
    /// [`Error::NameTableFull`], [`Error::Full`] and those of the device.
    pub(crate) fn hide<D: BlockDevice>(
        &mut self,
        store: &mut Store<D>,
        name: &str,
    ) -> Result<(u16, String)> {
        self.make_marker(store)?;
        let free: Vec<u16> = (0..self.taken.len() as u16)
            .filter(|number| !self.taken[usize::from(*number)])
            .take(NAMES_TRIED_MAX)
            .collect();
        let mut failure = Error::NameTableFull;
        for number in free {
            let hidden = self.name(number);
            match store.rename(name, &hidden) {
                Ok(()) => {
                    self.taken[usize::from(number)] = true;
                    return Ok((number, hidden));
                }
                // Another name may go into other blocks of the table.
                Err(error @ Error::NameTableFull) => failure = error,
                Err(error) => return Err(error),
            }
        }
        Err(failure)
    }

    /// Returns whether this store allows names as long as the hidden names.
    pub(crate) fn fits(&self) -> bool {
        self.fits
    }

    /// Deletes a hidden file that is not open any more.
    pub(crate) fn delete<D: BlockDevice>(
        &mut self,
        store: &mut Store<D>,
        number: u16,
    ) -> Result<()> {
        store.delete(&self.name(number))?;
        self.taken[usize::from(number)] = false;
        Ok(())
    }

    /// Renames `from` over `to`, which is open, and turns the old `to` into a hidden file. After a power cut, the next
    /// mount shows either the old or the new file as `to`.
    pub(crate) fn rename_over_open<D: BlockDevice>(
        &mut self,
        store: &mut Store<D>,
        from: &str,
        to: &str,
    ) -> Result<(u16, String)> {
        self.make_marker(store)?;
        let intent = self.intent();
        store.replace(&intent, format!("{from}\0{to}").as_bytes())?;
        let hidden = self.hide(store, to).and_then(|hidden| {
            store.rename(from, to).inspect_err(|_| {
                // Undo the hiding; if the device failed, the next mount completes the rename instead.
                if store.rename(&hidden.1, to).is_ok() {
                    self.taken[usize::from(hidden.0)] = false;
                }
            })?;
            Ok(hidden)
        });
        let deleted = store.delete(&intent);
        let hidden = hidden?;
        // The renames are durable, so an intent that stays does no harm: `from` is gone, and the next mount finds
        // nothing to do. An intent that could not be deleted because of damage is replaced by the next one.
        deleted.ok();
        Ok(hidden)
    }

    /// Ends the mount's use of hidden names; all hidden files must be closed.
    pub(crate) fn end<D: BlockDevice>(&mut self, store: &mut Store<D>) -> Result<()> {
        if self.has_marker && !self.keeps_leftovers && !self.taken.contains(&true) {
            self.remove_marker(store)?;
        }
        Ok(())
    }

    fn marker(&self) -> String {
        self.prefix.clone()
    }

    fn intent(&self) -> String {
        format!("{}+", self.prefix)
    }

    fn name(&self, number: u16) -> String {
        format!("{}-{number:03x}", self.prefix)
    }

    fn make_marker<D: BlockDevice>(&mut self, store: &mut Store<D>) -> Result<()> {
        if !self.has_marker {
            let marker = store.create(&self.marker())?;
            store.close_file(marker);
            self.has_marker = true;
        }
        Ok(())
    }

    fn remove_marker<D: BlockDevice>(&mut self, store: &mut Store<D>) -> Result<()> {
        store.delete(&self.marker())?;
        self.has_marker = false;
        Ok(())
    }

    /// Completes an interrupted rename over an open file. Returns whether there was one.
    fn finish_rename<D: BlockDevice>(&self, store: &mut Store<D>) -> Result<bool> {
        let intent = self.intent();
        let file = match store.open_file(&intent) {
            Ok(file) => file,
            Err(Error::NotFound) => return Ok(false),
            Err(error) => return Err(error),
        };
        let mut content = [0; 1024];
        let read = store.read(file, 0, &mut content);
        store.close_file(file);
        let mut is_finished = false;
        if let Some((from, to)) = parse_intent(&content[..read?])
            && !exists(store, to)?
            && exists(store, from)?
        {
            store.rename(from, to)?;
            is_finished = true;
        }
        store.delete(&intent)?;
        Ok(is_finished)
    }
}

/// Returns the two names of an intent. A power cut leaves it complete or absent, so any other content was not written
/// here.
fn parse_intent(content: &[u8]) -> Option<(&str, &str)> {
    std::str::from_utf8(content).ok()?.split_once('\0')
}

fn exists<D: BlockDevice>(store: &mut Store<D>, name: &str) -> Result<bool> {
    match store.stat(name) {
        Ok(_) => Ok(true),
        Err(Error::NotFound) => Ok(false),
        Err(error) => Err(error),
    }
}

fn delete_if_there<D: BlockDevice>(store: &mut Store<D>, name: &str) -> Result<bool> {
    match store.delete(name) {
        Ok(()) => Ok(true),
        Err(Error::NotFound) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::sim::SimDevice;
    use flash::FormatOptions;

    fn store() -> Store<SimDevice> {
        let options = FormatOptions {
            files_max: 100,
            name_bytes_max: 255,
            uuid: [1; 16],
            hash_key: [2; 16],
        };
        Store::format(SimDevice::new(4096, 1), &options).unwrap()
    }

    fn content(store: &mut Store<SimDevice>, name: &str) -> Vec<u8> {
        let file = store.open_file(name).unwrap();
        let mut bytes = vec![0; store.length(file).unwrap() as usize];
        store.read(file, 0, &mut bytes).unwrap();
        store.close_file(file);
        bytes
    }

    fn names(store: &mut Store<SimDevice>) -> Vec<String> {
        let mut names = Vec::new();
        store
            .list(&mut |name, _| names.push(name.to_owned()))
            .unwrap();
        names.sort();
        names
    }

    #[test]
    fn hidden_files_of_a_killed_mount_are_deleted() {
        let mut store = store();
        store.replace("open", b"1").unwrap();
        store.replace("other", b"2").unwrap();
        let mut hidden = Hidden::of(&store);
        let (number, name) = hidden.hide(&mut store, "open").unwrap();
        assert!(hidden.is_hidden(&name));
        assert_eq!(number, 0);
        assert_eq!(names(&mut store).len(), 3, "hidden, marker and other");
        // The process is killed; the next one begins.
        let mut hidden = Hidden::of(&store);
        let found = hidden.clean_up(&mut store).unwrap();
        assert_eq!(found.files_deleted, 1);
        assert_eq!(names(&mut store), ["other"]);
        assert_eq!(hidden.clean_up(&mut store).unwrap(), Leftovers::default());
    }

    #[test]
    fn a_hidden_file_goes_with_its_last_close_and_the_marker_with_the_mount() {
        let mut store = store();
        store.replace("open", b"1").unwrap();
        let mut hidden = Hidden::of(&store);
        let (number, name) = hidden.hide(&mut store, "open").unwrap();
        assert_eq!(content(&mut store, &name), b"1");
        hidden.end(&mut store).unwrap();
        assert_eq!(names(&mut store).len(), 2, "it is not the end yet");
        hidden.delete(&mut store, number).unwrap();
        hidden.end(&mut store).unwrap();
        assert!(names(&mut store).is_empty());
    }

    #[test]
    fn a_name_that_is_renamed_over_is_never_missing() {
        // Cut the power at each write of the whole operation, and check the next mount.
        let mut after_old = 0;
        let mut after_new = 0;
        for cut in 1.. {
            let mut store = store();
            store.replace("config", b"old").unwrap();
            store.replace("config.new", b"new").unwrap();
            let reader = store.open_file("config").unwrap();
            let mut hidden = Hidden::of(&store);
            store.device_mut().set_power_cut_after_writes(Some(cut));
            let done = hidden.rename_over_open(&mut store, "config.new", "config");
            store.device_mut().set_power_cut_after_writes(None);
            for image in store.device().crash_images_all_subsets() {
                let mut again = Store::open(image, &flash::OpenOptions::default()).unwrap();
                Hidden::of(&again).clean_up(&mut again).unwrap();
                let seen = content(&mut again, "config");
                after_old += u32::from(seen == b"old");
                after_new += u32::from(seen == b"new");
                assert!(
                    seen == b"old" && done.is_err() || seen == b"new",
                    "{seen:?}"
                );
                let rest = names(&mut again);
                let expected: &[&[&str]] = &[&["config"], &["config", "config.new"]];
                assert!(
                    expected.iter().any(|names| *names == rest),
                    "{cut}: {rest:?}"
                );
            }
            if store.device().is_powered() {
                done.unwrap();
                assert_eq!(store.read(reader, 0, &mut [0; 8]).unwrap(), 3);
                break;
            }
        }
        assert!(after_old > 3 && after_new > 3, "{after_old} {after_new}");
    }

    /// Flips a bit in every block that holds these bytes, and opens the store again.
    fn damaged(store: Store<SimDevice>, bytes: &[u8]) -> Store<SimDevice> {
        let mut device = store.close().unwrap();
        let holds = |device: &SimDevice, block: u64| {
            let content = device.peek(block);
            content.windows(bytes.len()).any(|window| window == bytes)
        };
        let hit: Vec<u64> = (0..4096).filter(|block| holds(&device, *block)).collect();
        assert!(!hit.is_empty());
        for block in hit {
            device.inject_bit_rot(block, 12_345);
        }
        Store::open(device, &flash::OpenOptions::default()).unwrap()
    }

    #[test]
    fn files_of_a_damaged_intent_are_kept() {
        let mut store = store();
        store.replace("config", b"the only copy").unwrap();
        store.replace("other", b"x").unwrap();
        let mut hidden = Hidden::of(&store);
        let (_, kept) = hidden.hide(&mut store, "config").unwrap();
        store.replace(&hidden.intent(), b"new\0config").unwrap();
        let mut store = damaged(store, b"new\0config");
        let mut hidden = Hidden::of(&store);
        let found = hidden.clean_up(&mut store).unwrap();
        assert!(found.is_damaged);
        assert_eq!(found.files_deleted, 0);
        // A file hidden from now on must not replace it, and neither the end nor the next mount may delete it.
        let (number, other) = hidden.hide(&mut store, "other").unwrap();
        assert_eq!(number, 1);
        assert_eq!(content(&mut store, &other), b"x");
        hidden.delete(&mut store, number).unwrap();
        hidden.end(&mut store).unwrap();
        assert!(Hidden::of(&store).clean_up(&mut store).unwrap().is_damaged);
        assert_eq!(content(&mut store, &kept), b"the only copy");
    }

    #[test]
    fn a_damaged_table_is_no_reason_not_to_mount() {
        let mut store = store();
        store.replace("open", b"1").unwrap();
        let mut hidden = Hidden::of(&store);
        hidden.hide(&mut store, "open").unwrap();
        let marker = hidden.marker();
        // Write records that do not contain the names: damage to images of the newest records is a different case.
        let other = store.create("other").unwrap();
        for _ in 0..40 {
            store.append(other, &[7; 30_000]).unwrap();
        }
        store.close_file(other);
        let mut store = damaged(store, marker.as_bytes());
        let mut hidden = Hidden::of(&store);
        assert!(hidden.clean_up(&mut store).unwrap().is_damaged);
        hidden.end(&mut store).unwrap();
    }
}
