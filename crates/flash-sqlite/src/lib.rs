//! An SQLite extension: databases that live as files in a flash store.
//!
//! `docs/sqlite.md` shows how to load and use it; `DESIGN.md` says why it is built as it is.
//!
//! **Holds:** a VFS for SQLite on top of [`flash::Store`], the locks and the memory that connections of one process
//! share, the entry point of the loadable extension.
//!
//! **Must not know:** the bytes of the store, the bytes of a database, what any SQL means.
//!
//! **Invariants:** no panic crosses the border to C; what was committed is on the device, and what SQLite was told is
//! synced is there too, but for a transaction that has not been committed; a promise of
//! [`device characteristics`](abi::characteristic) is one that the store keeps; an image is open once in a process,
//! and in one process, as long as any connection needs it.
//!
//! **Files:** `abi.rs` SQLite's interface, `extension.rs` entry point and SQL function, `vfs.rs` methods on names,
//! `file.rs` methods on open files, `registry.rs` open images, `image.rs` one of them, `files.rs` its files,
//! `waiting.rs` what waits to be written to them and `files/puts.rs` when it is, `locks.rs` locks and shared memory,
//! `process.rs` what a fork leaves behind, `failure.rs` result codes and messages.

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
