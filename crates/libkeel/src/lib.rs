//! What programs outside the node use of it.
//!
//! **Holds:** the protocol of the node's socket, a blocking connection to it, the word beside the socket that says
//! where values lie. `crates/keel/NODE.md` says every field.
//!
//! **Must not know:** the configuration, the command line, how the node answers, the bytes of a region or of a store.
//!
//! **Invariants:** whatever comes through the socket is checked before it is believed, and nothing of it makes this
//! panic; every wait has an end that its caller gave or that stands in the documentation.
//!
//! **Files:** `protocol/` the messages, `connection.rs` requests and answers one after the other, `whereabouts.rs`
//! where values lie.

pub mod connection;
pub mod protocol;
pub mod whereabouts;
