//! The integration tests of `bench` as one program: each file in this folder is a module of it.

mod db;
mod flash;
mod mem;
mod node;
mod stream;
