//! The status of a node: its figures, the judgement of them, wear, and both as text and as JSON.
//!
//! The node fills [`NodeFigures`]; [`Report::new`] judges them. The JSON form is the report as it is: names are stable
//! and end with their unit; unknown values are null. `docs/operate.md` explains the codes of the reasons.

mod intake;
mod jobs;
mod judge;
mod modbus;
mod programs;
mod sparkplug;
#[cfg(test)]
mod tests;
mod text;
mod totals;
mod urgent;
mod wear;

pub(crate) use intake::{IntakeFigures, KeyFigures};
#[cfg(test)]
pub(crate) use judge::CODES;
pub(crate) use judge::{judge, table_large};
pub(crate) use modbus::ModbusFigures;
pub(crate) use programs::{MountFigures, MountTraffic, TaskFigures};
pub(crate) use sparkplug::EdgeNodeFigures;
pub(crate) use text::{grouped, span};
pub(crate) use totals::{TOTALS_NAME, Totals};
pub(crate) use urgent::{ACTIVE_MAX, ActiveFigures, AlarmFigures, UrgentFigures};
pub(crate) use wear::{Delta, Sample, Wear, Window};

use crate::qos::QosState;
use ingest::intake::Reason as RefusalReason;
use ingest::line::LineFigures;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Exit status of `keel status` for a node that is degraded. Failed or unreachable is 1, wrong usage 2.
pub(crate) const STATUS_DEGRADED: u8 = 3;

/// The code of a checkpoint that failed for lack of room.
const NO_ROOM: &str = "no_room";

/// Whether the node fulfils its task.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
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
    pub(crate) fn exit_status(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Degraded => STATUS_DEGRADED,
            Self::Failed => crate::error::STATUS_FAILURE,
        }
    }
}

/// One reason why the state is not ok.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Reason {
    /// A code of `docs/operate.md`; a later node may send other codes.
    pub(crate) code: String,
    /// What the condition is, and the remedy.
    pub(crate) text: String,
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
pub(crate) struct Report {
    /// The judgement.
    pub(crate) state: State,
    /// The reasons.
    pub(crate) reasons: Vec<Reason>,
    /// The counters of the node.
    #[serde(flatten)]
    pub(crate) figures: NodeFigures,
    /// The wear of the card by writing.
    pub(crate) wear: Wear,
}

impl Report {
    /// Judges these figures.
    pub(crate) fn new(figures: NodeFigures) -> Self {
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
pub(crate) struct NodeFigures {
    pub(crate) node: ProcessFigures,
    pub(crate) store: StoreFigures,
    pub(crate) log: LogFigures,
    pub(crate) history: HistoryFigures,
    pub(crate) keys: KeyFigures,
    pub(crate) intake: IntakeFigures,
    /// `None` if no broker is configured.
    pub(crate) mqtt: Option<MqttFigures>,
    pub(crate) line: LineState,
    /// `modbus`, one for each device, and `modbus_faults`.
    #[serde(flatten)]
    pub(crate) modbus: ModbusFigures,
    /// Edge nodes of Sparkplug, in the order of their names.
    pub(crate) sparkplug: Vec<EdgeNodeFigures>,
    pub(crate) commands: CommandFigures,
    pub(crate) clock: ClockFigures,
    pub(crate) device: DeviceFigures,
    /// One for each `[[upstream]]`.
    pub(crate) upstream: Vec<UpstreamFigures>,
    /// Brokers, alarms and actuators, each in its own list.
    #[serde(flatten)]
    pub(crate) urgent: UrgentFigures,
    /// `None` if no region is configured.
    pub(crate) region: Option<RegionFigures>,
    /// Changes within the last minute.
    pub(crate) last_minute: Delta,
    /// Changes within the last ten minutes.
    pub(crate) last_ten_minutes: Delta,
    /// Totals since the store was made, this run included.
    pub(crate) lifetime: Totals,
    pub(crate) flash: FlashFigures,
    /// `None` if no HTTP is configured.
    pub(crate) http: Option<egress::http::HttpFigures>,
    /// Why nothing is served over HTTP although it is configured.
    pub(crate) http_unusable: Option<String>,
    /// Whether updates are dropped on purpose to meet deadlines.
    pub(crate) shedding: bool,
    /// Tasks, and how well they meet their deadlines.
    pub(crate) qos: QosState,
    /// Jobs of the configuration.
    pub(crate) jobs: Vec<JobFigures>,
    pub(crate) power: Vec<PowerFigures>,
    /// Mounts that contain programs, and programs that the node keeps running.
    pub(crate) mounts: Vec<MountFigures>,
    pub(crate) tasks: Vec<TaskFigures>,
    /// Programs of an earlier run that are, or may be, still running; null if there are none.
    pub(crate) task_leftover: Option<String>,
    /// Why index and retention do not advance; null while they do.
    pub(crate) history_failing: Option<String>,
    /// Failed accepts of the command and line protocol listeners together.
    pub(crate) listeners_failed: u64,
    /// The error of the latest failed accept, with its listener's address or path; it is never cleared.
    pub(crate) listener_error: Option<String>,
    /// Sources of readings (line protocol, MQTT, Modbus) that have ended while the node runs, each with the reason.
    pub(crate) sources_ended: Vec<String>,
}

/// The process.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct ProcessFigures {
    pub(crate) version: String,
    pub(crate) pid: u32,
    pub(crate) uptime_ms: u64,
    pub(crate) memory_resident_bytes: u64,
    pub(crate) config_file: String,
    /// Keys of the configuration that take effect at the next start.
    pub(crate) config_pending_restart: Vec<String>,
    /// Why the last reload was refused or a declared key could not be made, until a reload succeeds.
    pub(crate) config_error: Option<String>,
}

/// The store and its device.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct StoreFigures {
    pub(crate) image: String,
    /// Capacity of the files, and the free part of it.
    pub(crate) capacity_bytes: u64,
    pub(crate) free_bytes: u64,
    /// Whether transfers bypass the page cache.
    pub(crate) direct: bool,
    /// Whether new readings are refused for lack of room.
    pub(crate) full: bool,
    /// Terabytes (10^12 bytes) that the card is rated for; 0 if unknown.
    pub(crate) card_rated_write_terabytes: f64,
}

