//! The node's bench: `keel run` and loggers that store in SQLite, all connected to one broker on this machine.
//!
//! **Invariants:** a figure counts only if every published reading was acknowledged and the broker holds none any more.
//! The kernel counts the acknowledgements that reach the broker. Broker and publisher are charged to no system. Every
//! process is ended by its own process ID. A figure that was not measured is listed as missing.

mod broker;
mod cases;
pub(crate) mod consumer;
mod disk;
mod family;
mod forward;
mod live;
mod offline;
pub(crate) mod page;
pub(crate) mod process;
mod publisher;
mod sink;
mod socket;
mod sqlite;
mod store;
mod system;
mod times;
mod wear;
mod whole;
mod wire;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::figures::{Bound, Figures, Goal};
use crate::machine::{Machine, file_system_type, is_ext4_without_journal, load_1min, today};
use crate::progress::Progress;
use crate::report::Json;
use crate::scratch::Scratch;
use cases::{
    CPU_PER_READING, CPU_SHARE, Course, FIRST_ACKNOWLEDGED, FLUSHES, RATE, RATE_ACKNOWLEDGED,
    RESIDENT_MAX, STEADY, WRITTEN,
};
use forward::{FORWARD_HTTP, FORWARD_MQTT, FORWARDED, PLAIN};
use live::{CPU_OF_PAGE, LIVE};
use system::{COMMIT_INTERVAL_MS, Place, System};
use wear::WEAR;
use whole::WHOLE_NODE;

/// `keel-bench node`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) output: crate::output::Output,
    /// Few readings: shows that everything works; the figures mean little and no goal is judged.
    #[arg(long)]
    quick: bool,
    /// Folder to measure in; what matters is the device below it.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Only these cases.
    #[arg(long, value_name = "CASE", value_delimiter = ',')]
    only: Vec<Case>,
}

impl Options {
    fn has(&self, case: Case) -> bool {
        self.only.is_empty() || self.only.contains(&case)
    }
}

/// One part of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Case {
    Steady,
    Rate,
    Wear,
    Times,
    Restart,
    Live,
    Whole,
    Forward,
    Offline,
}

/// How much a run measures.
#[derive(Clone, Copy, Debug)]
struct Extent {
    rounds: u32,
    steady_seconds: u64,
    live_seconds: u64,
    whole: whole::Extent,
    rate_readings: u64,
    wear_readings: u64,
    restart_case: &'static str,
    restart_readings: u64,
    image_mebibytes: u64,
    restart_image_mebibytes: u64,
    forward_readings: u64,
    offline: offline::Extent,
}

const WHOLE: Extent = Extent {
    rounds: 5,
    steady_seconds: 30,
    live_seconds: 20,
    whole: whole::Extent {
        seconds: 20,
        period_seconds: 10,
        image_mebibytes: 256,
    },
    rate_readings: 300_000,
    // Ten minutes of readings: two checkpoints of ours, five of the peer.
    wear_readings: 156_000,
    restart_case: "restart-10m",
    restart_readings: 10_000_000,
    image_mebibytes: 256,
    restart_image_mebibytes: 1024,
    forward_readings: 1_000_000,
    offline: offline::Extent {
        case: "offline-24h",
        rounds: 3,
        readings: 24 * 3600 * 260,
        image_mebibytes: 2048,
        before: Duration::from_secs(60),
    },
};

const QUICK: Extent = Extent {
    rounds: 1,
    steady_seconds: 1,
    live_seconds: 2,
    whole: whole::Extent {
        seconds: 1,
        period_seconds: 1,
        image_mebibytes: 32,
    },
    rate_readings: 4_000,
    wear_readings: 650,
    restart_case: "restart-20k",
    restart_readings: 20_000,
    image_mebibytes: 32,
    restart_image_mebibytes: 32,
    forward_readings: 10_000,
    offline: offline::Extent {
        case: "offline-20k",
        rounds: 1,
        readings: 20_000,
        image_mebibytes: 32,
        before: Duration::from_secs(2),
    },
};

/// Free bytes of the folder that a whole run needs.
const SPACE_BYTES: u64 = 5 << 30;

