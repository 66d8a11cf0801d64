//! `[[upstream]]`: where readings go. Both kinds share one set of keys; a key of the other kind is reported.

use super::certificates;
use super::reader::{At, Section};
use super::secret;
use super::values::{
    BROKER_ADDRESS, CREDENTIAL_BYTES_MAX, PATH_BYTES_MAX, TEXT_BYTES_MAX, TLS_REMEDY,
    address_remedy, host_port,
};
use base::clock::Clock;
use egress::forward::{
    Begin, KeyRule, Late, MqttVersion, Order, Target, TimeUnit, UpstreamOptions,
};
use egress::forward::{Format, options};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tls::{Client, ClientOptions};

/// Bytes of the longest URL.
const URL_BYTES_MAX: usize = 2048;
/// Longest wait, in ms.
const WAIT_MS_MAX: u64 = options::WAIT_MS_MAX;
/// Default topic.
const TOPIC: &str = "keel/{key}";
/// The units of times, as `time_unit` and the parameter `precision` of a URL name them.
const UNITS: [(&str, TimeUnit); 2] = [
    ("ns", TimeUnit::Nanoseconds),
    ("ms", TimeUnit::Milliseconds),
];

/// The protocol of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamKind {
    /// A broker.
    Mqtt,
    /// A server that accepts line protocol.
    Http,
}

/// `[[upstream]]`
#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamConfig {
    /// Its protocol.
    pub kind: UpstreamKind,
    /// All options except those read from files.
    pub options: UpstreamOptions,
    /// Whom the node trusts as the upstream; without it, the connection is plain.
    pub tls: Option<ClientOptions>,
    /// User name at the broker.
    pub username: Option<String>,
    /// File whose first line is the password.
    pub password_file: Option<PathBuf>,
    /// File whose first line is the `Authorization` header.
    pub authorization_file: Option<PathBuf>,
}

impl UpstreamConfig {
    /// Returns the options, with the files that are read for each connection. Certificates are judged by this clock.
    #[must_use]
    pub fn to_options(&self, clock: &Arc<dyn Clock>) -> UpstreamOptions {
        let mut given = self.options.clone();
        let tls = self.tls.clone();
        given.tls = tls.map(|tls| Client::new(tls, Arc::clone(clock)));
        match &mut given.target {
            Target::Mqtt { login, .. } => {
                let user = self.username.as_ref();
                *login = user.map(|user| (user.clone(), secret(self.password_file.as_deref())));
            }
            Target::Http { authorization, .. } => {
                let file = self.authorization_file.as_deref();
                *authorization = file.map(|file| secret(Some(file)));
            }
        }
        given
    }

    /// Returns what it does, in one sentence.
    pub(crate) fn sentence(&self) -> String {
        let given = &self.options;
        let what = match &given.target {
            Target::Mqtt { topic, .. } => {
                let over = self.tls.as_ref().map_or("", |_| " over TLS");
                format!("MQTT{over} to {} as {topic}", given.address())
            }
            Target::Http { path, .. } => {
                let protocol = self.tls.as_ref().map_or("HTTP", |_| "HTTPS");
                format!("{protocol} to {}{path}", given.address())
            }
        };
        let order = match given.order {
            Order::OldestFirst => "oldest first",
            Order::RecentFirst => "recent ones first",
        };
        let keys = match given.rules.len() {
            1 if given.rules[0] == KeyRule::default() => "all keys".to_owned(),
            1 => "keys by 1 rule".to_owned(),
            rules => format!("keys by {rules} rules"),
        };
        format!(
            "{what}: {keys}, {order}; a crash repeats at most {} readings",
            given.window_readings_max
        )
    }
}

/// Reads every upstream of a document.
pub(super) fn upstreams(top: &Section<'_, '_>, base_dir: &Path) -> Vec<UpstreamConfig> {
    let mut all: Vec<UpstreamConfig> = Vec::new();
    for section in top.sections("upstream", options::UPSTREAMS_MAX) {
        let line = section.line();
        let upstream = upstream(&section, base_dir);
        let name = &upstream.options.name;
        if all.iter().any(|other| other.options.name == *name) && !name.is_empty() {
            let wrong = format!("is \"{name}\" twice");
            section.wrong(line, "name", &wrong, "give each its own: it names a cursor");
        }
        all.push(upstream);
        section.finish();
    }
    all
}

