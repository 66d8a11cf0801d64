//! A published tree as a directory, from which programs run.
//!
//! `docs/semantics-stream.md` specifies each call and its errno.
//!
//! **Holds:** the FUSE adapter: which task a read belongs to, when a task ends, pages stored ahead of reads, errno; and
//! the guard that releases waiting programs when the mount's process is killed.
//!
//! **Must not know:** how blocks are fetched and verified, the store. All that is behind [`Source`].
//!
//! **Invariants:** no reader waits forever, however this process ends. A waiting read does not block other reads. A
//! page has the content that the manifest says, or is absent: never zeros in place of missing data. No result of a
//! failed read is cached. Reading `/proc` never waits for the memory of a program, as that program may be waiting for
//! this process.
//!
//! **Files:** `source.rs` the source of blocks, `device.rs` a device as the source, `view.rs` the tree as the kernel
//! sees it, `adapter.rs` the requests of the kernel, `readers.rs` the threads that wait for blocks, `processes.rs` the
//! state of processes from `/proc`, `tasks.rs` which task a read belongs to, `watcher.rs` when processes end,
//! `pages.rs` the page cache, `loaders.rs` the loaders that programs name, `guard.rs` the guard, `session.rs` mounting
//! and unmounting, `json.rs` text in JSON.

mod adapter;
mod device;
mod guard;
mod json;
mod loaders;
mod pages;
mod processes;
mod readers;
mod session;
mod source;
mod tasks;
mod view;
mod watcher;

pub use adapter::COUNTERS_NAME;
pub use base::mount::MountError;
pub use fuse::Ending;
pub use guard::Guard;
pub use pages::PageCache;
pub use session::{MountOptions, Mounted, clear_dead, mount};
pub use source::{Source, Unreadable};
