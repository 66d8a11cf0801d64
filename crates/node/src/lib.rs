//! The node, which `keel run` starts: sources bring readings into the database, and clients query them over a Unix
//! socket.
//!
//! **Holds:** start and end of the rooms of a node ([`run_and_finish`]), its sources, its socket and its programs. Its
//! [`status`], and what commands share with it, are here, too: [`stores`], [`regions`] and [`time_text`].
//!
//! **Must not know:** the command line, and the algorithms of a room; it only calls them.
//!
//! **Invariants:** a reading is acknowledged once it is on flash. A reload changes nothing if the new file is invalid.
//! What a client sends cannot end the node. The kernel's permissions only ever become fewer.
//!
//! **Threads**, the main ones: the first runs all communication (one runtime: sources, socket, signals). The database
//! has its commit thread. One announces the durable end of the log, one indexes and deletes, one supervises jobs, if
//! there are any. At most `BLOCKING_THREADS_MAX` threads read history. Only the commit thread waits for the device
//! while it holds anything that a put needs.
//!
//! **Files:** `start.rs` opens the store, `serving.rs` starts and ends all that serves, `state.rs` what clients are
//! served from, `database.rs` the database, `signals.rs` the signals, `reload.rs` the configuration read again,
//! `image.rs` the store's image and its holder, `settings.rs` the options of the rooms from the configuration,
//! `sources.rs` line protocol, MQTT, Modbus, `server.rs` the socket, `wire.rs` one connection, `session.rs` from a
//! request to its answer, `answer.rs` the frames of answers, `get.rs` latest values, `puts.rs` puts, `watch.rs` and
//! `changes.rs` changes, `history.rs` range reads, `backup.rs` backups, `owners.rs` keys for other series,
//! `maintenance.rs` the maintenance thread, `lifetime.rs` totals that outlive a run, `figures.rs` the figures of the
//! status, `reasons.rs` why upstreams and brokers are lost, for the log, `notify.rs` messages to the service manager,
//! `watchdog.rs` its watchdog, `upstreams.rs` forwarding,
//! `alarms.rs` alarms and actuators, `raised.rs` raised alarms kept over a start, `http.rs` what the HTTP side
//! receives, `writes.rs` lines that HTTP clients write, `region.rs` the region in which other processes read values,
//! `qos/` quality of service, `key_form.rs` what `{tags}` stands for in the store, `key_mark.rs` its mark there,
//! `power.rs` power sensors, `jobs.rs` periodic jobs, `programs/` programs that the node keeps running, `clock.rs` the
//! clock with the operator's setting, `log.rs` events, `privileges.rs` another user in place of root,
//! `confinement/` system calls and files that the kernel permits, `status/` the status, `write_cache.rs` a device that
//! loses unflushed data, `stores/` and `regions/` images and regions in terms of the command line, `time_text.rs` times
//! as people write them. `crates/node/NODE.md` specifies the socket.
//!
//! **Order of the end:** sources and clients stop reading; what they hold is made durable and acknowledged. Then the
//! database writes a checkpoint and closes, and the image is free for another node.

mod alarms;
mod answer;
mod backup;
mod changes;
mod clock;
mod confinement;
mod database;
mod figures;
mod get;
mod history;
mod http;
mod image;
mod jobs;
mod key_form;
mod key_mark;
mod lifetime;
mod log;
mod maintenance;
mod notify;
mod owners;
mod power;
mod privileges;
mod programs;
mod puts;
mod qos;
mod raised;
mod reasons;
mod region;
pub mod regions;
mod reload;
#[cfg(test)]
#[path = "../../../fuzz/src/replay.rs"]
mod replay;
mod server;
mod serving;
mod session;
pub mod settings;
mod signals;
mod sources;
mod start;
mod state;
pub mod status;
pub mod stores;
pub mod time_text;
mod upstreams;
mod watch;
mod watchdog;
mod wire;
mod write_cache;
mod writes;

pub use confinement::landlock_version;
pub use get::{no_such_key, unreadable};
pub use image::{files_max, with_suffix};

use crate::stores::store_error;
use command::error::CliError;
use config::Config;
use database::{Db, database_error};
use notify::Notify;
use privileges::Successor;
use reload::say_warnings;
use serving::Start;
use signals::Signals;
use sources::Plan;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::task::LocalSet;

