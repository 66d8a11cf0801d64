//! The options of an upstream: where it is, what it gets, and every limit.

use crate::{Error, Secret};
use std::fmt;

/// Largest number of upstreams of one node.
pub const UPSTREAMS_MAX: usize = 8;
/// Largest number of rules of one upstream.
pub const RULES_MAX: usize = 1024;
/// Size of the longest name of an upstream, in bytes.
pub const NAME_BYTES_MAX: usize = 32;
/// Size of the longest topic, in bytes.
pub const TOPIC_BYTES_MAX: usize = 1024;
/// Default of `window_readings_max`.
pub const WINDOW_READINGS: u32 = 100_000;
/// Range of `window_readings_max`.
pub const WINDOW_RANGE: (u32, u32) = (2, 1_000_000);
/// Range of `batch_bytes_max`.
pub const BATCH_BYTES_RANGE: (usize, usize) = (1024, 8 << 20);
/// Longest wait of any kind, in ms.
pub const WAIT_MS_MAX: u64 = 3_600_000;
/// Limit of each of: readings without an answer, readings that wait to be sent, and units in memory. So a slow link and
/// the memory hold no more than this, however large the window is. A lost connection leaves no more than this
/// unanswered; a longer backlog comes from an outage.
pub(super) const UNANSWERED_MAX: u32 = 10_000;

/// In which order a backlog is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// In the order of recording.
    #[default]
    OldestFirst,
    /// First what is recorded from the moment of the connection on, then what is older: each in the order of recording.
    RecentFirst,
}

/// Where a new upstream begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Begin {
    /// With what is recorded from now on.
    #[default]
    Now,
    /// With the oldest reading of the history.
    Oldest,
}

/// What happens to a reading that is older than its deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Late {
    /// It is sent, and counted.
    #[default]
    Send,
    /// It is left out, and counted.
    Skip,
}

/// The format of a reading for the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The number or text alone: MQTT, with the key in the topic.
    Number,
    /// A JSON object with `key`, `time_ms` and `value`; an array of them if a message holds several.
    Json,
    /// Line protocol.
    Line,
}

/// How exactly times go upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeUnit {
    /// Lines in ns, which is the default of line-protocol receivers. JSON has `time_ns` beside `time_ms` where a time
    /// is no whole ms.
    #[default]
    Nanoseconds,
    /// Lines in ms, rounded down, and nothing beside `time_ms`: for links that cost by the byte.
    Milliseconds,
}

impl TimeUnit {
    /// Returns its name in a configuration and in the parameter `precision` of a request.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nanoseconds => "ns",
            Self::Milliseconds => "ms",
        }
    }
}

/// What happens to readings whose key matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRule {
    /// Key, or a pattern with `+` and `#`.
    pub pattern: String,
    /// Whether they go upstream at all.
    pub forward: bool,
    /// At most one reading of each key per interval of this many ms of its time; 0: all readings.
    pub downsample_ms: u64,
    /// A reading that is older than this when it is to be sent is late, in ms; 0: never.
    pub deadline_ms: u64,
    /// What happens to a late reading.
    pub late: Late,
}

impl Default for KeyRule {
    fn default() -> Self {
        Self {
            pattern: "#".to_owned(),
            forward: true,
            downsample_ms: 0,
            deadline_ms: 0,
            late: Late::Send,
        }
    }
}

/// The protocol's version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MqttVersion {
    /// MQTT 3.1.1.
    V311,
    /// MQTT 5.
    #[default]
    V5,
}

