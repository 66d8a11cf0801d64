//! Golden bytes of every message, and what the limits refuse.

use super::*;
use base::wire::{Decoded, decode};
use db::Time;
use std::fmt::Write;

/// A time that ms do not show exactly.
const EXACT_NS: i64 = 1_772_368_200_250_123_456;

/// The first integer that no double holds.
const ABOVE_DOUBLES: i64 = (1 << 53) + 1;

const GOLDEN: &str = include_str!("../../tests/golden/node-protocol-1.txt");

fn latest<'a>(key: &'a str, bytes: &'a [u8]) -> Latest<'a> {
    let (value, kind) = Shown::of(bytes);
    Latest {
        key,
        value,
        value_text: value.digits(),
        kind,
        time_ms: 1_772_368_200_250,
        time_ns: None,
        age_ms: -40,
        fresh: true,
        validity_ms: 60_000,
        temporal: true,
        node_time: false,
        clock_trusted: true,
        this_boot: true,
        retained: false,
    }
}

fn reading(bytes: &[u8], recorded_ms: Option<i64>, lsn: u64) -> Vec<u8> {
    let (value, kind) = Shown::of(bytes);
    let reading = Reading {
        time_ms: 1_772_368_200_250,
        time_ns: None,
        value,
        value_text: value.digits(),
        kind,
        recorded_ms,
        recorded_ns: None,
        node_time: recorded_ms.is_some(),
        clock_trusted: false,
        lsn,
    };
    serde_json::to_vec(&reading).unwrap()
}

fn task() -> Task {
    Task {
        name: "valve".to_owned(),
        period_ns: 100_000_000,
        deadline_ns: 50_000_000,
        kind: TaskKind::Firm,
        weight: 1.5,
        process: 7,
        thread: 8,
    }
}

/// Two instances, of 1 ms and of a time that is too long for any bucket.
fn period() -> TaskPeriod {
    let long = Spread {
        sum_ns: 5_000_001_000_000,
        min_ns: 1_000_000,
        max_ns: 5_000_000_000_000,
        saturated: 1,
        buckets: vec![(954, 1)],
    };
    let short = Spread {
        sum_ns: 2_000_000,
        min_ns: 1_000_000,
        max_ns: 1_000_000,
        saturated: 0,
        buckets: vec![(954, 2)],
    };
    TaskPeriod {
        id: 3,
        instances: 2,
        deadline_misses: 1,
        aborted: 1,
        releases_missed: 9,
        tardiness_sum: 1.75,
        tardiness_max: 1.5,
        response: long.clone(),
        data: short.clone(),
        compute: long,
        jitter: short,
    }
}

