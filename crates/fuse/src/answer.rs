//! Answers to the kernel that need no more than a result.

use fuser::{Errno, ReplyEmpty, ReplyWrite};

/// Result of a request.
pub type Result<T> = std::result::Result<T, Errno>;

/// Says that a request was carried out, or why not.
pub fn done(reply: ReplyEmpty, result: Result<()>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

/// Says how many bytes were written, which are never more than a request has, or why none.
pub fn written(reply: ReplyWrite, result: Result<usize>) {
    match result {
        Ok(count) => reply.written(count as u32),
        Err(error) => reply.error(error),
    }
}
