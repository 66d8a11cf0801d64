//! The outbox with a broker that accepts, refuses, stays silent and disconnects.

use egress::forward::Late;
use egress::urgent::Delivery;
use egress::urgent::outbox::{Deadline, Outbox};
use proptest::prelude::*;
use std::collections::BTreeMap;

const LATE_AFTER_MS: u64 = 50;

fn outbox(queue_max: usize) -> Outbox {
    let send = Deadline {
        ms: LATE_AFTER_MS,
        late: Late::Send,
    };
    let skip = Deadline {
        late: Late::Skip,
        ..send
    };
    let mut outbox = Outbox::new(
        queue_max,
        vec![(send, true), (skip, false)],
        vec![(send, false), (skip, true)],
    );
    for slot in 0..4 {
        assert_eq!(
            outbox.add_slot(slot % 2, format!("slot/{slot}").into_bytes()),
            slot
        );
    }
    outbox
}

#[derive(Clone, Debug)]
enum Step {
    Alarm(usize),
    Set(usize),
    Send,
    Answer { which: usize, is_taken: bool },
    Lose,
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..2_usize).prop_map(Step::Alarm),
        4 => (0..4_usize).prop_map(Step::Set),
        6 => Just(Step::Send),
        5 => (0..8_usize, prop_oneof![9 => Just(true), 1 => Just(false)])
            .prop_map(|(which, is_taken)| Step::Answer { which, is_taken }),
        1 => Just(Step::Lose),
        2 => (1..40_u64).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..200)
}

/// Messages that were sent and not answered: token, topic, number.
type OnTheWay = Vec<(u64, String, u64)>;

fn send(outbox: &mut Outbox, now_ms: u64, way: &mut OnTheWay) -> bool {
    let Some(found) = outbox.next(now_ms) else {
        return false;
    };
    let topic = String::from_utf8(found.topic.to_vec()).unwrap();
    let number = String::from_utf8(found.payload.to_vec())
        .unwrap()
        .parse()
        .unwrap();
    let retain = found.retain;
    assert_eq!(
        retain,
        matches!(topic.as_str(), "alarm/0" | "slot/1" | "slot/3")
    );
    way.push((found.token, topic, number));
    true
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn each_message_ends_once_and_of_a_slot_the_latest_wins(steps in steps(), queue_max in 1..6_usize) {
        let mut outbox = outbox(queue_max);
        let (mut now_ms, mut number) = (0, 0);
        let mut way: OnTheWay = Vec::new();
        // What the broker accepted, by topic, in order; and the last value set, which must arrive.
        let mut taken: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        let mut last_set: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
        let (mut made_alarms, mut made_values) = ([0_u64; 2], [0_u64; 2]);
        let (mut is_refused, mut late) = (false, 0);
        let mut born: BTreeMap<u64, u64> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Alarm(alarm) => {
                    number += 1;
                    made_alarms[alarm] += 1;
                    born.insert(number, now_ms);
                    let topic = format!("alarm/{alarm}").into_bytes();
                    outbox.push_alarm(alarm, topic, number.to_string().into_bytes(), now_ms);
                }
                Step::Set(slot) => {
                    number += 1;
                    made_values[slot % 2] += 1;
                    born.insert(number, now_ms);
                    last_set.insert(slot, (number, now_ms));
                    outbox.set(slot, number.to_string().into_bytes(), now_ms);
                }
                Step::Send => {
                    send(&mut outbox, now_ms, &mut way);
                    for slot in 0..4 {
                        let topic = format!("slot/{slot}");
                        prop_assert!(way.iter().filter(|one| one.1 == topic).count() <= 1);
                    }
                }
                Step::Answer { which, is_taken } => {
                    if way.is_empty() {
                        continue;
                    }
                    let (token, topic, number) = way.remove(which % way.len());
                    if outbox.answered(token, is_taken, now_ms).is_some() {
                        is_refused |= !is_taken && topic.starts_with("slot");
                        if is_taken {
                            late += u64::from(now_ms - born[&number] > LATE_AFTER_MS);
                            taken.entry(topic).or_default().push(number);
                        }
                    }
                }
                Step::Lose => {
                    way.clear();
                    outbox.connection_lost();
                }
                Step::Pass(ms) => now_ms += ms,
            }
            let (alarms, actuators) = outbox.deliveries();
            let sum = |all: &[Delivery], at: usize| {
                let one = &all[at];
                one.delivered + one.skipped + one.failed + one.dropped + one.superseded + one.waiting
            };
            for at in 0..2 {
                prop_assert_eq!(sum(&alarms, at), made_alarms[at]);
                prop_assert_eq!(sum(&actuators, at), made_values[at]);
            }
            prop_assert!(alarms.iter().map(|one| one.waiting).sum::<u64>() <= queue_max as u64);
        }
        // Now the broker stays connected and accepts everything.
        way.clear();
        outbox.connection_lost();
        loop {
            while send(&mut outbox, now_ms, &mut way) {}
            if way.is_empty() {
                break;
            }
            for (token, topic, number) in way.drain(..) {
                prop_assert!(outbox.answered(token, true, now_ms).is_some());
                late += u64::from(now_ms - born[&number] > LATE_AFTER_MS);
                taken.entry(topic).or_default().push(number);
            }
        }
        prop_assert_eq!(outbox.waiting(), (0, None));
        let (alarms, actuators) = outbox.deliveries();
        let counted: u64 = alarms.iter().chain(&actuators).map(|one| one.late).sum();
        prop_assert_eq!(counted, late);
        prop_assert_eq!(alarms[0].skipped + actuators[0].skipped, 0);
        for (slot, (number, set_ms)) in last_set {
            let got = taken.get(&format!("slot/{slot}")).cloned().unwrap_or_default();
            // An older value never arrives after a newer one.
            prop_assert!(got.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", got);
            let may_miss = is_refused || (slot % 2 == 1 && now_ms - set_ms > LATE_AFTER_MS);
            if !may_miss {
                prop_assert_eq!(got.last(), Some(&number));
            }
        }
    }
}

