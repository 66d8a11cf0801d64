//! The wire protocol between device and server. `WIRE.md` beside this crate's manifest defines every byte.

mod decode;
mod encode;
mod error;
mod frames;
mod message;
mod pack;
mod primitive;

pub use error::DecodeError;
pub use frames::{Frame, FrameReader};
pub use message::{
    ANSWER_BYTES_MAX, Answer, BLOCKS_PER_MESSAGE_MAX, HeldBlocks, MANIFEST_BYTES_MAX,
    PROTOCOL_VERSION, PROTOCOL_VERSION_MIN, REQUEST_BYTES_MAX, Refusal, Request,
};
pub use pack::{PackError, pack_blocks, unpack};

/// The maximum number of hashes in one message of protocol 1: those of 64 MiB.
pub const HASHES_PER_MESSAGE_MAX: usize = 16 << 10;

/// The maximum compressed size of one message's blocks, in bytes: an incompressible segment, and the overhead of zstd.
pub const COMPRESSED_BYTES_MAX: usize = 33 * crate::block::BLOCK_BYTES;

/// The maximum number of files in a list of held blocks; more are left out.
pub const HELD_FILES_MAX: usize = 4096;

/// The maximum number of runs in a list of held blocks; more are left out.
pub const HELD_RUNS_MAX: usize = 16 << 10;

/// The maximum size of a list of held blocks, in bytes; more are left out.
const HELD_BYTES_MAX: usize = REQUEST_BYTES_MAX - 1024;

/// The kinds of frames. Those of answers have the highest bit of the lower byte.
mod kind {
    pub(super) const HELLO: u16 = 0x01;
    pub(super) const BEGIN: u16 = 0x02;
    pub(super) const READ: u16 = 0x03;
    pub(super) const FETCH: u16 = 0x04;
    pub(super) const ASK_HASHES: u16 = 0x05;
    pub(super) const ASK_PLAN: u16 = 0x06;
    pub(super) const TRACE: u16 = 0x07;
    pub(super) const END: u16 = 0x08;
    pub(super) const PING: u16 = 0x09;
    pub(super) const ASK_GROUPS: u16 = 0x0a;
    pub(super) const WELCOME: u16 = 0x81;
    pub(super) const MANIFEST: u16 = 0x82;
    pub(super) const HASHES: u16 = 0x83;
    pub(super) const BLOCKS: u16 = 0x84;
    pub(super) const BEGUN: u16 = 0x85;
    pub(super) const PREFETCH_DONE: u16 = 0x86;
    pub(super) const FETCHED: u16 = 0x87;
    pub(super) const PLAN: u16 = 0x88;
    pub(super) const REFUSED: u16 = 0x89;
    pub(super) const PONG: u16 = 0x8a;
    pub(super) const GROUP: u16 = 0x8b;

    /// Returns whether a version of the protocol has a kind of message.
    pub(super) fn is_of(kind: u16, protocol: u16) -> bool {
        match kind {
            ASK_HASHES | HASHES => protocol == 1,
            ASK_GROUPS | GROUP => protocol >= 2,
            _ => true,
        }
    }
}
