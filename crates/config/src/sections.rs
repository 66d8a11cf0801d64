//! Converts the sections of the document to the structures of the configuration. All defaults and ranges are defined
//! here.

use super::alarm::urgent;
use super::certificates;
use super::http;
use super::kernel::Kernel;
use super::modbus;
use super::programs;
use super::reader::{At, Document, Section};
use super::subscribe::subscriptions;
use super::tls_files;
use super::upstream::upstreams;
use super::values::{
    BROKER_ADDRESS, CREDENTIAL_BYTES_MAX, LINE_KEY, PATH_BYTES_MAX, TEXT_BYTES_MAX, TLS_REMEDY,
    address_remedy, check_pattern, host_port, key_template,
};
use super::{
    ACTUATORS, ActuatorKind, Config, JobConfig, KeyConfig, KeysConfig, LineConfig, MODES,
    MqttConfig, MqttVersion, NodeConfig, QUALITIES, QosConfig, RegionConfig, StoreConfig,
    SystemCalls, TimeConfig, beside,
};
use cluster::jobs::worker::{CHECKS, Check};
use cluster::measure::{Address, is_interface_name};
use control::controller::Mode;
use db::qos::admission::Quality;
use ingest::intake::TemplateKind;
use ingest::line::Precision;
use ingest::pattern;
use std::path::{Component, Path, PathBuf};

/// Bytes of the longest path of a Unix socket: the system's limit without the final zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Bytes of the longest name of a user, as `useradd` permits it.
const USER_BYTES_MAX: usize = 32;
/// `[[key]]` tables.
const KEY_RULES_MAX: usize = 1024;
/// `[[job]]` tables.
const JOBS_MAX: usize = 64;
/// Bytes of the longest name of a job.
const JOB_NAME_BYTES_MAX: usize = 64;
/// Default validity of a value, in ms.
pub const VALIDITY_MS: u32 = 60_000;
/// Default listener of the line protocol.
const LINE_TCP: &str = "127.0.0.1:8094";
/// Bytes of the longest name of a file in a region; it leaves room for the suffix of the file's draft.
const FILE_NAME_BYTES_MAX: usize = 250;
/// Default name of the slot table's file in a region.
pub const REGION_TABLE: &str = "keel-latest";

/// Reads a whole document; its problems stay in the document.
pub(super) fn config(document: &Document<'_>, base_dir: &Path) -> Option<Config> {
    let table = document.parse()?;
    let top = Section::top(document, table.get_ref());
    Some(Reader { base_dir }.config(top))
}

struct Reader<'p> {
    base_dir: &'p Path,
}

/// Returns the files that the node uses or reads, by the key that names them: no job may replace one.
fn files_of_node<'c>(
    config: &'c Config,
    region: Option<&'c RegionConfig>,
) -> Vec<(&'static str, &'c Path)> {
    let mut files: Vec<(&'static str, Option<&PathBuf>)> = vec![
        ("store.image", Some(&config.store.image)),
        ("node.socket", Some(&config.node.socket)),
        ("line.unix_socket", config.line.unix_socket.as_ref()),
        ("region.file", region.map(|region| &region.file)),
        (
            "region.checkpoint_image",
            region.and_then(|region| region.checkpoint_image.as_ref()),
        ),
        (
            "mqtt.password_file",
            config
                .mqtt
                .as_ref()
                .and_then(|mqtt| mqtt.password_file.as_ref()),
        ),
        ("qos.gains", config.qos.gains.as_ref()),
        (
            "http.token_file",
            config
                .http
                .as_ref()
                .and_then(|http| http.token_file.as_ref()),
        ),
    ];
    for one in &config.upstream {
        files.push(("upstream.password_file", one.password_file.as_ref()));
        files.push((
            "upstream.authorization_file",
            one.authorization_file.as_ref(),
        ));
    }
    for one in &config.urgent.brokers {
        files.push(("broker.password_file", one.password_file.as_ref()));
    }
    for one in &config.mount {
        files.push(("mount.directory", Some(&one.directory)));
        files.push(("mount.identity", one.identity.as_ref()));
        files.push(("mount.cache", one.cache.as_ref()));
        files.push(("mount.state", one.state.as_ref()));
    }
    for one in &config.task {
        files.push(("task.command", Some(&one.program)));
    }
    let named = files
        .into_iter()
        .filter_map(|(name, path)| Some((name, path?.as_path())));
    named.chain(tls_files::files(config)).collect()
}

