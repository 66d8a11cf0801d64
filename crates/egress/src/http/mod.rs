//! The HTTP side of a node: values, history, a live stream, health, metrics, the live page, and readings that clients
//! write.
//!
//! **Holds:** the listener with its limits, access control, every route, the hub that encodes each update once for all
//! readers, the table of metrics, the page, bodies that clients send. `HTTP.md` gives the reasons, `docs/http.md` what
//! users see.
//!
//! **Must not know:** what the figures of a node mean beyond their names in `keel status --json`, bytes on flash, the
//! controller, configuration files. Nor what a line of a body says: the owner of the intake takes it.
//!
//! **Invariants:** everything except reads of history runs on the caller's one network thread, in slices, and never
//! blocks. Every input and every queue has a limit. What exceeds a limit is refused or dropped, counted by reason, and
//! reported. Nothing can be written unless the operator permits it. Lines are acknowledged only once they are durable.
//! While the stream has no reader, the hub reads no values.
//!
//! **Files:** `options.rs`, `counters.rs`, `listener.rs` connections and their limits, `limits.rs` limits of requests,
//! streams and queries, `patient.rs` stalled writes, `access.rs` tokens and names, `app.rs` the state of all requests,
//! `routes.rs` from a request to an answer, `answer.rs` error answers, `query.rs` input from clients, `values.rs`,
//! `history.rs`, `points.rs` down-sampling, `hub.rs`, `reader.rs` and `stream.rs` the live stream, `status.rs`,
//! `metrics.rs` with its table `metric_table.rs`, `page.rs`, `write.rs` lines that clients send, `write_queue.rs` their
//! way to the intake, `unpack.rs` gzip.

mod access;
mod answer;
mod app;
mod counters;
mod history;
mod hub;
mod limits;
mod listener;
mod metric_table;
mod metrics;
mod options;
mod page;
#[cfg(test)]
mod parameter_tests;
mod patient;
mod points;
pub mod query;
mod reader;
mod routes;
mod source;
mod status;
mod stream;
pub mod unpack;
mod values;
mod write;
mod write_queue;

pub use access::{TOKEN_LETTERS_MIN, Token, TokenError, Tokens};
pub use counters::{Counters, HttpFigures};
pub use listener::{Bound, Running, bind};
pub use metric_table::{Kind, METRICS, Metric, metric_names};
pub use metrics::text as metrics_text;
pub use options::{HttpOptions, OptionError, WriteLimits};
pub use page::has_page;
pub use source::Source;
pub use status::{Asker, Question, Questions, State, Status, status_channel};
pub use write_queue::{
    RefusedLine, Taken, TimeUnit, WriteRequest, Writer, Writes, Written, write_channel,
};
