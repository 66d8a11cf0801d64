//! The common part of all FUSE mounts: mounting, notice of the end, orderly unmounting.
//!
//! **Holds:** the options that all our mounts use, the session with the kernel, the notice that no thread answers the
//! kernel any more, and the replies that need only a result.
//!
//! **Must not know:** what a mount shows: no file, no name, no errno of any other crate.
//!
//! **Invariants:** a mount is removed from its current place, never from an earlier one. The notice of the end is given
//! exactly once, however the session ended.
//!
//! **Files:** `session.rs` mounting and unmounting, `answer.rs` replies. Finding and removing a mount is in
//! [`base::mount`], which knows nothing of the library. `tests/common/` is shared by the tests of several mounts.

pub mod answer;
mod session;

pub use session::{Ending, Left, Notice, Session, Settings, mount, mount_notifying, prepare};
