//! `keel run`: the node. Sources bring readings into the database, clients ask for them over a Unix socket.
//!
//! **Threads:** the main one runs everything that talks (one runtime: sources, socket, signals); the database's own
//! commits; one announces how far the log is durable; the keeper indexes and deletes; at most
//! [`BLOCKING_THREADS_MAX`] read history. None but the commit thread waits for the device while it holds anything
//! that a put needs.
//!
//! **Files:** `image.rs` the store's image and who holds it, `settings.rs` from the configuration to the options of
//! the rooms, `sources.rs` line protocol and MQTT, `server.rs` the socket, `wire.rs` one connection, `protocol.rs`
//! what is said over it, `session.rs` get, put and status, `watch.rs` and `changes.rs` changes, `history.rs` range
//! reads, `keeper.rs` the keeper, `figures.rs` what the
//! status shows, `clock.rs` the clock with the operator's word, `log.rs` events.
//!
//! **Order of the end:** sources and clients stop reading, what they hold is made durable and acknowledged, the
//! database writes a checkpoint and closes, then the image is free for another node.

mod changes;
mod clock;
mod figures;
mod history;
mod image;
mod keeper;
mod log;
pub(crate) mod protocol;
mod server;
mod session;
mod settings;
mod sources;
mod watch;
mod wire;

use crate::config::{self, Config};
use crate::error::CliError;
use crate::flash_cmd::store_error;
use base::clock::{Clock, SystemClock};
use changes::{Changes, Counted};
use clock::NodeClock;
use db::Database;
use figures::{Figures, Lifetime};
use flash::Store;
use image::{Device, Image};
use ingest::durable::DurableWatch;
use ingest::intake::NodeDestination;
use keeper::Keeper;
use protocol::{Failure, Kind};
use sources::{Plan, Sources};
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Semaphore, watch as latest};
use tokio::task::LocalSet;

/// The database of a node.
pub(crate) type Db = Database<Store<Device>>;

/// Where its sources put readings.
pub(crate) type Target = Counted<NodeDestination<Store<Device>>>;

/// Threads that read history.
const BLOCKING_THREADS_MAX: usize = 2;

/// Reads of history that hold memory at once; others wait for their turn.
const HISTORY_READS_MAX: usize = 4;

/// How long the end waits for sources and clients; what they have not acknowledged by then, they will send again.
const GRACE: Duration = Duration::from_millis(1_000);

/// How long the end waits for those who do not keep to it.
const GRACE_MAX: Duration = Duration::from_millis(1_300);

/// What the socket counts, for the status.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) connections: Cell<u32>,
    pub(crate) connections_refused: Cell<u64>,
    pub(crate) requests: Cell<u64>,
    pub(crate) puts: Cell<u64>,
    pub(crate) watchers: Cell<u32>,
}

/// What clients are served from.
pub(crate) struct Node {
    pub(crate) config: RefCell<Config>,
    pub(crate) db: Arc<Db>,
    pub(crate) target: Arc<Target>,
    pub(crate) durable: DurableWatch,
    /// Counts what is refused, whichever way it came.
    pub(crate) intake: sources::Shared,
    /// Becomes true when the node stops.
    pub(crate) stop: latest::Receiver<bool>,
    pub(crate) history_reads: Semaphore,
    pub(crate) counters: Counters,
    /// Why the last reload was refused, until one is not.
    pub(crate) reload_error: RefCell<Option<String>>,
    /// Keys of the configuration that wait for the next start.
    pub(crate) pending_restart: RefCell<Vec<&'static str>>,
    pub(crate) figures: Figures,
}

impl Node {
    /// The answer to a question for the status.
    pub(crate) fn state(&self) -> Result<Vec<u8>, Failure> {
        session::framed(Kind::State, &figures::report(self))
    }
}

