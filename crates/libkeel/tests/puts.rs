//! Puts in flight and periodic tasks, as a node sees them.

use crate::common::{FakeNode, Folder, wait_until};
use actuator::{Actuator, Deadline};
use base::error::Code;
use libkeel::{
    Error, Key, Node, Outcome, PENDING_MAX, STAGED_PUTS_MAX, Task, TaskKind, TaskSpec, Value,
};
use serde_json::{Value as Json, json};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
const GET: u16 = 1;
const PUT: u16 = 2;
const TOGETHER: u16 = 9;
const TASK: u16 = 6;
const PERIOD: u16 = 7;

fn code<T>(result: Result<T, Error>) -> Option<Code> {
    result.err().map(|error| error.code())
}

/// Answers as a node that stores, declares and notes everything.
fn willing(next: &AtomicU64, kind: u16) -> Option<(u16, Json)> {
    match kind {
        PUT => Some((258, json!({"lsn": next.fetch_add(1, Ordering::Relaxed)}))),
        // The number of the last of several.
        TOGETHER => Some((258, json!({"lsn": 5}))),
        TASK => Some((263, json!({"id": 7, "sampling_period_ms": 20}))),
        PERIOD => Some((264, json!({"sampling_period_ms": 20}))),
        other => panic!("kind {other}"),
    }
}

fn start(folder: &Folder) -> FakeNode {
    let next = AtomicU64::new(0);
    FakeNode::start(folder, move |kind, _| willing(&next, kind))
}

/// Returns a client of a node that answers in this way, and a key.
fn attached_to(
    answer: impl Fn(u16, &Json) -> Option<(u16, Json)> + Send + Sync + 'static,
) -> (Folder, FakeNode, Node, Key) {
    let folder = Folder::new();
    let fake = FakeNode::start(&folder, answer);
    let node = Node::attach(folder.socket()).unwrap();
    let key = node.key("a").unwrap();
    (folder, fake, node, key)
}

/// Returns a client of a node that stores, declares and notes everything, and a key.
fn attached() -> (Folder, FakeNode, Node, Key) {
    let next = AtomicU64::new(0);
    attached_to(move |kind, _| willing(&next, kind))
}

#[test]
fn puts_go_in_order_and_each_has_its_ticket() {
    let (_folder, fake, node, key) = attached();
    let tickets: Vec<_> = (0..500)
        .map(|number| key.put(Value::Integer(number), Some(number)).unwrap())
        .collect();
    for (number, ticket) in tickets.iter().enumerate() {
        assert_eq!(ticket.wait(LONG), Ok(number as u64));
        assert_eq!(ticket.poll(), Some(Ok(number as u64)));
        let found = fake.request(PUT);
        assert_eq!(
            found,
            json!({"key": "a", "value": number as f64, "time_ms": number})
        );
    }
    for (value, shown) in [
        (Value::Float(0.1), json!(0.1)),
        (Value::Boolean(true), json!(true)),
        (Value::Text("\u{e4}\n"), json!("\u{e4}\n")),
        (Value::Unsigned(1 << 53), json!(9_007_199_254_740_992.0)),
    ] {
        node.put(&key, value, None).unwrap().wait(LONG).unwrap();
        assert_eq!(fake.request(PUT), json!({"key": "a", "value": shown}));
    }
    // What no double holds has its type, so that a node of an earlier version refuses it instead of rounding it.
    for (value, shown, kind) in [
        (
            Value::Integer(-(1 << 53) - 1),
            json!(-(1_i64 << 53) - 1),
            "integer",
        ),
        (Value::Integer(i64::MAX), json!(i64::MAX), "integer"),
        (Value::Unsigned(u64::MAX), json!(u64::MAX), "unsigned"),
    ] {
        node.put(&key, value, None).unwrap().wait(LONG).unwrap();
        let expected = json!({"key": "a", "value": shown, "type": kind});
        assert_eq!(fake.request(PUT), expected);
    }
    for value in [
        Value::Float(f64::NAN),
        Value::Float(f64::INFINITY),
        Value::Text(&"x".repeat(70_000)),
    ] {
        assert_eq!(code(key.put(value, None)), Some(Code::Invalid), "{value:?}");
    }
}