/// A key that cannot be together with another part of the configuration.
pub(super) struct Conflict {
    pub(super) key: &'static str,
    pub(super) wrong: String,
    pub(super) remedy: String,
}

/// Returns what a node without rights cannot do.
fn conflict_of_rights(config: &Config) -> Option<Conflict> {
    let user = config.node.user.as_ref()?;
    let needs_root = if !config.mount.is_empty() {
        "[[mount]]"
    } else if config.qos.actuator != ActuatorKind::None {
        "qos.actuator"
    } else {
        return None;
    };
    Some(Conflict {
        key: "node.user",
        wrong: format!("is {user}, and {needs_root} needs root"),
        remedy: format!("remove one of them: a node of root keeps {needs_root}"),
    })
}

/// Returns why a node cannot be confined: it starts programs, or writes settings of the machine. Each key that confines
/// it is told.
fn conflicts_of_programs(config: &Config) -> Vec<Conflict> {
    let node = &config.node;
    let confined = [
        ("node.system_calls", node.system_calls != SystemCalls::All),
        ("node.paths", node.are_paths_listed),
    ];
    let mut alarms = config.urgent.alarms.iter();
    let has_command = alarms.any(|alarm| !alarm.options.command.is_empty());
    let other = if !config.task.is_empty() {
        "[[task]]"
    } else if !config.job.is_empty() {
        "[[job]]"
    } else if !config.mount.is_empty() {
        "[[mount]]"
    } else if has_command {
        "alarm.command"
    } else if config.qos.actuator != ActuatorKind::None {
        "qos.actuator"
    } else {
        return Vec::new();
    };
    let keys = confined
        .into_iter()
        .filter_map(|(key, is_set)| is_set.then_some(key));
    keys.map(|key| Conflict {
        key,
        wrong: format!("cannot be with {other}, which would be confined, too"),
        remedy: "give \"all\", or leave the other to a node of its own".to_owned(),
    })
    .collect()
}

pub(super) fn conflicts(config: &Config) -> impl Iterator<Item = Conflict> {
    let of_rights = conflict_of_rights(config).into_iter();
    of_rights.chain(conflicts_of_programs(config))
}

impl Config {
    /// Returns the files that the node uses or reads, by the key that names them.
    #[must_use]
    pub fn files(&self) -> Vec<(&'static str, &Path)> {
        files_of_node(self, self.region.as_ref())
    }
}

