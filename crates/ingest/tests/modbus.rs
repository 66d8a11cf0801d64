//! The Modbus source against devices over TCP.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use ingest::intake::Reason;
use ingest::modbus::{Ended, Fault, Register, Table, ValueType};
use tokio::net::TcpSocket;

use crate::intake_support::{Fake, NOW_MS};
use crate::modbus_support::{
    Server, Source, Then, answer, device, memory, register, tcp, wait_until, word,
};

#[test]
fn values_of_each_table_arrive_and_neighbours_are_asked_for_together() {
    let float = 21.5_f32.to_bits();
    let held = memory(&[
        (1, 0, &[0, 1]),
        (2, 40, &[1]),
        (3, 10, &[0xfffe, 2302, 0b1000]),
        (4, 100, &[(float >> 16) as u16, float as u16]),
        (4, 104, &[0x0020, 0, 0, 1]),
    ]);
    let server = Server::of_memory(Arc::new(Mutex::new(held)));
    let registers = vec![
        register("pump/runs", Table::Coil, 1, ValueType::Bool),
        register("door/open", Table::Discrete, 40, ValueType::Bool),
        register("tank/level", Table::Holding, 10, ValueType::I16),
        Register {
            scale: 0.1,
            ..word("mains/voltage", 11)
        },
        Register {
            bit: Some(3),
            ..register("mains/fault", Table::Holding, 12, ValueType::Bool)
        },
        register("hall/temperature", Table::Input, 100, ValueType::F32),
        register("mains/energy", Table::Input, 104, ValueType::U64),
    ];
    let source = Source::start(vec![device(tcp(server.address), 7, registers)]);
    source.wait_for_readings(0, 7);
    let texts = source.fake.texts();
    for text in [
        "pump/runs=true",
        "door/open=true",
        "tank/level=-2i",
        "mains/voltage=230.2",
        "mains/fault=true",
        "hall/temperature=21.5",
        // Above 2^53: exact.
        "mains/energy=9007199254740993u",
    ] {
        assert!(texts.iter().any(|found| found == text), "{text}: {texts:?}");
    }
    let asked: Vec<Vec<u8>> = server.asked.lock().unwrap()[..5].to_vec();
    assert_eq!(
        asked,
        [
            [1, 0, 1, 0, 1],
            [2, 0, 40, 0, 1],
            [3, 0, 10, 0, 3],
            [4, 0, 100, 0, 2],
            [4, 0, 104, 0, 4]
        ]
    );
    // The node's clock gives the time: a device has none.
    assert!(source.fake.puts().iter().all(|(_, _, time)| time.is_none()));
    assert!(source.faults_of(0).is_empty());
    assert!(source.counters.readings() >= 7);
    assert_eq!(source.stop(), [Ended::Stopped]);
}

#[test]
fn an_exception_costs_its_own_registers_and_is_counted_by_reason() {
    let held = Arc::new(Mutex::new(memory(&[(3, 0, &[11]), (3, 20, &[33])])));
    let server = Server::of_memory(Arc::clone(&held));
    let registers = vec![word("a", 0), word("b", 10), word("c", 20)];
    let source = Source::start(vec![device(tcp(server.address), 1, registers)]);
    wait_until("two failed polls", || source.figures(0).failed_in_row >= 2);
    let texts = source.fake.texts();
    assert!(texts.contains(&"a=11u".to_owned()) && texts.contains(&"c=33u".to_owned()));
    assert!(!texts.iter().any(|text| text.starts_with("b=")));
    let faults = source.faults_of(0);
    assert_eq!(
        faults.keys().copied().collect::<Vec<_>>(),
        ["illegal_data_address"]
    );
    let said = source.figures(0).last_error.unwrap();
    assert!(
        said.ends_with("exception 2, asked for holding registers 10 to 10"),
        "{said}"
    );
    held.lock().unwrap().insert((3, 10), 22);
    source.wait_for("b=22u");
    wait_until("a poll without a fault", || {
        source.figures(0).failed_in_row == 0
    });
    source.stop();
}

