//! `keel config try`: what a node would make of a message, without a node.
//!
//! The message takes the way that it takes in a node. Where readings would go to the database, they are recorded here.

use crate::error::{CliError, STATUS_FAILURE};
use crate::output::Output;
use base::clock::{Clock, SystemClock};
use clap::Args;
use config::{Config, SubscribeConfig};
use db::value::Value;
use db::{Owners, Time};
use ingest::intake::{
    Decision, Destination, Intake, JsonTake, KeyOwner, KeyRules, LogGone, Note, PayloadKind,
    PutError, Reason, TagsForm, check_key,
};
use ingest::pattern;
use libkeel::protocol::{Nanoseconds, Shown};
use node::settings;
use node::time_text::format_time;
use serde_json::json;
use std::fmt::Write;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes that a message has beside its topic and its payload: the length of the topic, the packet's identifier, and the
/// length of its properties.
const HEADER_BYTES: usize = 5;

/// Letters of a refused item that are shown, at most.
const SHOWN_LETTERS_MAX: usize = 80;

/// Takes every reading, and keeps it.
struct Recorder {
    rules: KeyRules,
    clock: SystemClock,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    rule: Option<usize>,
    keys: Vec<String>,
    owners: Owners,
    events: Vec<Event>,
    /// What the next event is about.
    member: Option<(String, Decision)>,
    key: Option<String>,
}

/// What became of a value, a line, or the message.
struct Event {
    member: Option<(String, Decision)>,
    key: Option<String>,
    outcome: Result<Reading, Refusal>,
}

struct Reading {
    value: Vec<u8>,
    time: Option<Time>,
}

struct Refusal {
    reason: Reason,
    what: String,
}

impl Recorder {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    /// Forgets what has come so far, but not the keys: the intake keeps their numbers.
    fn forget(&mut self) {
        *self = Self {
            keys: std::mem::take(&mut self.keys),
            owners: std::mem::take(&mut self.owners),
            ..Self::default()
        };
    }

    fn push(&mut self, outcome: Result<Reading, Refusal>) {
        let event = Event {
            member: self.member.take(),
            key: self.key.take(),
            outcome,
        };
        self.events.push(event);
    }
}

impl Destination for Recorder {
    fn resolve(&self, key: &str) -> Result<u32, Reason> {
        let mut seen = self.seen();
        seen.key = Some(key.to_owned());
        check_key(key)?;
        let mut rules = self.rules.rules.iter();
        let is_declared = rules.any(|rule| pattern::matches(&rule.pattern, key));
        if !self.rules.auto_create && !is_declared {
            return Err(Reason::KeyUnknown);
        }
        let known = seen.keys.iter().position(|known| known == key);
        let place = known.unwrap_or_else(|| {
            seen.keys.push(key.to_owned());
            seen.keys.len() - 1
        });
        u32::try_from(place).map_err(|_| Reason::KeysMax)
    }

    fn resolve_for(
        &self,
        key: &str,
        owner: KeyOwner<'_>,
        first: &mut String,
    ) -> Result<u32, Reason> {
        let object = self.resolve(key)?;
        let (own, relatives) = (owner.of(object), owner.relatives);
        let claimed = self.seen().owners.claim_beside(&own, relatives);
        claimed.map_err(|other| {
            *first = other;
            Reason::KeyShared
        })?;
        Ok(object)
    }

    fn put(&self, object: u32, value: &[u8], time: Option<Time>) -> Result<u64, PutError> {
        let mut seen = self.seen();
        seen.key = seen.keys.get(object as usize).cloned();
        seen.push(Ok(Reading {
            value: value.to_vec(),
            time,
        }));
        Ok(seen.events.len() as u64)
    }

    fn put_retained(&self, object: u32, value: &[u8], time: Option<Time>) -> Result<u64, PutError> {
        self.put(object, value, time)
    }

    fn durable_end(&self) -> u64 {
        u64::MAX
    }

    fn wait_durable_past(&self, _seen: u64, _timeout: Duration) -> Result<u64, LogGone> {
        Ok(u64::MAX)
    }