/// Where readings go, and how the node connects.
#[derive(Clone, PartialEq, Eq)]
pub enum Target {
    /// A broker, with QoS 1.
    Mqtt {
        /// `host:port`.
        address: String,
        /// Which protocol to speak.
        version: MqttVersion,
        /// Client id: no other client of the broker may have it.
        client_id: String,
        /// User and password.
        login: Option<(String, Secret)>,
        /// `{key}` stands for the key, `{1}` to `{9}` for its levels. Without any of them a message holds several
        /// readings.
        topic: String,
        /// Keep-alive interval: the node sends a packet to the broker at least this often.
        keep_alive_seconds: u16,
        /// Largest number of unacknowledged messages; MQTT 5 brokers may allow fewer.
        inflight_max: u16,
    },
    /// A server that takes line protocol by POST.
    Http {
        /// `host:port`.
        address: String,
        /// The value of the header `Host`.
        host: String,
        /// Path and query, including `precision`, which is [`UpstreamOptions::time_unit`].
        path: String,
        /// The value of the header `Authorization`.
        authorization: Option<Secret>,
    },
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Passwords and tokens are left out.
        match self {
            Self::Mqtt { address, topic, .. } => write!(f, "Mqtt({address}, {topic})"),
            Self::Http { address, path, .. } => write!(f, "Http({address}, {path})"),
        }
    }
}

/// The options of one upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamOptions {
    /// Name, also of the cursor: 1 to [`NAME_BYTES_MAX`] letters, digits, `-` and `_`.
    pub name: String,
    /// The target.
    pub target: Target,
    /// Encrypts the connection; without it, the connection is plain.
    pub tls: Option<tls::Client>,
    /// The format of a reading.
    pub format: Format,
    /// The unit of its time.
    pub time_unit: TimeUnit,
    /// Measurement of lines.
    pub measurement: String,
    /// Tags of each line, names and values.
    pub tags: Vec<(String, String)>,
    /// The first rule that matches a key decides; a key without a matching rule does not go upstream.
    pub rules: Vec<KeyRule>,
    /// In which order a backlog is sent.
    pub order: Order,
    /// Where it begins if there is no cursor.
    pub begin: Begin,
    /// Whether readings are kept for it beyond the limits of the history.
    pub hold: bool,
    /// Largest number of readings that may have been sent beyond the durable cursor: a crash repeats them.
    pub window_readings_max: u32,
    /// Size of one message or request, in bytes.
    pub batch_bytes_max: usize,
    /// How long a reading may wait for others to share its message or request, in ms.
    pub linger_ms: u64,
    /// Longest wait for an answer, in ms.
    pub answer_ms_max: u64,
    /// Wait after the first failure, in ms; doubled after each further one.
    pub backoff_ms_min: u64,
    /// Longest wait after a failure, in ms.
    pub backoff_ms_max: u64,
    /// How long after the start nothing is sent while the node's clock is not trusted, in ms. Readings dated meanwhile
    /// would keep a wrong time upstream for good.
    pub clock_wait_ms_max: u64,
    /// A reading at which every connection ends is passed over after this time at the earliest, in ms.
    pub give_up_ms_min: u64,
}

impl UpstreamOptions {
    /// Returns the defaults: everything from now on, oldest first, a window of 100,000 readings, batches of 256 KiB.
    #[must_use]
    pub fn new(name: impl Into<String>, target: Target) -> Self {
        let (format, linger_ms) = match target {
            Target::Mqtt { .. } => (Format::Json, 50),
            Target::Http { .. } => (Format::Line, 1_000),
        };
        Self {
            name: name.into(),
            target,
            tls: None,
            format,
            time_unit: TimeUnit::default(),
            measurement: "keel".to_owned(),
            tags: Vec::new(),
            rules: vec![KeyRule::default()],
            order: Order::default(),
            begin: Begin::default(),
            hold: true,
            window_readings_max: WINDOW_READINGS,
            batch_bytes_max: 256 << 10,
            linger_ms,
            answer_ms_max: 10_000,
            backoff_ms_min: 500,
            backoff_ms_max: 60_000,
            clock_wait_ms_max: 300_000,
            give_up_ms_min: 600_000,
        }
    }

    /// Returns `host:port` of the upstream.
    #[must_use]
    pub fn address(&self) -> &str {
        match &self.target {
            Target::Mqtt { address, .. } | Target::Http { address, .. } => address,
        }
    }

    /// Returns whether several readings share a message or request.
    #[must_use]
    pub fn is_batched(&self) -> bool {
        match &self.target {
            Target::Mqtt { topic, .. } => !topic.contains('{'),
            Target::Http { .. } => true,
        }
    }

    /// Returns the largest number of readings of one message or request. Two of them may be unanswered, so that one can
    /// be built while the other is in flight.
    #[must_use]
    pub fn batch_readings_max(&self) -> u32 {
        match self.is_batched() {
            true => (self.window_readings_max.min(UNANSWERED_MAX) / 2).max(1),
            false => 1,
        }
    }

