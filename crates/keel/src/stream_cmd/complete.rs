//! `keel stream mount --complete`: the rest of what runs is brought into the cache when nothing else is to be done.

use crate::error::CliError;
use std::collections::{BTreeSet, HashSet};
use std::time::Duration;
use stream::device::{Device, DeviceError};
use stream::{BlockAt, FileId};

/// Time between two looks for tasks that have run.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Time before the next attempt when the cache has failed.
const FAILED_PAUSE: Duration = Duration::from_secs(60);

/// Starts a thread, which ends with the process: all blocks of the files that a task needs, once it has run.
pub(super) fn start(device: Device) -> Result<(), CliError> {
    let thread = std::thread::Builder::new().name("stream-complete".to_owned());
    let run = move || {
        let mut done: HashSet<FileId> = HashSet::new();
        loop {
            std::thread::sleep(LOOK_INTERVAL);
            let tasks: BTreeSet<FileId> = device.starts().iter().map(|start| start.task).collect();
            for task in tasks {
                if done.contains(&task) {
                    continue;
                }
                match complete(&device, task) {
                    Ok(()) => {
                        done.insert(task);
                    }
                    Err(DeviceError::Stopped) => return,
                    // A cache that keeps nothing has all of it fetched each time.
                    Err(DeviceError::Cache(_)) => std::thread::sleep(FAILED_PAUSE),
                    // Without network, or not learned yet: later.
                    Err(_) => {}
                }
            }
        }
    };
    thread
        .spawn(run)
        .map_err(|error| CliError::io("stream-complete", &error))?;
    Ok(())
}

fn complete(device: &Device, task: FileId) -> Result<(), DeviceError> {
    let plan = device.plan(task)?;
    let files: BTreeSet<FileId> = plan.iter().map(|at| at.file).chain([task]).collect();
    for file in files {
        let indexes = 0..device.manifest().blocks(file);
        let blocks: Vec<BlockAt> = indexes.map(|index| BlockAt { file, index }).collect();
        if !blocks.is_empty() {
            device.fetch(&blocks, &mut |_, _| {})?;
        }
    }
    Ok(())
}
