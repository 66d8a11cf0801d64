//! `[[broker]]`, `[[alarm]]` and `[[actuator]]`: urgent messages and their recipients.

use super::certificates;
use super::reader::Section;
use super::secret;
use super::values::{
    BROKER_ADDRESS, CREDENTIAL_BYTES_MAX, PATH_BYTES_MAX, TEXT_BYTES_MAX, TLS_REMEDY,
    address_remedy, host_port,
};
use base::clock::Clock;
use db::{ALARM_MS_MAX, ALARM_RULES_MAX, AlarmCondition, AlarmRule};
use egress::forward::{Format, Late, MqttVersion, options as forward};
use egress::urgent::options::{
    ACTUATOR_KEYS_MAX, ACTUATORS_MAX, BROKERS_MAX, COMMAND_BYTES_MAX, COMMAND_WORDS_MAX,
    DEADLINE_MS_MAX, QUEUE_MAX, check_command,
};
use egress::urgent::{ActuatorOptions, AlarmOptions, BrokerOptions, UrgentOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tls::{Client, ClientOptions};

/// Keys that one alarm can watch.
const ALARM_KEYS_MAX: u64 = 65_536;
/// Greatest threshold.
const THRESHOLD_MAX: f64 = 1e18;
/// Longest wait, ms.
const WAIT_MS_MAX: u64 = forward::WAIT_MS_MAX;
/// Runs of commands that wait, at most.
const COMMAND_QUEUE_MAX: u32 = 256;

/// `[[broker]]`
#[derive(Clone, Debug, PartialEq)]
pub struct BrokerConfig {
    /// All options except the login and TLS.
    pub options: BrokerOptions,
    /// Whom the node trusts as the broker; without it, the connection is plain.
    pub tls: Option<ClientOptions>,
    /// User name at the broker.
    pub username: Option<String>,
    /// File whose first line is the password.
    pub password_file: Option<PathBuf>,
}

/// `[[alarm]]`
#[derive(Clone, Debug, PartialEq)]
pub struct AlarmConfig {
    /// Name of its broker; `None`: it only runs a command.
    pub broker: Option<String>,
    /// All options except the place of its broker.
    pub options: AlarmOptions,
    /// The keys that it watches: a key, or a pattern with `+` and `#`.
    pub pattern: String,
    /// The most keys that it watches.
    pub keys_max: u32,
}

/// `[[actuator]]`
#[derive(Clone, Debug, PartialEq)]
pub struct ActuatorConfig {
    /// Name of its broker.
    pub broker: String,
    /// All options except the place of its broker.
    pub options: ActuatorOptions,
}

/// Brokers, alarms and actuators.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UrgentConfig {
    /// Brokers of urgent messages.
    pub brokers: Vec<BrokerConfig>,
    /// Alarms, in the order of the file.
    pub alarms: Vec<AlarmConfig>,
    /// Actuators, in the order of the file.
    pub actuators: Vec<ActuatorConfig>,
}

/// The options for the rooms.
pub struct RoomOptions {
    /// For the database: the condition of each alarm, in the order of the file.
    pub rules: Vec<AlarmRule>,
    /// For the urgent messages.
    pub options: UrgentOptions,
}

impl UrgentConfig {
    /// Returns the options for the rooms. The check has made sure that each named broker exists. Certificates are
    /// judged by this clock.
    #[must_use]
    pub fn room_options(&self, clock: &Arc<dyn Clock>) -> RoomOptions {
        let brokers = self.brokers.iter();
        let brokers: Vec<_> = brokers.map(|broker| broker.to_options(clock)).collect();
        let place = |name: &str| brokers.iter().position(|broker| broker.name == name);
        let alarms = self.alarms.iter().map(|alarm| AlarmOptions {
            broker: alarm.broker.as_deref().and_then(place),
            ..alarm.options.clone()
        });
        let actuators = self.actuators.iter().filter_map(|actuator| {
            let broker = place(&actuator.broker)?;
            Some(ActuatorOptions {
                broker,
                ..actuator.options.clone()
            })
        });
        let (alarms, actuators) = (alarms.collect(), actuators.collect());
        RoomOptions {
            rules: self.alarms.iter().map(AlarmConfig::rule).collect(),
            options: UrgentOptions {
                brokers,
                alarms,
                actuators,
                command_queue_max: COMMAND_QUEUE_MAX,
            },
        }
    }

