//! The lock of the program that sets the speed of a machine's processors. Of two at once, each would take what the
//! other one has set for the original settings.
//!
//! An advisory lock on a file of the run-time folder below the machine's root. The kernel releases it when its holder
//! ends, in any way. The file stays, and says which process holds it and where that process has saved the settings. The
//! next holder finds them, with any configuration.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::files::is_ours;

/// Folder below the root of the machine's files.
const FOLDER: &str = "run/evenkeel";
const NAME: &str = "cpufreq.lock";

/// Most bytes of the file, and most files of settings that it names.
const BYTES_MAX: u64 = 64 << 10;
const NAMED_MAX: usize = 8;

/// The right to set the speed of a machine's processors.
#[derive(Debug)]
pub struct Lock {
    _file: File,
    earlier: Vec<PathBuf>,
}

/// Why the right could not be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// Another process has it.
    #[error(
        "the speed of these processors is set by {}, which holds {path}; stop that one, or take another qos.actuator \
         here",
        who(.process)
    )]
    Held {
        /// The file.
        path: PathBuf,
        /// The process that holds it, as that process knows itself.
        process: Option<u32>,
        /// Where that process has saved the settings.
        saved: Vec<PathBuf>,
    },
    /// The file cannot be opened or locked.
    #[error(
        "{path}: {text}; the program that sets the speed of processors holds this file: let the node's user make it"
    )]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        text: String,
    },
}

fn who(process: &Option<u32>) -> String {
    process.as_ref().map_or_else(
        || "another process".to_owned(),
        |process| format!("process {process}"),
    )
}

/// The content of the file.
#[derive(Default)]
struct Note {
    process: Option<u32>,
    saved: Vec<PathBuf>,
}

impl Note {
    fn read(file: &mut File) -> Self {
        let mut bytes = Vec::new();
        // A file that cannot be read names no process.
        let _ = file.take(BYTES_MAX).read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes);
        let mut lines = text.lines();
        let process = lines.next().and_then(|line| line.parse().ok());
        let saved = lines.map(PathBuf::from).filter(|path| path.is_absolute());
        Self {
            process,
            saved: saved.take(NAMED_MAX).collect(),
        }
    }

    fn write(&self, file: &mut File) -> std::io::Result<()> {
        let mut text = format!("{}\n", std::process::id());
        for path in &self.saved {
            // A path that no line can hold is left out: the program that chose it finds it there.
            if let Some(path) = path.to_str().filter(|path| !path.contains('\n')) {
                text.push_str(path);
                text.push('\n');
            }
        }
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(text.as_bytes())
    }
}

impl Lock {
    /// Takes the lock for the processors of the machine below `root`, whose settings will be saved in `saved`.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn take(root: &Path, saved: &Path) -> Result<Self, LockError> {
        let path = root.join(FOLDER).join(NAME);
        let failed = |error: std::io::Error| LockError::File {
            path: path.clone(),
            text: error.to_string(),
        };
        let mut file = open(root, &path).map_err(failed)?;
        // SAFETY: the descriptor lives until the call returns.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            let error = std::io::Error::last_os_error();
            if error.kind() != std::io::ErrorKind::WouldBlock {
                return Err(failed(error));
            }
            let Note { process, saved } = Note::read(&mut file);
            return Err(LockError::Held {
                path,
                process,
                saved,
            });
        }
        let before = Note::read(&mut file);
        let mut note = Note {
            process: None,
            saved: vec![saved.to_owned()],
        };
        let earlier = before.saved.into_iter();
        let is_left = |path: &PathBuf| path != saved && path.symlink_metadata().is_ok();
        note.saved
            .extend(earlier.filter(is_left).take(NAMED_MAX - 1));
        note.write(&mut file).map_err(failed)?;
        Ok(Self {
            _file: file,
            earlier: note.saved.split_off(1),
        })
    }

    /// Returns where earlier holders have saved settings that still exist. None of these holders is at work.
    pub(crate) fn earlier(&self) -> &[PathBuf] {
        &self.earlier
    }

    /// Returns where holders have saved settings, as far as the file says.
    #[must_use]
    pub fn noted(root: &Path) -> Vec<PathBuf> {
        let path = root.join(FOLDER).join(NAME);
        let opened = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path);
        match opened {
            Ok(mut file) if is_ours(&file) => Note::read(&mut file).saved,
            _ => Vec::new(),
        }
    }
}

/// Opens the file, which is created with its folder. The root is not created: without it there is no machine.
fn open(root: &Path, path: &Path) -> std::io::Result<File> {
    if !root.is_dir() {
        return Err(std::io::Error::from_raw_os_error(libc::ENOENT));
    }
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(root.join(FOLDER))?;
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        // A user that may not open the file cannot keep others from it.
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    if is_ours(&file) {
        Ok(file)
    } else {
        Err(std::io::Error::other("it is not a file of this user"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_locks_at_a_time_and_the_next_learns_where_settings_are() {
        let root = std::env::temp_dir().join(format!("keel-lock-{}", std::process::id()));
        let (one, other) = (root.join("one.speed"), root.join("other.speed"));
        assert!(matches!(
            Lock::take(&root, &one),
            Err(LockError::File { .. })
        ));
        assert!(!root.exists(), "no machine is made up");
        std::fs::create_dir(&root).unwrap();
        let lock = Lock::take(&root, &one).unwrap();
        let Err(LockError::Held { process, saved, .. }) = Lock::take(&root, &other) else {
            panic!("two of them");
        };
        assert_eq!(process, Some(std::process::id()));
        assert_eq!(saved, std::slice::from_ref(&one));
        drop(lock);
        std::fs::write(&one, "as a killed one leaves it").unwrap();
        let lock = Lock::take(&root, &other).unwrap();
        assert_eq!(Lock::noted(&root), [other.clone(), one.clone()]);
        drop(lock);
        std::fs::remove_file(&one).unwrap();
        drop(Lock::take(&root, &other).unwrap());
        assert_eq!(Lock::noted(&root), [other]);
        std::fs::remove_dir_all(&root).unwrap();
    }
}
