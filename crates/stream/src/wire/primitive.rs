//! The building blocks of messages: numbers, lists of blocks, and the cursor that reads them.

use super::error::DecodeError;
use crate::block::{BlockAt, FileId, Token};

/// Flag of a run's first number: it is in another file than the run before.
const OTHER_FILE: u64 = 1;
/// Flag of a run's first number: it has more than one block.
const SEVERAL: u64 = 2;

/// Appends a number with seven bits in each byte, the lowest first.
pub(super) fn put_number(mut value: u64, into: &mut Vec<u8>) {
    while value >= 0x80 {
        into.push(value as u8 | 0x80);
        value >>= 7;
    }
    into.push(value as u8);
}

/// Maps small signed numbers to small unsigned numbers.
fn fold(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn unfold(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Appends a list of blocks in its order: the count, then runs of neighbours. Each run is encoded by its distance from
/// the end of the one before.
pub(super) fn put_blocks(blocks: &[BlockAt], into: &mut Vec<u8>) {
    put_number(blocks.len() as u64, into);
    let (mut file, mut expected) = (0i64, 0i64);
    let mut rest = blocks;
    while let Some(&first) = rest.first() {
        let run = rest
            .iter()
            .zip(0u64..)
            .take_while(|(at, behind)| {
                at.file == first.file && u64::from(at.index) == u64::from(first.index) + behind
            })
            .count();
        let (to_file, index) = (i64::from(first.file.0), i64::from(first.index));
        let is_other = to_file != file;
        let distance = index - if is_other { 0 } else { expected };
        let flags = u64::from(is_other) * OTHER_FILE + u64::from(run > 1) * SEVERAL;
        put_number(fold(distance) << 2 | flags, into);
        if is_other {
            put_number(fold(to_file - file), into);
        }
        if run > 1 {
            put_number(run as u64 - 2, into);
        }
        (file, expected) = (to_file, index + run as i64);
        rest = &rest[run..];
    }
}

/// Appends files in their order, each by its distance from the one before.
pub(super) fn put_files(files: &[FileId], into: &mut Vec<u8>) {
    put_number(files.len() as u64, into);
    let mut before = 0;
    for file in files {
        put_number(fold(i64::from(file.0) - before), into);
        before = i64::from(file.0);
    }
}

/// The unread rest of a payload.
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(super) fn new(payload: &'a [u8]) -> Self {
        Self { rest: payload }
    }

    /// Checks that everything was read.
    pub(super) fn end(&self) -> Result<(), DecodeError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(DecodeError::Trailing)
        }
    }

    /// Returns everything that is left.
    pub(super) fn remainder(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Returns an empty list with room for `count` items of at least `bytes_min` bytes each, if the rest can hold them.
    pub(super) fn room_for<T>(&self, count: u64, bytes_min: usize) -> Result<Vec<T>, DecodeError> {
        match usize::try_from(count) {
            Ok(count) if count <= self.rest.len() / bytes_min => Ok(Vec::with_capacity(count)),
            _ => Err(DecodeError::Short),
        }
    }

    /// Reads a fixed number of bytes.
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (array, rest) = self.rest.split_first_chunk().ok_or(DecodeError::Short)?;
        self.rest = rest;
        Ok(*array)
    }

    /// Reads one byte.
    pub(super) fn byte(&mut self) -> Result<u8, DecodeError> {
        Ok(self.array::<1>()?[0])
    }

    /// Reads a byte of flags, and refuses any that are not in `known`.
    pub(super) fn flags(&mut self, known: u8) -> Result<u8, DecodeError> {
        let flags = self.byte()?;
        if flags & !known == 0 {
            Ok(flags)
        } else {
            Err(DecodeError::Value("flags"))
        }
    }

    /// Reads a number in its shortest form.
    pub(super) fn number(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 || shift > 0 && byte == 0 {
                return Err(DecodeError::Number);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError::Number)
    }

    /// Reads a number of 32 bits.
    pub(super) fn number_u32(&mut self) -> Result<u32, DecodeError> {
        u32::try_from(self.number()?).map_err(|_| DecodeError::Number)
    }

    /// Reads a number up to a limit.
    pub(super) fn number_within(
        &mut self,
        max: u64,
        what: &'static str,
    ) -> Result<u64, DecodeError> {
        let value = self.number()?;
        if value <= max {
            Ok(value)
        } else {
            Err(DecodeError::Limit(what))
        }
    }

    /// Reads the number of a request that has an answer.
    pub(super) fn id(&mut self) -> Result<u32, DecodeError> {
        match self.number_u32()? {
            0 => Err(DecodeError::Value("a request's number is 0")),
            id => Ok(id),
        }
    }

    /// Reads the token of a task.
    pub(super) fn token(&mut self) -> Result<Token, DecodeError> {
        let token = self.array()?;
        if token == [0; 16] {
            return Err(DecodeError::Value("a token is all zero"));
        }
        Ok(Token(token))
    }

    /// Reads a list of blocks in exactly the form that [`put_blocks`] writes.
    pub(super) fn blocks(&mut self, min: usize, max: usize) -> Result<Vec<BlockAt>, DecodeError> {
        let count = self.number_within(max as u64, "blocks")? as usize;
        if count < min {
            return Err(DecodeError::Value("no blocks"));
        }
        let mut blocks = Vec::with_capacity(count);
        let (mut file, mut expected) = (0i64, 0i64);
        while blocks.len() < count {
            let first = self.number()?;
            let distance = unfold(first >> 2);
            if first & OTHER_FILE != 0 {
                match unfold(self.number()?) {
                    0 => return Err(DecodeError::Value("a run's file is the one before")),
                    by => file = place(file, by)?,
                }
                expected = 0;
            } else if distance == 0 && !blocks.is_empty() {
                return Err(DecodeError::Value("one run is written as two"));
            }
            let index = place(expected, distance)?;
            let mut run = 1;
            if first & SEVERAL != 0 {
                let more = (count - blocks.len()).checked_sub(2);
                let more = more.ok_or(DecodeError::Limit("blocks of a run"))?;
                run = 2 + self.number_within(more as u64, "blocks of a run")? as i64;
            }
            // The last block's index is a number of 32 bits as well.
            expected = place(index, run - 1)? + 1;
            blocks.extend((index..expected).map(|index| BlockAt {
                file: FileId(file as u32),
                index: index as u32,
            }));
        }
        Ok(blocks)
    }

    /// Reads files as [`put_files`] writes them.
    pub(super) fn files(&mut self, max: usize) -> Result<Vec<FileId>, DecodeError> {
        let count = self.number_within(max as u64, "files")?;
        if count == 0 {
            return Err(DecodeError::Value("no files"));
        }
        let mut files = self.room_for(count, 1)?;
        let mut file = 0;
        for _ in 0..count {
            file = place(file, unfold(self.number()?))?;
            files.push(FileId(file as u32));
        }
        Ok(files)
    }
}

/// Returns `from + by` if that is a number of 32 bits.
fn place(from: i64, by: i64) -> Result<i64, DecodeError> {
    from.checked_add(by)
        .filter(|at| (0..=i64::from(u32::MAX)).contains(at))
        .ok_or(DecodeError::Number)
}
