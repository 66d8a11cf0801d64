//! The common part of all FUSE mounts: mounting, notice of the end, orderly unmounting.
//!
//! **Holds:** the options that all our mounts use, the session with the kernel, the notice that no thread answers the
//! kernel any more, the replies that need only a result, and the changes that a request asks for.
//!
//! **Must not know:** what a mount shows: no file, no name, no errno of any other crate.
//!
//! **Invariants:** a mount is removed from its current place, never from an earlier one. The notice of the end is given
//! exactly once, however the session ended.
//!
//! **Files:** `session.rs` mounting and unmounting, `connection.rs` settings of the connection, `answer.rs` replies,
//! `change.rs` changes of attributes. Finding and removing a mount is in [`base::mount`], which knows nothing of the
//! library. `tests/common/` is shared by the tests of several mounts.

pub mod answer;
mod change;
pub mod connection;
mod session;

pub use change::Change;
pub use session::{
    EndState, Ending, Notice, Session, Settings, failed, mount, mount_notifying, prepare, threads,
};
