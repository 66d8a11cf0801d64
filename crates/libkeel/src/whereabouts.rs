//! Where other processes find a node's values, read from a file beside its socket: `crates/node/NODE.md`, "Values in a
//! region".

use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Where the region appears in paths; the node and its clients use none.
pub const AT: &[u8] = b"/keel";

/// Largest size of the file, in bytes.
const BYTES_MAX: u64 = 16 << 10;

/// Version of the file. It also stands for what the file leads to: a reader that does not know the slot table's layout
/// asks the node. 1 led to slot tables up to version 3, 2 to version 4, 3 leads to version 5.
pub const VERSION: u32 = 3;

/// Where values are, and the run that serves them.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Whereabouts {
    /// [`VERSION`].
    pub version: u32,
    /// The region's file, an absolute path.
    pub region: String,
    /// The table's file in its root.
    pub table: String,
    /// Number of the run that serves the table, in hexadecimal digits.
    pub run: String,
}

impl Whereabouts {
    /// Reads the file beside this socket; `None` if there is none, or none of this version.
    ///
    /// # Errors
    /// The system's errors, if this user may not read it.
    pub fn beside(socket: &Path) -> io::Result<Option<Self>> {
        // Opening a FIFO would wait for its other end.
        let file = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
            .open(path_beside(socket));
        match file {
            Ok(file) => Ok(Self::in_file(file)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error),
            Err(_) => Ok(None),
        }
    }

    fn in_file(file: std::fs::File) -> Option<Self> {
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let mut bytes = Vec::new();
        file.take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
        let found: Self = serde_json::from_slice(&bytes).ok()?;
        (found.version == VERSION).then_some(found)
    }
}

/// Returns the path of the file beside a socket.
#[must_use]
pub fn path_beside(socket: &Path) -> PathBuf {
    let mut name = OsString::from(socket);
    name.push(".region");
    name.into()
}

/// Returns a run's number in the form of the file.
#[must_use]
pub fn run_text(run: [u8; 16]) -> String {
    run.iter().map(|byte| format!("{byte:02x}")).collect()
}
