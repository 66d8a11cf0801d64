//! The frame of a file of learned actions: magic, version, mode, table of files, checksum (`ACTIONS.md`).

use super::{Catalogue, LoadError, Mode};
use crate::block::{BlockAt, ContentId, FileId};
use std::collections::{HashMap, HashSet};

const MAGIC: &[u8; 8] = b"KEELACTS";

/// The version that is written.
const FORMAT_VERSION: u16 = 2;

/// The oldest version that is read.
const FORMAT_VERSION_MIN: u16 = 1;

const HEADER_BYTES: usize = 12;
const CHECKSUM_BYTES: usize = 4;

/// The maximum length of a path, in bytes.
const PATH_BYTES_MAX: usize = 65_535;

/// The maximum number of files that one file of actions refers to.
const FILES_MAX: u32 = 1 << 20;

/// The maximum size of a file of actions, in bytes. A longer one is refused before it is parsed.
pub(crate) const FILE_BYTES_MAX: usize = 256 << 20;

/// Writes a file of actions. Files are numbered in the order of their first use.
pub(super) struct Writer {
    mode: Mode,
    body: Vec<u8>,
    table: Vec<u8>,
    numbers: HashMap<FileId, Option<u32>>,
    files: u32,
}

impl Writer {
    pub(super) fn new(mode: Mode) -> Self {
        Self {
            mode,
            body: Vec::new(),
            table: Vec::new(),
            numbers: HashMap::new(),
            files: 0,
        }
    }

    /// Returns the number of a file in this table; `None` if the version has no such file.
    pub(super) fn number(&mut self, file: FileId, catalogue: &dyn Catalogue) -> Option<u32> {
        if let Some(number) = self.numbers.get(&file) {
            return *number;
        }
        let number = catalogue
            .describe(file)
            .filter(|(path, ..)| path.len() <= PATH_BYTES_MAX && self.files < FILES_MAX)
            .map(|(path, content, blocks)| {
                self.table
                    .extend_from_slice(&(path.len() as u16).to_le_bytes());
                self.table.extend_from_slice(path);
                self.table.extend_from_slice(&content.0);
                self.table.extend_from_slice(&blocks.to_le_bytes());
                self.files += 1;
                self.files - 1
            });
        self.numbers.insert(file, number);
        number
    }

    pub(super) fn u8(&mut self, value: u8) {
        self.body.push(value);
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.body.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.body.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn finish(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + 8 + self.table.len() + self.body.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes.push(mode_number(self.mode));
        bytes.push(0);
        bytes.extend_from_slice(&self.files.to_le_bytes());
        bytes.extend_from_slice(&self.table);
        bytes.extend_from_slice(&self.body);
        let checksum = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }
}

fn mode_number(mode: Mode) -> u8 {
    match mode {
        Mode::None => 0,
        Mode::Task => 1,
        Mode::Paper => 2,
    }
}

/// What has become of a file of the table in the current version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The same bytes under the same name, with its number of blocks.
    Same(FileId, u32),
    /// Other bytes under the same name, with its current number of blocks.
    Changed(FileId, u32),
    /// The name does not exist any more.
    Gone,
}

impl Fate {
    /// Returns where a block is now, and whether its content is unchanged.
    pub(super) fn place(self, index: u32) -> Option<(BlockAt, bool)> {
        let (file, blocks, is_same) = match self {
            Self::Same(file, blocks) => (file, blocks, true),
            Self::Changed(file, blocks) => (file, blocks, false),
            Self::Gone => return None,
        };
        (index < blocks).then_some((BlockAt { file, index }, is_same))
    }

    /// Returns the file, even if its bytes have changed.
    pub(super) fn file(self) -> Option<FileId> {
        match self {
            Self::Same(file, _) | Self::Changed(file, _) => Some(file),
            Self::Gone => None,
        }
    }
}

/// One file of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Described<'a> {
    path: &'a [u8],
    content: ContentId,
    blocks: u32,
}

/// Reads a file of actions. Trusts nothing before the checksum is verified, and checks every number nevertheless.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    version: u16,
    rest: &'a [u8],
    files: Vec<Described<'a>>,
}