fn goals(extent: &Extent) -> Vec<Goal> {
    let goal = |case, metric, peer, bound| Goal {
        case,
        metric,
        peer,
        bound,
    };
    let sqlite = Some(System::Sqlite.name());
    let (indexed, stock) = (
        Some(System::SqliteIndexed.name()),
        Some(System::SqliteStock.name()),
    );
    vec![
        goal(STEADY, CPU_SHARE.name, None, Bound::Below(3.0)),
        goal(STEADY, RESIDENT_MAX.name, None, Bound::Below(32.0)),
        goal(LIVE, CPU_SHARE.name, None, Bound::Below(8.0)),
        goal(LIVE, CPU_OF_PAGE.name, None, Bound::Below(5.0)),
        goal(LIVE, RESIDENT_MAX.name, None, Bound::Below(48.0)),
        goal(WHOLE_NODE, CPU_SHARE.name, None, Bound::Below(8.0)),
        goal(WHOLE_NODE, RESIDENT_MAX.name, None, Bound::Below(48.0)),
        goal(
            FORWARD_MQTT,
            FORWARDED.name,
            Some(PLAIN),
            Bound::AtLeast(0.8),
        ),
        goal(
            FORWARD_HTTP,
            FORWARDED.name,
            Some(PLAIN),
            Bound::AtLeast(0.8),
        ),
        goal(
            extent.offline.case,
            offline::LOST.name,
            None,
            Bound::AtMost(0.0),
        ),
        // The number of unacknowledged messages that one connection may have.
        goal(
            extent.offline.case,
            offline::TWICE.name,
            None,
            Bound::AtMost(10_000.0),
        ),
        goal(
            extent.offline.case,
            offline::MEDIAN_RATIO.name,
            None,
            Bound::AtMost(1.1),
        ),
        goal(
            extent.offline.case,
            offline::P99_RATIO.name,
            None,
            Bound::AtMost(1.1),
        ),
        goal(RATE, RATE_ACKNOWLEDGED.name, None, Bound::AtLeast(20_000.0)),
        // Each of the three is "a SQLite logger": none is left out, with any verdict.
        goal(RATE, CPU_PER_READING.name, sqlite, Bound::AtMost(0.5)),
        goal(RATE, CPU_PER_READING.name, indexed, Bound::AtMost(0.5)),
        goal(RATE, CPU_PER_READING.name, stock, Bound::AtMost(0.5)),
        goal(WEAR, WRITTEN.name, sqlite, Bound::AtMost(0.5)),
        goal(WEAR, FLUSHES.name, sqlite, Bound::AtMost(1.0)),
        goal(
            times::MS,
            times::LOG_BYTES.name,
            None,
            Bound::AtMost(times::LOG_BYTES_MAX),
        ),
        goal(
            times::NODE,
            times::LOG_BYTES.name,
            None,
            Bound::AtMost(times::LOG_BYTES_MAX),
        ),
        goal(
            extent.restart_case,
            FIRST_ACKNOWLEDGED.name,
            None,
            Bound::Below(2.0),
        ),
    ]
}

/// Runs the bench. Returns the figures as JSON, and the table as text.
///
/// # Errors
/// One line that names what failed; nothing is reported then.
pub(crate) fn run(options: &Options) -> Result<(Json, String), String> {
    let extent = if options.quick { QUICK } else { WHOLE };
    let space = if options.quick {
        SPACE_BYTES / 2
    } else {
        SPACE_BYTES
    };
    let scratch = Scratch::create(&options.dir, space)?;
    let file_system = file_system_type(scratch.path())?;
    let load_1min = load_1min();
    let mut figures = Figures::new(if options.quick {
        Vec::new()
    } else {
        goals(&extent)
    });
    if is_ext4_without_journal(scratch.path()) {
        figures.note(
            "the ext4 of the folder has no journal; the loop devices' file systems have one"
                .to_owned(),
        );
    }
    let progress = Progress::new();
    let mut show = |text: &str| progress.show(text);
    let whole = parts(options, &extent, &mut figures, scratch.path(), &mut show)?;
    systems(options, &extent, &mut figures, scratch.path(), &mut show)?;
    progress.clear();

    let mut method = method(&extent);
    method["quick"] = json!(options.quick);
    method["load_1min"] = json!(load_1min);
    method["file_system"] = json!(file_system);
    method["whole_node"] = whole;
    let title = format!(
        "node: medians of {} rounds, the systems taking turns, on {file_system}; \
         commits every {COMMIT_INTERVAL_MS} ms{}",
        extent.rounds,
        if options.quick {
            "; QUICK: these figures mean little"
        } else {
            ""
        },
    );
    Ok(figures.report("node", &title, &Machine::detect(), method))
}

