//! The state from which a running node serves its clients.

use super::database::{Db, Target};
use super::jobs::Jobs;
use super::key_form::KeyForm;
use super::lifetime::Lifetime;
use super::notify::Notify;
use super::power::PowerWatch;
use super::programs::Programs;
use super::qos::Qos;
use super::region::NodeRegion;
use super::sources::{Ended, Shared};
use super::{alarms, upstreams};
use crate::status::{Sample, Window};
use config::Config;
use ingest::durable::DurableWatch;
use ingest::line::LineState;
use ingest::modbus::DeviceState;
use ingest::mqtt::MqttState;
use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::{Semaphore, watch as latest};

/// Counters of the socket, for the status.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) connections: Cell<u32>,
    pub(crate) connections_refused: Cell<u64>,
    pub(crate) requests: Cell<u64>,
    pub(crate) puts: Cell<u64>,
    pub(crate) watchers: Cell<u32>,
    /// Connections that the system failed to hand over, and the reason of the latest failure.
    pub(crate) listener_failed: Cell<u64>,
    pub(crate) listener_error: RefCell<Option<String>>,
}

/// Adds one to a counter.
pub(crate) fn add(count: &Cell<u64>) {
    count.set(count.get() + 1);
}

/// The state from which clients are served.
pub(crate) struct Node {
    pub(crate) config: RefCell<Config>,
    pub(crate) db: Arc<Db>,
    pub(crate) target: Arc<Target>,
    pub(crate) durable: DurableWatch,
    /// Counts refused readings of all paths.
    pub(crate) intake: Shared,
    /// Becomes true when the node stops.
    pub(crate) stop: latest::Receiver<bool>,
    pub(crate) history_reads: Semaphore,
    pub(crate) backups: Semaphore,
    pub(crate) counters: Counters,
    /// Why the last reload was refused; `None` after one that succeeded.
    pub(crate) reload_error: RefCell<Option<String>>,
    /// What `{tags}` of templates stands for.
    pub(crate) key_form: KeyForm,
    /// Which declared keys could not be made; `None` once they exist.
    pub(crate) declare_error: RefCell<Option<String>>,
    /// Keys of the configuration that take effect at the next start.
    pub(crate) pending_restart: RefCell<Vec<&'static str>>,
    pub(crate) figures: Figures,
    /// Tasks, and how well they meet their deadlines.
    pub(crate) qos: Qos,
    /// Jobs that the node starts.
    pub(crate) jobs: Jobs,
    /// The board's power sensors.
    pub(crate) power: PowerWatch,
    /// Programs that the node keeps running.
    pub(crate) programs: Programs,
    pub(crate) notify: Notify,
}

impl Node {
    /// Returns which part of the configuration is not in force, and why.
    pub(crate) fn config_error(&self) -> Option<String> {
        let refused = self.reload_error.borrow().clone();
        refused.or_else(|| self.declare_error.borrow().clone())
    }
}

/// The sources of a node's figures, besides the node itself.
pub(crate) struct Figures {
    pub(crate) lifetime: Arc<Lifetime>,
    pub(crate) config_file: PathBuf,
    pub(crate) capacity_bytes: u64,
    pub(crate) is_direct: bool,
    pub(crate) queue_bytes_max: u64,
    pub(crate) line: Arc<LineState>,
    pub(crate) mqtt: Option<Arc<MqttState>>,
    /// One for each device of the configuration.
    pub(crate) modbus: Vec<Arc<DeviceState>>,
    /// Addresses and paths of the line protocol, and the limit of simultaneous connections.
    pub(crate) listen: Vec<String>,
    pub(crate) line_connections_max: u32,
    pub(crate) sources_ended: Ended,
    pub(crate) window: RefCell<Window>,
    pub(crate) region: Option<Arc<NodeRegion>>,
    pub(crate) upstreams: upstreams::Shown,
    pub(crate) alarms: alarms::Shown,
    /// Cost bounds of calls on the store.
    pub(crate) bounds: flash::Bounds,
    /// The HTTP side, if one is configured.
    pub(crate) http: Option<egress::http::Running>,
    pub(crate) http_unusable: Option<String>,
}

impl Figures {
    /// Returns a window that begins now, with these counters.
    pub(crate) fn window(begun: Sample) -> RefCell<Window> {
        RefCell::new(Window::new(begun))
    }
}
