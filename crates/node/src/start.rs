//! The start, until the node can serve: the store is opened or made, and the database recovered. Both may take minutes,
//! so a separate thread does it while the node handles signals.

use super::alarms::{self, Alarms};
use super::changes::{Changes, Counted};
use super::clock::NodeClock;
use super::database::{Db, Target, database_error};
use super::image::{self, Holder, Image};
use super::key_form::{KeyForm, Mark};
use super::lifetime::{free_bytes, read_totals};
use super::privileges::Successor;
use super::region::NodeRegion;
use super::signals::{Action, Signals};
use super::upstreams::Upstreams;
use super::{log, settings};
use crate::status::{self, Totals};
use base::block::Counts;
use base::clock::{Clock, SystemClock};
use command::error::CliError;
use config::Config;
use db::Database;
use db::table::TableMemory;
use ingest::intake::{NodeDestination, TagsForm};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long a stop waits for the start.
const STOP_WAIT_MAX: Duration = Duration::from_millis(1_000);

/// An open store with its database.
pub(crate) struct Opened {
    /// Must stay the first field: it drops before the image is free, else it could remove another node's holder file.
    pub(crate) holder: Holder,
    pub(crate) db: Arc<Db>,
    pub(crate) target: Arc<Target>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) totals: Totals,
    pub(crate) is_new: bool,
    pub(crate) is_direct: bool,
    pub(crate) capacity_bytes: u64,
    pub(crate) free_bytes: u64,
    pub(crate) queue_bytes_max: u64,
    /// Cost bounds of calls on the store.
    pub(crate) bounds: flash::Bounds,
    /// The region, if one is configured.
    pub(crate) region: Option<Arc<NodeRegion>>,
    /// What `{tags}` of templates stands for.
    pub(crate) key_form: KeyForm,
    /// Keys that could not be declared.
    pub(crate) declare_error: Option<String>,
    /// Permissions that a real-time node needs and did not get.
    pub(crate) not_permitted: Vec<String>,
    /// Upstreams; their cursors are found before any reading is taken, so that a new upstream misses none.
    pub(crate) upstreams: Upstreams,
    /// Alarms, watched before any reading is taken.
    pub(crate) alarms: Alarms,
}

/// Opens what the configuration names, all but an image that is a device as the successor of root. The flag says
/// whether a signal requested a reload meanwhile; `None` if a signal requested the end.
pub(crate) async fn open(
    config: &Config,
    successor: Option<&Successor>,
    signals: &mut Signals,
) -> Result<Option<(Opened, bool)>, CliError> {
    let (done, mut opened) = oneshot::channel();
    let theirs = config.clone();
    let successor = successor.cloned();
    let work = move || {
        // The receiver is gone if the node ends during its start.
        done.send(open_now(&theirs, successor.as_ref())).ok();
    };
    std::thread::Builder::new()
        .name("start".into())
        .spawn(work)
        .map_err(|error| CliError::io("node", &error))?;
    let mut is_reload_due = false;
    loop {
        let what = tokio::select! {
            biased;
            what = signals.next() => what,
            opened = &mut opened => {
                let gone = || CliError::failure("node", "the start broke off", "start it again");
                let opened = opened.unwrap_or_else(|_| Err(gone()))?;
                return Ok(Some((opened, is_reload_due)));
            }
        };
        match what {
            Action::Reload => is_reload_due = true,
            Action::Stop(name) => {
                log::event("stopping", format!("on {name}, during the start"));
                // A start that takes longer ends as if the power failed, which harms neither a store nor a partly made
                // one.
                drop(tokio::time::timeout(STOP_WAIT_MAX, opened).await);
                return Ok(None);
            }
        }
    }
}

fn open_now(config: &Config, successor: Option<&Successor>) -> Result<Opened, CliError> {
    if let Some(successor) = successor {
        successor.open_image(&config.store.image)?;
    }
    let Image {
        mut store,
        counts,
        is_new,
        is_direct,
        capacity_bytes,
        holder,
    } = image::open(&config.store)?;
    if let Some(successor) = successor {
        successor.open_files()?;
    }
    let clock: Arc<dyn Clock> = Arc::new(NodeClock {
        system: SystemClock::new(),
        wall_trusted: config.time.wall_clock_trusted,
    });
    let options = settings::database(config, capacity_bytes);
    let objects_max = options.objects_max;
    let queue_bytes_max = options.queue_bytes_max as u64;
    let bounds = store.bounds();
    let mark = Mark::read(&mut store);
    mark.check(config)?;
    let totals = read_totals(&mut store);
    let free_bytes = free_bytes(&store);
    let region = NodeRegion::open(config);
    let given = region.as_ref().and_then(|region| region.lines());
    let clock_of_db = Arc::clone(&clock);
    let opened = match given.map(TableMemory::Given) {
        Some(memory) => Database::open_in(store, clock_of_db, options, memory),
        None => Database::open(store, clock_of_db, options),
    };
    let db = opened.map_err(|error| database_error(&config.store.image, &error))?;
    let found = db.recovery();
    if found.damage.any() || found.checkpoints_unusable > 1 {
        let damage = &found.damage;
        log::event(
            "damage",
            format!(
                "{} places of the log cannot be read, {} pieces, {} files; {} readings are known to be missing, \
                 there may be more; stop the node and look with `keel flash check {}`",
                damage.records_damaged,
                damage.pieces_unreadable,
                damage.files_unreadable,
                damage.readings_missing,
                config.store.image.display(),
            ),
        );
    }
    let stats = db.stats();
    if let Some(warning) = status::table_large(stats.table_checkpoint_bytes, stats.store_bytes) {
        log::event("warning", warning);
    }
    let db = Arc::new(db);
    let not_permitted = if config.qos.lock_memory {
        db.lock_memory()
    } else {
        Vec::new()
    };
    for warning in &not_permitted {
        log::event("warning", warning);
    }
    let found = db.recovery();
    // Damage can hide keys.
    let has_keys = db.objects() > 0
        || found.readings_unnamed > 0
        || found.directory_damaged
        || found.checkpoints_unusable > 0
        || found.damage.any();
    let of_new = TagsForm::OF_NEW_STORES;
    let key_form = db
        .with_store(|store| KeyForm::settle(mark, store, has_keys, of_new))
        .unwrap_or_else(KeyForm::unmarked);
    let upstreams = Upstreams::prepare(config, &db, &clock);
    let rules = settings::key_rules(config);
    let destination = NodeDestination::new(Arc::clone(&db), Arc::clone(&clock), rules);
    let declared = destination.declare_exact().map(drop);
    let declare_error = settings::declare_error(declared, destination.declare_failures());
    alarms::declare(config, &destination);
    let alarms = Alarms::prepare(config, &db, &clock);
    let changes = Changes::new(objects_max);
    if let Some(region) = &region {
        region.publish();
    }
    Ok(Opened {
        holder,
        db,
        target: Arc::new(Counted::new(destination, changes)),
        counts,
        totals,
        is_new,
        is_direct,
        capacity_bytes,
        free_bytes,
        queue_bytes_max,
        bounds,
        region,
        key_form,
        declare_error,
        not_permitted,
        upstreams,
        alarms,
    })
}
