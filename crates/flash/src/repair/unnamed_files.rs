//! Giving names to files that were found without one.

use std::collections::BTreeSet;

use base::block::BlockDevice;

use crate::block::{NAME_HINT_BYTES, NameHint, PAYLOAD_BYTES};
use crate::error::Result;
use crate::repair::blocks::{Settled, Step};
use crate::repair::report::LostFile;
use crate::repair::scan::Scan;
use crate::repair::state::{FoundFile, Repair};
use crate::root::{FileState, Slot};
use crate::table::{Bucket, buckets_of, set_entry, validate_name};

/// Names tried for one file before it stays without a name.
const NAMES_TRIED_MAX: u64 = 64;

impl<D: BlockDevice> Repair<'_, D> {
    /// Finds the files whose table entries are lost, and gives them new names.
    pub(crate) fn bring_back_lost_files(&mut self) -> Result<()> {
        // The root knows the lost files that were being written to.
        for slot in std::mem::take(&mut self.slots_lost) {
            let state = self.store.root.slots[slot].state;
            self.store.root.slots[slot] = Slot::default();
            self.root_changed = true;
            let is_known = self
                .files
                .iter()
                .any(|file| file.state.file_id == state.file_id);
            let settled = self.settle_newest(slot)?;
            if !is_known && self.is_unowned(&settled) {
                let length = state.length().max(settled.state.length());
                self.put_back(&settled, length)?;
            } else {
                self.drop_markers(&settled);
            }
        }
        let scan = self.scan_unowned()?;
        let first = self.report.lost_files.len();
        self.put_back_remains(&scan)?;
        if self.newest_in_doubt {
            // The lost record may have deleted any of them.
            self.doubt_lost_files(0);
        }
        // Where a file has lost blocks that it took from a deleted file, the deleted file may show up.
        let back = &self.report.lost_files[first..];
        let is_doubtful = self.free_list_damaged
            || back.iter().any(|lost| lost.damaged_bytes > 0)
            || self.has_unexplained_clusters(&scan)?;
        if is_doubtful {
            self.doubt_lost_files(first);
        }
        Ok(())
    }

    fn has_unexplained_clusters(&mut self, scan: &Scan) -> Result<bool> {
        let known: BTreeSet<u64> = self.files.iter().map(|file| file.state.file_id).collect();
        self.has_unexplained(scan, &known)
    }

    /// Marks the files that came back, from index `first` on, as possibly deleted before.
    pub(crate) fn doubt_lost_files(&mut self, first: usize) {
        for lost in &mut self.report.lost_files[first..] {
            lost.may_be_old = true;
        }
    }

    /// Reports the files that came back without their names.
    pub(crate) fn report_lost_files(&mut self) {
        for (lost, cut) in self
            .report
            .lost_files
            .clone()
            .iter()
            .zip(self.lost_ends.clone())
        {
            let missing = if cut > 0 {
                format!(", {cut} bytes of its end are lost")
            } else {
                String::new()
            };
            let old = if lost.may_be_old {
                "; it may have been deleted before"
            } else {
                ""
            };
            let text = format!(
                "came back without its name, {} bytes{missing}{old}",
                lost.length_bytes
            );
            self.find(Some(&lost.name), None, true, cut > 0, text);
        }
    }

    /// Gives a new name to every file that is complete enough in the scan and that no entry knows.
    pub(crate) fn put_back_remains(&mut self, scan: &Scan) -> Result<()> {
        let known: BTreeSet<u64> = self.files.iter().map(|file| file.state.file_id).collect();
        for remains in scan.remains() {
            if known.contains(&remains.file_id) {
                continue;
            }
            if let Some(settled) = self.assemble(scan, &remains, None)? {
                self.put_back(&settled, settled.state.length())?;
            }
        }
        Ok(())
    }

    /// Moves a file that has an invalid name or whose entry is in a wrong place.
    pub(crate) fn put_back_misplaced(&mut self, file: FoundFile, own_name: bool) -> Result<()> {
        let hint = self.hint_of(&file.state)?;
        let own = own_name.then_some(file.name.as_str());
        let bucket_before = self.buckets.get(&file.bucket).cloned();
        self.clear_entry(file.bucket, file.entry)?;
        if let Some(named) = self.name_anew(&file.state, own, &hint)? {
            let text = "its entry of the name table was in the wrong place, or its name another's or none; moved";
            self.find(Some(&file.name), None, true, false, text.to_owned());
            self.files.push(named);
            return Ok(());
        }
        // At its old place no call can find the file, but its blocks stay reserved.
        match bucket_before {
            Some(block) => self.buckets.insert(file.bucket, block),
            None => self.buckets.remove(&file.bucket),
        };
        let text = "its entry of the name table is in the wrong place, or its name another's or none, and there is \
                    no room in the table for another; delete files and repair again";
        self.find(Some(&file.name), None, false, true, text.to_owned());
        self.report.files_unnamed += 1;
        self.files.push(file);
        Ok(())
    }

    /// Gives a file without an entry a name, and assigns its blocks to it. `length` is its former length.
    fn put_back(&mut self, settled: &Settled, length: u64) -> Result<()> {
        let state = settled.state;
        let hint = self.hint_of(&state)?;
        let Some(file) = self.name_anew(&state, None, &hint)? else {
            // Its blocks must not be reused before there is room for its name.
            self.drop_markers(settled);
            self.hide(&settled.runs);
            self.hide(&settled.hidden);
            self.files_unplaced += 1;
            self.report.files_unnamed += 1;
            let text = format!(
                "file {} has lost its name, and there is no room in the name table for another; delete files and \
                 repair again",
                state.file_id
            );
            self.find(None, Some(u64::from(state.tail.address)), false, true, text);
            return Ok(());
        };
        let name = file.name.clone();
        self.files.push(file);
        self.claim_settled(self.files.len() - 1, settled);
        let damaged = settled.steps.iter().filter(|step| step.brief().is_none());
        let damaged_bytes = damaged.count() as u64 * PAYLOAD_BYTES as u64;
        let cut = length.saturating_sub(state.length());
        self.report_blocks(&name, settled);
        self.report.lost_files.push(LostFile {
            name,
            file_id: state.file_id,
            length_bytes: state.length(),
            damaged_bytes,
            may_be_old: false,
        });
        self.lost_ends.push(cut);
        Ok(())
    }

    /// Returns the name hint in the first block of the file.
    fn hint_of(&mut self, state: &FileState) -> Result<NameHint> {
        let steps = self.walk(state)?;
        let first = steps.first().and_then(Step::brief);
        let Some(first) = first else {
            return Ok([0; NAME_HINT_BYTES]);
        };
        let header = self.read_header(first.address)?;
        Ok(header.map_or([0; NAME_HINT_BYTES], |header| header.name_hint))
    }

    /// Creates an entry for the file under an unused name; `None` if there is no room for it.
    fn name_anew(
        &mut self,
        state: &FileState,
        own: Option<&str>,
        hint: &NameHint,
    ) -> Result<Option<FoundFile>> {
        let bytes_max = self.store.layout.name_bytes_max;
        let lost = (0..NAMES_TRIED_MAX)
            .map(|attempt| lost_name(state.file_id, hint, attempt, usize::from(bytes_max)));
        for name in own.map(str::to_owned).into_iter().chain(lost) {
            if validate_name(&name, bytes_max).is_err() {
                continue;
            }
            let mut best: Option<(u16, u32, u16)> = None;
            let mut is_taken = false;
            for bucket in buckets_of(&name, &self.store.layout) {
                let block = self.bucket_content(bucket)?;
                let Some(opened) = Bucket::open(&block, bucket, &self.store.layout) else {
                    continue;
                };
                is_taken |= opened.find(&name).is_some();
                if let Some(entry) = opened.first_free() {
                    let place = (opened.used(), bucket, entry);
                    best = Some(best.map_or(place, |best| best.min(place)));
                }
            }
            if is_taken {
                continue;
            }
            let Some((_, bucket, entry)) = best else {
                continue;
            };
            self.change_bucket(bucket, |block, layout| {
                set_entry(block, entry, Some((&name, state)), layout);
            })?;
            return Ok(Some(FoundFile::new(name, bucket, entry, *state)));
        }
        Ok(None)
    }
}

