//! Commands about single files of a store.

use super::{Access, file_error, is_dash, name_text, open, store_error};
use crate::error::CliError;
use crate::output::Output;
use crate::progress::{Progress, bytes_text};
use base::block::BLOCK_BYTES;
use flash::APPEND_ATOMIC_BYTES_MAX;
use serde_json::json;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

/// Bytes moved at a time when a file is copied.
const COPY_BYTES: usize = 1 << 20;

pub(super) fn ls(image: &Path, as_json: bool) -> Result<u8, CliError> {
    let mut store = open(image, Access::Read)?;
    let mut out = Output::new();
    let mut list = Vec::new();
    let mut written = Ok(());
    let visited = store.list(&mut |name, stat| {
        if as_json {
            list.push(
                json!({"name": name, "length_bytes": stat.length_bytes, "blocks": stat.blocks}),
            );
        } else if written.is_ok() {
            written = out.line(format_args!(
                "{:>12}  {}",
                stat.length_bytes,
                name.escape_debug()
            ));
        }
    });
    written?;
    if as_json {
        out.json(&json!(list))?;
    }
    out.flush()?;
    // What could be read has been listed; now say that it was not all.
    visited.map_err(|error| store_error(image, &error))?;
    Ok(0)
}

/// Where bytes come from; named for errors.
fn source(from: &Path) -> Result<(Box<dyn Read>, String), CliError> {
    if is_dash(from) {
        return Ok((Box::new(io::stdin().lock()), "standard input".to_owned()));
    }
    let shown = from.display().to_string();
    let file = File::open(from).map_err(|error| CliError::io(&shown, &error))?;
    Ok((Box::new(file), shown))
}

pub(super) fn put(image: &Path, name: &OsStr, from: &Path) -> Result<u8, CliError> {
    let name = name_text(name)?;
    let (reader, shown) = source(from)?;
    let mut store = open(image, Access::Write)?;
    let progress = Progress::start(format!("storing {name}"));
    // The new content lies beside the old one until the replacement is done, so it must fit the free blocks.
    let bytes_max = store
        .statistics()
        .blocks_free
        .saturating_mul(BLOCK_BYTES as u64);
    let mut data = Vec::new();
    reader
        .take(bytes_max.saturating_add(1))
        .read_to_end(&mut data)
        .map_err(|error| CliError::io(&shown, &error))?;
    if data.len() as u64 > bytes_max {
        return Err(CliError::failure(
            image.display(),
            format!(
                "{} is larger than the free space of {}",
                shown,
                bytes_text(bytes_max)
            ),
            "delete files with `keel flash rm`, or format a larger store",
        ));
    }
    progress.add(data.len());
    store
        .replace(name, &data)
        .map_err(|error| file_error(image, name, &error))?;
    store.close().map_err(|error| store_error(image, &error))?;
    Ok(0)
}

pub(super) fn append(image: &Path, name: &OsStr, from: &Path) -> Result<u8, CliError> {
    let name = name_text(name)?;
    let (mut reader, shown) = source(from)?;
    let mut store = open(image, Access::Write)?;
    let progress = Progress::start(format!("appending to {name}"));
    let failed = |error: &flash::Error| file_error(image, name, error);
    // Read before the file is made: input that cannot be read leaves no trace.
    let mut buffer = vec![0; COPY_BYTES.max(APPEND_ATOMIC_BYTES_MAX)];
    let mut bytes =
        fill(&mut *reader, &mut buffer).map_err(|error| CliError::io(&shown, &error))?;
    let file = match store.open_file(name) {
        Err(flash::Error::NotFound) => store.create(name),
        other => other,
    };
    let file = file.map_err(|error| failed(&error))?;
    while bytes > 0 {
        store
            .append(file, &buffer[..bytes])
            .map_err(|error| failed(&error))?;
        progress.add(bytes);
        bytes = fill(&mut *reader, &mut buffer).map_err(|error| CliError::io(&shown, &error))?;
    }
    store.close_file(file);
    store.close().map_err(|error| store_error(image, &error))?;
    Ok(0)
}

/// Reads until the buffer is full or the input ends, so that short input becomes one (atomic) append.
fn fill(reader: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match reader.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Where bytes go.
enum Sink {
    Output(Output),
    File(File, String),
}

impl Sink {
    fn write(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        match self {
            Self::Output(out) => out.bytes(bytes),
            Self::File(file, shown) => file
                .write_all(bytes)
                .map_err(|error| CliError::io(&*shown, &error)),
        }
    }

    fn is_open(&self) -> bool {
        match self {
            Self::Output(out) => out.is_open(),
            Self::File(..) => true,
        }
    }
}

pub(super) fn get(image: &Path, name: &OsStr, to: &Path) -> Result<u8, CliError> {
    let name = name_text(name)?;
    let mut store = open(image, Access::Read)?;
    let failed = |error: &flash::Error| file_error(image, name, error);
    let file = store.open_file(name).map_err(|error| failed(&error))?;
    let mut sink = if is_dash(to) {
        Sink::Output(Output::new())
    } else {
        let shown = to.display().to_string();
        Sink::File(
            File::create(to).map_err(|error| CliError::io(&shown, &error))?,
            shown,
        )
    };
    let progress = Progress::start(format!("reading {name}"));
    let mut buffer = vec![0; COPY_BYTES];
    let mut offset = 0;
    while sink.is_open() {
        let bytes = store
            .read(file, offset, &mut buffer)
            .map_err(|error| failed(&error))?;
        if bytes == 0 {
            break;
        }
        sink.write(&buffer[..bytes])?;
        progress.add(bytes);
        offset += bytes as u64;
    }
    if let Sink::Output(out) = &mut sink {
        out.flush()?;
    }
    Ok(0)
}

pub(super) fn rm(image: &Path, name: &OsStr) -> Result<u8, CliError> {
    let name = name_text(name)?;
    let mut store = open(image, Access::Write)?;
    store
        .delete(name)
        .map_err(|error| file_error(image, name, &error))?;
    store.close().map_err(|error| store_error(image, &error))?;
    Ok(0)
}

pub(super) fn stat(image: &Path, name: &OsStr, as_json: bool) -> Result<u8, CliError> {
    let name = name_text(name)?;
    let mut store = open(image, Access::Read)?;
    let stat = store
        .stat(name)
        .map_err(|error| file_error(image, name, &error))?;
    let mut out = Output::new();
    if as_json {
        out.json(&json!({
            "name": name,
            "length_bytes": stat.length_bytes,
            "blocks": stat.blocks,
            "blocks_owned": stat.blocks_owned,
            "file_id": stat.file_id,
        }))?;
    } else {
        out.line(format_args!("name          {}", name.escape_debug()))?;
        out.line(format_args!(
            "length        {} bytes ({})",
            stat.length_bytes,
            bytes_text(stat.length_bytes)
        ))?;
        out.line(format_args!(
            "blocks        {} of 4 KiB, {} owned",
            stat.blocks, stat.blocks_owned
        ))?;
        out.line(format_args!("file id       {}", stat.file_id))?;
    }
    out.flush()?;
    Ok(0)
}
