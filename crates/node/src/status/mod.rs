//! The status of a node: its figures, the judgement of them, wear, and both as text and as JSON.
//!
//! The node fills [`NodeFigures`]; [`Report::new`] judges them. The JSON form is the report as it is: names are stable
//! and end with their unit; unknown values are null. `docs/operate.md` explains the codes of the reasons.
//!
//! **Files:** `collect.rs` copies the counters of the rooms, `judge.rs` judges them, `text.rs` shows them, `totals.rs`
//! and `wear.rs` what outlives a run and what it costs; a figure with rules of its own is the file of its name.

mod collect;
mod intake;
mod jobs;
mod judge;
mod modbus;
mod programs;
mod qos;
mod sparkplug;
#[cfg(test)]
mod tests;
mod text;
mod totals;
mod urgent;
mod wear;

pub use intake::{IntakeFigures, KeyFigures};
pub use judge::CODES;
pub use modbus::ModbusFigures;
pub use programs::{MountFigures, MountTraffic, TaskFigures};
pub use qos::{IdentificationState, PeriodState, QosState, ShedKey, TaskState, TasksEnded};
pub use sparkplug::EdgeNodeFigures;
pub use text::{grouped, span};
pub use totals::Totals;
pub use urgent::{
    ActiveFigures, ActuatorFigures, AlarmFigures, BrokerFigures, DeliveryFigures, UrgentFigures,
};
pub use wear::{Delta, Wear};

pub(crate) use judge::{judge, table_large};
pub(crate) use qos::{SHED_KEYS_MAX, held_name};
pub(crate) use totals::TOTALS_NAME;
pub(crate) use urgent::ACTIVE_MAX;
pub(crate) use wear::{Sample, Window};

use ingest::intake::Reason as RefusalReason;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Exit status of `keel status` for a node that is degraded. Failed or unreachable is 1, wrong usage 2.
pub const STATUS_DEGRADED: u8 = 3;

/// The code of a checkpoint that failed for lack of room.
const NO_ROOM: &str = "no_room";

/// Whether the node fulfils its task.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It does.
    Ok,
    /// It does, with a restriction that its owner should know.
    Degraded,
    /// Readings no longer become durable.
    #[default]
    Failed,
}

impl State {
    /// Returns `ok`, `degraded` or `failed`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Failed => "failed",
        }
    }

    /// Returns the exit status of `keel status`.
    #[must_use]
    pub fn exit_status(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Degraded => STATUS_DEGRADED,
            Self::Failed => command::error::STATUS_FAILURE,
        }
    }
}

/// One reason why the state is not ok.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// A code of `docs/operate.md`; a later node may send other codes.
    pub code: String,
    /// What the condition is, and the remedy.
    pub text: String,
}

/// The judgement of a node's figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Judgement {
    /// The state.
    pub(crate) state: State,
    /// The reasons; empty if and only if the state is ok.
    pub(crate) reasons: Vec<Reason>,
}

/// Everything that `keel status` shows; its JSON form.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Report {
    /// The judgement.
    pub state: State,
    /// The reasons.
    pub reasons: Vec<Reason>,
    /// The counters of the node.
    #[serde(flatten)]
    pub figures: NodeFigures,
    /// The wear of the card by writing.
    pub wear: Wear,
}

impl Report {
    /// Judges these figures.
    #[must_use]
    pub fn new(figures: NodeFigures) -> Self {
        let Judgement { state, reasons } = judge(&figures);
        let wear = Wear::of(&figures);
        Self {
            state,
            reasons,
            figures,
            wear,
        }
    }
}

