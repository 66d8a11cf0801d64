//! The content of the configuration: a structure for each section.

use super::files::first_line;
use super::kernel::Kernel;
use super::{HttpConfig, MountConfig, SubscribeConfig, TaskConfig, UpstreamConfig, UrgentConfig};
use cluster::jobs::worker::Check;
use command::error::CliError;
use control::controller::Mode;
use db::qos::admission::Quality;
use ingest::modbus::DeviceOptions;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The content of `keel.toml`.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The node itself.
    pub node: NodeConfig,
    /// Where and how readings are stored.
    pub store: StoreConfig,
    /// Limits of keys and values.
    pub keys: KeysConfig,
    /// Declarations of keys; the first pattern that matches a key applies.
    pub key: Vec<KeyConfig>,
    /// Which sensor times are accepted.
    pub time: TimeConfig,
    /// The broker, if there is one.
    pub mqtt: Option<MqttConfig>,
    /// The line protocol.
    pub line: LineConfig,
    /// Devices that are asked for registers.
    pub modbus: Vec<DeviceOptions>,
    /// The region in which other processes read values, if there is one.
    pub region: Option<RegionConfig>,
    /// Quality of service: how deadlines are met.
    pub qos: QosConfig,
    /// Jobs that the node starts periodically.
    pub job: Vec<JobConfig>,
    /// Mounts that contain programs.
    pub mount: Vec<MountConfig>,
    /// Programs that the node keeps running.
    pub task: Vec<TaskConfig>,
    /// The upstreams that readings go to.
    pub upstream: Vec<UpstreamConfig>,
    /// Brokers, alarms and actuators.
    pub urgent: UrgentConfig,
    /// Values, history and the live page over HTTP, if configured.
    pub http: Option<HttpConfig>,
}

/// `[[job]]`
#[derive(Clone, Debug, PartialEq)]
pub struct JobConfig {
    /// Its name in the log, in the status and on the command line.
    pub name: String,
    /// The computation.
    pub kernel: Kernel,
    /// Key whose history is its input.
    pub key: String,
    /// Time between two starts.
    pub period_seconds: u32,
    /// Length of the history that is its input.
    pub history_seconds: u32,
    /// File of the result, replaced by each run.
    pub out: PathBuf,
    /// File of the whole answer as CSV, replaced by each run.
    pub table: Option<PathBuf>,
    /// Boards beside this one; the first line names this one.
    pub hosts: Option<PathBuf>,
    /// Ranks when it runs on this board alone.
    pub ranks: u32,
    /// Whether data may go to the boards of `hosts`.
    pub is_board_only: bool,
    /// Deadline of the result; 0: within the period.
    pub deadline_seconds: f64,
    /// When the answer is compared with that of one rank.
    pub check: Check,
    /// Figures for the advisor.
    pub question: Option<PathBuf>,
    /// Result of `keel cluster measure`, for the time of messages.
    pub link: Option<PathBuf>,
    /// Network interface of the boards that carries messages.
    pub interface: Option<String>,
    /// Address at which boards reach this one.
    pub address: Option<String>,
    /// A run is ended after this time.
    pub run_seconds_max: u32,
    /// Readings in a window; 0: the job's own default.
    pub window: usize,
    /// Readings from one window to the next; 0: half a window.
    pub step: usize,
    /// Clusters of k-means.
    pub clusters: usize,
}

/// Returns the path of a file beside another one, with this ending.
#[must_use]
pub fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(ending);
    path.with_file_name(name)
}