    /// Returns one sentence for each broker, alarm and actuator.
    pub(super) fn summary(&self) -> Vec<(&'static str, String)> {
        let mut summary = Vec::new();
        if !self.alarms.is_empty() {
            let all: Vec<String> = self.alarms.iter().map(AlarmConfig::sentence).collect();
            summary.push(("alarms", all.join("; ")));
        }
        if !self.actuators.is_empty() {
            let all: Vec<String> = self
                .actuators
                .iter()
                .map(|one| one.sentence(self))
                .collect();
            summary.push(("actuators", all.join("; ")));
        }
        summary
    }

    /// Returns settings that may surprise.
    pub(super) fn warnings(&self) -> Vec<String> {
        let is_used = |name: &str| {
            self.alarms
                .iter()
                .any(|alarm| alarm.broker.as_deref() == Some(name))
                || self
                    .actuators
                    .iter()
                    .any(|actuator| actuator.broker == name)
        };
        let unused = self.brokers.iter().map(|broker| &broker.options.name);
        let unused = unused.filter(|name| !is_used(name));
        let mut warnings: Vec<String> = unused
            .map(|name| format!("broker {name} is not used by any [[alarm]] or [[actuator]]"))
            .collect();
        for alarm in &self.alarms {
            let program = alarm.options.command.first().map(Path::new);
            if let Some(path) = program.filter(|path| path.is_absolute() && !path.is_file()) {
                warnings.push(format!(
                    "alarm.command {} of alarm {} is not there",
                    path.display(),
                    alarm.options.name
                ));
            }
        }
        warnings
    }
}

impl BrokerConfig {
    fn to_options(&self, clock: &Arc<dyn Clock>) -> BrokerOptions {
        let user = self.username.as_ref();
        let tls = self.tls.clone();
        BrokerOptions {
            tls: tls.map(|tls| Client::new(tls, Arc::clone(clock))),
            login: user.map(|user| (user.clone(), secret(self.password_file.as_deref()))),
            ..self.options.clone()
        }
    }
}

impl AlarmConfig {
    fn rule(&self) -> AlarmRule {
        AlarmRule {
            pattern: self.pattern.clone(),
            condition: self.options.condition,
            objects_max: self.keys_max,
        }
    }

    /// Returns the condition: `above 60, over at 55`.
    #[must_use]
    pub fn condition_text(&self) -> String {
        let level = |word, threshold: f64, clear: f64, raise_after_ms: u64| {
            let over = match clear == threshold {
                true => String::new(),
                false => format!(", over at {clear}"),
            };
            let held = match raise_after_ms {
                0 => String::new(),
                ms => format!(" for {ms} ms"),
            };
            format!("{word} {threshold}{held}{over}")
        };
        match self.options.condition {
            AlarmCondition::Above {
                threshold,
                clear,
                raise_after_ms,
            } => level("above", threshold, clear, raise_after_ms),
            AlarmCondition::Below {
                threshold,
                clear,
                raise_after_ms,
            } => level("below", threshold, clear, raise_after_ms),
            AlarmCondition::Stale { after_ms } => format!("silent for {after_ms} ms"),
        }
    }

    fn sentence(&self) -> String {
        let given = &self.options;
        let mut ways = Vec::new();
        if let Some(broker) = &self.broker {
            ways.push(format!("{} at {broker}", given.topic));
        }
        if let Some(program) = given.command.first() {
            ways.push(format!("command {program}"));
        }
        format!(
            "{}: {} {}, to {}{}",
            given.name,
            self.pattern,
            self.condition_text(),
            ways.join(" and "),
            deadline(given.deadline_ms, given.late)
        )
    }
}

