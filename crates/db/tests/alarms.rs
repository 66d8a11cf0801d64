//! Alarms of a whole database compared with a plain model: every kind of input, elapsed time, a ring that is too small.

use std::collections::BTreeMap;

use crate::common::{open, sim_clock, small_options};
use db::value::Value;
use db::{
    AlarmCondition, AlarmRule, AlarmTransition, AlarmValue, Database, DbOptions, Durability,
    MemoryStore, ObjectId, ObjectSpec, SegmentStore, TogetherReading,
};
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const KEYS: [&str; 5] = ["a/0", "a/1", "b/0", "b/1/x", "c"];

fn options() -> DbOptions {
    DbOptions {
        queue_bytes_max: 1 << 20,
        segment_bytes_max: 1 << 20,
        checkpoint_bytes: 1 << 20,
        ..small_options()
    }
}

fn rule(pattern: &str, condition: AlarmCondition) -> AlarmRule {
    AlarmRule {
        pattern: pattern.to_owned(),
        condition,
        objects_max: 100,
    }
}

fn above(threshold: f64, clear: f64, raise_after_ms: u64) -> AlarmCondition {
    AlarmCondition::Above {
        threshold,
        clear,
        raise_after_ms,
    }
}

fn declare<S: SegmentStore>(db: &Database<S>, key: &str) -> ObjectId {
    let spec = ObjectSpec {
        key,
        avi_ms: 1000,
        temporal: true,
    };
    db.declare(&spec).expect("declared")
}

fn put<S: SegmentStore>(db: &Database<S>, id: ObjectId, value: Value<'_>, time_ms: i64) {
    let mut stored = [0; 64];
    let length = value.encode(&mut stored).expect("it fits");
    db.put(
        id,
        &stored[..length],
        db::Time::from_ms(time_ms),
        Durability::Batched,
    )
    .expect("taken");
}

fn all<S: SegmentStore>(db: &Database<S>) -> Vec<AlarmTransition> {
    std::iter::from_fn(|| db.next_alarm()).collect()
}

fn changes<S: SegmentStore>(db: &Database<S>) -> Vec<(u32, u32, bool)> {
    let told = all(db).into_iter();
    told.map(|one| (one.rule, one.object.0, one.raised))
        .collect()
}

#[test]
fn a_full_store_silences_no_alarm() {
    let clock = sim_clock();
    let mut store = MemoryStore::new();
    store.set_capacity_bytes(40_000);
    let small = DbOptions {
        checkpoint_bytes: 1 << 20,
        ..small_options()
    };
    let db = open(store, &clock, small);
    let id = declare(&db, "hall/1/temperature");
    let stale = AlarmCondition::Stale { after_ms: 1000 };
    let rules = [rule("#", above(60.0, 55.0, 0)), rule("#", stale)];
    db.set_alarms(&rules, 16).expect("set");
    let mut time_ms = 1000;
    let mut offer = |value| {
        time_ms += 1;
        let mut bytes = [0; 16];
        let length = Value::Float(value).encode(&mut bytes).expect("room");
        let put = db.put(
            id,
            &bytes[..length],
            db::Time::from_ms(time_ms),
            Durability::Now,
        );
        let _ = db.pump();
        put.is_ok()
    };
    while offer(20.0) {}
    assert!(db.stats().full);
    assert!(changes(&db).is_empty());
    assert!(!offer(61.0));
    assert_eq!(changes(&db), [(0, id.0, true)]);
    // A sensor that sends is not silent, whether its readings are kept or not.
    for _ in 0..5 {
        clock.advance_ns(500 * MS);
        db.scan_alarms();
        assert!(!offer(62.0));
    }
    assert!(changes(&db).is_empty());
    assert!(!offer(50.0));
    assert_eq!(changes(&db), [(0, id.0, false)]);
}