impl JobConfig {
    /// Returns every file that the job writes or holds; none of them may belong to another job or to the node.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let figures = beside(&self.out, "figures.json");
        let overhead = beside(&self.out, "overhead.json");
        let suspects = beside(&self.out, "suspects.json");
        let mut files = vec![
            self.out.clone(),
            beside(&self.out, "new"),
            beside(&self.out, "lock"),
            beside(&self.out, "hosts"),
            beside(&figures, "new"),
            figures,
            beside(&overhead, "new"),
            overhead,
            beside(&suspects, "new"),
            suspects,
        ];
        if let Some(table) = &self.table {
            files.extend([table.clone(), beside(table, "new")]);
        }
        files
    }

    /// Returns the files that the job only reads, by their keys.
    pub(super) fn inputs(&self) -> [(&'static str, &Option<PathBuf>); 3] {
        [
            ("job.hosts", &self.hosts),
            ("job.question", &self.question),
            ("job.link", &self.link),
        ]
    }

    /// Returns the deadline of the result, in seconds.
    #[must_use]
    pub fn deadline_s(&self) -> f64 {
        if self.deadline_seconds > 0.0 {
            self.deadline_seconds
        } else {
            f64::from(self.period_seconds)
        }
    }
}

/// `[node]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// Unix socket of the commands `keel get`, `put`, `watch`, `history` and `status`.
    pub socket: PathBuf,
    /// The most commands connected to it at once.
    pub connections_max: u32,
    /// User that a node becomes that root has started.
    pub user: Option<String>,
    /// Which system calls the node is confined to.
    pub system_calls: SystemCalls,
    /// Whether the node can open only the files that the configuration names, and those of the system.
    pub are_paths_listed: bool,
}

/// The system calls that the kernel lets a node make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SystemCalls {
    /// All.
    All,
    /// All; the kernel logs those that are not in the list.
    Logged,
    /// Those in the list; others fail.
    Listed,
}

/// `[store]`
#[derive(Clone, Debug, PartialEq)]
pub struct StoreConfig {
    /// Image file or block device.
    pub image: PathBuf,
    /// Size of the image file, if it is made.
    pub create_mebibytes: u64,
    /// Longest time from a reading to its flush.
    pub commit_interval_ms: u32,
    /// What happens to new readings when the store is full.
    pub full_policy: db::FullPolicy,
    /// Age in days above which readings are deleted; 0: none.
    pub history_days_max: u32,
    /// Size of the history in MiB above which the oldest readings are deleted; 0: nine tenths of the store, or what its
    /// checkpoints leave.
    pub history_mebibytes_max: u64,
    /// Size of the log in MiB up to which readings are kept that are not yet upstream; 0: nine tenths of the store.
    pub backlog_mebibytes_max: u64,
    /// Terabytes (10^12 bytes) that the card is rated for; 0: unknown.
    pub card_rated_write_terabytes: f64,
    /// Unflushed data are lost with the process, for demonstrations; it cannot be set in a file.
    pub is_volatile: bool,
}

/// `[keys]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeysConfig {
    /// The most keys.
    pub keys_max: u32,
    /// Bytes that there are for each of them on average.
    pub key_bytes_mean: u32,
    /// Whether the first reading of a key makes it, if no `[[key]]` declares it.
    pub auto_create: bool,
    /// Bytes of the longest value.
    pub value_bytes_max: u32,
}

impl KeysConfig {
    /// Returns the size of the table of the latest values.
    #[must_use]
    pub fn table_size(&self) -> db::TableSize {
        db::TableSize {
            objects_max: self.keys_max,
            value_bytes_max: self.value_bytes_max as usize,
            key_bytes_mean: self.key_bytes_mean,
        }
    }
}

/// `[[key]]`
#[derive(Clone, Debug, PartialEq)]
pub struct KeyConfig {
    /// Key, or a pattern with `+` and `#`.
    pub pattern: String,
    /// How long a value is fresh, in ms.
    pub validity_ms: u32,
    /// Whether the key is temporal: readings are expected to update it, and its freshness counts.
    pub temporal: bool,
    /// Weight of its freshness relative to others when updates are left out.
    pub weight: f64,
    /// What happens to a reading whose update is left out.
    pub shed: db::ShedPolicy,
}

/// `[time]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeConfig {
    /// A sensor time further in the future is refused.
    pub future_seconds_max: u64,
    /// A sensor time further in the past is refused.
    pub past_days_max: u64,
    /// Whether the wall clock counts as right from the start, even if the kernel does not confirm it.
    pub wall_clock_trusted: bool,
}