impl ActuatorConfig {
    fn sentence(&self, all: &UrgentConfig) -> String {
        let given = &self.options;
        let mut brokers = all.brokers.iter();
        let address = brokers
            .find(|broker| broker.options.name == self.broker)
            .map_or("", |broker| &broker.options.address);
        format!(
            "{}: {} drives {} at {address}{}",
            given.name,
            given.pattern,
            given.topic,
            deadline(given.deadline_ms, given.late)
        )
    }
}

fn deadline(ms: u64, late: Late) -> String {
    match (ms, late) {
        (0, _) => String::new(),
        (ms, Late::Send) => format!(" within {ms} ms"),
        (ms, Late::Skip) => format!(" within {ms} ms or not at all"),
    }
}

/// Reads all brokers, alarms and actuators of a document.
pub(super) fn urgent(top: &Section<'_, '_>, base_dir: &Path) -> UrgentConfig {
    let mut all = UrgentConfig::default();
    let twice = |section: &Section<'_, '_>, name: &str| {
        let wrong = format!("is \"{name}\" twice");
        section.wrong(section.line(), "name", &wrong, "rename one of them");
    };
    for section in top.sections("broker", BROKERS_MAX) {
        let one = broker(&section, base_dir);
        let name = &one.options.name;
        if !name.is_empty() && all.brokers.iter().any(|other| other.options.name == *name) {
            twice(&section, name);
        }
        all.brokers.push(one);
        section.finish();
    }
    let is_known = |section: &Section<'_, '_>, line: usize, name: &str| {
        let is_there = all.brokers.iter().any(|broker| broker.options.name == name);
        if !is_there && !name.is_empty() {
            let wrong = format!("is \"{name}\"");
            section.wrong(line, "broker", &wrong, "give the name of a [[broker]]");
        }
    };
    for section in top.sections("alarm", ALARM_RULES_MAX) {
        let one = alarm(&section, base_dir, &is_known);
        let name = &one.options.name;
        if !name.is_empty() && all.alarms.iter().any(|other| other.options.name == *name) {
            twice(&section, name);
        }
        all.alarms.push(one);
        section.finish();
    }
    let watched: u64 = all
        .alarms
        .iter()
        .map(|alarm| u64::from(alarm.keys_max))
        .sum();
    if watched > db::ALARM_WATCHES_MAX {
        let wrong = format!("watches {watched} keys in all (alarm.keys_max)");
        top.wrong(top.line(), "alarm", &wrong, "give at most 1048576");
    }
    let mut keys = 0;
    for section in top.sections("actuator", ACTUATORS_MAX) {
        let one = actuator(&section, &is_known);
        let name = &one.options.name;
        if !name.is_empty()
            && all
                .actuators
                .iter()
                .any(|other| other.options.name == *name)
        {
            twice(&section, name);
        }
        keys += one.options.keys_max;
        all.actuators.push(one);
        section.finish();
    }
    if keys > ACTUATOR_KEYS_MAX {
        let wrong = format!("has {keys} keys in all (actuator.keys_max)");
        top.wrong(top.line(), "actuator", &wrong, "give at most 4096");
    }
    all
}

fn name(section: &Section<'_, '_>) -> String {
    const REMEDY: &str = "give 1 to 32 letters, digits, `-` and `_`";
    let name = section.required("name", forward::NAME_BYTES_MAX, REMEDY);
    if !name.value.is_empty() && forward::check_name(&name.value).is_err() {
        let wrong = format!("is \"{}\"", name.value);
        section.wrong(name.line, "name", &wrong, REMEDY);
    }
    name.value
}

