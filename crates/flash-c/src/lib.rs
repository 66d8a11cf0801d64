//! libkeelflash: the C interface of the flash store, described for its users in `include/keelflash.h`.
//!
//! cbindgen generates the header from the comments here, and the header is committed; `tests/header.rs` compares the
//! two.
//!
//! **Holds:** the functions and constants of the C library, and the tables of its handles.
//!
//! **Must not know:** internals of the store that `flash` does not export, readings, the caller's identity.
//!
//! **Invariants:** No panic crosses the border to C. A handle is a number that is looked up, so a wrong or closed one
//! does no harm. Every pointer is checked for NULL before use. No global lock is held during device operations. The
//! numbers of codes and flags never change their meaning.
//!
//! **Files:** `interface/` the functions (`store.rs` stores, `upkeep.rs` checking, repairing and enlarging them,
//! `file.rs` files, `text.rs` errors and versions), `handles.rs` the tables of stores and files, `failure.rs` codes,
//! `pointer.rs` names, paths and data behind the caller's pointers. What both C libraries need is in `c-interface`.

// The header states the rules for pointers once, instead of at each function.
#![allow(clippy::missing_safety_doc)]

mod failure;
mod handles;
mod interface;
mod pointer;

pub use failure::*;
pub use interface::*;
