//! `keel bench` and `keel qos experiment`: execute the measuring program `keel-bench`, which links the peer systems
//! that this program must not link.

use crate::argument::first_paragraph;
use crate::error::{CliError, STATUS_USAGE};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const PROGRAM: &str = "keel-bench";

/// Runs `keel-bench` with these arguments. Returns its exit status.
pub(crate) fn run(arguments: &[OsString]) -> Result<u8, CliError> {
    let help = "see `keel bench --help`";
    if arguments.is_empty() {
        let wrong = "nothing to measure was named";
        return Err(CliError::usage("command line", wrong, help));
    }
    execute(arguments, help)
}

/// Runs the experiments on quality of service.
pub(crate) fn experiment(arguments: &[OsString]) -> Result<u8, CliError> {
    let help = "see `keel qos experiment --help`";
    if arguments.is_empty() {
        let wrong = "no experiment was named";
        return Err(CliError::usage("command line", wrong, help));
    }
    let mut all = vec![OsString::from("qos")];
    all.extend_from_slice(arguments);
    execute(&all, help)
}

/// Returns the program: beside this one, else the one in PATH.
pub(crate) fn program() -> PathBuf {
    let beside = std::env::current_exe()
        .ok()
        .and_then(|path| Some(path.parent()?.join(PROGRAM)));
    beside
        .filter(|path| path.is_file())
        .unwrap_or_else(|| PathBuf::from(PROGRAM))
}

/// Executes the program. `help`: where the user finds the valid arguments.
fn execute(arguments: &[OsString], help: &str) -> Result<u8, CliError> {
    let program = program();
    let failed = |error: std::io::Error| {
        if error.kind() == std::io::ErrorKind::NotFound {
            CliError::failure(
                PROGRAM,
                "not found beside this program or in PATH",
                "build it with `cargo build --release -p bench`",
            )
        } else {
            CliError::io(program.display(), &error)
        }
    };
    // With `--help` the program only checks its arguments. Only this run's standard error is captured: the real run
    // shows its progress there, on a terminal.
    let read = Command::new(&program)
        .args(arguments)
        .arg("--help")
        .stdin(Stdio::null())
        .output()
        .map_err(failed)?;
    if read.status.code() == Some(i32::from(STATUS_USAGE)) {
        let text = String::from_utf8_lossy(&read.stderr);
        return Err(CliError::usage(
            "command line",
            first_paragraph(&text),
            help,
        ));
    }
    let status = Command::new(&program)
        .args(arguments)
        .status()
        .map_err(failed)?;
    match status.code() {
        Some(code) => Ok(u8::try_from(code).unwrap_or(crate::error::STATUS_FAILURE)),
        None => Err(CliError::failure(
            PROGRAM,
            format!("ended by a signal ({status})"),
            "see its output above",
        )),
    }
}
