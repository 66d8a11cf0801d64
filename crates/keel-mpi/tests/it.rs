//! The tests of `keel-mpi` from outside, as one program: each file beside this one is a module of it.

mod boards;
mod common;
mod jobs;
mod periodic;
