//! The body of the fuzz target of messages of Sparkplug.
//!
//! **Holds:** one function. It checks the conditions for any input, and panics if one is violated.
//!
//! **Must not know:** the fuzzer. A test of `ingest` includes this file and runs the committed corpus through it on the
//! stable toolchain.
//!
//! **Invariants:** the function depends on its input alone.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use db::Time;
use db::value::Value;
use ingest::intake::{
    Destination, EDGE_NODE_DEVICES_SHOWN, Intake, IntakeOptions, LogGone, Outcome, PayloadKind,
    PutError, Reason, Retained, SPARKPLUG_DEVICES_MAX, SPARKPLUG_METRICS_PER_KEY,
    SPARKPLUG_NODES_MAX, SparkplugRule, SubscriptionRule, Template, TemplateKind, check_key,
};

/// 2026-06-01.
const NOW_MS: i64 = 1_780_272_000_000;
const VALUE_BYTES_MAX: usize = 40;
/// So few that births find no room for their names.
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

/// Messages of edge nodes. However often a message has to wait, the readings and the refusals are the same; a refused
/// message puts nothing; what is known of edge nodes stays within its limits, and what is sent are commands to nodes
/// that a message has come of. The first byte chooses where to wait. Each message has a byte for its topic (0x80: the
/// broker had retained it) and two for the length of its payload.
pub fn sparkplug(data: &[u8]) {
    let Some((&halt, mut rest)) = data.split_first() else {
        return;
    };
    let (plain, halting) = (Store::new(0), Store::new(usize::from(halt)));
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
        let taken = plain.lock().puts.len() - before.0;
        match first {
            Outcome::Accepted { lsn_end } if taken > 0 => {
                assert_eq!(lsn_end, plain.lock().puts.len() as u64);
            }
            Outcome::Accepted { lsn_end } => assert_eq!(lsn_end, 0),
            Outcome::Refused => {
                assert_eq!(taken, 0);
                assert!(one.counters().refused_total() > before.1);
            }
            Outcome::Wait { .. } | Outcome::Failed => panic!("{first:?}"),
        }
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

type Put = (String, Vec<u8>, Option<Time>);

/// Takes every reading, but after each `halt` puts the next one must wait once; 0: none must wait.
struct Store {
    halt: usize,
    inner: Mutex<StoreInner>,
}

#[derive(Default)]
struct StoreInner {
    keys: Vec<String>,
    owners: db::Owners,
    puts: Vec<Put>,
    since: usize,
}

impl Store {
    fn new(halt: usize) -> Arc<Self> {
        let inner = Mutex::default();
        Arc::new(Self { halt, inner })
    }

    fn lock(&self) -> MutexGuard<'_, StoreInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Destination for Store {
    fn resolve(&self, key: &str) -> Result<u32, Reason> {
        assert_eq!(check_key(key), Ok(()));
        let mut inner = self.lock();
        if let Some(place) = inner.keys.iter().position(|known| known == key) {
            return Ok(place as u32);
        }
        if inner.keys.len() >= 16 * KEYS_MAX {
            return Err(Reason::KeysMax);
        }
        inner.keys.push(key.to_owned());
        Ok(inner.keys.len() as u32 - 1)
    }

    fn resolve_for(
        &self,
        key: &str,
        owner: ingest::intake::KeyOwner<'_>,
        first: &mut String,
    ) -> Result<u32, Reason> {
        let object = self.resolve(key)?;
        let (own, relatives) = (owner.of(object), owner.relatives);
        let claimed = self.lock().owners.claim_beside(&own, relatives);
        claimed.map_err(|other| {
            *first = other;
            Reason::KeyShared
        })?;
        Ok(object)
    }

    fn put(&self, object: u32, value: &[u8], time: Option<Time>) -> Result<u64, PutError> {
        assert!(value.len() <= VALUE_BYTES_MAX);
        match Value::decode(value) {
            Some(Value::Float(value)) => assert!(value.is_finite()),
            Some(_) => {}
            None => panic!("no value: {value:?}"),
        }
        if let Some(time) = time {
            assert!((time.ms() - NOW_MS).abs() <= 86_400_000);
        }
        let mut inner = self.lock();
        if self.halt > 0 && inner.since >= self.halt {
            inner.since = 0;
            return Err(PutError::Wait { full: false });
        }
        inner.since += 1;
        let key = inner.keys[object as usize].clone();
        // The state of an edge node or device is a truth value; its key is nobody else's.
        if key.starts_with("g/e/state/") || key.starts_with("g/h/state/") {
            assert!(matches!(Value::decode(value), Some(Value::Boolean(_))));
            assert_eq!(time, None);
        }
        inner.puts.push((key, value.to_vec(), time));
        Ok(inner.puts.len() as u64 - 1)
    }

    fn put_retained(&self, object: u32, value: &[u8], time: Option<Time>) -> Result<u64, PutError> {
        self.put(object, value, time)
    }

    fn durable_end(&self) -> u64 {
        self.lock().puts.len() as u64
    }

    fn wait_durable_past(&self, _seen: u64, _timeout: Duration) -> Result<u64, LogGone> {
        Ok(self.durable_end())
    }

    fn wall_ms(&self) -> i64 {
        NOW_MS
    }

    fn wall_trusted(&self) -> bool {
        true
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
