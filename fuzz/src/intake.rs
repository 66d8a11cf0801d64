//! The bodies of the fuzz targets of the intake.
//!
//! **Holds:** one function per target. It checks the conditions for any input, and panics if one is violated.
//!
//! **Must not know:** the fuzzer. A test of `ingest` includes this file and runs the committed corpora through it on
//! the stable toolchain.
//!
//! **Invariants:** a function depends on its input alone, so that a file of a corpus always shows the same as when it
//! was found.

use std::ops::ControlFlow;
use std::sync::Arc;

use base::sim::SimClock;
use db::value::Value;
use db::{CommitDriver, Database, DbOptions, MemoryStore};
use ingest::intake::{
    ArrayRule, Destination, Intake, IntakeOptions, JsonRule, JsonTake, KeyRules, LineOutcome,
    LineProgress, MemberRule, MemberRules, NodeDestination, Outcome, PathPattern, PayloadKind,
    Reason, SubscriptionRule, Template, TemplateKind, ValueKind, ValueRule,
};
use ingest::line::{
    BodyStopped, FieldValue, LineBody, LineBuffer, Piece, Precision, first_line_bytes, parse,
    write_line,
};
use ingest::mqtt::Version;
use ingest::mqtt::packet::{Reader, Step};

use super::intake_store::{NOW_MS, Put, Store, VALUE_BYTES_MAX, check_outcome};

const KEYS_MAX: usize = 16;

/// Line protocol: the stream is cut into reads and lines, each line is parsed and taken. The readings are the same
/// however it is cut, and however often the destination makes it wait. They are also the same when it is the body of a
/// request. A parsed line is written and parsed back equal. The parts of its keys can be read back from keys with
/// pairs. A restart between two lines changes nothing. The first three bytes choose the longest line, the length of
/// reads and where to wait.
pub fn line_protocol(data: &[u8]) {
    let Some((&[limit, cut, halt], stream)) = data.split_first_chunk::<3>() else {
        return;
    };
    let line_bytes_max = 1 + usize::from(limit) * 4;
    let whole = take_stream(stream, usize::MAX, line_bytes_max, 0);
    let parts = take_stream(
        stream,
        1 + usize::from(cut),
        line_bytes_max,
        usize::from(halt),
    );
    assert_eq!(whole.puts, parts.puts);
    assert_eq!(whole.refused, parts.refused);
    take_body(stream, line_bytes_max, usize::from(halt));
    let mut lines = Vec::new();
    let mut rest = stream;
    while !rest.is_empty() {
        let length = first_line_bytes(rest).unwrap_or(rest.len());
        lines.push(&rest[..length]);
        if let Ok(text) = std::str::from_utf8(&rest[..length]) {
            parses_back(text);
            keys_are_read_back(text);
        }
        rest = rest.get(length + 1..).unwrap_or_default();
    }
    a_restart_changes_nothing(&lines, cut, |intake, line| intake.line(line));
}

/// Messages of every kind of payload. A message that had to wait gives the same readings as one that had not. A refused
/// message is counted and puts nothing. A restart between two messages changes nothing. The first two bytes choose the
/// kind and where to wait; `\xff` separates messages.
pub fn mqtt_payload(data: &[u8]) {
    let Some((&[kind, halt], payloads)) = data.split_first_chunk::<2>() else {
        return;
    };
    let topics: [&[u8]; 8] = [
        b"number/a",
        b"json/a",
        b"whole",
        b"line/a",
        b"other",
        b"",
        b"number/\x80",
        b"line/\x01",
    ];
    // Kinds that came later are chosen by the greatest bytes, so that files of the corpus keep theirs.
    let later: [&[u8]; 5] = [
        b"value/auto",
        b"value/integer",
        b"value/bool",
        b"members/a",
        b"array/a",
    ];
    let topic = match usize::from(kind).checked_sub(256 - 5 * 8) {
        Some(kind) => later[kind % later.len()],
        None => topics[usize::from(kind) % topics.len()],
    };
    let (plain, halting) = (store(0), store(usize::from(halt)));
    let (mut one, mut other) = (intake(&plain), intake(&halting));
    for payload in payloads.split(|byte| *byte == 0xff) {
        let before = (plain.lock().puts.len(), one.counters().refused_total());
        let first = offer(&mut one, topic, payload);
        let second = offer(&mut other, topic, payload);
        assert_eq!(first, second);
        check_outcome(first, &plain, &one, before);
    }
    assert_eq!(plain.lock().puts, halting.lock().puts);
    assert_eq!(refused(&one), refused(&other));
    let messages: Vec<&[u8]> = payloads.split(|byte| *byte == 0xff).collect();
    a_restart_changes_nothing(&messages, halt, |intake, rest| intake.mqtt(topic, rest));
}

