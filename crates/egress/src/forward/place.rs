//! The files of cursors: one for each upstream in the flash store, to which records are appended.
//!
//! **Cost.** An append is one write and one flush, like every append of the store. A file that has grown to
//! [`FILE_BYTES_MAX`] is replaced by its last record. This takes four writes and two flushes, about once in a hundred
//! appends.

use super::cursor::{CursorRecord, FILE_BYTES_MAX, Found, READ_BYTES_MAX};
use super::options::NAME_BYTES_MAX;
use crate::Error;
use base::block::BlockDevice;
use base::error::Code;
use flash::Store;

/// Prefix of the names of cursor files.
pub const FILE_PREFIX: &str = "upstream-";

/// What a store contains for an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Nothing: the upstream is new.
    New,
    /// Its cursor.
    Cursor(CursorRecord),
    /// An unusable file: it is unknown what has been forwarded.
    Lost,
}

/// The file of one upstream.
#[derive(Debug)]
pub struct CursorFile {
    upstream: String,
    name: String,
    /// Size of the file in bytes. `None` if it must be rewritten.
    bytes: Option<u64>,
    buffer: Vec<u8>,
}

impl CursorFile {
    /// The file of the upstream with this name, of at most [`NAME_BYTES_MAX`] bytes.
    #[must_use]
    pub fn new(upstream: &str) -> Self {
        debug_assert!(upstream.len() <= NAME_BYTES_MAX);
        Self {
            upstream: upstream.to_owned(),
            name: format!("{FILE_PREFIX}{upstream}"),
            bytes: None,
            buffer: Vec::new(),
        }
    }

    /// Reads the file.
    ///
    /// # Errors
    /// [`Error::CursorVersion`]; [`Error::CursorStore`] when the device fails.
    pub fn load<D: BlockDevice>(&mut self, store: &mut Store<D>) -> Result<Kept, Error> {
        self.bytes = None;
        let file = match store.open_file(&self.name) {
            Ok(file) => file,
            Err(flash::Error::NotFound) => return Ok(Kept::New),
            Err(flash::Error::Damaged { .. }) => return Ok(Kept::Lost),
            Err(error) => return Err(self.failed(&error)),
        };
        let mut content = vec![0; READ_BYTES_MAX];
        let read = read_around(store, file, &mut content);
        store.close_file(file);
        let (length, is_whole) = read.map_err(|error| self.failed(&error))?;
        let found = CursorRecord::find(content.get(..length).unwrap_or_default());
        match found {
            Found::Record(record, is_damaged) => {
                // Nothing is appended after a damaged or torn record.
                self.bytes = (is_whole && !is_damaged).then_some(length as u64);
                Ok(Kept::Cursor(record))
            }
            Found::Version(found) => Err(Error::CursorVersion {
                upstream: self.upstream.clone(),
                found,
            }),
            // The file was created, but power was cut before its first record: nothing can have been sent.
            Found::Nothing if length == 0 && is_whole => Ok(Kept::New),
            Found::Nothing => Ok(Kept::Lost),
        }
    }

    /// Writes a record, which is durable on return.
    ///
    /// # Errors
    /// [`Error::CursorStore`]; the record before then remains valid.
    pub fn save<D: BlockDevice>(
        &mut self,
        store: &mut Store<D>,
        record: &CursorRecord,
    ) -> Result<(), Error> {
        self.buffer.clear();
        record.encode(&mut self.buffer);
        let length = self.buffer.len() as u64;
        let appended = match self.bytes {
            Some(bytes) if bytes + length <= FILE_BYTES_MAX as u64 => {
                let file = store
                    .open_file(&self.name)
                    .map_err(|error| self.failed(&error))?;
                let appended = store.append(file, &self.buffer);
                store.close_file(file);
                appended.map(|()| bytes + length)
            }
            _ => store.replace(&self.name, &self.buffer).map(|()| length),
        };
        // After a failure the end of the file is unknown.
        self.bytes = appended.as_ref().ok().copied();
        appended.map(drop).map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &flash::Error) -> Error {
        Error::CursorStore {
            upstream: self.upstream.clone(),
            problem: error.to_string(),
            code: match error {
                flash::Error::Full | flash::Error::NameTableFull => Code::Full,
                other => other.code(),
            },
        }
    }
}

/// Reads as much as there is, with zeros for unreadable blocks. Returns the length, and whether everything was
/// readable.
fn read_around<D: BlockDevice>(
    store: &mut Store<D>,
    file: flash::FileHandle,
    content: &mut [u8],
) -> Result<(usize, bool), flash::Error> {
    let length = usize::try_from(store.length(file)?).unwrap_or(usize::MAX);
    let end = length.min(content.len());
    let piece = flash::PAYLOAD_BYTES;
    let mut is_whole = length <= content.len();
    let mut at = 0;
    while at < end {
        let until = ((at / piece + 1) * piece).min(end);
        match store.read(file, at as u64, &mut content[at..until]) {
            Ok(_) => {}
            Err(flash::Error::Damaged { .. }) => {
                content[at..until].fill(0);
                is_whole = false;
            }
            Err(error) => return Err(error),
        }
        at = until;
    }
    Ok((end, is_whole))
}
