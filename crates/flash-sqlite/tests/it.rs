//! The tests of `flash-sqlite` from outside, as one program: each file beside this one is a module of it.

mod abi;
mod common;
mod costs;
mod crash;
mod errors;
mod restarts;
mod sharing;
mod shell;
mod threads;