/// Returns a name for a lost file. It contains `lost`, the file's identity, and as much of its first name as the
/// maximum name length allows. Every attempt gives another name.
fn lost_name(file_id: u64, hint: &NameHint, attempt: u64, bytes_max: usize) -> String {
    let mut name = if attempt == 0 {
        format!("lost-{file_id}")
    } else {
        format!("lost-{file_id}.{attempt}")
    };
    if name.len() > bytes_max {
        // Short names have no room for all of this: use letters and digits that differ for each attempt.
        let mut number = file_id.wrapping_add(attempt.wrapping_mul(7919));
        name.clear();
        while name.len() < bytes_max {
            name.extend(char::from_digit((number % 36) as u32, 36));
            number /= 36;
        }
        return name;
    }
    let length = hint
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(hint.len());
    let said = String::from_utf8_lossy(&hint[..length]);
    let mut rest = String::from("-");
    for character in said.chars().filter(|character| *character != '/') {
        if name.len() + rest.len() + character.len_utf8() > bytes_max {
            break;
        }
        rest.push(character);
    }
    if rest.len() > 1 {
        name.push_str(&rest);
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::name_hint;

    #[test]
    fn lost_names_are_names_and_differ() {
        for bytes_max in [1_usize, 2, 8, 12, 20, 255] {
            for said in ["", "log", "a/b", "ä".repeat(100).as_str()] {
                let hint = name_hint(said);
                let names: Vec<String> = (0..30)
                    .map(|attempt| lost_name(1_234_567, &hint, attempt, bytes_max))
                    .collect();
                for name in &names {
                    validate_name(name, bytes_max as u16).unwrap();
                }
                let different: BTreeSet<&String> = names.iter().collect();
                assert_eq!(different.len(), names.len(), "{bytes_max} {said}");
            }
        }
        assert_eq!(lost_name(7, &name_hint("log"), 0, 255), "lost-7-log");
        assert_eq!(lost_name(7, &name_hint("log"), 2, 10), "lost-7.2-l");
    }
}
