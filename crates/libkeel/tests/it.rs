//! The integration tests of `libkeel`, as one program: each file in this directory is a module of it.

mod common;
mod corpus;
mod puts;
