//! The node's configuration: what `keel.toml` can say, the defaults, the ranges, and how errors in it are told.
//!
//! One reader serves all: a key that it does not ask for is unknown, a value outside its range is refused with
//! its line and the remedy. Relative paths are relative to the directory of the file.

#![allow(dead_code)] // Until `keel run` uses all of it.

mod reader;

use crate::error::CliError;
use base::error::Code;
use reader::{Document, Problem, Section};
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Bytes of the largest configuration file.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Bytes of the longest path of a Unix socket: the system's limit without the final zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Bytes of the longest path.
const PATH_BYTES_MAX: usize = 4095;
/// Bytes of the longest text.
const TEXT_BYTES_MAX: usize = 256;
/// Bytes of the longest name that MQTT can carry.
const MQTT_TEXT_BYTES_MAX: usize = 65_535;
/// Bytes of the longest password.
const PASSWORD_BYTES_MAX: u64 = 65_535;
/// `[[key]]` tables.
const KEY_RULES_MAX: usize = 1024;
/// `[[mqtt.subscribe]]` tables.
const SUBSCRIPTIONS_MAX: usize = 256;

/// Everything that `keel.toml` can say.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Config {
    /// The node itself.
    pub(crate) node: NodeConfig,
    /// Where and how readings are stored.
    pub(crate) store: StoreConfig,
    /// Limits of keys and values.
    pub(crate) keys: KeysConfig,
    /// What is declared about keys; the first pattern that fits a key counts.
    pub(crate) key: Vec<KeyConfig>,
    /// Which times of sensors are believed.
    pub(crate) time: TimeConfig,
    /// The broker, if there is one.
    pub(crate) mqtt: Option<MqttConfig>,
    /// The line protocol.
    pub(crate) line: LineConfig,
}

/// `[node]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeConfig {
    /// Unix socket of the commands `keel get`, `put`, `watch`, `history` and `status`.
    pub(crate) socket: PathBuf,
    /// Commands connected to it at once.
    pub(crate) connections_max: u32,
}

/// `[store]`
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StoreConfig {
    /// Image file or block device.
    pub(crate) image: PathBuf,
    /// Size of the image file that is made when there is none.
    pub(crate) create_mebibytes: u64,
    /// Longest time from a reading to its flush.
    pub(crate) commit_interval_ms: u32,
    /// What happens to new readings when the store is full.
    pub(crate) full_policy: db::FullPolicy,
    /// Age in days above which readings are deleted; 0: none.
    pub(crate) history_days_max: u32,
    /// Size of the history in MiB above which the oldest readings are deleted; 0: nine tenths of the store.
    pub(crate) history_mebibytes_max: u64,
    /// Terabytes (10^12 bytes) that the card is rated for; 0: not known.
    pub(crate) card_rated_write_terabytes: f64,
}

/// `[keys]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeysConfig {
    /// Keys at most.
    pub(crate) keys_max: u32,
    /// Whether a key that no `[[key]]` declares is made when its first reading comes.
    pub(crate) auto_create: bool,
    /// Bytes of the longest value.
    pub(crate) value_bytes_max: u32,
}

/// `[[key]]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyConfig {
    /// Key, or a pattern with `+` and `#`.
    pub(crate) pattern: String,
    /// A value is fresh for so long.
    pub(crate) validity_ms: u32,
    /// Whether readings are to update it, so that its freshness counts.
    pub(crate) temporal: bool,
}

/// `[time]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeConfig {
    /// A sensor's time further in the future is refused.
    pub(crate) future_seconds_max: u64,
    /// A sensor's time further in the past is refused.
    pub(crate) past_days_max: u64,
}

/// Version of the protocol spoken with the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MqttVersion {
    /// MQTT 3.1.1.
    V3_1_1,
    /// MQTT 5.
    V5,
}