fn pattern(section: &Section<'_, '_>) -> String {
    const REMEDY: &str = "name the keys that are meant, such as \"hall/+/temperature\"";
    let pattern = section.required("pattern", base::pattern::PATTERN_BYTES_MAX, REMEDY);
    if let Err(why) = base::pattern::check(&pattern.value)
        && !pattern.value.is_empty()
    {
        let wrong = format!("is \"{}\"", pattern.value);
        section.wrong(pattern.line, "pattern", &wrong, why);
    }
    pattern.value
}

fn topic(section: &Section<'_, '_>, default: String) -> String {
    let Some(at) = section.text("topic", forward::TOPIC_BYTES_MAX) else {
        return default;
    };
    if let Err(egress::Error::OptionInvalid { problem, .. }) = forward::check_topic(&at.value) {
        let wrong = format!("is \"{}\"", at.value);
        section.wrong(at.line, "topic", &wrong, problem);
    }
    at.value
}

fn late(section: &Section<'_, '_>) -> Late {
    section.choice(
        "late",
        Late::Send,
        &[("send", Late::Send), ("skip", Late::Skip)],
    )
}

fn broker(section: &Section<'_, '_>, base_dir: &Path) -> BrokerConfig {
    let name = name(section);
    let address = section.required("address", TEXT_BYTES_MAX, BROKER_ADDRESS);
    if host_port(&address.value).is_none() && !address.value.is_empty() {
        let wrong = format!("is \"{}\"", address.value);
        let remedy = address_remedy(&address.value);
        section.wrong(address.line, "address", &wrong, remedy);
    }
    let client_id = section.required(
        "client_id",
        CREDENTIAL_BYTES_MAX,
        "give a name that no other client of this broker has",
    );
    let username = section.text("username", CREDENTIAL_BYTES_MAX);
    let password_file = section.text("password_file", PATH_BYTES_MAX);
    if let (None, Some(file)) = (&username, &password_file) {
        section.wrong(
            file.line,
            "password_file",
            "lacks a user",
            "give username as well",
        );
    }
    let default = BrokerOptions::new(name, address.value, client_id.value);
    let wait = |key, default| section.integer(key, default, (1, WAIT_MS_MAX));
    let options = BrokerOptions {
        version: section.choice(
            "version",
            MqttVersion::V5,
            &[("3.1.1", MqttVersion::V311), ("5", MqttVersion::V5)],
        ),
        keep_alive_seconds: section.integer("keep_alive_seconds", 30, (5, 3600)) as u16,
        inflight_max: section.integer("inflight_max", 32, (1, 65_535)) as u16,
        queue_messages_max: section.integer("queue_messages_max", 1024, (1, u64::from(QUEUE_MAX)))
            as u32,
        answer_ms_max: wait("answer_ms_max", default.answer_ms_max),
        backoff_ms_min: wait("backoff_ms_min", default.backoff_ms_min),
        backoff_ms_max: wait("backoff_ms_max", default.backoff_ms_max),
        ..default
    };
    if options.backoff_ms_min > options.backoff_ms_max {
        let wrong = format!("is {}", options.backoff_ms_min);
        section.wrong(
            section.line(),
            "backoff_ms_min",
            &wrong,
            "give at most backoff_ms_max",
        );
    }
    let has_tls = section.boolean("tls", false);
    BrokerConfig {
        options,
        tls: certificates::client(section, has_tls, TLS_REMEDY, base_dir),
        username: username.map(|at| at.value),
        password_file: password_file.map(|at| base_dir.join(at.value)),
    }
}

