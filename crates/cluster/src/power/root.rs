//! Small files of the kernel and the system, below a folder that stands for `/`.

use base::error::io_text;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Largest number of bytes read of a file below `/sys`.
const FILE_BYTES_MAX: u64 = 4_096;

/// Largest number of bytes read of a larger file of the kernel or the system.
const LARGE_BYTES_MAX: u64 = 1 << 20;

/// Largest number of entries read of one folder.
const ENTRIES_MAX: usize = 1_024;

/// The folder that stands for `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root(PathBuf);

impl Root {
    /// Creates a root; `/` on a machine.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self(root.into())
    }

    /// Returns a path below it; `path` has no leading slash.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    /// Returns the names in a folder, in order; empty if there is no folder.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path)).into_iter().flatten();
        let names = entries.flatten().take(ENTRIES_MAX);
        let mut names: Vec<String> = names
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        // "intel-rapl:10" after "intel-rapl:9".
        names.sort_by_key(|name| (name.len(), name.clone()));
        names
    }
}

/// Returns the raw text of a small file, or why it cannot be read.
fn read_raw(path: &Path) -> Result<String, String> {
    read_limited(path, FILE_BYTES_MAX)
}

/// Returns the raw text of a larger file: its first megabyte.
pub(crate) fn read_large(path: &Path) -> Result<String, String> {
    read_limited(path, LARGE_BYTES_MAX)
}

fn read_limited(path: &Path, bytes_max: u64) -> Result<String, String> {
    let failed = |error: &std::io::Error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            format!("permission denied: {}; read it as root", path.display())
        }
        std::io::ErrorKind::NotFound => format!("no such file: {}", path.display()),
        _ => format!("{}: {}", path.display(), io_text(error)),
    };
    let file = std::fs::OpenOptions::new().read(true).open(path);
    let mut text = String::new();
    let read = file.and_then(|file| file.take(bytes_max).read_to_string(&mut text));
    read.map_err(|error| failed(&error))?;
    Ok(text)
}

/// Returns the text of a small file without surrounding white space, or why it cannot be read.
pub(crate) fn read_text(path: &Path) -> Result<String, String> {
    let text = read_raw(path)?;
    let text = text.trim();
    if text.is_empty() {
        return Err(format!("{} is empty", path.display()));
    }
    Ok(text.to_owned())
}

/// Returns the integer in a small file. Files of the kernel end with a line feed: a number without one was cut.
pub(crate) fn read_number(path: &Path) -> Result<i64, String> {
    let raw = read_raw(path)?;
    if raw.is_empty() {
        return Err(format!("{} is empty", path.display()));
    }
    let Some(text) = raw.strip_suffix('\n') else {
        return Err(format!("{}: the number was cut", path.display()));
    };
    text.trim().parse().map_err(|_| {
        format!(
            "{}: `{}` is no whole number",
            path.display(),
            crate::error::excerpt(text)
        )
    })
}