/// Data from a broker. However it is cut into reads, the packets are the same. The first three bytes choose the
/// version, the largest packet and the length of reads.
pub fn mqtt_packet(data: &[u8]) {
    let Some((&[version, limit, cut], stream)) = data.split_first_chunk::<3>() else {
        return;
    };
    let version = if version % 2 == 0 {
        Version::V311
    } else {
        Version::V5
    };
    let limit = usize::from(limit) * 8;
    let whole = read_packets(stream, version, limit, usize::MAX);
    let parts = read_packets(stream, version, limit, 1 + usize::from(cut));
    assert_eq!(whole, parts);
}

/// The result of a stream of lines.
struct Taken {
    puts: Vec<Put>,
    refused: Vec<u64>,
}

/// The database of a node.
type Node = NodeDestination<MemoryStore>;

/// Takes items without a restart, and with one behind an item that `cut` chooses: readings and refusals are the same.
fn a_restart_changes_nothing(
    items: &[&[u8]],
    cut: u8,
    offer: impl Fn(&mut Intake<Node>, &[u8]) -> Outcome,
) {
    if items.len() < 2 {
        return;
    }
    let behind = 1 + usize::from(cut) % (items.len() - 1);
    let (whole, cut) = (
        take_items(items, usize::MAX, &offer),
        take_items(items, behind, &offer),
    );
    assert_eq!(whole.puts, cut.puts);
    assert_eq!(whole.refused, cut.refused);
}

/// Takes items, the first `first` of them by a node that then ends, the others by the node that follows.
fn take_items(
    items: &[&[u8]],
    first: usize,
    offer: impl Fn(&mut Intake<Node>, &[u8]) -> Outcome,
) -> Taken {
    let (before, behind) = items.split_at(first.min(items.len()));
    let clock = SimClock::new(1);
    clock.set_wall_ms(NOW_MS);
    clock.set_wall_trusted(true);
    let mut store = MemoryStore::new();
    let mut counts = vec![0; Reason::ALL.len()];
    for items in [before, behind] {
        let node = node(store, &clock);
        let mut intake = Intake::new(options(), Arc::clone(&node));
        for item in items {
            let mut rest = *item;
            while let Outcome::Wait { consumed, .. } = offer(&mut intake, rest) {
                rest = &rest[consumed..];
                pump(&node);
            }
            pump(&node);
        }
        for (count, refused) in counts.iter_mut().zip(refused(&intake)) {
            *count += refused;
        }
        // From the log alone, or from a checkpoint.
        let ended = match items.len() % 2 {
            0 => node.database().abandon(),
            _ => node.database().close().ok(),
        };
        store = ended.unwrap_or_else(|| panic!("the store does not fail"));
    }
    let mut puts = Vec::new();
    let scanned = db::scan_log(&mut store, &mut |entry| {
        let key = entry.key.unwrap_or_default().to_owned();
        puts.push((key, entry.value.to_vec(), Some(entry.time)));
        ControlFlow::Continue(())
    });
    assert!(scanned.is_ok());
    Taken {
        puts,
        refused: counts,
    }
}

fn node(store: MemoryStore, clock: &SimClock) -> Arc<Node> {
    let options = DbOptions {
        objects_max: 4 * KEYS_MAX as u32,
        value_bytes_max: VALUE_BYTES_MAX,
        queue_bytes_max: 64 << 10,
        commit_driver: CommitDriver::Manual,
        ..DbOptions::default()
    };
    let opened = Database::open(store, Arc::new(clock.clone()), options);
    let database = opened.unwrap_or_else(|error| panic!("{error}"));
    let rules = KeyRules {
        auto_create: true,
        keys_max: KEYS_MAX as u32,
        ..KeyRules::default()
    };
    let clock = Arc::new(clock.clone());
    Arc::new(NodeDestination::new(Arc::new(database), clock, rules))
}

