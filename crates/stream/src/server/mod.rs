//! Serves a store to many devices concurrently.
//!
//! `connection.rs` is one connection from its first byte, `requests.rs` the handlers of requests, `writer.rs` what is
//! sent and in which order, `queue.rs` and `task.rs` the lists behind that order, `session.rs` a device with all its
//! connections, `admission.rs` who is admitted; `tenant.rs` and `learned.rs` learned actions and their files,
//! `names.rs` the paths of a version, `newest.rs` which version is served, `trouble.rs` reports about a damaged store,
//! `bundles.rs` a cache of compressed pieces, `shelf.rs` these on the disk; `counters.rs` and `metrics.rs` the numbers,
//! `system.rs` system calls.

mod admission;
mod bundles;
mod connection;
mod counters;
pub mod learned;
mod metrics;
mod names;
mod newest;
mod queue;
mod requests;
mod session;
mod shelf;
mod system;
mod task;
mod tenant;
mod trouble;
mod writer;

pub use crate::tls::Identity;
pub use counters::{Counters, Reason};
pub use names::Names;

use crate::predict::Mode;
use crate::predict::paper::SEG_MAX;
use crate::provide::{Arm, Provider, ProviderCounters};
use crate::store::{PACKS_MAX, Store, StoreError};
use admission::Admission;
use base::error::Code;
use bundles::{Bundles, Improver};
use shelf::Shelf;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tenant::Tenants;
use tokio::net::TcpListener;
use trouble::{Trouble, Troubles};

/// Writes to the operator: one line without its end.
pub type Say = Arc<dyn Fn(&str) + Send + Sync>;

/// The settings of a server. Each limit is per server unless it says otherwise.
#[derive(Clone)]
pub struct Settings {
    /// The store.
    pub store: PathBuf,
    /// The address to listen on; port 0 means any port.
    pub listen: SocketAddr,
    /// `None` means no TLS, which is allowed on a loopback address only. All devices are then the tenant `local`.
    pub identity: Option<Identity>,
    /// The address for metrics; `None` if they are not served.
    pub metrics: Option<SocketAddr>,
    /// The prediction mode.
    pub predict: Mode,
    /// The number of blocks in a segment in the mode `paper`, [`SEG_MAX_MIN`](crate::predict::paper::SEG_MAX_MIN) to
    /// [`SEG_MAX_MAX`](crate::predict::paper::SEG_MAX_MAX); above 32 an action is matched at three places.
    pub seg_max: u32,
    /// What is loaded into memory before it is requested.
    pub provide: Arm,
    /// Segments with a normalised variance above this are read at the start.
    pub variance_min: f64,
    /// The maximum size of content in memory, in bytes.
    pub memory_bytes_max: u64,
    /// The maximum size of compressed pieces in memory, in bytes.
    pub bundle_bytes_max: u64,
    /// The zstd level for compression of pieces in the background; 3 or lower disables it.
    pub bundle_level: i32,
    /// The maximum number of devices at the same time.
    pub clients_max: usize,
    /// The maximum number of devices at the same time with one certificate, so that one certificate cannot take all
    /// places. Without TLS it does not apply: devices cannot be told apart then, and all of them are on this machine.
    pub clients_of_certificate_max: usize,
    /// The maximum number of connections of a device.
    pub connections_max: usize,
    /// The maximum number of connections without a complete `Hello`. When there are more, the oldest one is closed.
    pub half_open_max: usize,
    /// The maximum number of tenants in memory.
    pub tenants_max: usize,
    /// The maximum number of tasks of a device at the same time.
    pub tasks_max: usize,
    /// The maximum number of waiting requests of a connection; the server then reads no more.
    pub requests_max: usize,
    /// The maximum number of waiting blocks of `Fetch` of a connection; more are refused.
    pub fetch_blocks_max: usize,
    /// The deadline of a new connection for TLS and `Hello`.
    pub handshake_deadline: Duration,
    /// The maximum time between the first and the last byte of a message.
    pub message_deadline: Duration,
    /// The maximum time for which a device may read nothing of what is sent.
    pub write_deadline: Duration,
    /// The maximum time for which a device may send nothing.
    pub idle_deadline: Duration,
    /// The delay between a change and writing learned actions.
    pub save_after: Duration,
    /// The size of the kernel's send buffer of a connection, in bytes; `None` for the kernel's default.
    pub send_buffer_bytes: Option<u32>,
    /// Receives the lines for the operator.
    pub say: Say,
}

