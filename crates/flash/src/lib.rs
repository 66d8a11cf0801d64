//! The predictable, power-loss-safe file store for flash.
//!
//! Based on MPFS (Reif, Gerhorst, Bender, Hönig: "Towards Low-Jitter and Energy-Efficient Data Processing in
//! Cyber-Physical Information Systems"): one flat namespace in a hash table of fixed size, free space in a list, blocks
//! linked per file, no journal, barriers for order, and a small, constant number of device operations in every call.
//! `DESIGN.md` gives the reasons for the design, `SPEC.md` specifies every byte.
//!
//! **Holds:** the on-disk format, allocation, recovery, checking, and the bounds of every call.
//!
//! **Must not know:** readings, topics, deadlines, readers.
//!
//! **Invariants:** data of a call that has returned is on the device; any subset of the writes between two barriers, in
//! any order and torn at any sector, leaves a consistent store; every block has exactly one owner; a byte that is
//! returned was written to that file at that place; no call exceeds [`Store::bounds`].
//!
//! **Files:** `store.rs` the open store, `record.rs` records and barriers, `layout.rs` superblock and regions,
//! `root.rs` the root block, `numbers.rs` the growing numbers in it, `table.rs` the name table, `block.rs` data blocks,
//! `space.rs` free space; the operations are in `names.rs`, `append.rs`, `overwrite.rs`, `truncate.rs`, `replace.rs`
//! and `read.rs` with `address_cache.rs`; `recovery.rs`, `recovery_tails.rs`, `check.rs`, `repair.rs` with
//! `repair_*.rs`, `grow.rs`, `bounds.rs`, `error.rs`, `bytes.rs`.

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
mod read_runs;
mod record;
mod recovery;
mod recovery_tails;
mod repair;
mod repair_blocks;
mod repair_files;
mod repair_lost;
mod repair_scan;
mod repair_space;
mod repair_superblock;
mod repair_write;
mod repair_younger;
mod replace;
mod root;
mod space;
mod store;
mod table;
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
