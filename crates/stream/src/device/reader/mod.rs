//! The reader part: answers reads of programs. It alone uses the other three parts (`transport`, `prefetch`, `disk`).
//!
//! **Files:** `state.rs` what its threads share, `read.rs` reading a block, `fetch.rs` requests that no program waits
//! for, `connection.rs` the thread of a connection, `receive.rs` the server's messages, `announce.rs` what the server
//! is told of tasks, `background.rs` the other threads.

mod announce;
pub(super) mod background;
pub(super) mod connection;
mod fetch;
mod read;
mod receive;
mod state;

pub(super) use state::{JOBS_MAX, Reader, Residence};
