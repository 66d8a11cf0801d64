//! Where the demo's store is: a directory that the user names, or one that is removed afterwards.

use command::error::CliError;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Name of the device image.
const IMAGE: &str = "demo.img";

/// The directory; if it is temporary, dropping this removes it on every exit path.
#[derive(Debug)]
pub(crate) struct StoreDirectory {
    dir: PathBuf,
    temporary: bool,
}

impl StoreDirectory {
    /// Uses `dir`, creating it if absent, or creates a temporary directory.
    pub(crate) fn new(dir: Option<&Path>) -> Result<Self, CliError> {
        let Some(dir) = dir else {
            return Self::temporary();
        };
        std::fs::create_dir_all(dir).map_err(|error| CliError::io(dir.display(), &error))?;
        let directory = Self {
            dir: dir.to_path_buf(),
            temporary: false,
        };
        if directory.image().exists() {
            return Err(CliError::failure(
                directory.image().display(),
                "exists already",
                "remove it, or choose another --dir",
            ));
        }
        Ok(directory)
    }

    fn temporary() -> Result<Self, CliError> {
        let mut failure = None;
        for parent in candidates() {
            let dir = parent.join(format!("keel-demo-{}", std::process::id()));
            // Only for this user, and never a directory that another user has prepared.
            match std::fs::DirBuilder::new().mode(0o700).create(&dir) {
                Ok(()) => {
                    return Ok(Self {
                        dir,
                        temporary: true,
                    });
                }
                Err(error) => failure = Some(CliError::io(dir.display(), &error)),
            }
        }
        Err(failure.unwrap_or_else(|| {
            CliError::failure("temporary directory", "none was found", "use --dir")
        }))
    }

    /// Returns the path of the device image in it.
    pub(crate) fn image(&self) -> PathBuf {
        self.dir.join(IMAGE)
    }

    /// Returns the directory.
    pub(crate) fn folder(&self) -> &Path {
        &self.dir
    }

    /// Returns the directory, if it must be removed.
    pub(crate) fn temporary_dir(&self) -> Option<&Path> {
        self.temporary.then_some(&*self.dir)
    }
}

impl Drop for StoreDirectory {
    fn drop(&mut self) {
        if self.temporary {
            std::fs::remove_dir_all(&self.dir).ok();
        }
    }
}

/// Returns TMPDIR if set; otherwise /var/tmp before /tmp, because /tmp is often in memory, which is no flash.
fn candidates() -> Vec<PathBuf> {
    match std::env::var_os("TMPDIR").filter(|dir| !dir.is_empty()) {
        Some(dir) => vec![dir.into()],
        None => vec!["/var/tmp".into(), std::env::temp_dir()],
    }
}
