//! A flash store as a directory: every program can use it, through the kernel's FUSE.
//!
//! What each call does there and which errno it ends with stands in `docs/semantics-flash.md`; a test runs
//! every line of it.
//!
//! **Holds:** the translation between the kernel's inodes and the names of a store; what POSIX asks for and a
//! flat store does not have: files that were deleted while they are open, positions in a listing, times.
//!
//! **Must not know:** the bytes of the store, what the files are for, the command line.
//!
//! **Invariants:** what `fsync` or a write with `O_SYNC` has acknowledged is on the device; the kernel never
//! holds back a write (no write-back cache); all calls to the store are made under one lock; a request
//! carries at most [`REQUEST_BYTES_MAX`]; no file vanishes because something else was renamed over it.
//!
//! **Files:** `adapter.rs` the requests of the kernel, `files.rs` what they mean for the store, `nodes.rs`
//! the inodes that the kernel knows, `deleted.rs` files deleted while open, `listing.rs` directory reads,
//! `errno.rs` errors, `session.rs` mounting and unmounting, `shared.rs` the lock and what may take long.

mod adapter;
mod deleted;
mod errno;
mod files;
mod listing;
mod nodes;
mod session;
mod shared;

pub use adapter::REQUEST_BYTES_MAX;
pub use deleted::Leftovers;
pub use files::{OPEN_FILES_MAX, Presentation};
pub use fuse::Ending;
pub use session::{MountError, MountOptions, Mounted, mount};