impl<'a> Reader<'a> {
    /// Checks frame and table.
    pub(super) fn open(bytes: &'a [u8], mode: Mode) -> Result<Self, LoadError> {
        if bytes.len() > FILE_BYTES_MAX {
            return Err(damaged("too long"));
        }
        let Some(payload_bytes) = bytes
            .len()
            .checked_sub(CHECKSUM_BYTES)
            .filter(|bytes| *bytes >= HEADER_BYTES)
        else {
            return Err(damaged("too short"));
        };
        let (payload, checksum) = bytes.split_at(payload_bytes);
        let (header, rest) = payload.split_at(HEADER_BYTES);
        if header[..8] != *MAGIC {
            return Err(damaged("not a file of actions"));
        }
        if checksum != crc32c::crc32c(payload).to_le_bytes() {
            return Err(damaged("the checksum does not fit"));
        }
        let version = u16::from_le_bytes([header[8], header[9]]);
        if !(FORMAT_VERSION_MIN..=FORMAT_VERSION).contains(&version) {
            return Err(damaged("of another version"));
        }
        if header[10] != mode_number(mode) || header[11] != 0 {
            return Err(damaged("of another mode"));
        }
        let mut reader = Self {
            version,
            rest,
            files: Vec::new(),
        };
        let count = reader.u32()?;
        if count > FILES_MAX {
            return Err(damaged("too many files"));
        }
        let mut paths = HashSet::new();
        for _ in 0..count {
            let length = u16::from_le_bytes(reader.array()?);
            let path = reader.take(usize::from(length))?;
            if !paths.insert(path) {
                return Err(damaged("a path twice in its table"));
            }
            let content = ContentId(reader.array()?);
            let blocks = reader.u32()?;
            reader.files.push(Described {
                path,
                content,
                blocks,
            });
        }
        Ok(reader)
    }

    /// Returns the version of the format.
    pub(super) fn version(&self) -> u16 {
        self.version
    }

    /// Returns what has become of the files of the table in a version.
    pub(super) fn fates(&self, catalogue: &dyn Catalogue) -> Vec<Fate> {
        let fate = |file: &Described<'_>| match catalogue.find(file.path) {
            Some((found, content, blocks)) if content == file.content => Fate::Same(found, blocks),
            Some((found, _, blocks)) => Fate::Changed(found, blocks),
            None => Fate::Gone,
        };
        self.files.iter().map(fate).collect()
    }

    /// Reads the number of a file in the table.
    pub(super) fn file(&mut self) -> Result<usize, LoadError> {
        let number = self.u32()? as usize;
        if number < self.files.len() {
            Ok(number)
        } else {
            Err(damaged("no such file in its table"))
        }
    }

    /// Reads the index of a block of a file of the table.
    pub(super) fn index(&mut self, file: usize) -> Result<u32, LoadError> {
        let index = self.u32()?;
        if index < self.files[file].blocks {
            Ok(index)
        } else {
            Err(damaged("no such block in its file"))
        }
    }

    /// Reads the number of items that follow, of at least `bytes_each` bytes each.
    pub(super) fn count(&mut self, max: usize, bytes_each: usize) -> Result<usize, LoadError> {
        let count = self.u32()? as usize;
        if count > max || count > self.rest.len() / bytes_each {
            return Err(damaged("a number is too large"));
        }
        Ok(count)
    }

    pub(super) fn u8(&mut self) -> Result<u8, LoadError> {
        Ok(self.array::<1>()?[0])
    }

    /// Reads a byte, which must be 0 or 1.
    pub(super) fn flag(&mut self) -> Result<bool, LoadError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(damaged("neither yes nor no")),
        }
    }

    pub(super) fn u32(&mut self) -> Result<u32, LoadError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, LoadError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn array<const BYTES: usize>(&mut self) -> Result<[u8; BYTES], LoadError> {
        let Some((first, rest)) = self.rest.split_first_chunk() else {
            return Err(damaged("ends early"));
        };
        self.rest = rest;
        Ok(*first)
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], LoadError> {
        let Some((first, rest)) = self.rest.split_at_checked(bytes) else {
            return Err(damaged("ends early"));
        };
        self.rest = rest;
        Ok(first)
    }

    /// Checks that nothing is left.
    pub(super) fn finish(self) -> Result<(), LoadError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(damaged("goes on behind its end"))
        }
    }
}

pub(super) fn damaged(what: &str) -> LoadError {
    LoadError(what.to_owned())
}
