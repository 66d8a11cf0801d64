//! `keel run`: the node. Sources bring readings into the database; clients query them over a Unix socket.
//!
//! **Threads**, the main ones: the first runs all communication (one runtime: sources, socket, signals); the database
//! has its commit thread; one announces the durable end of the log; the keeper indexes and deletes; one supervises
//! jobs, if there are any; at most [`BLOCKING_THREADS_MAX`] threads read history. Only the commit thread waits for the
//! device while it holds anything that a put needs.
//!
//! **Files:** `start.rs` the start, `signals.rs` the signals, `image.rs` the store's image and its holder,
//! `settings.rs` the options of the rooms from the configuration, `sources.rs` line protocol, MQTT, Modbus, `server.rs`
//! the socket, `wire.rs` one connection, `session.rs` get and status, `puts.rs` puts, `watch.rs` and `changes.rs`
//! changes, `history.rs` range reads, `keeper.rs` the keeper, `backup.rs` backups, `notify.rs` messages to the service
//! manager, `owners.rs` keys for other series, `upstreams.rs` forwarding, `alarms.rs` alarms and actuators, `raised.rs`
//! raised alarms kept over a start, `http.rs` what the HTTP side receives, `region.rs` the region in which other
//! processes read values, `qos/` quality of service, `key_form.rs` what `{tags}` stands for in the store, `key_mark.rs`
//! its mark there, `figures.rs` the figures of the status, `jobs.rs` periodic jobs, `programs/` programs that the node
//! keeps running, `clock.rs` the clock with the operator's setting, `log.rs` events, `writes.rs` lines that HTTP
//! clients write.
//!
//! **Order of the end:** sources and clients stop reading; what they hold is made durable and acknowledged. Then the
//! database writes a checkpoint and closes, and the image is free for another node.

mod alarms;
mod backup;
mod changes;
mod clock;
mod figures;
mod history;
mod http;
pub(crate) mod image;
mod jobs;
mod keeper;
mod key_form;
mod key_mark;
mod log;
mod notify;
mod owners;
mod power;
mod programs;
mod puts;
mod qos;
mod raised;
pub(crate) mod region;
mod server;
pub(crate) mod session;
pub(crate) mod settings;
mod signals;
mod sources;
mod start;
mod upstreams;
mod watch;
mod wire;
mod writes;

use crate::config::{self, Config};
use crate::error::CliError;
use crate::flash_cmd::store_error;
use changes::Counted;
use cluster::power::Root;
use db::Database;
use figures::{Figures, Lifetime};
use flash::Store;
use image::{Device, Holder};
use ingest::durable::DurableWatch;
use ingest::intake::NodeDestination;
use keeper::Keeper;
use key_form::KeyForm;
use libkeel::protocol::{Failure, Kind};
use notify::Notify;
use region::Attendants;
use signals::{Signals, What};
use sources::{Plan, Sources};
use start::Opened;
use std::cell::{Cell, RefCell};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, watch as latest};
use tokio::task::LocalSet;

/// The database of a node.
pub(crate) type Db = Database<Store<Device>>;

/// Where sources put readings.
pub(crate) type Target = Counted<NodeDestination<Store<Device>>>;

/// Threads that read history.
const BLOCKING_THREADS_MAX: usize = 2;

/// History reads that hold memory at once; further ones wait for their turn.
const HISTORY_READS_MAX: usize = 4;

/// Backups at once.
const BACKUPS_MAX: usize = 1;

/// How long the end waits for sources and clients; they send again what is not acknowledged by then.
const GRACE: Duration = Duration::from_millis(1_000);

/// How long the end waits for sources and clients that do not finish within [`GRACE`].
const GRACE_MAX: Duration = Duration::from_millis(1_300);

/// How long the end waits for programs: each is asked to end, then killed, and the mounts follow.
const PROGRAMS_GRACE_MAX: Duration = Duration::from_millis(6_500);

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

/// The state from which clients are served.
pub(crate) struct Node {
    pub(crate) config: RefCell<Config>,
    pub(crate) db: Arc<Db>,
    pub(crate) target: Arc<Target>,
    pub(crate) durable: DurableWatch,
    /// Counts refused readings of all paths.
    pub(crate) intake: sources::Shared,
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
    pub(crate) qos: qos::Qos,
    /// Jobs that the node starts.
    pub(crate) jobs: jobs::Jobs,
    /// The board's power sensors.
    pub(crate) power: power::PowerWatch,
    /// Programs that the node keeps running.
    pub(crate) programs: programs::Programs,
    pub(crate) notify: Notify,
}

