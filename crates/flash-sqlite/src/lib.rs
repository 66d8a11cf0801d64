//! An SQLite extension: databases that live as files in a flash store.
//!
//! `docs/sqlite.md` shows how to load and use it; `DESIGN.md` gives the reasons for the design.
//!
//! **Holds:** a VFS for SQLite on top of [`flash::Store`], the locks and the shared memory of the connections of one
//! process, the entry point of the loadable extension.
//!
//! **Must not know:** the bytes of the store, the bytes of a database, the meaning of any SQL.
//!
//! **Invariants:** no panic crosses the border to C; committed data is on the device, and so is data that SQLite was
//! told is synced, except for an uncommitted transaction; the store keeps every promise of [`device
//! characteristics`](abi::characteristic); an image is open once in a process, and in one process only, as long as any
//! connection needs it.
//!
//! **Files:** `abi.rs` SQLite's interface, `extension.rs` entry point and SQL function, `vfs.rs` methods on names,
//! `file.rs` methods on open files, `registry.rs` open images, `image.rs` one of them, `files.rs` its files,
//! `waiting.rs` the waiting writes and `files/puts.rs` when they go to the store, `locks.rs` locks and shared memory,
//! `process.rs` the state after a fork, `failure.rs` result codes and messages.

pub mod abi;
mod extension;
mod failure;
mod file;
mod files;
mod image;
mod locks;
mod process;
mod registry;
mod vfs;
mod waiting;

pub use extension::sqlite3_keelsqlite_init;
pub use image::{FileImages, Images, OPEN_FILES_MAX};
pub use registry::IMAGES_MAX;
pub use vfs::{VFS_NAME, register};
