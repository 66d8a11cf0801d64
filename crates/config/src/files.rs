//! Files that the configuration names: text and secrets, read within limits.

use command::error::CliError;
use egress::Secret;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of the longest password.
const PASSWORD_BYTES_MAX: u64 = 65_535;

/// Whether the kernel lets this process open only the places of `node.paths`.
static ARE_LISTED: AtomicBool = AtomicBool::new(false);

/// What helps with a file that the node may not read, if the kernel's rules can be the reason.
const LISTED_REMEDY: &str = "let the node's user read it; node.paths permits only the folders that the configuration \
                             named at the start, so start the node again after a change of them";

/// Records that from now on the kernel lets this process open only the places of `node.paths`.
pub fn files_are_listed() {
    ARE_LISTED.store(true, Ordering::Relaxed);
}

/// Returns why a file cannot be read.
fn unreadable(shown: &str, error: &io::Error, are_listed: bool) -> CliError {
    let told = CliError::io(shown, error);
    match error.kind() == io::ErrorKind::PermissionDenied && are_listed {
        true => told.with_remedy(LISTED_REMEDY),
        false => told,
    }
}

/// Returns the secret in the first line of a file, which is read each time it is needed; empty without a file.
pub(crate) fn secret(file: Option<&Path>) -> Secret {
    match file {
        None => Secret::Text(String::new()),
        Some(path) => Secret::File {
            path: path.to_owned(),
            read: |path| {
                let wrong = "its first line is empty";
                let line = first_line(path, wrong, "write the secret there");
                line.map_err(|error| error.to_string())
            },
        },
    }
}

/// Returns the secret in the first line of a file.
///
/// # Errors
/// The file cannot be read; `wrong` and `remedy` if its first line is empty.
pub(super) fn first_line(path: &Path, wrong: &str, remedy: &str) -> Result<String, CliError> {
    let text = read_bounded(path, PASSWORD_BYTES_MAX)?;
    match text.lines().next() {
        None | Some("") => Err(CliError::failure(path.display(), wrong, remedy)),
        Some(first) => Ok(first.to_owned()),
    }
}

/// Returns the text of a regular file, without the byte order mark that some editors put in front. At any kind of path
/// this waits only for the disk: the node reads files while it serves.
///
/// # Errors
/// It is no regular file, is longer than `bytes_max`, or is not UTF-8; or the error of the system.
pub fn read_bounded(path: &Path, bytes_max: u64) -> Result<String, CliError> {
    let text = String::from_utf8(read_regular(path, bytes_max)?).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.iter().filter(|byte| **byte == b'\n').count() + 1;
        let remedy = "save it as UTF-8";
        CliError::failure(format!("{}:{line}", path.display()), "is not UTF-8", remedy)
    })?;
    Ok(without_mark(&text).to_owned())
}

/// Returns a text without the byte order mark that some editors put in front.
#[must_use]
pub fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// Returns the bytes of a regular file, as [`read_bounded`] reads it.
///
/// # Errors
/// It is no regular file, or is longer than `bytes_max`; or the error of the system.
pub fn read_regular(path: &Path, bytes_max: u64) -> Result<Vec<u8>, CliError> {
    let shown = path.display().to_string();
    let io = |error: io::Error| unreadable(&shown, &error, ARE_LISTED.load(Ordering::Relaxed));
    let refuse_other = |found: &std::fs::Metadata| {
        if found.is_file() {
            return Ok(());
        }
        Err(CliError::failure(
            &shown,
            "is no regular file",
            "name a file",
        ))
    };
    // Check before opening: opening some devices has side effects.
    refuse_other(&std::fs::metadata(path).map_err(io)?)?;
    // A FIFO may have replaced it since then, and opening a FIFO waits for its other end.
    let file = std::fs::File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .map_err(io)?;
    refuse_other(&file.metadata().map_err(io)?)?;
    let mut bytes = Vec::new();
    file.take(bytes_max + 1)
        .read_to_end(&mut bytes)
        .map_err(io)?;
    if bytes.len() as u64 > bytes_max {
        let wrong = format!("is larger than {bytes_max} bytes");
        return Err(CliError::failure(&shown, wrong, "name the right file"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_node_paths_may_refuse_has_that_key_and_the_restart_as_its_remedy() {
        let told = |kind: io::ErrorKind, are_listed| {
            unreadable("/etc/secret", &io::Error::from(kind), are_listed).to_string()
        };
        let listed = told(io::ErrorKind::PermissionDenied, true);
        assert!(listed.contains("node.paths") && listed.contains("start the node again"));
        let free = told(io::ErrorKind::PermissionDenied, false);
        assert!(!free.contains("node.paths"), "{free}");
        let missing = told(io::ErrorKind::NotFound, true);
        assert!(!missing.contains("node.paths"), "{missing}");
    }
}