fn upstream(section: &Section<'_, '_>, base_dir: &Path) -> UpstreamConfig {
    let kinds = [("mqtt", UpstreamKind::Mqtt), ("http", UpstreamKind::Http)];
    if !section.has("kind") {
        let remedy = "give \"mqtt\" or \"http\"";
        section.wrong(section.line(), "kind", "is missing", remedy);
    }
    let kind = section.choice("kind", UpstreamKind::Mqtt, &kinds);
    let name = section.required(
        "name",
        options::NAME_BYTES_MAX,
        "give a name, which its cursor in the store has",
    );
    if !name.value.is_empty() && options::check_name(&name.value).is_err() {
        let wrong = format!("is \"{}\"", name.value);
        section.wrong(
            name.line,
            "name",
            &wrong,
            "give letters, digits, `-` and `_`",
        );
    }
    let only = |of: UpstreamKind, keys: &[&str]| {
        for key in keys {
            if kind != of && section.has(key) {
                let word = if of == UpstreamKind::Mqtt {
                    "mqtt"
                } else {
                    "http"
                };
                let wrong = format!("is for kind = \"{word}\" only");
                section.wrong(section.line(), key, &wrong, "set kind, or remove the line");
            }
        }
    };
    only(
        UpstreamKind::Mqtt,
        &[
            "address",
            "tls",
            "version",
            "client_id",
            "username",
            "password_file",
            "topic",
            "keep_alive_seconds",
            "inflight_max",
        ],
    );
    only(UpstreamKind::Http, &["url", "authorization_file"]);
    let mqtt = mqtt(section, kind == UpstreamKind::Mqtt);
    let has_unit = section.has("time_unit");
    let unit = section.choice("time_unit", TimeUnit::default(), &UNITS);
    let is_http = kind == UpstreamKind::Http;
    let (http, time_unit, is_https) = http(section, is_http, unit, has_unit);
    let is_mqtts = section.boolean("tls", false);
    let (has_tls, remedy) = match kind {
        UpstreamKind::Mqtt => (is_mqtts, TLS_REMEDY),
        UpstreamKind::Http => (is_https, "give a url with https://, or remove the line"),
    };
    let tls = certificates::client(section, has_tls, remedy, base_dir);
    let username = section.text("username", CREDENTIAL_BYTES_MAX);
    let password_file = section.text("password_file", PATH_BYTES_MAX);
    if let (None, Some(file)) = (&username, &password_file) {
        let remedy = "give username as well";
        section.wrong(file.line, "password_file", "lacks a user", remedy);
    }
    let authorization_file = section.text("authorization_file", PATH_BYTES_MAX);
    let (target, format, linger_ms) = match kind {
        UpstreamKind::Mqtt => (mqtt, Format::Json, 50),
        UpstreamKind::Http => (http, Format::Line, 1000),
    };
    let formats = [
        ("number", Format::Number),
        ("json", Format::Json),
        ("line", Format::Line),
    ];
    let format = section.choice("payload", format, &formats);
    let measurement = section.text("measurement", TEXT_BYTES_MAX);
    let tags = tags(section);
    let wait = |key, default| section.integer(key, default, (1, WAIT_MS_MAX));
    let (window_min, window_max) = options::WINDOW_RANGE;
    let (batch_min, batch_max) = options::BATCH_BYTES_RANGE;
    let given = UpstreamOptions {
        format,
        time_unit,
        measurement: measurement.map_or("keel".to_owned(), |at| at.value),
        tags,
        rules: rules(section),
        order: section.choice(
            "order",
            Order::OldestFirst,
            &[
                ("oldest-first", Order::OldestFirst),
                ("recent-first", Order::RecentFirst),
            ],
        ),
        begin: section.choice(
            "begin",
            Begin::Now,
            &[("now", Begin::Now), ("oldest", Begin::Oldest)],
        ),
        hold: section.boolean("hold", true),
        window_readings_max: section.integer(
            "window_readings_max",
            options::WINDOW_READINGS.into(),
            (u64::from(window_min), u64::from(window_max)),
        ) as u32,
        batch_bytes_max: section.integer(
            "batch_bytes_max",
            256 << 10,
            (batch_min as u64, batch_max as u64),
        ) as usize,
        linger_ms: section.integer("linger_ms", linger_ms, (0, WAIT_MS_MAX)),
        answer_ms_max: wait("answer_ms_max", 10_000),
        backoff_ms_min: wait("backoff_ms_min", 500),
        backoff_ms_max: wait("backoff_ms_max", 60_000),
        clock_wait_ms_max: 1000
            * section.integer("clock_wait_seconds_max", 300, (0, WAIT_MS_MAX / 1000)),
        give_up_ms_min: 1000 * section.integer("give_up_seconds_min", 600, (1, 86_400)),
        ..UpstreamOptions::new(name.value.clone(), target)
    };
    let is_sound = !name.value.is_empty() && given.address() != ":0";
    if is_sound && let Err(egress::Error::OptionInvalid { option, problem }) = given.check() {
        section.wrong(section.line(), option, "does not fit", problem);
    }
    UpstreamConfig {
        kind,
        options: given,
        tls,
        username: username.map(|at| at.value),
        password_file: password_file.map(|at| base_dir.join(at.value)),
        authorization_file: authorization_file.map(|at| base_dir.join(at.value)),
    }
}

