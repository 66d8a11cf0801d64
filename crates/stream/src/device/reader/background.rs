//! Background work: reporting reads to the server, finding dead connections, storing blocks in the page cache, keeping
//! notes, and feeding the buffer from the cache.

use super::state::{Job, Reader};
use crate::block::{BLOCK_BYTES, BlockAt, BlockHash, Token};
use crate::device::counters::add;
use crate::device::prefetch::{Arrived, Kind, Task, Tasks};
use crate::device::transport::{InFlight, Quiet};
use crate::wire::Request;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// Poll interval of the maintenance thread while tasks run, and while none runs.
const LOOK: Duration = Duration::from_millis(50);
const LOOK_IDLE: Duration = Duration::from_millis(200);

/// The maximum silence of a connection before a ping is sent.
const PING_AFTER_MAX: Duration = Duration::from_secs(5);

/// The maximum number of blocks that are stored in the page cache together.
const STORED_AT_ONCE_MAX: usize = 64;

/// How long the feeding of a start waits for the server to say whether the start is audited.
const BEGUN_WAIT: Duration = Duration::from_millis(200);

/// The maintenance thread.
pub(crate) fn maintain(reader: &Reader) {
    while !reader.is_stopped() {
        reader.report(Instant::now());
        ping(reader);
        let is_idle = reader.prefetch.tasks(|tasks| tasks.len()) == 0;
        reader
            .transport
            .pause(if is_idle { LOOK_IDLE } else { LOOK });
    }
}

// Pings silent connections, and gives up those that do not answer.
fn ping(reader: &Reader) {
    let ping_after = PING_AFTER_MAX.min(reader.settings.deadline / 6).as_millis() as u64;
    let dead_after = (reader.settings.deadline / 3).as_millis() as u64;
    let now_ms = reader.transport.now_ms();
    for connection in reader.transport.connections() {
        match connection.quiet(now_ms, ping_after, dead_after) {
            Quiet::Wait => {}
            Quiet::Ask => {
                let id = reader.transport.id();
                connection.expect(id, InFlight::Ping(Instant::now()));
                connection.send(&Request::Ping { id }, true);
            }
            Quiet::Dead => {
                add(&reader.counts.connections_dead, 1);
                connection.close();
            }
        }
    }
}

/// The storer's thread: the only one that may block in the kernel's page cache.
pub(crate) fn store(reader: &Reader) {
    while let Some(run) = reader.prefetch.take_run(STORED_AT_ONCE_MAX) {
        let mut bytes = Vec::with_capacity(run.blocks.len() * BLOCK_BYTES);
        for block in &run.blocks {
            bytes.extend_from_slice(block);
        }
        let pages = reader.pages();
        // Do this before the page cache has the blocks: after that they can be read unobserved.
        reader.prefetch.tasks(Tasks::blind);
        let is_there = pages.is_some_and(|pages| pages.store(run.file, run.first, &bytes));
        reader.prefetch.stored(&run, is_there);
    }
}

/// The notes thread, for jobs that may wait for a disk.
pub(crate) fn note(reader: &Reader, jobs: &Receiver<Job>) {
    while !reader.is_stopped() {
        if let Ok(job) = jobs.recv_timeout(LOOK_IDLE) {
            do_job(reader, job);
        }
    }
    // Jobs queued until the end are still done.
    while let Ok(job) = jobs.try_recv() {
        do_job(reader, job);
    }
}

fn do_job(reader: &Reader, job: Job) {
    let kept = match job {
        Job::Hashes(at) => reader.disk.keep_group(at),
        Job::Plan(task, plan) => reader.disk.keep_plan(task, &plan),
        Job::Nothing => Ok(()),
        Job::Resident(token) => {
            see_resident(reader, token);
            Ok(())
        }
    };
    if kept.is_err() {
        add(&reader.counts.notes_failed, 1);
    }
}

// Blocks that the page cache had before are read unobserved.
fn see_resident(reader: &Reader, token: Token) {
    if reader.is_stopped() {
        return;
    }
    let plan = |task: &mut Task| match task.is_audit || task.begun.is_none() {
        true => (true, task.plan.clone()),
        false => (false, task.probes()),
    };
    let Some((is_audit, plan)) = reader.prefetch.task(&token, plan) else {
        return;
    };
    if !reader.has_pages() {
        return;
    }
    let resident = reader.resident(&plan).resident;
    reader.prefetch.tasks(|tasks| {
        if !is_audit {
            // Otherwise the server would take a file for unused whose first block is read unobserved.
            let now = Instant::now();
            for at in resident {
                tasks.read(&token, at, now);
            }
        } else if let Some(task) = tasks.get(&token)
            && resident.iter().any(|at| !task.has_read(*at))
        {
            task.set_blind();
        }
    });
}

/// Puts cached blocks that a task needed last time into the buffer, as the server would.
pub(crate) fn feed(reader: &Reader, token: Token, blocks: &[(BlockAt, BlockHash)]) {
    feed_blocks(reader, token, blocks);
    reader.prefetch.store_arrived();
}

fn feed_blocks(reader: &Reader, token: Token, blocks: &[(BlockAt, BlockHash)]) {
    let Some(cache) = reader.disk.cache() else {
        return;
    };
    let hashes: Vec<BlockHash> = blocks.iter().map(|(_, hash)| *hash).collect();
    cache.expect(&hashes);
    let begun = Instant::now();
    for (place, (at, hash)) in blocks.iter().enumerate() {
        if place % STORED_AT_ONCE_MAX == 0 {
            reader.prefetch.store_arrived();
        }
        let (is_audit, is_known) = loop {
            let state = reader.prefetch.task(&token, |task| {
                let is_answered = task.wire.is_none() || task.begun.is_some();
                (is_answered, task.is_audit, task.has_read(*at))
            });
            let Some((is_answered, is_audit, is_known)) = state else {
                return;
            };
            if is_answered || begun.elapsed() > BEGUN_WAIT {
                break (is_audit, is_known);
            }
            reader.transport.pause(Duration::from_millis(1));
        };
        if reader.is_stopped() {
            return;
        }
        let Some(bytes) = reader.disk.block_bytes(*at) else {
            continue;
        };
        if is_known || reader.prefetch.is_buffered(*at) {
            continue;
        }
        if let Some(bytes) = cache.get(hash, bytes) {
            let is_storable = !is_audit && reader.has_pages();
            let kind = Kind::Prefetched { token, is_storable };
            let arrived = reader.prefetch.arrive(*at, bytes, kind);
            add(&reader.counts.fed, u64::from(arrived == Arrived::Buffered));
        }
    }
}