#[test]
fn a_retained_reading_is_compared_but_ends_no_staleness() {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, options());
    let id = declare(&db, "hall/1/temperature");
    let stale = AlarmCondition::Stale { after_ms: 1000 };
    let rules = [rule("#", above(60.0, 55.0, 0)), rule("#", stale)];
    db.set_alarms(&rules, 16).expect("set");
    let mut bytes = [0; 16];
    let length = Value::Float(61.0).encode(&mut bytes).expect("room");
    let value = &bytes[..length];
    let retained = |time_ms: Option<i64>| {
        db.put_retained(
            id,
            value,
            time_ms.map(db::Time::from_ms),
            Durability::Batched,
        )
        .expect("taken");
        db.scan_alarms();
        changes(&db)
    };
    clock.advance_ns(900 * MS);
    assert_eq!(retained(None), [(0, id.0, true)]);
    // Neither that reading nor the next ones start the time of silence again.
    clock.advance_ns(200 * MS);
    assert_eq!(retained(None), [(1, id.0, true)]);
    assert!(retained(Some(1_700_000_000_000)).is_empty());
    db.put_now(id, value, Durability::Batched).expect("taken");
    assert_eq!(changes(&db), [(1, id.0, false)]);
}

#[test]
fn a_card_that_stalls_silences_no_alarm() {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, options());
    let id = declare(&db, "hall/1/temperature");
    let stale = AlarmCondition::Stale { after_ms: 1000 };
    let rules = [rule("#", above(60.0, 55.0, 0)), rule("#", stale)];
    db.set_alarms(&rules, 16).expect("set");
    let mut time_ms = 1000;
    // Nothing is committed, so the queue fills.
    let mut offer = |value| {
        time_ms += 1;
        let mut bytes = [0; 16];
        let length = Value::Float(value).encode(&mut bytes).expect("room");
        db.put(
            id,
            &bytes[..length],
            db::Time::from_ms(time_ms),
            Durability::Batched,
        )
    };
    while offer(20.0).is_ok() {}
    assert!(changes(&db).is_empty());
    assert!(matches!(offer(61.0), Err(db::Error::Busy)));
    assert_eq!(changes(&db), [(0, id.0, true)]);
    for _ in 0..5 {
        clock.advance_ns(500 * MS);
        db.scan_alarms();
        assert!(matches!(offer(62.0), Err(db::Error::Busy)));
    }
    assert!(changes(&db).is_empty());
    assert!(matches!(offer(50.0), Err(db::Error::Busy)));
    assert_eq!(changes(&db), [(0, id.0, false)]);
}

#[test]
fn thresholds_are_judged_by_the_put_itself() {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, options());
    let early = declare(&db, "hall/1/temperature");
    db.set_alarms(
        &[
            rule("hall/+/temperature", above(60.0, 55.0, 0)),
            rule(
                "hall/#",
                AlarmCondition::Below {
                    threshold: 5.0,
                    clear: 5.0,
                    raise_after_ms: 0,
                },
            ),
        ],
        16,
    )
    .expect("set");
    // One declared later, and one that no rule matches.
    let late = declare(&db, "hall/2/temperature");
    let other = declare(&db, "cellar/temperature");
    for id in [early, late, other] {
        put(&db, id, Value::Float(61.5), 1000);
    }
    let told = all(&db);
    assert_eq!(told.len(), 2);
    assert_eq!(
        (
            told[0].rule,
            told[0].object,
            told[0].raised,
            told[0].value,
            told[0].time.ms()
        ),
        (0, early, true, Some(AlarmValue::Float(61.5)), 1000)
    );
    // Between the thresholds; then back; then below the lower one, all at once.
    put(&db, early, Value::Integer(57), 1001);
    assert!(changes(&db).is_empty());
    let active = db.active_alarms(10);
    assert_eq!(
        active
            .iter()
            .map(|one| (one.rule, one.object))
            .collect::<Vec<_>>(),
        [(0, early), (0, late)]
    );
    assert_eq!(db.active_alarms(1).len(), 1);
    put(&db, early, Value::Boolean(true), 1002);
    // The states of an object are judged in the order of the latest rule first.
    assert_eq!(changes(&db), [(1, early.0, true), (0, early.0, false)]);
    // An older reading, a value that is no number, and a refused reading change nothing.
    put(&db, late, Value::Integer(0), 999);
    put(&db, late, Value::Text("off"), 1003);
    put(&db, late, Value::Float(f64::NAN), 1004);
    assert!(changes(&db).is_empty());
    let figures = db.alarm_figures();
    assert_eq!(figures.rules.len(), 2);
    let first = figures.rules[0];
    assert_eq!(
        (
            first.watched,
            first.active,
            first.raised,
            first.cleared,
            first.values_unusable
        ),
        (2, 1, 2, 1, 2)
    );
    assert_eq!(
        (figures.waiting, figures.queue_full, figures.lost),
        (0, 0, 0)
    );
}

