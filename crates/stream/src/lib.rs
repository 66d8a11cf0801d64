//! Executables that run from the network: published, predicted, sent ahead of what asks for them, verified, kept.
//!
//! **Holds:** publishing a tree, the server with what it has learned, and the device with what it keeps. After SYSFLOW
//! (Lu et al., "SYSFLOW: Efficient Execution Platform for IoT Devices").
//!
//! **Must not know:** readings, the database, the flash store (of it only a place for a cache), FUSE.
//!
//! **Invariants:** no byte leaves the device's part before its hash is the one that a signed manifest leads to. Who
//! waits for a block gets it, or an error by a deadline. Whatever a device says moves what is learned for its own
//! tenant only. Every queue, table and buffer has a limit.
//!
//! **Files:** `block.rs` blocks and their proofs, `manifest/` a version of a tree, `publish/` from a tree to a store,
//! `store.rs` reading a store, `wire/` messages, `link/` a device's connection, `tls/` who is who, `predict/` what a
//! task will need, `program.rs` which loader a program names, `provide/` what a server keeps in memory, `server/` many
//! devices at once, `device/` the other end, `group.rs` hashes in groups that are proven each by itself, `recent.rs`
//! what was used last, `regular.rs` how files of a store are opened.

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
pub mod tls;
pub mod wire;

pub use block::{
    BLOCK_BYTES, BlockAt, BlockHash, ContentId, FileId, HashList, SEGMENT_BLOCKS, Token,
};