/// `[mqtt]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MqttConfig {
    /// Name or address of the broker, without brackets.
    pub(crate) host: String,
    /// Its port.
    pub(crate) port: u16,
    /// Version of the protocol.
    pub(crate) version: MqttVersion,
    /// Name of this node's session at the broker; no other client may have it.
    pub(crate) client_id: String,
    /// User at the broker.
    pub(crate) username: Option<String>,
    /// File whose first line is the password.
    pub(crate) password_file: Option<PathBuf>,
    /// Longest silence before the link is probed.
    pub(crate) keep_alive_seconds: u16,
    /// Bytes of the largest packet taken.
    pub(crate) packet_bytes_max: u32,
    /// First wait before the next attempt to connect.
    pub(crate) reconnect_ms_min: u32,
    /// Longest wait before the next attempt to connect.
    pub(crate) reconnect_ms_max: u32,
    /// What is subscribed.
    pub(crate) subscribe: Vec<SubscribeConfig>,
}

/// What the payload of a message is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    /// A number, `true`, `false` or text in quotes.
    Number,
    /// A JSON object.
    Json {
        /// Member that holds the value; levels separated by `.`.
        field: String,
        /// Member that holds the time.
        time_field: Option<String>,
    },
    /// Lines of line protocol.
    Line,
}

/// `[[mqtt.subscribe]]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SubscribeConfig {
    /// Topic filter.
    pub(crate) filter: String,
    /// Delivery class, 0 or 1.
    pub(crate) qos: u8,
    /// What the messages hold.
    pub(crate) payload: Payload,
    /// How the key is made from the topic; for lines, also from the line.
    pub(crate) key: String,
}

/// `[line]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LineConfig {
    /// Address of the TCP listener, if there is one.
    pub(crate) tcp_listen: Option<SocketAddr>,
    /// Path of the Unix listener, if there is one.
    pub(crate) unix_socket: Option<PathBuf>,
    /// Connections at once, of both listeners together.
    pub(crate) connections_max: u32,
    /// Bytes of the longest line.
    pub(crate) line_bytes_max: u32,
    /// A connection that is silent for longer is closed; 0: never.
    pub(crate) idle_seconds_max: u32,
    /// How the key is made from a line and one of its fields.
    pub(crate) key: String,
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// One line with file, line, key and remedy; exit status 1.
    pub(crate) fn load(path: &Path) -> Result<Self, CliError> {
        let text = read(path)?;
        Self::parse(&text, &path.display().to_string(), directory(path))
    }

    /// Reads a text. `origin` is named in errors; relative paths are relative to `base_dir`.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub(crate) fn parse(text: &str, origin: &str, base_dir: &Path) -> Result<Self, CliError> {
        Self::parse_all(text, base_dir).map_err(|problems| first_of(&problems, origin))
    }

    /// Reads a text.
    ///
    /// # Errors
    /// Everything that is wrong with it, the most telling first.
    pub(crate) fn parse_all(text: &str, base_dir: &Path) -> Result<Self, Vec<Problem>> {
        let document = Document::new(text);
        let config = document.parse().map(|table| {
            let top = Section::top(&document, table.get_ref());
            let reader = Reader { base_dir };
            reader.config(top)
        });
        let (problems, _) = document.finish();
        match config {
            Some(config) if problems.is_empty() => Ok(config),
            _ => Err(problems),
        }
    }
}

impl StoreConfig {
    /// How long readings are kept in a store that holds `capacity_bytes` of files.
    pub(crate) fn retention(&self, capacity_bytes: u64) -> db::Retention {
        // The tenth that stays free holds the checkpoints and what arrives while the oldest segment goes.
        let history_bytes_max = match self.history_mebibytes_max {
            0 => capacity_bytes / 10 * 9,
            mebibytes => mebibytes << 20,
        };
        db::Retention {
            history_bytes_max,
            history_age_ms_max: u64::from(self.history_days_max) * 86_400_000,
            full_policy: self.full_policy,
        }
    }
}

impl MqttConfig {
    /// The password, read from its file now.
    ///
    /// # Errors
    /// The file cannot be read, or holds no password.
    pub(crate) fn password(&self) -> Result<Option<String>, CliError> {
        let Some(path) = &self.password_file else {
            return Ok(None);
        };
        let text = read_bounded(path, PASSWORD_BYTES_MAX)?;
        let first = text.lines().next().unwrap_or_default();
        if first.is_empty() {
            return Err(CliError::failure(
                path.display(),
                "holds no password in its first line",
                "write it there",
            ));
        }
        Ok(Some(first.to_owned()))
    }
}