fn condition(section: &Section<'_, '_>) -> AlarmCondition {
    const KINDS: [&str; 3] = ["above", "below", "stale_ms"];
    let given = KINDS.iter().filter(|kind| section.has(kind)).count();
    if given != 1 {
        let wrong = match given {
            0 => "lacks its condition",
            _ => "has more than one condition",
        };
        section.wrong(
            section.line(),
            "above",
            wrong,
            "give one of above, below and stale_ms",
        );
    }
    let number = |key| section.number(key, 0.0, (-THRESHOLD_MAX, THRESHOLD_MAX));
    let (above, below) = (number("above"), number("below"));
    let after_ms = section.integer("stale_ms", 60_000, (1, ALARM_MS_MAX));
    let is_above = section.has("above");
    let threshold = if is_above { above } else { below };
    let clear = section.number("clear", threshold, (-THRESHOLD_MAX, THRESHOLD_MAX));
    let raise_after_ms = section.integer("raise_after_ms", 0, (0, ALARM_MS_MAX));
    if section.has("stale_ms") {
        for key in ["clear", "raise_after_ms"] {
            if section.has(key) {
                let wrong = "is for above and below only";
                section.wrong(section.line(), key, wrong, "remove the line");
            }
        }
        return AlarmCondition::Stale { after_ms };
    }
    let condition = match is_above {
        true => AlarmCondition::Above {
            threshold,
            clear,
            raise_after_ms,
        },
        false => AlarmCondition::Below {
            threshold,
            clear,
            raise_after_ms,
        },
    };
    if condition.check().is_err() {
        let wrong = format!("is {clear}");
        let remedy = match is_above {
            true => format!("give at most {threshold}, the value above which it is raised"),
            false => format!("give at least {threshold}, the value below which it is raised"),
        };
        section.wrong(section.line(), "clear", &wrong, remedy);
    }
    condition
}

fn alarm(
    section: &Section<'_, '_>,
    base_dir: &Path,
    is_known: &dyn Fn(&Section<'_, '_>, usize, &str),
) -> AlarmConfig {
    let (name, pattern, condition) = (name(section), pattern(section), condition(section));
    let broker = section.text("broker", forward::NAME_BYTES_MAX);
    if let Some(at) = &broker {
        is_known(section, at.line, &at.value);
    }
    let command_line = section.line();
    let given = section
        .words("command", (COMMAND_WORDS_MAX, COMMAND_BYTES_MAX))
        .map(|at| at.value);
    let is_empty = given.as_ref().is_some_and(Vec::is_empty);
    let mut command = given.unwrap_or_default();
    let command_seconds_max = section.integer("command_seconds_max", 10, (1, 3600));
    if is_empty {
        section.wrong(
            command_line,
            "command",
            "is empty",
            "give a program and its arguments",
        );
    }
    if let Err(egress::Error::OptionInvalid { problem, .. }) =
        check_command(&command, command_seconds_max * 1000)
    {
        section.wrong(command_line, "command", "does not fit", problem);
    }
    if let Some(program) = command.first_mut()
        && program.contains('/')
    {
        // A relative path starts at the configuration, like every path here; a bare name is looked up in `PATH`.
        *program = base_dir.join(&*program).display().to_string();
    }
    if broker.is_none() && !section.has("command") {
        section.wrong(
            section.line(),
            "broker",
            "is missing",
            "give the name of a [[broker]], or a command",
        );
    }
    let topic = topic(section, format!("keel/alarm/{name}/{{key}}"));
    let options = AlarmOptions {
        name,
        condition,
        broker: None,
        topic,
        retain: section.boolean("retain", false),
        command,
        command_ms_max: command_seconds_max * 1000,
        deadline_ms: section.integer("deadline_ms", 0, (0, DEADLINE_MS_MAX)),
        late: late(section),
    };
    AlarmConfig {
        broker: broker.map(|at| at.value),
        options,
        pattern,
        keys_max: section.integer("keys_max", 1024, (1, ALARM_KEYS_MAX)) as u32,
    }
}

