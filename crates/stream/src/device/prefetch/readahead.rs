//! Readahead: what is requested with a missing block while nothing is prefetched. This is so in the first start of a
//! program, and for readers outside a task.
//!
//! - The whole aligned run of 32 blocks that contains the block. The block itself has its own request, which is
//!   answered first. The others have a lower priority than everything that programs wait for: first those behind the
//!   block, then those before it.
//! - Further runs. The next one, when a reader has read several blocks of a run in sequence. Two, when it continues
//!   into that run after reading a good part of the one before. Then more, up to what the line carries in two round
//!   trips. So a file that is read from beginning to end costs one round trip and the line's bandwidth.
//! - If a round trip takes longer than a run does on the line, also the run behind that of a missing block. Its unread
//!   part costs less than another wait.
//! - The last run of a file together with the one before it, for the same reason.
//! - With an evicted block that is read again, only a few blocks that follow it. The rest of its run was not wanted the
//!   first time.
//!
//! - If a round trip is short and readers jump, so that most blocks were evicted unread: only the half of the run with
//!   the block. Bandwidth limits the readers then.
//!
//! These blocks are not reported to the server as read: they are requested with low priority and without a task. An
//! action consists of the blocks that programs have read.
//!
//! Pure; the caller determines which of these blocks are here already.

use crate::block::{BlockAt, FileId, SEGMENT_BLOCKS};
use crate::device::line::Line;
use std::collections::HashMap;
use std::ops::Range;

/// The maximum number of files whose readers are followed; when it is exceeded, all are forgotten.
const FILES_MAX: usize = 512;

/// Blocks of a run that must be read before its successor counts as the next in a sequence.
const SEQUENCE_READ_MIN: u32 = 8;

/// The maximum number of runs that are requested ahead of a reader.
const RUNS_AHEAD_MAX: u32 = 8;

/// Runs ahead of one reader may take one in this many pages of the pool.
const POOL_PART: usize = 4;

/// A round trip counts as long if the line carries at least this many tenths of a run in it.
const LONG_TENTHS: u64 = 15;

/// The number of following blocks that are requested together with an evicted one.
const BACK_BLOCKS: u32 = 8;

/// How a file is read.
#[derive(Clone, Copy, Debug, Default)]
struct FileReads {
    run: u32,
    /// Blocks of the run that were read since it was entered.
    read: u32,
    /// The block that was read last, and the length of the sequence in this run that ends with it.
    last: u32,
    straight: u32,
    /// The number of runs that were entered in sequence.
    sequence: u32,
}

/// The readers of all followed files.
pub(crate) struct Readahead {
    files: HashMap<FileId, FileReads>,
    runs_max: u32,
}

impl Readahead {
    /// Returns the state for a pool of `pool_pages` pages.
    pub fn new(pool_pages: usize) -> Self {
        let runs = pool_pages / POOL_PART / SEGMENT_BLOCKS as usize;
        Self {
            files: HashMap::new(),
            runs_max: RUNS_AHEAD_MAX.min(u32::try_from(runs).unwrap_or(RUNS_AHEAD_MAX)),
        }
    }

    /// Records a read of a block that must be requested (`is_missing`) or not. Returns which further runs of its file
    /// to request.
    pub fn read(
        &mut self,
        at: BlockAt,
        file_blocks: u32,
        is_missing: bool,
        line: Line,
    ) -> Range<u32> {
        let run = at.index / SEGMENT_BLOCKS;
        let behind = run + 1;
        if self.files.len() >= FILES_MAX && !self.files.contains_key(&at.file) {
            self.files.clear();
        }
        let is_new = !self.files.contains_key(&at.file);
        let reader = self.files.entry(at.file).or_default();
        let left = u64::from(file_blocks.div_ceil(SEGMENT_BLOCKS).saturating_sub(behind));
        if !is_new && reader.run == run {
            reader.read += 1;
            let is_straight = at.index == reader.last.saturating_add(1);
            reader.straight = if is_straight { reader.straight + 1 } else { 1 };
            reader.last = at.index;
            let begins = reader.sequence == 0 && reader.straight == SEQUENCE_READ_MIN;
            let has_room = left > 0 && self.runs_max > 0;
            return behind..behind + u32::from(begins && has_room);
        }
        let is_next = !is_new && run == reader.run + 1 && reader.read >= SEQUENCE_READ_MIN;
        *reader = FileReads {
            run,
            read: 1,
            last: at.index,
            straight: 1,
            sequence: if is_next { reader.sequence + 1 } else { 0 },
        };
        let tenths = line.run_tenths();
        let mut runs = match reader.sequence {
            0 if is_missing && tenths >= LONG_TENTHS => 1,
            0 => 0,
            long => u64::from(long.min(4)) * (2 * tenths.max(10) + 5) / 10,
        };
        if left <= 1 && is_missing {
            runs = left;
        }
        let runs = runs.min(left).min(self.runs_max.into()) as u32;
        behind..behind + runs
    }
}