/// The counters of a node. They start at zero with the node unless their names say otherwise.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct NodeFigures {
    /// The process.
    pub node: ProcessFigures,
    /// The store and its device.
    pub store: StoreFigures,
    /// The durable log.
    pub log: LogFigures,
    /// History and retention.
    pub history: HistoryFigures,
    /// Keys.
    pub keys: KeyFigures,
    /// Input of all sources.
    pub intake: IntakeFigures,
    /// `None` if no broker is configured.
    pub mqtt: Option<MqttFigures>,
    /// The listeners of the line protocol.
    pub line: LineState,
    /// `modbus`, one for each device, and `modbus_faults`.
    #[serde(flatten)]
    pub modbus: ModbusFigures,
    /// Edge nodes of Sparkplug, in the order of their names.
    pub sparkplug: Vec<EdgeNodeFigures>,
    /// The socket of the commands.
    pub commands: CommandFigures,
    /// The wall clock.
    pub clock: ClockFigures,
    /// What the node sent to the device.
    pub device: DeviceFigures,
    /// One for each `[[upstream]]`.
    pub upstream: Vec<UpstreamFigures>,
    /// Brokers, alarms and actuators, each in its own list.
    #[serde(flatten)]
    pub urgent: UrgentFigures,
    /// `None` if no region is configured.
    pub region: Option<RegionFigures>,
    /// Changes within the last minute.
    pub last_minute: Delta,
    /// Changes within the last ten minutes.
    pub last_ten_minutes: Delta,
    /// Totals since the store was made, this run included.
    pub lifetime: Totals,
    /// Operations of the device beside their bound.
    pub flash: FlashFigures,
    /// `None` if no HTTP is configured.
    pub http: Option<egress::http::HttpFigures>,
    /// Why nothing is served over HTTP although it is configured.
    pub http_unusable: Option<String>,
    /// Whether updates are dropped on purpose to meet deadlines.
    pub shedding: bool,
    /// Tasks, and how well they meet their deadlines.
    pub qos: QosState,
    /// Jobs of the configuration.
    pub jobs: Vec<JobFigures>,
    /// Power sensors of the board.
    pub power: Vec<PowerFigures>,
    /// Mounts that contain programs.
    pub mounts: Vec<MountFigures>,
    /// Programs that the node keeps running.
    pub tasks: Vec<TaskFigures>,
    /// Programs of an earlier run that are, or may be, still running; null if there are none.
    pub task_leftover: Option<String>,
    /// Why index and retention do not advance; null while they do.
    pub history_failing: Option<String>,
    /// Failed accepts of the command and line protocol listeners together.
    pub listeners_failed: u64,
    /// The error of the latest failed accept, with its listener's address or path; it is never cleared.
    pub listener_error: Option<String>,
    /// Sources of readings (line protocol, MQTT, Modbus) that have ended while the node runs, each with the reason.
    pub sources_ended: Vec<String>,
}

/// The process.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct ProcessFigures {
    /// Version of the program.
    pub version: String,
    /// Process ID.
    pub pid: u32,
    /// How long it has run, in ms.
    pub uptime_ms: u64,
    /// Resident memory, in bytes.
    pub memory_resident_bytes: u64,
    /// Path of the configuration.
    pub config_file: String,
    /// Keys of the configuration that take effect at the next start.
    pub config_pending_restart: Vec<String>,
    /// Why the last reload was refused or a declared key could not be made, until a reload succeeds.
    pub config_error: Option<String>,
}

/// The store and its device.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct StoreFigures {
    /// Image file or block device.
    pub image: String,
    /// Capacity of the files, in bytes.
    pub capacity_bytes: u64,
    /// The free part of it, in bytes.
    pub free_bytes: u64,
    /// Whether transfers bypass the page cache.
    pub direct: bool,
    /// Whether new readings are refused for lack of room.
    pub full: bool,
    /// Terabytes (10^12 bytes) that the card is rated for; 0 if unknown.
    pub card_rated_write_terabytes: f64,
}