/// A node of an earlier version knows no `time_ns`, and must not store the reading at another time. It takes whole ms.
#[test]
fn an_older_node_refuses_only_times_below_milliseconds() {
    let (_folder, fake, _node, key) = attached_to(|_, message| {
        let fields = message.as_object().unwrap();
        let unknown = fields
            .keys()
            .find(|name| !["key", "value", "time_ms"].contains(&name.as_str()));
        Some(match unknown {
            Some(name) => {
                let wrong = format!("unknown field `{name}`");
                (
                    511,
                    json!({"code": "invalid", "thing": "request", "wrong": wrong}),
                )
            }
            None => (258, json!({"lsn": 4})),
        })
    });
    let put = |ns| {
        let ticket = key.put_ns(Value::Float(1.0), Some(ns)).unwrap();
        ticket.wait(LONG)
    };
    assert_eq!(put(1_700_000_000_123_000_000), Ok(4));
    assert_eq!(fake.request(PUT)["time_ms"], json!(1_700_000_000_123_i64));
    let refused = put(1_700_000_000_123_000_001);
    let told = refused.as_ref().unwrap_err().to_string();
    assert!(told.contains("unknown field `time_ns`"), "{told}");
    assert_eq!(code(refused), Some(Code::Invalid));
    // So with integers: only the one that it would round is refused.
    let put = |number| {
        let ticket = key.put(Value::Integer(number), None).unwrap();
        ticket.wait(LONG)
    };
    assert_eq!(put(1 << 53), Ok(4));
    let refused = put((1 << 53) + 1);
    let told = refused.as_ref().unwrap_err().to_string();
    assert!(told.contains("unknown field `type`"), "{told}");
    assert_eq!(code(refused), Some(Code::Invalid));
}

#[test]
fn an_invalid_key_is_refused_before_it_is_sent() {
    let (_folder, _fake, node, _key) = attached();
    let long = "x".repeat(256);
    let wrong = [
        "",
        &long,
        "a\n",
        "#",
        "+",
        "a/+",
        "a/#/b",
        "\u{feff}a",
        "a\u{200b}",
    ];
    for name in wrong {
        assert_eq!(code(node.key(name)), Some(Code::Invalid), "{name:?}");
    }
    for name in ["c++", "#1", "a/c++/#1"] {
        assert!(node.key(name).is_ok(), "{name}");
    }
}

#[test]
fn a_ticket_ends_with_the_answer_of_the_node() {
    let (_folder, _fake, node, _key) = attached_to(|_, message| {
        Some(match message["key"].as_str().unwrap() {
            "full" => (
                511,
                json!({"code": "full", "thing": "full", "wrong": "no room", "remedy": "wait"}),
            ),
            "strange" => (258, json!({"lsn": "many"})),
            _ => (258, json!({"lsn": 1})),
        })
    });
    let put = |name| {
        node.key(name)
            .unwrap()
            .put(Value::Float(1.0), None)
            .unwrap()
    };
    let refused = put("full").wait(LONG).unwrap_err();
    assert_eq!(refused.code(), Code::Full);
    assert_eq!(refused.to_string(), "full: no room; wait");
    assert_eq!(put("good").wait(LONG), Ok(1));
    // After a nonsensical answer the connection is unusable; the next put opens another.
    assert_eq!(code(put("strange").wait(LONG)), Some(Code::Unsupported));
    wait_until("a new connection", || put("good").wait(LONG) == Ok(1));
}

#[test]
fn a_node_that_is_slow_is_not_waited_for() {
    // It answers only when permitted.
    let may_answer = Arc::new(AtomicBool::new(false));
    let may = Arc::clone(&may_answer);
    let next = AtomicU64::new(0);
    let (_folder, _fake, _node, key) = attached_to(move |kind, _| {
        wait_until("permission", || may.load(Ordering::Acquire));
        willing(&next, kind)
    });
    let mut tickets = Vec::new();
    let busy = loop {
        match key.put(Value::Float(1.0), None) {
            Ok(ticket) => tickets.push(ticket),
            Err(error) => break error,
        }
        assert!(tickets.len() <= PENDING_MAX as usize);
    };
    assert_eq!(busy.code(), Code::Busy);
    assert_eq!(
        code(tickets[0].wait(Duration::from_millis(5))),
        Some(Code::Late)
    );
    may_answer.store(true, Ordering::Release);
    for ticket in &tickets {
        ticket.wait(LONG).unwrap();
    }
    key.put(Value::Float(1.0), None)
        .unwrap()
        .wait(LONG)
        .unwrap();
}