fn mqtt(section: &Section<'_, '_>, is_it: bool) -> Target {
    let required = |key, bytes_max, remedy| match is_it {
        true => section.required(key, bytes_max, remedy),
        false => section.text(key, bytes_max).unwrap_or(At {
            line: section.line(),
            value: String::new(),
        }),
    };
    let address = required("address", TEXT_BYTES_MAX, BROKER_ADDRESS);
    let parsed = host_port(&address.value);
    if parsed.is_none() && !address.value.is_empty() {
        let wrong = format!("is \"{}\"", address.value);
        let remedy = address_remedy(&address.value);
        section.wrong(address.line, "address", &wrong, remedy);
    }
    let client_id = required(
        "client_id",
        CREDENTIAL_BYTES_MAX,
        "give a name that no other client of this broker has",
    );
    let topic = section.text("topic", options::TOPIC_BYTES_MAX);
    if let Some(at) = &topic
        && let Err(egress::Error::OptionInvalid { problem, .. }) = options::check_topic(&at.value)
    {
        let wrong = format!("is \"{}\"", at.value);
        section.wrong(at.line, "topic", &wrong, problem);
    }
    Target::Mqtt {
        address: joined(parsed),
        version: section.choice(
            "version",
            MqttVersion::V5,
            &[("3.1.1", MqttVersion::V311), ("5", MqttVersion::V5)],
        ),
        client_id: client_id.value,
        login: None,
        topic: topic.map_or(TOPIC.to_owned(), |at| at.value),
        keep_alive_seconds: section.integer("keep_alive_seconds", 30, (5, 3600)) as u16,
        inflight_max: section.integer("inflight_max", 1000, (1, 65_535)) as u16,
    }
}

fn joined(parsed: Option<(String, u16)>) -> String {
    match parsed {
        None => ":0".to_owned(),
        Some((host, port)) if host.contains(':') => format!("[{host}]:{port}"),
        Some((host, port)) => format!("{host}:{port}"),
    }
}

/// Reads the target of a server, the unit of times, and whether the connection has TLS. A unit that the URL alone names
/// counts: the request says it.
fn http(
    section: &Section<'_, '_>,
    is_it: bool,
    unit: TimeUnit,
    has_unit: bool,
) -> (Target, TimeUnit, bool) {
    const URL: &str = "give http://host:port/path or https://host/path, such as \
        \"http://192.168.1.10:8086/api/v2/write?org=o&bucket=b\"";
    let url = match is_it {
        true => section.required("url", URL_BYTES_MAX, URL),
        false => section.text("url", URL_BYTES_MAX).unwrap_or(At {
            line: section.line(),
            value: String::new(),
        }),
    };
    let mut found = Url::default();
    if !url.value.is_empty() {
        match split_url(&url.value) {
            Ok(split) => found = split,
            Err(remedy) => {
                let wrong = format!("is \"{}\"", url.value);
                section.wrong(url.line, "url", &wrong, remedy.unwrap_or(URL));
            }
        }
    }
    if let Some(said) = found.unit
        && has_unit
        && said != unit
    {
        let (said, unit) = (said.name(), unit.name());
        let wrong = format!("is \"{unit}\", and url says precision={said}");
        let line = section.line_of("time_unit");
        section.wrong(line, "time_unit", &wrong, "remove one of them");
    }
    let unit = found.unit.unwrap_or(unit);
    let path = found.path_in(unit);
    let target = Target::Http {
        address: found.address,
        host: found.host,
        path,
        authorization: None,
    };
    (target, unit, found.is_secure)
}