impl Node {
    /// Returns the answer to a status request.
    pub(crate) fn state(&self) -> Result<Vec<u8>, Failure> {
        session::framed(Kind::State, &figures::report(self))
    }

    /// Returns which part of the configuration is not in force, and why.
    pub(crate) fn config_error(&self) -> Option<String> {
        let refused = self.reload_error.borrow().clone();
        refused.or_else(|| self.declare_error.borrow().clone())
    }
}

/// Like [`run`], but returns only after the log is written.
pub(crate) fn run_and_finish(path: &Path, is_volatile: bool) -> Result<u8, CliError> {
    let result = run(path, is_volatile);
    log::finish();
    result
}

/// Runs the node with this configuration file until a signal ends it.
fn run(path: &Path, is_volatile: bool) -> Result<u8, CliError> {
    let begun = Instant::now();
    // The connections of all kinds may exceed a shell's default limit.
    crate::descriptors::raise_limit();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .thread_stack_size(256 << 10)
        .build()
        .map_err(|error| CliError::io("node", &error))?;
    // Install the handlers before anything that takes time: an early reload signal must not kill the process.
    let mut signals = {
        let _inside = runtime.enter();
        Signals::new()?
    };
    let mut config = Config::load(path)?;
    config.store.is_volatile = is_volatile;
    let plan = Plan::of(&config)?;
    config.refuse_no_room()?;
    say_warnings(&config);
    let notify = Notify::from_environment();
    notify.starting();
    let image_path = config.store.image.clone();
    let opened = runtime.block_on(start::open(&config, &mut signals))?;
    let Some((opened, is_reload_due)) = opened else {
        log::event("stopped", "before anything was taken");
        return Ok(0);
    };
    let (db, region) = (Arc::clone(&opened.db), opened.region.clone());
    if let Some(error) = &opened.declare_error {
        log::event("warning", error);
    }
    let local = LocalSet::new();
    let (holder, attendants) = local.block_on(&runtime, async {
        let holder = Serving {
            path,
            config,
            plan,
            begun,
            is_reload_due,
            notify,
        };
        holder.run(opened, &mut signals).await
    })?;
    runtime.shutdown_timeout(Duration::from_millis(200));
    // Remove the holder file while the image is still locked: afterwards it may belong to another node.
    drop(holder);
    let store = match db.close() {
        Ok(store) => Some(store),
        Err(db::Error::Full) => {
            let text = "the store is full: what did not fit was not acknowledged, and is not kept";
            log::event("stopping", text);
            db.abandon()
        }
        Err(error) => return Err(database_error(&image_path, &error)),
    };
    if let Some(store) = store {
        store
            .close()
            .map_err(|error| store_error(&image_path, &error))?;
    }
    // Remove the table only now: the database reads it until it is closed.
    if let Some(region) = region {
        region.remove_table();
    }
    // This waits for the last checkpoint of the region.
    drop(attendants);
    log::event("stopped", "everything that was acknowledged is on flash");
    Ok(0)
}

/// A node between its start and its end.
struct Serving<'p> {
    path: &'p Path,
    config: Config,
    plan: Plan,
    begun: Instant,
    /// Whether a reload was requested during the start.
    is_reload_due: bool,
    notify: Notify,
}

