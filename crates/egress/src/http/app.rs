//! The state that all requests share.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::counters::Counters;
use super::hub::Hub;
use super::limits::{HistoryPermits, Pace, Places};
use super::options::HttpOptions;
use super::source::Source;
use super::status::Asker;
use super::write_queue::Writer;

/// The state from which requests are answered.
pub(crate) struct App {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) options: HttpOptions,
    pub(crate) counters: Arc<Counters>,
    pub(crate) asker: Asker,
    pub(crate) hub: Arc<Hub>,
    pub(crate) places: Arc<Places>,
    pub(crate) history_permits: HistoryPermits,
    /// Places for bodies.
    pub(crate) bodies: Arc<Semaphore>,
    pub(crate) writer: Writer,
    pub(crate) pace: Pace,
    /// The pace of clients that may write. It is their own, so that clients without a token cannot use it up.
    pub(crate) write_pace: Pace,
    /// The pace of handshakes: each costs the network thread a signature.
    pub(crate) handshake_pace: Pace,
}
