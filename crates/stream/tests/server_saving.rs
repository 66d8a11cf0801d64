//! Learned actions are saved: while the server runs, at its end, and after failed writes.

use crate::common::{self, Scratch};
use crate::server_support::{Device, Running, needed, publish, published, settings, until};
use std::fs;
use std::sync::atomic::Ordering;
use std::time::Duration;
use stream::BlockAt;
use stream::wire::{Answer, HeldBlocks, Refusal, Request};

#[test]
fn learned_actions_outlive_the_server_and_the_version() {
    let scratch = published("server-restart");
    let running = Running::start(settings(&scratch));
    let mut device = Device::new(&running, &scratch, 1);
    let needed = needed(&device);
    device.run(1, "bin/task", &needed);
    drop(device);
    running.end();
    let running = Running::start(settings(&scratch));
    let mut device = Device::new(&running, &scratch, 1);
    assert_eq!(device.run(2, "bin/task", &needed), needed);
    // One more file changes the numbers of others: files are identified by their paths.
    common::write(&scratch.path("tree/a/new"), 100, 9);
    assert_eq!(publish(&scratch), 2);
    let mut newer = Device::new(&running, &scratch, 1);
    assert_eq!(newer.version, 2);
    assert_ne!(newer.file("bin/task"), device.file("bin/task"));
    let needed_now = crate::server_support::needed(&newer);
    assert_eq!(newer.run(3, "bin/task", &needed_now), needed_now);
    // A device that has the older version mounted continues with it.
    device.read(5, None, needed[3]);
    let store = scratch.path("store");
    let older = Device::greet(running.address, &store, 3, Some(1)).unwrap();
    assert_eq!(older.version, 1);
    let none = Device::greet(running.address, &store, 3, Some(7));
    assert_eq!(none.err(), Some(Refusal::NoSuchVersion));
}

/// Asks for what the tests' task needs. Returns for each message of the answer whether another one follows, and all
/// blocks.
fn asked(device: &mut Device) -> (Vec<bool>, Vec<BlockAt>) {
    let (id, task) = (7, device.file("bin/task"));
    device.send(&Request::AskPlan { id, task });
    let (mut messages, mut all) = (Vec::new(), Vec::new());
    while messages.last() != Some(&false) {
        match device.checked() {
            Answer::Plan {
                id: 7,
                has_more,
                blocks,
            } => {
                messages.push(has_more);
                all.extend(blocks);
            }
            other => panic!("{other:?}"),
        }
    }
    (messages, all)
}

/// A device that runs the task gets what the failed start has read, and any other device learns that it is a part.
#[test]
fn a_start_that_lost_its_connection_is_told_as_a_part_until_a_whole_one() {
    let scratch = published("server-part");
    let running = Running::start(settings(&scratch));
    let mut device = Device::new(&running, &scratch, 1);
    let needed = needed(&device);
    device.begin(1, "bin/task", HeldBlocks::default());
    device.begun(1);
    device.trace(1, &needed[..12]);
    device.ping();
    drop(device);
    let mut device = Device::new(&running, &scratch, 2);
    let in_part = (vec![true, false], Vec::new());
    until("the end of the connection is noticed", || {
        asked(&mut device) == in_part
    });
    drop(device);
    running.end();
    let running = Running::start(settings(&scratch));
    let mut device = Device::new(&running, &scratch, 3);
    assert_eq!(asked(&mut device), in_part);
    assert_eq!(device.run(1, "bin/task", &needed), needed[..12]);
    assert_eq!(asked(&mut device), (vec![false], needed));
}

#[test]
fn changes_are_saved_while_the_server_runs() {
    let scratch = published("server-save");
    let mut with = settings(&scratch);
    with.save_after = Duration::ZERO;
    let running = Running::start(with);
    let mut device = Device::new(&running, &scratch, 1);
    let needed = needed(&device);
    device.run(1, "bin/task", &needed);
    let file = scratch.path("store/actions/local.actions");
    until("the file is there", || file.exists());
    assert_eq!(
        running
            .watch
            .counters()
            .actions_unsaved
            .load(Ordering::Relaxed),
        0
    );
}

#[test]
fn actions_that_could_not_be_saved_are_saved_later() {
    let scratch = published("server-unsaved");
    let mut with = settings(&scratch);
    with.save_after = Duration::ZERO;
    let running = Running::start(with);
    let mut device = Device::new(&running, &scratch, 1);
    let needed = needed(&device);
    // A directory at this path makes the write fail.
    let beside = scratch.path("store/actions/local.actions-new");
    fs::create_dir_all(&beside).unwrap();
    device.run(1, "bin/task", &needed);
    let unsaved = || {
        let counters = running.watch.counters();
        counters.actions_unsaved.load(Ordering::Relaxed)
    };
    until("it is tried again", || unsaved() > 1);
    // No more actions are learned from here on.
    drop(device);
    fs::remove_dir(&beside).unwrap();
    let file = scratch.path("store/actions/local.actions");
    until("the file is there", || file.exists());
    running.end();
    assert!(!beside.exists());
}

