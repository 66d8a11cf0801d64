//! The wall clock of a node is stepped by an hour, back and forward, at random moments. A preloaded library adds the
//! step to what the node reads. The clock of the machine is never touched.

use crate::common::load::{self, Load, Rounds};
use crate::common::node::Node;
use crate::common::wait_until;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

const HOUR_S: i64 = 3_600;

/// Adds the seconds in a file, which is mapped, to the wall clock alone.
const LIBRARY: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static volatile const int64_t *step_s = MAP_FAILED;
__attribute__((constructor)) static void begin(void) {
    int file = open(getenv("KEEL_TEST_CLOCK"), O_RDONLY);
    step_s = mmap(0, sizeof *step_s, PROT_READ, MAP_SHARED, file, 0);
}
int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && clock == CLOCK_REALTIME && step_s != MAP_FAILED) time->tv_sec += *step_s;
    return result;
}
"#;

/// The wall clock of one node, as it is for each further start.
struct WallClock {
    step: File,
}

impl WallClock {
    fn of(node: &mut Node) -> Self {
        let (source, library) = (node.dir.file("clock.c"), node.dir.file("clock.so"));
        std::fs::write(&source, LIBRARY).unwrap();
        let built = Command::new("cc")
            .args(["-O1", "-shared", "-fPIC", "-o"])
            .args([&library, &source])
            .output()
            .unwrap();
        assert!(built.status.success(), "{built:?}");
        let path = node.dir.file("step");
        let step = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap();
        for (name, path) in [("LD_PRELOAD", library), ("KEEL_TEST_CLOCK", path)] {
            node.variables.push((name, path.display().to_string()));
        }
        let clock = Self { step };
        clock.set(0);
        clock
    }

    /// Sets the seconds by which the clock differs from that of the machine.
    fn set(&self, step_s: i64) {
        self.step.write_all_at(&step_s.to_ne_bytes(), 0).unwrap();
    }
}

fn steps(node: &Node) -> u64 {
    load::status(node)["clock"]["steps"].as_u64().unwrap()
}

#[test]
fn a_clock_that_is_stepped_by_an_hour_costs_no_reading() {
    if cfg!(target_feature = "crt-static") {
        println!(
            "skipped: a program that is linked statically reads the clock of the machine itself"
        );
        return;
    }
    // A value is fresh for ten minutes, or not for long enough to be seen, at any step of the wall clock.
    let keys = "[[key]]\npattern = \"long\"\nvalidity_ms = 600000\n[[key]]\npattern = \"brief\"\nvalidity_ms = 1\n";
    let mut node = Node::prepare(&(load::config("create_mebibytes = 64\n", None) + keys));
    let clock = WallClock::of(&mut node);
    node.restart();
    let load = Load::start(&node);
    let mut step_s = 0;
    let (mut stepped, mut kills) = (0, 0);
    let mut rounds = Rounds::of(4);
    while rounds.more() {
        rounds.pause(300);
        for key in ["long", "brief"] {
            node.ok(&["put", key, "1"]);
        }
        let before = steps(&node);
        // An hour back, none, or an hour forward: another one than now.
        let all = [-HOUR_S, 0, HOUR_S].into_iter();
        let others: Vec<i64> = all.filter(|other| *other != step_s).collect();
        step_s = others[rounds.random.below(2) as usize];
        clock.set(step_s);
        stepped += 1;
        wait_until("the step", || steps(&node) > before);
        for (key, is_fresh) in [("long", true), ("brief", false)] {
            let found = node.json_degraded(&["get", key, "--json"]);
            assert_eq!(found["fresh"], is_fresh, "{step_s}: {found}");
            let age_ms = found["age_ms"].as_i64().unwrap();
            assert!(
                (0..1_000 * HOUR_S / 2).contains(&age_ms),
                "{step_s}: {found}"
            );
        }
        if rounds.random.below(2) == 0 {
            kills += 1;
            node.kill();
            node.restart();
        }
    }
    clock.set(0);
    rounds.pause(300);
    let sent = load.end();
    load::judge(&mut node, &sent, "keel-data/store.img", 0);
    println!("{stepped} steps, {kills} kills");
}