fn actuator(
    section: &Section<'_, '_>,
    is_known: &dyn Fn(&Section<'_, '_>, usize, &str),
) -> ActuatorConfig {
    let (name, pattern) = (name(section), pattern(section));
    let broker = section.required(
        "broker",
        forward::NAME_BYTES_MAX,
        "give the name of a [[broker]]",
    );
    is_known(section, broker.line, &broker.value);
    let payload = section.choice(
        "payload",
        Format::Number,
        &[("number", Format::Number), ("json", Format::Json)],
    );
    let topic = topic(section, "keel/actuator/{key}".to_owned());
    if payload == Format::Number && !forward::tells_apart(&topic, [pattern.as_str()]) {
        let wrong = "is one for several keys, and the payload does not say which";
        section.wrong(
            section.line(),
            "topic",
            wrong,
            "put {key} into it, or set payload = \"json\"",
        );
    }
    let options = ActuatorOptions {
        name,
        pattern,
        keys_max: section.integer("keys_max", 64, (1, u64::from(ACTUATOR_KEYS_MAX))) as u32,
        broker: 0,
        topic,
        payload,
        retain: section.boolean("retain", false),
        deadline_ms: section.integer("deadline_ms", 0, (0, DEADLINE_MS_MAX)),
        late: late(section),
        at_start: section.boolean("at_start", false),
    };
    ActuatorConfig {
        broker: broker.value,
        options,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn clock() -> Arc<dyn Clock> {
        Arc::new(base::clock::SystemClock::new())
    }

    const BROKER: &str = "[[broker]]\nname = \"b\"\naddress = \"h:1883\"\nclient_id = \"c\"\n";

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, "keel.toml", Path::new("/etc/keel")).map_err(|error| error.to_string())
    }

    #[test]
    fn the_summary_describes_alarms_and_actuators() {
        let text = format!(
            "{BROKER}[[alarm]]\nname = \"hot\"\npattern = \"hall/+/t\"\nabove = 60\nclear = 55.5\n\
             raise_after_ms = 500\nbroker = \"b\"\ndeadline_ms = 2000\nlate = \"skip\"\n\
             [[alarm]]\nname = \"silent\"\npattern = \"#\"\nstale_ms = 5000\ncommand = [\"bin/tell\", \"a b\"]\n\
             [[actuator]]\nname = \"valve\"\npattern = \"valve/1\"\nbroker = \"b\"\ntopic = \"v\"\n"
        );
        let config = parse(&text).unwrap();
        let said = config.urgent.summary();
        assert_eq!(
            said[0].1,
            "hot: hall/+/t above 60 for 500 ms, over at 55.5, to keel/alarm/hot/{key} at b within 2000 ms or not \
             at all; silent: # silent for 5000 ms, to command /etc/keel/bin/tell"
        );
        assert_eq!(said[1].1, "valve: valve/1 drives v at h:1883");
        let room_options = config.urgent.room_options(&clock());
        assert_eq!(room_options.options.check(), Ok(()));
        assert_eq!(room_options.rules.len(), 2);
        assert_eq!(room_options.options.alarms[0].broker, Some(0));
        assert_eq!(
            room_options.options.alarms[1].command,
            ["/etc/keel/bin/tell", "a b"]
        );
        let warnings = config.urgent.warnings();
        assert_eq!(
            warnings,
            ["alarm.command /etc/keel/bin/tell of alarm silent is not there"]
        );
    }

    #[test]
    fn a_password_is_read_when_it_is_needed() {
        let name = format!("keel-alarm-password-{}", std::process::id());
        let file = std::env::temp_dir().join(name);
        // Remove a file that an ended process with this number has left.
        let _ = std::fs::remove_file(&file);
        let text = format!(
            "{BROKER}username = \"u\"\npassword_file = \"{}\"\n\
             [[actuator]]\nname = \"v\"\npattern = \"v\"\nbroker = \"b\"\n",
            file.display()
        );
        let room_options = parse(&text).unwrap().urgent.room_options(&clock());
        let (user, password) = room_options.options.brokers[0].login.clone().unwrap();
        assert_eq!(user, "u");
        assert!(password.read().unwrap_err().contains("password"));
        std::fs::write(&file, "one\n").unwrap();
        assert_eq!(password.read().as_deref(), Ok("one"));
        // Some editors begin a file with a byte order mark.
        std::fs::write(&file, "\u{feff}two\n").unwrap();
        assert_eq!(password.read().as_deref(), Ok("two"));
        std::fs::remove_file(&file).unwrap();
    }

    #[test]
    fn settings_that_make_no_sense_are_refused_with_the_remedy() {
        let alarm =
            |rest: &str| format!("{BROKER}[[alarm]]\nname = \"a\"\npattern = \"k\"\n{rest}\n");
        let actuator =
            |rest: &str| format!("{BROKER}[[actuator]]\nname = \"a\"\nbroker = \"b\"\n{rest}\n");
        for (text, expected) in [
            (
                alarm("broker = \"b\""),
                "keel.toml:5: alarm.above lacks its condition; give one of above, below and stale_ms",
            ),
            (
                alarm("broker = \"b\"\nabove = 1\nbelow = 0"),
                "keel.toml:5: alarm.above has more than one condition; give one of above, below and stale_ms",
            ),
            (
                alarm("broker = \"b\"\nabove = 1\nclear = 2"),
                "keel.toml:5: alarm.clear is 2; give at most 1, the value above which it is raised",
            ),
            (
                alarm("broker = \"b\"\nbelow = 1\nclear = 0.5"),
                "keel.toml:5: alarm.clear is 0.5; give at least 1, the value below which it is raised",
            ),
            (
                alarm("broker = \"b\"\nstale_ms = 10\nclear = 2"),
                "keel.toml:5: alarm.clear is for above and below only; remove the line",
            ),
            (
                alarm("broker = \"b\"\nabove = inf"),
                "keel.toml:9: alarm.above is inf; give a number from -1000000000000000000 to 1000000000000000000",
            ),
            (
                alarm("above = 1"),
                "keel.toml:5: alarm.broker is missing; give the name of a [[broker]], or a command",
            ),
            (
                alarm("above = 1\nbroker = \"x\""),
                "keel.toml:9: alarm.broker is \"x\"; give the name of a [[broker]]",
            ),
            (
                alarm("above = 1\ncommand = []"),
                "keel.toml:5: alarm.command is empty; give a program and its arguments",
            ),
            (
                alarm("above = 1\ncommand = \"rm -rf\""),
                "keel.toml:9: alarm.command is text; give an array of texts",
            ),
            (
                alarm("above = 1\ncommand = [\"a\", 1]"),
                "keel.toml:9: alarm.command is a whole number; give texts in quotes",
            ),
            (
                alarm("above = 1\ncommand = [\"a\", \"b\\u0000\"]"),
                "keel.toml:9: alarm.command holds a zero byte; remove it",
            ),
            (
                alarm("above = 1\nbroker = \"b\"\ntopic = \"a/+\""),
                "keel.toml:10: alarm.topic is \"a/+\"; must hold no control character and neither `+` nor `#`",
            ),
            (
                alarm(
                    "above = 1\nbroker = \"b\"\n[[alarm]]\nname = \"a\"\npattern = \"k\"\nabove = 1\nbroker = \"b\"",
                ),
                "keel.toml:10: alarm.name is \"a\" twice; rename one of them",
            ),
            (
                actuator("pattern = \"v/+\"\ntopic = \"all\""),
                "keel.toml:5: actuator.topic is one for several keys, and the payload does not say which; put {key} \
                 into it, or set payload = \"json\"",
            ),
            (
                actuator("pattern = \"v/+/position\"\ntopic = \"act/{1}\""),
                "keel.toml:5: actuator.topic is one for several keys",
            ),
            (
                actuator(
                    "pattern = \"v\"\nkeys_max = 4096\n[[actuator]]\nname = \"c\"\nbroker = \"b\"\npattern = \"w\"",
                ),
                "keel.toml:1: actuator has 4160 keys in all (actuator.keys_max); give at most 4096",
            ),
            (
                actuator("pattern = \"v\"\npayload = \"line\""),
                "keel.toml:9: actuator.payload is \"line\"; give \"number\" or \"json\"",
            ),
        ] {
            let error = parse(&text).expect_err(&text);
            assert!(error.starts_with(expected), "{error}\n{expected}");
        }
    }
}
