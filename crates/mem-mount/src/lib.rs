//! A region as a directory: every program can use it through the kernel's FUSE, static ones too, together with those
//! that use it by the preloaded library.
//!
//! What each call does there and which errno it ends with stands in `docs/semantics-mem-mount.md`; a test runs every
//! line of it.
//!
//! **Holds:** the translation between the kernel's requests and the calls of a region; which inodes the kernel knows;
//! what is open; locks of programs.
//!
//! **Must not know:** the bytes of a region, what the files are for, the command line.
//!
//! **Invariants:** nothing is cached, neither here nor, as far as it can be told so, in the kernel: preloaded programs
//! change the same files at the same time. Whoever has a file open through the view has an open file description of the
//! region, so that nobody takes the file away. A region that is shown read-only is not open for writing.
//!
//! **Files:** `adapter.rs` the requests of the kernel, `view.rs` what they mean for the region, `nodes.rs` the inodes
//! that the kernel knows, `openings.rs` open files and directories, `locks.rs` record locks, `session.rs` mounting and
//! unmounting.

mod adapter;
mod locks;
mod nodes;
mod openings;
mod session;
mod view;

pub use adapter::REQUEST_BYTES_MAX;
pub use fuse::Ending;
pub use session::{MountError, MountOptions, Mounted, mount};