#[test]
fn a_device_that_does_not_answer_delays_no_other() {
    // The kernel takes connections, and nothing reads from them.
    let dead = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::of_memory(Arc::new(Mutex::new(memory(&[(3, 0, &[5])]))));
    let mut slow = device(tcp(dead.local_addr().unwrap()), 1, vec![word("slow", 0)]);
    slow.timeout_ms = 600_000;
    let quick = device(tcp(server.address), 1, vec![word("quick", 0)]);
    let source = Source::start(vec![slow, quick]);
    source.wait_for_readings(1, 50);
    assert_eq!(
        source.figures(0).polls,
        0,
        "its first poll is still under way"
    );
    // Neither does it delay the end.
    assert_eq!(source.stop(), [Ended::Stopped, Ended::Stopped]);
}

#[test]
fn a_unit_without_an_answer_costs_the_others_of_its_gateway_single_timeouts() {
    let held = memory(&[(3, 0, &[5])]);
    let server = Server::new(move |_, asked| match asked.unit {
        1 => Then::Answers(asked.packed(&answer(&held, &asked.pdu))),
        2 => Then::Answers(Vec::new()),
        _ => Then::Answers(asked.packed(&[asked.pdu[0] | 0x80, 11])),
    });
    let mut devices: Vec<_> = (1..=3)
        .map(|unit| {
            device(
                tcp(server.address),
                unit,
                vec![word(&format!("u{unit}"), 0)],
            )
        })
        .collect();
    devices[1].timeout_ms = 20;
    let source = Source::start(devices);
    wait_until("faults of both", || {
        source.faults(1, Fault::Timeout) >= 3 && source.faults(2, Fault::Gateway) >= 3
    });
    let before = source.figures(0).readings;
    source.wait_for_readings(0, before + 20);
    assert!(source.faults_of(0).is_empty());
    assert_eq!(source.faults_of(1).len(), 1);
    assert_eq!(source.figures(1).readings + source.figures(2).readings, 0);
    assert_eq!(source.stop(), [Ended::Stopped]);
}

#[test]
fn a_connection_that_the_device_ends_between_polls_is_no_fault() {
    let held = memory(&[(3, 0, &[5])]);
    let connections = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&connections);
    let server = Server::new(move |number, asked| {
        seen.fetch_max(number + 1, SeqCst);
        Then::Closes(asked.packed(&answer(&held, &asked.pdu)))
    });
    let source = Source::start(vec![device(tcp(server.address), 1, vec![word("a", 0)])]);
    source.wait_for_readings(0, 10);
    assert!(source.faults_of(0).is_empty(), "{:?}", source.faults_of(0));
    assert!(connections.load(SeqCst) >= 10);
    source.stop();
}

/// Begins to listen on a socket that is bound.
fn listening(socket: TcpSocket) -> TcpListener {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().unwrap();
    let _inside = runtime.enter();
    let listener = socket.listen(16).unwrap().into_std().unwrap();
    listener.set_nonblocking(false).unwrap();
    listener
}

#[test]
fn a_server_that_was_away_is_connected_to_again() {
    // The socket holds the port from here on, and refuses connections until it listens.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    let source = Source::start(vec![
        device(tcp(address), 1, vec![word("a", 0)]),
        device(tcp(address), 2, vec![word("b", 0)]),
    ]);
    wait_until("failed polls", || {
        (0..2).all(|at| source.figures(at).failed_in_row >= 3)
    });
    let faults = source.faults_of(1);
    assert_eq!(
        faults.keys().copied().collect::<Vec<_>>(),
        ["not_connected"]
    );
    let said = source.figures(0).last_error.unwrap();
    assert_eq!(said, "cannot connect: Connection refused");
    assert!(source.fake.texts().is_empty());
    let held = memory(&[(3, 0, &[5])]);
    let listener = listening(socket);
    let _server = Server::on(listener, move |_, asked| {
        Then::Answers(asked.packed(&answer(&held, &asked.pdu)))
    });
    source.wait_for("a=5u");
    source.wait_for("b=5u");
    source.stop();
}

/// What is added to the number of the request and to the unit, and an answer to what is asked.
type Spoilt = fn(&[u8]) -> (u8, u8, Vec<u8>);

