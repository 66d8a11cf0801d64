//! A server over loopback, and devices that each test scripts.

use crate::server_support::common::{self, Scratch};
use crate::server_support::{
    Device, Running, connect, frame, hello, needed, publish, published, settings, token, until,
};
use std::fs;
use std::io::{Read, Write};
use std::sync::atomic::Ordering;
use std::time::Duration;
use stream::group::GroupAt;
use stream::predict::Mode;
use stream::provide::Arm;
use stream::server::{Identity, Reason, Server, ServerError};
use stream::tls::{Authority, DEVICES_FILE, device_config};
use stream::wire::{Answer, HeldBlocks, Refusal, Request};
use stream::{BlockAt, FileId, Token};

fn sorted(mut blocks: Vec<BlockAt>) -> Vec<BlockAt> {
    blocks.sort_unstable();
    blocks
}

/// Returns whether the server closes the connection. Messages before that are dropped.
fn is_closed(device: &mut Device) -> bool {
    for _ in 0..1000 {
        if device.next().is_none() {
            return true;
        }
    }
    false
}

#[test]
fn a_device_gets_the_manifest_and_its_read_blocks() {
    let scratch = published("server-read");
    let running = Running::start(settings(&scratch));
    let mut device = Device::new(&running, &scratch, 1);
    assert_eq!(device.version, 1);
    let last = device.at("bin/task", 199);
    device.ask(7, None, last, 0);
    let came = device.blocks();
    assert_eq!((came.id, came.blocks), (7, vec![last]));
    let beyond = device.at("bin/task", 200);
    device.ask(8, None, beyond, 0);
    let (token, reason) = (None, Refusal::NoSuchBlock);
    let refused = |id| Answer::Refused { id, token, reason };
    assert_eq!(device.checked(), refused(8));
    let directory = device.at("bin", 0);
    device.ask(9, None, directory, 0);
    assert_eq!(device.checked(), refused(9));
    assert_eq!(running.watch.counters().refused(Reason::NoSuchBlock), 2);
}

#[test]
fn neighbours_come_behind_a_demand_and_never_twice() {
    let scratch = published("server-around");
    let running = Running::start(settings(&scratch));
    let mut device = Device::new(&running, &scratch, 1);
    device.begin(1, "bin/task", HeldBlocks::default());
    device.begun(1);
    let at = |index| device.at("bin/task", index);
    let (first, second) = (at(3), at(2));
    let wanted: Vec<BlockAt> = (4..9).map(at).collect();
    let rest: Vec<BlockAt> = (9..32).map(at).collect();
    let tail: Vec<BlockAt> = (198..200).map(at).collect();
    let last = at(197);
    device.ask(1, Some(1), first, 5);
    assert_eq!(device.blocks().blocks, [first]);
    let came = device.blocks();
    assert_eq!((came.id, came.token), (1, token(1)));
    assert_eq!(came.blocks, wanted);
    // Of the neighbours of block 2, only those are sent that were not sent with block 3, and none of the next aligned
    // run.
    device.ask(2, Some(1), second, 31);
    assert_eq!(device.blocks().blocks, [second]);
    assert_eq!(device.blocks().blocks, rest);
    device.ask(3, Some(1), last, 31);
    assert_eq!(device.blocks().blocks, [last]);
    assert_eq!(device.blocks().blocks, tail);
}

#[test]
fn blocks_read_by_one_run_are_pushed_to_the_next_one() {
    let scratch = published("server-learn");
    let running = Running::start(settings(&scratch));
    let mut device = Device::new(&running, &scratch, 1);
    let needed = needed(&device);
    assert!(device.run(1, "bin/task", &needed).is_empty());
    // Another device of the same tenant.
    let mut device = Device::new(&running, &scratch, 2);
    let came = device.run(2, "bin/task", &needed);
    assert_eq!(came, needed);
    let counters = running.watch.counters();
    assert_eq!(
        counters.blocks_prefetched.load(Ordering::Relaxed),
        needed.len() as u64
    );
    assert_eq!(counters.blocks_unread.load(Ordering::Relaxed), 0);
    // The third run reads less of it.
    let came = device.run(3, "bin/task", &needed[..needed.len() - 10]);
    assert_eq!(came.len(), needed.len());
    assert_eq!(counters.blocks_unread.load(Ordering::Relaxed), 10);
}

