//! `keel flash append`: appends to a file of the store, piece by piece.

use super::source::Source;
use super::text::name_text;
use crate::error::CliError;
use clap::Args;
use command::progress::Progress;
use flash::APPEND_ATOMIC_BYTES_MAX;
use node::stores::{Access, file_error, open, store_error};
use std::ffi::OsString;
use std::path::PathBuf;

/// The largest piece of an append, in bytes.
const COPY_BYTES: usize = 1 << 20;

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  date | keel flash append store.img log.txt\n\n\
    Each piece is durable before the next is read. Until the input ends, the store is locked: no other program\n\
    can change it."
)]
pub(crate) struct AppendArgs {
    /// File or block device
    image: PathBuf,
    /// Name of the file in the store
    name: OsString,
    /// Source of the bytes; - is standard input
    #[arg(default_value = "-", value_name = "FILE")]
    from: PathBuf,
}

pub(super) fn run(arguments: &AppendArgs) -> Result<u8, CliError> {
    let image = &arguments.image;
    let name = name_text(&arguments.name)?;
    let mut source = Source::open(image, &arguments.from)?;
    let mut store = open(image, Access::Write)?;
    let progress = Progress::start(format!("appending to {name}"));
    // Read before the file is created: unreadable input leaves no trace.
    let mut buffer = vec![0; COPY_BYTES.max(APPEND_ATOMIC_BYTES_MAX)];
    let first = source
        .read(&mut buffer)
        .map_err(|error| CliError::io(&source.shown, &error))?;
    let file = match store.open_file(name) {
        Err(flash::Error::NotFound) => store.create(name),
        other => other,
    };
    let file = file.map_err(|error| file_error(image, name, &error))?;
    let mut stored = 0;
    let mut bytes = first;
    let failed = loop {
        if bytes == 0 {
            break None;
        }
        let length = store.length(file);
        if let Err(error) = store.append(file, &buffer[..bytes]) {
            if let (flash::Error::Full, Ok(before), Ok(after)) =
                (&error, length, store.length(file))
            {
                // A part of a long piece may have been stored.
                stored += after - before;
            }
            break Some(file_error(image, name, &error));
        }
        stored += bytes as u64;
        progress.add(bytes);
        match source.read(&mut buffer) {
            Ok(more) => bytes = more,
            Err(error) => break Some(CliError::io(&source.shown, &error)),
        }
    };
    store.close_file(file);
    let closed = store.close().map_err(|error| store_error(image, &error));
    let result = failed.map_or(closed.map(|_| ()), Err);
    result.map_err(|error| {
        if stored > 0 {
            error.with_note(format_args!("{stored} bytes stored before that"))
        } else {
            error
        }
    })?;
    Ok(0)
}
