//! `keel bench`: executes the measuring program `keel-bench`, which links the peers that this one must not.

use crate::error::CliError;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

const PROGRAM: &str = "keel-bench";

/// Runs `keel-bench` with the arguments as they are and answers with its exit status.
pub(crate) fn run(arguments: &[OsString]) -> Result<u8, CliError> {
    let beside = std::env::current_exe()
        .ok()
        .and_then(|path| Some(path.parent()?.join(PROGRAM)));
    let program = beside
        .filter(|path| path.is_file())
        .unwrap_or_else(|| PathBuf::from(PROGRAM));
    let status = Command::new(&program)
        .args(arguments)
        .status()
        .map_err(|error| {
            if error.kind() == std::io::ErrorKind::NotFound {
                CliError::failure(
                    PROGRAM,
                    "not found beside this program or in PATH",
                    "build it with `cargo build --release -p bench`",
                )
            } else {
                CliError::io(program.display(), &error)
            }
        })?;
    match status.code() {
        Some(code) => Ok(u8::try_from(code).unwrap_or(crate::error::STATUS_FAILURE)),
        None => Err(CliError::failure(
            PROGRAM,
            format!("ended by a signal ({status})"),
            "see its output above",
        )),
    }
}