impl Reader<'_> {
    fn config(&self, top: Section<'_, '_>) -> Config {
        let config = Config {
            node: self.node(top.section("node")),
            store: self.store(top.section("store")),
            keys: Self::keys(top.section("keys")),
            key: top
                .sections("key", KEY_RULES_MAX)
                .into_iter()
                .map(Self::key)
                .collect(),
            time: Self::time(top.section("time")),
            mqtt: top
                .section_if_there("mqtt")
                .map(|section| self.mqtt(section)),
            line: self.line(top.section("line")),
            modbus: modbus::devices(&top),
            region: None,
            http: top
                .section_if_there("http")
                .map(|section| http::http(section, self.base_dir)),
            qos: self.qos(top.section("qos")),
            job: Vec::new(),
            mount: programs::mounts(&top, self.base_dir),
            task: Vec::new(),
            upstream: upstreams(&top, self.base_dir),
            urgent: urgent(&top, self.base_dir),
        };
        let region = top
            .section_if_there("region")
            .map(|section| self.region(section, &config.store.image));
        let has_region = region.is_some();
        let task = programs::tasks(&top, self.base_dir, &config.mount, has_region);
        let config = Config { task, ..config };
        let job = self.jobs(&top, &config, region.as_ref());
        let config = Config {
            region,
            job,
            ..config
        };
        let exact = config
            .key
            .iter()
            .filter(|rule| pattern::is_exact(&rule.pattern));
        let exact = exact.count();
        if exact > config.keys.keys_max as usize {
            let wrong = format!(
                "declares {exact} keys, keys.keys_max is {}",
                config.keys.keys_max
            );
            top.wrong(top.line(), "key", &wrong, "raise keys.keys_max");
        }
        for one in conflicts(&config) {
            top.wrong(top.line_of("node"), one.key, &one.wrong, one.remedy);
        }
        top.finish();
        config
    }

    fn jobs(
        &self,
        top: &Section<'_, '_>,
        config: &Config,
        region: Option<&RegionConfig>,
    ) -> Vec<JobConfig> {
        let of_node = files_of_node(config, region);
        let mut all: Vec<JobConfig> = Vec::new();
        for one in top.sections("job", JOBS_MAX) {
            let line = one.line();
            let job = self.job(one);
            if all.iter().any(|other| other.name == job.name) {
                top.wrong(line, "job", "has the same name twice", "rename one of them");
            }
            let files = job.files();
            // Some of them are folders.
            let is_one = |path: &Path| {
                let mut files = files.iter();
                files.any(|file| is_same_place(file, path) || file.starts_with(path))
            };
            let own = job.inputs();
            let own = own.map(|(name, path)| (name, path.as_deref()));
            let of_node = of_node.iter().copied();
            let own = own
                .into_iter()
                .filter_map(|(name, path)| Some((name, path?)));
            let taken = of_node.chain(own).find(|(_, path)| is_one(path));
            let of_other = all
                .iter()
                .find(|other| other.files().iter().any(|path| is_one(path)));
            let twice = (job.table.as_ref()).is_some_and(|table| {
                is_same_place(table, &job.out)
                    || is_same_place(table, &beside(&job.out, "figures.json"))
                    || is_same_place(table, &beside(&job.out, "overhead.json"))
                    || is_same_place(table, &beside(&job.out, "suspects.json"))
            });
            let wrong = match (taken, of_other) {
                (Some((name, _)), _) => Some(format!("writes the file of {name}")),
                (None, Some(other)) => Some(format!("writes a file of job {}", other.name)),
                (None, None) => twice.then(|| "writes one file twice, out and table".to_owned()),
            };
            if let Some(wrong) = wrong {
                let remedy = "give out and table files of their own";
                top.wrong(line, "job", &wrong, remedy);
            }
            all.push(job);
        }
        all
    }

    fn job(&self, section: Section<'_, '_>) -> JobConfig {
        const NAME: &str = "give it a name of letters, digits, - and _";
        const KERNEL: &str = "give \"vibration\", \"k-means\" or \"matrix-profile\"";
        let name = section.required("name", JOB_NAME_BYTES_MAX, NAME);
        let is_plain =
            |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
        if name.value.starts_with('-') || !name.value.chars().all(is_plain) {
            let wrong = format!("is \"{}\"", name.value);
            section.wrong(name.line, "name", &wrong, NAME);
        }
        if !section.has("kernel") {
            section.wrong(section.line(), "kernel", "is missing", KERNEL);
        }
        let kernels = [
            ("vibration", Kernel::Vibration),
            ("k-means", Kernel::KMeans),
            ("matrix-profile", Kernel::MatrixProfile),
        ];
        let kernel = section.choice("kernel", Kernel::Vibration, &kernels);
        let key = section.required(
            "key",
            db::KEY_BYTES_MAX,
            "name the key whose history it works on",
        );
        let out = section.required("out", PATH_BYTES_MAX, "name the file of its result");
        let window = section.integer("window", 0, (0, 65_536)) as usize;
        if (1..4).contains(&window) {
            let wrong = format!("is {window}");
            let remedy = "give 0, or a whole number from 4 to 65536";
            section.wrong(section.line(), "window", &wrong, remedy);
        }
        let checked = |key: &'static str, is_right: &dyn Fn(&str) -> bool, remedy: &str| {
            let at = section.text(key, PATH_BYTES_MAX)?;
            if !is_right(&at.value) {
                let wrong = format!("is \"{}\"", at.value);
                section.wrong(at.line, key, &wrong, remedy);
            }
            Some(at.value)
        };
        let is_address = |text: &str| Address::parse(text).is_ok();
        let file = |at: Option<At<String>>| at.map(|at| self.base_dir.join(at.value));
        let job = JobConfig {
            name: name.value,
            kernel,
            key: key.value,
            period_seconds: section.integer("period_seconds", 3_600, (1, 31_536_000)) as u32,
            history_seconds: section.integer("history_seconds", 3_600, (1, 31_536_000)) as u32,
            out: self.base_dir.join(out.value),
            table: file(section.text("table", PATH_BYTES_MAX)),
            hosts: file(section.text("hosts", PATH_BYTES_MAX)),
            ranks: section.integer("ranks", 1, (1, 64)) as u32,
            is_board_only: section.choice(
                "data_may_go",
                false,
                &[("board", true), ("neighbours", false)],
            ),
            deadline_seconds: section.number("deadline_seconds", 0.0, (0.0, 31_536_000.0)),
            check: section.choice("check", Check::Always, &CHECKS),
            question: file(section.text("question", PATH_BYTES_MAX)),
            link: file(section.text("link", PATH_BYTES_MAX)),
            interface: checked("interface", &is_interface_name, "`ip link` lists them"),
            address: checked("address", &is_address, "give it as 10.77.0.254/24"),
            run_seconds_max: section.integer("run_seconds_max", 3_600, (1, 86_400)) as u32,
            window,
            step: section.integer("step", 0, (0, 65_536)) as usize,
            clusters: section.integer("clusters", 8, (1, 64)) as usize,
        };
        section.finish();
        job
    }

    fn node(&self, section: Section<'_, '_>) -> NodeConfig {
        let node = NodeConfig {
            socket: self.socket(&section, "socket", "keel-data/keel.sock"),
            connections_max: section.integer("connections_max", 64, (1, 1024)) as u32,
            user: section
                .text_or_empty("user", USER_BYTES_MAX)
                .map(|at| at.value)
                .filter(|name| !name.is_empty()),
            system_calls: section.choice(
                "system_calls",
                SystemCalls::All,
                &[
                    ("all", SystemCalls::All),
                    ("logged", SystemCalls::Logged),
                    ("listed", SystemCalls::Listed),
                ],
            ),
            are_paths_listed: section.choice("paths", false, &[("all", false), ("listed", true)]),
        };
        section.finish();
        node
    }

    fn store(&self, section: Section<'_, '_>) -> StoreConfig {
        let store = StoreConfig {
            image: self.path(&section, "image", "keel-data/store.img"),
            create_mebibytes: section.integer("create_mebibytes", 256, (16, 1 << 20)),
            commit_interval_ms: section.integer("commit_interval_ms", 250, (1, 60_000)) as u32,
            full_policy: section.choice(
                "full_policy",
                db::FullPolicy::RejectNew,
                &[
                    ("reject-new", db::FullPolicy::RejectNew),
                    ("drop-oldest", db::FullPolicy::DropOldest),
                ],
            ),
            history_days_max: section.integer("history_days_max", 0, (0, 36_500)) as u32,
            history_mebibytes_max: section.integer("history_mebibytes_max", 0, (0, 1 << 24)),
            backlog_mebibytes_max: section.integer("backlog_mebibytes_max", 0, (0, 1 << 24)),
            card_rated_write_terabytes: section.number(
                "card_rated_write_terabytes",
                0.0,
                (0.0, 1_000_000.0),
            ),
            is_volatile: false,
        };
        section.finish();
        store
    }

    fn keys(section: Section<'_, '_>) -> KeysConfig {
        let keys = KeysConfig {
            keys_max: section.integer("keys_max", 4096, (1, 100_000)) as u32,
            key_bytes_mean: section.integer(
                "key_bytes_mean",
                u64::from(db::KEY_BYTES_MEAN),
                (
                    u64::from(db::KEY_BYTES_MEAN_MIN),
                    u64::from(db::KEY_BYTES_MEAN_MAX),
                ),
            ) as u32,
            auto_create: section.boolean("auto_create", true),
            value_bytes_max: section.integer(
                "value_bytes_max",
                64,
                (16, db::VALUE_BYTES_LIMIT as u64),
            ) as u32,
        };
        section.finish();
        keys
    }

    fn key(section: Section<'_, '_>) -> KeyConfig {
        const REMEDY: &str = "name the keys that are meant, such as \"hall/+/temperature\"";
        let pattern = section.required("pattern", pattern::PATTERN_BYTES_MAX, REMEDY);
        check_pattern(&section, "pattern", &pattern, pattern::check);
        // A pattern for exactly one key is made at the start, so it must be a valid key.
        let bytes = pattern.value.len();
        if bytes > db::KEY_BYTES_MAX && pattern::is_exact(&pattern.value) {
            let wrong = format!("is a key of {bytes} bytes");
            let remedy = format!("give at most {}, or a pattern", db::KEY_BYTES_MAX);
            section.wrong(pattern.line, "pattern", &wrong, remedy);
        }
        let key = KeyConfig {
            pattern: pattern.value,
            validity_ms: section.integer(
                "validity_ms",
                u64::from(VALIDITY_MS),
                (1, u64::from(u32::MAX)),
            ) as u32,
            temporal: section.boolean("temporal", true),
            weight: section.number("weight", 1.0, (0.001, 1_000.0)),
            shed: section.choice(
                "shed",
                db::ShedPolicy::Log,
                &[("log", db::ShedPolicy::Log), ("drop", db::ShedPolicy::Drop)],
            ),
        };
        section.finish();
        key
    }

    fn time(section: Section<'_, '_>) -> TimeConfig {
        let time = TimeConfig {
            future_seconds_max: section.integer("future_seconds_max", 300, (0, 31_536_000)),
            past_days_max: section.integer("past_days_max", 3650, (1, 36_500)),
            wall_clock_trusted: section.choice(
                "wall_clock",
                false,
                &[("kernel", false), ("trusted", true)],
            ),
        };
        section.finish();
        time
    }

    fn mqtt(&self, section: Section<'_, '_>) -> MqttConfig {
        let address = section.required("address", TEXT_BYTES_MAX, BROKER_ADDRESS);
        let (host, port) = host_port(&address.value).unwrap_or_else(|| {
            if !address.value.is_empty() {
                let wrong = format!("is \"{}\"", address.value);
                let remedy = address_remedy(&address.value);
                section.wrong(address.line, "address", &wrong, remedy);
            }
            (String::new(), 0)
        });
        let client_id = section.required(
            "client_id",
            CREDENTIAL_BYTES_MAX,
            "give a name that no other client of this broker has",
        );
        let username = section.text("username", CREDENTIAL_BYTES_MAX);
        let password_file = section.text("password_file", PATH_BYTES_MAX);
        if let (None, Some(file)) = (&username, &password_file) {
            let remedy = "give username as well";
            section.wrong(file.line, "password_file", "lacks a user", remedy);
        }
        let has_tls = section.boolean("tls", false);
        let mqtt = MqttConfig {
            host,
            port,
            tls: certificates::client(&section, has_tls, TLS_REMEDY, self.base_dir),
            version: section.choice(
                "version",
                MqttVersion::V5,
                &[("3.1.1", MqttVersion::V3_1_1), ("5", MqttVersion::V5)],
            ),
            client_id: client_id.value,
            username: username.map(|at| at.value),
            password_file: password_file.map(|at| self.base_dir.join(at.value)),
            keep_alive_seconds: section.integer("keep_alive_seconds", 30, (5, 3600)) as u16,
            packet_bytes_max: section.integer("packet_bytes_max", 262_144, (1024, 16 << 20)) as u32,
            reconnect_ms_min: section.integer("reconnect_ms_min", 500, (10, 3_600_000)) as u32,
            reconnect_ms_max: section.integer("reconnect_ms_max", 30_000, (10, 3_600_000)) as u32,
            subscribe: subscriptions(&section),
        };
        if mqtt.reconnect_ms_max < mqtt.reconnect_ms_min {
            section.wrong(
                section.line(),
                "reconnect_ms_max",
                &format!("is {}", mqtt.reconnect_ms_max),
                format!(
                    "give at least reconnect_ms_min, which is {}",
                    mqtt.reconnect_ms_min
                ),
            );
        }
        if mqtt.subscribe.is_empty() {
            let remedy = "add [[mqtt.subscribe]] with a filter, or remove [mqtt]";
            section.wrong(section.line(), "subscribe", "is missing", remedy);
        }
        section.finish();
        mqtt
    }

    fn line(&self, section: Section<'_, '_>) -> LineConfig {
        let tcp_listen = match section.text_or_empty("tcp_listen", TEXT_BYTES_MAX) {
            None => LINE_TCP.parse().ok(),
            Some(at) if at.value.is_empty() => None,
            Some(at) => {
                let parsed = at.value.parse().ok();
                if parsed.is_none() {
                    let wrong = format!("is \"{}\"", at.value);
                    let remedy = "give address:port, such as \"127.0.0.1:8094\", or \"\" for none";
                    section.wrong(at.line, "tcp_listen", &wrong, remedy);
                }
                parsed
            }
        };
        let line = LineConfig {
            tcp_listen,
            unix_socket: Some(self.socket(&section, "unix_socket", "keel-data/line.sock"))
                .filter(|path| !path.as_os_str().is_empty()),
            connections_max: section.integer("connections_max", 64, (1, 1024)) as u32,
            line_bytes_max: section.integer("line_bytes_max", 65_536, (256, 1 << 20)) as u32,
            idle_seconds_max: section.integer("idle_seconds_max", 3600, (0, 86_400)) as u32,
            make_room_seconds_min: section.integer("make_room_seconds_min", 10, (0, 86_400)) as u32,
            precision: section.choice(
                "precision",
                Precision::Nanoseconds,
                &[
                    ("ns", Precision::Nanoseconds),
                    ("us", Precision::Microseconds),
                    ("ms", Precision::Milliseconds),
                    ("s", Precision::Seconds),
                ],
            ),
            key: key_template(&section, TemplateKind::Line, LINE_KEY),
        };
        section.finish();
        line
    }

    fn region(&self, section: Section<'_, '_>, store: &Path) -> RegionConfig {
        const REMEDY: &str = "name its file, such as \"/dev/shm/keel\"";
        let file = section.required("file", PATH_BYTES_MAX, REMEDY);
        let region = self.base_dir.join(&file.value);
        if is_same_place(&region, store) {
            let remedy = "name another: a region is a file of its own";
            section.wrong(file.line, "file", "is store.image", remedy);
        }
        let table = section.text("table", FILE_NAME_BYTES_MAX);
        if let Some(at) = &table
            && (at.value.contains('/') || matches!(at.value.as_str(), "." | ".."))
        {
            let wrong = format!("is \"{}\"", at.value);
            section.wrong(
                at.line,
                "table",
                &wrong,
                "give the name of a file, without a folder",
            );
        }
        let image = section.text("checkpoint_image", PATH_BYTES_MAX);
        let checkpoint_image = image.map(|at| {
            let path = self.base_dir.join(at.value);
            if is_same_place(&path, store) {
                let remedy = "name another: the node has that one for itself";
                section.wrong(at.line, "checkpoint_image", "is store.image", remedy);
            } else if is_same_place(&path, &region) {
                let remedy = "name another: a region is saved into a flash store beside it";
                section.wrong(at.line, "checkpoint_image", "is region.file", remedy);
            }
            path
        });
        let region = RegionConfig {
            file: region,
            create_mebibytes: section.integer("create_mebibytes", 64, (16, 1 << 20)),
            table: table.map_or_else(|| REGION_TABLE.to_owned(), |at| at.value),
            checkpoint_image,
            checkpoint_create_mebibytes: section.integer(
                "checkpoint_create_mebibytes",
                256,
                (16, 1 << 20),
            ),
            checkpoint_interval_seconds: section.integer(
                "checkpoint_interval_seconds",
                60,
                (1, 86_400),
            ) as u32,
        };
        section.finish();
        region
    }

    fn qos(&self, section: Section<'_, '_>) -> QosConfig {
        let target = |key, range| {
            let number = section.number(key, 0.5, range);
            section.has(key).then_some(number)
        };
        let percent = |key, default, range| section.integer(key, default, range) as u32;
        let gains = section.text("gains", PATH_BYTES_MAX);
        let qos = QosConfig {
            mode: section.choice("mode", Mode::Open, &MODES),
            gains: gains.map(|at| self.base_dir.join(at.value)),
            tardiness: target("tardiness_target", (0.05, 10.0)),
            data_ratio: target("data_ratio_target", (0.001, 0.999)),
            sampling_period_ms: section.integer("sampling_period_ms", 1_000, (100, 60_000)) as u32,
            instances_min: section.integer("instances_min", 10, (1, 10_000)) as u32,
            samples_missing_max: section.integer("samples_missing_max", 3, (1, 100)) as u32,
            quality: section.choice("quality_of_data", Quality::Admitted, &QUALITIES),
            admitted_percent_min: percent("admitted_percent_min", 50, (1, 99)),
            admitted_change_percent_max: percent("admitted_change_percent_max", 25, (1, 100)),
            actuator: section.choice("actuator", ActuatorKind::None, &ACTUATORS),
            machine_root: self.path(&section, "machine_root", "/"),
            speed_percent_min: percent("speed_percent_min", 20, (5, 95)),
            speed_change_percent_max: percent("speed_change_percent_max", 40, (1, 100)),
            tasks_max: section.integer("tasks_max", 16, (1, 256)) as u32,
            lock_memory: section.boolean("lock_memory", true),
        };
        if qos.mode != Mode::Open && qos.gains.is_none() {
            let remedy = "make gains with `keel qos identify` and `keel qos design` and name them in qos.gains";
            section.wrong(section.line(), "mode", "needs gains", remedy);
        }
        let drives_speed = matches!(qos.mode, Mode::SpeedOnly | Mode::Both);
        if drives_speed && qos.actuator == ActuatorKind::None {
            let remedy = "name an actuator, or take the mode \"qod-only\"";
            section.wrong(
                section.line(),
                "mode",
                "needs something that sets the speed",
                remedy,
            );
        }
        section.finish();
        qos
    }

    fn path(&self, section: &Section<'_, '_>, key: &'static str, default: &str) -> PathBuf {
        let given = section.text(key, PATH_BYTES_MAX);
        self.base_dir
            .join(given.map_or(default.to_owned(), |at| at.value))
    }

    /// Reads a path of a Unix socket; an empty one means none, where that is allowed.
    fn socket(&self, section: &Section<'_, '_>, key: &'static str, default: &str) -> PathBuf {
        let given = if key == "unix_socket" {
            section.text_or_empty(key, PATH_BYTES_MAX)
        } else {
            section.text(key, PATH_BYTES_MAX)
        };
        let (line, text) = given.map_or((section.line(), default.to_owned()), |at| {
            (at.line, at.value)
        });
        if text.is_empty() {
            return PathBuf::new();
        }
        let path = self.base_dir.join(text);
        let bytes = path.as_os_str().len();
        if bytes > SOCKET_PATH_BYTES_MAX {
            let wrong = format!("has {bytes} bytes with its directory");
            let remedy = format!("give a path of at most {SOCKET_PATH_BYTES_MAX} bytes");
            section.wrong(line, key, &wrong, remedy);
        }
        path
    }
}

/// Returns whether two paths lead to one file, which need not exist yet.
fn is_same_place(one: &Path, other: &Path) -> bool {
    let plain = |path: &Path| -> PathBuf {
        let parts = path.components();
        parts.filter(|part| *part != Component::CurDir).collect()
    };
    let resolved = |path: &Path| {
        // A path without a folder is in the current one.
        let path = Path::new(".").join(path);
        Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?))
    };
    plain(one) == plain(other) || resolved(one).is_some_and(|one| Some(one) == resolved(other))
}
