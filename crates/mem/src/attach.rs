//! A process's attachment to a region: the mapping, a lane for each of its threads, and its identity after a fork.

use std::cell::Cell;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Error, Result};
use crate::lane::Lane;
use crate::node::Node;
use crate::own_positions::OwnPositions;
use crate::region::Region;
use crate::stub::{StubName, Stubs};
use crate::turns::{Turn, Turns};
use crate::writer::Writer;

/// A region as one process uses it. Its threads share it. Each thread takes a lane of its own at its first call that
/// needs one. Once the process has a quarter of all lanes, further threads share one more lane and take turns.
pub struct Attachment {
    region: Region,
    at: Vec<u8>,
    /// Tells it from other attachments of the process, and from the parent's after a fork.
    number: AtomicU32,
    /// For threads without a lane of their own.
    turns: Turns,
    /// Where the search for a free description begins.
    pub(crate) next_description: AtomicU32,
    pub(crate) own_positions: OwnPositions,
}

static ATTACHMENTS: AtomicU32 = AtomicU32::new(1);

/// The number of attachments for which a thread can keep a lane each.
const KEPT: usize = 4;

#[derive(Clone, Copy)]
struct Kept {
    attachment: u32,
    lane: u32,
}

thread_local! {
    // Nothing here needs a drop: `thread_ends` reports the end of a thread, and a process's death ends the rest.
    static LANES: Cell<[Kept; KEPT]> = const {
        Cell::new([Kept { attachment: 0, lane: 0 }; KEPT])
    };
}

impl Attachment {
    /// Attaches to the region at `region`. `at` is the path at which programs see its root.
    ///
    /// # Errors
    /// Those of [`Region::open`]; [`Error::Invalid`] when `at` is not absolute, or is the root.
    pub fn open(region: &Path, at: &[u8], writable: bool) -> Result<Self> {
        let mut end = at.len();
        while end > 0 && at[end - 1] == b'/' {
            end -= 1;
        }
        let is_plain = at.first() == Some(&b'/')
            && end > 1
            && !at[1..end]
                .split(|byte| *byte == b'/')
                .any(|part| matches!(part, b"" | b"." | b".."));
        if !is_plain {
            return Err(Error::Invalid {
                what: "a region appears at an absolute path without . and .., and not at the root",
            });
        }
        Ok(Self::new(
            Region::open(region, writable)?,
            at[..end].to_vec(),
        ))
    }

    fn new(region: Region, at: Vec<u8>) -> Self {
        Self {
            region,
            at,
            number: AtomicU32::new(next_number()),
            turns: Turns::default(),
            next_description: AtomicU32::new(std::process::id().wrapping_mul(61)),
            own_positions: OwnPositions::default(),
        }
    }

    /// The region.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The descriptors of the region itself: its file, and its folder of stubs. Programs that close unknown descriptors
    /// must not close them.
    #[must_use]
    pub fn own_descriptors(&self) -> [RawFd; 2] {
        let stubs = self.region.stubs.as_ref();
        [
            self.region.file.as_raw_fd(),
            stubs.map_or(-1, Stubs::descriptor),
        ]
    }

    /// Moves the descriptors of the region itself to numbers from `least` on, where programs rarely look. If the
    /// process may not have such numbers, they stay.
    pub fn move_descriptors(&mut self, least: RawFd) {
        move_descriptor(&mut self.region.file, least);
        if let Some(stubs) = &mut self.region.stubs {
            move_descriptor(stubs.folder_mut(), least);
        }
    }

    /// The path at which programs see the region's root, without a slash at its end.
    #[must_use]
    pub fn at(&self) -> &[u8] {
        &self.at
    }

    /// Its number, which no other attachment of this process has or had.
    #[inline(always)]
    pub(crate) fn number(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }

    /// Must be called first in a forked child: the lanes are the parent's.
    ///
    /// # Errors
    /// [`Error::System`] when `/proc` does not have the start time of this process.
    pub fn forked(&self) -> Result<()> {
        // No other thread runs here yet.
        self.turns.forked();
        self.number.store(next_number(), Ordering::Relaxed);
        self.next_description
            .store(std::process::id().wrapping_mul(61), Ordering::Relaxed);
        self.region.forked()
    }

