//! Serves a store to many devices at once.
//!
//! `connection.rs` is one connection from its first byte, `requests.rs` what each request does, `writer.rs` what is
//! sent and in which order, `queue.rs` and `task.rs` the lists that the order is made of, `session.rs` a device with
//! all its connections, `admission.rs` who may come in; `tenant.rs` and `learned.rs` what is learned and where it is
//! kept, `names.rs` the paths of a version, `newest.rs` which one is served, `trouble.rs` what is said of a damaged
//! store, `bundles.rs` pieces kept compressed, `shelf.rs` these on the disk; `counters.rs` and `metrics.rs` the
//! numbers, `system.rs` calls of the operating system.

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

/// What is said to whoever runs the server: one line without its end.
pub type Say = Arc<dyn Fn(&str) + Send + Sync>;

/// How a server is set. Each limit is per server unless it says otherwise.
#[derive(Clone)]
pub struct Settings {
    /// The store.
    pub store: PathBuf,
    /// Where to listen; port 0: any.
    pub listen: SocketAddr,
    /// None: no TLS, which is allowed on a loopback address only; all devices are the tenant `local`.
    pub identity: Option<Identity>,
    /// Where metrics are given; None: nowhere.
    pub metrics: Option<SocketAddr>,
    /// How to predict.
    pub predict: Mode,
    /// Blocks of a segment in the mode `paper`, [`SEG_MAX_MIN`](crate::predict::paper::SEG_MAX_MIN) to
    /// [`SEG_MAX_MAX`](crate::predict::paper::SEG_MAX_MAX); above 32 an action is matched at three places.
    pub seg_max: u32,
    /// What is in memory before it is asked for.
    pub provide: Arm,
    /// Segments whose normalised variance is above this are read at the start.
    pub variance_min: f64,
    /// Bytes of content in memory.
    pub memory_bytes_max: u64,
    /// Bytes of compressed pieces in memory.
    pub bundle_bytes_max: u64,
    /// The level of zstd at which pieces are compressed in the background; 3 or lower: not at all.
    pub bundle_level: i32,
    /// Devices at the same time.
    pub clients_max: usize,
    /// Devices at the same time with one certificate: else one certificate could take the places of all. Without TLS
    /// nobody can be told from others, and all of them are on this machine: this does not count then.
    pub clients_of_certificate_max: usize,
    /// Connections of a device.
    pub connections_max: usize,
    /// Connections that have not said who they are. When there are more, the oldest one has to go.
    pub half_open_max: usize,
    /// Tenants in memory.
    pub tenants_max: usize,
    /// Tasks of a device at the same time.
    pub tasks_max: usize,
    /// Requests of a connection that wait; no more are read then.
    pub requests_max: usize,
    /// Blocks of `Fetch` of a connection that wait; more are refused.
    pub fetch_blocks_max: usize,
    /// How long a connection has until it has said who it is.
    pub handshake_deadline: Duration,
    /// How long a message may take from its first byte to its last.
    pub message_deadline: Duration,
    /// How long a device may take nothing of what is sent.
    pub write_deadline: Duration,
    /// How long a device may say nothing.
    pub idle_deadline: Duration,
    /// How long after a change learned actions are written.
    pub save_after: Duration,
    /// Bytes of the kernel's send buffer of a connection; None: as the kernel thinks fit.
    pub send_buffer_bytes: Option<u32>,
    /// Where lines for whoever runs the server go.
    pub say: Say,
}

impl Settings {
    /// Of a store, at an address, without TLS, and everything else as it is by default.
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

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Without TLS anybody who reaches the address gets everything.
    #[error(
        "{0} is not a loopback address; without an identity a server listens on this machine alone"
    )]
    NotLoopback(SocketAddr),
    /// The address cannot be listened on.
    #[error("{address}: {source}")]
    Listen {
        /// Which.
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
    /// A thread ended that should not.
    #[error("a thread of the server failed")]
    Thread,
}

impl ServerError {
    /// The one code this error maps to.
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

/// What all connections share.
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
    /// Nobody else changes what was learned as long as this is there; None: it is not saved.
    lock: Option<learned::Lock>,
}

impl State {
    /// Milliseconds since the start.
    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn say(&self, line: &str) {
        (self.settings.say)(line);
    }

    /// Says what is wrong with the store, each file of it once in a minute.
    fn say_trouble(&self, trouble: &Trouble) {
        let store = &self.settings.store;
        if let Some(line) = self.troubles.line(store, trouble, self.now_ms()) {
            self.say(&line);
        }
    }

    /// Tells whoever runs the server when the list of devices cannot be used any more, or can be again.
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

/// What can be asked of a server while it runs.
#[derive(Clone)]
pub struct Watch(Arc<State>);

impl Watch {
    /// Its counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.0.counters
    }

    /// Those of what it holds in memory.
    #[must_use]
    pub fn provider(&self) -> ProviderCounters {
        self.0.provider.counters()
    }

    /// All as text for Prometheus.
    #[must_use]
    pub fn metrics(&self) -> String {
        metrics::text(&self.0)
    }
}

/// How often time passes for what has no deadline of its own.
const TICK: Duration = Duration::from_millis(250);

/// Descriptors of a server beside connections and packs, at most.
const OTHER_DESCRIPTORS: u64 = 64;

impl Server {
    /// Opens the store, reads into memory what is read ahead, and listens.
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

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Where it gives metrics.
    #[must_use]
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref()?.local_addr().ok()
    }

    /// The version that it began with. Newer ones are served as soon as they are published.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// To look at it while it runs.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch(Arc::clone(&self.state))
    }

    /// Serves until `shutdown` is there; then ends all connections and saves what was learned.
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
        // With each connection its tasks end, and what they taught is saved with the rest.
        connections.shutdown().await;
        tasks.shutdown().await;
        let saving = Arc::clone(&state);
        let saved = tokio::task::spawn_blocking(move || saving.tenants.save(&saving));
        saved.await.map_err(|_| ServerError::Thread)
    }
}

/// Descriptors that a server may need: a connection of each device, those that have not said who they are, the packs of
/// the store, and a few. Further connections of a device wait to be accepted when there are no more.
fn descriptors(settings: &Settings) -> u64 {
    let connections = settings.clients_max.saturating_add(settings.half_open_max);
    (connections as u64).saturating_add(PACKS_MAX as u64 + OTHER_DESCRIPTORS)
}

async fn listen(address: SocketAddr) -> Result<TcpListener, ServerError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| ServerError::Listen { address, source })
}

/// Opens what a server needs, and takes into memory what the tenants of the newest version have learned.
fn open(settings: Settings) -> Result<(State, u64), ServerError> {
    let store = Arc::new(Store::open(&settings.store)?);
    // Before anything is begun: without a version there is nothing to serve.
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
    // On the disk as much as in memory.
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
    // Devices that greet find it again in the store, which keeps the last ones in memory.
    let published = state.newest().sound?;
    match learned::tenants(&state.settings.store, state.settings.predict) {
        Ok(names) => {
            for name in names.iter().take(state.settings.tenants_max) {
                state.tenants.get(&state, name, &published);
            }
        }
        Err(error) => state.say(&error.with_remedy()),
    }
    let actions = state.tenants.actions(published.version);
    let variance_min = state.settings.variance_min;
    state.provider.prepare(&published, &actions, variance_min);
    Ok((state, published.version))
}

/// Lets time pass: for predictors, and for what is to be saved.
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
                // What is damaged or sound again is said before a device asks; where nothing can be served, then.
                saving.newest();
            };
            tokio::task::spawn_blocking(work).await.ok();
        }
    }
}