/// Runs the node that this file configures until a signal ends it.
pub(crate) fn run(path: &Path) -> Result<u8, CliError> {
    let begun = Instant::now();
    let config = Config::load(path)?;
    let plan = Plan::of(&config)?;
    let image_path = config.store.image.clone();
    let Image {
        mut store,
        counts,
        is_new,
        is_direct,
        capacity_bytes,
        holder,
    } = image::open(&config.store)?;
    let clock: Arc<dyn Clock> = Arc::new(NodeClock {
        system: SystemClock::new(),
        wall_trusted: config.time.wall_clock_trusted,
    });
    let options = settings::database(&config, capacity_bytes);
    let failed = |error: db::Error| database_error(&image_path, &error);
    let objects_max = options.objects_max;
    let queue_bytes_max = options.queue_bytes_max as u64;
    let totals = figures::read_totals(&mut store);
    let db = Arc::new(Database::open(store, Arc::clone(&clock), options).map_err(failed)?);
    let rules = settings::key_rules(&config);
    let destination = NodeDestination::new(Arc::clone(&db), clock, rules);
    destination.declare_exact().map_err(failed)?;
    let target = Arc::new(Counted::new(destination, Changes::new(objects_max)));

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .thread_stack_size(256 << 10)
        .build()
        .map_err(|error| CliError::io("node", &error))?;
    let local = LocalSet::new();
    let ended = local.block_on(&runtime, async {
        let socket = server::bind(&config.node.socket)?;
        let durable = DurableWatch::start(Arc::clone(&target))
            .map_err(|error| CliError::io("node", &error))?;
        let mut sources = Sources::start(plan, &target, &durable)?;
        let lifetime = Arc::new(Lifetime::new(
            totals,
            Arc::clone(&db),
            counts,
            Arc::clone(&sources.counters),
            begun,
        ));
        let keeper = Keeper::start(Arc::clone(&db), Arc::clone(&lifetime))
            .map_err(|error| CliError::io("node", &error))?;
        let mut signals = Signals::new()?;
        let (stop, stopped) = latest::channel(false);
        let recovery = db.recovery();
        let made = if is_new { "made" } else { "opened" };
        let shown = config.node.socket.display().to_string();
        log::event(
            "store",
            format!(
                "{made} {}: {} keys, {} readings replayed, {}",
                image_path.display(),
                db.objects(),
                recovery.readings_replayed,
                if is_direct {
                    "direct"
                } else {
                    "through the page cache"
                }
            ),
        );
        let node = Rc::new(Node {
            config: RefCell::new(config),
            db: Arc::clone(&db),
            target: Arc::clone(&target),
            durable,
            intake: Rc::clone(&sources.intake),
            stop: stopped,
            history_reads: Semaphore::new(HISTORY_READS_MAX),
            counters: Counters::default(),
            reload_error: RefCell::new(None),
            pending_restart: RefCell::new(Vec::new()),
            figures: Figures {
                lifetime: Arc::clone(&lifetime),
                config_file: path.to_path_buf(),
                capacity_bytes,
                is_direct,
                queue_bytes_max,
                line: Arc::clone(&sources.line),
                mqtt: sources.mqtt.clone(),
                listen: sources.listen.clone(),
                window: Figures::window(),
            },
        });
        let sampled = Rc::clone(&node);
        let sampler = tokio::task::spawn_local(async move { figures::sample(&sampled).await });
        let server = tokio::task::spawn_local(server::run(Rc::clone(&node), socket));
        log::event(
            "ready",
            format!(
                "serving {shown}, process id {}, after {} ms",
                std::process::id(),
                begun.elapsed().as_millis()
            ),
        );
        loop {
            match signals.next().await {
                What::Stop(name) => {
                    log::event("stopping", format!("on {name}"));
                    break;
                }
                What::Reload => reload(path, &node, &mut sources, capacity_bytes),
            }
        }
        stop.send_replace(true);
        sources.stop(u64::try_from(GRACE.as_millis()).unwrap_or(u64::MAX));
        let ended = async {
            sources.ended().await;
            server.await.ok();
        };
        if tokio::time::timeout(GRACE_MAX, ended).await.is_err() {
            log::event("stopping", "without those who do not finish");
        }
        sampler.abort();
        drop(keeper);
        lifetime.save();
        Ok(())
    });
    runtime.shutdown_timeout(Duration::from_millis(200));
    ended?;
    let store = db.close().map_err(failed)?;
    store
        .close()
        .map_err(|error| store_error(&image_path, &error))?;
    drop(holder);
    log::event("stopped", "everything that was acknowledged is on flash");
    Ok(0)
}

/// Reads the configuration again. One that is wrong changes nothing; what needs a restart is named.
fn reload(path: &Path, node: &Node, sources: &mut Sources, capacity_bytes: u64) {
    let refused = |error: CliError| {
        log::event("reload", format!("refused, nothing changes: {error}"));
        *node.reload_error.borrow_mut() = Some(error.to_string());
    };
    let new = match Config::load(path) {
        Ok(new) => new,
        Err(error) => return refused(error),
    };
    let changes = config::reload(&node.config.borrow(), &new);
    let plan = match Plan::of(&changes.effective) {
        Ok(plan) => plan,
        Err(error) => return refused(error),
    };
    let rules = settings::key_rules(&changes.effective);
    node.db
        .set_retention(changes.effective.retention(capacity_bytes));
    if let Err(error) = node.target.inner().set_rules(rules) {
        // The rules hold; only the declarations have not reached the log.
        log::event("reload", format!("keys are not all declared: {error}"));
    }
    sources.reload(plan);
    *node.config.borrow_mut() = changes.effective;
    *node.reload_error.borrow_mut() = None;
    node.pending_restart
        .borrow_mut()
        .clone_from(&changes.needs_restart);
    let list = |names: &[&str]| {
        if names.is_empty() {
            "nothing".to_owned()
        } else {
            names.join(", ")
        }
    };
    log::event(
        "reload",
        format!(
            "applied: {}; needs a restart: {}",
            list(&changes.applied),
            list(&changes.needs_restart)
        ),
    );
}

fn database_error(image: &Path, error: &db::Error) -> CliError {
    let remedy = match error {
        db::Error::TableTooSmall { .. } => "",
        db::Error::Version { .. } => "use the version of keel that wrote it",
        _ => "check it with `keel flash check`",
    };
    CliError::failure(image.display(), error, remedy)
}

/// What a signal asks for.
enum What {
    Stop(&'static str),
    Reload,
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> Result<Self, CliError> {
        let on = |kind| signal(kind).map_err(|error| CliError::io("signals", &error));
        Ok(Self {
            terminate: on(SignalKind::terminate())?,
            interrupt: on(SignalKind::interrupt())?,
            hangup: on(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> What {
        tokio::select! {
            _ = self.terminate.recv() => What::Stop("SIGTERM"),
            _ = self.interrupt.recv() => What::Stop("SIGINT"),
            _ = self.hangup.recv() => What::Reload,
        }
    }
}