/// The parts of a URL.
#[derive(Debug, PartialEq)]
struct Url {
    is_secure: bool,
    address: String,
    /// The `Host` header.
    host: String,
    /// Path and query, as they were given.
    path: String,
    /// The unit of times that the query names.
    unit: Option<TimeUnit>,
}

impl Default for Url {
    fn default() -> Self {
        Self {
            is_secure: false,
            address: ":0".to_owned(),
            host: String::new(),
            path: "/".to_owned(),
            unit: None,
        }
    }
}

impl Url {
    /// Returns path and query, which name the unit of times.
    fn path_in(&self, unit: TimeUnit) -> String {
        if self.unit.is_some() {
            return self.path.clone();
        }
        let join = if self.path.contains('?') { '&' } else { '?' };
        format!("{}{join}precision={}", self.path, unit.name())
    }
}

/// Splits a URL.
fn split_url(url: &str) -> Result<Url, Option<&'static str>> {
    let secure = url.strip_prefix("https://");
    let plain = || url.strip_prefix("http://");
    let rest = secure.or_else(plain).ok_or(None)?;
    let port = secure.map_or(80, |_| 443);
    let (host, path) = match rest.find(['/', '?']) {
        Some(at) if rest[at..].starts_with('/') => rest.split_at(at),
        Some(_) => return Err(None),
        None => (rest, "/"),
    };
    if host.contains('@') || !path.bytes().all(|byte| (0x21..0x7f).contains(&byte)) {
        return Err(None);
    }
    let address = match host_port(host) {
        Some(parsed) => joined(Some(parsed)),
        None => joined(Some(host_port(&format!("{host}:{port}")).ok_or(None)?)),
    };
    let query = path.split_once('?').map(|(_, query)| query);
    let precision = query
        .into_iter()
        .flat_map(|query| query.split('&'))
        .find_map(|part| part.strip_prefix("precision="));
    let unit = match precision {
        None => None,
        Some(name) => {
            let found = UNITS.iter().find(|(unit, _)| *unit == name);
            let (_, unit) = found.ok_or(Some("give precision=ns or ms, or remove it"))?;
            Some(*unit)
        }
    };
    Ok(Url {
        is_secure: secure.is_some(),
        address,
        host: host.to_owned(),
        path: path.to_owned(),
        unit,
    })
}

/// Reads tags such as `site=north,line=2`.
fn tags(section: &Section<'_, '_>) -> Vec<(String, String)> {
    let Some(at) = section.text_or_empty("tags", TEXT_BYTES_MAX) else {
        return Vec::new();
    };
    let parts = at.value.split(',').filter(|part| !part.is_empty());
    let tags: Option<Vec<(String, String)>> = parts
        .map(|part| {
            let (name, value) = part.split_once('=')?;
            let is_whole = !name.is_empty() && !value.is_empty() && name != "key";
            is_whole.then(|| (name.to_owned(), value.to_owned()))
        })
        .collect();
    tags.unwrap_or_else(|| {
        let wrong = format!("is \"{}\"", at.value);
        let remedy = "give name=value, several with commas between; the name `key` is taken";
        section.wrong(at.line, "tags", &wrong, remedy);
        Vec::new()
    })
}

