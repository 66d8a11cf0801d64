//! A node between its start and its end: starts all that serves, waits for signals, and ends everything in order.

use super::alarms::{self, Alarms};
use super::database::Db;
use super::http::{self, Http};
use super::image::Holder;
use super::jobs::Jobs;
use super::lifetime::Lifetime;
use super::maintenance::Maintenance;
use super::notify::Notify;
use super::power::PowerWatch;
use super::privileges::Successor;
use super::programs::{self, Programs};
use super::qos::Qos;
use super::raised::Raised;
use super::region::{Announcement, Attendants};
use super::reload::{reload, say_form};
use super::server::{self, Socket};
use super::signals::{Action, Signals};
use super::sources::{Plan, Sources};
use super::start::Opened;
use super::state::{Counters, Figures, Node};
use super::upstreams::{self, Upstreams};
use super::{confinement, figures, log, watchdog, writes};
use cluster::power::Root;
use command::error::CliError;
use config::Config;
use ingest::durable::DurableWatch;
use std::cell::RefCell;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, watch as latest};
use tokio::task::{JoinHandle, spawn_local};

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

/// A node that has opened its store and does not serve yet.
pub(crate) struct Start<'p> {
    /// The configuration file.
    pub(crate) path: &'p Path,
    pub(crate) config: Config,
    pub(crate) plan: Plan,
    /// The user to become, if root has started the node for one.
    pub(crate) successor: Option<Successor>,
    pub(crate) begun: Instant,
    /// Whether a reload was requested during the start.
    pub(crate) is_reload_due: bool,
    pub(crate) notify: Notify,
}

impl Start<'_> {
    /// Serves until a signal asks for the end. Afterwards the caller only has to close the database.
    pub(crate) async fn run(
        self,
        opened: Opened,
        signals: &mut Signals,
    ) -> Result<(Holder, Option<Attendants>), CliError> {
        let (path, begun, is_reload_due) = (self.path, self.begun, self.is_reload_due);
        let (holder, mut serving) = self.start(opened).await?;
        let socket = serving
            .node
            .config
            .borrow()
            .node
            .socket
            .display()
            .to_string();
        log::event(
            "ready",
            format!(
                "serving {socket}, process id {}, after {} ms",
                std::process::id(),
                begun.elapsed().as_millis()
            ),
        );
        serving.node.notify.ready();
        if is_reload_due {
            reload(path, &serving.node, &mut serving.sources);
        }
        serving.wait_for_stop(path, signals).await;
        Ok((holder, serving.end().await))
    }

    /// Starts all that serves. What fails ends what was started before it.
    async fn start(self, opened: Opened) -> Result<(Holder, Serving), CliError> {
        let Self {
            path,
            config,
            plan,
            successor,
            begun,
            notify,
            ..
        } = self;
        let Opened {
            holder,
            db,
            target,
            key_form,
            ..
        } = opened;
        // This thread has opened files as the successor since the plan of the sources was made.
        let socket = server::bind(&config.node.socket).await?;
        let durable = DurableWatch::start(Arc::clone(&target))
            .map_err(|error| CliError::io("node", &error))?;
        say_form(key_form, &config);
        let sources = Sources::start(plan.with_tags(key_form.tags), &target, &durable)?;
        let lifetime = Arc::new(Lifetime::new(
            opened.totals,
            Arc::clone(&db),
            opened.counts,
            Arc::clone(&sources.counters),
            begun,
            opened.free_bytes,
        ));
        // Create this before the next `await`, so that it is withdrawn however the run ends.
        let region = opened.region.as_ref();
        let announcement = region.map(|region| region.announce(&config.node.socket));
        let attendants = region
            .map(Attendants::start)
            .transpose()
            .map_err(|error| CliError::io("region", &error))?;
        let (http, http_unusable) = Http::bind(&config)?;
        // Ports are taken, and no input has been read yet: there was no `await` since the first source was started.
        if let Some(successor) = &successor {
            successor.replace_root(&config, path)?;
        }
        confinement::confine_calls(config.node.system_calls)?;
        let deliveries = (opened.upstreams, opened.alarms);
        let workers = Workers::start(
            &config,
            path,
            &db,
            &lifetime,
            deliveries,
            opened.not_permitted,
        )
        .await?;
        let (stop, stopped) = latest::channel(false);
        let http = http
            .map(|http| http.start(&db, &target, stopped.clone()))
            .transpose()?;
        say_store(&config, &db, opened.is_new, opened.is_direct);
        let Workers {
            programs,
            power,
            jobs,
            qos,
            alarms_shown,
            urgent,
            forwarding,
            maintenance,
            raised,
        } = workers;
        let figures = Figures {
            lifetime: Arc::clone(&lifetime),
            config_file: path.to_path_buf(),
            capacity_bytes: opened.capacity_bytes,
            is_direct: opened.is_direct,
            queue_bytes_max: opened.queue_bytes_max,
            line: Arc::clone(&sources.line),
            mqtt: sources.mqtt.clone(),
            modbus: sources.modbus.clone(),
            listen: sources.listen.clone(),
            sources_ended: Rc::clone(&sources.ended),
            line_connections_max: config.line.connections_max,
            window: Figures::window(forwarding.shown().begun()),
            region: opened.region,
            upstreams: forwarding.shown(),
            alarms: alarms_shown,
            bounds: opened.bounds,
            http: http.as_ref().map(|http| http.running.clone()),
            http_unusable,
        };
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
            figures,
            qos,
            jobs,
            power,
            programs,
            notify,
        });
        let tasks = Tasks::spawn(&node, socket, http);
        let serving = Serving {
            tasks,
            node,
            stop,
            raised,
            maintenance,
            urgent,
            forwarding,
            attendants,
            announcement,
            lifetime,
            sources,
        };
        Ok((holder, serving))
    }
}