    fn wall_ms(&self) -> i64 {
        self.clock.wall_ms()
    }

    fn wall_trusted(&self) -> bool {
        true
    }

    fn note(&self, note: Note<'_>) {
        let mut seen = self.seen();
        match note {
            Note::Rule(rule) => seen.rule = Some(rule),
            Note::Member { path, decision } => {
                seen.member = Some((path.to_owned(), decision));
                seen.key = None;
            }
            Note::Refused { reason, what } => {
                let what = shown(&what.concat());
                seen.push(Err(Refusal { reason, what }));
            }
        }
    }
}

/// Returns the beginning of what was refused, on one line.
fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut letters = text.chars();
    let mut short: String = letters
        .by_ref()
        .take(SHOWN_LETTERS_MAX)
        .flat_map(|letter| -> Vec<char> {
            match letter.is_control() {
                true => letter.escape_default().collect(),
                false => vec![letter],
            }
        })
        .collect();
    if letters.next().is_some() {
        short.push('…');
    }
    short
}

/// Returns the line of the configuration that decides, if there is one.
fn line_of(subscribe: Option<&SubscribeConfig>, decision: Option<Decision>) -> Option<usize> {
    let lines = &subscribe?.lines;
    match decision {
        None | Some(Decision::Metric) => Some(lines.table),
        Some(Decision::Own(place)) => lines.own.get(place).copied(),
        Some(Decision::Taken(place)) => lines.take.get(place).copied(),
        Some(Decision::Left(place)) => lines.leave.get(place).copied(),
        Some(Decision::Time | Decision::Unnamed) => None,
    }
}

/// Returns the values of a document that are no readings, and why.
fn left_out(subscribe: Option<&SubscribeConfig>, payload: &[u8]) -> Vec<(String, Decision)> {
    let Some(PayloadKind::Json(json)) = subscribe.map(|one| &one.payload) else {
        return Vec::new();
    };
    match &json.take {
        JsonTake::Several(rules) => rules.left_out(payload, json).unwrap_or_default(),
        JsonTake::One(..) => Vec::new(),
    }
}

/// Why a value is left out.
fn why(decision: Decision) -> &'static str {
    match decision {
        Decision::Time => "time",
        Decision::Unnamed => "unnamed",
        Decision::Left(_) | Decision::Own(_) | Decision::Taken(_) | Decision::Metric => "left",
    }
}

/// Returns the payload, from the command line or the standard input. `bytes_max` is for the whole message.
fn payload(arguments: &TryArgs, bytes_max: u32) -> Result<Vec<u8>, CliError> {
    let mut bytes = arguments.payload.as_bytes().to_vec();
    if arguments.payload == "-" {
        bytes.clear();
        let input = std::io::stdin().lock();
        input
            .take(u64::from(bytes_max) + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| CliError::io("standard input", &error))?;
    }
    check_size(&arguments.topic, bytes.len() as u64, bytes_max)?;
    Ok(bytes)
}

/// Returns the payload of a message that came before, from its file.
fn payload_before(topic: &str, file: &str, bytes_max: u32) -> Result<Vec<u8>, CliError> {
    let mut payload = Vec::new();
    std::fs::File::open(file)
        .and_then(|input| {
            input
                .take(u64::from(bytes_max) + 1)
                .read_to_end(&mut payload)
        })
        .map_err(|error| CliError::io(file, &error))?;
    check_size(topic, payload.len() as u64, bytes_max)?;
    Ok(payload)
}