#[test]
fn readings_that_are_shed_or_stored_together_are_judged_too() {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, options());
    db.set_alarms(&[rule("#", above(0.5, 0.5, 0))], 64)
        .expect("set");
    let id = declare(&db, "a");
    db.set_admission(0.5);
    for n in 0..20 {
        put(&db, id, Value::Integer(n % 2), n);
    }
    assert!(db.shed(id) > 0);
    assert_eq!(all(&db).len(), 19);
    // A reading older than what the table has is shed or outdated, and in both cases no news.
    for _ in 0..4 {
        put(&db, id, Value::Integer(0), 1);
    }
    assert_eq!(all(&db).len(), 0);
    let readings = [0u8, 1].map(|value| [b'b', value]);
    let readings = readings.each_ref().map(|value| TogetherReading {
        id,
        value,
        time: None,
    });
    db.put_together(&readings, u64::MAX).expect("taken");
    let told: Vec<bool> = all(&db).iter().map(|one| one.raised).collect();
    assert_eq!(told, [false, true]);
}

#[test]
fn silence_is_found_by_the_scan_and_ended_by_a_reading() {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, options());
    db.set_alarms(
        &[rule("+/door", AlarmCondition::Stale { after_ms: 1000 })],
        8,
    )
    .expect("set");
    let ids = ["a/door", "b/door"].map(|key| declare(&db, key));
    clock.advance_ns(1000 * MS);
    db.scan_alarms();
    assert!(changes(&db).is_empty());
    put(&db, ids[0], Value::Text("open"), 5);
    clock.advance_ns(1);
    db.scan_alarms();
    // An object that never got a reading is silent, too.
    assert_eq!(changes(&db), [(0, ids[1].0, true)]);
    clock.advance_ns(1000 * MS);
    db.scan_alarms();
    db.scan_alarms();
    assert_eq!(changes(&db), [(0, ids[0].0, true)]);
    put(&db, ids[1], Value::Text("shut"), 6);
    assert_eq!(changes(&db), [(0, ids[1].0, false)]);
}

/// A sensor whose clock was ahead continues to send after the clock was corrected.
#[test]
fn an_older_reading_ends_a_silence_and_is_compared_with_no_threshold() {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, options());
    let id = declare(&db, "hall/1/temperature");
    let stale = AlarmCondition::Stale { after_ms: 1000 };
    let rules = [rule("#", above(60.0, 55.0, 0)), rule("#", stale)];
    db.set_alarms(&rules, 16).expect("set");
    put(&db, id, Value::Float(20.0), 1_000_000);
    for n in 0..5 {
        clock.advance_ns(500 * MS);
        db.scan_alarms();
        assert!(changes(&db).is_empty());
        put(&db, id, Value::Float(61.0), 1000 + n);
    }
    clock.advance_ns(1500 * MS);
    db.scan_alarms();
    assert_eq!(changes(&db), [(1, id.0, true)]);
    put(&db, id, Value::Float(61.0), 2000);
    assert_eq!(changes(&db), [(1, id.0, false)]);
    put(&db, id, Value::Float(61.0), 1_000_001);
    assert_eq!(changes(&db), [(0, id.0, true)]);
}

#[test]
fn values_of_before_a_start_are_judged_as_if_they_came_now() {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, options());
    let hot = declare(&db, "hot");
    put(&db, hot, Value::Float(80.0), 77);
    let store = db.close().expect("closed");
    let db = open(store, &clock, options());
    let rules = [
        rule("#", above(60.0, 60.0, 0)),
        rule("#", AlarmCondition::Stale { after_ms: 50 }),
    ];
    db.set_alarms(&rules, 8).expect("set");
    let told = all(&db);
    assert_eq!(told.len(), 1);
    assert_eq!(
        (told[0].rule, told[0].raised, told[0].time.ms()),
        (0, true, 77)
    );
    // Its silence begins with the start.
    clock.advance_ns(50 * MS);
    db.scan_alarms();
    assert!(changes(&db).is_empty());
    clock.advance_ns(1);
    db.scan_alarms();
    assert_eq!(changes(&db), [(1, hot.0, true)]);
}

