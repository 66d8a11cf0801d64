//! `keel stream mount --complete`: fetches what a task may need in its next start into the cache while there is nothing
//! else to do.
//!
//! No two starts of a virtual machine read the same blocks: a collector or a compiler thread runs in one and not in the
//! other. The blocks that only another start reads are near the blocks that this start read, nearly always in the same
//! run of 32 blocks. Therefore these runs are fetched completely, and a program that ran once starts without a network.
//! The rest of the files is fetched only on request, because programs arrive only as far as they run.

use crate::error::CliError;
use clap::ValueEnum;
use std::collections::BTreeSet;
use std::time::Duration;
use stream::device::{Device, DeviceError};
use stream::{BLOCK_BYTES, BlockAt, FileId, SEGMENT_BLOCKS};

/// Poll interval for tasks that have run.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Retry interval after the cache has failed.
const FAILED_PAUSE: Duration = Duration::from_secs(60);

/// Blocks that are fetched between two checks for free space.
const FETCHED_AT_ONCE: usize = 256;

/// What a mount with a cache fetches when it is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompleteMode {
    /// Nothing
    None,
    /// Blocks beside those that a task has read, which another start of the task may read
    Near,
    /// The whole of each file that a task has read
    Files,
}

/// Starts a thread, which ends with the process.
pub(super) fn start(device: Device, what: CompleteMode) -> Result<(), CliError> {
    let thread = std::thread::Builder::new().name("stream-complete".to_owned());
    let run = move || {
        let mut done = Vec::new();
        loop {
            std::thread::sleep(LOOK_INTERVAL);
            let starts = device.starts();
            // Another start of a task may have read blocks that no earlier start read.
            if starts == done {
                continue;
            }
            let tasks: BTreeSet<FileId> = starts.iter().map(|start| start.task).collect();
            let mut is_done = true;
            for task in tasks {
                match complete(&device, task, what) {
                    Ok(()) => {}
                    Err(DeviceError::Stopped) => return,
                    Err(error) => {
                        is_done = false;
                        // Pause: a cache that keeps nothing would cause all blocks to be fetched each time, and damage
                        // at the server lasts for some time. Any other failure (no network, nothing learned yet) is
                        // retried at the next poll.
                        if matches!(error, DeviceError::Cache(_) | DeviceError::Damaged { .. }) {
                            std::thread::sleep(FAILED_PAUSE);
                        }
                    }
                }
            }
            if is_done {
                done = starts;
            }
        }
    };
    thread
        .spawn(run)
        .map_err(|error| CliError::io("stream-complete", &error))?;
    Ok(())
}

fn complete(device: &Device, task: FileId, what: CompleteMode) -> Result<(), DeviceError> {
    let plan = device.plan(task)?.known()?;
    let blocks = match what {
        CompleteMode::None => return Ok(()),
        CompleteMode::Near => near(&plan, &|file| device.manifest().blocks(file)),
        CompleteMode::Files => {
            let files: BTreeSet<FileId> = plan.iter().map(|at| at.file).chain([task]).collect();
            let of_file = |file| {
                let indexes = 0..device.manifest().blocks(file);
                indexes.map(move |index| BlockAt { file, index })
            };
            files.into_iter().flat_map(of_file).collect()
        }
    };
    let missing: Vec<BlockAt> = blocks
        .into_iter()
        .filter(|at| !device.is_cached(*at))
        .collect();
    for chunk in missing.chunks(FETCHED_AT_ONCE) {
        // Blocks that may be read must not evict blocks that were read.
        if what == CompleteMode::Near && !has_room(device, chunk.len()) {
            break;
        }
        device.fetch(chunk, &mut |_, _| {})?;
    }
    Ok(())
}

fn has_room(device: &Device, blocks: usize) -> bool {
    let Some(cache) = device.counters().cache else {
        return false;
    };
    let needed = cache.bytes + (blocks * BLOCK_BYTES) as u64;
    // A cache evicts before it is full, one whole log at a time.
    needed < cache.bytes_max - cache.bytes_max / 4
}

/// Returns all blocks of the aligned runs that contain blocks of a plan.
fn near(plan: &[BlockAt], blocks_of: &dyn Fn(FileId) -> u32) -> Vec<BlockAt> {
    let runs: BTreeSet<(FileId, u32)> = plan
        .iter()
        .map(|at| (at.file, at.index / SEGMENT_BLOCKS))
        .collect();
    let of_run = |(file, run): (FileId, u32)| {
        let first = run * SEGMENT_BLOCKS;
        let indexes = first..blocks_of(file).min(first + SEGMENT_BLOCKS);
        indexes.map(move |index| BlockAt { file, index })
    };
    runs.into_iter().flat_map(of_run).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_blocks_are_the_runs_of_read_blocks_within_the_file() {
        let at = |file, index| BlockAt {
            file: FileId(file),
            index,
        };
        let plan = [at(2, 40), at(1, 31), at(2, 63), at(1, 0)];
        let found = near(&plan, &|file| if file == FileId(1) { 100 } else { 50 });
        let mut expected: Vec<_> = (0..32).map(|index| at(1, index)).collect();
        expected.extend((32..50).map(|index| at(2, index)));
        assert_eq!(found, expected);
        assert_eq!(near(&[], &|_| 7), []);
    }
}
