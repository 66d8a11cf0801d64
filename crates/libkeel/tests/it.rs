//! The tests of `libkeel` from outside, as one program: each file beside this one is a module of it.

mod common;
mod corpus;
mod puts;