#[test]
fn a_damaged_file_of_actions_is_said_and_set_aside() {
    let scratch = published("server-damaged");
    let running = Running::start(settings(&scratch));
    let mut device = Device::new(&running, &scratch, 1);
    let needed = needed(&device);
    device.run(1, "bin/task", &needed);
    drop(device);
    running.end();
    let file = scratch.path("store/actions/local.actions");
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, &bytes).unwrap();
    let running = Running::start(settings(&scratch));
    let mut device = Device::new(&running, &scratch, 1);
    assert!(device.run(2, "bin/task", &needed).is_empty());
    assert_eq!(
        running
            .watch
            .counters()
            .actions_damaged
            .load(Ordering::Relaxed),
        1
    );
    assert_eq!(running.said.lock().unwrap().len(), 1);
    let aside = scratch.path("store/actions/local.damaged-0");
    assert_eq!(fs::read(aside).unwrap(), bytes);
    drop(device);
    running.end();
    assert!(file.exists());
}

/// Greets until the server has room: it notices the end of a connection a little later.
fn greeted(running: &Running, scratch: &Scratch, version: u64) -> Device {
    let store = scratch.path("store");
    let mut device = None;
    until("there is room", || {
        device = Device::greet(running.address, &store, 1, Some(version)).ok();
        device.is_some()
    });
    device.unwrap()
}

/// A tenant has one file. With room for one version in memory, each connection evicts the other version.
#[test]
fn an_evicted_older_version_does_not_overwrite_the_knowledge_of_the_newest() {
    let scratch = published("server-older");
    let with_one = || {
        let mut with = settings(&scratch);
        with.tenants_max = 1;
        with
    };
    let running = Running::start(with_one());
    let mut older = greeted(&running, &scratch, 1);
    let needed = needed(&older);
    older.run(1, "bin/task", &needed);
    drop(older);
    common::write(&scratch.path("tree/bin/newer"), 60 * 4096, 9);
    assert_eq!(publish(&scratch), 2);
    let mut newer = greeted(&running, &scratch, 2);
    let only_newer: Vec<_> = (0..50).map(|at| newer.at("bin/newer", at)).collect();
    newer.run(2, "bin/newer", &only_newer);
    drop(newer);
    let mut older = greeted(&running, &scratch, 1);
    older.run(3, "bin/task", &needed);
    drop(older);
    running.end();
    let running = Running::start(with_one());
    let mut newer = greeted(&running, &scratch, 2);
    assert_eq!(newer.run(4, "bin/newer", &only_newer), only_newer);
    // What the older version had learned first is there, too.
    let needed = crate::server_support::needed(&newer);
    assert_eq!(newer.run(5, "bin/task", &needed), needed);
}

#[test]
fn unsaved_actions_of_an_older_version_are_saved_by_the_newest() {
    let scratch = published("server-handed-on");
    let running = Running::start(settings(&scratch));
    let mut older = Device::new(&running, &scratch, 1);
    let needed = needed(&older);
    older.run(1, "bin/task", &needed);
    common::write(&scratch.path("tree/a/new"), 100, 9);
    assert_eq!(publish(&scratch), 2);
    drop(Device::new(&running, &scratch, 2));
    drop(older);
    running.end();
    assert!(scratch.path("store/actions/local.actions").exists());
}

#[test]
fn older_versions_leave_memory_and_their_counters_stay() {
    let scratch = published("server-leaves");
    let mut with = settings(&scratch);
    with.save_after = Duration::ZERO;
    let running = Running::start(with);
    let has = |line: &str| running.watch.metrics().contains(line);
    let mut older = Device::new(&running, &scratch, 1);
    let needed = needed(&older);
    older.run(1, "bin/task", &needed);
    common::write(&scratch.path("tree/a/new"), 100, 9);
    assert_eq!(publish(&scratch), 2);
    let _newer = Device::new(&running, &scratch, 2);
    // A device uses the older one.
    assert!(has("keel_stream_tenants 2\n"));
    drop(older);
    until("the older one leaves", || has("keel_stream_tenants 1\n"));
    let learned = "{event=\"run_learned\"} 1\n";
    assert!(has(learned), "{}", running.watch.metrics());
}
