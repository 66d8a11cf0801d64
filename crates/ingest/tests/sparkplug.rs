//! Messages of Sparkplug B, built as the specification's protobuf schema says: births that name, data by alias, deaths,
//! and what is refused alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::intake_support::{Fake, NOW_MS, refused};
use base::sim::SimClock;
use db::{CommitDriver, Database, DbOptions, MemoryStore};
use ingest::intake::{
    EdgeNodeState, Intake, IntakeOptions, KeyRules, NodeDestination, Outcome, PayloadKind, Reason,
    Retained, SparkplugRule, SubscriptionRule, Template, TemplateKind,
};
use prost::Message;

/// The schema, with what the node does not read.
mod schema {
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Payload {
        #[prost(uint64, optional, tag = "1")]
        pub timestamp: Option<u64>,
        #[prost(message, repeated, tag = "2")]
        pub metrics: Vec<Metric>,
        #[prost(uint64, optional, tag = "3")]
        pub seq: Option<u64>,
        #[prost(string, optional, tag = "4")]
        pub uuid: Option<String>,
        #[prost(bytes = "vec", optional, tag = "5")]
        pub body: Option<Vec<u8>>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Metric {
        #[prost(string, optional, tag = "1")]
        pub name: Option<String>,
        #[prost(uint64, optional, tag = "2")]
        pub alias: Option<u64>,
        #[prost(uint64, optional, tag = "3")]
        pub timestamp: Option<u64>,
        #[prost(uint32, optional, tag = "4")]
        pub datatype: Option<u32>,
        #[prost(bool, optional, tag = "5")]
        pub is_historical: Option<bool>,
        #[prost(bool, optional, tag = "6")]
        pub is_transient: Option<bool>,
        #[prost(bool, optional, tag = "7")]
        pub is_null: Option<bool>,
        #[prost(message, optional, tag = "8")]
        pub metadata: Option<MetaData>,
        #[prost(message, optional, tag = "9")]
        pub properties: Option<PropertySet>,
        #[prost(oneof = "Value", tags = "10, 11, 12, 13, 14, 15, 16, 17, 18")]
        pub value: Option<Value>,
    }

    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Value {
        #[prost(uint32, tag = "10")]
        Int(u32),
        #[prost(uint64, tag = "11")]
        Long(u64),
        #[prost(float, tag = "12")]
        Float(f32),
        #[prost(double, tag = "13")]
        Double(f64),
        #[prost(bool, tag = "14")]
        Boolean(bool),
        #[prost(string, tag = "15")]
        Text(String),
        #[prost(bytes = "vec", tag = "16")]
        Bytes(Vec<u8>),
        #[prost(message, tag = "17")]
        DataSet(DataSet),
        #[prost(message, tag = "18")]
        Template(Template),
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct MetaData {
        #[prost(uint64, optional, tag = "3")]
        pub size: Option<u64>,
        #[prost(string, optional, tag = "5")]
        pub file_name: Option<String>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct PropertySet {
        #[prost(string, repeated, tag = "1")]
        pub keys: Vec<String>,
        #[prost(message, repeated, tag = "2")]
        pub values: Vec<PropertyValue>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct PropertyValue {
        #[prost(uint32, optional, tag = "1")]
        pub kind: Option<u32>,
        #[prost(uint32, optional, tag = "3")]
        pub int_value: Option<u32>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct DataSet {
        #[prost(uint64, optional, tag = "1")]
        pub num_of_columns: Option<u64>,
        #[prost(string, repeated, tag = "2")]
        pub columns: Vec<String>,
        #[prost(uint32, repeated, packed = "false", tag = "3")]
        pub types: Vec<u32>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Template {
        #[prost(string, optional, tag = "1")]
        pub version: Option<String>,
        #[prost(message, repeated, tag = "2")]
        pub metrics: Vec<Metric>,
        #[prost(string, optional, tag = "4")]
        pub template_ref: Option<String>,
        #[prost(bool, optional, tag = "5")]
        pub is_definition: Option<bool>,
    }
}

use schema::{Metric, Payload, Value};

const NOW: u64 = NOW_MS as u64;

const INT32: u32 = 3;
const UINT64: u32 = 8;
const FLOAT: u32 = 9;
const DOUBLE: u32 = 10;
const BOOLEAN: u32 = 11;
const TEXT: u32 = 12;

/// A metric of a birth.
fn born(name: &str, alias: Option<u64>, datatype: u32, value: Value) -> Metric {
    Metric {
        name: Some(name.to_owned()),
        alias,
        timestamp: Some(NOW),
        datatype: Some(datatype),
        value: Some(value),
        ..Metric::default()
    }
}

/// A metric of data, `after_ms` after the birth.
fn data(alias: u64, after_ms: u64, value: Value) -> Metric {
    Metric {
        alias: Some(alias),
        timestamp: Some(NOW + after_ms),
        value: Some(value),
        ..Metric::default()
    }
}

fn payload(seq: Option<u64>, metrics: Vec<Metric>) -> Vec<u8> {
    let payload = Payload {
        timestamp: Some(NOW),
        metrics,
        seq,
        ..Payload::default()
    };
    payload.encode_to_vec()
}

/// The birth of an edge node or device with one metric.
pub(crate) fn birth_of(name: &str) -> Vec<u8> {
    let metric = born(name, None, DOUBLE, Value::Double(1.0));
    payload(Some(0), vec![metric])
}

fn session(number: u64) -> Metric {
    born("bdSeq", None, UINT64, Value::Long(number))
}

/// The birth of the specification's example, shortened.
fn node_birth(number: u64) -> Vec<u8> {
    let rebirth = born("Node Control/Rebirth", None, BOOLEAN, Value::Boolean(false));
    let make = Value::Text("Raspberry Pi".to_owned());
    let metrics = vec![
        session(number),
        rebirth,
        born("Properties/Hardware Make", None, TEXT, make),
        born("Supply Voltage", Some(1), FLOAT, Value::Float(12.5)),
    ];
    payload(Some(0), metrics)
}

fn device_birth(seq: u64) -> Vec<u8> {
    let metrics = vec![
        born("Inputs/A", Some(10), BOOLEAN, Value::Boolean(true)),
        born("Inputs/Count", Some(11), INT32, Value::Int(5)),
    ];
    payload(Some(seq), metrics)
}

fn rule(key: &str, rebirth: bool) -> SubscriptionRule {
    SubscriptionRule {
        filter: "spBv1.0/#".to_owned(),
        key: Template::parse(key, TemplateKind::Sparkplug).unwrap(),
        payload: PayloadKind::Sparkplug(SparkplugRule { rebirth }),
        retained: Retained::default(),
    }
}

pub(crate) const KEY: &str = "{group}/{edge}/{place}/{metric}";

fn options(rule: SubscriptionRule) -> IntakeOptions {
    IntakeOptions {
        subscriptions: vec![rule],
        past_days_max: 30,
        future_seconds_max: 60,
        ..IntakeOptions::default()
    }
}

pub(crate) fn intake(fake: &Arc<Fake>) -> Intake<Fake> {
    Intake::new(options(rule(KEY, false)), Arc::clone(fake))
}

const NBIRTH: &[u8] = b"spBv1.0/g/NBIRTH/e";
const NDATA: &[u8] = b"spBv1.0/g/NDATA/e";
const NDEATH: &[u8] = b"spBv1.0/g/NDEATH/e";
const DBIRTH: &[u8] = b"spBv1.0/g/DBIRTH/e/d";
const DDATA: &[u8] = b"spBv1.0/g/DDATA/e/d";
const DDEATH: &[u8] = b"spBv1.0/g/DDEATH/e/d";

/// What has been put since the last call.
fn news(fake: &Fake) -> Vec<String> {
    let texts = fake.texts();
    fake.with(|inner| inner.puts.clear());
    texts
}

#[test]
fn births_give_names_to_the_aliases_of_data() {
    let fake = Fake::new();
    let mut intake = intake(&fake);
    assert_eq!(
        intake.mqtt(NBIRTH, &node_birth(0)),
        Outcome::Accepted { lsn_end: 4 }
    );
    assert_eq!(
        news(&fake),
        [
            "g/e/state/node=true",
            "g/e/node/Node Control/Rebirth=false",
            "g/e/node/Properties/Hardware Make=\"Raspberry Pi\"",
            "g/e/node/Supply Voltage=12.5",
        ]
    );
    intake.mqtt(DBIRTH, &device_birth(1));
    assert_eq!(
        news(&fake),
        [
            "g/e/state/device/d=true",
            "g/e/device/d/Inputs/A=true",
            "g/e/device/d/Inputs/Count=5i",
        ]
    );
    intake.mqtt(
        NDATA,
        &payload(Some(2), vec![data(1, 0, Value::Float(12.25))]),
    );
    let changed = vec![
        data(11, 0, Value::Int(u32::MAX)),
        data(10, 0, Value::Boolean(false)),
    ];
    intake.mqtt(DDATA, &payload(Some(3), changed));
    // A name in place of the alias is as good; the birth says the type.
    let named = Metric {
        alias: None,
        name: Some("Inputs/Count".to_owned()),
        ..data(0, 0, Value::Int(7))
    };
    intake.mqtt(DDATA, &payload(Some(4), vec![named]));
    assert_eq!(
        news(&fake),
        [
            "g/e/node/Supply Voltage=12.25",
            "g/e/device/d/Inputs/Count=-1i",
            "g/e/device/d/Inputs/A=false",
            "g/e/device/d/Inputs/Count=7i",
        ]
    );
    let counters = intake.counters();
    assert_eq!((counters.messages(), counters.refused_total()), (5, 0));
    let nodes = intake.edge_nodes();
    let [node] = &nodes[..] else {
        panic!("{nodes:?}");
    };
    assert_eq!(
        (node.name.as_str(), node.state),
        ("g/e", EdgeNodeState::Alive)
    );
    assert_eq!((node.devices, node.metrics, node.gaps), (1, 6, 0));
    // Aliases count for the edge node or device whose birth gave them.
    intake.mqtt(
        NDATA,
        &payload(Some(5), vec![data(10, 0, Value::Boolean(true))]),
    );
    assert_eq!(refused(&intake)["sparkplug_unknown_alias"], 1);
}

#[test]
fn each_scalar_type_becomes_its_kind_of_value() {
    let fake = Fake::new();
    let mut intake = intake(&fake);
    let text = |text: &str| Value::Text(text.to_owned());
    let values = [
        (1, Value::Int(0xffff_ff80), "-128i"),
        (2, Value::Int(0xffff_ffff), "-1i"),
        (3, Value::Int(0x8000_0000), "-2147483648i"),
        (4, Value::Long((1 << 53) + 1), "9007199254740993i"),
        (5, Value::Int(255), "255u"),
        (6, Value::Int(65_535), "65535u"),
        (7, Value::Int(u32::MAX), "4294967295u"),
        (8, Value::Long(u64::MAX), "18446744073709551615u"),
        (9, Value::Float(21.5), "21.5"),
        (10, Value::Double(0.1), "0.1"),
        (11, Value::Boolean(true), "true"),
        (12, text("open"), "\"open\""),
        (13, Value::Long(1_700_000_000_123), "1700000000123i"),
        (14, text("a b"), "\"a b\""),
        (15, text("9d3a5a1e-8c0f-4a3e"), "\"9d3a5a1e-8c0f-4a3e\""),
    ];
    let metrics = values
        .iter()
        .map(|(number, value, _)| born(&format!("m{number}"), None, *number, value.clone()));
    intake.mqtt(DBIRTH, &payload(Some(1), metrics.collect()));
    let expected = values
        .iter()
        .map(|(number, _, shown)| format!("g/e/device/d/m{number}={shown}"));
    let expected: Vec<String> = expected.collect();
    assert_eq!(news(&fake)[1..], expected);
    assert_eq!(intake.counters().refused_total(), 0);
}

#[test]
fn metrics_that_are_no_scalars_are_counted_and_cost_no_neighbour() {
    let fake = Fake::new();
    let mut intake = intake(&fake);
    let table = schema::DataSet {
        num_of_columns: Some(1),
        columns: vec!["a".to_owned()],
        types: vec![INT32],
    };
    let nested = schema::Template {
        version: Some("1".to_owned()),
        metrics: vec![born("inside", None, INT32, Value::Int(1))],
        template_ref: None,
        is_definition: Some(true),
    };
    let file = Metric {
        metadata: Some(schema::MetaData {
            size: Some(2),
            file_name: Some("a.bin".to_owned()),
        }),
        ..born("File", Some(4), 18, Value::Bytes(vec![0, 255]))
    };
    let described = Metric {
        properties: Some(schema::PropertySet {
            keys: vec!["Quality".to_owned()],
            values: vec![schema::PropertyValue {
                kind: Some(INT32),
                int_value: Some(192),
            }],
        }),
        ..born("Speed", Some(6), INT32, Value::Int(3))
    };
    let metrics = vec![
        born("Set", Some(1), 16, Value::DataSet(table.clone())),
        born("Template", Some(2), 19, Value::Template(nested)),
        born("Bytes", Some(3), 17, Value::Bytes(vec![1])),
        file,
        born("Array", Some(5), 24, Value::Bytes(vec![1, 0, 0, 0])),
        described,
    ];
    intake.mqtt(DBIRTH, &payload(Some(1), metrics));
    assert_eq!(
        news(&fake),
        ["g/e/state/device/d=true", "g/e/device/d/Speed=3i"]
    );
    assert_eq!(refused(&intake)["sparkplug_type"], 5);
    let last = intake.counters().excerpt(Reason::SparkplugType);
    assert_eq!(last, "spBv1.0/g/DBIRTH/e/d Array");
    // Later it is still known as what it is.
    let again = vec![data(1, 0, Value::DataSet(table)), data(6, 0, Value::Int(4))];
    intake.mqtt(DDATA, &payload(Some(2), again));
    assert_eq!(news(&fake), ["g/e/device/d/Speed=4i"]);
    let body = Payload {
        seq: Some(3),
        uuid: Some("SPBV1.0_COMPRESSED".to_owned()),
        body: Some(vec![0x1f, 0x8b]),
        ..Payload::default()
    };
    let outcome = intake.mqtt(DDATA, &body.encode_to_vec());
    assert_eq!(outcome, Outcome::Refused);
    assert_eq!(refused(&intake), BTreeMap::from([("sparkplug_type", 7)]));
}

#[test]
fn each_bad_metric_is_refused_alone_with_its_reason() {
    let fake = Fake::new();
    let mut intake = intake(&fake);
    intake.mqtt(NBIRTH, &node_birth(0));
    news(&fake);
    let null = Metric {
        value: None,
        is_null: Some(true),
        ..data(1, 0, Value::Float(0.0))
    };
    let without = Metric {
        value: None,
        ..data(1, 0, Value::Float(0.0))
    };
    let nameless = Metric {
        alias: None,
        ..data(1, 0, Value::Float(0.0))
    };
    let metrics = vec![
        data(1, 1, Value::Float(1.0)),
        data(99, 0, Value::Float(2.0)),
        Metric {
            datatype: None,
            ..born("Unknown", None, 0, Value::Double(3.0))
        },
        born("Own/Type", None, DOUBLE, Value::Double(4.0)),
        data(1, 0, Value::Text("warm".to_owned())),
        data(1, 0, Value::Float(f32::NAN)),
        data(1, 61_000, Value::Float(5.0)),
        without,
        nameless,
        born("a//b", None, DOUBLE, Value::Double(6.0)),
        born("Note", None, TEXT, Value::Text("x".repeat(65))),
        null,
        data(1, 2, Value::Float(7.0)),
    ];
    // Of these bytes, the last metric is no protobuf.
    let mut bytes = payload(Some(1), metrics);
    bytes.extend_from_slice(&[0x12, 0x02, 0x0a, 0x7f]);
    let outcome = intake.mqtt(NDATA, &bytes);
    assert!(
        matches!(outcome, Outcome::Accepted { lsn_end: 7 }),
        "{outcome:?}"
    );
    assert_eq!(
        news(&fake),
        [
            "g/e/node/Supply Voltage=1",
            "g/e/node/Own/Type=4",
            "g/e/node/Supply Voltage=7",
        ]
    );
    assert_eq!(
        refused(&intake),
        BTreeMap::from([
            ("key_invalid", 1),
            ("not_finite", 1),
            ("payload_invalid", 1),
            ("sparkplug_invalid", 3),
            ("sparkplug_no_birth", 1),
            ("sparkplug_unknown_alias", 1),
            ("time_absurd", 1),
            ("value_too_long", 1),
        ])
    );
    let last = |reason| intake.counters().excerpt(reason);
    assert_eq!(
        last(Reason::SparkplugUnknownAlias),
        "spBv1.0/g/NDATA/e alias 99"
    );
    assert_eq!(
        last(Reason::SparkplugInvalid),
        "spBv1.0/g/NDATA/e metric 13"
    );
}

#[test]
fn messages_of_other_forms_are_refused_and_commands_are_no_readings() {
    let fake = Fake::new();
    let mut intake = intake(&fake);
    let birth = node_birth(0);
    for (topic, payload) in [
        (&b"spBv1.0/g/NBIRTH/e/d"[..], &birth[..]),
        (b"spBv1.0/g/birth/e", &birth),
        (b"spBv1.0/g", &birth),
        (NDATA, b"21.5"),
        (NDATA, b""),
        (NDATA, b"{\"v\": 1}"),
    ] {
        assert_eq!(intake.mqtt(topic, payload), Outcome::Refused);
    }
    assert_eq!(refused(&intake), BTreeMap::from([("sparkplug_invalid", 6)]));
    let long = vec![0x18; (1 << 20) + 1];
    assert_eq!(intake.mqtt(NDATA, &long), Outcome::Refused);
    assert_eq!(refused(&intake)["oversized"], 1);
    for topic in [
        "spBv1.0/g/NCMD/e",
        "spBv1.0/g/DCMD/e/d",
        "spBv1.0/STATE/host",
    ] {
        let outcome = intake.mqtt(topic.as_bytes(), b"{\"online\": true}");
        assert_eq!(outcome, Outcome::Accepted { lsn_end: 0 });
    }
    assert_eq!(news(&fake), Vec::<String>::new());
    assert_eq!(intake.counters().refused_total(), 7);
}

#[test]
fn a_death_is_a_reading_and_ends_its_birth() {
    let fake = Fake::new();
    let mut intake = intake(&fake);
    intake.mqtt(NBIRTH, &node_birth(4));
    intake.mqtt(DBIRTH, &device_birth(1));
    news(&fake);
    intake.mqtt(DDEATH, &payload(Some(2), Vec::new()));
    assert_eq!(news(&fake), ["g/e/state/device/d=false"]);
    intake.mqtt(
        DDATA,
        &payload(Some(3), vec![data(10, 0, Value::Boolean(true))]),
    );
    assert_eq!(news(&fake), Vec::<String>::new());
    intake.mqtt(DBIRTH, &device_birth(4));
    news(&fake);
    // The will of the connection before this one comes late.
    intake.mqtt(NDEATH, &payload(None, vec![session(3)]));
    assert_eq!(news(&fake), Vec::<String>::new());
    intake.mqtt(
        NDATA,
        &payload(Some(5), vec![data(1, 0, Value::Float(1.0))]),
    );
    assert_eq!(news(&fake), ["g/e/node/Supply Voltage=1"]);
    let outcome = intake.mqtt(NDEATH, &payload(None, vec![session(4)]));
    assert!(matches!(outcome, Outcome::Accepted { lsn_end } if lsn_end > 0));
    assert_eq!(
        news(&fake),
        ["g/e/state/node=false", "g/e/state/device/d=false"]
    );
    let outcome = intake.mqtt(
        NDATA,
        &payload(Some(6), vec![data(1, 0, Value::Float(1.0))]),
    );
    assert_eq!(outcome, Outcome::Refused);
    assert_eq!(refused(&intake)["sparkplug_unknown_alias"], 2);
    let node = &intake.edge_nodes()[0];
    assert_eq!(node.state, EdgeNodeState::Dead);
    assert_eq!((node.deaths, node.deaths_of_earlier), (1, 1));
    // The state has the time of the node, which the broker's will does not know.
    intake.mqtt(NBIRTH, &node_birth(5));
    assert_eq!(fake.puts()[0].2, None);
    assert_eq!(intake.edge_nodes()[0].state, EdgeNodeState::Alive);
}

#[test]
fn a_birth_is_asked_for_only_where_that_is_allowed() {
    for rebirth in [false, true] {
        let fake = Fake::new();
        let mut intake = Intake::new(options(rule(KEY, rebirth)), Arc::clone(&fake));
        for seq in 5..8 {
            let metrics = vec![data(1, 0, Value::Float(1.0))];
            intake.mqtt(NDATA, &payload(Some(seq), metrics));
        }
        let node = &intake.edge_nodes()[0];
        assert_eq!(node.state, EdgeNodeState::Unborn);
        assert!(node.lacks_birth && !node.has_gap);
        assert_eq!(node.rebirths_asked, u64::from(rebirth));
        let asked = intake.outgoing();
        assert_eq!(asked.is_some(), rebirth);
        if let Some(asked) = asked {
            assert_eq!(asked.topic, "spBv1.0/g/NCMD/e");
            let command = Payload::decode(&asked.payload[..]).unwrap();
            let [metric] = &command.metrics[..] else {
                panic!("{command:?}");
            };
            assert_eq!(metric.name.as_deref(), Some("Node Control/Rebirth"));
            assert_eq!(metric.value, Some(Value::Boolean(true)));
            assert_eq!((metric.datatype, command.seq), (Some(BOOLEAN), None));
            assert_eq!(command.timestamp, Some(NOW));
        }
        assert_eq!(intake.outgoing(), None);
        intake.mqtt(NBIRTH, &node_birth(0));
        let node = &intake.edge_nodes()[0];
        assert!(!node.lacks_birth && node.births == 1);
        // Messages that are missing may have held a birth.
        intake.mqtt(
            NDATA,
            &payload(Some(9), vec![data(1, 0, Value::Float(2.0))]),
        );
        let node = &intake.edge_nodes()[0];
        assert!(node.has_gap && node.gaps == 1);
        assert_eq!(fake.texts().pop().unwrap(), "g/e/node/Supply Voltage=2");
    }
}

#[test]
fn times_come_from_metrics_also_for_historical_ones() {
    let fake = Fake::new();
    let mut intake = intake(&fake);
    intake.mqtt(NBIRTH, &node_birth(0));
    news(&fake);
    let timed = |timestamp, is_historical| Metric {
        timestamp,
        is_historical,
        ..data(1, 0, Value::Float(1.0))
    };
    let metrics = vec![
        timed(Some(NOW - 5_000), Some(true)),
        timed(Some(NOW - 7), None),
        timed(None, None),
        // The time of the message would make it look new.
        timed(None, Some(true)),
        timed(Some(u64::MAX), None),
        timed(Some(0), None),
    ];
    intake.mqtt(NDATA, &payload(Some(1), metrics));
    let puts = fake.puts();
    let times: Vec<String> = puts.iter().map(|put| format!("{:?}", put.2)).collect();
    let expected = [NOW_MS - 5_000, NOW_MS - 7, NOW_MS];
    assert_eq!(times.len(), expected.len());
    for (time, expected) in times.iter().zip(expected) {
        assert!(time.contains(&expected.to_string()), "{time}");
    }
    assert_eq!(
        refused(&intake),
        BTreeMap::from([("sparkplug_invalid", 1), ("time_absurd", 2)])
    );
}

#[test]
fn a_value_of_the_past_is_history_and_not_the_current_one() {
    let clock = SimClock::new(3);
    clock.set_wall_ms(NOW_MS);
    clock.set_wall_trusted(true);
    let manual = DbOptions {
        commit_driver: CommitDriver::Manual,
        ..DbOptions::default()
    };
    let database = Database::open(MemoryStore::new(), Arc::new(clock.clone()), manual).unwrap();
    let rules = KeyRules {
        auto_create: true,
        ..KeyRules::default()
    };
    let node = NodeDestination::new(Arc::new(database), Arc::new(clock), rules);
    let node = Arc::new(node);
    let mut intake = Intake::new(options(rule(KEY, false)), Arc::clone(&node));
    intake.mqtt(NBIRTH, &node_birth(0));
    let past = Metric {
        timestamp: Some(NOW - 9_000),
        is_historical: Some(true),
        ..data(1, 0, Value::Float(3.0))
    };
    let outcome = intake.mqtt(NDATA, &payload(Some(1), vec![past]));
    assert!(matches!(outcome, Outcome::Accepted { .. }), "{outcome:?}");
    let database = node.database();
    let id = database.lookup("g/e/node/Supply Voltage").unwrap();
    let mut buffer = [0; 64];
    let got = database.get(id, &mut buffer).unwrap();
    let current = db::value::Value::decode(&buffer[..got.value_bytes]);
    assert_eq!(current, Some(db::value::Value::Float(12.5)));
    assert_eq!(database.stats().outdated, 1);
}

#[test]
fn retained_messages_teach_nothing() {
    let fake = Fake::new();
    let mut intake = intake(&fake);
    intake.mqtt_retained(NBIRTH, &node_birth(0));
    // Readings with their own times are taken as always. States and aliases are of an earlier time, and are ignored.
    assert_eq!(fake.with(|inner| inner.retained), 3);
    assert!(intake.edge_nodes().is_empty());
    news(&fake);
    intake.mqtt(
        NDATA,
        &payload(Some(1), vec![data(1, 0, Value::Float(1.0))]),
    );
    intake.mqtt(NBIRTH, &node_birth(0));
    news(&fake);
    let stale = payload(Some(1), vec![data(1, 0, Value::Float(1.0))]);
    intake.mqtt_retained(NDATA, &stale);
    intake.mqtt_retained(NDEATH, &payload(None, vec![session(0)]));
    assert_eq!(news(&fake), Vec::<String>::new());
    assert_eq!(
        refused(&intake),
        BTreeMap::from([("sparkplug_unknown_alias", 2)])
    );
    assert_eq!(intake.edge_nodes()[0].state, EdgeNodeState::Alive);
}

#[test]
fn a_message_that_waits_goes_on_where_it_stopped() {
    let whole = Fake::new();
    let mut intake_whole = intake(&whole);
    let messages = [
        (NBIRTH, node_birth(0)),
        (DBIRTH, device_birth(1)),
        (NDEATH, payload(None, vec![session(0)])),
    ];
    for (topic, payload) in &messages {
        intake_whole.mqtt(topic, payload);
    }
    for room in 0..4 {
        let fake = Fake::new();
        let mut intake = intake(&fake);
        for (topic, payload) in &messages {
            fake.with(|inner| inner.room = room);
            let mut waits = 0;
            while let Outcome::Wait { consumed, .. } = intake.mqtt(topic, payload) {
                assert_eq!(consumed, 0);
                waits += 1;
            }
            assert!(waits <= 1);
        }
        assert_eq!(fake.texts(), whole.texts(), "{room}");
        assert_eq!(intake.edge_nodes(), intake_whole.edge_nodes());
        assert_eq!(intake.counters().messages(), 3);
    }
}

#[test]
fn a_message_that_waits_begins_anew_after_rules_without_sparkplug() {
    let fake = Fake::new();
    let mut intake = Intake::new(options(rule(KEY, true)), Arc::clone(&fake));
    let unknown = payload(Some(7), vec![data(1, 0, Value::Float(1.0))]);
    intake.mqtt(NDATA, &unknown);
    intake.reload(options(rule(KEY, false)));
    assert_eq!(intake.outgoing(), None, "no longer allowed");
    fake.with(|inner| inner.room = 2);
    let waits = intake.mqtt(NBIRTH, &node_birth(0));
    assert!(matches!(waits, Outcome::Wait { .. }), "{waits:?}");
    let taken = news(&fake);
    intake.reload(IntakeOptions::default());
    intake.reload(options(rule(KEY, false)));
    intake.mqtt(NBIRTH, &node_birth(0));
    let all = news(&fake);
    assert_eq!((taken.as_slice(), all.len()), (&all[..2], 4));
    assert_eq!(intake.counters().refused_total(), 1);
}

#[test]
fn names_stay_over_a_reload_and_a_lossy_template_mixes_nothing() {
    let fake = Fake::new();
    let mut intake = intake(&fake);
    intake.mqtt(NBIRTH, &node_birth(0));
    intake.mqtt(DBIRTH, &device_birth(1));
    let other = payload(
        Some(2),
        vec![born("Inputs/A", Some(20), BOOLEAN, Value::Boolean(true))],
    );
    intake.mqtt(b"spBv1.0/g/DBIRTH/e/f", &other);
    news(&fake);
    intake.reload(options(rule("all/{metric}", false)));
    let changed = |alias| payload(None, vec![data(alias, 0, Value::Boolean(false))]);
    intake.mqtt(DDATA, &changed(10));
    intake.mqtt(b"spBv1.0/g/DDATA/e/f", &changed(20));
    assert_eq!(news(&fake), ["all/Inputs/A=false"]);
    assert_eq!(refused(&intake), BTreeMap::from([("key_shared", 1)]));
}
