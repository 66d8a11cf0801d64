//! TLS for the sockets of the node: certificates and keys by file, and limits of handshakes.
//!
//! **Holds:** the client's side for brokers and upstreams ([`Client`]), the server's side for the HTTP listener
//! ([`Server`]), the phases of an attempt to connect ([`Progress`]), and the reasons of failures in words ([`Error`],
//! [`reason()`]).
//!
//! **Must not know:** what is said over a connection, the configuration file, the node's log.
//!
//! **Invariants:** no connection is made without a check of the peer's certificate: its authority, its dates and its
//! name. A changed file is read again before the next handshake; connections that exist are not touched. A handshake
//! ends within [`HANDSHAKE_TIME_MAX`], and at most [`HANDSHAKES_MAX`] run at once. Nothing here shows the content of a
//! key file. Every file has a limit of its size.
//!
//! **Versions.** A client offers TLS 1.3 and 1.2, because many brokers have no other. The server takes 1.3 alone.
//! Sessions are never resumed: a resumed session would skip the check of a certificate.
//!
//! **Files:** `client.rs`, `server.rs`, `files.rs` certificates and keys, `places.rs` how many handshakes run at once,
//! `progress.rs` the phases of an attempt to connect, `reason.rs` failures in words,
//! `wall.rs` the time by which certificates are judged, `error.rs`.

mod acceptance;
mod client;
mod error;
mod files;
mod places;
mod progress;
mod reason;
mod server;
mod wall;

pub use client::{Client, ClientOptions, ClientStream, is_server_name};
pub use error::Error;
pub use files::{Identity, SYSTEM_AUTHORITIES};
pub use progress::{Phase, Progress, with_hint};
pub use reason::reason;
pub use server::{
    HANDSHAKE_TIME_MAX, HANDSHAKES_MAX, Refusal, Server, ServerOptions, ServerStream, has_unread,
};
