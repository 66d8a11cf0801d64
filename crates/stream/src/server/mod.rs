//! Serves a store to many devices concurrently.
//!
//! **Files:** `settings.rs` and `state.rs` what all connections share, `accept.rs` serves a connection from its first
//! byte, `connection.rs` its state, `requests.rs` the handlers of requests, `writer.rs` what is sent and in which
//! order, `queue.rs` and `task.rs` the lists behind that order, `session.rs` a device with all its connections,
//! `admission.rs` which devices are admitted, `tenant.rs` and `learned.rs` learned actions and their files, `names.rs`
//! the paths of a version, `newest.rs` the log line about the served version, `failure_log.rs` the log lines about a
//! damaged store, `bundles.rs` a cache of compressed pieces, `bundle_files.rs` these on the disk, `counters.rs` and
//! `metrics.rs` the numbers, `system.rs` system calls.

mod accept;
mod admission;
mod bundle_files;
mod bundles;
mod connection;
mod counters;
mod failure_log;
pub mod learned;
mod metrics;
mod names;
mod newest;
mod queue;
mod requests;
mod session;
mod settings;
mod state;
mod system;
mod task;
mod tenant;
mod writer;

pub use crate::tls::Identity;
pub use counters::{Counters, Reason};
pub use names::Names;
pub use settings::{Say, Settings};

use crate::predict::Mode;
use crate::provide::{Provider, ProviderCounters};
use crate::store::{PACKS_MAX, Store, StoreError};
use admission::Admission;
use base::error::Code;
use bundle_files::BundleFiles;
use bundles::{Bundles, Improver};
use failure_log::FailureLog;
use state::State;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tenant::Tenants;
use tokio::net::TcpListener;

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
    #[error("{address}: {}", base::error::io_text(.source))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The system does not allow as many open files as the limits of the settings need.
    #[error(
        "{needed} open files are needed at the limit of devices, and the system allows {allowed}"
    )]
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
            () = accept::accept(&state, &listener, &mut connections) => {}
            () = shutdown => {}
        }
        drop(listener);
        // A connection ends its tasks; what they taught is saved with the rest.
        connections.shutdown().await;
        tasks.shutdown().await;
        let saving = Arc::clone(&state);
        let saved = tokio::task::spawn_blocking(move || saving.tenants.save());
        saved.await.map_err(|_| ServerError::Thread)
    }
}

/// Returns the number of descriptors that a server may need. They are for a connection of each device, connections
/// without `Hello`, the packs of the store, and a few more. If none are left, further connections of a device wait to
/// be accepted.
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
                settings.log(&format!("what this server learns is not kept: {error}"));
            }
        }
    }
    // The same limit on the disk as in memory.
    let (bytes_max, level) = (settings.bundle_bytes_max, settings.bundle_level);
    let files = BundleFiles::new(&settings.store, bytes_max, lock.is_some());
    let improver = Arc::new(Improver::start(
        &bundles, &provider, &counters, files, level,
    ));
    let settings = Arc::new(settings);
    let state = State {
        admission: Admission::default(),
        tenants: Tenants::new(&settings, &improver, &counters, lock),
        started: Instant::now(),
        settings,
        store,
        provider,
        bundles,
        improver,
        counters,
        failures: FailureLog::default(),
        newest_said: newest::Said::default(),
    };
    // Devices that connect find it again in the store, which caches the last versions.
    let published = state.newest().sound?;
    match learned::tenants(&state.settings.store, state.settings.predict) {
        Ok(names) => {
            for (place, name) in names.iter().enumerate() {
                match place < state.settings.tenants_max {
                    true => drop(state.tenants.get(name, &published)),
                    false => state.tenants.note(name, published.version),
                }
            }
        }
        Err(error) => state.settings.log(&error.with_remedy()),
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
        for line in state.failures.tick(now_ms) {
            state.settings.log(&line);
        }
        if now_ms - saved_ms >= state.settings.save_after.as_millis() as u64 {
            saved_ms = now_ms;
            state.look_at_devices().await;
            let saving = Arc::clone(&state);
            let work = move || {
                saving.tenants.save();
                if let Err(error) = saving.store.tidy() {
                    saving.log_failure(&error.into());
                }
                // Log a change between damaged and sound before a device connects. If nothing can be served, it is
                // logged when a device connects.
                saving.newest();
            };
            tokio::task::spawn_blocking(work).await.ok();
        }
    }
}