impl Settings {
    /// Returns settings for a store and an address, without TLS, and with the defaults for everything else.
    #[must_use]
    pub fn new(store: PathBuf, listen: SocketAddr) -> Self {
        Self {
            store,
            listen,
            identity: None,
            metrics: None,
            predict: Mode::default(),
            seg_max: SEG_MAX,
            provide: Arm::default(),
            variance_min: 1.0,
            memory_bytes_max: 192 << 20,
            bundle_bytes_max: 64 << 20,
            bundle_level: 19,
            clients_max: 1024,
            clients_of_certificate_max: 16,
            connections_max: 16,
            half_open_max: 256,
            tenants_max: 256,
            tasks_max: 64,
            requests_max: 256,
            fetch_blocks_max: 1 << 16,
            handshake_deadline: Duration::from_secs(5),
            message_deadline: Duration::from_secs(30),
            write_deadline: Duration::from_secs(60),
            idle_deadline: Duration::from_secs(600),
            save_after: Duration::from_secs(2),
            send_buffer_bytes: None,
            say: Arc::new(|_| {}),
        }
    }
}

/// Why a server cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Without TLS, any host that reaches the address could read everything.
    #[error(
        "{0} is not a loopback address; without an identity a server listens on this machine alone"
    )]
    NotLoopback(SocketAddr),
    /// The server cannot listen on the address.
    #[error("{address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The system does not allow as many open files as the limits of the settings need.
    #[error("{needed} open files are needed for so many devices, and the system allows {allowed}")]
    Descriptors {
        /// For connections and packs.
        needed: u64,
        /// The hard limit.
        allowed: u64,
    },
    /// A thread of the server failed.
    #[error("a thread of the server failed")]
    Thread,
}

impl ServerError {
    /// Returns the error code that this error maps to.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Store(error) => error.code(),
            Self::NotLoopback(_) => Code::Denied,
            Self::Listen { source, .. } => Code::from_io(source),
            Self::Descriptors { .. } => Code::Full,
            Self::Thread => Code::Io,
        }
    }
}

/// State shared by all connections.
pub(crate) struct State {
    settings: Settings,
    store: Arc<Store>,
    provider: Arc<Provider>,
    bundles: Arc<Bundles>,
    improver: Improver,
    tenants: Tenants,
    admission: Admission,
    counters: Arc<Counters>,
    troubles: Troubles,
    newest_said: newest::Said,
    started: Instant,
    /// Prevents other processes from changing learned actions. `None` if learned actions are not saved.
    lock: Option<learned::Lock>,
}

impl State {
    /// Returns the time since the start, in milliseconds.
    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn say(&self, line: &str) {
        (self.settings.say)(line);
    }

    /// Logs a problem of the store, at most once a minute for each file.
    fn say_trouble(&self, trouble: &Trouble) {
        let store = &self.settings.store;
        if let Some(line) = self.troubles.line(store, trouble, self.now_ms()) {
            self.say(&line);
        }
    }

    /// Tells the operator when the list of devices becomes unusable, or usable again.
    async fn look_at_devices(&self) {
        let Some(identity) = &self.settings.identity else {
            return;
        };
        let devices = Arc::clone(&identity.devices);
        let news = tokio::task::spawn_blocking(move || devices.news()).await;
        if let Ok(Some(news)) = news {
            self.say(&news);
        }
    }
}

/// A server that listens.
pub struct Server {
    state: Arc<State>,
    listener: TcpListener,
    metrics: Option<TcpListener>,
    version: u64,
}

/// Access to the numbers of a running server.
#[derive(Clone)]
pub struct Watch(Arc<State>);

impl Watch {
    /// Returns its counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.0.counters
    }

    /// Returns the counters of the provider.
    #[must_use]
    pub fn provider(&self) -> ProviderCounters {
        self.0.provider.counters()
    }

    /// Returns all numbers as text for Prometheus.
    #[must_use]
    pub fn metrics(&self) -> String {
        metrics::text(&self.0)
    }
}

/// The interval of periodic work that has no deadline of its own.
const TICK: Duration = Duration::from_millis(250);

/// The maximum number of descriptors that a server uses beside connections and packs.
const OTHER_DESCRIPTORS: u64 = 64;

impl Server {
    /// Opens the store, reads ahead into memory, and listens.
    ///
    /// # Errors
    /// The store or an address cannot be used.
    pub async fn bind(settings: Settings) -> Result<Self, ServerError> {
        if settings.identity.is_none() && !settings.listen.ip().is_loopback() {
            return Err(ServerError::NotLoopback(settings.listen));
        }
        let needed = descriptors(&settings);
        if let Some(allowed) = system::raise_limit_of_descriptors()
            && allowed < needed
        {
            return Err(ServerError::Descriptors { needed, allowed });
        }
        let listener = listen(settings.listen).await?;
        let metrics = match settings.metrics {
            Some(address) => Some(listen(address).await?),
            None => None,
        };
        let opened = tokio::task::spawn_blocking(move || open(settings)).await;
        let (state, version) = opened.map_err(|_| ServerError::Thread)??;
        Ok(Self {
            state: Arc::new(state),
            listener,
            metrics,
            version,
        })
    }