/// The durable log.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct LogFigures {
    /// Readings taken, and those of them that are on flash.
    pub(crate) readings_taken: u64,
    pub(crate) readings_durable: u64,
    /// Readings taken and not yet on flash, the bytes that they occupy in the queue, and the queue's capacity.
    pub(crate) readings_outstanding: u64,
    pub(crate) queue_bytes: u64,
    pub(crate) queue_bytes_max: u64,
    /// Age of the oldest reading that is not yet on flash.
    pub(crate) durable_lag_ms: f64,
    pub(crate) commit_interval_ms: u32,
    /// Offers refused because the queue was full, because the store was full, and because the log had failed. A waiting
    /// source offers the same reading again.
    pub(crate) refused_busy: u64,
    pub(crate) refused_full: u64,
    pub(crate) refused_failed: u64,
    /// Readings logged whose key already had a newer value.
    pub(crate) readings_outdated: u64,
    pub(crate) commits: u64,
    pub(crate) appends: u64,
    pub(crate) log_bytes: u64,
    pub(crate) checkpoints: u64,
    pub(crate) checkpoints_failed: u64,
    /// Whether the last checkpoint could not be written, and why: `no_room` or `table_spoilt`.
    pub(crate) checkpoint_failing: bool,
    pub(crate) checkpoint_error: Option<String>,
    /// Bytes of log after the last checkpoint; a start would read them.
    pub(crate) replay_bytes: u64,
    /// The largest size of a checkpoint of the current latest values, in bytes.
    pub(crate) table_checkpoint_bytes: u64,
    /// Why the log takes no more readings: `device`, `full` or `closed`.
    pub(crate) failed: Option<String>,
    /// Damage found at the start and later.
    pub(crate) records_damaged: u64,
    pub(crate) pieces_unreadable: u64,
    pub(crate) files_unreadable: u64,
    pub(crate) readings_missing: u64,
    /// Duration of an append, and time from a reading's arrival until it is on flash.
    pub(crate) append_us: Latency,
    pub(crate) put_durable_us: Latency,
}

/// A distribution of times in µs; all 0 if nothing was measured.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Latency {
    pub(crate) count: u64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
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
pub(crate) struct HistoryFigures {
    pub(crate) segments: u64,
    pub(crate) bytes: u64,
    /// Limits; 0 means none.
    pub(crate) bytes_max: u64,
    pub(crate) days_max: u32,
    /// `reject-new` or `drop-oldest`.
    pub(crate) full_policy: String,
    /// Readings deleted because of a limit, and to make room in a full store.
    pub(crate) readings_expired: u64,
    pub(crate) readings_dropped: u64,
}