    /// Returns whether a message identifies the key of a reading, by its topic or its payload.
    #[must_use]
    pub fn tells_keys_apart(&self) -> bool {
        match &self.target {
            Target::Mqtt { topic, .. } if self.format == Format::Number => {
                let sent = self.rules.iter().filter(|rule| rule.forward);
                tells_apart(topic, sent.map(|rule| rule.pattern.as_str()))
            }
            _ => true,
        }
    }

    /// Checks that every option is in its range.
    ///
    /// # Errors
    /// [`Error::OptionInvalid`] names the first that is not.
    pub fn check(&self) -> Result<(), Error> {
        check_name(&self.name)?;
        if self.rules.len() > RULES_MAX {
            return bad("key", "more than 1024");
        }
        for rule in &self.rules {
            if let Err(problem) = base::pattern::check(&rule.pattern) {
                return bad("key", problem);
            }
        }
        let (low, high) = WINDOW_RANGE;
        if !(low..=high).contains(&self.window_readings_max) {
            return bad("window_readings_max", "must be from 2 to 1000000");
        }
        let (low, high) = BATCH_BYTES_RANGE;
        if !(low..=high).contains(&self.batch_bytes_max) {
            return bad("batch_bytes_max", "must be from 1024 to 8388608");
        }
        for (option, wait) in [
            ("backoff_ms_min", self.backoff_ms_min),
            ("backoff_ms_max", self.backoff_ms_max),
            ("answer_ms_max", self.answer_ms_max),
        ] {
            if !(1..=WAIT_MS_MAX).contains(&wait) {
                return bad(option, "must be from 1 to 3600000");
            }
        }
        if self.backoff_ms_min > self.backoff_ms_max {
            return bad("backoff_ms_min", "must be at most backoff_ms_max");
        }
        for (option, wait) in [
            ("linger_ms", self.linger_ms),
            ("clock_wait_seconds_max", self.clock_wait_ms_max),
        ] {
            if wait > WAIT_MS_MAX {
                return bad(option, "must be an hour at most");
            }
        }
        check_target(self)
    }
}

/// Checks that an upstream can have this name: it is part of a file name in the store.
///
/// # Errors
/// [`Error::OptionInvalid`].
pub fn check_name(name: &str) -> Result<(), Error> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_plain) {
        return bad("name", "must be 1 to 32 letters, digits, `-` and `_`");
    }
    Ok(())
}

fn check_target(options: &UpstreamOptions) -> Result<(), Error> {
    if !is_address(options.address()) {
        return bad("address", "must be host:port");
    }
    match &options.target {
        Target::Mqtt {
            client_id,
            topic,
            keep_alive_seconds,
            inflight_max,
            ..
        } => {
            if client_id.is_empty() || client_id.contains('\0') {
                return bad(
                    "client_id",
                    "must be a name that no other client of the broker has",
                );
            }
            check_topic(topic)?;
            if options.format == Format::Number && options.is_batched() {
                return bad(
                    "topic",
                    "must hold {key} where the payload is a number: the payload does not name the key",
                );
            }
            if *keep_alive_seconds == 0 || *inflight_max == 0 {
                return bad("keep_alive_seconds", "must be at least 1");
            }
        }
        Target::Http { path, host, .. } => {
            let text = |text: &str| text.bytes().all(|byte| (0x20..0x7f).contains(&byte));
            if !path.starts_with('/') || !text(path) || path.contains(' ') {
                return bad("url", "must be http://host:port/path");
            }
            if !text(host) {
                return bad("url", "must have a host of printable ASCII");
            }
            if options.format != Format::Line {
                return bad("payload", "must be \"line\" over HTTP");
            }
        }
    }
    Ok(())
}

