//! A flash store as a directory: every program can use it, through FUSE in the kernel.
//!
//! `docs/semantics-flash.md` tells what each call does there and which errno it returns; a test runs every line of it.
//!
//! **Holds:** the translation between the kernel's inodes and the names of a store; the features of POSIX that a flat
//! store does not have: files deleted while they are open, positions in a listing, times.
//!
//! **Must not know:** the bytes of the store, the purpose of the files, the command line.
//!
//! **Invariants:** data acknowledged by `fsync` or a write with `O_SYNC` is on the device. The kernel never holds back
//! a write (no write-back cache). All calls to the store are made under one lock. A request carries at most
//! [`REQUEST_BYTES_MAX`]. No open file vanishes because another file was renamed over it.
//!
//! **Files:** `adapter.rs` the requests of the kernel, `files.rs` their effect on the store, `nodes.rs` the inodes that
//! the kernel knows, `deleted.rs` files deleted while open, `listing.rs` directory reads, `errno.rs` errors,
//! `limits.rs` open files and bytes of a request, `session.rs` mounting and unmounting, `shared.rs` the lock and the
//! thread for long calls.

mod adapter;
mod deleted;
mod errno;
mod files;
mod limits;
mod listing;
mod nodes;
mod session;
mod shared;

pub use deleted::Leftovers;
pub use files::Presentation;
pub use fuse::Ending;
pub use limits::{OPEN_FILES_MAX, REQUEST_BYTES_MAX};
pub use session::{MountError, MountOptions, Mounted, mount};
