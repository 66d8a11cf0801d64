//! Decodes messages from frames. Checks every length before it allocates memory, and refuses remaining bytes.

use super::error::DecodeError;
use super::message::{
    Answer, BLOCKS_PER_MESSAGE_MAX, HeldBlocks, MANIFEST_BYTES_MAX, PROTOCOL_VERSION,
    PROTOCOL_VERSION_MIN, Refusal, Request,
};
use super::primitive::Cursor;
use super::{COMPRESSED_BYTES_MAX, HASHES_PER_MESSAGE_MAX, HELD_FILES_MAX, HELD_RUNS_MAX, kind};
use crate::block::{BlockAt, BlockHash, FileId, SEGMENT_BLOCKS, Token};
use crate::group::{GROUP_BLOCKS, Group, GroupAt, PROOF_VALUES_MAX};

impl Request {
    /// Decodes the message of a frame.
    ///
    /// # Errors
    /// The payload is not a message; see [`DecodeError`].
    pub fn decode(kind: u16, version: u16, payload: &[u8]) -> Result<Self, DecodeError> {
        check_version(kind, version)?;
        let mut cursor = Cursor::new(payload);
        let request = Self::read(kind, &mut cursor)?;
        cursor.end()?;
        Ok(request)
    }

    fn read(kind: u16, cursor: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        Ok(match kind {
            kind::HELLO => {
                let protocol = protocol(cursor)?;
                let device = cursor.array()?;
                let flags = cursor.flags(3)?;
                let version = (flags & 1 != 0).then(|| cursor.number()).transpose()?;
                let manifest_held = (flags & 2 != 0).then(|| cursor.array()).transpose()?;
                Self::Hello {
                    protocol,
                    device,
                    version,
                    manifest_held,
                }
            }
            kind::BEGIN => Self::Begin {
                token: cursor.token()?,
                task: FileId(cursor.number_u32()?),
                held: held(cursor)?,
            },
            kind::READ => {
                let id = cursor.id()?;
                let token = optional_token(cursor)?;
                let file = FileId(cursor.number_u32()?);
                let index = cursor.number_u32()?;
                let around = cursor.byte()?;
                if u32::from(around) > SEGMENT_BLOCKS {
                    return Err(DecodeError::Limit("blocks around one"));
                }
                Self::Read {
                    id,
                    token,
                    at: BlockAt { file, index },
                    around,
                }
            }
            kind::FETCH => Self::Fetch {
                id: cursor.id()?,
                blocks: cursor.blocks(1, BLOCKS_PER_MESSAGE_MAX)?,
            },
            kind::ASK_HASHES => Self::AskHashes {
                files: cursor.files(BLOCKS_PER_MESSAGE_MAX)?,
            },
            kind::ASK_GROUPS => {
                let groups = cursor.blocks(1, BLOCKS_PER_MESSAGE_MAX)?.into_iter();
                let at = |at: BlockAt| GroupAt {
                    file: at.file,
                    group: at.index,
                };
                Self::AskGroups {
                    groups: groups.map(at).collect(),
                }
            }
            kind::ASK_PLAN => Self::AskPlan {
                id: cursor.id()?,
                task: FileId(cursor.number_u32()?),
            },
            kind::TRACE => Self::Trace {
                token: cursor.token()?,
                blocks: cursor.blocks(1, BLOCKS_PER_MESSAGE_MAX)?,
            },
            kind::END => {
                let token = cursor.token()?;
                let flags = cursor.flags(3)?;
                Self::End {
                    token,
                    is_exact: flags & 1 != 0,
                    has_exited: flags & 2 != 0,
                }
            }
            kind::PING => Self::Ping { id: cursor.id()? },
            other => return Err(DecodeError::Kind(other)),
        })
    }
}

impl Answer {
    /// Decodes the message of a frame.
    ///
    /// # Errors
    /// The payload is not a message; see [`DecodeError`].
    pub fn decode(kind: u16, version: u16, payload: &[u8]) -> Result<Self, DecodeError> {
        check_version(kind, version)?;
        let mut cursor = Cursor::new(payload);
        let answer = Self::read(kind, version, &mut cursor)?;
        cursor.end()?;
        Ok(answer)
    }

    fn read(kind: u16, version: u16, cursor: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        Ok(match kind {
            kind::WELCOME => Self::Welcome {
                protocol: protocol(cursor)?,
                version: cursor.number()?,
                manifest_bytes: cursor.number_within(MANIFEST_BYTES_MAX, "bytes of a manifest")?,
            },
            kind::MANIFEST => {
                let offset = cursor.number_within(MANIFEST_BYTES_MAX, "bytes of a manifest")?;
                let bytes = cursor.remainder();
                if bytes.is_empty() {
                    return Err(DecodeError::Short);
                }
                if offset + bytes.len() as u64 > MANIFEST_BYTES_MAX {
                    return Err(DecodeError::Limit("bytes of a manifest"));
                }
                Self::Manifest {
                    offset,
                    bytes: bytes.to_vec(),
                }
            }
            kind::HASHES => hashes(cursor)?,
            kind::GROUP => group(cursor)?,
            kind::BLOCKS => {
                let id = cursor.number_u32()?;
                let token = optional_token(cursor)?.unwrap_or(Token([0; 16]));
                let blocks = cursor.blocks(1, SEGMENT_BLOCKS as usize)?;
                let compressed = cursor.remainder();
                if compressed.is_empty() {
                    return Err(DecodeError::Short);
                }
                if compressed.len() > COMPRESSED_BYTES_MAX {
                    return Err(DecodeError::Limit("bytes of blocks"));
                }
                Self::Blocks {
                    id,
                    token,
                    blocks,
                    compressed: compressed.to_vec(),
                }
            }
            kind::BEGUN => Self::Begun {
                token: cursor.token()?,
                blocks: cursor.number_u32()?,
                is_audit: cursor.flags(1)? != 0,
            },
            kind::PREFETCH_DONE => Self::PrefetchDone {
                token: cursor.token()?,
                was_stopped: cursor.flags(1)? != 0,
            },
            kind::FETCHED => Self::Fetched { id: cursor.id()? },
            kind::PLAN => Self::Plan {
                id: cursor.id()?,
                has_more: cursor.flags(1)? != 0,
                blocks: cursor.blocks(0, BLOCKS_PER_MESSAGE_MAX)?,
            },
            kind::REFUSED => Self::Refused {
                id: cursor.number_u32()?,
                token: match version {
                    1 => None,
                    _ => optional_token(cursor)?,
                },
                reason: refusal(cursor.byte()?)?,
            },
            kind::PONG => Self::Pong { id: cursor.id()? },
            other => return Err(DecodeError::Kind(other)),
        })
    }
}

