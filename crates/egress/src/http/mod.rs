//! The HTTP side of a node: values, history, a live stream, health, metrics, and the live page.
//!
//! **Holds:** the listener with its limits, who may ask, every route, the hub that encodes each update once for all
//! who watch, the table of metrics, the page. `HTTP.md` says why, `docs/http.md` what users see.
//!
//! **Must not know:** what the figures of a node mean beyond their names in `keel status --json`, bytes on flash, the
//! controller, configuration files.
//!
//! **Invariants:** everything but reads of history runs on the caller's one network thread, in slices, and waits for
//! nobody; every input and every queue has a limit, and what exceeds it is refused or dropped, counted by reason, and
//! told; nothing can be written through HTTP; without a reader of the stream nothing is looked at.
//!
//! **Files:** `options.rs`, `counters.rs`, `listener.rs` connections and their limits, `patient.rs` writes that get
//! nowhere, `access.rs` tokens and names, `routes.rs` from a request to an answer, `answer.rs` what errors look like,
//! `query.rs` what clients write, `values.rs`, `history.rs`, `points.rs` down-sampling, `hub.rs`, `reader.rs` and
//! `stream.rs` the live stream, `status.rs`, `metrics.rs` with its table `metric_table.rs`, `page.rs`.

mod access;
mod answer;
mod counters;
mod history;
mod hub;
mod listener;
mod metric_table;
mod metrics;
mod options;
mod page;
mod patient;
mod points;
pub mod query;
mod reader;
mod routes;
mod source;
mod status;
mod stream;
mod values;

pub use access::{TOKEN_LETTERS_MIN, Token, TokenError, Tokens};
pub use counters::{Counters, HttpFigures};
pub use listener::{Bound, Running, bind};
pub use metric_table::{Kind, METRICS, Metric, metric_names};
pub use metrics::text as metrics_text;
pub use options::{HttpOptions, OptionError};
pub use page::has_page;
pub use source::Source;
pub use status::{Asker, Question, Questions, State, Status, status_channel};