/// Version of the MQTT protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MqttVersion {
    /// MQTT 3.1.1.
    V3_1_1,
    /// MQTT 5.
    V5,
}

/// `[mqtt]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MqttConfig {
    /// Name or address of the broker, without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Whom the node trusts as the broker; without it, the connection is plain.
    pub tls: Option<tls::ClientOptions>,
    /// Version of the protocol.
    pub version: MqttVersion,
    /// Client id of this node's session at the broker; no other client may have it.
    pub client_id: String,
    /// User name at the broker.
    pub username: Option<String>,
    /// File whose first line is the password.
    pub password_file: Option<PathBuf>,
    /// Longest idle time before the link is probed.
    pub keep_alive_seconds: u16,
    /// Bytes of the largest packet accepted.
    pub packet_bytes_max: u32,
    /// First pause before the next attempt to connect.
    pub reconnect_ms_min: u32,
    /// Longest pause before the next attempt to connect.
    pub reconnect_ms_max: u32,
    /// Subscriptions.
    pub subscribe: Vec<SubscribeConfig>,
}

/// `[line]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineConfig {
    /// Address of the TCP listener, if there is one.
    pub tcp_listen: Option<SocketAddr>,
    /// Path of the Unix listener, if there is one.
    pub unix_socket: Option<PathBuf>,
    /// The most connections of both listeners together.
    pub connections_max: u32,
    /// Bytes of the longest line.
    pub line_bytes_max: u32,
    /// Idle timeout of a connection; 0: none.
    pub idle_seconds_max: u32,
    /// How long a sender must have been idle before it makes room for another.
    pub make_room_seconds_min: u32,
    /// Unit of the timestamps in lines, for all sources of lines.
    pub precision: ingest::line::Precision,
    /// How the key is made from a line and one of its fields.
    pub key: String,
}

/// `[region]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionConfig {
    /// The region's file.
    pub file: PathBuf,
    /// Size of the region, if it is made.
    pub create_mebibytes: u64,
    /// Name of the slot table's file in it.
    pub table: String,
    /// Image of the flash store for its checkpoints.
    pub checkpoint_image: Option<PathBuf>,
    /// Size of that image, if it is made.
    pub checkpoint_create_mebibytes: u64,
    /// Time between two checkpoints.
    pub checkpoint_interval_seconds: u32,
}

/// `[qos]`
#[derive(Clone, Debug, PartialEq)]
pub struct QosConfig {
    /// Which inputs are driven from the start.
    pub mode: Mode,
    /// Gains file made by `keel qos design`.
    pub gains: Option<PathBuf>,
    /// Set point of the mean tardiness, instead of that of the gains.
    pub tardiness: Option<f64>,
    /// Set point of the data response ratio, instead of that of the gains.
    pub data_ratio: Option<f64>,
    /// Length of a sampling period.
    pub sampling_period_ms: u32,
    /// The least instances of each task in a period; the period lasts until then.
    pub instances_min: u32,
    /// Periods without an instance after which all inputs go to full.
    pub samples_missing_max: u32,
    /// What the kept part of a temporal key refers to: its readings or its fresh time.
    pub quality: Quality,
    /// The least part that is kept, in percent.
    pub admitted_percent_min: u32,
    /// The largest change of the admitted part from one period to the next.
    pub admitted_change_percent_max: u32,
    /// The actuator of the speed.
    pub actuator: ActuatorKind,
    /// The folder below which the machine's settings lie.
    pub machine_root: PathBuf,
    /// The least speed.
    pub speed_percent_min: u32,
    /// The largest change of the speed from one period to the next.
    pub speed_change_percent_max: u32,
    /// The most tasks.
    pub tasks_max: u32,
    /// Whether the values are locked in memory.
    pub lock_memory: bool,
}