/// More than the socket takes at once: the rest is sent later automatically.
#[test]
fn a_full_socket_delays_requests_and_loses_none() {
    let may_answer = Arc::new(AtomicBool::new(false));
    let may = Arc::clone(&may_answer);
    let next = AtomicU64::new(0);
    let (_folder, _fake, _node, key) = attached_to(move |kind, _| {
        wait_until("permission", || may.load(Ordering::Acquire));
        willing(&next, kind)
    });
    let text = "x".repeat(60_000);
    let mut tickets = Vec::new();
    while let Ok(ticket) = key.put(Value::Text(&text), None) {
        tickets.push(ticket);
    }
    assert!(
        (2..PENDING_MAX as usize).contains(&tickets.len()),
        "{}",
        tickets.len()
    );
    may_answer.store(true, Ordering::Release);
    for ticket in &tickets {
        ticket.wait(LONG).unwrap();
    }
}

#[test]
fn a_node_that_goes_away_is_told_and_found_again() {
    let (folder, fake, _node, key) = attached_to(|_, _| None);
    let ticket = key.put(Value::Float(1.0), None).unwrap();
    assert_eq!(fake.request(PUT)["key"], "a");
    fake.stop();
    assert_eq!(code(ticket.wait(LONG)), Some(Code::Gone));
    let missing = key.put(Value::Float(1.0), None);
    assert_eq!(code(missing), Some(Code::NotFound));
    let _fake = start(&folder);
    assert_eq!(key.put(Value::Float(1.0), None).unwrap().wait(LONG), Ok(0));
}

fn spec() -> TaskSpec {
    TaskSpec::new("valve", Duration::from_millis(2), Duration::from_secs(30))
}

#[test]
fn a_task_is_declared_and_reports_its_periods() {
    let (_folder, fake, node, key) = attached();
    let mut task = node.periodic_task(spec()).unwrap();
    assert!(!task.is_declared());
    task.next_instance();
    let declared = fake.request(TASK);
    assert_eq!(declared["name"], "valve");
    assert_eq!(
        (&declared["period_ns"], &declared["kind"]),
        (&json!(2_000_000), &json!("soft"))
    );
    assert_eq!(declared["process"], std::process::id());
    wait_until("the declaration", || task.is_declared());
    while task.counts().reports < 5 {
        task.next_instance();
        task.data(|| std::hint::black_box(5));
        task.put(&key, Value::Float(1.0), None).unwrap();
        assert!(!task.has_missed());
    }
    let mut instances = 0;
    for _ in 0..5 {
        let period = fake.request(PERIOD);
        assert_eq!(period["id"], 7);
        let count = period["instances"].as_u64().unwrap();
        instances += count;
        for spread in ["response", "data", "compute", "jitter"] {
            let pairs = period[spread]["buckets"].as_array().unwrap();
            let counted: u64 = pairs.iter().map(|pair| pair[1].as_u64().unwrap()).sum();
            assert_eq!(
                counted + period[spread]["saturated"].as_u64().unwrap(),
                count
            );
        }
    }
    // All were reported except those before the declaration and the running one.
    let counts = task.counts();
    assert!(
        instances > 0 && instances <= counts.instances,
        "{instances} of {counts:?}"
    );
    assert_eq!(
        (counts.deadline_misses, counts.aborted, task.last_outcome()),
        (0, 0, Some(Outcome::InTime))
    );
    assert_eq!(task.last_error(), None);
    assert_eq!(task.warnings(), [""; 0]);
}

#[test]
fn a_short_task_sends_its_report_at_its_end() {
    let next = AtomicU64::new(0);
    let (_folder, fake, node, _key) = attached_to(move |kind, _| {
        if kind == TASK {
            // The task has ended by the time of the node's answer.
            std::thread::sleep(Duration::from_millis(50));
        }
        willing(&next, kind)
    });
    let late = TaskSpec {
        deadline: Duration::from_nanos(1),
        ..spec()
    };
    let mut task = node.periodic_task(late).unwrap();
    task.next_instance();
    drop(task);
    let told = fake.request(PERIOD);
    assert_eq!(
        (&told["id"], &told["instances"], &told["deadline_misses"]),
        (&7.into(), &1.into(), &1.into())
    );
    // A task that did nothing reports nothing.
    drop(node.periodic_task(spec()).unwrap());
    assert!(fake.requests.try_iter().all(|(kind, _)| kind != PERIOD));
}

