//! Store-and-forward: forwards readings of the log to upstreams, each with a durable cursor.
//!
//! **Files:** `options.rs` options of an upstream, `rules.rs` which readings go, `encode.rs` their format, `engine.rs`
//! what is sent, sent again and passed over, `cursor.rs` the record of the progress, `place.rs` its file in the store,
//! `forwarder.rs` the engine at work on a database, `figures.rs` counters, `backoff.rs` waits, `context.rs` the state
//! of one upstream, `run.rs` its connections one after the other, `wire.rs` a connection, `mqtt/` and `post.rs` the two
//! protocols, `forwarding.rs` the thread that runs them all.

pub(crate) mod backoff;
mod context;
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

pub use encode::has_line_form;
pub use figures::{Counters, Figures, Refusal, UpstreamState};
pub use forwarder::Forwarder;
pub use forwarding::{Forwarding, Prepared, Upstream};
pub use options::{
    Begin, Format, KeyRule, Late, MqttVersion, Order, Target, TimeUnit, UpstreamOptions,
    WINDOW_READINGS,
};
