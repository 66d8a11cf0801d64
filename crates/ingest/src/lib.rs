//! Sources of readings: brokers, senders of lines, and a recorded trace, replayed at any speed.
//!
//! **Holds:** the parser of a trace ([`trace`]), the trace of the burning office block that is bundled with
//! the project ([`trace::bundled`]), the replayer that yields readings at the times of the trace
//! ([`replay`]), and the step from a reading to an object of the database ([`sink`]); the way from outside bytes to
//! readings that all network sources share ([`intake`]), patterns over keys ([`pattern`]); line protocol and its
//! sockets ([`line`], semantics in `LINE.md`); the MQTT source, which
//! acknowledges a message once its readings are on flash ([`mqtt`], semantics in `MQTT.md`), and how far the log is
//! durable for tasks that must not block ([`durable`]).
//!
//! **Must not know:** the file store and its format, the controller, HTTP.
//!
//! **Invariants:** a malformed line affects that line alone and is counted by its reason; no input makes the parser
//! panic or hold more than its stated limits; readings are yielded in the order of the trace and never before their
//! time; the bytes stored for a reading give back exactly the number that was parsed; a refused message, line or
//! reading affects nothing else and is counted by its reason.
//!
//! **Files:** `trace/mod.rs` types, limits and the bundled trace, `trace/line.rs` bounded lines and CSV
//! fields, `trace/sensors.rs` and `trace/readings.rs` the two tables, `replay.rs` the replayer, `sink.rs` the
//! way into the database, `error.rs`, `intake/` decoding, keys, limits and counts, `pattern.rs`, `line/` grammar and
//! sockets, `mqtt/` one session with a broker (lists of files in the three `mod.rs`), `durable.rs` the thread that
//! waits for the log.

pub mod durable;
mod error;
pub mod intake;
pub mod line;
pub mod mqtt;
pub mod pattern;
pub mod replay;
pub mod sink;
pub mod trace;

pub use error::Error;