#[test]
fn a_late_instance_of_a_firm_task_sends_nothing() {
    let (_folder, fake, node, key) = attached();
    let firm = TaskSpec {
        kind: TaskKind::Firm,
        deadline: Duration::from_millis(200),
        period: Duration::from_secs(2),
        ..spec()
    };
    let mut task = node.periodic_task(firm).unwrap();
    let put = |task: &mut Task, value: f64| task.put(&key, Value::Float(value), None).unwrap();
    task.next_instance();
    let late = [put(&mut task, 1.0), put(&mut task, 2.0)];
    wait_until("the deadline", || task.has_missed());
    assert_eq!(task.end_instance(), Some(Outcome::Aborted));
    assert_eq!(task.end_instance(), None);
    for ticket in &late {
        assert_eq!(code(ticket.poll().unwrap()), Some(Code::Late));
    }
    task.next_instance();
    let given_up = put(&mut task, 3.0);
    task.give_up();
    assert_eq!(task.end_instance(), Some(Outcome::Aborted));
    assert_eq!(code(given_up.poll().unwrap()), Some(Code::Late));
    // An instance in time sends everything; until then none of it is visible. Retried if the machine was too slow.
    let mut tries = 0.0;
    let sent = loop {
        tries += 1.0;
        task.next_instance();
        let sent = [put(&mut task, 10.0 + tries), put(&mut task, 20.0 + tries)];
        assert!(sent.iter().all(|ticket| ticket.poll().is_none()));
        if task.end_instance() == Some(Outcome::InTime) {
            break sent;
        }
        assert!(tries < 20.0);
    };
    assert_eq!(sent.map(|ticket| ticket.wait(LONG)), [Ok(4), Ok(5)]);
    let together = fake.request(TOGETHER);
    assert_eq!(together["puts"][0]["value"], 10.0 + tries);
    assert_eq!(together["puts"][1]["value"], 20.0 + tries);
    assert!(together["deadline_ns"].as_u64().unwrap() > 200_000_000);
    let puts = [PUT, TOGETHER];
    assert!(
        fake.requests
            .try_iter()
            .all(|(kind, _)| !puts.contains(&kind))
    );
    // As many as the node stores in one piece, and no more.
    task.next_instance();
    for _ in 0..STAGED_PUTS_MAX {
        put(&mut task, 1.0);
    }
    let refused = |task: &mut Task, value: Value<'_>| {
        let error = task.put(&key, value, None).unwrap_err();
        assert_eq!(error.to_string().lines().count(), 1);
        error
    };
    let error = refused(&mut task, Value::Float(1.0));
    assert_eq!(
        (error.code(), error.to_string().as_str()),
        (
            Code::Busy,
            "valve: an instance of a firm task puts at most 128 readings, of 65536 bytes in all; \
             put less in one instance"
        )
    );
    task.give_up();
    assert_eq!(task.end_instance(), Some(Outcome::Aborted));
    // Nor more than fits into a request.
    task.next_instance();
    let text = "x".repeat(40_000);
    task.put(&key, Value::Text(&text), None).unwrap();
    assert_eq!(refused(&mut task, Value::Text(&text)).code(), Code::Busy);
    let text = "x".repeat(65_500);
    assert_eq!(refused(&mut task, Value::Text(&text)).code(), Code::Invalid);
    put(&mut task, 1.0);
    task.give_up();
    assert_eq!(task.end_instance(), Some(Outcome::Aborted));
    assert_eq!(task.counts().aborted, task.counts().instances - 1);
    assert!(
        fake.requests
            .try_iter()
            .all(|(kind, _)| !puts.contains(&kind))
    );
}

/// The longest request that an instance can make of its permitted puts is sent.
#[test]
fn a_firm_instance_that_is_as_large_as_it_may_be_is_sent() {
    let (_folder, fake, node, _key) = attached();
    let firm = TaskSpec {
        kind: TaskKind::Firm,
        ..spec()
    };
    let mut task = node.periodic_task(firm).unwrap();
    task.next_instance();
    // Letters that take six bytes in JSON; then single ones, until no more fit.
    let key = node.key(&"k".repeat(64)).unwrap();
    let mut bytes = 20_000;
    let mut count = 0;
    while bytes > 0 {
        let text = "\u{1}".repeat(bytes / 6);
        match task.put(&key, Value::Text(&text), None) {
            Ok(_) => count += 1,
            Err(error) => {
                assert_eq!(error.code(), Code::Busy);
                bytes /= 2;
            }
        }
    }
    assert_eq!(task.end_instance(), Some(Outcome::InTime));
    let together = fake.request(TOGETHER);
    assert_eq!(together["puts"].as_array().unwrap().len(), count);
    let sent = together.to_string().len();
    assert!((64_000..=64 << 10).contains(&sent), "{sent}");
    assert_eq!(task.counts().aborted, 0);
}

