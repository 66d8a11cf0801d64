//! What leaves the node: readings and derived results for upstreams, and answers over HTTP.
//!
//! **Holds:** the delivery of alarms and of values that drive actuators ([`urgent`]); store-and-forward ([`forward`]):
//! a durable cursor in the store for each upstream, the engine that decides what is sent, sent again and given up, and
//! the two protocols, MQTT and HTTP; and the node's HTTP side ([`http`]): values, history, live stream, metrics and the
//! live page. `DESIGN.md` gives the reasons, `SPEC.md` defines every byte of a cursor's file, `HTTP.md` the answers.
//!
//! **Must not know:** the bytes of store and log, the controller, the configuration file, the sources of readings.
//!
//! **Invariants:** a cursor moves past a reading only when the upstream has acknowledged it, or when its loss has been
//! counted. At most one window of readings may have been sent beyond the durable cursor. Memory is bounded for any
//! behaviour of upstreams and browsers, and no input causes a panic. A slow peer delays only itself, and nothing here
//! slows the intake of readings.
//!
//! **Files:** `forward/`, `http/` and `urgent/` (list of files in their `mod.rs`), `secret.rs` passwords, `error.rs`.

mod error;
pub mod forward;
pub mod http;
mod secret;
pub mod urgent;

pub use error::Error;
pub use secret::Secret;
