//! Replies to the kernel that need only a result.

use std::time::Duration;

use fuser::{
    Errno, FileAttr, FileHandle, FopenFlags, Generation, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite,
};

/// Result of a request.
pub type Result<T> = std::result::Result<T, Errno>;

/// A node in the form of a reply.
#[derive(Clone, Copy, Debug)]
pub struct NodeReply {
    /// Attributes of the node, with its inode number.
    pub attributes: FileAttr,
    /// Tells apart nodes that have the same inode number one after the other.
    pub generation: u64,
}

/// The values of `statfs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes in a block.
    pub block_bytes: u32,
    /// Blocks of the file system.
    pub blocks: u64,
    /// Blocks that are free.
    pub blocks_free: u64,
    /// Files that the file system can hold.
    pub files: u64,
    /// Files that can still be created.
    pub files_free: u64,
    /// Longest name, in bytes.
    pub name_bytes_max: u32,
}

/// Replies that a request succeeded, or with its error.
pub fn done(reply: ReplyEmpty, result: Result<()>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

/// Replies with the number of bytes written, at most the number in the request, or with the error.
pub fn written(reply: ReplyWrite, result: Result<usize>) {
    match result {
        Ok(count) => reply.written(count as u32),
        Err(error) => reply.error(error),
    }
}

/// Replies with the bytes read, or with the error.
pub fn data(reply: ReplyData, result: Result<impl AsRef<[u8]>>) {
    match result {
        Ok(bytes) => reply.data(bytes.as_ref()),
        Err(error) => reply.error(error),
    }
}

/// Replies with a node, which the kernel may cache for the time `cached`, or with the error.
pub fn entry(reply: ReplyEntry, cached: Duration, result: Result<NodeReply>) {
    match result {
        Ok(node) => reply.entry(&cached, &node.attributes, Generation(node.generation)),
        Err(error) => reply.error(error),
    }
}

/// Replies with attributes, which the kernel may cache for the time `cached`, or with the error.
pub fn attributes(reply: ReplyAttr, cached: Duration, result: Result<FileAttr>) {
    match result {
        Ok(attributes) => reply.attr(&cached, &attributes),
        Err(error) => reply.error(error),
    }
}

/// Replies with the number of an open file or directory, or with the error.
pub fn opened(reply: ReplyOpen, flags: FopenFlags, result: Result<u64>) {
    match result {
        Ok(handle) => reply.opened(FileHandle(handle), flags),
        Err(error) => reply.error(error),
    }
}

/// Replies with a new node and the number of its open file, or with the error.
pub fn created(
    reply: ReplyCreate,
    cached: Duration,
    flags: FopenFlags,
    result: Result<(NodeReply, u64)>,
) {
    match result {
        Ok((node, handle)) => reply.created(
            &cached,
            &node.attributes,
            Generation(node.generation),
            FileHandle(handle),
            flags,
        ),
        Err(error) => reply.error(error),
    }
}

/// Sends the entries that were added to a listing, or the error instead of them.
pub fn listed(reply: ReplyDirectory, result: Result<()>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

/// Replies with the space of the file system, or with the error.
pub fn space(reply: ReplyStatfs, result: Result<Space>) {
    match result {
        Ok(space) => reply.statfs(
            space.blocks,
            space.blocks_free,
            space.blocks_free,
            space.files,
            space.files_free,
            space.block_bytes,
            space.name_bytes_max,
            space.block_bytes,
        ),
        Err(error) => reply.error(error),
    }
}