impl Serving<'_> {
    /// Serves until a signal asks for the end. Afterwards the caller only has to close the database.
    async fn run(
        self,
        opened: Opened,
        signals: &mut Signals,
    ) -> Result<(Holder, Option<Attendants>), CliError> {
        let Self {
            path,
            config,
            plan,
            begun,
            is_reload_due,
            notify,
        } = self;
        let Opened {
            holder,
            db,
            target,
            capacity_bytes,
            is_direct,
            ..
        } = opened;
        let socket = server::bind(&config.node.socket).await?;
        let durable = DurableWatch::start(Arc::clone(&target))
            .map_err(|error| CliError::io("node", &error))?;
        let key_form = opened.key_form;
        say_form(key_form, &config);
        let mut sources = Sources::start(plan.with_tags(key_form.tags), &target, &durable)?;
        let lifetime = Arc::new(Lifetime::new(
            opened.totals,
            Arc::clone(&db),
            opened.counts,
            Arc::clone(&sources.counters),
            begun,
            opened.free_bytes,
        ));
        // Create this before the first `await`, so that it is withdrawn however the run ends.
        let announcement = opened
            .region
            .as_ref()
            .map(|region| region.announce(&config.node.socket));
        let mut attendants = match &opened.region {
            Some(region) => {
                Some(Attendants::start(region).map_err(|error| CliError::io("region", &error))?)
            }
            None => None,
        };
        let (http, http_unusable) = self::http::Http::bind(&config)?;
        let raised = opened.alarms.raised();
        let keeper = Keeper::start(Arc::clone(&db), Arc::clone(&lifetime), raised.clone())
            .map_err(|error| CliError::io("node", &error))?;
        let forwarding = opened.upstreams.start();
        let (urgent, alarms_shown) = opened.alarms.start(programs::folder_of(path));
        let qos = qos::Qos::start(&config, &db, opened.not_permitted)
            .map_err(|error| CliError::io("node", &error))?;
        let jobs = jobs::Jobs::start(&config, path).map_err(|error| CliError::io("job", &error))?;
        let power = power::PowerWatch::start(&Root::new("/"))
            .map_err(|error| CliError::io("power", &error))?;
        let store = store_identity(&db, &config.store.image);
        let programs = programs::Programs::start(&config, path, store, qos.own_tasks())
            .await
            .map_err(|error| CliError::io("task", &error))?;
        let (stop, stopped) = latest::channel(false);
        let http = http
            .map(|http| http.start(&db, &target, stopped.clone()))
            .transpose()?;
        let http_running = http.as_ref().map(|http| http.running.clone());
        let shown = config.node.socket.display().to_string();
        log::event(
            "store",
            format!(
                "{} {}: {} keys, {} readings replayed, {}",
                if opened.is_new { "made" } else { "opened" },
                config.store.image.display(),
                db.objects(),
                db.recovery().readings_replayed,
                if is_direct {
                    "direct"
                } else {
                    "through the page cache"
                }
            ),
        );
        let line_connections_max = config.line.connections_max;
        let node = Rc::new(Node {
            config: RefCell::new(config),
            db,
            target,
            durable,
            intake: Rc::clone(&sources.intake),
            stop: stopped,
            history_reads: Semaphore::new(HISTORY_READS_MAX),
            backups: Semaphore::new(BACKUPS_MAX),
            counters: Counters::default(),
            reload_error: RefCell::new(None),
            key_form,
            declare_error: RefCell::new(opened.declare_error),
            pending_restart: RefCell::new(Vec::new()),
            figures: Figures {
                lifetime: Arc::clone(&lifetime),
                config_file: path.to_path_buf(),
                capacity_bytes,
                is_direct,
                queue_bytes_max: opened.queue_bytes_max,
                line: Arc::clone(&sources.line),
                mqtt: sources.mqtt.clone(),
                modbus: sources.modbus.clone(),
                listen: sources.listen.clone(),
                sources_ended: Rc::clone(&sources.ended),
                line_connections_max,
                window: Figures::window(forwarding.shown().begun()),
                region: opened.region,
                upstreams: forwarding.shown(),
                alarms: alarms_shown,
                bounds: opened.bounds,
                http: http_running,
                http_unusable,
            },
            qos,
            jobs,
            power,
            programs,
            notify,
        });
        let sampled = Rc::clone(&node);
        let sampler = tokio::task::spawn_local(async move { figures::sample(&sampled).await });
        let server = tokio::task::spawn_local(server::run(Rc::clone(&node), socket));
        let fed = Rc::clone(&node);
        let feeder = tokio::task::spawn_local(async move { notify::feed(&fed).await });
        let (mut answers, mut http_tasks) = (None, Vec::new());
        if let Some(http) = http {
            let asked = self::http::answer(Rc::clone(&node), http.questions);
            answers = Some(tokio::task::spawn_local(asked));
            http_tasks.push(tokio::task::spawn_local(http.serves));
            // This one ends after the other: it takes what that has received.
            let written = writes::serve(Rc::clone(&node), http.writes);
            http_tasks.push(tokio::task::spawn_local(written));
        }
        log::event(
            "ready",
            format!(
                "serving {shown}, process id {}, after {} ms",
                std::process::id(),
                begun.elapsed().as_millis()
            ),
        );
        node.notify.ready();
        if is_reload_due {
            reload(path, &node, &mut sources, capacity_bytes);
        }
        loop {
            match signals.next().await {
                What::Stop(name) => {
                    log::event("stopping", format!("on {name}"));
                    break;
                }
                What::Reload => {
                    node.notify.reloading();
                    reload(path, &node, &mut sources, capacity_bytes);
                    node.notify.ready();
                }
            }
        }
        node.jobs.finish();
        node.power.finish();
        feeder.abort();
        node.notify.stopping();
        // Stop sampling: programs that were failing end now, which would look as if the node recovered.
        sampler.abort();
        // End programs first: the node still takes what they report and put while they end.
        if let Some(ended) = node.programs.finish()
            && tokio::time::timeout(PROGRAMS_GRACE_MAX, ended)
                .await
                .is_err()
        {
            log::event("stopping", "without programs that do not end");
        }
        // Only now, because programs may still write to the region. Not later, because the power may not last until the
        // log ends.
        if let Some(attendants) = &mut attendants {
            attendants.finish();
        }
        stop.send_replace(true);
        forwarding.stop();
        sources.stop(u64::try_from(GRACE.as_millis()).unwrap_or(u64::MAX));
        let ended = async {
            sources.ended().await;
            server.await.ok();
            for task in http_tasks {
                task.await.ok();
            }
        };
        if tokio::time::timeout(GRACE_MAX, ended).await.is_err() {
            log::event("stopping", "without those who do not finish");
        }
        // Deliver what the last readings raised before stopping.
        urgent.stop();
        // The forwarding thread has half a second for in-flight data, counted from the stop of the sources.
        drop(forwarding);
        urgent.finish();
        if let Some(answers) = answers {
            answers.abort();
        }
        node.qos.finish();
        drop(announcement);
        drop(keeper);
        lifetime.save();
        if let Some(raised) = raised {
            raised.look(true);
        }
        Ok((holder, attendants))
    }
}

