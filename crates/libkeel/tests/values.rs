//! Values in place, where a node writes them: correct, consistent, without a system call and without an allocation.
//! Also how readers behave when the node ends and another begins.
#![allow(
    unsafe_code,
    reason = "a counting allocator is unsafe by its trait; and system calls"
)]

mod common;

use base::error::Code;
use common::{EMPTY, FakeNode, Folder, NUMBER, Served, TEXT, wait_until};
use libkeel::whereabouts::{Whereabouts, path_beside};
use libkeel::{Key, Node, Owned, Value};
use serde_json::json;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn code<T>(result: Result<T, libkeel::Error>) -> Option<Code> {
    result.err().map(|error| error.code())
}

fn silent(folder: &Folder) -> FakeNode {
    FakeNode::start(folder, |_, _| None)
}

#[test]
fn values_are_read_where_they_lie() {
    let folder = Folder::new();
    let _node = silent(&folder);
    let served = Served::start(&folder, 1);
    let node = Node::attach(folder.socket()).unwrap();
    assert!(node.is_shared() && node.is_live());
    assert_eq!(node.why_not_shared(), None);
    let number = node.key(NUMBER).unwrap();
    let (value, times) = number.float().unwrap();
    assert_eq!(value.to_bits(), 21.5_f64.to_bits());
    assert!(times.fresh && times.temporal && times.this_boot && times.node_time);
    assert!(!times.retained);
    assert_eq!(times.validity_ms, 60_000);
    assert_eq!(number.read().unwrap().0, Owned::Float(21.5));
    // The next value is visible to a holder of the key.
    served.write(NUMBER, &(-3.0_f64).to_le_bytes());
    assert_eq!(number.read().unwrap().0, Owned::Float(-3.0));
    // The age of one that a broker had kept is unknown.
    served.write_marked(NUMBER, &4.0_f64.to_le_bytes(), true);
    let (value, times) = number.float().unwrap();
    assert!(value.to_bits() == 4.0_f64.to_bits() && !times.fresh && times.retained);
    let text = node.key(TEXT).unwrap();
    assert_eq!(text.read().unwrap().0, Owned::Text("closed".to_owned()));
    assert_eq!(code(text.float()), Some(Code::Unsupported));
    let seen = text.with_bytes(|bytes| (bytes.len(), bytes.word(0), bytes.word(1)));
    assert_eq!(
        seen.unwrap().0,
        (7, Some(u64::from_le_bytes(*b"tclosed\0")), None)
    );
    assert_eq!(code(text.read_into(&mut [0; 6])), Some(Code::Invalid));
    let mut bytes = [0; 9];
    assert_eq!(text.read_into(&mut bytes).unwrap().0, 7);
    assert_eq!(&bytes, b"tclosed\0\0");
    served.write(TEXT, b"??");
    assert_eq!(text.read().unwrap().0, Owned::Bytes(b"??".to_vec()));
    assert_eq!(code(node.key(EMPTY).unwrap().read()), Some(Code::NotFound));
    assert_eq!(
        code(node.key("no/such").unwrap().read()),
        Some(Code::NotFound)
    );
    for name in ["", "a\n", &"x".repeat(256)] {
        assert_eq!(code(node.key(name)), Some(Code::Invalid));
    }
    served.end();
}

/// A function that reads one value may read another, also while the table is being replaced.
#[test]
fn a_value_may_be_read_while_another_is_looked_at() {
    let folder = Folder::new();
    let _node = silent(&folder);
    let served = Served::start(&folder, 1);
    let node = Node::attach(folder.socket()).unwrap();
    let (outer, inner) = (node.key(NUMBER).unwrap(), node.key(TEXT).unwrap());
    served.end();
    wait_until("the end of the first run", || {
        code(outer.float()) == Some(Code::Gone)
    });
    let served = Served::start(&folder, 2);
    wait_until("the second run", || outer.float().is_ok());
    // The maintenance thread tries to replace this table by a third one; the reader must not wait for it.
    let seen = outer.with_bytes(|_| {
        std::fs::remove_file(folder.0.join("keel.sock.region")).ok();
        inner.read().map(|(value, _)| value)
    });
    assert_eq!(seen.unwrap().0.unwrap(), Owned::Text("closed".to_owned()));
    served.end();
}

