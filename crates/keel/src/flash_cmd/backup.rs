//! The file of a backup while it is written: until it is complete it is no store, and has a temporary name.

use super::deferred_superblock::DeferredSuperblock;
use super::draft::{behind_links, put_in_place, remove_old_draft};
use super::interruption::Interruption;
use super::new_image::NewImage;
use super::prepare::{Prepared, StoreOptions, prepare};
use crate::error::{CliError, STATUS_FAILURE};
use base::block::{BLOCK_BYTES, BlockDevice, FileDevice};
use command::progress::Progress;
use flash::{FileHandle, OpenOptions, PAYLOAD_BYTES, Store};
use node::stores::{
    Access, check_error, device_error, file_error, find_image, open_device, store_error,
};
use node::with_suffix;
use std::path::{Path, PathBuf};

/// Additional blocks: what the store itself needs, and a margin.
const BLOCKS_BESIDES: u64 = 1024;

/// Blocks that a file may take ahead of its content.
const BLOCKS_PER_FILE: u64 = 72;

/// Additional names beyond the announced ones.
const FILES_BESIDES: u64 = 16;

/// The size of the data to store.
pub(crate) struct Shape {
    pub(crate) hash_key: [u8; 16],
    pub(crate) name_bytes_max: u16,
    pub(crate) files_max: u64,
    pub(crate) bytes_max: u64,
}

impl Shape {
    /// Returns the bytes of an image with room for it. Unused blocks take no disk space: the file is sparse.
    fn image_bytes(&self) -> u64 {
        let blocks = self.bytes_max.div_ceil(PAYLOAD_BYTES as u64);
        let addresses = blocks / 16;
        let ahead = self.files_max.saturating_mul(BLOCKS_PER_FILE);
        let all = blocks
            .saturating_add(addresses)
            .saturating_add(ahead)
            .saturating_add(BLOCKS_BESIDES);
        all.saturating_mul(BLOCK_BYTES as u64)
    }
}

/// An incomplete backup. Dropping it leaves nothing behind.
pub(crate) struct Draft {
    to: PathBuf,
    /// Its path until it is complete.
    part: PathBuf,
    store: Store<DeferredSuperblock<FileDevice>>,
    file: Option<(String, FileHandle)>,
    created: NewImage,
    interruption: Interruption,
    _held: Option<FileDevice>,
    /// The file that it replaces, held so that no process uses it meanwhile.
    replaced: Option<FileDevice>,
}

/// The result.
pub(crate) struct Made {
    pub(crate) files: u64,
    pub(crate) size_bytes: u64,
}

