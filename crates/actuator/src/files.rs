//! The machine's settings as files.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The machine's settings as files.
pub trait Files: Send {
    /// The text of a file, without the end of its line.
    ///
    /// # Errors
    /// What the system says.
    fn read(&self, path: &Path) -> std::io::Result<String>;

    /// Writes a setting.
    ///
    /// # Errors
    /// What the system says.
    fn write(&self, path: &Path, text: &str) -> std::io::Result<()>;

    /// Names in a folder, in order.
    ///
    /// # Errors
    /// What the system says.
    fn list(&self, path: &Path) -> std::io::Result<Vec<String>>;

    /// Makes a folder, which the system fills.
    ///
    /// # Errors
    /// What the system says.
    fn make(&self, path: &Path) -> std::io::Result<()>;

    /// Removes such a folder.
    ///
    /// # Errors
    /// What the system says.
    fn remove(&self, path: &Path) -> std::io::Result<()>;
}

/// The files of the system that this program runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemFiles;

/// Most bytes of a setting: a page of the kernel's is less.
const SETTING_BYTES_MAX: u64 = 64 << 10;

/// Most names in a folder of settings.
const NAMES_MAX: usize = 65_536;

/// Opens a setting. A pipe, or any other file that waits for a partner, must not block the caller. A program that sets
/// the speed must be able to end.
fn open(path: &Path, options: &mut std::fs::OpenOptions) -> std::io::Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    let waits_for_nobody = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = options.custom_flags(waits_for_nobody).open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(std::io::Error::other(
            "it is no regular file, so no setting",
        ))
    }
}

/// Whether it is a regular file of this user or of root.
pub(crate) fn is_ours(file: &std::fs::File) -> bool {
    // SAFETY: it takes nothing and cannot fail.
    let user = unsafe { libc::geteuid() };
    let found = file.metadata();
    found.is_ok_and(|found| found.is_file() && (found.uid() == user || found.uid() == 0))
}

impl Files for SystemFiles {
    fn read(&self, path: &Path) -> std::io::Result<String> {
        use std::io::Read;
        let mut text = String::new();
        open(path, std::fs::OpenOptions::new().read(true))?
            .take(SETTING_BYTES_MAX)
            .read_to_string(&mut text)?;
        text.truncate(text.trim_end().len());
        Ok(text)
    }

    fn write(&self, path: &Path, text: &str) -> std::io::Result<()> {
        use std::io::Write;
        // Do not create a missing file. Truncate the old content, for files that are not the system's.
        let mut options = std::fs::OpenOptions::new();
        open(path, options.write(true).truncate(true))?.write_all(text.as_bytes())
    }

    fn list(&self, path: &Path) -> std::io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(path)?.take(NAMES_MAX) {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    fn make(&self, path: &Path) -> std::io::Result<()> {
        std::fs::create_dir(path)
    }

    fn remove(&self, path: &Path) -> std::io::Result<()> {
        std::fs::remove_dir(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_or_folder_in_place_of_a_setting_is_refused_without_waiting() {
        let folder = std::env::temp_dir().join(format!("keel-settings-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let pipe = folder.join("pipe");
        let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
        // SAFETY: the name ends with a zero and lives until the call returns.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let plain = folder.join("plain");
        std::fs::write(&plain, "powersave\n").unwrap();
        for wrong in [&pipe, &folder] {
            assert!(SystemFiles.read(wrong).is_err(), "{wrong:?}");
            assert!(SystemFiles.write(wrong, "1").is_err(), "{wrong:?}");
        }
        assert_eq!(SystemFiles.read(&plain).unwrap(), "powersave");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