/// The directory that relative paths of this file start from.
fn directory(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

/// The text of a configuration file.
fn read(path: &Path) -> Result<String, CliError> {
    read_bounded(path, FILE_BYTES_MAX)
}

fn read_bounded(path: &Path, bytes_max: u64) -> Result<String, CliError> {
    let shown = path.display().to_string();
    let io = |error: std::io::Error| CliError::io(&shown, &error);
    let metadata = std::fs::metadata(path).map_err(io)?;
    if !metadata.is_file() {
        // Opening a FIFO waits for its other end.
        let wrong = "is no regular file";
        return Err(CliError::failure(&shown, wrong, "name a file"));
    }
    let file = std::fs::File::open(path).map_err(io)?;
    let mut bytes = Vec::new();
    file.take(bytes_max + 1)
        .read_to_end(&mut bytes)
        .map_err(io)?;
    if bytes.len() as u64 > bytes_max {
        let wrong = format!("is larger than {bytes_max} bytes");
        return Err(CliError::failure(&shown, wrong, "name the right file"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.iter().filter(|byte| **byte == b'\n').count() + 1;
        let remedy = "save it as UTF-8";
        CliError::failure(format!("{shown}:{line}"), "is not UTF-8", remedy)
    })
}

/// The first problem as the one line of error.
fn first_of(problems: &[Problem], origin: &str) -> CliError {
    match problems {
        [] => CliError::coded(Code::Io, origin, "cannot be read", ""),
        [first, rest @ ..] => {
            let thing = format!("{origin}:{}", first.line);
            let remedy = match rest.len() {
                0 => first.remedy.clone(),
                1 => format!("{} (and 1 more problem)", first.remedy),
                more => format!("{} (and {more} more problems)", first.remedy),
            };
            CliError::failure(thing, &first.wrong, remedy)
        }
    }
}

/// From sections to the structures above. Defaults and ranges stand here and nowhere else.
struct Reader<'p> {
    base_dir: &'p Path,
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
        };
        top.finish();
        config
    }

    fn node(&self, section: Section<'_, '_>) -> NodeConfig {
        let node = NodeConfig {
            socket: self.socket(&section, "socket", "keel-data/keel.sock"),
            connections_max: section.integer("connections_max", 64, (1, 1024)) as u32,
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
            card_rated_write_terabytes: section.number(
                "card_rated_write_terabytes",
                0.0,
                (0.0, 1_000_000.0),
            ),
        };
        section.finish();
        store
    }

    fn keys(section: Section<'_, '_>) -> KeysConfig {
        let keys = KeysConfig {
            keys_max: section.integer("keys_max", 4096, (1, 1_000_000)) as u32,
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
        let pattern = section.required("pattern", TEXT_BYTES_MAX, "name the keys that are meant");
        let key = KeyConfig {
            pattern: pattern.value,
            validity_ms: section.integer("validity_ms", 60_000, (1, u64::from(u32::MAX))) as u32,
            temporal: section.boolean("temporal", true),
        };
        section.finish();
        key
    }

    fn time(section: Section<'_, '_>) -> TimeConfig {
        let time = TimeConfig {
            future_seconds_max: section.integer("future_seconds_max", 600, (0, 31_536_000)),
            past_days_max: section.integer("past_days_max", 3650, (1, 36_500)),
        };
        section.finish();
        time
    }

    fn mqtt(&self, section: Section<'_, '_>) -> MqttConfig {
        const ADDRESS: &str = "give host:port, such as \"192.168.1.10:1883\"";
        let address = section.required("address", TEXT_BYTES_MAX, ADDRESS);
        let (host, port) = host_port(&address.value).unwrap_or_else(|| {
            if !address.value.is_empty() {
                let wrong = format!("is \"{}\"", address.value);
                section.wrong(address.line, "address", &wrong, ADDRESS);
            }
            (String::new(), 0)
        });
        let client_id = section.required(
            "client_id",
            MQTT_TEXT_BYTES_MAX,
            "give a name that no other client of this broker has",
        );
        let username = section.text("username", MQTT_TEXT_BYTES_MAX);
        let password_file = section.text("password_file", PATH_BYTES_MAX);
        if let (None, Some(file)) = (&username, &password_file) {
            let remedy = "give username as well";
            section.wrong(file.line, "password_file", "lacks a user", remedy);
        }
        let mqtt = MqttConfig {
            host,
            port,
            version: section.choice(
                "version",
                MqttVersion::V3_1_1,
                &[("3.1.1", MqttVersion::V3_1_1), ("5", MqttVersion::V5)],
            ),
            client_id: client_id.value,
            username: username.map(|at| at.value),
            password_file: password_file.map(|at| self.base_dir.join(at.value)),
            keep_alive_seconds: section.integer("keep_alive_seconds", 30, (5, 3600)) as u16,
            packet_bytes_max: section.integer("packet_bytes_max", 262_144, (1024, 16 << 20)) as u32,
            reconnect_ms_min: section.integer("reconnect_ms_min", 500, (10, 3_600_000)) as u32,
            reconnect_ms_max: section.integer("reconnect_ms_max", 60_000, (10, 3_600_000)) as u32,
            subscribe: section
                .sections("subscribe", SUBSCRIPTIONS_MAX)
                .into_iter()
                .map(Self::subscribe)
                .collect(),
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

    fn subscribe(section: Section<'_, '_>) -> SubscribeConfig {
        #[derive(Clone, Copy, PartialEq)]
        enum Kind {
            Number,
            Json,
            Line,
        }
        let filter = section.required("filter", MQTT_TEXT_BYTES_MAX, "give a topic filter");
        let kinds = [
            ("number", Kind::Number),
            ("json", Kind::Json),
            ("line", Kind::Line),
        ];
        let kind = section.choice("payload", Kind::Number, &kinds);
        let field = section.text("json_field", TEXT_BYTES_MAX);
        let time_field = section.text("json_time_field", TEXT_BYTES_MAX);
        if kind == Kind::Json && field.is_none() {
            let remedy = "name the member that holds the value";
            section.wrong(section.line(), "json_field", "is missing", remedy);
        }
        for (key, given) in [("json_field", &field), ("json_time_field", &time_field)] {
            if let (true, Some(at)) = (kind != Kind::Json, given) {
                let wrong = "is for payload = \"json\" only";
                section.wrong(at.line, key, wrong, "set payload, or remove the line");
            }
        }
        let key = section.text("key", TEXT_BYTES_MAX);
        let subscribe = SubscribeConfig {
            filter: filter.value,
            qos: section.integer("qos", 1, (0, 1)) as u8,
            payload: match kind {
                Kind::Number => Payload::Number,
                Kind::Json => Payload::Json {
                    field: field.map(|at| at.value).unwrap_or_default(),
                    time_field: time_field.map(|at| at.value),
                },
                Kind::Line => Payload::Line,
            },
            key: match (key, kind) {
                (Some(at), _) => at.value,
                (None, Kind::Line) => LINE_KEY.to_owned(),
                (None, _) => "{topic}".to_owned(),
            },
        };
        section.finish();
        subscribe
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
            key: section
                .text("key", TEXT_BYTES_MAX)
                .map_or(LINE_KEY.to_owned(), |at| at.value),
        };
        section.finish();
        line
    }

    fn path(&self, section: &Section<'_, '_>, key: &'static str, default: &str) -> PathBuf {
        let given = section.text(key, PATH_BYTES_MAX);
        self.base_dir
            .join(given.map_or(default.to_owned(), |at| at.value))
    }

    /// A path of a Unix socket; an empty one stands for none where that is allowed.
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

/// Listener of the line protocol without any configuration.
const LINE_TCP: &str = "127.0.0.1:8094";
/// Key of a line without any configuration.
const LINE_KEY: &str = "{measurement}/{tags}/{field}";

/// `host:port`, `[::1]:1883`.
fn host_port(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let port: u16 = port.parse().ok().filter(|port| *port != 0)?;
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?,
        None if host.contains(':') => return None,
        None => host,
    };
    let is_plain = !host.is_empty() && !host.contains(['/', '@', '[', ']', ' ']);
    is_plain.then(|| (host.to_owned(), port))
}
