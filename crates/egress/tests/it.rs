//! The tests of `egress` from outside, as one program: each file beside this one is a module of it.

mod common;
mod cursor;
mod forward_crash;
mod forward_day;
mod forward_edges;
mod fuzz_corpus;
mod outbox;