#[test]
fn alarms_keep_their_order_and_go_before_actuators() {
    let mut outbox = outbox(10);
    outbox.set(0, b"1".to_vec(), 0);
    outbox.push_alarm(0, b"alarm/0".to_vec(), b"2".to_vec(), 0);
    outbox.push_alarm(1, b"alarm/1".to_vec(), b"3".to_vec(), 0);
    let mut way = Vec::new();
    while send(&mut outbox, 0, &mut way) {}
    let order = |way: &OnTheWay| way.iter().map(|one| one.2).collect::<Vec<_>>();
    assert_eq!(order(&way), [2, 3, 1]);
    assert_eq!(outbox.waiting(), (3, Some(0)));
    outbox.connection_lost();
    way.clear();
    outbox.set(0, b"4".to_vec(), 7);
    while send(&mut outbox, 0, &mut way) {}
    assert_eq!(order(&way), [2, 3, 4]);
    assert_eq!(outbox.oddities(), (3, 0));
    assert_eq!(outbox.answered(999, true, 0), None);
    assert_eq!(outbox.oddities(), (3, 1));
}

#[test]
fn a_message_that_ends_every_connection_is_dropped_alone() {
    let mut outbox = outbox(10);
    outbox.push_alarm(0, b"bad".to_vec(), b"1".to_vec(), 0);
    outbox.push_alarm(0, b"alarm/0".to_vec(), b"2".to_vec(), 0);
    outbox.push_alarm(0, b"bad".to_vec(), b"3".to_vec(), 0);
    outbox.set(1, b"4".to_vec(), 0);
    let mut taken = Vec::new();
    // The broker closes the connection when it sees the topic, and accepts what arrived before it.
    for connection in 0..40 {
        while let Some(sent) = outbox.next(0) {
            let (token, payload) = (sent.token, sent.payload.to_vec());
            if sent.topic == b"bad" {
                break;
            }
            outbox.answered(token, true, 0);
            taken.push((connection, payload));
        }
        outbox.connection_lost();
    }
    let payloads: Vec<_> = taken
        .iter()
        .map(|(_, payload)| payload.as_slice())
        .collect();
    assert_eq!(payloads, [b"2", b"4"]);
    assert!(
        taken.iter().all(|(connection, _)| *connection == 3),
        "{taken:?}"
    );
    let (alarms, _) = outbox.deliveries();
    assert_eq!(
        (alarms[0].failed, alarms[0].delivered, alarms[0].waiting),
        (2, 1, 0)
    );
}

#[test]
fn too_many_alarms_cost_the_oldest() {
    let mut outbox = outbox(2);
    for number in 1..=5 {
        outbox.push_alarm(
            0,
            b"alarm/0".to_vec(),
            number.to_string().into_bytes(),
            number,
        );
    }
    let mut way = Vec::new();
    while send(&mut outbox, 9, &mut way) {}
    assert_eq!(way.iter().map(|one| one.2).collect::<Vec<_>>(), [4, 5]);
    assert_eq!(outbox.deliveries().0[0].dropped, 3);
}
