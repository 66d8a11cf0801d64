//! Lanes of the threads of one process: up to a quarter of all lanes for one thread each, and one that the others
//! share.
//!
//! The shared lane is taken before a second thread gets its own, so that it is there when it is needed. A process with
//! one thread has one lane.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::lane::Lane;
use crate::layout::LANES_MAX;
use crate::now_ns;
use crate::region::Region;

/// The number of attachments that a thread may use at the same time with a shared lane.
const NESTED: usize = 4;

/// The time threads wait for a free lane after none was found: a new search must check each owner.
const LOOK_AGAIN_NS: u64 = 100_000_000;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const WAITED_FOR: u32 = 2;

thread_local! {
    /// The turns that this thread holds, as pairs of attachment number and count.
    static MINE: Cell<[(u32, u32); NESTED]> = const { Cell::new([(0, 0); NESTED]) };
}

/// A set of lanes, one bit each.
struct LaneSet([AtomicU64; LANES_MAX as usize / 64]);

impl Default for LaneSet {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; LANES_MAX as usize / 64])
    }
}

impl LaneSet {
    fn add(&self, lane: Lane) {
        self.0[lane.0 as usize / 64].fetch_or(1 << (lane.0 % 64), Ordering::Relaxed);
    }

    fn remove(&self, lane: Lane) {
        self.0[lane.0 as usize / 64].fetch_and(!(1 << (lane.0 % 64)), Ordering::Relaxed);
    }

    fn clear(&self) {
        for word in &self.0 {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// The lanes of the set, which is empty afterwards.
    fn take_all(&self) -> impl Iterator<Item = Lane> {
        (0..).zip(&self.0).flat_map(|(place, word)| {
            let lanes = word.swap(0, Ordering::Relaxed);
            (0..64)
                .filter(move |bit| lanes >> bit & 1 == 1)
                .map(move |bit| Lane(place * 64 + bit))
        })
    }
}

/// State that the threads of a process share.
#[derive(Default)]
pub(crate) struct Turns {
    /// A lock within this process. A child begins with a free one, even if a thread held it in the parent.
    turn: AtomicU32,
    /// The shared lane plus 1, or 0.
    lane: AtomicU64,
    /// The number of lanes that threads have for themselves.
    own: AtomicU32,
    /// These lanes. A thread may end without freeing its own.
    own_lanes: LaneSet,
    /// The time at which no lane was left.
    none_left_ns: AtomicU64,
}

impl Turns {
    /// Maximum number of lanes that threads of one process may have for themselves.
    fn own_max(region: &Region) -> u32 {
        (region.layout.lane_count / 4).max(1) as u32
    }

    /// A lane for the calling thread alone; `None` if it has to share one.
    ///
    /// # Errors
    /// Those of [`Region::take_lane`], except that no lane is free.
    pub(crate) fn take_own(&self, region: &Region) -> Result<Option<Lane>> {
        if now_ns().wrapping_sub(self.none_left_ns.load(Ordering::Relaxed)) < LOOK_AGAIN_NS {
            return Ok(None);
        }
        let others = self.own.fetch_add(1, Ordering::AcqRel);
        let taken = if others >= Self::own_max(region) {
            Ok(None)
        } else {
            self.take_beside(region, others).map(Some)
        };
        match taken {
            Ok(Some(lane)) => {
                self.own_lanes.add(lane);
                return Ok(Some(lane));
            }
            Err(Error::LanesFull) => self.none_left_ns.store(now_ns(), Ordering::Relaxed),
            Err(error) => {
                self.gave_back();
                return Err(error);
            }
            Ok(None) => {}
        }
        self.gave_back();
        Ok(None)
    }

    fn take_beside(&self, region: &Region, others: u32) -> Result<Lane> {
        if others > 0 && self.lane.load(Ordering::Acquire) == 0 {
            self.lock();
            let reserved = self.reserve(region);
            self.unlock();
            reserved?;
        }
        region.take_lane()
    }

    /// The shared lane. The caller holds its lock.
    fn reserve(&self, region: &Region) -> Result<Lane> {
        if let Some(lane) = self.lane.load(Ordering::Relaxed).checked_sub(1) {
            return Ok(Lane(lane));
        }
        let lane = region.take_lane()?;
        self.lane.store(lane.0 + 1, Ordering::Release);
        Ok(lane)
    }

    /// Frees the lane that a thread had for itself.
    pub(crate) fn give_back_own(&self, region: &Region, lane: Lane) {
        self.own_lanes.remove(lane);
        region.give_back_lane(lane);
        self.gave_back();
    }

    fn gave_back(&self) {
        self.own.fetch_sub(1, Ordering::AcqRel);
    }

    /// Waits for the calling thread's turn with the shared lane. A thread that has the turn already gets it once more.
    ///
    /// # Errors
    /// [`Error::LanesFull`] when there is none, and no other lane either.
    pub(crate) fn take(&self, region: &Region, attachment: u32) -> Result<Turn<'_>> {
        let mut mine = MINE.get();
        let known = mine.iter_mut().find(|turn| turn.0 == attachment);
        let lane = if let Some(turn) = known {
            turn.1 += 1;
            // The turn that this thread holds keeps the lane.
            Lane(self.lane.load(Ordering::Relaxed).saturating_sub(1))
        } else {
            let Some(place) = mine.iter_mut().find(|turn| turn.1 == 0) else {
                return Err(Error::LanesFull);
            };
            self.lock();
            match self.reserve(region) {
                Ok(lane) => {
                    *place = (attachment, 1);
                    lane
                }
                Err(error) => {
                    self.unlock();
                    return Err(error);
                }
            }
        };
        MINE.set(mine);
        Ok(Turn {
            turns: self,
            attachment,
            lane,
            _of_this_thread: PhantomData,
        })
    }

    /// Whether the calling thread has its turn.
    pub(crate) fn is_mine(attachment: u32) -> bool {
        MINE.get().iter().any(|turn| turn.0 == attachment)
    }

    /// In a child after a fork: none of this state is valid in the child, also not a lock that another thread had.
    pub(crate) fn forked(&self) {
        self.turn.store(FREE, Ordering::Relaxed);
        self.lane.store(0, Ordering::Relaxed);
        self.own.store(0, Ordering::Relaxed);
        self.own_lanes.clear();
        self.none_left_ns.store(0, Ordering::Relaxed);
    }

    /// Frees all lanes, when no thread uses them any more.
    pub(crate) fn end(&self, region: &Region) {
        let shared = self.lane.swap(0, Ordering::AcqRel).checked_sub(1);
        for lane in self.own_lanes.take_all().chain(shared.map(Lane)) {
            region.free_idle_lane(lane);
        }
    }

    fn lock(&self) {
        let free = self
            .turn
            .compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed);
        if free.is_ok() {
            return;
        }
        while self.turn.swap(WAITED_FOR, Ordering::Acquire) != FREE {
            self.futex(libc::FUTEX_WAIT, WAITED_FOR);
        }
    }

