//! Our store in an image file or on a block device, opened to bypass the page cache, so that every read comes from the
//! device.

use std::path::Path;

use base::block::FileDevice;
use flash::{FileHandle, FormatOptions, Store};

use super::counts::{DeviceCounts, counts_of};
use super::floor::{open_direct, write_through};
use super::timed::{
    Case, OPERATION_BYTES, OVERWRITE_FILE_BYTES, READ_FILE_BYTES, RECORD_BYTES, Step, System,
    check_pattern, fill_changed, fill_pattern, timed,
};

/// Name of the file that random reads use.
const READ_NAME: &str = "read";

/// Name of the file that random overwrites use.
const OVERWRITE_NAME: &str = "overwrite";

/// Number of names in addition to those of a round: the files to read, to overwrite, to append to and to cut.
const FILES_BESIDE: u64 = 16;

/// A freshly formatted store.
pub(crate) struct Keel {
    store: Store<FileDevice>,
    is_direct: bool,
    read_file: FileHandle,
    overwrite_file: FileHandle,
    /// The file that the current round appends to or cuts.
    round_file: Option<FileHandle>,
    round_length: u64,
    payload: Vec<u8>,
}

/// Returns the options of every store that a bench formats, for `files_max` names.
pub(crate) fn format_options(files_max: u64) -> FormatOptions {
    FormatOptions {
        files_max,
        name_bytes_max: 255,
        // In a bench no attacker chooses names, and a fixed key makes runs exactly repeatable.
        uuid: [1; 16],
        hash_key: [2; 16],
    }
}

/// Returns one line about the operation that the store refused.
pub(crate) fn describe(error: flash::Error) -> String {
    error.to_string()
}

impl Keel {
    /// Formats a store on `path`, with room for `files` files, and writes the files to read and to overwrite. `path` is
    /// a block device; otherwise a file of `bytes` bytes is created.
    ///
    /// # Errors
    /// One line that names the path or says what the store refused.
    pub(crate) fn create(path: &Path, bytes: u64, files: u32) -> Result<Self, String> {
        if !path.exists() {
            write_through(path, bytes, |_, chunk| chunk.fill(0))?;
        }
        let device = open_direct(path)?;
        let is_direct = device.is_direct();
        let options = format_options(u64::from(files) + FILES_BESIDE);
        let mut store = Store::format(device, &options).map_err(describe)?;
        let read_file = filled(&mut store, READ_NAME, READ_FILE_BYTES)?;
        let overwrite_file = filled(&mut store, OVERWRITE_NAME, OVERWRITE_FILE_BYTES)?;
        Ok(Self {
            store,
            is_direct,
            read_file,
            overwrite_file,
            round_file: None,
            round_length: 0,
            payload: vec![0; OPERATION_BYTES],
        })
    }

    /// Whether the file system allows transfers that bypass its page cache.
    pub(crate) fn is_direct(&self) -> bool {
        self.is_direct
    }
}

/// Creates a file of `bytes` bytes that contains the pattern.
fn filled(store: &mut Store<FileDevice>, name: &str, bytes: u64) -> Result<FileHandle, String> {
    let file = store.create(name).map_err(describe)?;
    let mut chunk = vec![0; 1 << 18];
    for offset in (0..bytes).step_by(chunk.len()) {
        let part = &mut chunk[..(bytes - offset).min(1 << 18) as usize];
        fill_pattern(offset, part);
        store.append(file, part).map_err(describe)?;
    }
    Ok(file)
}

impl System for Keel {
    fn name(&self) -> &str {
        "keel"
    }

    fn begin(&mut self, case: Case, round: u32, count: u32) -> Result<(), String> {
        let first = Step::first(case, round);
        match case {
            Case::Append | Case::Record => {
                let name = first.round_name();
                self.round_file = Some(self.store.create(&name).map_err(describe)?);
            }
            Case::Truncate => {
                self.round_length = u64::from(count) * OPERATION_BYTES as u64;
                let name = first.round_name();
                self.round_file = Some(filled(&mut self.store, &name, self.round_length)?);
            }
            Case::Delete => {
                for index in 0..count {
                    let name = Step { index, ..first }.renamed_name();
                    let file = self.store.open_file(&name).map_err(describe)?;
                    self.store.append(file, &self.payload).map_err(describe)?;
                    self.store.close_file(file);
                }
            }
            Case::Read | Case::Create | Case::Overwrite | Case::Rename => {}
            Case::CommitWal | Case::CommitRollback => {}
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<u64, String> {
        let store = &mut self.store;
        let (done, elapsed_ns) = match step.case {
            Case::Append => {
                let file = self.round_file.ok_or("no round has begun")?;
                timed(|| store.append(file, &self.payload))
            }
            Case::Record => {
                let file = self.round_file.ok_or("no round has begun")?;
                timed(|| store.append(file, &self.payload[..RECORD_BYTES]))
            }
            Case::Read => {
                let (read, elapsed_ns) =
                    timed(|| store.read(self.read_file, step.offset, &mut self.payload));
                if read.map_err(describe)? != OPERATION_BYTES {
                    return Err(format!("read at {}: too few bytes", step.offset));
                }
                check_pattern(step.offset, &self.payload)?;
                (Ok(()), elapsed_ns)
            }
            Case::Create => {
                let name = step.file_name();
                let (created, elapsed_ns) = timed(|| store.create(&name));
                store.close_file(created.map_err(describe)?);
                (Ok(()), elapsed_ns)
            }
            Case::Overwrite => {
                let offset = step.offset % OVERWRITE_FILE_BYTES;
                fill_changed(offset, step, &mut self.payload);
                timed(|| store.write_at(self.overwrite_file, offset, &self.payload))
            }
            Case::Rename => {
                let (from, to) = (step.file_name(), step.renamed_name());
                timed(|| store.rename(&from, &to))
            }
            Case::Truncate => {
                let file = self.round_file.ok_or("no round has begun")?;
                self.round_length -= OPERATION_BYTES as u64;
                timed(|| store.truncate(file, self.round_length))
            }
            Case::Delete => {
                let name = step.renamed_name();
                timed(|| store.delete(&name))
            }
            Case::CommitWal | Case::CommitRollback => return Err("no database".to_owned()),
        };
        done.map(|()| elapsed_ns).map_err(describe)
    }

    fn end(&mut self, case: Case, round: u32) -> Result<(), String> {
        if let Some(file) = self.round_file.take() {
            self.store.close_file(file);
            let name = Step::first(case, round).round_name();
            self.store.delete(&name).map_err(describe)?;
        }
        Ok(())
    }

    fn counts(&self) -> Option<DeviceCounts> {
        Some(counts_of(self.store.device()))
    }

    fn counts_source(&self) -> Option<&'static str> {
        Some("exact")
    }
}
