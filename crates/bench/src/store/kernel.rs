//! The kernel's file system, made durable as its manual requires: a change of content is a write and an `fdatasync`. A
//! new or removed name needs an `fsync` of the folder; a new file also needs its own `fsync`. Reads are cold: the page
//! is dropped from the cache first, outside the timing, and read-ahead is off.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::counts::DeviceCounts;
use super::floor::write_through;
use super::timed::{
    Case, OPERATION_BYTES, OVERWRITE_FILE_BYTES, READ_FILE_BYTES, RECORD_BYTES, Step, System,
    check_pattern, fill_changed, fill_pattern, timed,
};
use crate::machine::Disk;

/// A folder of ordinary files.
pub(crate) struct Kernel {
    name: String,
    folder: PathBuf,
    directory: File,
    read_file: File,
    overwrite_file: File,
    /// The file that the current round appends to or cuts.
    round_file: Option<File>,
    round_length: u64,
    payload: Vec<u8>,
    disk: Option<Disk>,
    counts_source: &'static str,
}

impl Kernel {
    /// Creates a folder and the files to read and overwrite below `parent`. `counts_source` names the users of the disk
    /// below: `own disk` or `whole disk`.
    ///
    /// # Errors
    /// One line that names the path.
    pub(crate) fn create(
        parent: &Path,
        name: &str,
        counts_source: &'static str,
    ) -> Result<Self, String> {
        let folder = parent.join("files");
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        fs::create_dir(&folder).map_err(failed)?;
        let directory = File::open(&folder).map_err(failed)?;
        directory.sync_all().map_err(failed)?;
        let read_path = folder.join("read");
        write_through(&read_path, READ_FILE_BYTES, fill_pattern)?;
        let read_file = File::open(&read_path).map_err(failed)?;
        // Otherwise the kernel would read ahead.
        advise(&read_file, libc::POSIX_FADV_RANDOM)?;
        let overwrite_path = folder.join("overwrite");
        write_through(&overwrite_path, OVERWRITE_FILE_BYTES, fill_pattern)?;
        Ok(Self {
            name: name.to_owned(),
            disk: Disk::below(&folder),
            overwrite_file: File::options()
                .write(true)
                .open(&overwrite_path)
                .map_err(failed)?,
            folder,
            directory,
            read_file,
            round_file: None,
            round_length: 0,
            payload: vec![0; OPERATION_BYTES],
            counts_source,
        })
    }

    fn append(&mut self, bytes: usize) -> Result<u64, String> {
        let file = self.round_file.as_mut().ok_or("no round has begun")?;
        let payload = &self.payload[..bytes];
        finish(timed(|| {
            file.write_all(payload)?;
            file.sync_data()
        }))
    }

    fn overwrite(&mut self, offset: u64, step: &Step) -> Result<u64, String> {
        fill_changed(offset, step, &mut self.payload);
        let (file, payload) = (&self.overwrite_file, &self.payload);
        finish(timed(|| {
            file.write_all_at(payload, offset)?;
            file.sync_data()
        }))
    }

    fn truncate(&mut self) -> Result<u64, String> {
        let file = self.round_file.as_ref().ok_or("no round has begun")?;
        self.round_length -= OPERATION_BYTES as u64;
        finish(timed(|| {
            file.set_len(self.round_length)?;
            file.sync_data()
        }))
    }

    fn read(&mut self, offset: u64) -> Result<u64, String> {
        // Drop the whole file: a range would not drop the large folios that extend beyond it.
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
            // Returned to the caller, so that closing the file is not timed.
            std::io::Result::Ok(file)
        });
        finish((created.map(|_| ()), elapsed_ns))
    }

    fn rename_file(&mut self, from: &str, to: &str) -> Result<u64, String> {
        let (from, to) = (self.folder.join(from), self.folder.join(to));
        finish(timed(|| {
            fs::rename(&from, &to)?;
            self.directory.sync_all()
        }))
    }

    fn delete_file(&mut self, name: &str) -> Result<u64, String> {
        let path = self.folder.join(name);
        finish(timed(|| {
            fs::remove_file(&path)?;
            self.directory.sync_all()
        }))
    }

    /// Writes back all cached data.
    fn settle(&self) -> Result<(), String> {
        // SAFETY: the descriptor is open; no memory is passed.
        match unsafe { libc::syncfs(self.directory.as_raw_fd()) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error().to_string()),
        }
    }
}

fn finish((done, elapsed_ns): (std::io::Result<()>, u64)) -> Result<u64, String> {
    done.map(|()| elapsed_ns).map_err(|error| error.to_string())
}

impl System for Kernel {
    fn name(&self) -> &str {
        &self.name
    }

    fn takes(&self, case: Case) -> bool {
        // Records are a case for databases.
        case.is_of_store() && case != Case::Record
    }

    fn begin(&mut self, case: Case, round: u32, count: u32) -> Result<(), String> {
        let failed = |error: std::io::Error| error.to_string();
        let first = Step::first(case, round);
        match case {
            Case::Append => {
                let path = self.folder.join(first.round_name());
                let mut options = OpenOptions::new();
                let file = options.append(true).create_new(true).open(path);
                self.round_file = Some(file.map_err(failed)?);
                self.directory.sync_all().map_err(failed)?;
            }
            Case::Truncate => {
                self.round_length = u64::from(count) * OPERATION_BYTES as u64;
                let path = self.folder.join(first.round_name());
                write_through(&path, self.round_length, fill_pattern)?;
                let file = File::options().write(true).open(&path);
                self.round_file = Some(file.map_err(failed)?);
                self.directory.sync_all().map_err(failed)?;
            }
            Case::Delete => {
                for index in 0..count {
                    let path = self.folder.join(Step { index, ..first }.renamed_name());
                    let mut file = OpenOptions::new().append(true).open(path).map_err(failed)?;
                    file.write_all(&self.payload).map_err(failed)?;
                }
                self.settle()?;
            }
            Case::Read | Case::Create | Case::Overwrite | Case::Rename | Case::Record => {}
            Case::CommitWal | Case::CommitRollback => {}
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<u64, String> {
        match step.case {
            Case::Append => self.append(OPERATION_BYTES),
            Case::Record => self.append(RECORD_BYTES),
            Case::Read => self.read(step.offset),
            Case::Create => self.create_file(&step.file_name()),
            Case::Overwrite => self.overwrite(step.offset % OVERWRITE_FILE_BYTES, step),
            Case::Rename => self.rename_file(&step.file_name(), &step.renamed_name()),
            Case::Truncate => self.truncate(),
            Case::Delete => self.delete_file(&step.renamed_name()),
            Case::CommitWal | Case::CommitRollback => Err("no database".to_owned()),
        }
    }

    fn end(&mut self, case: Case, round: u32) -> Result<(), String> {
        if self.round_file.take().is_some() {
            let path = self.folder.join(Step::first(case, round).round_name());
            fs::remove_file(path).map_err(|error| error.to_string())?;
        }
        self.settle()
    }

    fn counts(&self) -> Option<DeviceCounts> {
        self.disk.as_ref().and_then(Disk::counts)
    }

    fn counts_source(&self) -> Option<&'static str> {
        self.disk.as_ref().map(|_| self.counts_source)
    }
}

/// Tells the kernel how the whole of `file` will be used.
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
