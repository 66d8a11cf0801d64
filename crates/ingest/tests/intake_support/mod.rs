//! A destination that records what it was given and behaves as a test tells it.

#![allow(dead_code)]

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use db::Time;
use db::value::Value;
use ingest::intake::{
    Destination, Intake, IntakeOptions, JsonRule, KeyOwner, LogGone, Outcome, PayloadKind,
    PutError, Reason, Retained, SubscriptionRule, Template, TemplateKind,
};

/// 2026-06-01T00:00:00Z.
pub const NOW_MS: i64 = 1_780_272_000_000;

#[derive(Debug, Default)]
pub struct Inner {
    pub keys: Vec<String>,
    pub owners: db::Owners,
    pub unknown: Vec<String>,
    pub keys_max: usize,
    /// Key, printed value with its kind, time.
    pub puts: Vec<(String, String, Option<Time>)>,
    /// Number of `puts` that are marked as retained.
    pub retained: u64,
    /// How many puts are accepted before one must wait; then it is reset to none.
    pub room: usize,
    /// Whether every put must wait.
    pub stuck: bool,
    pub full: bool,
    pub failed: bool,
    pub durable_end: u64,
    pub durable_at_once: bool,
    pub trusted: bool,
    pub resolved: u64,
    /// Whether puts are not recorded.
    pub forget: bool,
    pub next_lsn: u64,
}

#[derive(Debug)]
pub struct Fake {
    inner: Mutex<Inner>,
    moved: Condvar,
}

impl Fake {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::new(Inner {
                room: usize::MAX,
                keys_max: 1000,
                durable_at_once: true,
                trusted: true,
                ..Inner::default()
            }),
            moved: Condvar::new(),
        })
    }

    pub fn with<R>(&self, change: impl FnOnce(&mut Inner) -> R) -> R {
        let result = change(&mut self.inner.lock().unwrap());
        self.moved.notify_all();
        result
    }

    /// Returns everything that was put, with times in ms.
    pub fn puts(&self) -> Vec<(String, String, Option<i64>)> {
        let puts = self.with(|inner| inner.puts.clone());
        let in_ms = |(key, value, time): (_, _, Option<Time>)| (key, value, time.map(Time::ms));
        puts.into_iter().map(in_ms).collect()
    }

    /// Returns the times of everything that was put, in ns.
    pub fn times_ns(&self) -> Vec<Option<i64>> {
        self.with(|inner| inner.puts.iter().map(|put| put.2.map(Time::ns)).collect())
    }

    /// Returns `key=value` of everything that was put.
    pub fn texts(&self) -> Vec<String> {
        let puts = self.puts();
        puts.iter()
            .map(|(key, value, _)| format!("{key}={value}"))
            .collect()
    }
}

/// Shows a value with its kind, so that 1, 1i and "1" differ.
pub fn show(value: &[u8]) -> String {
    match Value::decode(value) {
        Some(value @ Value::Float(_)) => format!("{value}"),
        Some(value @ Value::Integer(_)) => format!("{value}i"),
        Some(value @ Value::Unsigned(_)) => format!("{value}u"),
        Some(value @ Value::Boolean(_)) => format!("{value}"),
        Some(value @ Value::Text(_)) => format!("\"{value}\""),
        None => format!("{value:?}"),
    }
}

impl Destination for Fake {
    fn resolve(&self, key: &str) -> Result<u32, Reason> {
        self.with(|inner| {
            inner.resolved += 1;
            if inner.unknown.iter().any(|unknown| unknown == key) {
                return Err(Reason::KeyUnknown);
            }
            let place = inner.keys.iter().position(|known| known == key);
            if place.is_none() && inner.keys.len() >= inner.keys_max {
                return Err(Reason::KeysMax);
            }
            let place = place.unwrap_or_else(|| {
                inner.keys.push(key.to_owned());
                inner.keys.len() - 1
            });
            Ok(u32::try_from(place).unwrap())
        })
    }