/// The durable log.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct LogFigures {
    /// Readings taken.
    pub readings_taken: u64,
    /// Those of them that are on flash.
    pub readings_durable: u64,
    /// Readings taken and not yet on flash.
    pub readings_outstanding: u64,
    /// Bytes that they occupy in the queue.
    pub queue_bytes: u64,
    /// The queue's capacity, in bytes.
    pub queue_bytes_max: u64,
    /// Age of the oldest reading that is not yet on flash, in ms.
    pub durable_lag_ms: f64,
    /// Longest time from a reading to its flush, in ms, as configured.
    pub commit_interval_ms: u32,
    /// Offers refused because the queue was full. A waiting source offers the same reading again.
    pub refused_busy: u64,
    /// Offers refused because the store was full.
    pub refused_full: u64,
    /// Offers refused because the log had failed.
    pub refused_failed: u64,
    /// Readings logged whose key already had a newer value.
    pub readings_outdated: u64,
    /// Batches committed.
    pub commits: u64,
    /// Appends to the log.
    pub appends: u64,
    /// Bytes appended.
    pub log_bytes: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// Checkpoints that could not be written.
    pub checkpoints_failed: u64,
    /// Whether the last checkpoint could not be written.
    pub checkpoint_failing: bool,
    /// Why: `no_room` or `table_spoilt`.
    pub checkpoint_error: Option<String>,
    /// Bytes of log after the last checkpoint; a start would read them.
    pub replay_bytes: u64,
    /// The largest size of a checkpoint of the current latest values, in bytes.
    pub table_checkpoint_bytes: u64,
    /// Why the log takes no more readings: `device`, `full` or `closed`.
    pub failed: Option<String>,
    /// Damaged records, found at the start and later.
    pub records_damaged: u64,
    /// Unreadable pieces of files.
    pub pieces_unreadable: u64,
    /// Unreadable files.
    pub files_unreadable: u64,
    /// Readings missing because of that.
    pub readings_missing: u64,
    /// Duration of an append, in µs.
    pub append_us: Latency,
    /// Time from a reading's arrival until it is on flash, in µs.
    pub put_durable_us: Latency,
}

/// A distribution of times in µs; all 0 if nothing was measured.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Latency {
    /// Measured times.
    pub count: u64,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// The longest time.
    pub max: f64,
}

impl Latency {
    /// Returns the distribution of a histogram of ns.
    pub(crate) fn of(histogram: &base::histogram::Histogram) -> Self {
        let us = |ns: u64| ns as f64 / 1e3;
        if histogram.count() == 0 {
            return Self::default();
        }
        Self {
            count: histogram.count(),
            p50: us(histogram.percentile(50.0)),
            p99: us(histogram.percentile(99.0)),
            p999: us(histogram.percentile(99.9)),
            max: us(histogram.max()),
        }
    }
}

/// History and retention.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct HistoryFigures {
    /// Segments of the log.
    pub segments: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Limit of the bytes; 0: none.
    pub bytes_max: u64,
    /// Limit of the age, in days; 0: none.
    pub days_max: u32,
    /// `reject-new` or `drop-oldest`.
    pub full_policy: String,
    /// Readings deleted because of a limit.
    pub readings_expired: u64,
    /// Readings deleted to make room in a full store.
    pub readings_dropped: u64,
}

/// A job that the node starts periodically.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct JobFigures {
    /// Its name in the configuration.
    pub name: String,
    /// The computation.
    pub kernel: String,
    /// Key whose history is its input.
    pub key: String,
    /// Time between two starts, in s.
    pub period_seconds: u32,
    /// Whether it runs now.
    pub running: bool,
    /// Runs that were started.
    pub runs: u64,
    /// Runs that failed.
    pub failed: u64,
    /// Runs that ended after the deadline.
    pub late: u64,
    /// Starts skipped because the previous run had not ended.
    pub skipped: u64,
    /// Where the advisor placed the last run.
    pub place: Option<String>,
    /// Why it is there.
    pub why: Option<String>,
    /// Figures that the advisor had to assume.
    pub assumed: Vec<String>,
    /// Duration of the last run, in s.
    pub last_seconds: Option<f64>,
    /// Whether the last run failed.
    pub failing: bool,
    /// Why the latest failed run failed; it is never cleared.
    pub last_error: Option<String>,
    /// Boards that the last run was without, with the reasons.
    pub boards_missing: Vec<String>,
}

/// A power sensor of the board.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct PowerFigures {
    /// Its name.
    pub name: String,
    /// What its value covers, such as the whole board.
    pub covers: String,
    /// Its value, in W; `None` if it has none now.
    pub watts: Option<f64>,
    /// The reason if it has no value; else the formula of a modelled one.
    pub why: Option<String>,
}

