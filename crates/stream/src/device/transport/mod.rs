//! The transport part: the connections to the server, and what is known of the line and of the server.
//!
//! **Must not know:** why something is requested, the buffer, the cache.
//!
//! **Files:** `network.rs` all connections, `connection.rs` one of them, `exchange.rs` answers that a caller waits for,
//! `greet.rs` the handshake, `failure.rs` why there is no connection.

mod connection;
mod exchange;
mod failure;
mod greet;
mod network;

pub use failure::{FailureKind, ServerFailure};

pub(super) use connection::{Connection, InFlight, Quiet};
pub(super) use exchange::Exchange;
pub(super) use failure::{Ended, said_of};
pub(super) use greet::{Greeted, Incoming, greet};
pub(super) use network::{CONNECT_MAX, Transport};
