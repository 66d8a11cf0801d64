//! Store-and-forward: readings of the log on their way to upstreams, each with a durable cursor.
//!
//! **Files:** `options.rs` what an upstream is told, `rules.rs` which readings go, `encode.rs` what they look like,
//! `engine.rs` what is sent, again and passed over, `cursor.rs` the record of how far it is, `place.rs` where that lies
//! in the store, `forwarder.rs` the engine at work on a database, `figures.rs` what is counted, `backoff.rs` waits,
//! `run.rs` one upstream from connection to connection, `wire.rs` a connection, `mqtt/` and `post.rs` the two ways out,
//! `forwarding.rs` the thread that has them all.

pub(crate) mod backoff;
pub mod cursor;
pub(crate) mod encode;
pub mod engine;
pub mod figures;
mod forwarder;
mod forwarding;
pub mod mqtt;
pub mod options;
pub mod place;
pub mod post;
mod rules;
mod run;
pub(crate) mod wire;

pub use figures::{Counters, Figures, Refusal, UpstreamState};
pub use forwarder::Forwarder;
pub use forwarding::{Forwarding, Prepared, Upstream};
pub use options::{
    Begin, Format, KeyRule, Late, MqttVersion, Order, Target, UpstreamOptions, WINDOW_READINGS,
};