fn check_version(kind: u16, version: u16) -> Result<(), DecodeError> {
    if !(PROTOCOL_VERSION_MIN..=PROTOCOL_VERSION).contains(&version) {
        return Err(DecodeError::Version(version));
    }
    match kind::is_of(kind, version) {
        true => Ok(()),
        false => Err(DecodeError::Kind(kind)),
    }
}

fn protocol(cursor: &mut Cursor<'_>) -> Result<u16, DecodeError> {
    u16::try_from(cursor.number()?).map_err(|_| DecodeError::Number)
}

fn optional_token(cursor: &mut Cursor<'_>) -> Result<Option<Token>, DecodeError> {
    let is_there = cursor.flags(1)? != 0;
    is_there.then(|| cursor.token()).transpose()
}

fn hashes(cursor: &mut Cursor<'_>) -> Result<Answer, DecodeError> {
    let file = FileId(cursor.number_u32()?);
    let first = cursor.number_u32()?;
    let (hashes, rest) = cursor.remainder().as_chunks::<32>();
    if !rest.is_empty() {
        return Err(DecodeError::Short);
    }
    if hashes.len() > HASHES_PER_MESSAGE_MAX {
        return Err(DecodeError::Limit("hashes"));
    }
    if u64::from(first) + hashes.len() as u64 > u64::from(u32::MAX) {
        return Err(DecodeError::Number);
    }
    Ok(Answer::Hashes {
        file,
        first,
        hashes: hashes.iter().map(|hash| BlockHash(*hash)).collect(),
    })
}

fn group(cursor: &mut Cursor<'_>) -> Result<Answer, DecodeError> {
    let at = GroupAt {
        file: FileId(cursor.number_u32()?),
        group: cursor.number_u32()?,
    };
    let count = cursor.number_within(PROOF_VALUES_MAX as u64, "values of a proof")?;
    let mut proof = cursor.room_for(count, 32)?;
    for _ in 0..count {
        proof.push(cursor.array()?);
    }
    let (hashes, rest) = cursor.remainder().as_chunks::<32>();
    if !rest.is_empty() {
        return Err(DecodeError::Short);
    }
    if hashes.len() > GROUP_BLOCKS as usize {
        return Err(DecodeError::Limit("hashes"));
    }
    let group = Group {
        hashes: hashes.iter().map(|hash| BlockHash(*hash)).collect(),
        proof: proof.into(),
    };
    Ok(Answer::Group { at, group })
}

/// The minimum size of a run of held blocks, and of a file with one run, in bytes.
const RUN_BYTES_MIN: usize = 2;
const FILE_BYTES_MIN: usize = 4;

fn held(cursor: &mut Cursor<'_>) -> Result<HeldBlocks, DecodeError> {
    let count = cursor.number_within(HELD_FILES_MAX as u64, "files")?;
    let mut files = cursor.room_for(count, FILE_BYTES_MIN)?;
    let (mut runs_left, mut file_min) = (HELD_RUNS_MAX as u64, 0);
    for _ in 0..count {
        let file = ascending(file_min, cursor)?;
        let runs_count = cursor.number_within(runs_left, "runs of blocks")?;
        if runs_count == 0 {
            return Err(DecodeError::Value("a file without blocks"));
        }
        runs_left -= runs_count;
        let (mut runs, mut first_min) = (cursor.room_for(runs_count, RUN_BYTES_MIN)?, 0);
        for _ in 0..runs_count {
            let first = ascending(first_min, cursor)?;
            let blocks = u64::from(cursor.number_u32()?) + 1;
            let end = u32::try_from(u64::from(first) + blocks).map_err(|_| DecodeError::Number)?;
            runs.push((first, end - first));
            // At least one block lies between two runs, or they would be one run.
            first_min = u64::from(end) + 1;
        }
        files.push((FileId(file), runs));
        file_min = u64::from(file) + 1;
    }
    Ok(HeldBlocks { files })
}

/// Reads a number that is encoded as its distance from `min`.
fn ascending(min: u64, cursor: &mut Cursor<'_>) -> Result<u32, DecodeError> {
    u32::try_from(min + u64::from(cursor.number_u32()?)).map_err(|_| DecodeError::Number)
}

fn refusal(byte: u8) -> Result<Refusal, DecodeError> {
    Refusal::ALL
        .into_iter()
        .find(|reason| *reason as u8 == byte)
        .ok_or(DecodeError::Value("an unknown reason of a refusal"))
}
