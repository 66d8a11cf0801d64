//! The body of the fuzz target of messages of Sparkplug.
//!
//! **Holds:** one function. It checks the conditions for any input, and panics if one is violated.
//!
//! **Must not know:** the fuzzer. A test of `ingest` includes this file and runs the committed corpus through it on the
//! stable toolchain.
//!
//! **Invariants:** the function depends on its input alone.

use std::collections::BTreeSet;
use std::sync::Arc;

use db::value::Value;
use ingest::intake::{
    EDGE_NODE_DEVICES_SHOWN, Intake, IntakeOptions, Outcome, PayloadKind, Reason, Retained,
    SPARKPLUG_DEVICES_MAX, SPARKPLUG_METRICS_PER_KEY, SPARKPLUG_NODES_MAX, SparkplugRule,
    SubscriptionRule, Template, TemplateKind,
};

use super::intake_store::{Put, Store, VALUE_BYTES_MAX, check_outcome};

/// Low enough that births find no room for their names.
const KEYS_MAX: usize = 4;

const TOPICS: [&[u8]; 16] = [
    b"spBv1.0/g/NBIRTH/e",
    b"spBv1.0/g/NDATA/e",
    b"spBv1.0/g/NDEATH/e",
    b"spBv1.0/g/DBIRTH/e/d",
    b"spBv1.0/g/DDATA/e/d",
    b"spBv1.0/g/DDEATH/e/d",
    b"spBv1.0/g/DBIRTH/e/f",
    b"spBv1.0/g/DDATA/e/f",
    b"spBv1.0/g/NBIRTH/h",
    b"spBv1.0/g/NDATA/h",
    b"spBv1.0/g/NCMD/e",
    b"spBv1.0/STATE/host",
    b"spBv1.0/g/NDATA/e/d",
    b"spBv1.0/g/NBIRTH/\n",
    b"spBv1.0/g/NDATA/\xff",
    b"spBv1.0/x",
];

/// Messages of edge nodes. The readings and the refusals are the same however often a message has to wait. A refused
/// message puts nothing. What is known of edge nodes stays within its limits. Commands go only to nodes from which a
/// message has come. The first byte chooses where to wait. Each message has a byte for its topic (0x80: the broker had
/// retained it) and two for the length of its payload.
pub fn sparkplug(data: &[u8]) {
    let Some((&halt, mut rest)) = data.split_first() else {
        return;
    };
    let (plain, halting) = (store(0), store(usize::from(halt)));
    let (mut one, mut other) = (intake(&plain), intake(&halting));
    let mut sent = BTreeSet::new();
    while let Some((&[topic, low, high], tail)) = rest.split_first_chunk::<3>() {
        let length = usize::from(u16::from_le_bytes([low, high])).min(tail.len());
        let (payload, after) = tail.split_at(length);
        rest = after;
        let is_retained = topic & 0x80 != 0;
        let topic = TOPICS[usize::from(topic) % TOPICS.len()];
        let before = (plain.lock().puts.len(), one.counters().refused_total());
        let first = offer(&mut one, topic, payload, is_retained);
        let second = offer(&mut other, topic, payload, is_retained);
        assert_eq!(first, second);
        check_outcome(first, &plain, &one, before);
        check_known(&one);
        while let Some(outgoing) = one.outgoing() {
            assert_eq!(other.outgoing().as_ref(), Some(&outgoing));
            // The clock stands still here, so each is asked once.
            assert!(sent.insert(outgoing.topic), "asked twice");
            assert!(!outgoing.payload.is_empty());
        }
        assert_eq!(other.outgoing(), None);
    }
    assert!(
        sent.iter()
            .all(|topic| ["spBv1.0/g/NCMD/e", "spBv1.0/g/NCMD/h"].contains(&topic.as_str())),
        "{sent:?}"
    );
    plain.lock().puts.iter().for_each(check_state);
    assert_eq!(plain.lock().puts, halting.lock().puts);
    assert_eq!(one.edge_nodes(), other.edge_nodes());
    for reason in Reason::ALL {
        let (one, other) = (one.counters(), other.counters());
        assert_eq!(one.refused(reason), other.refused(reason), "{reason:?}");
        assert!(one.excerpt(reason).len() <= ingest::intake::EXCERPT_SHARED_BYTES_MAX);
    }
}

fn check_known(intake: &Intake<Store>) {
    let nodes = intake.edge_nodes();
    assert!(nodes.len() <= SPARKPLUG_NODES_MAX);
    let sum = |of: fn(&ingest::intake::EdgeNodeFigures) -> u64| nodes.iter().map(of).sum::<u64>();
    assert!(sum(|node| node.metrics) <= (KEYS_MAX * SPARKPLUG_METRICS_PER_KEY) as u64);
    assert!(sum(|node| node.devices) <= SPARKPLUG_DEVICES_MAX as u64);
    for node in &nodes {
        assert!(node.devices_dead <= node.devices);
        assert!(node.devices_dead_first.len() <= EDGE_NODE_DEVICES_SHOWN);
        assert!(node.deaths <= node.births + 1);
    }
}

fn store(halt: usize) -> Arc<Store> {
    Store::new(halt, 16 * KEYS_MAX, |_| true)
}

/// The state of an edge node or device is a truth value without a time, under a key of its own.
fn check_state((key, value, time): &Put) {
    if key.starts_with("g/e/state/") || key.starts_with("g/h/state/") {
        assert!(matches!(Value::decode(value), Some(Value::Boolean(_))));
        assert_eq!(*time, None);
    }
}

fn intake(store: &Arc<Store>) -> Intake<Store> {
    // A constant template, checked by the first run.
    let key = Template::parse("{group}/{edge}/{place}/{metric}", TemplateKind::Sparkplug);
    let options = IntakeOptions {
        subscriptions: vec![SubscriptionRule {
            filter: "spBv1.0/#".to_owned(),
            key: key.unwrap_or_else(|error| panic!("{error}")),
            payload: PayloadKind::Sparkplug(SparkplugRule { rebirth: true }),
            retained: Retained::Timed,
        }],
        value_bytes_max: VALUE_BYTES_MAX,
        future_seconds_max: 86_400,
        past_days_max: 1,
        topics_cached_max: KEYS_MAX,
        ..IntakeOptions::default()
    };
    Intake::new(options, Arc::clone(store))
}

fn offer(intake: &mut Intake<Store>, topic: &[u8], payload: &[u8], is_retained: bool) -> Outcome {
    loop {
        let outcome = match is_retained {
            true => intake.mqtt_retained(topic, payload),
            false => intake.mqtt(topic, payload),
        };
        match outcome {
            Outcome::Wait { consumed, .. } => assert_eq!(consumed, 0),
            outcome => return outcome,
        }
    }
}