#[test]
fn an_answer_that_does_not_fit_the_request_makes_no_reading() {
    let faulty: [Spoilt; 7] = [
        // Number of the request added, number of the unit added, answer.
        |_| (1, 0, vec![3, 2, 0, 99]),
        |_| (0, 1, vec![3, 2, 0, 99]),
        |_| (0, 0, vec![4, 2, 0, 99]),
        |_| (0, 0, vec![3, 4, 0, 99, 0, 99]),
        |_| (0, 0, vec![3, 3, 0, 99, 0]),
        |_| (0, 0, vec![3]),
        |asked| (0, 0, asked.to_vec()),
    ];
    let count = faulty.len() as u64;
    let turn = AtomicUsize::new(0);
    let server = Server::new(move |_, asked| {
        let at = turn.fetch_add(1, SeqCst);
        let Some(one) = faulty.get(at) else {
            return Then::Answers(asked.packed(&[3, 2, 0, 7]));
        };
        let (number, unit, pdu) = one(&asked.pdu);
        let mut bytes = asked.packed(&pdu);
        bytes[1] += number;
        bytes[6] += unit;
        Then::Answers(bytes)
    });
    let source = Source::start(vec![device(tcp(server.address), 1, vec![word("a", 0)])]);
    source.wait_for("a=7u");
    let faults = source.faults(0, Fault::AnswerInvalid) + source.faults(0, Fault::Garbled);
    assert_eq!(faults, count, "{:?}", source.faults_of(0));
    assert!(source.fake.texts().iter().all(|text| text == "a=7u"));
    source.stop();
}

#[test]
fn an_answer_that_comes_late_is_not_that_of_the_next_request() {
    let is_asked_again = AtomicBool::new(false);
    let server = Server::new(move |connection, asked| {
        if connection == 0 {
            // The first request is answered when the second one has come.
            wait_until("the second request", || is_asked_again.load(SeqCst));
            return Then::Answers(asked.packed(&[3, 2, 0, 111]));
        }
        is_asked_again.store(true, SeqCst);
        Then::Answers(asked.packed(&[3, 2, 0, 222]))
    });
    let mut one = device(tcp(server.address), 1, vec![word("a", 0)]);
    one.timeout_ms = 50;
    let source = Source::start(vec![one]);
    source.wait_for_readings(0, 5);
    assert!(source.fake.texts().iter().all(|text| text == "a=222u"));
    assert!(source.faults(0, Fault::Timeout) >= 1);
    source.stop();
}

#[test]
fn a_device_that_falls_silent_makes_no_readings() {
    let is_silent = Arc::new(AtomicBool::new(false));
    let unanswered = Arc::new(AtomicUsize::new(0));
    let (told, counted) = (Arc::clone(&is_silent), Arc::clone(&unanswered));
    let held = memory(&[(3, 0, &[5])]);
    let server = Server::new(move |_, asked| match told.load(SeqCst) {
        true => {
            counted.fetch_add(1, SeqCst);
            Then::Answers(Vec::new())
        }
        false => Then::Answers(asked.packed(&answer(&held, &asked.pdu))),
    });
    let mut one = device(tcp(server.address), 1, vec![word("a", 0)]);
    one.timeout_ms = 200;
    let source = Source::start(vec![one]);
    source.wait_for_readings(0, 3);
    is_silent.store(true, SeqCst);
    // The poll before the first of these is over, with what it has put.
    wait_until("a silent poll", || unanswered.load(SeqCst) >= 1);
    let before = source.fake.puts().len();
    wait_until("more of them", || source.figures(0).failed_in_row >= 4);
    assert_eq!(source.fake.puts().len(), before, "no value is repeated");
    is_silent.store(false, SeqCst);
    wait_until("another reading", || source.fake.puts().len() > before);
    source.stop();
}