    /// Returns the address it listens on.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Returns the address of the metrics.
    #[must_use]
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref()?.local_addr().ok()
    }

    /// Returns the version that it started with. Newer ones are served as soon as they are published.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns access to its numbers while it runs.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch(Arc::clone(&self.state))
    }

    /// Serves until `shutdown` completes. Then ends all connections and saves learned actions.
    ///
    /// # Errors
    /// A thread failed while saving.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), ServerError> {
        let Self {
            state,
            listener,
            metrics,
            ..
        } = self;
        let mut tasks = tokio::task::JoinSet::new();
        if let Some(metrics) = metrics {
            tasks.spawn(metrics::serve(Arc::clone(&state), metrics));
        }
        tasks.spawn(keep(Arc::clone(&state)));
        let mut connections = tokio::task::JoinSet::new();
        tokio::select! {
            () = connection::accept(&state, &listener, &mut connections) => {}
            () = shutdown => {}
        }
        drop(listener);
        // A connection ends its tasks; what they taught is saved with the rest.
        connections.shutdown().await;
        tasks.shutdown().await;
        let saving = Arc::clone(&state);
        let saved = tokio::task::spawn_blocking(move || saving.tenants.save(&saving));
        saved.await.map_err(|_| ServerError::Thread)
    }
}

/// Returns the number of descriptors that a server may need: a connection of each device, connections without `Hello`,
/// the packs of the store, and a few more. If none are left, further connections of a device wait to be accepted.
fn descriptors(settings: &Settings) -> u64 {
    let connections = settings.clients_max.saturating_add(settings.half_open_max);
    (connections as u64).saturating_add(PACKS_MAX as u64 + OTHER_DESCRIPTORS)
}

async fn listen(address: SocketAddr) -> Result<TcpListener, ServerError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| ServerError::Listen { address, source })
}

/// Opens what a server needs, and loads the learned actions of the tenants of the newest version.
fn open(settings: Settings) -> Result<(State, u64), ServerError> {
    let store = Arc::new(Store::open(&settings.store)?);
    // Check this first: without a version there is nothing to serve.
    store.newest_sound().sound?;
    let counters = Arc::new(Counters::default());
    let provider = Provider::new(
        Arc::clone(&store),
        settings.provide,
        settings.memory_bytes_max,
    );
    let bundles = Arc::new(Bundles::new(settings.bundle_bytes_max));
    let mut lock = None;
    if settings.predict != Mode::None {
        match learned::Lock::take(&settings.store) {
            Ok(alone) => lock = Some(alone),
            Err(error) => {
                let error = error.with_remedy();
                (settings.say)(&format!("what this server learns is not kept: {error}"));
            }
        }
    }
    // The same limit on the disk as in memory.
    let (bytes_max, level) = (settings.bundle_bytes_max, settings.bundle_level);
    let shelf = Shelf::new(&settings.store, bytes_max, lock.is_some());
    let improver = Improver::start(&bundles, &provider, &counters, shelf, level);
    let state = State {
        lock,
        admission: Admission::default(),
        tenants: Tenants::default(),
        started: Instant::now(),
        settings,
        store,
        provider,
        bundles,
        improver,
        counters,
        troubles: Troubles::default(),
        newest_said: newest::Said::default(),
    };
    // Devices that connect find it again in the store, which caches the last versions.
    let published = state.newest().sound?;
    match learned::tenants(&state.settings.store, state.settings.predict) {
        Ok(names) => {
            for (place, name) in names.iter().enumerate() {
                match place < state.settings.tenants_max {
                    true => drop(state.tenants.get(&state, name, &published)),
                    false => state.tenants.note(name, published.version),
                }
            }
        }
        Err(error) => state.say(&error.with_remedy()),
    }
    let actions = state.tenants.actions(published.version);
    let variance_min = state.settings.variance_min;
    state.provider.prepare(&published, &actions, variance_min);
    Ok((state, published.version))
}

/// Runs the periodic work: ticks of predictors, and saving.
async fn keep(state: Arc<State>) {
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut saved_ms = 0;
    loop {
        tick.tick().await;
        let now_ms = state.now_ms();
        state.tenants.tick(now_ms);
        for line in state.troubles.tick(now_ms) {
            state.say(&line);
        }
        if now_ms - saved_ms >= state.settings.save_after.as_millis() as u64 {
            saved_ms = now_ms;
            state.look_at_devices().await;
            let saving = Arc::clone(&state);
            let work = move || {
                saving.tenants.save(&saving);
                if let Err(error) = saving.store.tidy() {
                    saving.say_trouble(&error.into());
                }
                // Log a change between damaged and sound before a device connects. If nothing can be served, it is
                // logged when a device connects.
                saving.newest();
            };
            tokio::task::spawn_blocking(work).await.ok();
        }
    }
}