/// A job that the node starts periodically.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct JobFigures {
    pub(crate) name: String,
    pub(crate) kernel: String,
    pub(crate) key: String,
    pub(crate) period_seconds: u32,
    pub(crate) running: bool,
    /// Runs that were started, runs that failed, and runs that ended after the deadline.
    pub(crate) runs: u64,
    pub(crate) failed: u64,
    pub(crate) late: u64,
    /// Starts skipped because the previous run had not ended.
    pub(crate) skipped: u64,
    /// Where the advisor placed the last run, why, and which figures it had to assume.
    pub(crate) place: Option<String>,
    pub(crate) why: Option<String>,
    pub(crate) assumed: Vec<String>,
    /// Duration of the last run.
    pub(crate) last_seconds: Option<f64>,
    /// Whether the last run failed, and why the latest failed run failed; the latter is never cleared.
    pub(crate) failing: bool,
    pub(crate) last_error: Option<String>,
    /// Boards that the last run was without, with the reasons.
    pub(crate) boards_missing: Vec<String>,
}

/// A power sensor of the board.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct PowerFigures {
    pub(crate) name: String,
    /// What its value covers, such as the whole board.
    pub(crate) covers: String,
    /// `None` if it has no value now; then `why` has the reason. With a value, `why` has the formula of a modelled one.
    pub(crate) watts: Option<f64>,
    pub(crate) why: Option<String>,
}

/// The session with the broker.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct MqttFigures {
    /// `host:port`
    pub(crate) address: String,
    pub(crate) connected: bool,
    /// The last error; it is not cleared when things go well again.
    pub(crate) last_error: Option<String>,
    pub(crate) subscriptions_wanted: u64,
    pub(crate) subscriptions_held: u64,
    pub(crate) subscriptions_refused: u64,
    pub(crate) subscriptions_unanswered: u64,
    pub(crate) connects: u64,
    pub(crate) losses: u64,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    pub(crate) acknowledged: u64,
    pub(crate) in_flight: u64,
    pub(crate) redelivered: u64,
    #[serde(default)]
    pub(crate) copies: u64,
    pub(crate) oversized: u64,
    pub(crate) packets_invalid: u64,
    /// Time in which nothing was read because the store was slower than the broker, and because the store was full.
    pub(crate) paused_busy_ms: u64,
    pub(crate) paused_full_ms: u64,
}

/// One upstream. Counts of readings start with its cursor, all others with the node.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct UpstreamFigures {
    pub(crate) name: String,
    /// `mqtt` or `http`.
    pub(crate) kind: String,
    /// `host:port`
    pub(crate) address: String,
    /// Whether the latest connection attempt succeeded.
    pub(crate) connected: bool,
    pub(crate) connects: u64,
    pub(crate) losses: u64,
    /// Readings of the log that it has not acknowledged, selected or not, and the age of the oldest.
    pub(crate) backlog_readings: u64,
    pub(crate) backlog_age_ms: Option<u64>,
    /// How long the oldest has not changed, and how long a reading may wait to be sent together with others.
    pub(crate) unmoved_ms: u64,
    pub(crate) linger_ms: u64,
    /// Whether the log is kept until the upstream has its readings.
    pub(crate) hold: bool,
    /// Whether nothing is sent because the wall clock has not been set yet.
    pub(crate) waits_for_clock: bool,
    pub(crate) in_flight: u64,
    /// Readings sent, repetitions included; readings acknowledged; and readings sent again, or after a crash possibly
    /// sent again.
    pub(crate) sent: u64,
    pub(crate) acknowledged: u64,
    pub(crate) sent_twice: u64,
    /// Readings deleted before they were sent, and readings hidden by damage.
    pub(crate) forward_lost: u64,
    pub(crate) missing: u64,
    /// Readings older than their deadline: sent, and skipped.
    pub(crate) late_sent: u64,
    pub(crate) late_skipped: u64,
    /// Readings dropped by down-sampling.
    pub(crate) thinned: u64,
    /// Readings that could not be sent or were not accepted, in total and by reason.
    pub(crate) refused_total: u64,
    pub(crate) refused: BTreeMap<String, u64>,
    /// The last error; it is not cleared when things go well again.
    pub(crate) last_error: Option<String>,
    /// Why the cursor cannot be written.
    pub(crate) cursor_error: Option<String>,
    /// Whether the cursor was unusable, so that forwarding began with the oldest reading.
    pub(crate) cursor_was_lost: bool,
    pub(crate) cursor_writes: u64,
    pub(crate) answers_unknown: u64,
    /// Why nothing is forwarded at all.
    pub(crate) unusable: Option<String>,
    /// What this start of the node found in the store. After a crash it is less than was shown before.
    pub(crate) before_start: BeforeStart,
}