/// Returns one message of every kind, with every field.
fn messages() -> Vec<(&'static str, Vec<u8>)> {
    let request = |kind, message: &dyn erased::Message| message.frame(kind);
    let float = 21.5_f64.to_le_bytes();
    let put = |value: Value<'_>, time_ms: Option<i64>| {
        let value = PutValue::of(value).unwrap();
        Put::new("room/1".to_owned(), value, time_ms.map(Time::from_ms))
    };
    let history = |from, to| History::new("room/1".to_owned(), Some(from), Some(to), Some(10));
    let exact = Time::from_ns(EXACT_NS);
    let large = [&b"i"[..], &ABOVE_DOUBLES.to_le_bytes()].concat();
    let in_ns = Latest {
        time_ns: Nanoseconds::beside_ms(exact),
        ..latest("room/1", &float)
    };
    let corrected_in_ns = {
        let (value, kind) = Shown::of(&float);
        let reading = Reading {
            time_ms: 1_772_368_200_250,
            time_ns: Nanoseconds::beside_ms(exact),
            value,
            value_text: value.digits(),
            kind,
            recorded_ms: Some(-1),
            recorded_ns: Some(Nanoseconds(-1)),
            node_time: true,
            clock_trusted: false,
            lsn: 7,
        };
        serde_json::to_vec(&reading).unwrap()
    };
    let end = End {
        sent: 1,
        missed: 2,
        segments_total: 3,
        segments_read: 4,
        segments_skipped: 5,
        segments_gone: 6,
        bytes_read: 7,
        records_damaged: 8,
        readings_missing: 9,
    };
    let failure = Failure {
        code: "not-found".to_owned(),
        thing: "room/1".to_owned(),
        wrong: "no such key".to_owned(),
        remedy: String::new(),
    };
    let shed = Failure {
        code: "shed".to_owned(),
        thing: "room/1".to_owned(),
        wrong: "was thrown away".to_owned(),
        remedy: "see".to_owned(),
    };
    let identify = serde_json::json!({"samples": 200});
    let qos = Qos {
        mode: Some(Mode::DvfsOnly),
        tardiness: Some(0.8),
        data_ratio: Some(0.25),
        identify: identify.as_object().cloned(),
        stop_identify: true,
    };
    let watched: Vec<Vec<u8>> = [
        &b"b\x01"[..],
        b"topen",
        b"i\xfe\xff\xff\xff\xff\xff\xff\xff",
    ]
    .iter()
    .map(|bytes| serde_json::to_vec(&latest("door", bytes)).unwrap())
    .collect();
    let begun = BackupBegun {
        hash_key: "000102030405060708090a0b0c0d0e0f".to_owned(),
        name_bytes_max: 64,
        files_max: 3,
        bytes_max: 12_582_912,
        durable_end: 1000,
    };
    let file = BackupFile {
        name: "log-00000007".to_owned(),
        gone: true,
    };
    let backup_end = BackupEnd {
        files: 2,
        bytes: 3,
        durable_end: 1000,
        segments_gone: 4,
        bytes_unreadable: 5,
        files_left_out: 6,
    };
    let readings = [reading(&float, None, 5), reading(b"?", Some(-7), 6)];
    vec![
        (
            "get",
            request(
                Kind::Get,
                &Get {
                    key: "room/1".to_owned(),
                },
            ),
        ),
        ("put", request(Kind::Put, &put(Value::Float(21.5), None))),
        (
            "put-text-time",
            request(Kind::Put, &put(Value::Text("\u{e4}\n"), Some(-5))),
        ),
        (
            "watch",
            request(
                Kind::Watch,
                &Watch {
                    pattern: "room/#".to_owned(),
                    current: true,
                },
            ),
        ),
        (
            "history",
            request(
                Kind::History,
                &history(Time::from_ms(-1), Time::from_ms(1_772_368_200_000)),
            ),
        ),
        ("status", request(Kind::Status, &Status {})),
        ("value", request(Kind::Value, &latest("room/1", &float))),
        ("stored", request(Kind::Stored, &Stored { lsn: u64::MAX })),
        ("updates-none", updates_frame(b"", 0)),
        ("updates", updates_frame(&watched.join(&b','), 3)),
        ("readings", readings_frame(&readings.join(&b','))),
        ("end", request(Kind::End, &end)),
        ("error", request(Kind::Error, &failure)),
        ("error-shed", request(Kind::Error, &shed)),
        ("task", request(Kind::Task, &task())),
        (
            "task-declared",
            request(
                Kind::TaskDeclared,
                &TaskDeclared {
                    id: 3,
                    sampling_period_ms: 1000,
                },
            ),
        ),
        ("task-period", request(Kind::TaskPeriod, &period())),
        (
            "task-noted",
            request(
                Kind::TaskNoted,
                &TaskNoted {
                    sampling_period_ms: 1000,
                },
            ),
        ),
        ("qos-none", request(Kind::Qos, &Qos::default())),
        ("qos", request(Kind::Qos, &qos)),
        (
            "together",
            request(
                Kind::Together,
                &Together {
                    puts: vec![
                        put(Value::Float(21.5), None),
                        put(Value::Boolean(true), Some(-5)),
                    ],
                    deadline_ns: 50_000_000,
                },
            ),
        ),
        ("backup", request(Kind::Backup, &Backup {})),
        ("backup-begun", request(Kind::BackupBegun, &begun)),
        ("backup-file", request(Kind::BackupFile, &file)),
        ("backup-piece", backup_piece_frame(b"as it is")),
        ("backup-end", request(Kind::BackupEnd, &backup_end)),
        (
            "keys",
            request(
                Kind::Keys,
                &Keys {
                    pattern: "room/#".to_owned(),
                    from: 7,
                },
            ),
        ),
        (
            "key-list",
            request(
                Kind::KeyList,
                &KeyList {
                    keys: vec!["room/1".to_owned(), "room/2".to_owned()],
                    next: Some(9),
                },
            ),
        ),
        (
            "put-ns",
            request(
                Kind::Put,
                &Put {
                    time_ns: Some(Nanoseconds(EXACT_NS)),
                    ..put(Value::Float(21.5), None)
                },
            ),
        ),
        (
            "history-ns",
            request(Kind::History, &history(Time::from_ns(-1), exact)),
        ),
        ("value-ns", request(Kind::Value, &in_ns)),
        ("readings-ns", readings_frame(&corrected_in_ns)),
        (
            "keys-release",
            request(
                Kind::KeysRelease,
                &KeysRelease {
                    keys: vec!["room/1".to_owned(), "room/2".to_owned()],
                },
            ),
        ),
        (
            "keys-released",
            request(Kind::KeysReleased, &KeysReleased { owners: vec![2, 0] }),
        ),
        (
            "put-typed",
            request(Kind::Put, &put(Value::Integer(ABOVE_DOUBLES), None)),
        ),
        (
            "value-text",
            request(Kind::Value, &latest("room/1", &large)),
        ),
        (
            "readings-text",
            readings_frame(&reading(&[&b"u"[..], &[0xff; 8]].concat(), None, 8)),
        ),
    ]
}

