//! Replies to the kernel that need only a result.

use fuser::{Errno, ReplyEmpty, ReplyWrite};

/// Result of a request.
pub type Result<T> = std::result::Result<T, Errno>;

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