#[test]
fn a_node_that_ends_is_told_and_the_next_one_is_found() {
    let folder = Folder::new();
    let _node = silent(&folder);
    let served = Served::start(&folder, 1);
    let node = Node::attach(folder.socket()).unwrap();
    let number = node.key(NUMBER).unwrap();
    assert!(number.float().is_ok());
    served.end();
    wait_until("the end", || code(number.float()) == Some(Code::Gone));
    assert!(node.is_shared() && !node.is_live());
    let served = Served::start(&folder, 2);
    served.write(NUMBER, &5.0_f64.to_le_bytes());
    wait_until("the next run", || {
        number
            .float()
            .is_ok_and(|(value, _)| value.to_bits() == 5.0_f64.to_bits())
    });
    assert!(node.is_live());
    served.end();
}

#[test]
fn values_are_asked_of_the_node_without_a_region() {
    let folder = Folder::new();
    let fake = FakeNode::start(&folder, |kind, message| {
        assert_eq!(kind, 1);
        let (value, kind) = match message["key"].as_str().unwrap() {
            NUMBER => (json!(21.5), "float"),
            TEXT => (json!("open"), "text"),
            "count" => (json!(u64::MAX), "unsigned"),
            "nan" => (json!(null), "float"),
            _ => {
                let failure = json!({"code": "not-found", "thing": "x", "wrong": "no such key"});
                return Some((511, failure));
            }
        };
        Some((
            257,
            json!({
                "key": "x", "value": value, "type": kind, "time_ms": 5, "age_ms": -7, "fresh": true,
                "validity_ms": 9, "temporal": false, "node_time": true, "clock_trusted": true,
                "this_boot": true, "retained": kind == "unsigned", "of a later version": 1,
            }),
        ))
    });
    let node = Node::attach(folder.socket()).unwrap();
    assert!(!node.is_shared() && node.is_live());
    let read = |name| node.key(name).unwrap().read();
    let (value, times) = read(NUMBER).unwrap();
    assert_eq!(
        (value, times.time_ms, times.age_ms),
        (Owned::Float(21.5), 5, -7)
    );
    assert_eq!(read(TEXT).unwrap().0, Owned::Text("open".to_owned()));
    assert!(!times.retained);
    let (count, times) = read("count").unwrap();
    assert_eq!((count, times.retained), (Owned::Unsigned(u64::MAX), true));
    assert!(node.key("nan").unwrap().float().unwrap().0.is_nan());
    assert_eq!(code(read("no/such")), Some(Code::NotFound));
    // A connection that the node has closed is reopened automatically.
    fake.hang_up();
    assert!(read(TEXT).is_ok());
    fake.stop();
    assert_eq!(code(read(TEXT)), Some(Code::NotFound));
    assert!(!node.is_live());
    assert_eq!(code(Node::attach(folder.socket())), Some(Code::NotFound));
}

