//! The tests of `mem` from outside, as one program: each file beside this one is a module of it.

mod fuzz_corpus;
mod golden;
mod last_file;
mod processes;