/// Counters of an upstream as the store had them. Metrics are counted from here: a counter that goes back by a little
/// looks as if all of it had happened anew.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct BeforeStart {
    pub(crate) acknowledged: u64,
    pub(crate) sent_twice: u64,
    pub(crate) forward_lost: u64,
    pub(crate) missing: u64,
    pub(crate) late_sent: u64,
    pub(crate) late_skipped: u64,
    pub(crate) thinned: u64,
    pub(crate) refused_total: u64,
}

/// The region.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct RegionFigures {
    pub(crate) file: String,
    pub(crate) table: String,
    /// Whether other processes can read the latest values there.
    pub(crate) served: bool,
    /// Why the region, or the table in it, is not used.
    pub(crate) error: Option<String>,
    pub(crate) capacity_bytes: u64,
    pub(crate) free_bytes: u64,
    /// Null if its files are not saved.
    pub(crate) checkpoint_image: Option<String>,
    pub(crate) checkpoint_interval_seconds: u32,
    /// Generation of the newest checkpoint; 0 if there is none.
    pub(crate) checkpoint_generation: u64,
    pub(crate) checkpoints: u64,
    pub(crate) checkpoints_failed: u64,
    /// Whether the last checkpoint failed, and why the latest failed one failed; the latter is never cleared.
    pub(crate) checkpoint_failing: bool,
    pub(crate) checkpoint_error: Option<String>,
    /// What a power cut would lose: time since the begin of the last finished checkpoint; null if there is none.
    pub(crate) loss_window_seconds: Option<f64>,
    /// The generation that this start restored; 0 if none.
    pub(crate) restored_generation: u64,
    pub(crate) restored_files: u64,
    pub(crate) restored_files_lost: u64,
}

/// The listeners of the line protocol.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct LineState {
    /// Addresses and paths of the listeners.
    pub(crate) listen: Vec<String>,
    pub(crate) connections_max: u64,
    pub(crate) connections: u64,
    pub(crate) connections_total: u64,
    /// Connections closed at once because there were too many.
    pub(crate) connections_refused: u64,
    /// Connections closed because they were idle.
    pub(crate) connections_idle: u64,
    /// Connections closed, after they had sent something, because another one needed the place.
    pub(crate) connections_made_room: u64,
    /// Connections that were reset, vanished, or left answers unread; and connections closed because of an unterminated
    /// text.
    pub(crate) connections_ended_early: u64,
    pub(crate) connections_text_open: u64,
    /// Connections whose lines currently wait for the store.
    pub(crate) waiting: u64,
    pub(crate) lines: u64,
    pub(crate) bytes: u64,
    pub(crate) acknowledged: u64,
    pub(crate) oversized: u64,
    /// Lines cut off by the end of their connection.
    pub(crate) unfinished: u64,
}

/// The socket of the commands.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct CommandFigures {
    pub(crate) socket: String,
    pub(crate) connections: u64,
    pub(crate) connections_refused: u64,
    pub(crate) requests: u64,
    pub(crate) puts: u64,
    pub(crate) watchers: u64,
}

/// The wall clock.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct ClockFigures {
    pub(crate) trusted: bool,
    /// Steps of more than one second.
    pub(crate) steps: u64,
}

/// What the node sent to the device.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct DeviceFigures {
    pub(crate) bytes_written: u64,
    pub(crate) flushes: u64,
    /// Number of requests.
    pub(crate) reads: u64,
    pub(crate) writes: u64,
}

/// The actual number of operations beside the bound of the store. Operations are writes and flushes of the device since
/// the node began to serve; null without a reading.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct FlashFigures {
    pub(crate) operations: u64,
    /// The upper bound of the same calls.
    pub(crate) operations_bound: u64,
    pub(crate) operations_per_reading: Option<f64>,
    pub(crate) operations_per_reading_bound: Option<f64>,
}

