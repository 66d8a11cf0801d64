//! An SQLite extension: databases that live as files in a flash store.
//!
//! `docs/sqlite.md` shows how to load and use it; `DESIGN.md` gives the reasons for the design.
//!
//! **Holds:** a VFS for SQLite on top of [`flash::Store`], the locks and the shared memory of the connections of one
//! process, the entry point of the loadable extension.
//!
//! **Must not know:** the bytes of the store, the bytes of a database, the meaning of any SQL.
//!
//! **Invariants:** no panic crosses the border to C. Committed data is on the device, and so is data that SQLite was
//! told is synced, except for an uncommitted transaction. The store keeps every promise of [`device
//! characteristics`](abi::characteristic). An image is open once in a process, and in one process only, as long as any
//! connection needs it.
//!
//! **Files:** `abi.rs` SQLite's interface, `extension.rs` entry point and SQL function, `vfs.rs` a registered VFS,
//! `name_methods.rs` its methods on names, `file.rs` those on open files, `registry.rs` open images, `image.rs` one of
//! them, `files.rs` its files, `node.rs` the name and use of a file, `waiting.rs` the waiting writes and
//! `files/puts.rs` when they go to the store, `locks.rs` locks and shared memory, `process.rs` the state after a fork,
//! `failure.rs` result codes and messages.

pub mod abi;
mod extension;
mod failure;
mod file;
mod files;
mod image;
mod locks;
mod name_methods;
mod node;
mod process;
mod registry;
mod vfs;
mod waiting;

pub use extension::sqlite3_keelsqlite_init;
pub use files::OPEN_FILES_MAX;
pub use image::{FileImages, Images};
pub use name_methods::register;
pub use registry::IMAGES_MAX;
pub use vfs::VFS_NAME;
