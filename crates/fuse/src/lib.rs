//! What every mount through FUSE is made of, whatever it shows: beginning, being told of its end, ending in order.
//!
//! **Holds:** the options that every mount of ours has, the session with the kernel, who is told when nobody answers
//! the kernel any more, and the answers that need no more than a result.
//!
//! **Must not know:** what is shown: no file, no name, no errno of a room.
//!
//! **Invariants:** a mount is taken away where it is and never where it was; whoever asked to be told of the end is
//! told once, whatever ended the session.
//!
//! **Files:** `session.rs` beginning and ending, `answer.rs` answers. Where a mount is, and away with it, is in
//! [`base::mount`], which knows nothing of the library. `tests/common/` is what the tests of several mounts share.

pub mod answer;
mod session;

pub use session::{Ending, Left, Notice, Session, Settings, mount, mount_notifying, prepare};