/// `Nanoseconds::or_ms` without its first argument, or `read.time.ms() * 1_000_000` in `Times::of`, makes it red.
#[test]
fn a_nanosecond_comes_back_through_socket_and_region() {
    const NS: i64 = 1_700_000_000_123_456_789;
    let folder = Folder::new();
    let fake = FakeNode::start(&folder, |kind, message| {
        if kind == 2 {
            return Some((258, json!({"lsn": 1})));
        }
        let mut answer = json!({
            "key": "x", "value": 1, "type": "integer", "time_ms": NS / 1_000_000, "age_ms": 1,
            "fresh": true, "validity_ms": 9, "temporal": false, "node_time": false,
            "clock_trusted": true, "this_boot": true,
        });
        // A node of an earlier version, and a reading of whole ms, have no such field.
        if message["key"] == NUMBER {
            answer["time_ns"] = json!(NS.to_string());
        }
        Some((257, answer))
    });
    let node = Node::attach(folder.socket()).unwrap();
    let times = |node: &Node, name| node.key(name).unwrap().read().unwrap().1;
    let (exact, whole) = (times(&node, NUMBER), times(&node, TEXT));
    assert_eq!((exact.time_ms, exact.time_ns), (NS / 1_000_000, NS));
    assert_eq!(whole.time_ns, 1_700_000_000_123_000_000);
    // A whole ms is sent as before, so that every node takes it.
    let key = node.key(NUMBER).unwrap();
    for (ns, field, value) in [
        (NS, "time_ns", json!("1700000000123456789")),
        (NS - 456_789, "time_ms", json!(1_700_000_000_123_i64)),
        (-1, "time_ns", json!("-1")),
    ] {
        let ticket = key.put_ns(Value::Float(0.5), Some(ns)).unwrap();
        ticket.wait(Duration::from_secs(60)).unwrap();
        let mut expected = json!({"key": NUMBER, "value": 0.5});
        expected[field] = value;
        assert_eq!(fake.request(2), expected);
    }

    let served = Served::start(&folder, 1);
    let node = Node::attach(folder.socket()).unwrap();
    assert!(node.is_shared());
    for ns in [NS, -1, NS - 456_789] {
        served.write_at(NUMBER, b"b\x01", false, db::Time::from_ns(ns));
        let found = times(&node, NUMBER);
        assert_eq!(
            (found.time_ms, found.time_ns),
            (ns.div_euclid(1_000_000), ns)
        );
    }
    served.end();
}

/// Both ways: a client of today beside an older node, and an older client, which does what this one does with a later
/// version.
#[test]
fn values_of_another_version_are_asked_for_at_the_socket() {
    let folder = Folder::new();
    let _node = FakeNode::start(&folder, |_, _| {
        Some((
            257,
            json!({
                "key": NUMBER, "value": 7.5, "type": "float", "time_ms": 5, "age_ms": 1, "fresh": true,
                "validity_ms": 9, "temporal": false, "node_time": true, "clock_trusted": true, "this_boot": true,
            }),
        ))
    });
    let served = Served::start(&folder, 1);
    let place = path_beside(&folder.socket());
    let mut found: Whereabouts = serde_json::from_slice(&std::fs::read(&place).unwrap()).unwrap();
    assert_eq!(found.version, 3);
    let value = |node: &Node| node.key(NUMBER).unwrap().float().unwrap().0;
    for version in [1, 2, 4, 0, u32::MAX] {
        found.version = version;
        std::fs::write(&place, serde_json::to_vec(&found).unwrap()).unwrap();
        let node = Node::attach(folder.socket()).unwrap();
        assert!(!node.is_shared() && node.is_live(), "{version}");
        // It is not a failure.
        assert_eq!(node.why_not_shared(), None, "{version}");
        assert_eq!(value(&node).to_bits(), 7.5_f64.to_bits(), "{version}");
    }
    found.version = 3;
    std::fs::write(&place, serde_json::to_vec(&found).unwrap()).unwrap();
    let node = Node::attach(folder.socket()).unwrap();
    assert!(node.is_shared());
    assert_eq!(value(&node).to_bits(), 21.5_f64.to_bits());
    served.end();
}

#[test]
fn a_read_allocates_no_memory() {
    let folder = Folder::new();
    let _node = silent(&folder);
    let served = Served::start(&folder, 1);
    let node = Node::attach(folder.socket()).unwrap();
    let key = node.key(NUMBER).unwrap();
    let before = COUNT.with(Cell::get);
    for _ in 0..1000 {
        read_all_ways(&key);
    }
    assert_eq!(COUNT.with(Cell::get), before);
    drop(Box::new(5));
    assert_ne!(COUNT.with(Cell::get), before, "allocations are counted");
    served.end();
}

