//! `libkeelmem.so`, to be preloaded: programs that know nothing of it read and write the files of a region.
//!
//! **Holds:** the C library's functions on files, under each of their names, for paths below the place where the region
//! appears and for descriptors of its files. Everything else is passed on as it came.
//!
//! **Must not know:** how a region is laid out; what lies in it is `mem`'s.
//!
//! **Invariants:** a wrong guess about a descriptor costs a look and never an answer. Nothing here calls a served
//! function by its name where it means the kernel. No panic: a program that did nothing wrong must not end here.
//!
//! **Files:** `raw.rs` system calls, `next.rs` the functions behind ours, `foreign.rs` the border to C, `thread.rs`,
//! `signals.rs` and `cancel.rs` what happens inside and may not disturb it, `state.rs` attaching, `table.rs`
//! descriptors, `resolve.rs` paths; the calls: `open.rs`, `data.rs`, `stat.rs`, `names.rs`, `attributes.rs`,
//! `directory.rs`, `descriptor.rs`, `transfer.rs`, `map.rs`, `stdio.rs` and `standard.rs`, `temporary.rs`, `tree.rs`,
//! `exec.rs`, `spawn.rs` and `loader.rs`; `system.rs` all of them by number, `lend.rs` reading without a copy,
//! `refused.rs` what there is not.

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