#[test]
fn an_instance_that_the_node_refuses_is_counted() {
    // The node's answer for each instance; the counts of missed and aborted ones from then on.
    let answers = [
        ("late", Code::Late, (1, 1)),
        ("full", Code::Full, (1, 2)),
        ("invalid", Code::Invalid, (1, 3)),
        // It may be stored.
        ("io", Code::Io, (1, 3)),
        ("gone", Code::Gone, (1, 3)),
        ("late", Code::Late, (2, 4)),
        // From a node that knows tasks, but not this request.
        ("unsupported", Code::Unsupported, (2, 5)),
    ];
    let (asked, next) = (AtomicU64::new(0), AtomicU64::new(0));
    let (_folder, fake, node, key) = attached_to(move |kind, _| match kind {
        TOGETHER => {
            let place = asked.fetch_add(1, Ordering::Relaxed) as usize;
            let code = answers[place].0;
            let failure = json!({"code": code, "thing": "a", "wrong": "kind 9", "remedy": "wait"});
            Some((511, failure))
        }
        _ => willing(&next, kind),
    });
    let firm = TaskSpec {
        kind: TaskKind::Firm,
        ..spec()
    };
    let mut task = node.periodic_task(firm).unwrap();
    let mut refused = None;
    for (name, code, counted) in answers {
        task.next_instance();
        let tickets = [1.0, 2.0].map(|value| task.put(&key, Value::Float(value), None).unwrap());
        assert_eq!(task.end_instance(), Some(Outcome::InTime));
        for ticket in &tickets {
            let error = ticket.wait(LONG).unwrap_err();
            assert_eq!(error.code(), code);
            if code == Code::Unsupported {
                assert_eq!(
                    error.to_string(),
                    "firm task: the node is older than this client and does not store an instance's puts together; \
                     nothing was stored; use a node of the client's version"
                );
            } else {
                assert_eq!(error.to_string(), "a: kind 9; wait");
            }
        }
        let counts = task.counts();
        let found = (counts.deadline_misses, counts.aborted);
        assert_eq!(found, counted, "{name}");
        // A late instance is no error between task and node.
        if code != Code::Late {
            refused = Some(code);
        }
        assert_eq!(task.last_error().map(|error| error.code()), refused);
    }
    assert_eq!(task.counts().instances, answers.len() as u64);
    // The node has counted them itself: they are in no report.
    while task.counts().reports < 1 {
        task.next_instance();
    }
    let period = fake.request(PERIOD);
    assert_eq!(
        (&period["deadline_misses"], &period["aborted"]),
        (&json!(0), &json!(0))
    );
}