impl NodeFigures {
    /// Returns what is wrong with the certificates of the HTTP side.
    fn certificate_error(&self) -> Option<String> {
        let why = self.http.as_ref()?.certificate_error.as_ref()?;
        Some(format!("HTTP: {why}"))
    }

    /// Copies the counters of the database. The caller must add the damage found at the start to `log`.
    pub(crate) fn take_stats(&mut self, stats: &db::Stats) {
        self.log = LogFigures {
            readings_taken: stats.puts,
            readings_durable: stats.readings,
            readings_outstanding: stats.outstanding,
            queue_bytes: stats.queue_bytes,
            queue_bytes_max: self.log.queue_bytes_max,
            durable_lag_ms: stats.durable_lag_ms,
            commit_interval_ms: self.log.commit_interval_ms,
            refused_busy: stats.busy,
            refused_full: stats.refused_full,
            refused_failed: stats.refused,
            readings_outdated: stats.outdated,
            commits: stats.batches,
            appends: stats.appends,
            log_bytes: stats.log_bytes,
            checkpoints: stats.checkpoints,
            checkpoints_failed: stats.checkpoints_failed,
            checkpoint_failing: stats.checkpoint_failing.is_some(),
            checkpoint_error: stats.checkpoint_failing.map(|why| {
                match why {
                    db::CheckpointFailure::NoRoom => NO_ROOM,
                    _ => "table_spoilt",
                }
                .to_owned()
            }),
            replay_bytes: stats.replay_bytes,
            table_checkpoint_bytes: stats.table_checkpoint_bytes,
            failed: match stats.health {
                db::Health::LogFailed(failure) => Some(failure.name().to_owned()),
                _ => None,
            },
            records_damaged: stats.damage.records_damaged,
            pieces_unreadable: stats.damage.pieces_unreadable,
            files_unreadable: stats.damage.files_unreadable,
            readings_missing: stats.damage.readings_missing,
            append_us: Latency::of(&stats.append_ns),
            put_durable_us: Latency::of(&stats.put_durable_ns),
        };
        self.store.full = stats.full;
        self.history.segments = stats.segments;
        self.history.bytes = stats.history_bytes;
        self.history.readings_expired = stats.readings_expired;
        self.history.readings_dropped = stats.readings_dropped;
        self.keys.count = u64::from(stats.objects);
        self.keys.name_bytes = stats.keys_bytes;
        self.keys.name_bytes_max = stats.keys_bytes_max;
        self.clock.trusted = stats.wall_trusted;
        self.clock.steps = stats.clock_steps;
    }

    /// Adds the damage that was found when the log was opened.
    pub(crate) fn add_damage(&mut self, damage: &db::Damage) {
        self.log.records_damaged += damage.records_damaged;
        self.log.pieces_unreadable += damage.pieces_unreadable;
        self.log.files_unreadable += damage.files_unreadable;
        self.log.readings_missing += damage.readings_missing;
    }

    /// Copies the counters of the listeners.
    pub(crate) fn take_line(&mut self, figures: &LineFigures) {
        self.line = LineState {
            listen: std::mem::take(&mut self.line.listen),
            connections_max: self.line.connections_max,
            connections: figures.connections,
            connections_total: figures.connections_total,
            connections_refused: figures.connections_refused,
            connections_idle: figures.connections_idle,
            connections_made_room: figures.connections_made_room,
            connections_ended_early: figures.connections_ended_early,
            connections_text_open: figures.connections_text_open,
            waiting: figures.waiting,
            lines: figures.lines,
            bytes: figures.bytes,
            acknowledged: figures.acknowledged,
            oversized: figures.oversized,
            unfinished: figures.unfinished,
        };
    }

    /// Copies the counters of the session with the broker.
    pub(crate) fn take_mqtt(
        &mut self,
        address: &str,
        wanted: usize,
        state: &ingest::mqtt::MqttState,
    ) {
        let figures = state.figures();
        self.mqtt = Some(MqttFigures {
            address: address.to_owned(),
            connected: figures.connected,
            last_error: state.last_error(),
            subscriptions_wanted: wanted as u64,
            subscriptions_held: figures.subscriptions_held,
            subscriptions_refused: figures.subscriptions_refused,
            subscriptions_unanswered: figures.subscriptions_unanswered,
            connects: figures.connects,
            losses: figures.losses,
            messages: figures.messages,
            bytes: figures.bytes,
            acknowledged: figures.acknowledged,
            in_flight: figures.in_flight,
            redelivered: figures.redelivered,
            copies: figures.copies,
            oversized: figures.oversized,
            packets_invalid: figures.packets_invalid,
            paused_busy_ms: figures.paused_busy_ms,
            paused_full_ms: figures.paused_full_ms,
        });
    }