fn pump(node: &Node) {
    assert!(node.database().pump().is_ok());
}

fn store(halt: usize) -> Arc<Store> {
    Store::new(halt, KEYS_MAX, |key| !key.contains('?'))
}

fn intake(store: &Arc<Store>) -> Intake<Store> {
    Intake::new(options(), Arc::clone(store))
}

fn options() -> IntakeOptions {
    let rule = |filter: &str, key, payload| {
        // Constant templates, checked by the first run.
        let key = Template::parse(key, TemplateKind::TopicAndLine);
        SubscriptionRule {
            filter: filter.to_owned(),
            key: key.unwrap_or_else(|error| panic!("{error}")),
            payload,
            retained: ingest::intake::Retained::default(),
        }
    };
    let json = |field: &str, time_field| PayloadKind::Json(JsonRule::one(field, time_field));
    let value = |kind| ValueRule {
        kind,
        decimal_comma: true,
        units: vec!["C".to_owned()],
        ..ValueRule::default()
    };
    IntakeOptions {
        subscriptions: vec![
            rule("number/+", "{topic}", PayloadKind::Number),
            rule("json/+", "{1}", json("a.0", Some("t"))),
            rule("whole", "{topic}", json("", None)),
            rule(
                "value/auto",
                "{topic}",
                PayloadKind::Value(ValueRule::default()),
            ),
            rule(
                "value/integer",
                "{topic}",
                PayloadKind::Value(value(ValueKind::Integer)),
            ),
            rule(
                "value/bool",
                "{topic}",
                PayloadKind::Value(value(ValueKind::Boolean)),
            ),
            members("members/+", None),
            members("array/+", Some("a")),
            rule(
                "line/+",
                "{2}/{measurement}/{tags}/{field}",
                PayloadKind::Line,
            ),
        ],
        line_key: Template::line(),
        line_precision: Precision::Milliseconds,
        value_bytes_max: VALUE_BYTES_MAX,
        future_seconds_max: 86_400,
        past_days_max: 1,
        topics_cached_max: 4,
    }
}

/// All values but `x` of a document, or of the elements of an array in it, with the kind number for `n`.
fn members(filter: &str, array: Option<&str>) -> SubscriptionRule {
    let pattern = |text: &str| PathPattern::parse(text).unwrap_or_else(|error| panic!("{error}"));
    let number = ValueRule {
        kind: ValueKind::Number,
        ..ValueRule::default()
    };
    let rules = MemberRules {
        take: vec![pattern("*")],
        leave: vec![pattern("x")],
        own: vec![MemberRule {
            pattern: pattern("n"),
            name: Some("named".to_owned()),
            value: number,
        }],
        value: ValueRule::default(),
        array: array.map(|path| ArrayRule {
            path: path.to_owned(),
            time_field: "t".to_owned(),
        }),
    };
    let key = Template::parse("{2}/{path}", TemplateKind::TopicAndPath);
    SubscriptionRule {
        filter: filter.to_owned(),
        key: key.unwrap_or_else(|error| panic!("{error}")),
        payload: PayloadKind::Json(JsonRule {
            take: JsonTake::Several(Box::new(rules)),
            time_field: array.map(|_| "t".to_owned()),
            time_unit: Precision::Seconds,
        }),
        retained: ingest::intake::Retained::default(),
    }
}

fn refused<D: Destination>(intake: &Intake<D>) -> Vec<u64> {
    let counters = intake.counters();
    for reason in Reason::ALL {
        assert!(counters.excerpt(reason).len() <= ingest::intake::EXCERPT_SHARED_BYTES_MAX);
    }
    Reason::ALL
        .iter()
        .map(|reason| counters.refused(*reason))
        .collect()
}

fn offer(intake: &mut Intake<Store>, topic: &[u8], payload: &[u8]) -> Outcome {
    let mut rest = payload;
    loop {
        match intake.mqtt(topic, rest) {
            Outcome::Wait { consumed, .. } => {
                assert!(consumed == 0 || rest[consumed - 1] == b'\n');
                rest = &rest[consumed..];
            }
            outcome => return outcome,
        }
    }
}

