//! The messages between a device and its server. `WIRE.md` defines every byte; `encode.rs` and `decode.rs` write and
//! read them as payloads of [`base::wire`].

use crate::block::{BlockAt, BlockHash, FileId, Token};
use crate::group::{Group, GroupAt};

/// The version of this protocol.
pub const PROTOCOL_VERSION: u16 = 2;

/// The oldest version that a server still speaks.
pub const PROTOCOL_VERSION_MIN: u16 = 1;

/// The maximum number of blocks that one message names.
pub const BLOCKS_PER_MESSAGE_MAX: usize = 1024;

/// The maximum size of a message to the server, in bytes.
pub const REQUEST_BYTES_MAX: usize = 64 << 10;

/// The maximum size of a message to a device, in bytes.
pub const ANSWER_BYTES_MAX: usize = 1 << 20;

/// The maximum size of an encoded and signed manifest, in bytes.
pub const MANIFEST_BYTES_MAX: u64 = 256 << 20;

/// Blocks that a device holds, so that they are not sent again: for each file, runs of blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldBlocks {
    /// Files by number, ascending. Each has its runs of blocks, ascending and not adjacent: first block and count.
    pub files: Vec<(FileId, Vec<(u32, u32)>)>,
}

impl HeldBlocks {
    /// Builds the list from blocks in any order; duplicates are allowed.
    #[must_use]
    pub fn of(mut blocks: Vec<BlockAt>) -> Self {
        blocks.sort_unstable();
        let mut files: Vec<(FileId, Vec<(u32, u32)>)> = Vec::new();
        for at in blocks {
            match files.last_mut() {
                Some((file, runs)) if *file == at.file => match runs.last_mut() {
                    Some((first, count)) if at.index - *first < *count => {}
                    Some((first, count)) if at.index - *first == *count => *count += 1,
                    _ => runs.push((at.index, 1)),
                },
                _ => files.push((at.file, vec![(at.index, 1)])),
            }
        }
        Self { files }
    }

    /// Returns whether a block is among them.
    #[must_use]
    pub fn has(&self, at: BlockAt) -> bool {
        let Ok(file) = self.files.binary_search_by_key(&at.file, |held| held.0) else {
            return false;
        };
        let runs = &self.files[file].1;
        let behind = runs.partition_point(|run| run.0 <= at.index);
        behind > 0 && at.index - runs[behind - 1].0 < runs[behind - 1].1
    }
}

/// A message from a device to its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The first message of each connection.
    Hello {
        /// [`PROTOCOL_VERSION`], or an older one; the same as that of the frame.
        protocol: u16,
        /// A random number, the same for all connections of one mount.
        device: [u8; 16],
        /// The version that is mounted already; `None` requests the newest one.
        version: Option<u64>,
        /// The blake3 hash of the signed manifest that the device has already, which is then not sent again.
        manifest_held: Option<[u8; 32]>,
    },
    /// A task begins: the program `task` was executed.
    Begin {
        /// A new token, never used before.
        token: Token,
        /// The executable.
        task: FileId,
        /// The blocks that the device holds of the files that the task needed last time.
        held: HeldBlocks,
    },
    /// Requests a block that a program waits for. The answer may also include prefetched blocks.
    Read {
        /// A number chosen by the device; the answer has the same. Never 0.
        id: u32,
        /// The task of the read; `None` if it is unknown.
        token: Option<Token>,
        /// Which.
        at: BlockAt,
        /// The maximum number of following blocks of the same file that are wanted as well, 0 to
        /// [`crate::SEGMENT_BLOCKS`]. All are within the aligned run of [`crate::SEGMENT_BLOCKS`] of the block.
        around: u8,
    },
    /// Requests blocks that no program waits for (pinning, completion). They are sent when there is nothing else to
    /// send.
    Fetch {
        /// As in `Read`.
        id: u32,
        /// 1 to [`BLOCKS_PER_MESSAGE_MAX`].
        blocks: Vec<BlockAt>,
    },
    /// Requests all hashes of files; the answer for each file is `Hashes`. In protocol 1 only.
    AskHashes {
        /// 1 to [`BLOCKS_PER_MESSAGE_MAX`].
        files: Vec<FileId>,
    },
    /// Requests groups of hashes; the answer for each group is `Group`. From protocol 2 on.
    AskGroups {
        /// 1 to [`BLOCKS_PER_MESSAGE_MAX`].
        groups: Vec<GroupAt>,
    },
    /// Requests the plan of a task; the answer is `Plan`.
    AskPlan {
        /// As in `Read`.
        id: u32,
        /// The executable.
        task: FileId,
    },
    /// Reports what programs of a task have read, in order, each block once, as far as it was seen.
    Trace {
        /// Which task.
        token: Token,
        /// 1 to [`BLOCKS_PER_MESSAGE_MAX`].
        blocks: Vec<BlockAt>,
    },
    /// The task has ended, or nothing new was read for 3 s.
    End {
        /// Which task.
        token: Token,
        /// All reads were seen and reported, so prefetched blocks that are in no trace were not read.
        is_exact: bool,
        /// Its processes have ended.
        has_exited: bool,
    },
    /// Checks that the server responds; the answer is `Pong`.
    Ping {
        /// As in `Read`.
        id: u32,
    },
}