    fn unlock(&self) {
        if self.turn.swap(FREE, Ordering::Release) == WAITED_FOR {
            self.futex(libc::FUTEX_WAKE, 1);
        }
    }

    fn futex(&self, operation: libc::c_int, value: u32) {
        // SAFETY: a futex on a word of this process that lives as long as the call, without a timeout.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.turn.as_ptr(),
                operation | libc::FUTEX_PRIVATE_FLAG,
                value,
                std::ptr::null::<libc::timespec>(),
            )
        };
    }
}

/// A thread's turn with the shared lane.
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    attachment: u32,
    pub(crate) lane: Lane,
    /// Must not move to another thread, which does not hold the turn.
    _of_this_thread: PhantomData<*const ()>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut mine = MINE.get();
        let Some(turn) = mine.iter_mut().find(|turn| turn.0 == self.attachment) else {
            return;
        };
        turn.1 -= 1;
        let is_last = turn.1 == 0;
        if is_last {
            *turn = (0, 0);
        }
        MINE.set(mine);
        if is_last {
            self.turns.unlock();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Barrier;

    use crate::{Attachment, Error, NewInode, ROOT_INODE, Region, RegionOptions};

    const FILE: NewInode = NewInode {
        mode: libc::S_IFREG | 0o644,
        user: 0,
        group: 0,
        now_ns: 1,
    };
    const LANES: u32 = 8;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let name = format!("keel-mem-turns-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            let _ = std::fs::remove_dir_all(&folder);
            std::fs::create_dir(&folder).unwrap();
            let options = RegionOptions {
                capacity_bytes: 16 << 20,
                files_max: Some(200),
                lanes: LANES,
            };
            let root = NewInode {
                mode: libc::S_IFDIR | 0o755,
                ..FILE
            };
            drop(Region::create(&folder.join("region"), &options, &root).unwrap());
            Self(folder)
        }

        fn attach(&self) -> Attachment {
            Attachment::open(&self.0.join("region"), b"/keel", true).unwrap()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn idle_threads_leave_lanes_for_others() {
        let scratch = Scratch::new("idle");
        let (here, there) = (scratch.attach(), scratch.attach());
        let threads = 40;
        let (all, end) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
        std::thread::scope(|scope| {
            for number in 0..threads {
                let (here, all, end) = (&here, &all, &end);
                scope.spawn(move || {
                    let name = format!("file{number}");
                    let made = here
                        .writer()
                        .and_then(|writer| writer.create(ROOT_INODE, name.as_bytes(), &FILE));
                    all.wait();
                    end.wait();
                    let made = made.unwrap();
                    let (fd, opened) = here.open_description(&made, libc::O_RDWR).unwrap();
                    let mut back = [0; 5];
                    for round in 0..50_u8 {
                        here.write_at(&opened, 0, &[round; 5]).unwrap();
                        here.read_at(&opened, 0, &mut back).unwrap();
                        assert_eq!(back, [round; 5]);
                        // A thread that has its turn and asks again keeps it.
                        let outer = here.writer().unwrap();
                        let inner = here.writer().unwrap();
                        assert_eq!(outer.lane, inner.lane);
                    }
                    // SAFETY: opened above, and no other code knows it.
                    unsafe { libc::close(fd) };
                    here.thread_ends();
                });
            }
            all.wait();
            let taken = here.region().lanes_taken();
            assert_eq!(taken, u64::from(LANES / 4 + 1));
            let writer = there.writer().unwrap();
            writer.create(ROOT_INODE, b"another", &FILE).unwrap();
            end.wait();
        });
        // The shared lane, and the other attachment's.
        assert_eq!(here.region().lanes_taken(), 2);
        drop(here);
        assert_eq!(there.region().lanes_taken(), 1);
    }

    #[test]
    fn a_dropped_attachment_frees_the_lanes_of_its_ended_threads() {
        let scratch = Scratch::new("ended");
        let (here, there) = (scratch.attach(), scratch.attach());
        std::thread::scope(|scope| {
            for name in [b"one", b"two"] {
                let here = &here;
                scope.spawn(move || {
                    let writer = here.writer().unwrap();
                    writer.create(ROOT_INODE, name, &FILE).unwrap();
                });
            }
        });
        // One for each thread, and the shared one.
        assert_eq!(there.region().lanes_taken(), 3);
        drop(here);
        assert_eq!(there.region().lanes_taken(), 0);
    }

    #[test]
    fn a_dropped_attachment_leaves_a_lane_with_a_change_under_way() {
        let scratch = Scratch::new("under-way");
        let (here, there) = (scratch.attach(), scratch.attach());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let writer = here.writer().unwrap();
                let region = here.region();
                region.set_lane_word(writer.lane, crate::lane::word::INODE, ROOT_INODE);
            });
        });
        drop(here);
        assert_eq!(there.region().lanes_taken(), 1);
    }

    #[test]
    fn a_thread_without_a_lane_reads_but_does_not_write() {
        let scratch = Scratch::new("full");
        let (here, there) = (scratch.attach(), scratch.attach());
        let made = here
            .writer()
            .and_then(|writer| writer.create_with(ROOT_INODE, b"file", &FILE, b"bytes"))
            .unwrap();
        let mut lanes = Vec::new();
        while let Ok(lane) = here.region().take_lane() {
            lanes.push(lane);
        }
        let found = there.look_up(ROOT_INODE, b"file").unwrap();
        assert_eq!(found.inode, made.inode);
        let (fd, opened) = there.open_description(&found, libc::O_RDWR).unwrap();
        let mut bytes = [0; 9];
        for _ in 0..3 {
            assert_eq!(there.read_at(&opened, 1, &mut bytes).unwrap(), 4);
            assert_eq!(&bytes[..4], b"ytes");
            let refused = there.write_at(&opened, 0, b"x");
            assert!(matches!(refused, Err(Error::LanesFull)), "{refused:?}");
        }
        assert_eq!(Error::LanesFull.errno(), libc::ENOLCK);
        here.region().give_back_lane(lanes.pop().unwrap());
        assert_eq!(there.write_at(&opened, 0, b"B").unwrap(), 1);
        assert_eq!(there.read_at(&opened, 0, &mut bytes).unwrap(), 5);
        assert_eq!(&bytes[..5], b"Bytes");
        // SAFETY: opened above, and no other code knows it.
        unsafe { libc::close(fd) };
        for lane in lanes {
            here.region().give_back_lane(lane);
        }
    }

    #[test]
    fn a_larger_region_has_more_lanes() {
        let lanes = |mebibytes: u64| RegionOptions::lanes_for(mebibytes << 20);
        assert_eq!((lanes(16), lanes(256), lanes(1024)), (64, 64, 256));
        assert_eq!((lanes(4096), lanes(1 << 20)), (1024, 1024));
    }
}
