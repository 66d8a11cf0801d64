//! Shows a region as a directory. Every program can use it through the kernel's FUSE, static ones too, together with
//! programs that use the preloaded library.
//!
//! `docs/semantics-mem-mount.md` describes the result and errno of each call; a test runs every line of it.
//!
//! **Holds:** the translation between the kernel's requests and the calls of a region; the inodes that the kernel
//! knows; open files; locks of programs.
//!
//! **Must not know:** the bytes of a region, what the files are for, the command line.
//!
//! **Invariants:** nothing is cached here, nor in the kernel, as far as it can be prevented. Preloaded programs change
//! the same files at the same time. A program that has a file open through the view has an open file description of the
//! region, so that the file is not freed. A region that is shown read-only is not open for writing.
//!
//! **Files:** `adapter.rs` the kernel's requests, `view.rs` their effect on the region, `nodes.rs` the inodes that the
//! kernel knows, `openings.rs` open files and directories, `locks.rs` record locks, `session.rs` mounting and
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
