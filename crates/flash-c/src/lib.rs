//! libkeelflash: the C interface of the flash store, described for its users in `include/keelflash.h`.
//!
//! The header is made by cbindgen from the comments here and committed; `tests/header.rs` compares the two.
//!
//! **Holds:** the functions and constants of the C library, and the table that its handles lead to.
//!
//! **Must not know:** anything of the store that `flash` does not show, readings, who calls.
//!
//! **Invariants:** no panic crosses the border; a handle is a number that is looked up, so a wrong or closed one
//! does no harm; every pointer is checked for NULL before use; no global lock is held while a device works; the
//! numbers of codes and flags never change their meaning.
//!
//! **Files:** `interface/` the functions (`store.rs` stores, `upkeep.rs` checking, mending and enlarging them,
//! `file.rs` files, `text.rs` errors and versions), `handles.rs` the tables of stores and files, `failure.rs` codes
//! and the text of the last error, `pointer.rs` what comes in through pointers.

// The rules for pointers stand once, in the header, instead of at each function.
#![allow(clippy::missing_safety_doc)]

mod failure;
mod handles;
mod interface;
mod pointer;

pub use failure::*;
pub use interface::*;