/// Threads and programs of a node. They are dropped in the order of the fields, the reverse of their start.
struct Workers {
    programs: Programs,
    power: PowerWatch,
    jobs: Jobs,
    qos: Qos,
    alarms_shown: alarms::Shown,
    urgent: alarms::Running,
    forwarding: upstreams::Running,
    maintenance: Maintenance,
    raised: Option<Arc<Raised>>,
}

impl Workers {
    /// Starts them. `not_permitted`: permissions that a real-time node needs and did not get.
    async fn start(
        config: &Config,
        path: &Path,
        db: &Arc<Db>,
        lifetime: &Arc<Lifetime>,
        (upstreams, alarms): (Upstreams, Alarms),
        not_permitted: Vec<String>,
    ) -> Result<Self, CliError> {
        let failed = |thing: &'static str| move |error: io::Error| CliError::io(thing, &error);
        let raised = alarms.raised();
        let maintenance = Maintenance::start(Arc::clone(db), Arc::clone(lifetime), raised.clone())
            .map_err(failed("node"))?;
        let forwarding = upstreams.start();
        let (urgent, alarms_shown) = alarms.start(programs::folder_of(path));
        let qos = Qos::start(config, db, not_permitted).map_err(failed("node"))?;
        let jobs = Jobs::start(config, path).map_err(failed("job"))?;
        let power = PowerWatch::start(&Root::new("/")).map_err(failed("power"))?;
        let store = store_identity(db, &config.store.image);
        let programs = Programs::start(config, path, store, qos.own_tasks())
            .await
            .map_err(failed("task"))?;
        Ok(Self {
            programs,
            power,
            jobs,
            qos,
            alarms_shown,
            urgent,
            forwarding,
            maintenance,
            raised,
        })
    }
}

/// The tasks of the main thread that serve clients and the service manager.
struct Tasks {
    /// Takes the figures for the time windows of the status.
    sampler: JoinHandle<()>,
    /// Feeds the watchdog.
    feeder: JoinHandle<()>,
    server: JoinHandle<()>,
    /// Answers the HTTP side's questions about the status.
    answers: Option<JoinHandle<()>>,
    http: Vec<JoinHandle<()>>,
}

impl Tasks {
    fn spawn(node: &Rc<Node>, socket: Socket, http: Option<http::Serving>) -> Self {
        let sampled = Rc::clone(node);
        let sampler = spawn_local(async move { figures::sample(&sampled).await });
        let server = spawn_local(server::run(Rc::clone(node), socket));
        let fed = Rc::clone(node);
        let feeder = spawn_local(async move { watchdog::feed(&fed).await });
        let (mut answers, mut of_http) = (None, Vec::new());
        if let Some(http) = http {
            let asked = http::answer(Rc::clone(node), http.questions);
            answers = Some(spawn_local(asked));
            of_http.push(spawn_local(http.serves));
            // This one ends after the other: it takes what that has received.
            of_http.push(spawn_local(writes::serve(Rc::clone(node), http.writes)));
        }
        Self {
            sampler,
            feeder,
            server,
            answers,
            http: of_http,
        }
    }
}

/// A node that serves.
struct Serving {
    tasks: Tasks,
    node: Rc<Node>,
    /// Becomes true when the node stops.
    stop: latest::Sender<bool>,
    raised: Option<Arc<Raised>>,
    maintenance: Maintenance,
    urgent: alarms::Running,
    forwarding: upstreams::Running,
    attendants: Option<Attendants>,
    announcement: Option<Announcement>,
    lifetime: Arc<Lifetime>,
    sources: Sources,
}

impl Serving {
    /// Reads the configuration again at each signal for that. Returns at a signal to stop.
    async fn wait_for_stop(&mut self, path: &Path, signals: &mut Signals) {
        loop {
            match signals.next().await {
                Action::Stop(name) => return log::event("stopping", format!("on {name}")),
                Action::Reload => {
                    self.node.notify.reloading();
                    reload(path, &self.node, &mut self.sources);
                    self.node.notify.ready();
                }
            }
        }
    }

    /// Ends everything but the database and the threads of the region, which are returned: they take a last checkpoint
    /// when they are dropped.
    async fn end(self) -> Option<Attendants> {
        // What is left at the end of this function is dropped in the reverse of this order.
        let Self {
            mut sources,
            lifetime,
            announcement,
            mut attendants,
            forwarding,
            urgent,
            maintenance,
            raised,
            stop,
            node,
            tasks,
        } = self;
        let Tasks {
            sampler,
            feeder,
            server,
            answers,
            http,
        } = tasks;
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
            for task in http {
                task.await.ok();
            }
        };
        if tokio::time::timeout(GRACE_MAX, ended).await.is_err() {
            log::event("stopping", "without sources and clients that do not finish");
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
        drop(maintenance);
        lifetime.save();
        if let Some(raised) = raised {
            raised.look(true);
        }
        attendants
    }
}

/// Logs what the node has opened.
fn say_store(config: &Config, db: &Db, is_new: bool, is_direct: bool) {
    log::event(
        "store",
        format!(
            "{} {}: {} keys, {} readings replayed, {}",
            if is_new { "made" } else { "opened" },
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
