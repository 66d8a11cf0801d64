//! The tests of `bench` from outside, as one program: each file beside this one is a module of it.

mod db;
mod flash;
mod mem;
mod node;
mod stream;
