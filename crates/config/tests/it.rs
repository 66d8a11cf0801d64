//! The integration tests of `config`, as one program: each file in this directory is a module of it.

mod fuzz_corpus;