    fn resolve_for(
        &self,
        key: &str,
        owner: KeyOwner<'_>,
        first: &mut String,
    ) -> Result<u32, Reason> {
        let object = self.resolve(key)?;
        let (own, relatives) = (owner.of(object), owner.relatives);
        let claimed = self.with(|inner| inner.owners.claim_beside(&own, relatives));
        claimed.map_err(|other| {
            *first = other;
            Reason::KeyShared
        })?;
        Ok(object)
    }

    fn put(&self, object: u32, value: &[u8], time: Option<Time>) -> Result<u64, PutError> {
        self.with(|inner| {
            if inner.failed {
                return Err(PutError::Failed);
            }
            if inner.stuck {
                return Err(PutError::Wait { full: inner.full });
            }
            if inner.room == 0 {
                inner.room = usize::MAX;
                return Err(PutError::Wait { full: inner.full });
            }
            if inner.room != usize::MAX {
                inner.room -= 1;
            }
            if !inner.forget {
                let key = inner.keys[object as usize].clone();
                inner.puts.push((key, show(value), time));
            }
            let lsn = inner.next_lsn;
            inner.next_lsn += 1;
            if inner.durable_at_once {
                inner.durable_end = inner.next_lsn;
            }
            Ok(lsn)
        })
    }

    fn put_retained(&self, object: u32, value: &[u8], time: Option<Time>) -> Result<u64, PutError> {
        let lsn = self.put(object, value, time)?;
        self.with(|inner| inner.retained += 1);
        Ok(lsn)
    }

    fn durable_end(&self) -> u64 {
        self.with(|inner| inner.durable_end)
    }

    fn wait_durable_past(&self, seen: u64, timeout: Duration) -> Result<u64, LogGone> {
        let still = |inner: &mut Inner| inner.durable_end <= seen && !inner.failed;
        let guard = self.inner.lock().unwrap();
        let (inner, _) = self
            .moved
            .wait_timeout_while(guard, timeout, still)
            .unwrap();
        if inner.failed {
            Err(LogGone)
        } else {
            Ok(inner.durable_end)
        }
    }

    fn wall_ms(&self) -> i64 {
        NOW_MS
    }

    fn wall_trusted(&self) -> bool {
        self.with(|inner| inner.trusted)
    }
}

pub fn topic_rule(filter: &str, key: &str, payload: PayloadKind) -> SubscriptionRule {
    SubscriptionRule {
        filter: filter.to_owned(),
        key: Template::parse(key, TemplateKind::TopicAndLine).unwrap(),
        payload,
        retained: Retained::default(),
    }
}

pub fn json(field: &str, time_field: Option<&str>) -> PayloadKind {
    PayloadKind::Json(JsonRule::one(field, time_field))
}

/// `n/#` numbers, `j/#` JSON with `v` and the time `t`, `k/#` JSON with `a.b` and no time, `l/#` lines.
pub fn options() -> IntakeOptions {
    IntakeOptions {
        subscriptions: vec![
            topic_rule("n/#", "{topic}", PayloadKind::Number),
            topic_rule("j/+", "{topic}", json("v", Some("t"))),
            topic_rule("k/+", "{2}/k", json("a.b", None)),
            topic_rule("l/#", "{2}/{measurement}/{tags}/{field}", PayloadKind::Line),
        ],
        past_days_max: 30,
        future_seconds_max: 60,
        ..IntakeOptions::default()
    }
}

pub fn intake(fake: &Arc<Fake>) -> Intake<Fake> {
    Intake::new(options(), Arc::clone(fake))
}

/// Returns the refusals, by reason; reasons without any are left out.
pub fn refused(intake: &Intake<Fake>) -> BTreeMap<&'static str, u64> {
    let counters = intake.counters();
    Reason::ALL
        .iter()
        .map(|reason| (reason.name(), counters.refused(*reason)))
        .filter(|(_, count)| *count > 0)
        .collect()
}

/// Offers a message until it is finished; the destination makes room each time.
pub fn offer(intake: &mut Intake<Fake>, topic: &[u8], payload: &[u8]) -> Outcome {
    let mut rest = payload;
    loop {
        match intake.mqtt(topic, rest) {
            Outcome::Wait { consumed, .. } => rest = &rest[consumed..],
            outcome => return outcome,
        }
    }
}