fn rules(section: &Section<'_, '_>) -> Vec<KeyRule> {
    let mut rules = Vec::new();
    for one in section.sections("key", options::RULES_MAX) {
        const REMEDY: &str = "name the keys that are meant, such as \"hall/+/temperature\"";
        let pattern = one.required("pattern", base::pattern::PATTERN_BYTES_MAX, REMEDY);
        if let Err(why) = base::pattern::check(&pattern.value)
            && !pattern.value.is_empty()
        {
            let wrong = format!("is \"{}\"", pattern.value);
            one.wrong(pattern.line, "pattern", &wrong, why);
        }
        rules.push(KeyRule {
            pattern: pattern.value,
            forward: one.boolean("forward", true),
            downsample_ms: one.integer("downsample_ms", 0, (0, 86_400_000)),
            deadline_ms: one.integer("deadline_ms", 0, (0, 31_536_000_000)),
            late: one.choice(
                "late",
                Late::Send,
                &[("send", Late::Send), ("skip", Late::Skip)],
            ),
        });
        one.finish();
    }
    if rules.is_empty() {
        rules.push(KeyRule::default());
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn the_unit_of_times_is_in_the_file_or_in_the_url() {
        let parsed = |url: &str, more: &str| {
            let text = format!(
                "[[upstream]]\nname = \"a\"\nkind = \"http\"\nurl = \"http://h/w{url}\"\n{more}\n"
            );
            let config = Config::parse(&text, "keel.toml", Path::new(""));
            config.map_err(|error| error.to_string())
        };
        let (in_ns, in_ms) = ("time_unit = \"ns\"", "time_unit = \"ms\"");
        for (url, more, unit, precision) in [
            ("", "", TimeUnit::Nanoseconds, "ns"),
            ("", in_ns, TimeUnit::Nanoseconds, "ns"),
            ("", in_ms, TimeUnit::Milliseconds, "ms"),
            // As configurations of earlier versions may say.
            ("?precision=ms", "", TimeUnit::Milliseconds, "ms"),
            ("?precision=ms", in_ms, TimeUnit::Milliseconds, "ms"),
            ("?precision=ns", in_ns, TimeUnit::Nanoseconds, "ns"),
        ] {
            let config = parsed(url, more).unwrap();
            let given = &config.upstream[0].options;
            assert_eq!(given.time_unit, unit, "{url} {more}");
            let Target::Http { path, .. } = &given.target else {
                panic!("{:?}", given.target);
            };
            assert_eq!(*path, format!("/w?precision={precision}"));
        }
        for (url, more, told) in [
            ("?precision=ms", in_ns, "url says precision=ms"),
            ("?precision=ns", in_ms, "url says precision=ns"),
            ("?precision=us", "", "give precision=ns or ms"),
            ("", "time_unit = \"s\"", "time_unit"),
        ] {
            let error = parsed(url, more).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn an_address_comes_out_of_a_url_with_its_path_and_the_unit_of_times() {
        let (ns, ms) = (TimeUnit::Nanoseconds, TimeUnit::Milliseconds);
        for (url, [address, host, path], unit) in [
            (
                "http://h:8086/api/v2/write?org=o&bucket=b",
                [
                    "h:8086",
                    "h:8086",
                    "/api/v2/write?org=o&bucket=b&precision=ns",
                ],
                None,
            ),
            ("http://h", ["h:80", "h", "/?precision=ns"], None),
            (
                "https://h/w?precision=ms",
                ["h:443", "h", "/w?precision=ms"],
                Some(ms),
            ),
            (
                "http://[::1]:1/w?precision=ms",
                ["[::1]:1", "[::1]:1", "/w?precision=ms"],
                Some(ms),
            ),
            (
                "http://h/w?a=b&precision=ns&c",
                ["h:80", "h", "/w?a=b&precision=ns&c"],
                Some(ns),
            ),
        ] {
            let found = split_url(url).unwrap();
            assert_eq!((&*found.address, &*found.host), (address, host), "{url}");
            assert_eq!(found.is_secure, url.starts_with("https"), "{url}");
            assert_eq!(found.unit, unit, "{url}");
            assert_eq!(found.path_in(unit.unwrap_or(ns)), path);
        }
        assert_eq!(
            split_url("http://h/w").unwrap().path_in(ms),
            "/w?precision=ms"
        );
        for url in [
            "h:8086/write",
            "http://h/w?precision=s",
            "http://h/w?precision=",
            "http://u@h/w",
            "http:///w",
            "http://h:0/w",
            "http://h?x",
            "http://h/a b",
        ] {
            assert!(split_url(url).is_err(), "{url}");
        }
    }
}