/// The modes of the quality of service, by their names in the file.
pub const MODES: [(&str, Mode); 4] = [
    ("open", Mode::Open),
    ("dvfs-only", Mode::SpeedOnly),
    ("qod-only", Mode::AdmissionOnly),
    ("mimo", Mode::Both),
];

/// The qualities, by name.
pub(crate) const QUALITIES: [(&str, Quality); 2] =
    [("admitted", Quality::Admitted), ("fresh", Quality::Fresh)];

/// Returns the name of a quality.
#[must_use]
pub fn quality_name(quality: Quality) -> &'static str {
    let found = QUALITIES.iter().find(|(_, known)| *known == quality);
    found.map_or("", |(name, _)| name)
}

/// The actuators, by their names in the file.
pub const ACTUATORS: [(&str, ActuatorKind); 5] = [
    ("none", ActuatorKind::None),
    ("auto", ActuatorKind::Auto),
    ("cpufreq", ActuatorKind::Cpufreq),
    ("rtgroup", ActuatorKind::RtGroup),
    ("deadline", ActuatorKind::Deadline),
];

/// What sets the speed of the tasks' processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActuatorKind {
    /// Nothing.
    None,
    /// The first of the others that this machine supports.
    Auto,
    /// The processor's frequency.
    Cpufreq,
    /// The real-time bandwidth of a control group.
    RtGroup,
    /// SCHED_DEADLINE.
    Deadline,
}

impl Config {
    /// Returns how long readings are kept in a store with `capacity_bytes` of files.
    #[must_use]
    pub fn retention(&self, capacity_bytes: u64) -> db::Retention {
        let store = &self.store;
        let history_bytes_max = match store.history_mebibytes_max {
            0 => self.history_bytes_max_by_default(capacity_bytes),
            mebibytes => mebibytes << 20,
        };
        let backlog_bytes_max = match store.backlog_mebibytes_max {
            // A configured history limit may exceed the default; the backlog limit must not be lower.
            0 => self
                .history_bytes_max_by_default(capacity_bytes)
                .max(history_bytes_max),
            mebibytes => mebibytes << 20,
        };
        db::Retention {
            history_bytes_max,
            backlog_bytes_max,
            history_age_ms_max: u64::from(store.history_days_max) * 86_400_000,
            full_policy: store.full_policy,
        }
    }

    /// Returns nine tenths of the capacity. The rest holds the checkpoints and the readings that arrive while the
    /// oldest segment is deleted. In a small store with many keys a tenth is too little for that.
    fn history_bytes_max_by_default(&self, capacity_bytes: u64) -> u64 {
        let beside = 3 * self.checkpoint_bytes_max() + (2 << 20);
        let most = (capacity_bytes / 16 * 15).saturating_sub(beside);
        // A store that cannot hold its checkpoints still keeps a quarter for history.
        (capacity_bytes / 10 * 9).min(most).max(capacity_bytes / 4)
    }

    /// Returns the bytes of a checkpoint with the allowed number of keys, all with the longest values. A name counts as
    /// 64 bytes at least, so a smaller `keys.key_bytes_mean` does not lower it.
    pub(super) fn checkpoint_bytes_max(&self) -> u64 {
        let keys = &self.keys;
        let each = |bytes: u32| u64::from(keys.keys_max) * u64::from(bytes);
        let (keys_bytes, values_bytes) = (each(keys.key_bytes_mean), each(keys.value_bytes_max));
        db::checkpoint_bytes_max(keys.keys_max, keys_bytes, values_bytes)
    }
}

impl MqttConfig {
    /// Returns `host:port`; an IPv6 address is in brackets.
    #[must_use]
    pub fn address(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// Returns the password, read from its file now.
    ///
    /// # Errors
    /// The file cannot be read, or holds no password.
    pub fn password(&self) -> Result<Option<String>, CliError> {
        let Some(path) = &self.password_file else {
            return Ok(None);
        };
        let wrong = "holds no password in its first line";
        first_line(path, wrong, "write it there").map(Some)
    }
}
