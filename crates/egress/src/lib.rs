//! What leaves the node: readings and derived results on their way upstream, and what is asked for over HTTP.
//!
//! **Holds:** alarms and values that drive actuators on their way out ([`urgent`]); store-and-forward ([`forward`]): a
//! durable cursor in the store for each upstream, the engine that decides what is sent, sent again and given up, and
//! the two ways out, MQTT and HTTP; and the node's HTTP side ([`http`]): values, history, live stream, metrics and the
//! live page. `DESIGN.md` says why, `SPEC.md` says every byte of a cursor's file, `HTTP.md` what is answered.
//!
//! **Must not know:** the bytes of store and log, the controller, the configuration's file, who sends readings.
//!
//! **Invariants:** a cursor moves past a reading only when the upstream has acknowledged it, or when its loss has been
//! counted; what may have been sent beyond the durable cursor is one window at most; memory has limits whatever an
//! upstream or a browser does; nothing they send makes it panic; whoever is slow costs itself, and nothing here slows
//! what comes in.
//!
//! **Files:** `forward/`, `http/` and `urgent/` (list of files in their `mod.rs`), `secret.rs` passwords, `error.rs`.

mod error;
pub mod forward;
pub mod http;
mod secret;
pub mod urgent;

pub use error::Error;
pub use secret::Secret;
