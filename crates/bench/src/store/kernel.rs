//! The kernel's file system in the same folder, made durable as its manual says: an append is a write and an
//! `fdatasync`; a new or removed name needs an `fsync` of the folder, a new file one of its own besides. Reads
//! are cold: the page is dropped from the cache first, outside the timing, and read-ahead is off.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::floor::write_through;
use super::{
    Case, DeviceCounts, OPERATION_BYTES, READ_FILE_BYTES, Step, System, check_pattern,
    fill_pattern, timed,
};
use crate::machine::Disk;

/// A folder of ordinary files.
pub(crate) struct Kernel {
    name: String,
    folder: PathBuf,
    directory: File,
    read_file: File,
    append_file: Option<File>,
    payload: Vec<u8>,
    disk: Option<Disk>,
}

impl Kernel {
    /// Creates the folder and the file to read below `parent`, which lies on a `file_system`.
    pub(crate) fn create(parent: &Path, file_system: &str) -> Result<Self, String> {
        let folder = parent.join("files");
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        fs::create_dir(&folder).map_err(failed)?;
        let directory = File::open(&folder).map_err(failed)?;
        directory.sync_all().map_err(failed)?;
        let read_path = folder.join("read");
        write_through(&read_path, READ_FILE_BYTES, fill_pattern)?;
        let read_file = File::open(&read_path).map_err(failed)?;
        // Without this the kernel would fetch more than was asked for.
        advise(&read_file, libc::POSIX_FADV_RANDOM)?;
        Ok(Self {
            name: format!("{file_system}-sync"),
            disk: Disk::below(&folder),
            folder,
            directory,
            read_file,
            append_file: None,
            payload: vec![0; OPERATION_BYTES],
        })
    }

    fn append(&mut self) -> Result<u64, String> {
        let file = self.append_file.as_mut().ok_or("no round has begun")?;
        let payload = &self.payload;
        let (done, elapsed_ns) = timed(|| {
            file.write_all(payload)?;
            file.sync_data()
        });
        done.map(|()| elapsed_ns).map_err(|error| error.to_string())
    }

    fn read(&mut self, offset: u64) -> Result<u64, String> {
        // All of the file: a range would spare the large folios that reach beyond it.
        advise(&self.read_file, libc::POSIX_FADV_DONTNEED)?;
        let (read, elapsed_ns) = timed(|| self.read_file.read_exact_at(&mut self.payload, offset));
        read.map_err(|error| error.to_string())?;
        check_pattern(offset, &self.payload)?;
        Ok(elapsed_ns)
    }

    fn create_file(&mut self, name: &str) -> Result<u64, String> {
        let path = self.folder.join(name);
        let (created, elapsed_ns) = timed(|| {
            let file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(&path)?;
            file.sync_all()?;
            self.directory.sync_all()?;
            // Handed out, so that closing it is not timed.
            std::io::Result::Ok(file)
        });
        created
            .map(|_| elapsed_ns)
            .map_err(|error| error.to_string())
    }

    fn delete_file(&mut self, name: &str) -> Result<u64, String> {
        let path = self.folder.join(name);
        let (deleted, elapsed_ns) = timed(|| {
            fs::remove_file(&path)?;
            self.directory.sync_all()
        });
        deleted
            .map(|()| elapsed_ns)
            .map_err(|error| error.to_string())
    }
}

impl System for Kernel {
    fn name(&self) -> &str {
        &self.name
    }

    fn begin(&mut self, case: Case, round: u32, count: u32) -> Result<(), String> {
        let failed = |error: std::io::Error| error.to_string();
        let first = Step {
            case,
            round,
            index: 0,
            offset: 0,
        };
        match case {
            Case::Append => {
                let path = self.folder.join(first.append_name());
                self.append_file = Some(
                    OpenOptions::new()
                        .append(true)
                        .create_new(true)
                        .open(path)
                        .map_err(failed)?,
                );
                self.directory.sync_all().map_err(failed)?;
            }
            Case::Delete => {
                for index in 0..count {
                    let path = self.folder.join(Step { index, ..first }.file_name());
                    let mut file = OpenOptions::new().append(true).open(path).map_err(failed)?;
                    file.write_all(&self.payload).map_err(failed)?;
                }
                // SAFETY: the descriptor is open; no memory is passed.
                if unsafe { libc::syncfs(self.directory.as_raw_fd()) } != 0 {
                    return Err(std::io::Error::last_os_error().to_string());
                }
            }
            Case::Read | Case::Create => {}
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<u64, String> {
        match step.case {
            Case::Append => self.append(),
            Case::Read => self.read(step.offset),
            Case::Create => self.create_file(&step.file_name()),
            Case::Delete => self.delete_file(&step.file_name()),
        }
    }

    fn end(&mut self, case: Case, round: u32) -> Result<(), String> {
        if case == Case::Append {
            self.append_file = None;
            let step = Step {
                case,
                round,
                index: 0,
                offset: 0,
            };
            self.delete_file(&step.append_name())?;
        }
        Ok(())
    }

    fn counts(&self) -> Option<DeviceCounts> {
        self.disk.as_ref()?.counts()
    }

    fn counts_source(&self) -> Option<&'static str> {
        self.disk.as_ref().map(|_| "whole disk")
    }
}

/// Says how the whole of `file` will be used.
fn advise(file: &File, advice: libc::c_int) -> Result<(), String> {
    // SAFETY: the descriptor is open; no memory is passed.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, advice) } {
        0 => Ok(()),
        error => Err(format!(
            "posix_fadvise: {}",
            std::io::Error::from_raw_os_error(error)
        )),
    }
}
