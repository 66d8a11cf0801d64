//! File descriptors: raising the limit of this process, and the error if there are too few.

use crate::error::CliError;
use std::error::Error;
use std::fs::File;
use std::io;

/// The least free descriptors for a command that opens many. A command that starts a runtime with fewer may panic.
const FREE_MIN: usize = 32;

/// Raises the limit of descriptors to the maximum. If that fails, the limit is reached earlier.
pub fn raise_limit() {
    if let Some(mut limit) = limit() {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: a structure that lives as long as the call.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    }
}

fn limit() -> Option<libc::rlimit> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a structure that lives as long as the call.
    let answer = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    (answer == 0).then_some(limit)
}

/// Raises the limit of descriptors to the maximum.
///
/// # Errors
/// Too few are free at the start.
pub fn prepare() -> Result<(), CliError> {
    raise_limit();
    let mut held = Vec::with_capacity(FREE_MIN);
    for _ in 0..FREE_MIN {
        match File::open("/") {
            Ok(file) => held.push(file),
            // Any other error is not about descriptors; the command will report it itself.
            Err(error) => return too_few(&error).map_or(Ok(()), Err),
        }
    }
    Ok(())
}

/// Returns the failure to report if this error means that there are too few; `None` if it means something else.
#[must_use]
pub fn too_few(error: &io::Error) -> Option<CliError> {
    match error.raw_os_error()? {
        libc::EMFILE => {
            let allowed = limit().map_or(0, |limit| limit.rlim_cur);
            Some(CliError::failure(
                "open files",
                format_args!(
                    "a limit (`ulimit -n`) allows this program {allowed}, which are too few"
                ),
                "raise it with `ulimit -n 1024`, or with LimitNOFILE= where systemd starts it",
            ))
        }
        libc::ENFILE => Some(CliError::failure(
            "open files",
            "all programs together have as many as the machine allows (fs.file-max)",
            "end programs that hold many, or allow more with `sysctl fs.file-max=`",
        )),
        _ => None,
    }
}

/// Like [`too_few`], for an error that is caused by an error of the operating system.
#[must_use]
pub fn too_few_behind(error: &(dyn Error + 'static)) -> Option<CliError> {
    std::iter::successors(Some(error), |error| (*error).source())
        .filter_map(|error| error.downcast_ref::<io::Error>())
        .find_map(too_few)
}