/// Checks that a topic can be published to.
///
/// # Errors
/// [`Error::OptionInvalid`].
pub fn check_topic(topic: &str) -> Result<(), Error> {
    if topic.is_empty() || topic.len() > TOPIC_BYTES_MAX / 2 {
        return bad("topic", "must have 1 to 512 bytes");
    }
    if topic.chars().any(|c| c.is_control()) || topic.contains(['+', '#']) {
        return bad(
            "topic",
            "must hold no control character and neither `+` nor `#`",
        );
    }
    let mut rest = topic;
    while let Some(from) = rest.find('{') {
        let Some(end) = rest[from..].find('}') else {
            return bad("topic", "has a `{` without its `}`");
        };
        let name = &rest[from + 1..from + end];
        if name != "key" && !matches!(name.as_bytes(), [b'1'..=b'9']) {
            return bad("topic", "knows {key} and {1} to {9} only");
        }
        rest = &rest[from + end + 1..];
    }
    Ok(())
}

/// Returns whether a topic that [`check_topic`] accepts differs for each key that matches one of `patterns`. If a
/// message holds a value alone, only its topic identifies the key.
#[must_use]
pub fn tells_apart<'a>(topic: &str, patterns: impl IntoIterator<Item = &'a str>) -> bool {
    if topic.contains("{key}") {
        return true;
    }
    // Levels of the keys. `None`: the level is not the same in all keys.
    let mut levels: Option<Vec<Option<&str>>> = None;
    for pattern in patterns {
        let of_this: Vec<Option<&str>> = pattern
            .split('/')
            .map(|level| (level != "+").then_some(level))
            .collect();
        let levels = levels.get_or_insert_with(|| of_this.clone());
        if of_this.last() == Some(&Some("#")) || levels.len() != of_this.len() {
            return false;
        }
        for (level, other) in levels.iter_mut().zip(of_this) {
            *level = level.filter(|level| Some(*level) == other);
        }
    }
    let levels = levels.unwrap_or_default();
    let varying = (1..).zip(&levels).filter(|(_, level)| level.is_none());
    let varying: Vec<String> = varying.map(|(place, _)| format!("{{{place}}}")).collect();
    // Two variables side by side within one level are ambiguous: the boundary between them cannot be seen.
    let is_alone = |wanted: &String, level: &str| {
        let mut others = varying.iter().filter(|other| *other != wanted);
        level.contains(wanted.as_str()) && !others.any(|other| level.contains(other.as_str()))
    };
    varying
        .iter()
        .all(|wanted| topic.split('/').any(|level| is_alone(wanted, level)))
}

pub(crate) fn is_address(address: &str) -> bool {
    address
        .rsplit_once(':')
        .filter(|(host, _)| !host.is_empty())
        .is_some_and(|(_, port)| port.parse::<u16>().is_ok_and(|port| port > 0))
}

pub(crate) fn bad(option: &'static str, problem: &str) -> Result<(), Error> {
    Err(Error::OptionInvalid {
        option,
        problem: problem.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_tells_keys_apart_by_every_level_that_varies() {
        for (topic, patterns, does) in [
            ("up/{key}", &["#"][..], true),
            ("up", &["valve"], true),
            ("up", &["valve", "valve"], true),
            ("up", &[], true),
            ("up", &["valve/+"], false),
            ("up/{2}", &["valve/+"], true),
            ("up/{1}", &["valve/+/position"], false),
            ("up/{2}", &["hall/+/temp"], true),
            ("up/{1}-{2}", &["hall/+/temp"], true),
            // A key of another building, or of another kind, has the same topic.
            ("up/{2}", &["hall/+/temp", "shed/+/temp"], false),
            ("up/{2}", &["hall/+/temp", "hall/+/hum"], false),
            ("up/{2}/{3}", &["hall/+/temp", "hall/+/hum"], true),
            ("up/{2}", &["hall/+", "hall/+/hum"], false),
            ("up/{1}", &["#"], false),
            ("up/{2}", &["hall/#"], false),
            ("up/{2}/{3}", &["hall/+/+", "hall/1/#"], false),
            // `a` and `bc`, `ab` and `c`.
            ("up/{1}{2}", &["+/+"], false),
            ("up/{1}{2}/{2}", &["+/+"], false),
            ("up/{1}/{2}", &["+/+"], true),
        ] {
            let found = tells_apart(topic, patterns.iter().copied());
            assert_eq!(found, does, "{topic} {patterns:?}");
        }
    }
}