#[test]
fn held_and_requested_blocks_are_left_out_of_the_plan() {
    let scratch = published("server-held");
    let running = Running::start(settings(&scratch));
    let mut device = Device::new(&running, &scratch, 1);
    let needed = needed(&device);
    device.run(1, "bin/task", &needed);
    let held = needed[20..70].to_vec();
    // `Begin` and the first `Read` are sent together.
    let mut both = frame(&Request::Begin {
        token: token(2),
        task: device.file("bin/task"),
        held: HeldBlocks::of(held.clone()),
    });
    both.extend(frame(&Request::Read {
        id: 5,
        token: Some(token(2)),
        at: needed[0],
        around: 0,
    }));
    device.socket.write_all(&both).unwrap();
    assert_eq!(device.begun(2).0, needed.len() as u32 - 50);
    let first = device.blocks();
    assert_eq!((first.id, first.blocks), (5, vec![needed[0]]));
    let rest: Vec<BlockAt> = needed[1..]
        .iter()
        .filter(|at| !held.contains(at))
        .copied()
        .collect();
    assert_eq!(device.prefetched(2), rest);
    // A requested block is sent again, even if it was sent before or is held.
    for at in [needed[5], held[0]] {
        device.read(6, Some(2), at);
    }
}

#[test]
fn a_demand_overtakes_the_plan_and_is_not_sent_with_it() {
    let scratch = Scratch::new("server-priority");
    // More than the buffers in between hold, so that most of the plan waits.
    common::write(&scratch.path("tree/bin/task"), 2500 * 4096, 1);
    publish(&scratch);
    let mut with = settings(&scratch);
    with.send_buffer_bytes = Some(16 << 10);
    let running = Running::start(with);
    let mut device = Device::new(&running, &scratch, 1);
    let all: Vec<BlockAt> = (0..2500)
        .map(|index| device.at("bin/task", index))
        .collect();
    device.begin(1, "bin/task", HeldBlocks::default());
    device.begun(1);
    device.read(1, Some(1), all[0]);
    device.trace(1, &all);
    device.end(1, true);
    device.begin(2, "bin/task", HeldBlocks::default());
    assert_eq!(device.begun(2).0, 2500);
    // The device reads nothing until the buffers are full and the server waits.
    let prefetched = &running.watch.counters().blocks_prefetched;
    let mut before = u64::MAX;
    until("the server waits", || {
        std::thread::sleep(Duration::from_millis(50));
        std::mem::replace(&mut before, prefetched.load(Ordering::Relaxed)) == before && before > 0
    });
    device.ask(9, Some(2), all[2490], 0);
    let (mut came, mut position) = (Vec::new(), None);
    loop {
        match device.checked() {
            Answer::Blocks { id: 9, blocks, .. } => {
                assert_eq!(blocks, [all[2490]]);
                position = Some(came.len());
            }
            Answer::Blocks { id: 0, blocks, .. } => came.extend(blocks),
            Answer::PrefetchDone { .. } => break,
            other => panic!("{other:?}"),
        }
    }
    let position = position.unwrap() as u64;
    // The pieces that were encoded already, and at most the one in progress.
    assert!(position <= before + 2 * 32, "{position} and {before}");
    assert!(position < 2000);
    assert_eq!(came.len(), 2499);
    assert!(!came.contains(&all[2490]));
}

