//! The lock protocol in random orders: at each access of memory another process may run instead, and at each store a
//! process may die. The code itself runs, on a real region; only the order of processes is random. Memory is the same
//! for all processes: reordering by processors is not tested.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use shuttle::rand::{Rng, thread_rng};

use crate::lane::word;
use crate::layout::{attribute, state};
use crate::memory::Killed;
use crate::owner::Owner;
use crate::{Attributes, Logging, NewInode, ROOT_INODE, Region, RegionOptions};

thread_local! {
    // All processes of a run take turns on one thread.
    static RUNS: Cell<bool> = const { Cell::new(false) };
    static ALIVE: RefCell<BTreeSet<u64>> = const { RefCell::new(BTreeSet::new()) };
    static HOLDER: Cell<u64> = const { Cell::new(0) };
    static TAKEN_OVER: Cell<u64> = const { Cell::new(0) };
}

/// May let another process of the run continue. Returns `false` if there is no run.
pub(crate) fn others_may_go_first() -> bool {
    let runs = RUNS.get();
    if runs {
        shuttle::thread::yield_now();
    }
    runs
}

/// Whether a process of the run is alive; `None` if there is no run.
pub(crate) fn is_alive(owner: Owner) -> Option<bool> {
    RUNS.get()
        .then(|| ALIVE.with_borrow(|alive| alive.contains(&owner.as_word())))
}

const FILE: NewInode = NewInode {
    mode: libc::S_IFREG | 0o600,
    user: 0,
    group: 0,
    now_ns: 1,
};

/// The number of processes of a run; the last one does not die.
const PROCESSES: usize = 3;

/// A region that several processes have open.
struct Scratch {
    path: PathBuf,
    regions: Vec<Region>,
    file: Attributes,
}

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("keel-mem-interleaving-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let options = RegionOptions {
            capacity_bytes: 16 << 20,
            files_max: Some(100),
            lanes: 8,
        };
        let directory = NewInode {
            mode: libc::S_IFDIR | 0o700,
            ..FILE
        };
        let first = Region::create(&path, &options, &directory).unwrap();
        let writer = first.writer().unwrap();
        let file = writer.create(ROOT_INODE, b"file", &FILE).unwrap();
        writer
            .write(file.inode, file.generation, 0, &[0; 40], 1)
            .unwrap();
        drop(writer);
        let regions = (0..PROCESSES)
            .map(|_| Region::open(&path, true).unwrap())
            .collect();
        Self {
            path,
            regions,
            file,
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.path.with_extension("stubs"));
        let _ = std::fs::remove_file(&self.path);
    }
}

/// While this value lives, memory is accessed in turns.
struct Run;

impl Run {
    fn begin() -> Self {
        RUNS.set(true);
        Self
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        RUNS.set(false);
        ALIVE.with_borrow_mut(BTreeSet::clear);
    }
}

/// The number of random orders of a test; `KEEL_MEM_ORDERS_TIMES` multiplies it, for longer runs.
fn orders(runs: usize) -> usize {
    let times = std::env::var("KEEL_MEM_ORDERS_TIMES").ok();
    times.map_or(runs, |times| runs * times.parse::<usize>().unwrap())
}