    /// This thread's right to change the region.
    ///
    /// # Errors
    /// [`Error::LanesFull`] when other processes have all lanes and this one has none to share, [`Error::ReadOnly`].
    #[inline]
    pub fn writer(&self) -> Result<Borrowed<'_>> {
        let number = self.number.load(Ordering::Relaxed);
        let kept = LANES.get();
        if kept[0].attachment == number {
            return Ok(self.borrow(Lane(kept[0].lane.into()), None));
        }
        self.writer_slowly(number)
    }

    /// As [`writer`](Self::writer), for the duration of `run`.
    ///
    /// The `Writer` stays in registers here. If it were built in memory and moved, the processor would load in one
    /// piece what it has just stored in several. It can do that only after all earlier stores are in the cache. The
    /// bytes of the previous call are among them, and may still wait for memory.
    #[inline(always)]
    pub(crate) fn with_writer<T>(&self, run: impl FnOnce(&Writer<'_>) -> Result<T>) -> Result<T> {
        match self.kept_writer() {
            Some(writer) => run(&writer),
            None => run(&*self.writer_slowly(self.number.load(Ordering::Relaxed))?),
        }
    }

    /// The writer that this thread used last.
    #[inline(always)]
    pub(crate) fn kept_writer(&self) -> Option<ManuallyDrop<Writer<'_>>> {
        let kept = LANES.with(|lanes| lanes.get()[0]);
        (kept.attachment == self.number.load(Ordering::Relaxed)).then(|| {
            ManuallyDrop::new(Writer {
                region: &self.region,
                lane: Lane(kept.lane.into()),
            })
        })
    }

    /// As [`with_writer`](Self::with_writer), for a reader that can also work without a lane. `None` if this thread has
    /// no lane of its own.
    #[inline(always)]
    pub(crate) fn with_own_writer<T>(
        &self,
        run: impl FnOnce(&Writer<'_>) -> Result<T>,
    ) -> Option<Result<T>> {
        match self.kept_writer() {
            Some(writer) => Some(run(&writer)),
            None => match self.own_writer_slowly() {
                Ok(Some(writer)) => Some(run(&writer)),
                Ok(None) => None,
                Err(error) => Some(Err(error)),
            },
        }
    }

    #[cold]
    fn own_writer_slowly(&self) -> Result<Option<Borrowed<'_>>> {
        let number = self.number.load(Ordering::Relaxed);
        if Turns::is_mine(number) {
            // With another lane, the thread would wait for itself.
            return self.writer_slowly(number).map(Some);
        }
        let lane = self.own_lane(number)?;
        Ok(lane.map(|lane| self.borrow(lane, None)))
    }

    fn borrow<'a>(&'a self, lane: Lane, turn: Option<Turn<'a>>) -> Borrowed<'a> {
        Borrowed {
            writer: ManuallyDrop::new(Writer {
                region: &self.region,
                lane,
            }),
            _turn: turn,
        }
    }

    #[cold]
    fn writer_slowly(&self, number: u32) -> Result<Borrowed<'_>> {
        if !Turns::is_mine(number)
            && let Some(lane) = self.own_lane(number)?
        {
            return Ok(self.borrow(lane, None));
        }
        let turn = self.turns.take(&self.region, number)?;
        Ok(self.borrow(turn.lane, Some(turn)))
    }

    /// This thread's own lane, taken now if necessary; `None` if the thread has to share one.
    fn own_lane(&self, number: u32) -> Result<Option<Lane>> {
        let mut kept = LANES.get();
        if let Some(place) = kept.iter().position(|kept| kept.attachment == number) {
            kept.swap(0, place);
            LANES.set(kept);
            return Ok(Some(Lane(kept[0].lane.into())));
        }
        let Some(lane) = self.turns.take_own(&self.region)? else {
            return Ok(None);
        };
        // A thread may have more attachments than it can keep lanes for. Then the lane in the last place stays taken
        // until its attachment is dropped, or the process ends.
        kept.rotate_right(1);
        kept[0] = Kept {
            attachment: number,
            lane: lane.0 as u32,
        };
        LANES.set(kept);
        Ok(Some(lane))
    }

    /// Frees this thread's lane.
    pub fn thread_ends(&self) {
        let number = self.number.load(Ordering::Relaxed);
        let mut kept = LANES.get();
        for kept in kept.iter_mut().filter(|kept| kept.attachment == number) {
            let lane = Lane(kept.lane.into());
            self.turns.give_back_own(&self.region, lane);
            kept.attachment = 0;
        }
        LANES.set(kept);
    }

    /// The directory that a path in the folder of stubs stands for. If a process has changed into a directory of the
    /// region, its working directory is that directory's stub.
    #[must_use]
    pub fn directory_of_stub(&self, path: &[u8]) -> Option<Node> {
        let stubs = self.region.stubs.as_ref()?;
        let rest = path.strip_prefix(stubs.path().as_os_str().as_bytes())?;
        match StubName::parse(rest.strip_prefix(b"/")?)? {
            (node, true) => Some(node),
            (_, false) => None,
        }
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.thread_ends();
        self.turns.end(&self.region);
    }
}

fn move_descriptor(file: &mut File, least: RawFd) {
    // SAFETY: an open descriptor; no other code uses the new one yet.
    let moved = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least) };
    if moved >= 0 {
        // SAFETY: as above.
        *file = unsafe { File::from_raw_fd(moved) };
    }
}

fn next_number() -> u32 {
    // 0 means none. Numbers repeat after 2^32 forks in a row.
    match ATTACHMENTS.fetch_add(1, Ordering::Relaxed) {
        0 => ATTACHMENTS.fetch_add(1, Ordering::Relaxed),
        number => number,
    }
}

/// A thread's right to change a region, for the duration of a call.
pub struct Borrowed<'a> {
    /// Never dropped: the thread keeps its lane.
    writer: ManuallyDrop<Writer<'a>>,
    _turn: Option<Turn<'a>>,
}

impl<'a> Deref for Borrowed<'a> {
    type Target = Writer<'a>;

    fn deref(&self) -> &Self::Target {
        &self.writer
    }
}