    /// Copies the counters of one upstream; the log is durable up to `durable_end`.
    pub(crate) fn take_upstream(&mut self, upstream: &egress::forward::Upstream, durable_end: u64) {
        let found = upstream.state.figures();
        let (counters, begun) = (&found.counters, &upstream.begun);
        let refused = egress::forward::Refusal::ALL
            .iter()
            .zip(counters.refused)
            .map(|(why, count)| (why.name().to_owned(), count));
        self.upstream.push(UpstreamFigures {
            name: upstream.options.name.clone(),
            kind: match upstream.options.target {
                egress::forward::Target::Mqtt { .. } => "mqtt".to_owned(),
                egress::forward::Target::Http { .. } => "http".to_owned(),
            },
            address: upstream.options.address().to_owned(),
            connected: found.connected,
            connects: found.connects,
            losses: found.losses,
            backlog_readings: found.backlog_readings
                + durable_end.saturating_sub(found.durable_end),
            backlog_age_ms: found.backlog_age_ms,
            unmoved_ms: found.unmoved_ms,
            linger_ms: upstream.options.linger_ms,
            hold: upstream.options.hold,
            waits_for_clock: found.waits_for_clock,
            in_flight: found.in_flight,
            sent: counters.sent,
            acknowledged: counters.acknowledged,
            sent_twice: counters.sent_twice,
            forward_lost: counters.lost,
            missing: counters.missing,
            late_sent: counters.late_sent,
            late_skipped: counters.late_skipped,
            thinned: counters.thinned,
            refused_total: counters.refused_total(),
            refused: refused.collect(),
            last_error: found.last_error,
            cursor_error: found.cursor_error,
            cursor_was_lost: found.cursor_was_lost,
            cursor_writes: found.cursor_writes,
            answers_unknown: found.answers_unknown,
            unusable: None,
            before_start: BeforeStart {
                acknowledged: begun.acknowledged,
                sent_twice: begun.sent_twice,
                forward_lost: begun.lost,
                missing: begun.missing,
                late_sent: begun.late_sent,
                late_skipped: begun.late_skipped,
                thinned: begun.thinned,
                refused_total: begun.refused_total(),
            },
        });
    }

    fn upstream_sum(&self, of: fn(&UpstreamFigures) -> u64) -> u64 {
        let all = self.upstream.iter().map(of);
        all.fold(0, u64::saturating_add)
    }

    /// Returns the current values of the counters that [`Window`] keeps.
    pub(crate) fn sample(&self) -> Sample {
        Sample {
            uptime_ms: self.node.uptime_ms,
            bytes_written: self.device.bytes_written,
            flushes: self.device.flushes,
            readings: self.log.readings_durable,
            refused_busy: self.log.refused_busy,
            refused_full: self.log.refused_full,
            readings_dropped: self.history.readings_dropped,
            refused_keys_max: self.intake.refused_for(RefusalReason::KeysMax),
            refused_key_shared: self.intake.refused_for(RefusalReason::KeyShared),
            listeners_failed: self.listeners_failed,
            connections_refused: self.line.connections_refused,
            connections_made_room: self.line.connections_made_room,
            clients_refused: self.commands.connections_refused,
            writes_turned_away: self.http.as_ref().map_or(0, |http| http.writes_turned_away),
            deadline_misses_apart: self.qos.deadline_misses_apart,
            forward_lost: self.upstream_sum(|one| one.forward_lost.saturating_add(one.missing)),
            forward_refused: self.upstream_sum(|one| one.refused_total),
            alarms_undelivered: self.urgent.alarms_undelivered(),
            actuators_undelivered: self.urgent.actuators_undelivered(),
            taken_input: self
                .intake
                .readings
                .saturating_add(self.intake.readings_shed),
            // Leave out retained values: the broker sends them again at each connection.
            refused_input: self
                .intake
                .refused_total
                .saturating_sub(self.intake.refused_for(RefusalReason::RetainedUntimed)),
        }
    }
}