fn take_stream(stream: &[u8], read_bytes: usize, line_bytes_max: usize, halt: usize) -> Taken {
    let store = store(halt);
    let mut intake = intake(&store);
    let mut buffer = LineBuffer::new(line_bytes_max);
    let mut progress = LineProgress::default();
    let mut rest = stream;
    let mut is_over = false;
    'stream: loop {
        while let Some(piece) = buffer.peek() {
            if let Piece::Line(line) = piece {
                assert!(line.len() <= line_bytes_max);
                let before = (store.lock().puts.len(), intake.counters().refused_total());
                loop {
                    match intake.line_from(line, &mut progress) {
                        LineOutcome::Wait { .. } => {}
                        LineOutcome::Done { refused, .. } => {
                            let counted = intake.counters().refused_total() - before.1;
                            assert_eq!(u64::from(refused), counted);
                            break;
                        }
                        LineOutcome::Failed => panic!("the store does not fail"),
                    }
                }
                assert_eq!(progress, LineProgress::default());
                assert!(store.lock().puts.len() >= before.0);
            } else {
                is_over = matches!(piece, Piece::TextOpen(_));
                intake.refuse(Reason::Oversized);
                if is_over {
                    break 'stream;
                }
            }
            buffer.consume();
        }
        if rest.is_empty() {
            break;
        }
        let spare = buffer.spare();
        assert!(!spare.is_empty());
        let count = read_bytes.min(rest.len()).min(spare.len());
        spare[..count].copy_from_slice(&rest[..count]);
        buffer.filled(count);
        rest = &rest[count..];
    }
    if !is_over {
        let unfinished = buffer.unfinished();
        assert!(stream.ends_with(unfinished));
        // The search in one call agrees with the search piece by piece.
        assert_eq!(ingest::line::first_line_bytes(unfinished), None);
    }
    let puts = std::mem::take(&mut store.lock().puts);
    Taken {
        puts,
        refused: refused(&intake),
    }
}

/// A body is taken as a stream of the same lines whose last one is ended.
fn take_body(bytes: &[u8], line_bytes_max: usize, halt: usize) {
    let store = store(halt);
    let mut intake = intake(&store);
    let mut body = LineBody::new(bytes.to_vec(), Precision::Milliseconds, line_bytes_max);
    loop {
        match body.take(&mut intake) {
            BodyStopped::Done => break,
            BodyStopped::Slice | BodyStopped::Wait { .. } => {}
            BodyStopped::Failed => panic!("the store does not fail"),
        }
    }
    let taken = body.into_taken();
    let ended = [bytes, b"\n"].concat();
    let stream = take_stream(&ended, usize::MAX, line_bytes_max, 0);
    let puts = std::mem::take(&mut store.lock().puts);
    assert_eq!(taken.accepted, puts.len() as u64);
    assert_eq!(taken.lsn_end, puts.len() as u64);
    assert_eq!(puts, stream.puts);
    assert_eq!(taken.refused, intake.counters().refused_total());
    assert_eq!(taken.refused == 0, taken.lines.is_empty());
    for line in &taken.lines {
        assert!(!line.reasons.is_empty());
        assert!(line.text.len() <= ingest::intake::EXCERPT_BYTES_MAX);
    }
}