/// Returns which of the missing blocks of a run (a bit for each) are requested with one of its blocks. `was_here`: the
/// block was evicted before. `is_scattered`: most blocks are evicted unread.
pub(crate) fn rest_of_run(
    at: BlockAt,
    missing: u32,
    was_here: bool,
    is_scattered: bool,
    line: Line,
) -> u32 {
    let place = at.index % SEGMENT_BLOCKS;
    let others = missing & !(1 << place);
    let half = SEGMENT_BLOCKS / 2;
    if was_here {
        others & (((1_u64 << BACK_BLOCKS) - 1) << (place + 1)) as u32
    } else if is_scattered && line.run_tenths() < LONG_TENTHS {
        others & (u32::MAX >> half << (place / half * half))
    } else {
        others
    }
}

/// Returns the blocks of a run that a mask has: those from `from` on, then those before.
pub(crate) fn blocks_of(file: FileId, run: u32, mask: u32, from: u32) -> Vec<BlockAt> {
    let first = run * SEGMENT_BLOCKS;
    let places = (from..SEGMENT_BLOCKS).chain(0..from.min(SEGMENT_BLOCKS));
    let wanted = places.filter(|place| mask >> place & 1 == 1);
    wanted
        .map(|place| BlockAt {
            file,
            index: first + place,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const NEAR: Line = Line {
        round_trip: Duration::from_millis(2),
        bandwidth_bytes_s: 12_500_000,
    };
    const FAR: Line = Line {
        round_trip: Duration::from_millis(10),
        ..NEAR
    };

    fn at(index: u32) -> BlockAt {
        let file = FileId(1);
        BlockAt { file, index }
    }

    #[test]
    fn a_sequence_is_asked_for_ahead_and_a_jump_ends_it() {
        let mut readahead = Readahead::new(2048);
        let mut runs = Vec::new();
        for index in 0..200 {
            let asked = readahead.read(at(index), 6400, index == 0, NEAR);
            if !asked.is_empty() {
                runs.push((index, asked));
            }
        }
        assert_eq!(runs[..3], [(7, 1..2), (32, 2..4), (64, 3..8)]);
        assert_eq!(readahead.read(at(3200), 6400, true, NEAR), 101..101);
        assert_eq!(
            readahead.read(at(3232), 6400, true, NEAR),
            102..102,
            "one block is no sequence"
        );
        let small = Readahead::new(8).read(at(0), 6400, true, FAR);
        assert!(small.is_empty(), "a small pool has no room");
    }

    #[test]
    fn a_long_line_brings_the_next_run_and_no_blocks_behind_the_file() {
        let mut readahead = Readahead::new(2048);
        assert_eq!(readahead.read(at(100), 6400, true, FAR), 4..5);
        assert_eq!(
            readahead.read(at(640), 6400, false, FAR),
            21..21,
            "it was here"
        );
        assert_eq!(readahead.read(at(6399), 6400, true, FAR), 200..200);
        assert_eq!(
            readahead.read(at(6340), 6400, true, NEAR),
            199..200,
            "the last one"
        );
        assert_eq!(
            readahead
                .read(at(u32::MAX - 1), u32::MAX, true, FAR)
                .count(),
            0
        );
    }

    #[test]
    fn following_blocks_come_first_and_an_evicted_block_brings_few() {
        let all = u32::MAX;
        let wide = |index, missing| rest_of_run(at(index), missing, false, false, NEAR);
        assert_eq!(wide(5, all).count_ones(), 31);
        assert_eq!(
            rest_of_run(at(37), all, true, false, NEAR),
            0b1111_1111 << 6
        );
        assert_eq!(rest_of_run(at(63), all, true, true, NEAR), 0);
        assert_eq!(wide(5, 0b10_0000), 0);
        assert_eq!(
            rest_of_run(at(5), all, false, true, NEAR),
            0xffff & !0b10_0000
        );
        assert_eq!(rest_of_run(at(48), all, false, true, NEAR), 0xfffe_0000);
        assert_eq!(rest_of_run(at(48), all, false, true, FAR).count_ones(), 31);
        let blocks = blocks_of(FileId(1), 1, 0b1010_0111, 5);
        assert_eq!(blocks, [37, 39, 32, 33, 34].map(at));
    }

    #[test]
    fn followed_files_are_bounded() {
        let mut readahead = Readahead::new(2048);
        for file in 0..3 * FILES_MAX as u32 {
            let index = 0;
            let file = FileId(file);
            readahead.read(BlockAt { file, index }, 10, true, NEAR);
        }
        assert!(readahead.files.len() <= FILES_MAX);
    }
}