fn read_all_ways(key: &Key) {
    assert!(key.float().is_ok());
    assert!(key.with_bytes(|bytes| bytes.len()).is_ok());
    assert!(key.read_into(&mut [0; 8]).is_ok());
}

/// From here on the kernel ends this thread at any system call except exit; `false` if it cannot. The kernel's strict
/// mode is unsuitable: in it the processor's clock cannot be read either.
fn may_only_end() -> bool {
    let step = |code, jump_true, k| libc::sock_filter {
        code,
        jt: jump_true,
        jf: 0,
        k,
    };
    let (load, jump_if_equal, answer) = (0x20, 0x15, 0x06);
    let mut steps = [
        // The system call number is at offset 0 of the filter's data.
        step(load, 0, 0),
        step(jump_if_equal, 1, libc::SYS_exit as u32),
        step(answer, 0, libc::SECCOMP_RET_KILL_THREAD),
        step(answer, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: plain system calls for this thread; the filter outlives the second.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const filter,
            ) == 0
    }
}

/// Set by a thread that the kernel ends at its first system call.
static IS_DONE: AtomicBool = AtomicBool::new(false);

#[test]
fn a_read_makes_no_system_call() {
    const SOCKET: &str = "LIBKEEL_TEST_SOCKET";
    const CHEATS: &str = "LIBKEEL_TEST_CHEATS";
    if let Some(socket) = std::env::var_os(SOCKET) {
        // This is the child process.
        let node = Node::attach(socket).unwrap();
        let key = node.key(NUMBER).unwrap();
        let cheats = std::env::var_os(CHEATS).is_some();
        std::thread::spawn(move || {
            // One-time set-up: the vDSO, thread-local storage.
            read_all_ways(&key);
            if !may_only_end() {
                std::process::exit(77);
            }
            for _ in 0..100_000 {
                read_all_ways(&key);
            }
            if cheats {
                // SAFETY: a plain system call.
                unsafe { libc::getppid() };
            }
            IS_DONE.store(true, Ordering::Release);
            // SAFETY: ends this thread, which is all that it may do.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        });
        let tasks = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let with_reader = tasks();
        wait_until("the end of the thread", || {
            IS_DONE.load(Ordering::Acquire) || tasks() < with_reader
        });
        std::process::exit(if IS_DONE.load(Ordering::Acquire) {
            0
        } else {
            78
        });
    }
    let folder = Folder::new();
    let _node = silent(&folder);
    let served = Served::start(&folder, 1);
    let child = |cheats: bool| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "a_read_makes_no_system_call", "--nocapture"]);
        command.env(SOCKET, folder.socket()).stdout(Stdio::null());
        if cheats {
            command.env(CHEATS, "1");
        }
        command.status().unwrap()
    };
    let honest = child(false);
    if honest.code() == Some(77) {
        println!("skipped: the kernel has no seccomp");
        return;
    }
    assert_eq!(honest.code(), Some(0), "{honest:?}");
    let cheating = child(true);
    assert_ne!(cheating.code(), Some(0), "a system call is found out");
    served.end();
}

#[test]
fn a_child_after_fork_is_refused_and_disturbs_no_parent() {
    let folder = Folder::new();
    let _node = silent(&folder);
    let served = Served::start(&folder, 1);
    let node = Node::attach(folder.socket()).unwrap();
    let key = node.key(NUMBER).unwrap();
    let ticket = key.put(libkeel::Value::Float(1.0), None).unwrap();
    // SAFETY: the child uses what its parent holds only in ways that take no lock of another thread, and ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_refused = code(key.float()) == Some(Code::Stale)
            && code(key.put(libkeel::Value::Float(2.0), None)) == Some(Code::Stale);
        drop((key, node));
        // SAFETY: ends the child without running what belongs to its parent.
        unsafe { libc::_exit(i32::from(!is_refused)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert!(key.float().is_ok());
    // The connection still exists: it is neither answered nor closed.
    let late = ticket.wait(Duration::from_millis(50));
    assert_eq!(code(late), Some(Code::Late));
    served.end();
}
