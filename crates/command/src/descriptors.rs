//! File descriptors: raising the limit of this process, and the error if there are too few.

use crate::error::CliError;
use crate::limit;
use std::fs::File;

pub use crate::error::{too_few, too_few_behind};

/// The least free descriptors for a command that opens many. A command that starts a runtime with fewer may panic.
const FREE_MIN: usize = 32;

/// Raises the limit of descriptors to the maximum. If that fails, the limit is reached earlier.
pub fn raise_limit() {
    if let Some(mut limit) = limit::open_files() {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: a structure that lives as long as the call.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    }
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
