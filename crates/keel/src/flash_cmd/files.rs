//! Commands about single files of a store.

use super::interruption::Interruption;
use super::{
    Access, file_error, is_dash, name_text, open, read_error, refuse_the_image, shown_name,
    standard_metadata, store_error,
};
use crate::error::CliError;
use crate::output::Output;
use crate::progress::{Progress, bytes_text};
use base::block::BLOCK_BYTES;
use flash::APPEND_ATOMIC_BYTES_MAX;
use serde_json::json;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;

/// The largest piece of an append, in bytes.
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
                shown_name(name)
            ));
        }
    });
    written?;
    if as_json {
        out.json(&json!(list))?;
    }
    out.flush()?;
    // The readable files have been listed; now report that some were not.
    visited.map_err(|error| read_error(image, &error, store_error(image, &error)))?;
    Ok(0)
}

/// A source of bytes.
struct Source {
    reader: Box<dyn Read>,
    /// Its name in errors.
    shown: String,
    /// The length, if it is a regular file.
    length: Option<u64>,
}

impl Source {
    fn open(image: &Path, from: &Path) -> Result<Self, CliError> {
        let (reader, shown, found): (Box<dyn Read>, _, _) = if is_dash(from) {
            let found = standard_metadata(&io::stdin());
            let shown = "standard input".to_owned();
            (Box::new(io::stdin().lock()), shown, found)
        } else {
            let shown = from.display().to_string();
            let file = File::open(from).map_err(|error| CliError::io(&shown, &error))?;
            let found = file.metadata().ok();
            (Box::new(file), shown, found)
        };
        refuse_the_image(image, found.as_ref(), &shown)?;
        if found.as_ref().is_some_and(Metadata::is_dir) {
            return Err(CliError::failure(shown, "is a directory", "name a file"));
        }
        // Standard input may be at any position in its file.
        let length = found
            .filter(|found| found.is_file() && !is_dash(from))
            .map(|found| found.len());
        Ok(Self {
            reader,
            shown,
            length,
        })
    }

    /// Reads the available bytes, at least one unless the input has ended.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.reader.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }
}

pub(super) fn put(image: &Path, name: &OsStr, from: &Path) -> Result<u8, CliError> {
    let name = name_text(name)?;
    // Do this first: opening a FIFO already waits for its other end.
    let mut interruption = Some(Interruption::heed(name, "nothing was stored"));
    let mut source = Source::open(image, from)?;
    let mut store = open(image, Access::Write)?;
    let progress = Progress::start(format!("storing {name}"));
    // The new content is stored beside the old one until the replacement, so it must fit into the free blocks.
    let bytes_max = store
        .statistics()
        .blocks_free
        .saturating_mul(BLOCK_BYTES as u64);
    if source.length.is_some_and(|length| length > bytes_max) {
        return Err(CliError::failure(
            image.display(),
            format!(
                "{} is larger than the free space of {}",
                source.shown,
                bytes_text(bytes_max)
            ),
            "delete files with `keel flash rm`, or make it larger with `keel flash grow`",
        ));
    }
    let stored = store.replace_from(name, &mut |buffer| {
        let bytes = source.read(buffer)?;
        if bytes == 0 {
            // The input is complete: the next step makes it the file, and must not be interrupted.
            drop(interruption.take());
        }
        progress.add(bytes);
        Ok(bytes)
    });
    stored.map_err(|error| match error {
        flash::Error::Source(error) => CliError::io(&source.shown, &error),
        error => file_error(image, name, &error),
    })?;
    store.close().map_err(|error| store_error(image, &error))?;
    Ok(0)
}

pub(super) fn append(image: &Path, name: &OsStr, from: &Path) -> Result<u8, CliError> {
    let name = name_text(name)?;
    let mut source = Source::open(image, from)?;
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

pub(super) fn rm(image: &Path, name: &OsStr) -> Result<u8, CliError> {
    let name = name_text(name)?;
    let mut store = open(image, Access::Write)?;
    store
        .delete(name)
        .map_err(|error| file_error(image, name, &error))?;
    store.close().map_err(|error| store_error(image, &error))?;
    Ok(0)
}

pub(super) fn mv(image: &Path, old: &OsStr, new: &OsStr) -> Result<u8, CliError> {
    let (old, new) = (name_text(old)?, name_text(new)?);
    let mut store = open(image, Access::Write)?;
    // Check it separately, so that the error names the right one of the two files.
    store
        .stat(old)
        .map_err(|error| file_error(image, old, &error))?;
    store
        .rename(old, new)
        .map_err(|error| file_error(image, new, &error))?;
    store.close().map_err(|error| store_error(image, &error))?;
    Ok(0)
}

pub(super) fn truncate(image: &Path, name: &OsStr, size: u64) -> Result<u8, CliError> {
    let name = name_text(name)?;
    let mut store = open(image, Access::Write)?;
    let failed = |error| file_error(image, name, &error);
    let file = store.open_file(name).map_err(failed)?;
    let length = store.length(file).map_err(failed)?;
    let bytes_free = store
        .statistics()
        .blocks_free
        .saturating_mul(BLOCK_BYTES as u64);
    if size > length.saturating_add(bytes_free) {
        return Err(CliError::failure(
            image.display(),
            format!(
                "{} are more than the free space of {}",
                bytes_text(size),
                bytes_text(bytes_free)
            ),
            "delete files with `keel flash rm`, or make it larger with `keel flash grow`",
        ));
    }
    store.truncate(file, size).map_err(failed)?;
    store.close_file(file);
    store.close().map_err(|error| store_error(image, &error))?;
    Ok(0)
}

pub(super) fn stat(image: &Path, name: &OsStr, as_json: bool) -> Result<u8, CliError> {
    let name = name_text(name)?;
    let mut store = open(image, Access::Read)?;
    let stat = store
        .stat(name)
        .map_err(|error| read_error(image, &error, file_error(image, name, &error)))?;
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
        out.line(format_args!("name          {}", shown_name(name)))?;
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
