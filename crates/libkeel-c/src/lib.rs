//! libkeel.so: what C programs outside the node use of it, described for its users in `include/keel.h`.
//!
//! The header is made by cbindgen from the comments here and committed; `tests/header.rs` compares the two.
//!
//! **Holds:** the functions and constants of the C library, and the tables that its handles lead to.
//!
//! **Must not know:** anything of a node that `libkeel` does not show, who calls.
//!
//! **Invariants:** no panic crosses the border; a handle is a number that is looked up, so a wrong or closed one does
//! no harm; every pointer is checked for NULL before use; no lock of a table is held while a node is waited for or a
//! function of the caller's runs; the numbers of codes and flags never change their meaning.
//!
//! **Files:** `interface/` the functions (`node.rs` nodes, `key.rs` keys and their values, `ticket.rs` puts, `task.rs`
//! periodic tasks, `text.rs` errors and versions), `handles.rs` the tables, `failure.rs` codes and the text of the last
//! error, `pointer.rs` what comes in through pointers.

// The rules for pointers stand once, in the header, instead of at each function.
#![allow(clippy::missing_safety_doc)]

mod failure;
mod handles;
mod interface;
mod pointer;

pub use failure::*;
pub use interface::*;