/// Threads that read history.
const BLOCKING_THREADS_MAX: usize = 2;

/// Runs the node with this configuration file until a signal ends it, and returns the exit status once the log is
/// written. `is_volatile`: unflushed data are lost with the process, for demonstrations.
///
/// # Errors
/// The configuration is invalid, or the store, a port or a file cannot be used; one line with the remedy.
pub fn run_and_finish(path: &Path, is_volatile: bool) -> Result<u8, CliError> {
    let result = run(path, is_volatile);
    log::finish();
    result
}

/// Runs the node with this configuration file until a signal ends it.
fn run(path: &Path, is_volatile: bool) -> Result<u8, CliError> {
    let begun = Instant::now();
    privileges::restrict_new_files();
    // The connections of all kinds may exceed a shell's default limit.
    command::descriptors::raise_limit();
    let runtime = runtime()?;
    // Install the handlers before anything that takes time: an early reload signal must not kill the process.
    let mut signals = {
        let _inside = runtime.enter();
        Signals::new()?
    };
    let mut config = Config::load(path)?;
    config.store.is_volatile = is_volatile;
    config.refuse_no_room()?;
    let successor = Successor::prepare(&config)?;
    let user = config.node.user.clone();
    let told = of_user(user.as_deref());
    let plan = plan_of(&config, successor.as_ref()).map_err(told)?;
    // Threads inherit the rules of files, so this comes before the first one: even the log has a thread.
    confinement::confine_files(&config, path)?;
    say_warnings(&config);
    let notify = Notify::from_environment();
    notify.starting();
    let image_path = config.store.image.clone();
    let opened = runtime.block_on(start::open(&config, successor.as_ref(), &mut signals));
    let Some((opened, is_reload_due)) = opened.map_err(told)? else {
        log::event("stopped", "before anything was taken");
        return Ok(0);
    };
    let (db, region) = (Arc::clone(&opened.db), opened.region.clone());
    if let Some(error) = &opened.declare_error {
        log::event("warning", error);
    }
    let start = Start {
        path,
        config,
        plan,
        successor,
        begun,
        is_reload_due,
        notify,
    };
    let local = LocalSet::new();
    let run = local.block_on(&runtime, start.run(opened, &mut signals));
    let (holder, attendants) = run.map_err(told)?;
    runtime.shutdown_timeout(Duration::from_millis(200));
    // Remove the holder file while the image is still locked: afterwards it may belong to another node.
    drop(holder);
    close(&db, &image_path)?;
    // Remove the table only now: the database reads it until it is closed.
    if let Some(region) = region {
        region.remove_table();
    }
    // This waits for the last checkpoint of the region.
    drop(attendants);
    log::event("stopped", "everything that was acknowledged is on flash");
    Ok(0)
}

/// Returns what the sources read. From here on a successor of root opens files as the user. In a folder of the user, a
/// link could lead root to any file.
fn plan_of(config: &Config, successor: Option<&Successor>) -> Result<Plan, CliError> {
    let Some(successor) = successor else {
        return Plan::of(config);
    };
    successor.open_files()?;
    Plan::of(config).map_err(|error| error.with_remedy(successor.remedy_for_files()))
}

/// Returns what names the user in an error about a permission: files are opened as that user.
fn of_user(user: Option<&str>) -> impl Fn(CliError) -> CliError + Copy {
    move |error| match user {
        Some(user) => error.for_user(user),
        None => error,
    }
}

/// Returns the runtime of the main thread.
fn runtime() -> Result<Runtime, CliError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .thread_stack_size(256 << 10)
        .build()
        .map_err(|error| CliError::io("node", &error))
}

/// Closes database and store, with a checkpoint if the store has room for it.
fn close(db: &Db, image: &Path) -> Result<(), CliError> {
    let store = match db.close() {
        Ok(store) => Some(store),
        Err(db::Error::Full) => {
            let text = "the store is full: what did not fit was not acknowledged, and is not kept";
            log::event("stopping", text);
            db.abandon()
        }
        Err(error) => return Err(database_error(image, &error)),
    };
    if let Some(store) = store {
        store.close().map_err(|error| store_error(image, &error))?;
    }
    Ok(())
}
