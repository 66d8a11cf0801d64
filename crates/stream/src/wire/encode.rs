//! Encodes messages as frames.

use super::message::{Answer, HeldBlocks, PROTOCOL_VERSION, Request};
use super::primitive::{put_blocks, put_files, put_number};
use super::{HELD_BYTES_MAX, HELD_FILES_MAX, HELD_RUNS_MAX, kind};
use crate::block::{BlockAt, Token};
use crate::group::GroupAt;
use base::wire::{HEADER_BYTES, encode_header};

impl Request {
    /// Appends the message as a complete frame of [`base::wire`].
    ///
    /// The caller must keep the limits of the message; the receiver refuses one that exceeds them. Only the list of
    /// held blocks is cut to what fits.
    pub fn encode(&self, into: &mut Vec<u8>) {
        self.encode_for(PROTOCOL_VERSION, into);
    }

    /// Like [`Self::encode`], in the given version of the protocol.
    pub fn encode_for(&self, protocol: u16, into: &mut Vec<u8>) {
        let start = begin(into);
        self.payload(into);
        end(self.kind(), protocol, start, into);
    }

    /// Returns the kind of its frame.
    #[must_use]
    pub fn kind(&self) -> u16 {
        match self {
            Self::Hello { .. } => kind::HELLO,
            Self::Begin { .. } => kind::BEGIN,
            Self::Read { .. } => kind::READ,
            Self::Fetch { .. } => kind::FETCH,
            Self::AskHashes { .. } => kind::ASK_HASHES,
            Self::AskGroups { .. } => kind::ASK_GROUPS,
            Self::AskPlan { .. } => kind::ASK_PLAN,
            Self::Trace { .. } => kind::TRACE,
            Self::End { .. } => kind::END,
            Self::Ping { .. } => kind::PING,
        }
    }

    fn payload(&self, into: &mut Vec<u8>) {
        match self {
            Self::Hello {
                protocol,
                device,
                version,
                manifest_held,
            } => {
                put_number(u64::from(*protocol), into);
                into.extend_from_slice(device);
                into.push(flags([version.is_some(), manifest_held.is_some()]));
                if let Some(version) = version {
                    put_number(*version, into);
                }
                if let Some(hash) = manifest_held {
                    into.extend_from_slice(hash);
                }
            }
            Self::Begin { token, task, held } => {
                into.extend_from_slice(&token.0);
                put_number(u64::from(task.0), into);
                put_held(held, into);
            }
            Self::Read {
                id,
                token,
                at,
                around,
            } => {
                put_number(u64::from(*id), into);
                put_token(*token, into);
                put_number(u64::from(at.file.0), into);
                put_number(u64::from(at.index), into);
                into.push(*around);
            }
            Self::Fetch { id, blocks } => {
                put_number(u64::from(*id), into);
                put_blocks(blocks, into);
            }
            Self::AskHashes { files } => put_files(files, into),
            Self::AskGroups { groups } => {
                let at = |group: &GroupAt| BlockAt {
                    file: group.file,
                    index: group.group,
                };
                put_blocks(&groups.iter().map(at).collect::<Vec<_>>(), into);
            }
            Self::AskPlan { id, task } => {
                put_number(u64::from(*id), into);
                put_number(u64::from(task.0), into);
            }
            Self::Trace { token, blocks } => {
                into.extend_from_slice(&token.0);
                put_blocks(blocks, into);
            }
            Self::End {
                token,
                is_exact,
                has_exited,
            } => {
                into.extend_from_slice(&token.0);
                into.push(flags([*is_exact, *has_exited]));
            }
            Self::Ping { id } => put_number(u64::from(*id), into),
        }
    }
}

impl Answer {
    /// Appends the message as a complete frame of [`base::wire`].
    ///
    /// The caller must keep the limits of the message; the receiver refuses one that exceeds them.
    pub fn encode(&self, into: &mut Vec<u8>) {
        self.encode_for(PROTOCOL_VERSION, into);
    }

    /// Like [`Self::encode`], in the given version of the protocol.
    pub fn encode_for(&self, protocol: u16, into: &mut Vec<u8>) {
        let start = begin(into);
        self.payload(protocol, into);
        end(self.kind(), protocol, start, into);
    }

    /// Returns the kind of its frame.
    #[must_use]
    pub fn kind(&self) -> u16 {
        match self {
            Self::Welcome { .. } => kind::WELCOME,
            Self::Manifest { .. } => kind::MANIFEST,
            Self::Hashes { .. } => kind::HASHES,
            Self::Group { .. } => kind::GROUP,
            Self::Blocks { .. } => kind::BLOCKS,
            Self::Begun { .. } => kind::BEGUN,
            Self::PrefetchDone { .. } => kind::PREFETCH_DONE,
            Self::Fetched { .. } => kind::FETCHED,
            Self::Plan { .. } => kind::PLAN,
            Self::Refused { .. } => kind::REFUSED,
            Self::Pong { .. } => kind::PONG,
        }
    }