impl Draft {
    /// Returns the target path of a backup, with links resolved. Refuses an existing file, unless it may be replaced
    /// and no process holds it: otherwise the store of a running node could be lost.
    pub(crate) fn target(to: &Path, force: bool) -> Result<PathBuf, CliError> {
        let to = behind_links(to)?;
        match std::fs::metadata(&to) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(CliError::io(to.display(), &error)),
            Ok(found) if !found.is_file() => {
                return Err(CliError::failure(
                    to.display(),
                    "is no file",
                    "name a file; `keel restore` takes it to a block device",
                ));
            }
            Ok(_) => {
                drop(open_device(&to, Access::Write)?);
                if !force {
                    return Err(CliError::failure(
                        to.display(),
                        "is there already",
                        "choose another name, or add --force to replace it once the new one is whole",
                    ));
                }
            }
        }
        Ok(to)
    }

    /// Begins a backup at a path that [`target`](Self::target) has returned.
    pub(crate) fn begin(to: &Path, shape: &Shape) -> Result<Self, CliError> {
        let is_there = find_image(to)?.is_some();
        let replaced = is_there.then(|| open_device(to, Access::Write));
        let replaced = replaced.transpose()?;
        let part = with_suffix(to, ".part");
        let wanted = StoreOptions {
            size: Some(shape.image_bytes()),
            files: shape.files_max.saturating_add(FILES_BESIDES),
            name_bytes: shape.name_bytes_max,
            force: false,
            sparse: true,
            is_private: true,
        };
        remove_old_draft(&part)?;
        let progress = Progress::start(format!("preparing {}", to.display()));
        let Prepared {
            device,
            mut options,
            created,
            interruption,
            held,
        } = prepare(&part, &wanted, 0, &progress)?;
        drop(progress);
        options.hash_key = shape.hash_key;
        let store = Store::format(DeferredSuperblock::new(device), &options)
            .map_err(|error| store_error(&part, &error))?;
        Ok(Self {
            to: to.to_path_buf(),
            part,
            store,
            file: None,
            created,
            interruption,
            _held: held,
            replaced,
        })
    }

    fn end_file(&mut self) {
        if let Some((_, file)) = self.file.take() {
            self.store.close_file(file);
        }
    }

    /// Begins a file; the following pieces belong to it.
    pub(crate) fn file(&mut self, name: &str) -> Result<(), CliError> {
        self.end_file();
        let made = self.store.create(name);
        // Never report wrong usage here: the command line was right.
        let failed = |error| file_error(&self.to, name, &error).with_status(STATUS_FAILURE);
        let file = made.map_err(failed)?;
        self.file = Some((name.to_owned(), file));
        Ok(())
    }

    /// Adds bytes to the current file.
    pub(crate) fn piece(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        let Some((name, file)) = &self.file else {
            return Err(CliError::failure(
                "node",
                "sent bytes of no file",
                "use keel of the node's version",
            ));
        };
        match self.store.append_nosync(*file, bytes) {
            Err(flash::Error::Full) => Err(CliError::failure(
                self.to.display(),
                "more has come than the node had announced",
                "try again",
            )),
            done => done.map_err(|error| file_error(&self.to, name, &error)),
        }
    }

    /// Deletes the current, incomplete file: it no longer exists in the node.
    pub(crate) fn forget(&mut self, name: &str) -> Result<(), CliError> {
        self.end_file();
        let deleted = self.store.delete(name);
        deleted.map_err(|error| file_error(&self.to, name, &error))
    }

    /// Reads the backup back from the disk and checks it. If it has as many files as were sent, turns it into a store
    /// and gives it its name.
    pub(crate) fn finish(mut self, files: u64, progress: &Progress) -> Result<Made, CliError> {
        self.end_file();
        let Self {
            to,
            part,
            mut store,
            created,
            interruption,
            _held: held,
            replaced,
            ..
        } = self;
        let failed = |error: flash::Error| store_error(&part, &error);
        store.sync().map_err(failed)?;
        let device = store.close().map_err(failed)?;
        progress.part("checking");
        let mut store = Store::open(device, &OpenOptions::default()).map_err(failed)?;
        let report = store.check().map_err(|error| check_error(&part, &error))?;
        if let Some(problem) = report.problems.first() {
            return Err(CliError::failure(
                to.display(),
                format!("came back with other content ({problem})"),
                "do not trust this disk; write the backup to another one",
            ));
        }
        let made = Made {
            files: store.statistics().files,
            size_bytes: store.device().geometry().block_count * BLOCK_BYTES as u64,
        };
        if made.files != files {
            let wrong = format!("{} files came, {files} were sent", made.files);
            return Err(CliError::failure(to.display(), wrong, "try again"));
        }
        let device = store.close().map_err(failed)?;
        let released = device.release();
        let device = released.map_err(|error| device_error(&part, &error))?;
        put_in_place(&part, &to, replaced.is_some())
            .map_err(|error| CliError::io(to.display(), &error))?;
        created.keep();
        drop((interruption, device, held, replaced));
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(bytes_max: u64, files_max: u64) -> Shape {
        Shape {
            hash_key: [7; 16],
            name_bytes_max: 64,
            files_max,
            bytes_max,
        }
    }

    #[test]
    fn a_draft_has_room_for_the_announced_files_and_keeps_the_key() {
        let dir = std::env::temp_dir().join(format!("keel-backup-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let to = dir.join("a.backup");
        // Many small files, one large file, and no file.
        for (number, files, bytes) in [(0, 200, 10_u64), (1, 1, 9 << 20), (2, 0, 0)] {
            let mut draft = Draft::begin(&to, &shape(files * bytes, files)).unwrap();
            let content = vec![5; bytes as usize];
            for file in 0..files {
                draft.file(&format!("log-{file:08}")).unwrap();
                for piece in content.chunks(60_000) {
                    draft.piece(piece).unwrap();
                }
            }
            assert!(!to.exists() || number > 0);
            let made = draft
                .finish(files, &Progress::start(String::new()))
                .unwrap();
            assert_eq!(made.files, files);
            let store = node::stores::open_alone(&to, false).unwrap();
            assert_eq!(store.layout().hash_key, [7; 16]);
            assert_eq!(store.statistics().files, files);
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn an_unfinished_draft_is_no_store_and_leaves_no_file() {
        let dir = std::env::temp_dir().join(format!("keel-backup-half-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let to = dir.join("a.backup");
        let mut draft = Draft::begin(&to, &shape(100_000, 2)).unwrap();
        draft.file("log-00000000").unwrap();
        draft.piece(&[1; 5000]).unwrap();
        draft.store.sync().unwrap();
        // A killed process leaves such a file: it is no store.
        let part = with_suffix(&to, ".part");
        let copy = dir.join("copy");
        std::fs::copy(&part, &copy).unwrap();
        let error = node::stores::open_alone(&copy, false).err().unwrap();
        assert!(
            error.to_string().contains("not an Evenkeel flash store"),
            "{error}"
        );
        drop(draft);
        assert!(!part.exists() && !to.exists());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