#[test]
fn fetched_blocks_come_last_and_all() {
    let scratch = published("server-fetch");
    let mut with = settings(&scratch);
    with.fetch_blocks_max = 100;
    let running = Running::start(with);
    let mut device = Device::new(&running, &scratch, 1);
    let wanted: Vec<BlockAt> = (0..70)
        .map(|index| device.at("lib/lib.so", index))
        .collect();
    let demanded = device.at("bin/task", 0);
    let mut both = frame(&Request::Fetch {
        id: 3,
        blocks: wanted.clone(),
    });
    both.extend(frame(&Request::Fetch {
        id: 4,
        blocks: wanted.clone(),
    }));
    both.extend(frame(&Request::Read {
        id: 5,
        token: None,
        at: demanded,
        around: 0,
    }));
    device.socket.write_all(&both).unwrap();
    let (mut came, mut is_refused, mut is_read) = (Vec::new(), false, false);
    loop {
        match device.checked() {
            Answer::Refused { id, token, reason } => {
                assert_eq!((id, token, reason), (4, None, Refusal::Limit));
                is_refused = true;
            }
            Answer::Blocks { id: 5, .. } => {
                assert!(came.len() < 70);
                is_read = true;
            }
            Answer::Blocks { id, blocks, .. } => {
                assert_eq!(id, 3);
                came.extend(blocks);
            }
            Answer::Fetched { id } => {
                assert_eq!(id, 3);
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(is_refused && is_read);
    assert_eq!(came, wanted);
}

#[test]
fn hashes_and_plans_are_told_when_asked_for() {
    let scratch = published("server-ask");
    let running = Running::start(settings(&scratch));
    let mut device = Device::new(&running, &scratch, 1);
    let needed = needed(&device);
    let (task, other) = (device.file("bin/task"), device.file("bin/other"));
    device.send(&Request::AskPlan { id: 1, task });
    let none = Answer::Plan {
        id: 1,
        has_more: false,
        blocks: Vec::new(),
    };
    assert_eq!(device.checked(), none);
    device.run(1, "bin/task", &needed);
    device.send(&Request::AskPlan { id: 2, task });
    let plan = Answer::Plan {
        id: 2,
        has_more: false,
        blocks: needed,
    };
    assert_eq!(device.checked(), plan);
    for _ in 0..2 {
        let at = GroupAt {
            file: other,
            group: 0,
        };
        device.send(&Request::AskGroups { groups: vec![at] });
        match device.answer() {
            Answer::Group { at: of, group } => {
                assert_eq!((of, group.hashes.len(), group.proof.len()), (at, 40, 0));
            }
            answer => panic!("{answer:?}"),
        }
    }
    for (file, group) in [(FileId(12345), 0), (other, 1), (other, u32::MAX)] {
        let groups = vec![GroupAt { file, group }];
        device.send(&Request::AskGroups { groups });
        assert_eq!(device.checked(), refused(None, Refusal::NoSuchBlock));
    }
}

fn refused(token: Option<Token>, reason: Refusal) -> Answer {
    let id = 0;
    Answer::Refused { id, token, reason }
}

#[test]
fn tokens_are_used_once_and_belong_to_their_device() {
    let scratch = published("server-tokens");
    let mut with = settings(&scratch);
    with.tasks_max = 2;
    let running = Running::start(with);
    let mut device = Device::new(&running, &scratch, 1);
    let mut other = Device::new(&running, &scratch, 2);
    let needed = needed(&device);
    let reused = refused(Some(token(1)), Refusal::TokenReused);
    device.begin(1, "bin/task", HeldBlocks::default());
    device.begun(1);
    for device in [&mut device, &mut other] {
        device.begin(1, "bin/task", HeldBlocks::default());
        assert_eq!(device.checked(), reused);
    }
    // Reports of another device for this token have no effect, and the block that it reads is sent.
    other.trace(1, &needed);
    let unknown = refused(Some(token(1)), Refusal::NoSuchToken);
    assert_eq!(other.checked(), unknown);
    other.send(&Request::End {
        token: token(1),
        is_exact: true,
        has_exited: true,
    });
    assert_eq!(other.checked(), unknown);
    other.read(4, Some(1), needed[0]);
    device.trace(1, &needed[..5]);
    device.end(1, true);
    device.begin(1, "bin/task", HeldBlocks::default());
    assert_eq!(device.checked(), reused);
    // Blocks that the device has for one start are not sent for the other one.
    for (number, blocks) in [(2, 5), (3, 0)] {
        device.begin(number, "bin/task", HeldBlocks::default());
        assert_eq!(device.begun(number).0, blocks);
        device.prefetched(number);
    }
    device.begin(4, "bin/task", HeldBlocks::default());
    assert_eq!(device.checked(), refused(Some(token(4)), Refusal::Limit));
    let counters = running.watch.counters();
    assert_eq!(counters.refused(Reason::TokenReused), 3);
    assert_eq!(counters.refused(Reason::NoSuchToken), 3);
    assert_eq!(counters.refused(Reason::Tokens), 1);
}

#[test]
fn all_modes_and_arms_answer() {
    let scratch = published("server-modes");
    let cases = [
        (Mode::Paper, Arm::Async),
        (Mode::None, Arm::None),
        (Mode::Task, Arm::Madvise),
        (Mode::Task, Arm::Variance),
        (Mode::Task, Arm::Async),
    ];
    for (mode, arm) in cases {
        let mut with = settings(&scratch);
        (with.predict, with.provide) = (mode, arm);
        with.variance_min = 0.1;
        let running = Running::start(with);
        let mut device = Device::new(&running, &scratch, 1);
        let needed = needed(&device);
        device.begin(1, "bin/task", HeldBlocks::default());
        device.begun(1);
        for (id, at) in (1..).zip(&needed) {
            device.read(id, Some(1), *at);
        }
        device.trace(1, &needed);
        device.end(1, true);
        let provider = running.watch.provider();
        assert!(provider.memory_bytes > 0 && provider.failures == 0);
        if mode == Mode::Task && arm == Arm::Variance {
            // The actions learned in the previous arm are in memory before the first request.
            assert!(
                provider.ahead > 0 && provider.ahead_used > 0,
                "{provider:?}"
            );
        }
    }
}

#[test]
fn pieces_are_compressed_once_and_better_in_the_background() {
    let scratch = published("server-bundles");
    let mut with = settings(&scratch);
    with.bundle_level = 6;
    let running = Running::start(with);
    let mut device = Device::new(&running, &scratch, 1);
    let needed = needed(&device);
    device.run(1, "bin/task", &needed);
    let counters = running.watch.counters();
    let pieces = needed.len().div_ceil(32) as u64;
    until("the pieces are compressed anew", || {
        counters.bundles_improved.load(Ordering::Relaxed) == pieces
    });
    assert_eq!(device.run(2, "bin/task", &needed), needed);
    assert_eq!(counters.bundles_hits.load(Ordering::Relaxed), pieces);
    assert_eq!(counters.bundles_misses.load(Ordering::Relaxed), 0);
}

#[test]
fn memory_is_bounded_with_any_reads() {
    let scratch = published("server-memory");
    let mut with = settings(&scratch);
    (with.memory_bytes_max, with.bundle_bytes_max) = (300 << 10, 20 << 10);
    let running = Running::start(with);
    let mut device = Device::new(&running, &scratch, 1);
    let needed = needed(&device);
    for number in 1..4 {
        device.run(number, "bin/task", &needed);
        assert!(running.watch.provider().memory_bytes <= 300 << 10);
    }
    let metrics = running.watch.metrics();
    let bytes = metrics
        .lines()
        .find_map(|line| line.strip_prefix("keel_stream_bundles_bytes "));
    assert!(bytes.unwrap().parse::<u64>().unwrap() <= 20 << 10);
    assert!(running.watch.provider().misses > 10);
}

#[test]
fn a_damaged_store_is_told_and_the_rest_goes_on() {
    let scratch = published("server-store");
    // All packs but what a first server has read.
    let running = Running::start(settings(&scratch));
    for entry in fs::read_dir(scratch.path("store/packs")).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        let end = bytes.len();
        bytes[end / 2..].fill(0);
        fs::write(&path, bytes).unwrap();
    }
    let mut device = Device::new(&running, &scratch, 1);
    let mut refused = 0;
    for index in 0..300 {
        let at = device.at("lib/lib.so", index);
        device.ask(index + 1, None, at, 0);
        match device.checked() {
            Answer::Blocks { .. } => {}
            Answer::Refused { reason, .. } => {
                assert_eq!(reason, Refusal::Damaged);
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(refused > 0);
    assert_eq!(running.watch.counters().refused(Reason::Damaged), refused);
}

#[test]
fn a_bad_frame_closes_that_connection_only() {
    let scratch = published("server-bad");
    let running = Running::start(settings(&scratch));
    let mut good = Device::new(&running, &scratch, 1);
    let counters = running.watch.counters();
    let mut damaged = frame(&Request::Ping { id: 1 });
    *damaged.last_mut().unwrap() ^= 1;
    let mut huge = frame(&Request::Ping { id: 1 });
    huge[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut unknown = vec![0; 12];
    base::wire::encode(0x7f, 1, &[], &mut unknown).unwrap();
    let cases = [
        (damaged, Reason::BadFrame),
        (huge, Reason::BadFrame),
        (unknown, Reason::BadMessage),
        (frame(&hello(3, None)), Reason::OutOfOrder),
    ];
    for (bytes, reason) in cases {
        let before = counters.refused(reason);
        let mut bad = Device::new(&running, &scratch, 2);
        bad.socket.write_all(&bytes).unwrap();
        assert!(is_closed(&mut bad), "{reason:?}");
        until("it is counted", || counters.refused(reason) == before + 1);
        good.ping();
    }
    // The first message must be Hello.
    let mut socket = connect(running.address);
    socket.write_all(&frame(&Request::Ping { id: 1 })).unwrap();
    assert_eq!(socket.read(&mut [0; 16]).unwrap_or(0), 0);
    good.ping();
}

#[test]
fn a_silent_connection_keeps_no_place() {
    let scratch = published("server-slow");
    let mut with = settings(&scratch);
    with.half_open_max = 4;
    with.handshake_deadline = Duration::from_millis(300);
    with.message_deadline = Duration::from_millis(300);
    let running = Running::start(with);
    let counters = running.watch.counters();
    let silent: Vec<_> = (0..12).map(|_| connect(running.address)).collect();
    let mut device = Device::new(&running, &scratch, 1);
    device.ping();
    until("all are gone", || {
        counters.refused(Reason::HalfOpen) + counters.refused(Reason::HandshakeDeadline) == 12
    });
    assert!(counters.refused(Reason::HalfOpen) >= 8);
    drop(silent);
    // A message that arrives byte by byte.
    let mut slow = Device::new(&running, &scratch, 2);
    slow.socket
        .write_all(&frame(&Request::Ping { id: 1 })[..5])
        .unwrap();
    assert!(is_closed(&mut slow));
    until("it is counted", || {
        counters.refused(Reason::SlowSender) == 1
    });
    device.ping();
}

#[test]
fn a_slow_reader_costs_itself_only() {
    let scratch = published("server-reader");
    let mut with = settings(&scratch);
    with.write_deadline = Duration::from_millis(500);
    with.send_buffer_bytes = Some(16 << 10);
    with.requests_max = 16;
    let running = Running::start(with);
    let counters = running.watch.counters();
    let slow = Device::new(&running, &scratch, 1);
    let requests: Vec<u8> = (0..2000u32)
        .flat_map(|id| {
            frame(&Request::Read {
                id: id + 1,
                token: None,
                at: slow.at("lib/lib.so", id % 300),
                around: 31,
            })
        })
        .collect();
    // It requests more than the buffers hold, and reads nothing.
    let mut writer = slow.socket.try_clone().unwrap();
    let asking = std::thread::spawn(move || writer.write_all(&requests).is_ok());
    let mut good = Device::new(&running, &scratch, 2);
    let at = good.at("bin/task", 0);
    for id in 1..50 {
        good.read(id, None, at);
    }
    until("the slow one is given up", || {
        counters.refused(Reason::SlowReader) == 1
    });
    good.read(60, None, at);
    drop(slow);
    asking.join().unwrap();
}

#[test]
fn clients_and_their_connections_are_limited() {
    let scratch = published("server-limits");
    let mut with = settings(&scratch);
    (with.clients_max, with.connections_max) = (2, 2);
    with.idle_deadline = Duration::from_secs(20);
    let running = Running::start(with);
    let greet = |number| Device::greet(running.address, &scratch.path("store"), number, None);
    let mut first = greet(1).unwrap();
    let second = greet(1).unwrap();
    assert_eq!(greet(1).err(), Some(Refusal::Limit));
    let other = greet(2).unwrap();
    assert_eq!(greet(3).err(), Some(Refusal::Limit));
    first.ping();
    drop((second, other));
    until("there is room again", || greet(3).is_ok());
    until("and for connections", || greet(1).is_ok());
    let counters = running.watch.counters();
    assert!(counters.refused(Reason::Clients) >= 1);
    assert!(counters.refused(Reason::Connections) >= 1);
}

#[test]
fn without_an_identity_only_this_machine_is_served() {
    let scratch = published("server-loopback");
    let mut with = settings(&scratch);
    with.listen = "0.0.0.0:0".parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let refused = runtime.block_on(Server::bind(with)).err().unwrap();
    assert!(matches!(refused, ServerError::NotLoopback(_)));
}

#[test]
fn metrics_are_given_over_http() {
    let scratch = published("server-metrics");
    let mut with = settings(&scratch);
    with.metrics = Some("127.0.0.1:0".parse().unwrap());
    let running = Running::start(with);
    let mut device = Device::new(&running, &scratch, 1);
    let needed = needed(&device);
    device.run(1, "bin/task", &needed);
    let ask = |request: &str| {
        let mut socket = connect(running.metrics.unwrap());
        socket.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        socket.read_to_string(&mut text).ok();
        text
    };
    let text = ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"));
    assert!(body.contains("keel_stream_clients 1\n"));
    assert!(body.contains("keel_stream_tasks_begun_total 1\n"));
    let demanded = format!(
        "keel_stream_blocks_total{{reason=\"demand\"}} {}\n",
        needed.len()
    );
    assert!(body.contains(&demanded));
    let names: Vec<&str> = body
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .collect();
    for line in body.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        assert!(names.contains(&name), "{line}");
    }
    assert!(ask("GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(ask("POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 400"));
    assert!(ask(&"x".repeat(9000)).is_empty() || ask(&"x".repeat(9000)).contains("400"));
}

#[test]
fn a_silent_client_of_metrics_delays_no_other() {
    let scratch = published("server-metrics-silent");
    let mut with = settings(&scratch);
    with.metrics = Some("127.0.0.1:0".parse().unwrap());
    let running = Running::start(with);
    // Far more than the allowed number of connections: served one after the other, they would take longer than this
    // test waits.
    let mut silent: Vec<_> = (0..200)
        .map(|_| connect(running.metrics.unwrap()))
        .collect();
    let mut socket = connect(running.metrics.unwrap());
    socket.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    assert!(text.contains("keel_stream_clients 0\n"));
    for socket in &mut silent {
        assert!(matches!(socket.read(&mut [0]), Ok(0) | Err(_)));
    }
}

#[test]
fn blocks_of_two_tasks_take_turns() {
    let scratch = published("server-turns");
    let running = Running::start(settings(&scratch));
    let mut device = Device::new(&running, &scratch, 1);
    let needed = needed(&device);
    let others: Vec<BlockAt> = (0..40).map(|index| device.at("bin/other", index)).collect();
    device.run(1, "bin/task", &needed);
    device.run(2, "bin/other", &others);
    let mut both = Vec::new();
    for (number, path) in [(3, "bin/task"), (4, "bin/other")] {
        both.extend(frame(&Request::Begin {
            token: token(number),
            task: device.file(path),
            held: HeldBlocks::default(),
        }));
    }
    device.socket.write_all(&both).unwrap();
    let (mut first, mut second) = (Vec::new(), Vec::new());
    let mut over = 0;
    while over < 2 {
        match device.checked() {
            Answer::Blocks {
                token: of, blocks, ..
            } if of == token(3) => first.extend(blocks),
            Answer::Blocks {
                token: of, blocks, ..
            } if of == token(4) => {
                assert!(first.len() < needed.len());
                second.extend(blocks);
            }
            Answer::PrefetchDone { .. } => over += 1,
            Answer::Begun { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(sorted(first), sorted(needed));
    assert_eq!(second, others);
}

#[test]
fn a_tenant_changes_only_its_own_learned_actions() {
    let scratch = published("server-tenants");
    let authority = Authority::new(&scratch.path("authority")).unwrap();
    let server = scratch.path("server");
    authority
        .issue_server(&["127.0.0.1".to_owned()], &server)
        .unwrap();
    for (name, tenant) in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("gone", "b")] {
        authority
            .issue_device(name, tenant, &scratch.path(name))
            .unwrap();
    }
    authority.revoke("gone").unwrap();
    let mut with = settings(&scratch);
    let devices = scratch.path("authority").join(DEVICES_FILE);
    with.identity = Some(Identity::load(&server, &devices).unwrap());
    let running = Running::start(with);
    let device = |name, number| Device::with_tls(&running, &scratch, &scratch.path(name), number);
    // The same number and the same tokens: only the certificates identify the devices.
    let (mut first, mut other) = (device("a1", 1), device("b1", 1));
    let needed = needed(&first);
    assert!(first.run(1, "bin/task", &needed).is_empty());
    assert!(other.run(1, "bin/task", &needed[..9]).is_empty());
    assert_eq!(device("a2", 1).run(2, "bin/task", &needed), needed);
    assert_eq!(other.run(2, "bin/task", &needed[..9]), needed[..9]);
    // A device that was removed from the list: its certificate is valid, but it is refused before it gets any answer.
    let (config, name) = device_config(&scratch.path("gone"), "127.0.0.1:1").unwrap();
    let mut tls = rustls::ClientConnection::new(config, name).unwrap();
    let mut socket = connect(running.address);
    let mut stream = rustls::Stream::new(&mut tls, &mut socket);
    stream.write_all(&frame(&hello(1, None))).ok();
    assert_eq!(stream.read(&mut [0; 16]).unwrap_or(0), 0);
    let counters = running.watch.counters();
    until("it is counted", || {
        counters.refused(Reason::UnknownDevice) == 1
    });
    // A device without a certificate is refused as well.
    let mut plain = connect(running.address);
    plain.write_all(&frame(&hello(1, None))).unwrap();
    until("it is counted", || counters.refused(Reason::Tls) == 1);
    drop((first, other));
    running.end();
    for tenant in ["a", "b"] {
        assert!(
            scratch
                .path(&format!("store/actions/{tenant}.actions"))
                .exists()
        );
    }
}
