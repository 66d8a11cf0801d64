//! Result files of measurements: reading them, and their parts as commands show them.

use crate::error::CliError;
use cluster::link::LinkCurve;
use cluster::results::{FILE_BYTES_MAX, ResultFile, Transport};
use std::io::Read;
use std::path::Path;

pub(super) fn read(path: &Path) -> Result<ResultFile, CliError> {
    let file = std::fs::File::open(path).map_err(|error| CliError::io(path.display(), &error))?;
    let mut bytes = Vec::new();
    let read = file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|error| CliError::io(path.display(), &error))?;
    ResultFile::parse(&bytes).map_err(|error| {
        CliError::failure(
            path.display(),
            error,
            "name a file of `keel cluster measure --out` or `keel power record`",
        )
    })
}

/// Returns the curve of a result file's round trips between boards, for the advisor.
///
/// # Errors
/// The file is no result file, or has no such round trips.
pub(crate) fn link(path: &Path) -> Result<LinkCurve, CliError> {
    LinkCurve::fit(&read(path)?).map_err(|error| {
        CliError::failure(
            path.display(),
            error,
            "measure them: keel cluster measure --hosts FILE --only roundtrip --out FILE",
        )
    })
}

pub(super) fn carrier(transport: Transport) -> &'static str {
    match transport {
        Transport::Memory => "memory",
        Transport::Network => "network",
    }
}
