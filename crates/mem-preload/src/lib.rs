//! `libkeelmem.so`, a preload library: unmodified programs read and write the files of a region.
//!
//! **Holds:** the C library's functions on files, under each of their names, for paths below the region's mount path
//! and for descriptors of its files. All other calls are passed on unchanged.
//!
//! **Must not know:** the layout of a region; its content belongs to `mem`.
//!
//! **Invariants:** a wrong guess about a descriptor costs another check, never a wrong result. No code here calls a
//! served function by its name if it means the kernel. No panic: a correct program must not end here.
//!
//! **Files:** `raw.rs` system calls, `next.rs` the functions behind ours, `foreign.rs` the interface to C, `thread.rs`,
//! `signals.rs` and `cancel.rs` protection of code inside the region, `state.rs` attaching, `table.rs` descriptors,
//! `mappings.rs` mapped files, `resolve.rs` paths; the calls: `open.rs`, `data.rs`, `stat.rs`, `names.rs`,
//! `attributes.rs`, `directory.rs`, `descriptor.rs`, `transfer.rs`, `map.rs`, `stdio.rs` and `standard.rs`,
//! `temporary.rs`, `tree.rs`, `exec.rs`, `spawn.rs` and `loader.rs`; `system.rs` all of them by number, `lend.rs`
//! reading without a copy, `refused.rs` unsupported calls.

#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]

mod attributes;
mod cancel;
mod data;
mod descriptor;
mod directory;
mod exec;
mod foreign;
mod lend;
mod loader;
mod map;
mod mappings;
mod names;
mod next;
mod open;
mod raw;
mod refused;
mod resolve;
mod signals;
mod spawn;
mod standard;
mod stat;
mod state;
mod stdio;
mod system;
mod table;
mod temporary;
mod thread;
mod transfer;
mod tree;
