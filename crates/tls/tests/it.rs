//! The integration tests of `tls`, as one program: each file in this directory is a module of it.

mod authority;
mod client;
mod front;
mod identity;
mod server;
