//! The tests of `mem-preload` from outside, as one program: each file beside this one is a module of it.

mod calls;
mod large;
mod lend;
mod programs;
mod reading;
mod support;
mod symbols;