/// The session with the broker.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct MqttFigures {
    /// `host:port`
    pub address: String,
    /// Whether there is a connection.
    pub connected: bool,
    /// The last error; it is not cleared when things go well again.
    pub last_error: Option<String>,
    /// Subscriptions of the configuration.
    pub subscriptions_wanted: u64,
    /// Those that the broker has accepted.
    pub subscriptions_held: u64,
    /// Those that it has refused.
    pub subscriptions_refused: u64,
    /// Subscriptions without an answer of the broker for longer than `connect_ms_max`.
    pub subscriptions_unanswered: u64,
    /// Connections made.
    pub connects: u64,
    /// Connections lost.
    pub losses: u64,
    /// Messages received.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Messages acknowledged.
    pub acknowledged: u64,
    /// Messages taken that are not acknowledged yet.
    pub in_flight: u64,
    /// Messages that the broker marks as sent again.
    pub redelivered: u64,
    /// Copies of messages that also arrived for another filter; they were left out.
    #[serde(default)]
    pub copies: u64,
    /// Messages larger than allowed.
    pub oversized: u64,
    /// Packets that broke the protocol; each ended a connection.
    pub packets_invalid: u64,
    /// Time in which nothing was read because the store was slower than the broker, in ms.
    pub paused_busy_ms: u64,
    /// The same because the store was full.
    pub paused_full_ms: u64,
}

/// One upstream. Counts of readings start with its cursor, all others with the node.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct UpstreamFigures {
    /// Its name in the configuration.
    pub name: String,
    /// `mqtt` or `http`.
    pub kind: String,
    /// `host:port`
    pub address: String,
    /// Whether the latest connection attempt succeeded.
    pub connected: bool,
    /// Connections made.
    pub connects: u64,
    /// Connections lost.
    pub losses: u64,
    /// Readings of the log that it has not acknowledged, selected or not.
    pub backlog_readings: u64,
    /// Age of the oldest of them, in ms; null if there is none.
    pub backlog_age_ms: Option<u64>,
    /// How long the oldest has not changed, in ms.
    pub unmoved_ms: u64,
    /// How long a reading may wait to be sent together with others, in ms.
    pub linger_ms: u64,
    /// Whether the log is kept until the upstream has its readings.
    pub hold: bool,
    /// Whether nothing is sent because the wall clock has not been set yet.
    pub waits_for_clock: bool,
    /// Readings sent and not yet acknowledged.
    pub in_flight: u64,
    /// Readings sent, repetitions included.
    pub sent: u64,
    /// Readings acknowledged.
    pub acknowledged: u64,
    /// Readings sent again, or after a crash possibly sent again.
    pub sent_twice: u64,
    /// Readings deleted before they were sent.
    pub forward_lost: u64,
    /// Readings hidden by damage.
    pub missing: u64,
    /// Readings older than their deadline that were sent.
    pub late_sent: u64,
    /// Readings older than their deadline that were skipped.
    pub late_skipped: u64,
    /// Readings dropped by down-sampling.
    pub thinned: u64,
    /// Readings that could not be sent or were not accepted, in total.
    pub refused_total: u64,
    /// The same by reason.
    pub refused: BTreeMap<String, u64>,
    /// The last error; it is not cleared when things go well again.
    pub last_error: Option<String>,
    /// Why the cursor cannot be written.
    pub cursor_error: Option<String>,
    /// Whether the cursor was unusable, so that forwarding began with the oldest reading.
    pub cursor_was_lost: bool,
    /// Writes of the cursor.
    pub cursor_writes: u64,
    /// Answers to nothing that was sent.
    pub answers_unknown: u64,
    /// Why nothing is forwarded at all.
    pub unusable: Option<String>,
    /// What this start of the node found in the store. After a crash it is less than was shown before.
    pub before_start: BeforeStart,
}

