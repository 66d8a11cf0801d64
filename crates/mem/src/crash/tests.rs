//! Tests with calls of every kind, in which a machine or a process dies, and the conditions that must hold then.

use crate::bytes::{At, UNCACHED_FILE_BYTES};
use crate::flush::Flush;
use crate::inode::{Attributes, NewInode};
use crate::layout::PAGE_BYTES;
use crate::logging::Logging;
use crate::node::ROOT_INODE;
use crate::writer::{Changes, Rename, Writer};

use super::Event;
use super::scene::{Call, DIRECTORY, FILE, Scene, Whole};

/// The number of states to check for each fence if there are too many; a larger number is for longer runs.
fn samples() -> usize {
    let wanted = std::env::var("KEEL_MEM_CRASH_SAMPLES").ok();
    wanted.and_then(|text| text.parse().ok()).unwrap_or(24)
}

/// Makes a call as another thread than the first: it has a lane of its own.
fn on_lane(scene: &Scene, lane: usize, call: impl FnOnce(&Writer<'_>)) {
    let mut writers: Vec<_> = (0..=lane)
        .map(|_| scene.region().writer().unwrap())
        .collect();
    call(&writers.remove(lane));
}

fn find(writer: &Writer<'_>, name: &[u8]) -> Attributes {
    writer.look_up(ROOT_INODE, name).unwrap()
}

fn write_at(writer: &Writer<'_>, name: &[u8], at: At, bytes: &[u8]) {
    let found = find(writer, name);
    let data = [std::io::IoSlice::new(bytes)];
    writer
        .write_vectored(found.inode, found.generation, at, &data, 3)
        .unwrap();
}

fn put(writer: &Writer<'_>, name: &[u8], bytes: &[u8]) {
    writer.create(ROOT_INODE, name, &FILE).unwrap();
    write_at(writer, name, At::Offset(0), bytes);
}

fn set_size(writer: &Writer<'_>, name: &[u8], size: u64) {
    let found = find(writer, name);
    writer
        .set_size(found.inode, found.generation, size, 3)
        .unwrap();
}

/// Bytes that identify their position and the write that they come from.
fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length)
        .map(|place| (place / 8) as u8 ^ (place >> 11) as u8 ^ seed.wrapping_mul(37))
        .collect()
}

const LONG: &[u8] = &[b'l'; 200];

/// Makes the files for the calls, with at most one large file.
fn prepare(scene: &Scene, large: Option<(&[u8], usize)>) {
    on_lane(scene, 0, |writer| {
        put(writer, b"one", &pattern(1, 3000));
        put(writer, LONG, &pattern(2, 900));
        put(writer, b"packed", &pattern(4, 20_000));
        if let Some((name, length)) = large {
            put(writer, name, &pattern(5, length));
        }
        put(writer, b"mapped", &pattern(6, 5000));
        put(writer, b"open", &pattern(7, 700));
        writer.create(ROOT_INODE, b"folder", &DIRECTORY).unwrap();
    });
}

/// Large files: one that lies in a slot, and one that will move to a slot with its next bytes.
const LARGE: Option<(&[u8], usize)> = Some((b"large", (1 << 20) + 50_000));
const GROWS: Option<(&[u8], usize)> = Some((b"grows", (1 << 20) - 100));

struct Action {
    name: &'static str,
    whole: Whole,
    act: Box<dyn Fn(&Scene)>,
}

fn action(name: &'static str, lane: usize, act: impl Fn(&Writer<'_>) + 'static) -> Action {
    Action {
        name,
        whole: Whole::All,
        act: Box::new(move |scene| on_lane(scene, lane, &act)),
    }
}