/// Between the thresholds the earlier state decides; what is over meanwhile is reported as over.
#[test]
fn alarms_raised_before_a_start_go_on() {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, options());
    let ids = ["a", "b", "c", "d", "e"].map(|key| declare(&db, key));
    for (id, value) in ids.into_iter().zip([61.0, 58.0, 20.0, 58.0]) {
        put(&db, id, Value::Float(value), 1000);
    }
    let stale = AlarmCondition::Stale { after_ms: 1000 };
    let rules = [rule("#", above(60.0, 55.0, 0)), rule("#", stale)];
    let was_raised = |rule: usize, key: &str| match rule {
        0 => ["a", "b", "c", "later", "over"].contains(&key),
        _ => key == "e",
    };
    db.set_alarms_after(&rules, 16, Box::new(was_raised))
        .expect("set");
    let [a, b, c, _, e] = ids.map(|id| id.0);
    let mut told = changes(&db);
    told.sort_unstable();
    // Not d: it is between the thresholds, and was not raised.
    assert_eq!(
        told,
        [(0, a, true), (0, b, true), (0, c, false), (1, e, true)]
    );
    let active = |db: &Database<MemoryStore>| db.alarm_figures().rules[0].active;
    assert_eq!(active(&db), 2);
    put(&db, ids[1], Value::Float(54.0), 2000);
    put(&db, ids[4], Value::Float(1.0), 2000);
    put(&db, ids[3], Value::Float(59.0), 2000);
    assert_eq!(changes(&db), [(0, b, false), (1, e, false)]);
    assert_eq!(active(&db), 1);
    // Keys that a crash has made unknown, and that are declared again.
    let (later, over) = (declare(&db, "later"), declare(&db, "over"));
    put(&db, later, Value::Float(57.0), 2000);
    put(&db, over, Value::Float(50.0), 2000);
    assert_eq!(changes(&db), [(0, over.0, false)]);
    assert_eq!(active(&db), 2);
    // What was reported as raised and is over meanwhile is returned once.
    let raised = [(0, ids[0], true), (0, later, true)];
    let mut found = db.raised_alarms(10);
    found.retain(|one| one.2);
    assert_eq!(found, raised);
    put(&db, over, Value::Float(61.0), 3000);
    put(&db, over, Value::Float(50.0), 4000);
    let mut found = db.raised_alarms(10);
    found.sort_unstable();
    assert_eq!(found, [raised[0], raised[1], (0, over, false)]);
    assert_eq!(db.raised_alarms(10).len(), 2);
}

/// An alarm that finds no room in the queue at a start is still reported as over.
#[test]
fn an_alarm_without_room_in_the_queue_is_still_reported_as_over() {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, options());
    let ids = ["a", "b", "c"].map(|key| declare(&db, key));
    for id in ids {
        put(&db, id, Value::Float(58.0), 1000);
    }
    let rules = [rule("#", above(60.0, 55.0, 0))];
    db.set_alarms_after(&rules, 1, Box::new(|_, _| true))
        .expect("set");
    assert_eq!(changes(&db).len(), 1);
    for id in ids {
        put(&db, id, Value::Float(50.0), 2000);
        assert_eq!(changes(&db), [(0, id.0, false)]);
    }
}

#[test]
fn limits_are_kept_and_excess_is_counted() {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, options());
    let bad = |rules: &[AlarmRule], count| {
        db.set_alarms(rules, count)
            .expect_err("refused")
            .to_string()
    };
    assert!(bad(&[rule("", above(1.0, 1.0, 0))], 4).contains("empty"));
    assert!(bad(&[rule("a", above(1.0, 2.0, 0))], 4).contains("clear threshold"));
    assert!(bad(&[rule("a", above(1.0, 1.0, 0))], 0).contains("65536"));
    let many = vec![rule("a", above(1.0, 1.0, 0)); 257];
    assert!(bad(&many, 4).contains("256"));
    let few = AlarmRule {
        objects_max: 2,
        ..rule("#", above(1.0, 1.0, 0))
    };
    db.set_alarms(&[few], 4).expect("set");
    assert!(bad(&[rule("a", above(1.0, 1.0, 0))], 4).contains("once"));
    let ids = KEYS.map(|key| declare(&db, key));
    for id in ids {
        put(&db, id, Value::Integer(2), 0);
    }
    let figures = db.alarm_figures().rules[0];
    assert_eq!(
        (figures.watched, figures.unwatched, figures.raised),
        (2, 3, 2)
    );
    // Another validity does not make another object.
    let spec = ObjectSpec {
        key: KEYS[0],
        avi_ms: 5,
        temporal: false,
    };
    db.declare(&spec).expect("declared");
    assert_eq!(db.alarm_figures().rules[0].watched, 2);
}