mod erased {
    use super::{ANSWER_BYTES_MAX, Kind, frame};

    /// Everything that can be sent.
    pub(super) trait Message {
        fn frame(&self, kind: Kind) -> Vec<u8>;
    }

    impl<T: serde::Serialize> Message for T {
        fn frame(&self, kind: Kind) -> Vec<u8> {
            frame(kind, self, ANSWER_BYTES_MAX).unwrap()
        }
    }
}

#[test]
fn every_message_has_its_golden_bytes() {
    let mut text = String::new();
    for (name, bytes) in messages() {
        let payload = String::from_utf8_lossy(&bytes[base::wire::HEADER_BYTES..]);
        write!(text, "# {payload}\n{name} ").unwrap();
        for byte in &bytes {
            write!(text, "{byte:02x}").unwrap();
        }
        text.push('\n');
    }
    // A difference requires a new version of the protocol, unless fields were added to an answer.
    assert_eq!(text, GOLDEN, "what is sent now:\n{text}");
}

#[test]
fn requests_read_back_as_they_were_written() {
    for (name, bytes) in messages() {
        let Ok(Decoded::Frame(frame)) = decode(&bytes, REQUEST_BYTES_MAX) else {
            panic!("{name}");
        };
        let again = match Kind::of(frame.kind).unwrap() {
            Kind::Get => serde_json::to_vec(&read::<Get>(frame.payload)),
            Kind::Put => serde_json::to_vec(&read::<Put>(frame.payload)),
            Kind::Watch => serde_json::to_vec(&read::<Watch>(frame.payload)),
            Kind::History => serde_json::to_vec(&read::<History>(frame.payload)),
            Kind::Status => serde_json::to_vec(&read::<Status>(frame.payload)),
            Kind::End => serde_json::to_vec(&read::<End>(frame.payload)),
            Kind::Error => serde_json::to_vec(&read::<Failure>(frame.payload)),
            Kind::Task => serde_json::to_vec(&read::<Task>(frame.payload)),
            Kind::TaskPeriod => serde_json::to_vec(&read::<TaskPeriod>(frame.payload)),
            Kind::Qos => serde_json::to_vec(&read::<Qos>(frame.payload)),
            Kind::Together => serde_json::to_vec(&read::<Together>(frame.payload)),
            Kind::Keys => serde_json::to_vec(&read::<Keys>(frame.payload)),
            Kind::KeyList => serde_json::to_vec(&read::<KeyList>(frame.payload)),
            Kind::KeysRelease => serde_json::to_vec(&read::<KeysRelease>(frame.payload)),
            Kind::KeysReleased => serde_json::to_vec(&read::<KeysReleased>(frame.payload)),
            Kind::TaskDeclared => serde_json::to_vec(&read::<TaskDeclared>(frame.payload)),
            Kind::Backup => serde_json::to_vec(&read::<Backup>(frame.payload)),
            Kind::BackupBegun => serde_json::to_vec(&read::<BackupBegun>(frame.payload)),
            Kind::BackupFile => serde_json::to_vec(&read::<BackupFile>(frame.payload)),
            Kind::BackupEnd => serde_json::to_vec(&read::<BackupEnd>(frame.payload)),
            Kind::TaskNoted => serde_json::to_vec(&read::<TaskNoted>(frame.payload)),
            _ => continue,
        };
        assert_eq!(again.unwrap(), frame.payload, "{name}");
    }
}

fn read<T: serde::de::DeserializeOwned>(payload: &[u8]) -> T {
    serde_json::from_slice(payload).unwrap()
}