#[test]
fn a_refused_value_is_left_out_alone() {
    let nan = f32::NAN.to_bits();
    let held = memory(&[(3, 0, &[(nan >> 16) as u16, nan as u16, 8, 9])]);
    let server = Server::of_memory(Arc::new(Mutex::new(held)));
    let registers = vec![
        register("broken", Table::Holding, 0, ValueType::F32),
        word("unknown", 2),
        word("well", 3),
    ];
    let fake = Fake::new();
    fake.with(|inner| inner.unknown.push("unknown".to_owned()));
    let source = Source::start_into(&fake, vec![device(tcp(server.address), 1, registers)]);
    source.wait_for_readings(0, 3);
    assert!(fake.texts().iter().all(|text| text == "well=9u"));
    for (reason, excerpt) in [
        (Reason::NotFinite, "broken: no finite number"),
        (Reason::KeyUnknown, "unknown: 8"),
    ] {
        assert!(source.counters.refused(reason) >= 3, "{reason:?}");
        assert_eq!(source.counters.excerpt(reason), excerpt);
    }
    assert!(source.faults_of(0).is_empty());
    source.stop();
}

#[test]
fn a_slow_store_is_waited_for_and_a_failed_one_ends_the_source() {
    let server = Server::of_memory(Arc::new(Mutex::new(memory(&[(3, 0, &[5, 6])]))));
    let fake = Fake::new();
    // The second reading has to wait once.
    fake.with(|inner| inner.room = 1);
    let registers = vec![word("a", 0), word("b", 1)];
    let source = Source::start_into(&fake, vec![device(tcp(server.address), 1, registers)]);
    source.wait_for_readings(0, 6);
    assert_eq!(source.figures(0).readings_left_out, 0);
    assert_eq!(fake.texts()[..2], ["a=5u", "b=6u"]);
    // The one that has waited has the time at which its answer came.
    let times = || fake.puts().into_iter().map(|(_, _, time)| time);
    let first: Vec<_> = times().take(3).collect();
    assert_eq!(first, [None, Some(NOW_MS), None]);
    // Without a clock there is no such time.
    fake.with(|inner| inner.trusted = false);
    // More than one answer has.
    source.wait_for_readings(0, source.figures(0).readings + 3);
    let before = fake.puts().len();
    fake.with(|inner| inner.room = 0);
    source.wait_for_readings(0, source.figures(0).readings + 4);
    assert!(times().skip(before).all(|time| time.is_none()));
    fake.with(|inner| inner.failed = true);
    assert_eq!(source.ended(), [Ended::LogFailed]);
}

#[test]
fn readings_that_the_store_does_not_take_are_left_out_and_the_devices_are_asked_on() {
    let server = Server::of_memory(Arc::new(Mutex::new(memory(&[(3, 0, &[5, 6])]))));
    let fake = Fake::new();
    fake.with(|inner| inner.stuck = true);
    let registers = vec![word("a", 0), word("b", 1)];
    let source = Source::start_into(&fake, vec![device(tcp(server.address), 1, registers)]);
    wait_until("readings left out", || {
        let found = source.figures(0);
        found.readings_left_out >= 3 && found.polls >= 1
    });
    let found = source.figures(0);
    assert_eq!((found.readings, found.polls_failed), (0, 0), "{found:?}");
    assert!(found.polls_missed > 0, "{found:?}");
    assert!(fake.puts().is_empty());
    fake.with(|inner| inner.stuck = false);
    source.wait_for_readings(0, 4);
    assert_eq!(source.stop(), [Ended::Stopped]);
}

#[test]
fn polls_that_cannot_begin_before_the_next_is_due_are_counted() {
    let is_let_go = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&is_let_go);
    let slow = Server::new(move |_, asked| {
        wait_until("the release", || told.load(SeqCst));
        Then::Answers(asked.packed(&[3, 2, 0, 5]))
    });
    let quick = Server::of_memory(Arc::new(Mutex::new(memory(&[(3, 0, &[5])]))));
    let mut slow = device(tcp(slow.address), 1, vec![word("slow", 0)]);
    slow.timeout_ms = 60_000;
    let source = Source::start(vec![
        slow,
        device(tcp(quick.address), 1, vec![word("quick", 0)]),
    ]);
    // Of two devices with one interval, the other one shows that several have passed.
    source.wait_for_readings(1, 20);
    assert_eq!(source.figures(0).polls_missed, 0);
    is_let_go.store(true, SeqCst);
    wait_until("polls left out", || source.figures(0).polls_missed >= 2);
    let found = source.figures(0);
    assert_eq!(found.polls_failed, 0, "it is late, and no fault");
    source.stop();
}