/// Measures the cases that need no peer behind a broker. Returns the description of the whole node; null if it was not
/// measured.
fn parts(
    options: &Options,
    extent: &Extent,
    figures: &mut Figures,
    scratch: &Path,
    show: &mut dyn FnMut(&str),
) -> Result<Value, String> {
    let (rounds, readings) = (extent.rounds, extent.wear_readings);
    if options.has(Case::Wear) {
        wear::measure(
            figures,
            scratch,
            rounds,
            readings,
            extent.image_mebibytes,
            show,
        )?;
    }
    if options.has(Case::Times) {
        times::measure(
            figures,
            scratch,
            rounds,
            readings,
            extent.image_mebibytes,
            show,
        )?;
    }
    if options.has(Case::Live)
        && let Some(keel) = keel_for(LIVE, figures)
    {
        let time = Duration::from_secs(extent.live_seconds);
        live::measure(figures, &keel, scratch, rounds, time, show)?;
    }
    let mut whole = Value::Null;
    if options.has(Case::Whole)
        && let Some(keel) = keel_for(WHOLE_NODE, figures)
    {
        whole = whole::measure(figures, &keel, scratch, rounds, extent.whole, show)?;
    }
    if options.has(Case::Offline)
        && let Some(keel) = keel_for(extent.offline.case, figures)
    {
        offline::measure(figures, &keel, scratch, extent.offline, show)?;
    }
    if options.has(Case::Forward) {
        let broker = broker::find().map(|program| broker::Broker::start(&program, scratch));
        let broker = broker.transpose()?;
        if broker.is_none() {
            figures.missing(format!("{FORWARD_MQTT}: mosquitto is not installed"));
        }
        let address = broker.as_ref().map(broker::Broker::address);
        let readings = extent.forward_readings;
        forward::measure(figures, address, scratch, rounds, readings, show)?;
    }
    Ok(whole)
}

/// Measures the cases in which our node and its peers are behind a broker.
fn systems(
    options: &Options,
    extent: &Extent,
    figures: &mut Figures,
    scratch: &Path,
    show: &mut dyn FnMut(&str),
) -> Result<(), String> {
    let Some(program) = broker::find() else {
        figures.missing(format!(
            "mosquitto is not installed: {STEADY}, {RATE}, {}",
            extent.restart_case
        ));
        return Ok(());
    };
    let broker = broker::Broker::start(&program, scratch)?;
    let mut course = Course {
        figures,
        place: Place {
            broker: broker.address(),
            keel: keel_program(),
            image_mebibytes: extent.image_mebibytes,
        },
        scratch,
        rounds: extent.rounds,
        progress: show,
    };
    let mut ours = vec![System::Keel];
    if course.place.keel.is_none() {
        let what = "keel: no program with a command `run` beside this one";
        course.figures.missing(what.to_owned());
        ours.clear();
    }
    if options.has(Case::Steady) {
        let time = Duration::from_secs(extent.steady_seconds);
        cases::steady(&mut course, &[&ours[..], &[System::Sqlite]].concat(), time)?;
    }
    if options.has(Case::Rate) {
        let peers = [
            System::Sqlite,
            System::SqliteIndexed,
            System::SqliteStock,
            System::KeelParts,
        ];
        cases::rate(
            &mut course,
            &[&ours[..], &peers].concat(),
            extent.rate_readings,
        )?;
    }
    if options.has(Case::Restart) {
        course.place.image_mebibytes = extent.restart_image_mebibytes;
        let systems = [&ours[..], &[System::Sqlite]].concat();
        let mut fill =
            |system: System, folder: &Path| store::fill(system, folder, extent.restart_readings);
        cases::restart(&mut course, extent.restart_case, &systems, &mut fill)?;
    }
    Ok(())
}

/// Describes how a run of this extent measures.
fn method(extent: &Extent) -> Value {
    json!({
        "date": today(),
        "rounds_each": extent.rounds,
        "commit_interval_ms": COMMIT_INTERVAL_MS,
        "broker": {"max_inflight_messages": 0, "max_queued_messages": broker::QUEUED_MESSAGES_MAX,
                   "max_queued_bytes": 0, "persistence": false, "set_tcp_nodelay": false},
        "publisher": {"topics": publisher::TOPICS, "qos": 1, "backlog_max": publisher::BACKLOG_MAX},
        "steady_seconds": extent.steady_seconds,
        "live_page": {"sensors": 1024, "updates_per_second": 10, "seconds": extent.live_seconds},
        "forward_readings": extent.forward_readings,
        "offline": {"readings": extent.offline.readings, "rounds": extent.offline.rounds,
                    "seconds_before": extent.offline.before.as_secs()},
        "rate_readings": extent.rate_readings,
        "wear_readings": extent.wear_readings,
        "restart_readings": extent.restart_readings,
    })
}

/// Returns the program `keel`; without one, the case is listed as missing.
fn keel_for(case: &str, figures: &mut Figures) -> Option<PathBuf> {
    let keel = keel_program();
    if keel.is_none() {
        figures.missing(format!("{case}: no program keel beside this one"));
    }
    keel
}

/// Returns the program `keel` in the folder of this one.
fn keel_program() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok()?.parent()?.join("keel");
    // A program of an earlier build may lack the node.
    let mut probe = Command::new(&beside);
    probe
        .args(["run", "--help"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    probe
        .status()
        .is_ok_and(|status| status.success())
        .then_some(beside)
}