#[test]
fn the_most_keys_to_release_fit_a_request() {
    let keys = vec!["k".repeat(db::KEY_BYTES_MAX); KEYS_RELEASED_MAX];
    assert!(frame(Kind::KeysRelease, &KeysRelease { keys }, REQUEST_BYTES_MAX).is_some());
}

#[test]
fn a_number_comes_back_bit_for_bit() {
    for value in [
        0.1,
        -0.0,
        1e300,
        f64::MIN_POSITIVE,
        5e-324,
        2.0_f64.powi(60) + 256.0,
        0.3 - 0.1,
    ] {
        let bytes = value.to_le_bytes();
        let text = serde_json::to_vec(&latest("a", &bytes)).unwrap();
        let found: serde_json::Value = read(&text);
        assert_eq!(found["value"].as_f64().unwrap().to_bits(), value.to_bits());
    }
    for nothing in [f64::NAN, f64::INFINITY] {
        let bytes = nothing.to_le_bytes();
        let text = serde_json::to_vec(&latest("a", &bytes)).unwrap();
        assert!(read::<serde_json::Value>(&text)["value"].is_null());
    }
}

#[test]
fn kinds_are_told_by_their_numbers() {
    for kind in Kind::ALL {
        assert_eq!(Kind::of(kind as u16), Some(kind));
    }
    assert_eq!(Kind::of(0), None);
}

#[test]
fn a_task_outside_its_limits_is_refused() {
    task().check().unwrap();
    let wrong = |change: &dyn Fn(&mut Task)| {
        let mut task = task();
        change(&mut task);
        task.check().unwrap_err()
    };
    for name in ["", "a\n", &"x".repeat(65)] {
        assert!(wrong(&|task| task.name = name.to_owned()).contains("name"));
    }
    for ns in [0, 999, DECLARED_NS_MAX + 1] {
        assert!(wrong(&|task| task.period_ns = ns).starts_with(&format!("period_ns is {ns}")));
    }
    for ns in [0, DECLARED_NS_MAX + 1] {
        assert!(wrong(&|task| task.deadline_ns = ns).starts_with("deadline_ns"));
    }
    for weight in [0.0, -1.0, 1000.1, f64::NAN, f64::INFINITY] {
        assert!(wrong(&|task| task.weight = weight).starts_with("weight"));
    }
}

#[test]
fn a_spread_has_no_more_pairs_than_fit() {
    let mut message = period();
    message.jitter.buckets = vec![(0, 1); PAIRS_MAX];
    message.check().unwrap();
    message.jitter.buckets.push((1, 1));
    assert!(message.check().unwrap_err().starts_with("jitter has 513"));
}

#[test]
fn the_longest_period_fits_a_request() {
    let spread = Spread {
        sum_ns: u64::MAX,
        min_ns: u64::MAX,
        max_ns: u64::MAX,
        saturated: u64::MAX,
        buckets: vec![(9_999, u64::MAX); PAIRS_MAX],
    };
    let period = TaskPeriod {
        id: u64::MAX,
        instances: u64::MAX,
        deadline_misses: u64::MAX,
        aborted: u64::MAX,
        releases_missed: u64::MAX,
        tardiness_sum: f64::MIN_POSITIVE,
        tardiness_max: f64::MIN_POSITIVE,
        response: spread.clone(),
        data: spread.clone(),
        compute: spread.clone(),
        jitter: spread,
    };
    assert!(frame(Kind::TaskPeriod, &period, REQUEST_BYTES_MAX).is_some());
}

#[test]
fn a_period_becomes_figures_and_back() {
    let figures = period().figures().unwrap();
    assert_eq!(figures.response_ns.saturated_count(), 1);
    assert_eq!((figures.data_ns.sum(), figures.aborted), (2_000_000, 1));
    assert_eq!(TaskPeriod::of(3, &figures.to_sum()), Some(period()));
    // A period without an instance is valid, too.
    assert_eq!(TaskPeriod::default().figures().unwrap().instances, 0);
}

#[test]
fn a_period_that_contradicts_itself_is_refused() {
    let changes: [fn(&mut TaskPeriod); 8] = [
        |period| period.instances = 3,
        |period| period.deadline_misses = 3,
        |period| period.aborted = 3,
        |period| period.tardiness_sum = f64::NAN,
        |period| period.tardiness_max = f64::INFINITY,
        |period| period.data.buckets.clear(),
        |period| period.jitter.sum_ns = 1,
        |period| period.compute.buckets[0].0 = 2368,
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let mut period = period();
        change(&mut period);
        assert!(period.figures().is_err(), "{at}");
    }
}
