//! What the C libraries of Evenkeel share.
//!
//! **Holds:** failures and the text of the last one ([`failure`]), checked access through the caller's pointers
//! ([`pointer`]), tables of handles ([`handles`]).
//!
//! **Must not know:** any C function or constant, any object behind a handle, any room but `base`.
//!
//! **Invariants:** No panic leaves [`failure::guard`]. A handle is a number that is looked up and never dereferenced. A
//! pointer is checked for NULL and alignment before use.
//!
//! **Files:** as listed. `tests/common/header.rs` compares a committed header with its source; the tests of both
//! libraries include it.

pub mod failure;
pub mod handles;
pub mod pointer;

pub use failure::Failure;
