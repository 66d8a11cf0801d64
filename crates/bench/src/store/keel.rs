//! Ours: a store in an image file, opened past the page cache, so that every read comes from the device.

use std::path::Path;

use base::block::FileDevice;
use flash::{FileHandle, FormatOptions, Store};

use super::floor::{counts_of, open_direct, write_through};
use super::{
    Case, DeviceCounts, OPERATION_BYTES, READ_FILE_BYTES, Step, System, check_pattern,
    fill_pattern, timed,
};

/// Name of the file that reads are spread over.
const READ_NAME: &str = "read";

/// Names beside those of a round: the file to read and the file to append to.
const FILES_BESIDE: u64 = 8;

/// A freshly formatted store.
pub(crate) struct Keel {
    store: Store<FileDevice>,
    is_direct: bool,
    read_file: FileHandle,
    append_file: Option<FileHandle>,
    payload: Vec<u8>,
}

impl Keel {
    /// Formats a store of `bytes` bytes in `folder` with room for `files` files, and writes the file to read.
    pub(crate) fn create(folder: &Path, bytes: u64, files: u32) -> Result<Self, String> {
        let path = folder.join("store.img");
        write_through(&path, bytes, |_, chunk| chunk.fill(0))?;
        let device = open_direct(&path)?;
        let is_direct = device.is_direct();
        let options = FormatOptions {
            files_max: u64::from(files) + FILES_BESIDE,
            name_bytes_max: 255,
            // Nobody chooses names to attack a bench, and a fixed key repeats a run exactly.
            uuid: [1; 16],
            hash_key: [2; 16],
        };
        let mut store = Store::format(device, &options).map_err(describe)?;
        let read_file = store.create(READ_NAME).map_err(describe)?;
        let mut payload = vec![0; OPERATION_BYTES];
        for offset in (0..READ_FILE_BYTES).step_by(OPERATION_BYTES) {
            fill_pattern(offset, &mut payload);
            store.append(read_file, &payload).map_err(describe)?;
        }
        Ok(Self {
            store,
            is_direct,
            read_file,
            append_file: None,
            payload,
        })
    }

    /// Whether the file system lets transfers past its page cache.
    pub(crate) fn is_direct(&self) -> bool {
        self.is_direct
    }
}

fn describe(error: flash::Error) -> String {
    error.to_string()
}

impl System for Keel {
    fn name(&self) -> &str {
        "keel"
    }

    fn begin(&mut self, case: Case, round: u32, count: u32) -> Result<(), String> {
        let first = Step {
            case,
            round,
            index: 0,
            offset: 0,
        };
        match case {
            Case::Append => {
                self.append_file = Some(self.store.create(&first.append_name()).map_err(describe)?)
            }
            Case::Delete => {
                for index in 0..count {
                    let name = Step { index, ..first }.file_name();
                    let file = self.store.open_file(&name).map_err(describe)?;
                    self.store.append(file, &self.payload).map_err(describe)?;
                    self.store.close_file(file);
                }
            }
            Case::Read | Case::Create => {}
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<u64, String> {
        match step.case {
            Case::Append => {
                let file = self.append_file.ok_or("no round has begun")?;
                let (done, elapsed_ns) = timed(|| self.store.append(file, &self.payload));
                done.map(|()| elapsed_ns).map_err(describe)
            }
            Case::Read => {
                let (read, elapsed_ns) = timed(|| {
                    self.store
                        .read(self.read_file, step.offset, &mut self.payload)
                });
                match read.map_err(describe)? {
                    OPERATION_BYTES => {
                        check_pattern(step.offset, &self.payload).map(|()| elapsed_ns)
                    }
                    short => Err(format!("read at {}: {short} bytes", step.offset)),
                }
            }
            Case::Create => {
                let name = step.file_name();
                let (created, elapsed_ns) = timed(|| self.store.create(&name));
                self.store.close_file(created.map_err(describe)?);
                Ok(elapsed_ns)
            }
            Case::Delete => {
                let name = step.file_name();
                let (deleted, elapsed_ns) = timed(|| self.store.delete(&name));
                deleted.map(|()| elapsed_ns).map_err(describe)
            }
        }
    }

    fn end(&mut self, case: Case, round: u32) -> Result<(), String> {
        if case == Case::Append {
            if let Some(file) = self.append_file.take() {
                self.store.close_file(file);
            }
            let step = Step {
                case,
                round,
                index: 0,
                offset: 0,
            };
            self.store.delete(&step.append_name()).map_err(describe)?;
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
