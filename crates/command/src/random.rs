//! Random bytes from the kernel, for identities and keys.

use crate::error::CliError;
use std::fs::File;
use std::io::Read;

const SOURCE: &str = "/dev/urandom";

/// Returns `N` random bytes.
///
/// # Errors
/// The kernel gives none.
pub fn bytes<const N: usize>() -> Result<[u8; N], CliError> {
    let mut bytes = [0; N];
    let read = File::open(SOURCE).and_then(|mut source| source.read_exact(&mut bytes));
    read.map_err(|error| CliError::io(SOURCE, &error))?;
    Ok(bytes)
}
