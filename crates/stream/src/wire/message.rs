//! The messages between a device and its server. `WIRE.md` says every byte; `encode.rs` and `decode.rs` write and read
//! them as payloads of [`base::wire`].

use crate::block::{BlockAt, BlockHash, FileId, Token};
use crate::group::{Group, GroupAt};

/// The version of this protocol.
pub const PROTOCOL_VERSION: u16 = 2;

/// The oldest version that a server still speaks.
pub const PROTOCOL_VERSION_MIN: u16 = 1;

/// Blocks that one message names at most.
pub const BLOCKS_PER_MESSAGE_MAX: usize = 1024;

/// Bytes of a message to the server, at most.
pub const REQUEST_BYTES_MAX: usize = 64 << 10;

/// Bytes of a message to a device, at most.
pub const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Bytes of a manifest, encoded and signed, at most.
pub const MANIFEST_BYTES_MAX: u64 = 256 << 20;

/// The highest blocks that a device has of files, so that they are not sent again: for each file, runs of blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Files by number, ascending, each with its runs of blocks, ascending and apart: first block, and how many.
    pub files: Vec<(FileId, Vec<(u32, u32)>)>,
}

impl Held {
    /// Of these blocks, in any order, each as often as it likes.
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

    /// Whether a block is among them.
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

/// What a device says to its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The first message of each connection.
    Hello {
        /// [`PROTOCOL_VERSION`], or an older one; that of the frame.
        protocol: u16,
        /// The same for all connections of one mount, at random.
        device: [u8; 16],
        /// The version that is mounted already; None: the newest one.
        version: Option<u64>,
        /// The blake3 hash of the signed manifest that the device has already; it is not sent again then.
        manifest_held: Option<[u8; 32]>,
    },
    /// A task begins: the program `task` was executed.
    Begin {
        /// Made for it, never used before.
        token: Token,
        /// The executable.
        task: FileId,
        /// What the device has of the files that it needed last time.
        held: Held,
    },
    /// A block that a program waits for; also answered with what is prefetched.
    Read {
        /// Chosen by the device; the answer has the same. Never 0.
        id: u32,
        /// Whose it is; None where no task is known.
        token: Option<Token>,
        /// Which.
        at: BlockAt,
        /// So many blocks of the same file around it are wanted as well, behind it: `around` in all at most,
        /// 0 to [`crate::SEGMENT_BLOCKS`], all within its aligned run of [`crate::SEGMENT_BLOCKS`].
        around: u8,
    },
    /// Blocks that nobody waits for (pinning, completion). They come whenever nothing else is to be sent.
    Fetch {
        /// As in `Read`.
        id: u32,
        /// 1 to [`BLOCKS_PER_MESSAGE_MAX`].
        blocks: Vec<BlockAt>,
    },
    /// Asks for all hashes of files, for each of which the answer is `Hashes`. In protocol 1 only.
    AskHashes {
        /// 1 to [`BLOCKS_PER_MESSAGE_MAX`].
        files: Vec<FileId>,
    },
    /// Asks for groups of hashes, for each of which the answer is `Group`. From protocol 2 on.
    AskGroups {
        /// 1 to [`BLOCKS_PER_MESSAGE_MAX`].
        groups: Vec<GroupAt>,
    },
    /// What is known of a task: the answer is `Plan`.
    AskPlan {
        /// As in `Read`.
        id: u32,
        /// The executable.
        task: FileId,
    },
    /// What programs of a task have read, in order, each block once, as it was seen.
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
        /// All that was read was seen and told, so what is prefetched and is not in the traces was not read.
        is_exact: bool,
        /// Its processes have ended.
        has_exited: bool,
    },
    /// Answered with `Pong`: whether anybody is there.
    Ping {
        /// As in `Read`.
        id: u32,
    },
}

/// What a server says to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The answer to `Hello`.
    Welcome {
        /// That of `Hello`.
        protocol: u16,
        /// Which version is served on this connection.
        version: u64,
        /// Bytes of the manifest that follow in `Manifest` messages; 0 where the device has it.
        manifest_bytes: u64,
    },
    /// A piece of the signed manifest; pieces come in order.
    Manifest {
        /// Where in it.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// The hashes of a file's blocks. Comes unasked before the first block of a file on a connection. In protocol 1
    /// only.
    Hashes {
        /// The file.
        file: FileId,
        /// The first of these blocks: long lists come in pieces, in order.
        first: u32,
        /// The hashes.
        hashes: Vec<BlockHash>,
    },
    /// The hashes of some blocks of a file, and what proves them. Comes unasked before the first block of them on a
    /// connection. From protocol 2 on.
    Group {
        /// Which.
        at: GroupAt,
        /// At most [`crate::group::GROUP_BLOCKS`] hashes.
        group: Group,
    },
    /// Blocks. Their bytes, one after the other, each as long as the manifest says, compressed together.
    Blocks {
        /// What they answer; 0: they were prefetched.
        id: u32,
        /// Whose they are; all zero: nobody's.
        token: Token,
        /// Which, 1 to [`crate::SEGMENT_BLOCKS`].
        blocks: Vec<BlockAt>,
        /// One zstd frame.
        compressed: Vec<u8>,
    },
    /// The answer to `Begin`, before all else of the task.
    Begun {
        /// Which task.
        token: Token,
        /// Something is known of it; so many blocks will be sent.
        blocks: u32,
        /// Let all reads be seen this time: keep what is sent and store nothing in the page cache before it is read.
        is_audit: bool,
    },
    /// All that was prefetched of a task has been sent, or no more will be (`was_stopped`: it did other things).
    PrefetchDone {
        /// Which task.
        token: Token,
        /// It did other things than were predicted.
        was_stopped: bool,
    },
    /// All of a `Fetch` has been sent.
    Fetched {
        /// Which.
        id: u32,
    },
    /// What is known of a task, in order; in several messages where there is more.
    Plan {
        /// What it answers.
        id: u32,
        /// Another message follows.
        has_more: bool,
        /// Its blocks, at most [`BLOCKS_PER_MESSAGE_MAX`]; none: nothing is known.
        blocks: Vec<BlockAt>,
    },
    /// A request was refused; the connection stays.
    Refused {
        /// Which; 0: one without a number.
        id: u32,
        /// The token that it named, if it was refused for that: the server knows no task by it. Said from protocol 2
        /// on.
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
    /// No such file or block in this version.
    NoSuchBlock = 1,
    /// The version is not in the store.
    NoSuchVersion = 2,
    /// The token is in use, or was.
    TokenReused = 3,
    /// Nobody has begun a task with this token.
    NoSuchToken = 4,
    /// A limit of the server is reached; later it may work.
    Limit = 5,
    /// What the store holds is damaged.
    Damaged = 6,
    /// The server's list of devices cannot be read or understood, and nobody is let in.
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