#[test]
fn a_version_changes_with_each_reading_that_is_offered_to_the_table() {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, options());
    let id = declare(&db, "a");
    let before = db.version(id);
    put(&db, id, Value::Integer(2), 0);
    assert_eq!(db.version(id), before + 1);
    assert_eq!(db.version(ObjectId(9)), 0);
}

#[derive(Clone, Debug)]
enum Step {
    Put { key: usize, value: i64, age_ms: i64 },
    Text { key: usize },
    Pass { ms: u64 },
    Scan,
    Take { count: usize },
    Admit { percent: u32 },
}

/// One rule at one key, in plain form: all numbers since the key was declared, with their arrival times.
#[derive(Default)]
struct Plain {
    raised: bool,
    heard_ms: u64,
    /// When values began to be beyond, without a gap since.
    beyond_since_ms: Option<u64>,
    raises: u64,
    clears: u64,
    told: Vec<bool>,
}

impl Plain {
    fn set(&mut self, raised: bool) {
        if raised != self.raised {
            self.raised = raised;
            self.raises += u64::from(raised);
            self.clears += u64::from(!raised);
        }
    }

    fn step(&mut self, condition: &AlarmCondition, reading: Option<Option<f64>>, now_ms: u64) {
        let (sign, threshold, clear, raise_after_ms) = match *condition {
            AlarmCondition::Stale { after_ms } => {
                if reading.is_some() {
                    self.heard_ms = now_ms;
                    self.set(false);
                } else if now_ms - self.heard_ms > after_ms {
                    self.set(true);
                }
                return;
            }
            AlarmCondition::Above {
                threshold,
                clear,
                raise_after_ms,
            } => (1.0, threshold, clear, raise_after_ms),
            AlarmCondition::Below {
                threshold,
                clear,
                raise_after_ms,
            } => (-1.0, threshold, clear, raise_after_ms),
        };
        if let Some(value) = reading {
            let Some(value) = value else { return };
            match value * sign > threshold * sign {
                true => {
                    self.beyond_since_ms.get_or_insert(now_ms);
                }
                false => self.beyond_since_ms = None,
            }
            if value * sign <= clear * sign {
                self.set(false);
            }
        }
        if self
            .beyond_since_ms
            .is_some_and(|since| now_ms - since >= raise_after_ms)
        {
            self.set(true);
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        10 => (0..KEYS.len(), -6..6_i64, 0..3_i64).prop_map(|(key, value, late)| Step::Put {
            key,
            value,
            age_ms: if late == 2 { 5 } else { 0 }
        }),
        1 => (0..KEYS.len()).prop_map(|key| Step::Text { key }),
        4 => (1..30_u64).prop_map(|ms| Step::Pass { ms }),
        3 => Just(Step::Scan),
        3 => (1..4_usize).prop_map(|count| Step::Take { count }),
        1 => prop_oneof![Just(50_u32), Just(100)].prop_map(|percent| Step::Admit { percent }),
    ];
    prop::collection::vec(step, 1..120)
}

fn conditions() -> impl Strategy<Value = Vec<(usize, AlarmCondition)>> {
    let condition = prop_oneof![
        3 => (-4..4_i64, 0..3_i64, prop_oneof![Just(0_u64), 1..60_u64]).prop_map(|(t, gap, after)| above(
            t as f64,
            (t - gap) as f64,
            after
        )),
        2 => (-4..4_i64, 0..3_i64, prop_oneof![Just(0_u64), 1..60_u64]).prop_map(|(t, gap, raise_after_ms)| {
            AlarmCondition::Below { threshold: t as f64, clear: (t + gap) as f64, raise_after_ms }
        }),
        1 => (1..80_u64).prop_map(|after_ms| AlarmCondition::Stale { after_ms }),
    ];
    prop::collection::vec((0..4_usize, condition), 1..5)
}

const PATTERNS: [&str; 4] = ["#", "a/+", "+/0", "b/#"];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn a_database_reports_the_transitions_of_the_plain_model(
        rules in conditions(),
        steps in steps(),
        ring in 1..6_u32,
        early in 0..KEYS.len(),
    ) {
        let clock = sim_clock();
        let db = open(MemoryStore::new(), &clock, options());
        let mut ids: Vec<ObjectId> = KEYS[..early].iter().map(|key| declare(&db, key)).collect();
        let given: Vec<AlarmRule> = rules.iter().map(|(at, condition)| rule(PATTERNS[*at], *condition)).collect();
        db.set_alarms(&given, ring).expect("set");
        ids.extend(KEYS[early..].iter().map(|key| declare(&db, key)));
        let mut model: BTreeMap<(u32, u32), Plain> = BTreeMap::new();
        for (at, one) in given.iter().enumerate() {
            for (key, id) in KEYS.iter().zip(&ids) {
                if base::pattern::matches(&one.pattern, key) {
                    model.insert((at as u32, id.0), Plain::default());
                }
            }
        }
        let (mut now_ms, mut last_ms) = (0_u64, [i64::MIN; KEYS.len()]);
        let mut taken = 0_u64;
        let mut take = |model: &mut BTreeMap<(u32, u32), Plain>, count: usize| {
            for _ in 0..count {
                let Some(one) = db.next_alarm() else { return };
                taken += 1;
                model.get_mut(&(one.rule, one.object.0)).expect("it is watched").told.push(one.raised);
            }
        };
        let each_that = |model: &mut BTreeMap<(u32, u32), Plain>, key: Option<usize>, stale_only: bool, value, now_ms| {
            for ((rule, object), plain) in model.iter_mut() {
                let condition = &given[*rule as usize].condition;
                let is_meant = !stale_only || matches!(condition, AlarmCondition::Stale { .. });
                if is_meant && key.is_none_or(|key| ids[key].0 == *object) {
                    plain.step(condition, value, now_ms);
                }
            }
        };
        let each = |model: &mut BTreeMap<(u32, u32), Plain>, key, value, now_ms| {
            each_that(model, key, false, value, now_ms);
        };
        for step in steps {
            match step {
                Step::Put { key, value, age_ms } => {
                    let time_ms = now_ms as i64 - age_ms;
                    put(&db, ids[key], Value::Integer(value), time_ms);
                    // An older reading ends a silence, and is compared with no threshold.
                    let is_older = time_ms < last_ms[key];
                    last_ms[key] = last_ms[key].max(time_ms);
                    each_that(&mut model, Some(key), is_older, Some(Some(value as f64)), now_ms);
                }
                Step::Text { key } => {
                    put(&db, ids[key], Value::Text("x"), now_ms as i64);
                    last_ms[key] = now_ms as i64;
                    each(&mut model, Some(key), Some(None), now_ms);
                }
                Step::Pass { ms } => {
                    now_ms += ms;
                    clock.advance_ns(ms * MS);
                }
                Step::Scan => {
                    db.scan_alarms();
                    each(&mut model, None, None, now_ms);
                }
                Step::Take { count } => take(&mut model, count),
                Step::Admit { percent } => {
                    db.set_admission(f64::from(percent) / 100.0);
                }
            }
            let figures = db.alarm_figures();
            for (at, found) in figures.rules.iter().enumerate() {
                let of_rule = || model.iter().filter(|((rule, _), _)| *rule == at as u32).map(|(_, plain)| plain);
                prop_assert_eq!(found.raised, of_rule().map(|plain| plain.raises).sum::<u64>());
                prop_assert_eq!(found.cleared, of_rule().map(|plain| plain.clears).sum::<u64>());
                prop_assert_eq!(found.active, of_rule().filter(|plain| plain.raised).count() as u64);
            }
        }
        // What found no room is reported once there is room.
        for _ in 0..KEYS.len() * given.len() + 1 {
            take(&mut model, usize::MAX);
            db.scan_alarms();
            each(&mut model, None, None, now_ms);
        }
        take(&mut model, usize::MAX);
        let mut happened = 0;
        for plain in model.values() {
            // Raised and over alternate, and the last report is the present state.
            let by_turns = plain.told.iter().enumerate().all(|(at, raised)| *raised == (at % 2 == 0));
            prop_assert!(by_turns, "{:?}", plain.told);
            prop_assert_eq!(plain.told.last().copied().unwrap_or(false), plain.raised);
            happened += plain.raises + plain.clears;
        }
        let figures = db.alarm_figures();
        prop_assert_eq!(happened, taken + figures.lost);
        prop_assert!(figures.lost <= 2 * figures.queue_full);
        let active: Vec<(u32, u32)> = model.iter().filter(|(_, plain)| plain.raised).map(|(at, _)| *at).collect();
        let mut found: Vec<(u32, u32)> = db.active_alarms(100).iter().map(|one| (one.rule, one.object.0)).collect();
        found.sort_unstable();
        prop_assert_eq!(found, active);
    }
}
