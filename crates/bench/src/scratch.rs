//! A temporary folder for one run, removed when the run ends, fails or is interrupted.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// The folder. Dropping it removes it with all its content.
pub(crate) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Creates a folder below `parent` that has `bytes_needed` bytes free.
    pub(crate) fn create(parent: &Path, bytes_needed: u64) -> Result<Self, String> {
        let path = parent.join(format!("keel-bench-{}", std::process::id()));
        fs::create_dir(&path).map_err(|error| {
            format!(
                "{}: {error}; name a writable folder with --dir",
                path.display()
            )
        })?;
        let scratch = Self { path };
        let free = free_bytes(&scratch.path)?;
        if free < bytes_needed {
            return Err(format!(
                "{}: {} MiB free, {} MiB needed; name another folder with --dir or lower --repetitions",
                parent.display(),
                free >> 20,
                bytes_needed >> 20
            ));
        }
        catch_interrupts();
        Ok(scratch)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Returns a folder as a path that does not depend on the working directory.
///
/// # Errors
/// One line that names the folder.
pub(crate) fn absolute(folder: &Path) -> Result<PathBuf, String> {
    fs::canonicalize(folder).map_err(|error| format!("{}: {error}", folder.display()))
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!(
                "keel-bench: {}: {error}; remove it by hand",
                self.path.display()
            );
        }
    }
}

/// Writes back cached data of the file system that holds a folder.
///
/// # Errors
/// One line that names the folder.
pub(crate) fn write_back(folder: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let file = fs::File::open(folder).map_err(failed)?;
    // SAFETY: an open descriptor.
    if unsafe { libc::syncfs(std::os::fd::AsRawFd::as_raw_fd(&file)) } == 0 {
        Ok(())
    } else {
        Err(failed(std::io::Error::last_os_error()))
    }
}

/// Returns an error once the user has asked to stop, so that the run unwinds through its clean-up.
pub(crate) fn check_interrupted() -> Result<(), String> {
    if INTERRUPTED.load(Ordering::Relaxed) {
        Err("interrupted; nothing is reported".to_owned())
    } else {
        Ok(())
    }
}

extern "C" fn note_interrupt(_signal: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

fn catch_interrupts() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, which is allowed in a signal handler.
        unsafe {
            libc::signal(
                signal,
                note_interrupt as extern "C" fn(libc::c_int) as libc::sighandler_t,
            )
        };
    }
}

fn free_bytes(path: &Path) -> Result<u64, String> {
    use std::os::unix::ffi::OsStrExt;
    let name =
        std::ffi::CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: all-zero is a valid value of this plain structure of integers.
    let mut figures: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: `name` is NUL-terminated and `figures` is writable for the length of the call.
    if unsafe { libc::statvfs(name.as_ptr(), &raw mut figures) } != 0 {
        return Err(format!(
            "{}: {}",
            path.display(),
            std::io::Error::last_os_error()
        ));
    }
    // The fields' widths differ between architectures.
    #[allow(clippy::useless_conversion, clippy::unnecessary_cast)]
    Ok(figures.f_bavail as u64 * figures.f_frsize as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_removed_with_its_content() {
        let scratch = Scratch::create(&std::env::temp_dir(), 1).unwrap();
        let path = scratch.path().to_path_buf();
        fs::write(path.join("a"), b"x").unwrap();
        drop(scratch);
        assert!(!path.exists());
    }

    #[test]
    fn too_little_space_is_refused_with_the_remedy() {
        let parent = std::env::temp_dir().join(format!("keel-bench-space-{}", std::process::id()));
        fs::create_dir(&parent).unwrap();
        let error = Scratch::create(&parent, u64::MAX).err().unwrap();
        assert!(error.contains("--dir"), "{error}");
        fs::remove_dir(&parent).unwrap();
    }
}
