//! libkeel.so: the C library for programs outside the node; `include/keel.h` describes it for its users.
//!
//! cbindgen generates the header from the comments here, and it is committed; `tests/header.rs` compares the two.
//!
//! **Holds:** the functions and constants of the C library, and the tables of its handles.
//!
//! **Must not know:** anything of a node that `libkeel` does not expose, its callers.
//!
//! **Invariants:** No panic crosses the border. A handle is a number that is looked up, so a wrong or closed one does
//! no harm. Every pointer is checked for NULL before use. No lock of a table is held during a wait for a node or during
//! a function of the caller. The numbers of codes and flags never change their meaning.
//!
//! **Files:** `interface/` the functions (`node.rs` nodes, `key.rs` keys and their values, `ticket.rs` puts, `task.rs`
//! periodic tasks, `text.rs` errors and versions), `handles.rs` the tables, `failure.rs` codes, `pointer.rs` texts
//! behind the caller's pointers. What both C libraries need is in `c-interface`.

// The rules for pointers are in the header once, instead of at each function.
#![allow(clippy::missing_safety_doc)]

mod failure;
mod handles;
mod interface;
mod pointer;

pub use failure::*;
pub use interface::*;
