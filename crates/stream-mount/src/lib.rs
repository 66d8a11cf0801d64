//! A published tree as a directory, from which programs run.
//!
//! What each call does there and which errno it ends with stands in `docs/semantics-stream.md`.
//!
//! **Holds:** the FUSE adapter: which task a read belongs to, when a task ends, pages stored ahead of reads, errno; and
//! the guard that lets go of waiting programs when the mount's process is killed.
//!
//! **Must not know:** how blocks come, how they are verified, the store. All that is behind [`Source`].
//!
//! **Invariants:** nobody who reads waits for ever, whatever ends this process. A read that waits holds up no other
//! one. A page is full of what the manifest says or is not there: never zeros in place of what is missing. Nothing of a
//! failed read is remembered. What is asked of `/proc` never waits for the memory of a program, as that program may
//! be waiting for us.
//!
//! **Files:** `source.rs` where blocks come from, `device.rs` a device as that, `view.rs` the tree as the kernel sees
//! it, `adapter.rs` the requests of the kernel, `readers.rs` the threads that wait for blocks, `processes.rs` what
//! `/proc` knows of a process, `tasks.rs` which task a read belongs to, `watcher.rs` when processes end, `pages.rs` the
//! page cache, `loaders.rs` which loaders programs name, `guard.rs` the guard, `session.rs` mounting and unmounting.

mod adapter;
mod device;
mod guard;
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
