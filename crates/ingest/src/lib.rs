//! Sources of readings: brokers, senders of lines, Modbus devices.
//!
//! **Holds:** the way from outside bytes to readings that all network sources share ([`intake`]), patterns over keys
//! ([`pattern`]); line protocol and its sockets ([`line`], semantics in `LINE.md`); the MQTT source, which acknowledges
//! a message once its readings are on flash ([`mqtt`], semantics in `MQTT.md`); the Modbus source, which asks devices
//! ([`modbus`]), and how far the log is durable for tasks that must not block ([`durable`]).
//!
//! **Must not know:** the file store and its format, the controller, HTTP.
//!
//! **Invariants:** no input makes a parser panic or hold more than its stated limits. A refused message, line or
//! reading affects no other one, and is counted by its reason.
//!
//! **Files:** `intake/` decoding, keys, limits and counts, `pattern.rs`, `line/` grammar and sockets, `mqtt/` one
//! session with a broker, `modbus/` devices on TCP and serial lines (lists of files in the four `mod.rs`), `durable.rs`
//! the thread that waits for the log, `error.rs`.

pub mod durable;
mod error;
pub mod intake;
pub mod line;
pub mod modbus;
pub mod mqtt;
pub mod pattern;

pub use error::Error;
