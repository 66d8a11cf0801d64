//! The predictable, power-loss-safe file store for flash.
//!
//! Based on MPFS (Reif, Gerhorst, Bender, Hönig: "Towards Low-Jitter and Energy-Efficient Data Processing in
//! Cyber-Physical Information Systems"). The store has one flat namespace in a hash table of fixed size, free space in
//! a list, and blocks linked per file. It needs no journal: barriers give the order. Every call makes a small, constant
//! number of device operations. `DESIGN.md` gives the reasons for the design, `SPEC.md` specifies every byte.
//!
//! **Holds:** the on-disk format, allocation, recovery, checking, and the bounds of every call.
//!
//! **Must not know:** readings, topics, deadlines, readers.
//!
//! **Invariants:** data of a call that has returned is on the device. Any subset of the writes between two barriers, in
//! any order and torn at any sector, leaves a consistent store. Every block has exactly one owner. A byte that is
//! returned was written to that file at that place. No call exceeds [`Store::bounds`].
//!
//! **Files:** `store.rs` the open store, `record.rs` records and barriers, `layout.rs` superblock and regions,
//! `root.rs` the root block, `numbers.rs` the growing numbers in it, `table.rs` the name table, `block.rs` data blocks,
//! `space.rs` free space; the operations are in `names.rs`, `append.rs`, `overwrite.rs`, `truncate.rs`, `replace.rs`
//! and `read.rs` with `read/`, `address_cache.rs` and `tail_cache.rs`; `recovery.rs` with `recovery/`, `check.rs`,
//! `repair.rs` with `repair/`, `grow.rs`, `bounds.rs`, `error.rs`, `bytes.rs`.

mod address_cache;
mod append;
mod block;
mod bounds;
mod bytes;
mod check;
mod error;
mod grow;
mod layout;
mod names;
mod numbers;
mod overwrite;
mod read;
mod record;
mod recovery;
mod repair;
mod replace;
mod root;
mod space;
mod store;
mod table;
mod tail_cache;
mod truncate;

pub use append::APPEND_ATOMIC_BYTES_MAX;
pub use block::PAYLOAD_BYTES;
pub use bounds::{Bound, Bounds};
pub use check::{CheckReport, Problem};
pub use error::{Error, Part, Result};
pub use grow::GrowReport;
pub use layout::{DEVICE_BLOCKS_MAX, FORMAT_VERSION, FormatOptions, Layout};
pub use overwrite::OVERWRITE_ATOMIC_BYTES_MAX;
pub use repair::{Finding, LostFile, RepairReport};
pub use store::{FileHandle, OpenOptions, Recovery, Stat, Statistics, Store};