fn parses_back(text: &str) {
    let Ok(line) = parse(text) else {
        return;
    };
    let mut measurement = String::new();
    line.measurement().push_to(&mut measurement);
    let tags: Vec<(String, String)> = line
        .tags()
        .map(|(name, value)| (name.chars().collect(), value.chars().collect()))
        .collect();
    let fields: Vec<(String, FieldValue<'_>, String)> = line
        .fields()
        .map(|(name, value)| {
            let mut text = String::new();
            if let FieldValue::Text(quoted) = value {
                quoted.push_to(&mut text);
            }
            (name.chars().collect(), value, text)
        })
        .collect();
    assert!(!fields.is_empty());
    let tags: Vec<(&str, &str)> = tags
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let fields: Vec<(&str, Value<'_>)> = fields
        .iter()
        .map(|(name, value, text)| {
            let value = match value {
                FieldValue::Float(value) => Value::Float(*value),
                FieldValue::Integer(value) => Value::Integer(*value),
                FieldValue::Unsigned(value) => Value::Unsigned(*value),
                FieldValue::Boolean(value) => Value::Boolean(*value),
                FieldValue::Text(_) => Value::Text(text),
            };
            (name.as_str(), value)
        })
        .collect();
    let mut written = String::new();
    write_line(&mut written, &measurement, &tags, &fields, line.time());
    let Ok(again) = parse(&written) else {
        panic!("`{written}` does not parse");
    };
    let mut rewritten = String::new();
    let mut name = String::new();
    again.measurement().push_to(&mut name);
    assert_eq!(name, measurement);
    assert_eq!(again.tags().count(), tags.len());
    assert_eq!(again.fields().count(), fields.len());
    write_line(&mut rewritten, &name, &tags, &fields, again.time());
    assert_eq!(written, rewritten);
}

/// Every key with pairs that a line makes is the one of its measurement, its tags and one of its fields.
fn keys_are_read_back(text: &str) {
    // An intake leaves a byte order mark out.
    let Ok(line) = parse(text.strip_prefix('\u{feff}').unwrap_or(text)) else {
        return;
    };
    let store = store(0);
    let key = Template::parse("{measurement}/{pairs}/{field}", TemplateKind::Line);
    let options = IntakeOptions {
        line_key: key.unwrap_or_else(|error| panic!("{error}")),
        line_precision: Precision::Milliseconds,
        value_bytes_max: VALUE_BYTES_MAX,
        future_seconds_max: 86_400,
        past_days_max: 1,
        ..IntakeOptions::default()
    };
    let mut intake = Intake::new(options, Arc::clone(&store));
    intake.line(text.as_bytes());
    let mut tags: Vec<(String, String)> = line
        .tags()
        .map(|(name, value)| (name.chars().collect(), value.chars().collect()))
        .collect();
    tags.sort();
    let keys = std::mem::take(&mut store.lock().keys);
    for key in keys {
        let levels: Vec<&str> = key.split('/').collect();
        let [measurement, pairs @ .., field] = &levels[..] else {
            panic!("{key}");
        };
        assert!(
            line.measurement()
                .chars()
                .eq(unescaped(measurement).chars())
        );
        let pairs: Vec<(String, String)> = pairs
            .iter()
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| (unescaped(name), unescaped(value)))
            .collect();
        assert_eq!(pairs, tags, "{key}");
        let field = unescaped(field);
        assert!(
            line.fields()
                .any(|(name, _)| name.chars().eq(field.chars()))
        );
    }
}

/// Returns a part of a key with pairs as it was.
fn unescaped(text: &str) -> String {
    let text = text.replace("~2", "=").replace("~1", "/");
    text.replace("~0", "~")
}

/// Returns each packet as text, and at the end the error of the stream, if any.
fn read_packets(stream: &[u8], version: Version, limit: usize, read_bytes: usize) -> Vec<String> {
    let mut reader = Reader::new();
    let mut seen = Vec::new();
    let mut rest = stream;
    loop {
        loop {
            let bytes = match reader.peek(version, limit) {
                Err(malformed) => {
                    seen.push(format!("{malformed:?}"));
                    return seen;
                }
                Ok(Step::More(_)) => break,
                Ok(Step::Publish(publish, bytes)) => {
                    assert!(publish.topic.len() + publish.payload.len() <= limit);
                    assert_eq!(publish.packet_id == 0, publish.qos == 0);
                    seen.push(format!("{publish:?}"));
                    bytes
                }
                Ok(Step::Oversized(oversized, bytes)) => {
                    seen.push(format!("{oversized:?}"));
                    bytes
                }
                Ok(Step::Control(kind, packet, header)) => {
                    assert!(header <= packet.len());
                    seen.push(format!("{kind:?} {packet:?}"));
                    packet.len()
                }
            };
            reader.advance(bytes);
        }
        if rest.is_empty() {
            return seen;
        }
        let space = reader.space();
        assert!(!space.is_empty());
        let count = read_bytes.min(rest.len()).min(space.len());
        space[..count].copy_from_slice(&rest[..count]);
        reader.filled(count);
        rest = &rest[count..];
    }
}