/// Runs `work` in all processes in random orders. All but the last die at random stores; then the last one runs `look`.
fn run(name: &str, runs: usize, work: fn(&Scratch, usize), look: fn(&Scratch)) {
    let scratch = Arc::new(Scratch::new(name));
    let kept = scratch.clone();
    shuttle::check_random(
        move || {
            let _run = Run::begin();
            HOLDER.set(0);
            let processes: Vec<_> = (0..PROCESSES)
                .map(|process| {
                    let scratch = scratch.clone();
                    let owner: u64 = thread_rng().r#gen::<u64>() | 1;
                    let region = &scratch.regions[process];
                    region.set_owner(Owner::from_word(owner));
                    ALIVE.with_borrow_mut(|alive| alive.insert(owner));
                    let dies = process + 1 < PROCESSES && thread_rng().gen_range(0..3) > 0;
                    let stores = if dies {
                        thread_rng().gen_range(0..80)
                    } else {
                        u64::MAX
                    };
                    let left = &region.memory.stores_left;
                    left.store(stores, std::sync::atomic::Ordering::Relaxed);
                    shuttle::thread::spawn(move || {
                        let done = catch_unwind(AssertUnwindSafe(|| work(&scratch, process)));
                        ALIVE.with_borrow_mut(|alive| alive.remove(&owner));
                        if let Err(reason) = done
                            && !reason.is::<Killed>()
                        {
                            resume_unwind(reason);
                        }
                    })
                })
                .collect();
            for process in processes {
                process.join().unwrap();
            }
            let owner = 3;
            let last = scratch.regions.last().unwrap();
            last.set_owner(Owner::from_word(owner));
            ALIVE.with_borrow_mut(|alive| alive.insert(owner));
            look(&scratch);
            // No process holds a lock, and the lanes of dead processes are free when they are needed.
            for lock in [
                state::LOCK,
                last.layout.inode(scratch.file.inode) + attribute::LOCK,
            ] {
                assert_eq!(last.memory.load(lock), 0, "a lock is left");
            }
        },
        runs,
    );
    drop(kept);
}

/// Settles all lanes of dead processes.
fn settle_all(region: &Region) {
    let writers: Vec<_> = (0..region.layout.lane_count)
        .map(|_| region.writer().unwrap())
        .collect();
    drop(writers);
}

#[test]
fn a_lock_has_one_holder_and_is_taken_from_dead_ones() {
    let work = |scratch: &Scratch, process: usize| {
        let region = &scratch.regions[process];
        let writer = region.writer().unwrap();
        let me = region.owner().as_word();
        for _ in 0..2 {
            let file = scratch.file;
            let at = writer.lock_inode(file.inode, file.generation).unwrap();
            let before = HOLDER.replace(me);
            let is_dead = !ALIVE.with_borrow(|alive| alive.contains(&before));
            assert!(before == 0 || is_dead, "two hold the lock");
            TAKEN_OVER.set(TAKEN_OVER.get() + u64::from(before != 0));
            // Points at which the process may die.
            for _ in 0..4 {
                region.set_lane_word(writer.lane, word::LAST_END, 0);
            }
            assert_eq!(
                HOLDER.get(),
                me,
                "another process took the lock from a living one"
            );
            HOLDER.set(0);
            writer.unlock_inode(at);
        }
    };
    TAKEN_OVER.set(0);
    run("locks", orders(20_000), work, |scratch| {
        settle_all(scratch.regions.last().unwrap());
    });
    assert!(
        TAKEN_OVER.get() > 1000,
        "hardly any process died with the lock"
    );
}

#[test]
fn writes_of_the_dying_are_whole_in_every_drawn_order() {
    let work = |scratch: &Scratch, process: usize| {
        let region = &scratch.regions[process];
        let (inode, generation) = (scratch.file.inode, scratch.file.generation);
        let writer = region.writer().unwrap();
        region.set_logging([Logging::Redo, Logging::Undo, Logging::CopyOnWrite][process]);
        for step in 1..3u8 {
            let data = [process as u8 * 10 + step; 40];
            writer.write(inode, generation, 0, &data, 1).unwrap();
            let mut read = [0; 40];
            assert_eq!(writer.read(inode, generation, 0, &mut read).unwrap(), 40);
            assert!(
                read.iter().all(|byte| *byte == read[0]),
                "a torn read: {read:?}"
            );
        }
    };
    let look = |scratch: &Scratch| {
        let region = scratch.regions.last().unwrap();
        settle_all(region);
        let mut read = [0; 40];
        let count = region
            .read(scratch.file.inode, scratch.file.generation, 0, &mut read)
            .unwrap();
        assert!(
            count == 40 && read.iter().all(|byte| *byte == read[0]),
            "{read:?}"
        );
    };
    // Readers that meet a recovery are rare: one in about ten thousand orders.
    run("writes", orders(60_000), work, look);
}