/// A message from a server to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The answer to `Hello`.
    Welcome {
        /// The protocol version of `Hello`.
        protocol: u16,
        /// The version that is served on this connection.
        version: u64,
        /// The number of bytes of the manifest that follow in `Manifest` messages; 0 if the device has it.
        manifest_bytes: u64,
    },
    /// A piece of the signed manifest; pieces come in order.
    Manifest {
        /// The offset in the manifest, in bytes.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// The hashes of a file's blocks. Sent unrequested before the first block of a file on a connection. In protocol 1
    /// only.
    Hashes {
        /// The file.
        file: FileId,
        /// The first of these blocks. Long lists are sent in pieces, in order.
        first: u32,
        /// The hashes.
        hashes: Vec<BlockHash>,
    },
    /// The hashes of some blocks of a file, and their proof. Sent unrequested before the first of these blocks on a
    /// connection. From protocol 2 on.
    Group {
        /// Which.
        at: GroupAt,
        /// At most [`crate::group::GROUP_BLOCKS`] hashes.
        group: Group,
    },
    /// Blocks. Their concatenated bytes, each block as long as the manifest says, compressed together.
    Blocks {
        /// The request that they answer; 0 if they were prefetched.
        id: u32,
        /// The task that they belong to; all zero if none.
        token: Token,
        /// The blocks, 1 to [`crate::SEGMENT_BLOCKS`].
        blocks: Vec<BlockAt>,
        /// One zstd frame.
        compressed: Vec<u8>,
    },
    /// The answer to `Begin`, sent before everything else of the task.
    Begun {
        /// Which task.
        token: Token,
        /// The number of predicted blocks that will be sent; 0 if there are none.
        blocks: u32,
        /// The device must make all reads visible this time: keep what is sent, and store nothing in the page cache
        /// before it is read.
        is_audit: bool,
    },
    /// All prefetched blocks of a task were sent, or no more will be sent (`was_stopped`).
    PrefetchDone {
        /// Which task.
        token: Token,
        /// The task did not follow the prediction.
        was_stopped: bool,
    },
    /// All blocks of a `Fetch` were sent.
    Fetched {
        /// Which.
        id: u32,
    },
    /// The plan of a task, in order, in one or several messages. Two messages without blocks: no start of the task was
    /// learned that is whole.
    Plan {
        /// The request that it answers.
        id: u32,
        /// Another message follows.
        has_more: bool,
        /// Its blocks, at most [`BLOCKS_PER_MESSAGE_MAX`]; none if there is no plan.
        blocks: Vec<BlockAt>,
    },
    /// A request was refused. The connection stays open.
    Refused {
        /// The request; 0 if it has no number.
        id: u32,
        /// The refused token, if the request was refused for its token: the server knows no task by it. Sent from
        /// protocol 2 on.
        token: Option<Token>,
        /// Why.
        reason: Refusal,
    },
    /// The answer to `Ping`.
    Pong {
        /// Which.
        id: u32,
    },
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Refusal {
    /// There is no such file or block in this version.
    NoSuchBlock = 1,
    /// The version is not in the store.
    NoSuchVersion = 2,
    /// The token is in use, or was used before.
    TokenReused = 3,
    /// No task was begun with this token.
    NoSuchToken = 4,
    /// A limit of the server is reached; a retry may succeed later.
    Limit = 5,
    /// The data in the store is damaged.
    Damaged = 6,
    /// The server's list of devices cannot be read or parsed, so no device is admitted.
    NoList = 7,
}

impl Refusal {
    /// Every reason.
    pub const ALL: [Self; 7] = [
        Self::NoSuchBlock,
        Self::NoSuchVersion,
        Self::TokenReused,
        Self::NoSuchToken,
        Self::Limit,
        Self::Damaged,
        Self::NoList,
    ];
}