/// Returns the identity of the store and of its file; a copy of the file has a different one.
fn store_identity(db: &Db, image: &Path) -> String {
    let identity = db.with_store(|store| store.layout().uuid);
    let digits = identity
        .unwrap_or_default()
        .map(|byte| format!("{byte:02x}"));
    let file = std::fs::metadata(image).map_or((0, 0), |found| (found.dev(), found.ino()));
    format!("{}-{:x}-{:x}", digits.concat(), file.0, file.1)
}

/// Logs settings of the configuration that are allowed but may surprise.
fn say_warnings(config: &Config) {
    for warning in config.warnings() {
        log::event("warning", warning);
    }
}

/// Logs what `{tags}` stands for if that is not so in new stores.
fn say_form(key_form: KeyForm, config: &Config) {
    if let Some(note) = key_form.note(config) {
        log::event("keys", note);
    }
}

/// Reads the configuration again. An invalid one changes nothing; keys that need a restart are named.
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
        Ok(plan) => plan.with_tags(node.key_form.tags),
        Err(error) => return refused(error),
    };
    if let Err(error) = node.key_form.check(&changes.effective) {
        return refused(error);
    }
    let rules = settings::key_rules(&changes.effective);
    node.db
        .set_retention(changes.effective.retention(capacity_bytes));
    // The rules apply even if single keys cannot be declared.
    let declared = node.target.inner().set_rules(rules).map(drop);
    let failures = node.target.inner().declare_failures();
    let declare_error = settings::declare_error(declared, failures);
    say_warnings(&changes.effective);
    say_form(node.key_form, &changes.effective);
    if let Some(error) = &declare_error {
        log::event("warning", error);
    }
    *node.declare_error.borrow_mut() = declare_error;
    sources.reload(plan);
    node.qos.reload(&changes.effective.qos);
    node.programs.reload(&changes.effective.task);
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
    let (wrong, remedy) = settings::told(error);
    let remedy = match error {
        db::Error::Version { .. } => "use the version of keel that wrote it",
        _ if remedy.is_empty() => "check it with `keel flash check`",
        _ => &remedy,
    };
    CliError::failure(image.display(), wrong, remedy)
}