/// Counters of an upstream as the store had them. Metrics are counted from here: a counter that goes back by a little
/// looks as if all of it had happened anew.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct BeforeStart {
    /// Readings acknowledged.
    pub acknowledged: u64,
    /// Readings sent again.
    pub sent_twice: u64,
    /// Readings deleted before they were sent.
    pub forward_lost: u64,
    /// Readings hidden by damage.
    pub missing: u64,
    /// Readings older than their deadline that were sent.
    pub late_sent: u64,
    /// Readings older than their deadline that were skipped.
    pub late_skipped: u64,
    /// Readings dropped by down-sampling.
    pub thinned: u64,
    /// Readings that could not be sent or were not accepted.
    pub refused_total: u64,
}

/// The region.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct RegionFigures {
    /// The region's file.
    pub file: String,
    /// Name of the slot table's file in it.
    pub table: String,
    /// Whether other processes can read the latest values there.
    pub served: bool,
    /// Why the region, or the table in it, is not used.
    pub error: Option<String>,
    /// Size of the region, in bytes.
    pub capacity_bytes: u64,
    /// The free part of it, in bytes.
    pub free_bytes: u64,
    /// Store of its checkpoints; null if its files are not saved.
    pub checkpoint_image: Option<String>,
    /// Time between two checkpoints, in s.
    pub checkpoint_interval_seconds: u32,
    /// Generation of the newest checkpoint; 0 if there is none.
    pub checkpoint_generation: u64,
    /// Checkpoints taken.
    pub checkpoints: u64,
    /// Checkpoints that failed.
    pub checkpoints_failed: u64,
    /// Whether the last checkpoint failed.
    pub checkpoint_failing: bool,
    /// Why the latest failed one failed; it is never cleared.
    pub checkpoint_error: Option<String>,
    /// What a power cut would lose: time since the begin of the last finished checkpoint; null if there is none.
    pub loss_window_seconds: Option<f64>,
    /// The generation that this start restored; 0 if none.
    pub restored_generation: u64,
    /// Files that this start restored.
    pub restored_files: u64,
    /// Files that it could not restore.
    pub restored_files_lost: u64,
}

/// The listeners of the line protocol.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct LineState {
    /// Addresses and paths of the listeners.
    pub listen: Vec<String>,
    /// The most connections.
    pub connections_max: u64,
    /// Connections that are open.
    pub connections: u64,
    /// All connections since the start.
    pub connections_total: u64,
    /// Connections closed at once because there were too many.
    pub connections_refused: u64,
    /// Connections closed because they were idle.
    pub connections_idle: u64,
    /// Connections closed, after they had sent something, because another one needed the place.
    pub connections_made_room: u64,
    /// Connections that were reset, vanished, or left answers unread.
    pub connections_ended_early: u64,
    /// Connections closed because of an unterminated text.
    pub connections_text_open: u64,
    /// Connections whose lines currently wait for the store.
    pub waiting: u64,
    /// Finished lines, without empty ones.
    pub lines: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Acknowledgement lines sent.
    pub acknowledged: u64,
    /// Lines longer than allowed.
    pub oversized: u64,
    /// Lines cut off by the end of their connection.
    pub unfinished: u64,
}

/// The socket of the commands.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct CommandFigures {
    /// Path of the socket.
    pub socket: String,
    /// Connections that are open.
    pub connections: u64,
    /// Connections refused because there were too many.
    pub connections_refused: u64,
    /// Requests answered.
    pub requests: u64,
    /// Readings put.
    pub puts: u64,
    /// Connections that watch changes.
    pub watchers: u64,
}

/// The wall clock.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct ClockFigures {
    /// Whether its time counts as right.
    pub trusted: bool,
    /// Steps of more than one second.
    pub steps: u64,
}

/// What the node sent to the device.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct DeviceFigures {
    /// Bytes written.
    pub bytes_written: u64,
    /// Flushes.
    pub flushes: u64,
    /// Requests to read.
    pub reads: u64,
    /// Requests to write.
    pub writes: u64,
}

/// The actual number of operations beside the bound of the store. Operations are writes and flushes of the device since
/// the node began to serve; null without a reading.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct FlashFigures {
    /// Operations of the calls since the start.
    pub operations: u64,
    /// The upper bound of the same calls.
    pub operations_bound: u64,
    /// Operations per durable reading.
    pub operations_per_reading: Option<f64>,
    /// The bound of the same.
    pub operations_per_reading_bound: Option<f64>,
}
