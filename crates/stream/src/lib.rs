//! Executables that run from the network: published, predicted, sent ahead of demand, verified and cached.
//!
//! **Holds:** publishing a tree, the server with its learned actions, and the device with its cache. After SYSFLOW (Lu
//! et al., "SYSFLOW: Efficient Execution Platform for IoT Devices").
//!
//! **Must not know:** readings, the database, the flash store (only a folder for the cache), FUSE.
//!
//! **Invariants:** the device part returns no byte before its hash matches the one that a signed manifest leads to. A
//! reader that waits for a block gets it, or an error by a deadline. What a device reports changes only what is learned
//! for its own tenant. Every queue, table and buffer has a limit.
//!
//! **Files:** `block.rs` blocks and their hashes, `manifest/` a version of a tree, `publish/` from a tree to a store,
//! `store.rs` reading a store, `wire/` messages, `link/` a device's connection, `tls/` identities, `predict/` which
//! blocks a task will need, `program.rs` which loader a program names, `provide/` what a server caches in memory,
//! `server/` serves many devices, `device/` the device part, `group.rs` hashes in groups with one proof each,
//! `recent.rs` a least-recently-used cache, `regular.rs` how files of a store are opened, `sync.rs` taking a lock.

pub mod block;
pub mod device;
pub mod group;
pub mod link;
pub mod manifest;
pub mod predict;
pub mod program;
pub mod provide;
pub mod publish;
mod recent;
mod regular;
pub mod server;
pub mod store;
mod sync;
pub mod tls;
pub mod wire;

pub use block::{
    BLOCK_BYTES, BlockAt, BlockHash, ContentId, FileId, HashList, SEGMENT_BLOCKS, Token,
};