#[test]
fn a_task_survives_its_node() {
    let (folder, fake, node, key) = attached();
    let mut task = node.periodic_task(spec()).unwrap();
    task.next_instance();
    fake.request(TASK);
    wait_until("the declaration", || task.is_declared());
    fake.stop();
    wait_until("the loss", || {
        task.next_instance();
        !task.is_declared() && code(task.put(&key, Value::Float(1.0), None)) == Some(Code::Gone)
    });
    wait_until("a word of it", || {
        task.next_instance();
        task.last_error().is_some() && task.counts().reports_lost > 0
    });
    let fake = start(&folder);
    let mut is_back = false;
    task.run(|task| {
        is_back = task.is_declared();
        match is_back {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    assert!(is_back);
    assert_eq!(fake.request(TASK)["name"], "valve");
}

#[test]
fn a_task_that_had_no_place_is_declared_when_there_is_one() {
    let next = AtomicU64::new(0);
    let refusals = AtomicU64::new(0);
    let (_folder, _fake, node, key) = attached_to(move |kind, _| {
        let is_first = kind == TASK && refusals.fetch_add(1, Ordering::Relaxed) == 0;
        match is_first {
            true => Some((
                511,
                json!({"code": "full", "thing": "valve", "wrong": "there are 1 tasks already", "remedy": "raise it"}),
            )),
            false => willing(&next, kind),
        }
    });
    let mut task = node.periodic_task(spec()).unwrap();
    wait_until("the refusal", || {
        task.next_instance();
        task.last_error().map(|error| error.code()) == Some(Code::Full)
    });
    // Puts keep the connection open, and nothing closes it.
    wait_until("a place", || {
        task.next_instance();
        task.put(&key, Value::Float(1.0), None).unwrap();
        task.is_declared()
    });
    assert_eq!(task.last_error(), None);
    assert!(task.counts().reports_lost > 0);
}

#[test]
fn an_older_node_refuses_tasks_and_takes_their_puts() {
    let (_folder, _fake, node, key) = attached_to(|kind, _| {
        let failure = json!({"code": "unsupported", "thing": "request", "wrong": "kind 6 is none", "remedy": ""});
        Some(match kind {
            PUT => (258, json!({"lsn": 3})),
            _ => (511, failure),
        })
    });
    let mut task = node.periodic_task(spec()).unwrap();
    task.next_instance();
    wait_until("the refusal", || {
        task.last_error()
            .is_some_and(|error| error.code() == Code::Unsupported)
    });
    assert!(!task.is_declared());
    assert_eq!(
        task.put(&key, Value::Float(1.0), None).unwrap().wait(LONG),
        Ok(3)
    );
}

#[test]
fn an_invalid_task_is_refused_before_it_is_sent() {
    let (_folder, _fake, node, _key) = attached_to(|kind, _| {
        assert_eq!(kind, GET);
        None
    });
    let refused = |change: &dyn Fn(&mut TaskSpec)| {
        let mut spec = spec();
        change(&mut spec);
        code(node.periodic_task(spec)) == Some(Code::Invalid)
    };
    assert!(refused(&|spec| spec.name = "a\n".to_owned()));
    assert!(refused(&|spec| spec.period = Duration::from_nanos(999)));
    assert!(refused(&|spec| spec.deadline = Duration::ZERO));
    assert!(refused(&|spec| spec.deadline = Duration::MAX));
    assert!(refused(&|spec| spec.weight = f64::NAN));
    assert!(refused(&|spec| spec.fifo_priority = Some(0)));
    assert!(refused(&|spec| spec.fifo_priority = Some(100)));
    assert!(refused(&|spec| spec.cores = vec![u16::MAX]));
    assert!(!refused(&|spec| spec.fifo_priority = Some(99)));
}

/// However long the period is.
#[test]
fn the_first_release_is_at_once_and_a_wait_can_be_given_up() {
    let (_folder, _fake, node, _key) = attached();
    let rare = TaskSpec {
        period: Duration::from_secs(3600),
        ..spec()
    };
    let mut task = node.periodic_task(rare).unwrap();
    assert!(task.next_unless(|_| true));
    assert_eq!(task.end_instance(), Some(Outcome::InTime));
    let mut asked = 0;
    let is_there = task.next_unless(|_| {
        asked += 1;
        asked == 3
    });
    assert_eq!(
        (is_there, asked, task.counts().releases_missed),
        (false, 3, 0)
    );
    assert_eq!(task.end_instance(), None);
}

/// A missing permission gives a warning, and the task runs nevertheless.
#[test]
fn a_missing_permission_is_a_warning() {
    let (_folder, _fake, node, _key) = attached();
    let wanted = TaskSpec {
        cores: vec![1023],
        stack_bytes: 256 << 10,
        ..spec()
    };
    let mut task = node.periodic_task(wanted).unwrap();
    task.next_instance();
    assert!(
        task.warnings().iter().any(|line| line.contains("1023")),
        "{:?}",
        task.warnings()
    );
    assert!(task.end_instance().is_some());
}

#[test]
fn a_thread_is_its_own_again_when_the_node_that_drove_it_is_gone() {
    let (_folder, fake, node, _) = attached();
    let spec = TaskSpec::new("valve", Duration::from_millis(5), Duration::from_millis(5));
    let mut task = node.periodic_task(spec).unwrap();
    task.next_instance();
    let thread = fake.request(TASK)["thread"].as_u64().unwrap();
    // SAFETY: no memory is passed; 0 is the calling thread.
    let policy = || unsafe { libc::sched_getscheduler(0) } & !libc::SCHED_RESET_ON_FORK;
    let before = policy();
    // Like a node that is then killed.
    let mut killed = Deadline::new(&[u32::try_from(thread).unwrap()]);
    if let Err(error) = killed.set(0.9) {
        println!("skipped: {error}");
        return;
    }
    std::mem::forget(killed);
    wait_until("the declaration", || {
        task.next_instance();
        task.is_declared()
    });
    assert_ne!(policy(), before, "while the node is there it stays");
    fake.hang_up();
    wait_until("its own scheduling", || {
        task.next_instance();
        policy() == before
    });
    assert!(task.warnings().is_empty(), "{:?}", task.warnings());
}