    fn payload(&self, version: u16, into: &mut Vec<u8>) {
        match self {
            Self::Welcome {
                protocol,
                version,
                manifest_bytes,
            } => {
                put_number(u64::from(*protocol), into);
                put_number(*version, into);
                put_number(*manifest_bytes, into);
            }
            Self::Manifest { offset, bytes } => {
                put_number(*offset, into);
                into.extend_from_slice(bytes);
            }
            Self::Hashes {
                file,
                first,
                hashes,
            } => {
                put_number(u64::from(file.0), into);
                put_number(u64::from(*first), into);
                for hash in hashes {
                    into.extend_from_slice(&hash.0);
                }
            }
            Self::Group { at, group } => {
                put_number(u64::from(at.file.0), into);
                put_number(u64::from(at.group), into);
                put_number(group.proof.len() as u64, into);
                for value in &group.proof {
                    into.extend_from_slice(value);
                }
                for hash in &group.hashes {
                    into.extend_from_slice(&hash.0);
                }
            }
            Self::Blocks {
                id,
                token,
                blocks,
                compressed,
            } => {
                put_number(u64::from(*id), into);
                put_token(Some(*token).filter(|token| token.0 != [0; 16]), into);
                put_blocks(blocks, into);
                into.extend_from_slice(compressed);
            }
            Self::Begun {
                token,
                blocks,
                is_audit,
            } => {
                into.extend_from_slice(&token.0);
                put_number(u64::from(*blocks), into);
                into.push(u8::from(*is_audit));
            }
            Self::PrefetchDone { token, was_stopped } => {
                into.extend_from_slice(&token.0);
                into.push(u8::from(*was_stopped));
            }
            Self::Fetched { id } | Self::Pong { id } => put_number(u64::from(*id), into),
            Self::Plan {
                id,
                has_more,
                blocks,
            } => {
                put_number(u64::from(*id), into);
                into.push(u8::from(*has_more));
                put_blocks(blocks, into);
            }
            Self::Refused { id, token, reason } => {
                put_number(u64::from(*id), into);
                if version >= 2 {
                    put_token(*token, into);
                }
                into.push(*reason as u8);
            }
        }
    }
}

/// Reserves room for the header, which is written after the payload.
fn begin(into: &mut Vec<u8>) -> usize {
    let start = into.len();
    into.resize(start + HEADER_BYTES, 0);
    start
}

fn end(kind: u16, protocol: u16, start: usize, into: &mut [u8]) {
    let (header, payload) = into[start..].split_at_mut(HEADER_BYTES);
    // No message is near 2 GiB. If one were, the receiver would refuse the zeros in place of the header.
    if let Ok(made) = encode_header(kind, protocol, payload) {
        header.copy_from_slice(&made);
    }
}

fn flags(set: [bool; 2]) -> u8 {
    u8::from(set[0]) | u8::from(set[1]) << 1
}

fn put_token(token: Option<Token>, into: &mut Vec<u8>) {
    into.push(u8::from(token.is_some()));
    if let Some(token) = token {
        into.extend_from_slice(&token.0);
    }
}

/// Encodes whole files as long as all limits hold. A block that is left out is sent again, which is no error.
fn put_held(held: &HeldBlocks, into: &mut Vec<u8>) {
    let (mut body, mut runs_total, mut before, mut count) = (Vec::new(), 0, None, 0);
    let mut one = Vec::new();
    for (file, runs) in held.files.iter().take(HELD_FILES_MAX) {
        runs_total += runs.len();
        if runs_total > HELD_RUNS_MAX {
            break;
        }
        one.clear();
        let gap = before.map_or(file.0, |before: u32| file.0.wrapping_sub(before + 1));
        put_number(u64::from(gap), &mut one);
        put_number(runs.len() as u64, &mut one);
        let mut end = None;
        for (first, blocks) in runs {
            let gap = end.map_or(*first, |end: u32| first.wrapping_sub(end + 1));
            put_number(u64::from(gap), &mut one);
            put_number(u64::from(blocks.wrapping_sub(1)), &mut one);
            end = Some(first.wrapping_add(*blocks));
        }
        if body.len() + one.len() > HELD_BYTES_MAX {
            break;
        }
        body.extend_from_slice(&one);
        before = Some(file.0);
        count += 1;
    }
    put_number(count, into);
    into.extend_from_slice(&body);
}
