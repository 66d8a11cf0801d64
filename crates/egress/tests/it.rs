//! The integration tests of `egress`, as one program: each file in this directory is a module of it.

mod common;
mod cursor;
mod forward_crash;
mod forward_day;
mod forward_edges;
mod forward_http;
mod fuzz_corpus;
mod outbox;