/// Checks that a broker may send a message with this number of bytes of payload.
fn check_size(topic: &str, bytes: u64, bytes_max: u32) -> Result<(), CliError> {
    let beside = (topic.len() + HEADER_BYTES) as u64;
    if bytes.saturating_add(beside) > u64::from(bytes_max) {
        let wrong = format!(
            "is larger than mqtt.packet_bytes_max, {bytes_max} bytes with topic and header"
        );
        let remedy =
            "raise it; a node refuses the message as oversized if it comes with QoS 1 and MQTT 5";
        return Err(CliError::failure("the message", wrong, remedy));
    }
    Ok(())
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel config try sensors/hall/2 21.5\n  \
    keel config try zigbee2mqtt/kitchen '{\"temperature\": 21.5}' -c /etc/keel/keel.toml\n  \
    mosquitto_sub -N -t tele/lamp/SENSOR -C 1 | keel config try tele/lamp/SENSOR - --json\n  \
    keel config try --before spBv1.0/plant/NBIRTH/line1 birth.bin spBv1.0/plant/NDATA/line1 - < data.bin\n\n\
    The command prints each reading with its key, its value and its kind, and what is refused or left out, each with\n\
    the line of the configuration that decides. It changes nothing, and needs neither a broker nor a store. Times are\n\
    compared with the clock of this machine, as if it were trusted. Other keys are not known, so keys.keys_max and\n\
    keys of other series refuse nothing here.\n\n\
    Exit status 1 if the node would refuse the whole message.\n\n\
    --json: file, topic, filter and line (of the subscription; null if none fits), readings (key, value, type,\n\
    time_ms, time_ns, path, line), refusals (reason, what, path, key, line), left_out (path, why, line).")]
pub(crate) struct TryArgs {
    /// Topic of the message
    topic: String,
    /// Payload of the message; - reads the standard input
    #[arg(allow_hyphen_values = true)]
    payload: String,
    /// Configuration file
    #[arg(short, long, default_value = "keel.toml", value_name = "FILE")]
    config: PathBuf,
    /// Topic, and file with the payload, of a message that came before, such as a birth of Sparkplug
    #[arg(long, num_args = 2, value_names = ["TOPIC", "FILE"])]
    before: Vec<String>,
    /// As if the broker had kept the message since before the subscription
    #[arg(long)]
    retained: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Shows what becomes of a message. Returns the exit status.
pub(crate) fn run(arguments: &TryArgs) -> Result<u8, CliError> {
    let config = Config::load(&arguments.config)?;
    let Some(mqtt) = &config.mqtt else {
        let remedy = "add it, with [[mqtt.subscribe]]";
        let wrong = "has no [mqtt], so no message comes";
        return Err(CliError::failure(arguments.config.display(), wrong, remedy));
    };
    let payload = payload(arguments, mqtt.packet_bytes_max)?;
    let recorder = Arc::new(Recorder {
        rules: settings::key_rules(&config),
        clock: SystemClock::new(),
        seen: Mutex::default(),
    });
    // Without a store, `{tags}` stands for what it does in a new one.
    let options = settings::intake(&config)?.with_tags(TagsForm::OF_NEW_STORES);
    let mut intake = Intake::new(options, Arc::clone(&recorder));
    for before in arguments.before.chunks_exact(2) {
        if let [topic, file] = before {
            let payload = payload_before(topic, file, mqtt.packet_bytes_max)?;
            intake.mqtt(topic.as_bytes(), &payload);
        }
    }
    recorder.seen().forget();
    let topic = arguments.topic.as_bytes();
    if arguments.retained {
        intake.mqtt_retained(topic, &payload);
    } else {
        intake.mqtt(topic, &payload);
    }
    let seen = std::mem::take(&mut *recorder.seen());
    let subscribe = seen.rule.and_then(|rule| mqtt.subscribe.get(rule));
    let left = left_out(subscribe, &payload);
    let taken = seen.events.iter().filter(|event| event.outcome.is_ok());
    let first_refused = seen
        .events
        .iter()
        .find_map(|event| event.outcome.as_ref().err());
    let refused = first_refused.filter(|_| taken.count() == 0);
    if arguments.json {
        let mut output = Output::new();
        output.json(&as_json(arguments, subscribe, &seen.events, &left))?;
        output.flush()?;
        return Ok(refused.map_or(0, |_| STATUS_FAILURE));
    }
    print(&arguments.config, subscribe, &seen.events, &left)?;
    match refused {
        None => Ok(0),
        Some(Refusal { reason, .. }) => {
            let wrong = format!("a node refuses the message as {}", reason.name());
            let remedy = match reason {
                Reason::TopicUnmatched => "add a [[mqtt.subscribe]] whose filter fits the topic",
                _ => "the table of bad input in docs/operate.md says what that means",
            };
            Err(CliError::failure(&arguments.topic, wrong, remedy))
        }
    }
}

fn print(
    file: &Path,
    subscribe: Option<&SubscribeConfig>,
    events: &[Event],
    left: &[(String, Decision)],
) -> Result<(), CliError> {
    let mut output = Output::new();
    if let Some(subscribe) = subscribe {
        let (file, line) = (file.display(), subscribe.lines.table);
        output.line(format_args!("{file}:{line}: {}", subscribe.filter))?;
    }
    let place = |decision| {
        line_of(subscribe, decision).map_or(String::new(), |line| format!(", line {line}"))
    };
    for event in events {
        let decision = event.member.as_ref().map(|(_, decision)| *decision);
        let mut text = String::from("  ");
        // Writing to a string never fails.
        let _ = match &event.outcome {
            Ok(reading) => {
                let key = event.key.as_deref().unwrap_or_default();
                let (_, kind) = Shown::of(&reading.value);
                let value = match Value::decode(&reading.value) {
                    Some(Value::Text(text)) => format!("{text:?}"),
                    Some(value) => value.to_string(),
                    None => String::new(),
                };
                let time = reading.time.map(format_time);
                let time = time.map_or(String::new(), |time| format!(", {time}"));
                write!(text, "{key} = {value} ({kind}{time})")
            }
            Err(refusal) => {
                let (reason, what) = (refusal.reason.name(), &refusal.what);
                write!(text, "refused, {reason}: {what}")
            }
        };
        output.line(text + &place(decision))?;
    }
    for (path, decision) in left {
        let why = match decision {
            Decision::Time => " (the time)",
            Decision::Unnamed => " (not named)",
            Decision::Left(_) | Decision::Own(_) | Decision::Taken(_) | Decision::Metric => "",
        };
        let path = shown(path.as_bytes());
        output.line(format_args!(
            "  left out: {path}{why}{}",
            place(Some(*decision))
        ))?;
    }
    if events.is_empty() {
        output.line("  no reading")?;
    }
    output.flush()
}

fn as_json(
    arguments: &TryArgs,
    subscribe: Option<&SubscribeConfig>,
    events: &[Event],
    left: &[(String, Decision)],
) -> serde_json::Value {
    let (mut readings, mut refusals) = (Vec::new(), Vec::new());
    for event in events {
        let decision = event.member.as_ref().map(|(_, decision)| *decision);
        let path = event.member.as_ref().map(|(path, _)| path);
        let line = line_of(subscribe, decision);
        match &event.outcome {
            Ok(reading) => {
                let (value, kind) = Shown::of(&reading.value);
                let mut shown = json!({
                    "key": event.key,
                    "value": serde_json::to_value(value).unwrap_or_default(),
                    "type": kind,
                    "time_ms": reading.time.map(Time::ms),
                    "time_ns": reading.time.and_then(Nanoseconds::of),
                    "path": path,
                    "line": line,
                });
                if let Some(digits) = value.digits() {
                    shown["value_text"] = json!(digits);
                }
                readings.push(shown);
            }
            Err(refusal) => refusals.push(json!({
                "reason": refusal.reason.name(),
                "what": refusal.what,
                "path": path,
                "key": event.key,
                "line": line,
            })),
        }
    }
    let left: Vec<_> = left
        .iter()
        .map(|(path, decision)| {
            let line = line_of(subscribe, Some(*decision));
            json!({"path": path, "why": why(*decision), "line": line})
        })
        .collect();
    json!({
        "file": arguments.config.display().to_string(),
        "topic": arguments.topic,
        "filter": subscribe.map(|one| &one.filter),
        "line": subscribe.map(|one| one.lines.table),
        "readings": readings,
        "refusals": refusals,
        "left_out": left,
    })
}

#[cfg(test)]
#[path = "try_cases.rs"]
mod cases;
