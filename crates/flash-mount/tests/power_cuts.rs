//! Cuts the power while programs use a mounted store: for any surviving part of the unflushed writes, the next mount
//! must show the promised data.

#[path = "common/support.rs"]
mod support;
#[path = "common/writers.rs"]
mod writers;

use std::sync::Arc;

use base::block::BlockDevice;
use flash::Store;
use support::{Mount, Setup, can_mount};
use writers::{Promises, judge, start};

/// Number of stores; each begins empty, with its own writers.
const LIVES: u64 = 4;

/// Number of power cuts for each store.
const CUTS: u64 = 20;

/// Device writes between two cuts.
const WRITES_BETWEEN: u64 = 40;

#[test]
fn acknowledged_writes_survive_a_power_cut() {
    if !can_mount() {
        return;
    }
    let mut promised = 0;
    let mut left_behind = 0;
    for life in 0..LIVES {
        let mount = Mount::with(Setup {
            blocks: 4096,
            ..Setup::default()
        });
        let promises = Arc::new(Promises::default());
        let writers = start(mount.directory(), &promises);
        for cut in 0..CUTS {
            wait_for_writes(&mount, WRITES_BETWEEN);
            let before = promises.acknowledged();
            let image = mount.after_some_power_cut(life * 1_000 + cut);
            promised += before.total();
            let again = Mount::of(image, Setup::default());
            let found = again.mounted().leftovers();
            left_behind += found.files_deleted + found.renames_finished;
            judge(again.directory(), &before, &promises);
            let mut store: Store<_> = again.end();
            let report = store.check().unwrap();
            assert!(
                report.is_clean(),
                "life {life}, cut {cut}: {:?}",
                report.problems
            );
        }
        promises.stop();
        for writer in writers {
            let end = writer.join().unwrap();
            assert_eq!(end.to_string(), "was told to stop");
        }
        judge(mount.directory(), &promises.acknowledged(), &promises);
    }
    // Otherwise the cuts came before there was anything to lose.
    assert!(promised > 100_000, "{promised}");
    println!("{} cuts, {left_behind} leftovers", LIVES * CUTS);
}

fn wait_for_writes(mount: &Mount, count: u64) {
    let writes = || mount.device.with(|device| device.counters().writes);
    let enough = writes() + count;
    while writes() < enough {
        std::thread::yield_now();
    }
}
