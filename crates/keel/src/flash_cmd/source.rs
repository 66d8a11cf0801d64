//! The source of bytes that a command stores: a file, or standard input.

use super::text::is_dash;
use crate::error::CliError;
use node::stores::{refuse_the_image, standard_metadata};
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;

/// A source of bytes.
pub(super) struct Source {
    reader: Box<dyn Read>,
    /// Its name in errors.
    pub(super) shown: String,
    /// The length, if it is a regular file.
    pub(super) length: Option<u64>,
}

impl Source {
    pub(super) fn open(image: &Path, from: &Path) -> Result<Self, CliError> {
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
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.reader.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }
}