/// A call that may leave a mixture of the old and the new bytes of a file.
fn mixing(name: &'static str, path: &'static [u8], act: impl Fn(&Writer<'_>) + 'static) -> Action {
    Action {
        whole: Whole::AllBut(path),
        ..action(name, 0, act)
    }
}

/// A write with a given logging.
fn write(
    name: &'static str,
    lane: usize,
    logging: Logging,
    (file, at): (&'static [u8], At),
    bytes: Vec<u8>,
) -> Action {
    action(name, lane, move |writer| {
        writer.region.set_logging(logging);
        write_at(writer, file, at, &bytes);
        writer.region.set_logging(Logging::BySize);
    })
}

/// A random write, as if the file were too large for the processor's cache.
fn past_cache(
    name: &'static str,
    lane: usize,
    (file, at): (&'static [u8], At),
    bytes: Vec<u8>,
) -> Action {
    action(name, lane, move |writer| {
        let before = UNCACHED_FILE_BYTES.replace(0);
        write_at(writer, file, at, &bytes);
        UNCACHED_FILE_BYTES.set(before);
    })
}

/// Overwrites of existing bytes. Another lane repeats each of them over the same bytes: a log that is left would undo
/// the second write.
fn overwrites() -> Vec<Action> {
    let one = |at| (&b"one"[..], At::Offset(at));
    let packed = |at| (&b"packed"[..], At::Offset(at));
    vec![
        write(
            "redo of 200 bytes",
            0,
            Logging::Redo,
            one(100),
            pattern(10, 200),
        ),
        write(
            "redo by another lane",
            1,
            Logging::Redo,
            one(150),
            pattern(11, 200),
        ),
        write(
            "redo of 16 KiB",
            0,
            Logging::Redo,
            packed(1000),
            pattern(12, 16_384),
        ),
        write(
            "redo of 16 KiB by another lane",
            1,
            Logging::Redo,
            packed(1001),
            pattern(13, 16_384),
        ),
        past_cache("redo past the cache", 0, packed(2001), pattern(20, 3000)),
        past_cache(
            "redo past the cache by another lane",
            1,
            packed(2003),
            pattern(21, 3000),
        ),
        write(
            "undo of 200 bytes",
            0,
            Logging::Undo,
            one(100),
            pattern(14, 200),
        ),
        write(
            "undo by another lane",
            1,
            Logging::Undo,
            one(150),
            pattern(15, 200),
        ),
        write(
            "undo of 4 KiB",
            0,
            Logging::Undo,
            packed(3000),
            pattern(16, 4096),
        ),
        write(
            "undo behind undo",
            0,
            Logging::Undo,
            packed(7096),
            pattern(17, 4096),
        ),
        write(
            "8 bytes in their place",
            0,
            Logging::BySize,
            one(800),
            pattern(20, 8),
        ),
        write(
            "8 bytes across words",
            0,
            Logging::BySize,
            one(1004),
            pattern(21, 8),
        ),
        write(
            "copy on write of 200 bytes",
            0,
            Logging::CopyOnWrite,
            one(100),
            pattern(18, 200),
        ),
        write(
            "copy on write by another lane",
            1,
            Logging::CopyOnWrite,
            one(150),
            pattern(19, 200),
        ),
        write(
            "copy on write once more",
            0,
            Logging::CopyOnWrite,
            one(100),
            pattern(23, 200),
        ),
    ]
}

/// Calls that make a file longer.
fn appends() -> Vec<Action> {
    let at = |name: &'static [u8], at| (name, At::Offset(at));
    let end = |name: &'static [u8]| (name, At::End);
    vec![
        write(
            "append 100 bytes",
            0,
            Logging::BySize,
            end(b"one"),
            pattern(30, 100),
        ),
        write(
            "append to a larger piece",
            1,
            Logging::BySize,
            end(b"one"),
            pattern(31, 1500),
        ),
        write(
            "append into a slot",
            0,
            Logging::BySize,
            end(b"grows"),
            pattern(32, 400),
        ),
        write(
            "append 100,000 bytes",
            0,
            Logging::BySize,
            end(b"grows"),
            pattern(33, 100_000),
        ),
        write(
            "redo across the end",
            0,
            Logging::Redo,
            at(b"one", 4500),
            pattern(34, 300),
        ),
        write(
            "undo across the end",
            1,
            Logging::Undo,
            at(b"one", 4700),
            pattern(35, 300),
        ),
        write(
            "copy on write across the end",
            0,
            Logging::CopyOnWrite,
            at(b"one", 4900),
            pattern(36, 300),
        ),
        write(
            "4 bytes to a word",
            0,
            Logging::BySize,
            at(b"one", 5200),
            pattern(37, 4),
        ),
        write(
            "8 bytes across the end",
            0,
            Logging::BySize,
            at(b"one", 5200),
            pattern(38, 8),
        ),
        write(
            "behind a gap",
            0,
            Logging::BySize,
            at(b"one", 6000),
            pattern(39, 50),
        ),
        write(
            "behind a gap in a slot",
            0,
            Logging::BySize,
            at(b"grows", (1 << 20) + 150_000),
            pattern(40, 50),
        ),
        action("set a larger size", 0, |writer| {
            set_size(writer, b"one", 7000)
        }),
        action("set a size for a larger piece", 0, |writer| {
            set_size(writer, b"one", 9000)
        }),
        action("set a size for a slot", 1, |writer| {
            set_size(writer, b"packed", (1 << 20) + 5)
        }),
    ]
}

/// Calls that need not be atomic.
fn large() -> Vec<Action> {
    let over = |length: usize| {
        move |writer: &Writer<'_>| {
            write_at(writer, b"large", At::Offset(1001), &pattern(50, length));
        }
    };
    vec![
        write(
            "in a slot",
            1,
            Logging::BySize,
            (b"large", At::Offset(70_001)),
            pattern(22, 3000),
        ),
        mixing("20,000 bytes over others", b"/large", over(20_000)),
        mixing("150,000 bytes over others", b"/large", over(150_000)),
        mixing("over others without a log", b"/one", |writer| {
            writer.region.set_logging(Logging::None);
            write_at(writer, b"one", At::Offset(500), &pattern(51, 2000));
            writer.region.set_logging(Logging::BySize);
        }),
        mixing("across the end without a log", b"/one", |writer| {
            writer.region.set_logging(Logging::None);
            write_at(writer, b"one", At::Offset(2900), &pattern(52, 400));
            writer.region.set_logging(Logging::BySize);
        }),
        mixing("punch a hole into a piece", b"/packed", |writer| {
            let found = find(writer, b"packed");
            writer
                .punch(found.inode, found.generation, (3000, 9000), 4)
                .unwrap();
        }),
        mixing("punch a page out of a slot", b"/large", |writer| {
            let found = find(writer, b"large");
            writer
                .punch(found.inode, found.generation, (0, PAGE_BYTES), 4)
                .unwrap();
        }),
        action("shorten", 0, |writer| set_size(writer, b"one", 1500)),
        action("shorten and lengthen", 1, |writer| {
            set_size(writer, b"one", 2500)
        }),
        action("shorten to nothing", 0, |writer| {
            set_size(writer, b"one", 0)
        }),
        action("shorten in a slot", 0, |writer| {
            set_size(writer, b"large", 10)
        }),
        action("take memory in advance", 0, |writer| {
            let found = find(writer, b"large");
            let range = (PAGE_BYTES, 2 * PAGE_BYTES);
            writer
                .allocate(found.inode, found.generation, range, true, 5)
                .unwrap();
        }),
        action("shorten with memory behind", 0, |writer| {
            set_size(writer, b"large", 5)
        }),
        action("map", 0, |writer| {
            let found = find(writer, b"mapped");
            writer
                .map_range(found.inode, found.generation, 0, 9000)
                .unwrap();
        }),
    ]
}

fn names() -> Vec<Action> {
    vec![
        action("create", 0, |writer| {
            writer.create(ROOT_INODE, b"new", &FILE).unwrap();
        }),
        action("create with a long name", 1, |writer| {
            writer.create(ROOT_INODE, &[b'x'; 120], &FILE).unwrap();
        }),
        action("make a directory", 0, |writer| {
            writer.create(ROOT_INODE, b"second", &DIRECTORY).unwrap();
        }),
        action("make a symbolic link", 0, |writer| {
            let link = NewInode {
                mode: libc::S_IFLNK | 0o777,
                ..FILE
            };
            writer
                .create_with(ROOT_INODE, b"link", &link, &pattern(60, 90))
                .unwrap();
        }),
        action("set permissions", 0, |writer| {
            let changes = Changes {
                mode: Some(0o600),
                ..Changes::default()
            };
            writer
                .set_attributes(find(writer, b"one").node(), &changes, 6)
                .unwrap();
        }),
        action("link", 0, |writer| {
            let one = find(writer, b"one").inode;
            writer
                .link(one, find(writer, b"folder").inode, b"other", 6)
                .unwrap();
        }),
        action("rename", 0, |writer| {
            writer
                .rename(
                    (ROOT_INODE, b"new"),
                    (find(writer, b"folder").inode, b"newer"),
                    6,
                )
                .unwrap();
        }),
        action("rename over another", 1, |writer| {
            writer
                .rename((ROOT_INODE, b"packed"), (ROOT_INODE, LONG), 6)
                .unwrap();
        }),
        action("exchange", 0, |writer| {
            let names = ((ROOT_INODE, LONG), (ROOT_INODE, &b"link"[..]));
            writer
                .rename_as(names.0, names.1, 6, Rename::Exchange)
                .unwrap();
        }),
        action("move a directory", 0, |writer| {
            let into = find(writer, b"folder").inode;
            writer
                .rename((ROOT_INODE, b"second"), (into, b"second"), 6)
                .unwrap();
        }),
        action("remove a directory", 0, |writer| {
            writer
                .remove_directory(find(writer, b"folder").inode, b"second", 7)
                .unwrap();
        }),
        action("remove one of two names", 0, |writer| {
            writer.remove(ROOT_INODE, b"one", 7).unwrap();
        }),
        action("remove the last name", 0, |writer| {
            writer
                .remove(find(writer, b"folder").inode, b"other", 7)
                .unwrap();
        }),
        action("remove a large file", 0, |writer| {
            writer.remove(ROOT_INODE, b"large", 7).unwrap();
        }),
        Action {
            name: "remove an open file and close it",
            whole: Whole::All,
            act: Box::new(|scene| {
                let file = scene.region().look_up(ROOT_INODE, b"open").unwrap();
                let opened = scene
                    .attachment
                    .open_description(&file, libc::O_RDWR)
                    .unwrap();
                on_lane(scene, 0, |writer| {
                    writer.remove(ROOT_INODE, b"open", 7).unwrap()
                });
                scene.attachment.closing(&opened.1);
                // SAFETY: opened just now, and no other code knows it.
                unsafe { libc::close(opened.0) };
                scene.attachment.closed(&opened.1).unwrap();
            }),
        },
        action("create once more", 1, |writer| {
            writer.create(ROOT_INODE, b"last", &FILE).unwrap();
        }),
    ]
}

fn record(scene: &Scene, actions: &[Action]) -> Vec<Call> {
    let record = |action: &Action| scene.call(action.name, action.whole, &*action.act);
    actions.iter().map(record).collect()
}

/// Prints the number of states for the summary of all tests (scripts/test-report.py), and checks that it has not
/// shrunk. The minimum is about a tenth below the measured number.
fn count(states: u64, states_min: u64) {
    println!("crash states: {states}");
    assert!(states >= states_min, "the test explores too little");
}

/// Lets the machine crash at each point of each of the calls.
fn machine_dies_in(name: &str, large: Option<(&[u8], usize)>, actions: &[Action], states_min: u64) {
    let mut scene = Scene::new(name, Flush::CacheLines, samples());
    prepare(&scene, large);
    let mut model = scene.model();
    for call in record(&scene, actions) {
        let before = scene.states;
        scene
            .die_in(&mut model, &call, None)
            .unwrap_or_else(|wrong| panic!("{wrong}"));
        println!("{}: {} states", call.name, scene.states - before);
    }
    println!("{name}: {} states of a dead machine's memory", scene.states);
    count(scene.states, states_min);
}

#[test]
fn a_machine_dies_while_bytes_are_overwritten() {
    machine_dies_in("overwrites", None, &overwrites(), 1_400);
}

#[test]
fn a_machine_dies_while_files_grow() {
    machine_dies_in("appends", GROWS, &appends(), 6_700);
}

#[test]
fn a_machine_dies_in_calls_that_are_made_in_parts() {
    machine_dies_in("large", LARGE, &large(), 4_400);
}

#[test]
fn a_machine_dies_while_names_change() {
    machine_dies_in("names", LARGE, &names(), 23_500);
}

#[test]
fn a_process_is_killed_after_each_store_of_every_call() {
    let mut states = 0;
    for (name, large, actions) in [
        ("killed-overwrites", None, overwrites()),
        ("killed-appends", GROWS, appends()),
        ("killed-large", LARGE, large()),
        ("killed-names", LARGE, names()),
    ] {
        let mut scene = Scene::new(name, Flush::None, 0);
        prepare(&scene, large);
        let mut model = scene.model();
        for call in record(&scene, &actions) {
            scene
                .kill_in(&mut model, &call)
                .unwrap_or_else(|wrong| panic!("{wrong}"));
        }
        states += scene.states;
    }
    println!("killed processes: {states} states of their memory");
    count(states, 2_900);
}

/// Leaves out each write-back and each fence of the calls, one at a time. The machine then crashes in that call and in
/// the next one. Returns the events whose absence the test does not detect.
fn not_missed(name: &str, large: Option<(&[u8], usize)>, actions: &[Action]) -> Vec<String> {
    let mut scene = Scene::new(name, Flush::CacheLines, samples());
    prepare(&scene, large);
    let mut model = scene.model();
    let calls = record(&scene, actions);
    let mut left_out = 0;
    let mut unnoticed = Vec::new();
    for (place, call) in calls.iter().enumerate() {
        // No call follows the last one, so its missing events cannot be detected.
        let Some(next) = calls.get(place + 1) else {
            break;
        };
        for (number, event) in call.events.iter().enumerate() {
            if !matches!(event, Event::WriteBack { .. } | Event::Fence) {
                continue;
            }
            left_out += 1;
            let mut with_bug = model.clone();
            let survived = scene
                .die_in(&mut with_bug, call, Some(number))
                .and_then(|()| scene.die_in(&mut with_bug, next, None));
            if survived.is_ok() {
                unnoticed.push(format!("{}: event {number}, {event:?}", call.name));
            }
            // The stage was compared with that model's durable words.
            for call in [call, next] {
                let events = call.events.iter();
                events.for_each(|event| scene.note_on_stage(event));
            }
        }
        scene
            .die_in(&mut model, call, None)
            .unwrap_or_else(|wrong| panic!("{wrong}"));
    }
    println!(
        "{name}: {left_out} things left out, {} noticed, {} states",
        left_out - unnoticed.len(),
        scene.states
    );
    println!("not noticed: {unnoticed:#?}");
    unnoticed
}

#[test]
fn no_fence_of_an_overwrite_can_be_left_out_unnoticed() {
    let unnoticed = not_missed("left-out", None, &overwrites());
    let is_fence = |text: &&String| text.ends_with("Fence");
    let fences: Vec<_> = unnoticed.iter().filter(is_fence).collect();
    // These belong to a copy past the cache, in two parts, with a fence each: they are for readers on other processors.
    // The fence that waits for memory comes later.
    assert_eq!(fences.len(), 4, "{fences:#?}");
    assert!(fences.iter().all(|text| text.contains("past the cache")));
    // These are lines that hold only times, and lines that a change of words writes back twice. Others hold words that
    // happen to be the same as after the previous change.
    assert!(unnoticed.len() <= 28, "{unnoticed:#?}");
}

#[test]
fn calls_write_back_and_wait_as_often_as_they_must() {
    let scene = Scene::new("costs", Flush::CacheLines, 0);
    prepare(&scene, LARGE);
    // Takes a page for its larger pieces, which later files find there.
    on_lane(&scene, 0, |writer| {
        put(writer, b"first", &pattern(1, 20_000))
    });
    scene.start();
    let over = |name, logging, length| {
        let at = (&b"packed"[..], At::Offset(64));
        write(name, 0, logging, at, pattern(3, length))
    };
    let rows = [
        (over("overwrite, 8 bytes", Logging::BySize, 8), [2, 1, 0]),
        (
            over("overwrite, 1 KiB, redo", Logging::Redo, 1024),
            [36, 4, 0],
        ),
        (
            over("overwrite, 4 KiB, redo", Logging::Redo, 4096),
            [132, 4, 0],
        ),
        (
            over("overwrite, 4 KiB, undo", Logging::Undo, 4096),
            [133, 4, 0],
        ),
        (
            over("overwrite, 16 KiB, redo", Logging::Redo, 16_384),
            [516, 4, 0],
        ),
        (
            over(
                "overwrite, 4 KiB, copy on write of 20,000 bytes",
                Logging::CopyOnWrite,
                4096,
            ),
            [324, 4, 0],
        ),
        (
            over("overwrite, 4 KiB, mode posix", Logging::None, 4096),
            [65, 1, 0],
        ),
        (
            write(
                "append, 1 KiB",
                0,
                Logging::BySize,
                (b"packed", At::End),
                pattern(4, 1024),
            ),
            [18, 2, 0],
        ),
        // Tests copy in two parts, with a fence each; otherwise it is one fence less.
        (
            write(
                "overwrite, 64 KiB, past the cache",
                0,
                Logging::BySize,
                (b"large", At::Offset(0)),
                pattern(5, 65_536),
            ),
            [1, 4, 0],
        ),
        (
            action("create", 0, |writer| {
                writer.create(ROOT_INODE, b"new", &FILE).unwrap();
            }),
            [24, 4, 0],
        ),
        (
            action("rename", 0, |writer| {
                writer
                    .rename((ROOT_INODE, b"new"), (ROOT_INODE, b"newer"), 6)
                    .unwrap();
            }),
            [23, 4, 0],
        ),
        (
            action("remove, an empty file", 0, |writer| {
                writer.remove(ROOT_INODE, b"newer", 7).unwrap()
            }),
            [29, 9, 0],
        ),
        (
            action("remove, a large file of one page", 0, |writer| {
                writer.remove(ROOT_INODE, b"large", 7).unwrap()
            }),
            [47, 18, 1],
        ),
    ];
    println!("| call | lines written back | fences | syncs of the file |");
    let mut wrong = Vec::new();
    for (action, expected) in rows {
        let cost = scene.call(action.name, action.whole, &*action.act).cost();
        let found = [cost.lines, cost.fences, cost.syncs];
        println!(
            "| {} | {} | {} | {} |",
            action.name, found[0], found[1], found[2]
        );
        if found != expected {
            wrong.push((action.name, found, expected));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
#[test]
fn a_store_through_a_mapping_is_durable_once_it_is_synchronised() {
    let scene = Scene::new("mapped", Flush::CacheLines, 0);
    prepare(&scene, None);
    let file = scene.region().look_up(ROOT_INODE, b"mapped").unwrap();
    let (descriptor, opened) = scene
        .attachment
        .open_description(&file, libc::O_RDWR)
        .unwrap();
    let (_, at) = scene.attachment.map(&opened, 0, 5000).unwrap();
    scene.start();
    scene.attachment.sync(&opened).unwrap();
    let done = scene.stop();
    // SAFETY: opened by this test, and no other code knows it.
    unsafe { libc::close(descriptor) };
    let written_back = done.iter().position(|event| {
        matches!(event, Event::WriteBack { at: from, bytes } if (*from, *bytes) == (at, PAGE_BYTES))
    });
    let waited = done.iter().rposition(|event| matches!(event, Event::Fence));
    assert!(written_back.is_some() && written_back < waited, "{done:?}");
}
