//! Background work: reporting reads to the server, finding dead connections, storing blocks in the page cache, keeping
//! notes, and feeding the stage from the cache.

use super::counters::add;
use super::inner::{Inner, Job};
use super::network::{Asked, Quiet, locked};
use super::notes;
use super::stage::{Arrived, Kind};
use super::tasks::{Tasks, Tell};
use crate::block::{BLOCK_BYTES, BlockAt, BlockHash, Token, block_bytes};
use crate::wire::{BLOCKS_PER_MESSAGE_MAX, Request};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// Poll interval of the keeper while tasks run, and while none runs.
const LOOK: Duration = Duration::from_millis(50);
const LOOK_IDLE: Duration = Duration::from_millis(200);

/// The maximum silence of a connection before a ping is sent.
const PING_AFTER_MAX: Duration = Duration::from_secs(5);

/// The maximum number of blocks that are stored in the page cache together.
const STORED_AT_ONCE_MAX: usize = 64;

/// How long the feeding of a start waits for the server to say whether the start is audited.
const BEGUN_WAIT: Duration = Duration::from_millis(200);

/// The keeper's thread.
pub(super) fn keep(inner: &Inner) {
    while !inner.is_stopped() {
        report(inner);
        ping(inner);
        let is_idle = locked(&inner.tasks).len() == 0;
        inner.network.pause(if is_idle { LOOK_IDLE } else { LOOK });
    }
}

/// Reports what is due of all tasks. Sends under the lock of the tasks: without it, another thread could end a task and
/// send its end before a trace that was taken here, and the server would drop the trace. Sending does not wait.
fn report(inner: &Inner) {
    let mut tasks = locked(&inner.tasks);
    let tells = tasks.take_due(Instant::now());
    for tell in &tells {
        self::tell(inner, &mut tasks, tell);
    }
    drop(tasks);
    // Without the lock of the tasks: the stage's lock comes before it.
    for tell in tells.iter().filter(|tell| tell.is_end) {
        inner.stage.end(tell.token);
    }
}

fn tell(inner: &Inner, tasks: &mut Tasks, tell: &Tell) {
    let is_told = trace(inner, tell.connection, tell.wire, &tell.blocks);
    let mut is_exact = false;
    if let Some(task) = tasks.get(&tell.token) {
        if !is_told {
            task.set_blind();
        }
        is_exact = task.is_exact();
        if tell.is_end {
            inner.start_is_over(task);
        }
    }
    if tell.is_end {
        end(inner, tell.connection, tell.wire, is_exact, false);
    }
}

/// Reports what was read to the server. Returns false if that failed.
pub(super) fn trace(inner: &Inner, connection: u64, wire: Token, blocks: &[BlockAt]) -> bool {
    if blocks.is_empty() {
        return true;
    }
    let Some(connection) = inner.network.connection(connection) else {
        return false;
    };
    blocks.chunks(BLOCKS_PER_MESSAGE_MAX).all(|blocks| {
        let trace = Request::Trace {
            token: wire,
            blocks: blocks.to_vec(),
        };
        connection.send(&trace, false)
    })
}

/// Reports the end of a task, or of its first action, to the server.
pub(super) fn end(inner: &Inner, connection: u64, token: Token, is_exact: bool, has_exited: bool) {
    if let Some(connection) = inner.network.connection(connection) {
        let end = Request::End {
            token,
            is_exact,
            has_exited,
        };
        connection.send(&end, false);
    }
}

// Pings silent connections, and gives up those that do not answer.
fn ping(inner: &Inner) {
    let ping_after = PING_AFTER_MAX.min(inner.settings.deadline / 6).as_millis() as u64;
    let dead_after = (inner.settings.deadline / 3).as_millis() as u64;
    let now_ms = inner.network.now_ms();
    for connection in inner.network.connections() {
        match connection.quiet(now_ms, ping_after, dead_after) {
            Quiet::Wait => {}
            Quiet::Ask => {
                let id = inner.network.id();
                connection.expect(id, Asked::Ping(Instant::now()));
                connection.send(&Request::Ping { id }, true);
            }
            Quiet::Dead => {
                add(&inner.counts.connections_dead, 1);
                connection.close();
            }
        }
    }
}

/// The storer's thread: the only one that may block in the kernel's page cache.
pub(super) fn store(inner: &Inner) {
    while let Some(run) = inner.stage.take_run(STORED_AT_ONCE_MAX) {
        let mut bytes = Vec::with_capacity(run.blocks.len() * BLOCK_BYTES);
        for block in &run.blocks {
            bytes.extend_from_slice(block);
        }
        let pages = inner.pages();
        // Do this before the page cache has the blocks: after that they can be read unobserved.
        locked(&inner.tasks).blind();
        let is_there = pages.is_some_and(|pages| pages.store(run.file, run.first, &bytes));
        inner.stage.stored(&run, is_there);
    }
}

/// The notes thread, for jobs that may wait for a disk.
pub(super) fn note(inner: &Inner, jobs: &Receiver<Job>) {
    while !inner.is_stopped() {
        if let Ok(job) = jobs.recv_timeout(LOOK_IDLE) {
            do_job(inner, job);
        }
    }
    // Jobs queued until the end are still done.
    while let Ok(job) = jobs.try_recv() {
        do_job(inner, job);
    }
}

fn do_job(inner: &Inner, job: Job) {
    let cache = inner.settings.cache.as_deref();
    let kept = match (job, cache) {
        (Job::Hashes(at), Some(cache)) => match inner.groups.get(at) {
            Some(group) => notes::set_group(cache, &inner.manifest, at, &group),
            // It was evicted by others, and is requested when it is needed again.
            None => Ok(()),
        },
        (Job::Plan(task, plan), Some(cache)) => {
            let path = inner.paths.get(&inner.manifest, task);
            let bytes = notes::plan_bytes(&inner.manifest, &inner.paths, &plan);
            notes::set_plan(cache, &path, &bytes)
        }
        (Job::Nothing, _) => Ok(()),
        (Job::Resident(token), _) => {
            see_resident(inner, token);
            Ok(())
        }
        (_, None) => Ok(()),
    };
    if kept.is_err() {
        add(&inner.counts.notes_failed, 1);
    }
}

// Blocks that the page cache had before are read unobserved.
fn see_resident(inner: &Inner, token: Token) {
    if inner.is_stopped() {
        return;
    }
    let (is_audit, plan) = match locked(&inner.tasks).get(&token) {
        Some(task) if task.is_audit || task.begun.is_none() => (true, task.plan.clone()),
        Some(task) => (false, task.probes()),
        None => return,
    };
    if !inner.has_pages() {
        return;
    }
    if !is_audit {
        // Otherwise the server would take a file for unused whose first block is read unobserved.
        for at in inner.resident(&plan) {
            locked(&inner.tasks).read(&token, at, Instant::now());
        }
        return;
    }
    let resident = inner.resident(&plan);
    if let Some(task) = locked(&inner.tasks).get(&token)
        && resident.iter().any(|at| !task.has_read(*at))
    {
        task.set_blind();
    }
}

/// Puts cached blocks that a task needed last time onto the stage, as the server would.
pub(super) fn feed(inner: &Inner, token: Token, blocks: &[(BlockAt, BlockHash)]) {
    feed_blocks(inner, token, blocks);
    inner.stage.store_arrived();
}

fn feed_blocks(inner: &Inner, token: Token, blocks: &[(BlockAt, BlockHash)]) {
    let Some(cache) = inner.settings.cache.as_deref() else {
        return;
    };
    let hashes: Vec<BlockHash> = blocks.iter().map(|(_, hash)| *hash).collect();
    cache.expect(&hashes);
    let begun = Instant::now();
    for (place, (at, hash)) in blocks.iter().enumerate() {
        if place % STORED_AT_ONCE_MAX == 0 {
            inner.stage.store_arrived();
        }
        let (is_storable, is_known) = loop {
            let mut tasks = locked(&inner.tasks);
            let Some(task) = tasks.get(&token) else {
                return;
            };
            if task.wire.is_none() || task.begun.is_some() || begun.elapsed() > BEGUN_WAIT {
                break (!task.is_audit && inner.has_pages(), task.has_read(*at));
            }
            drop(tasks);
            inner.network.pause(Duration::from_millis(1));
        };
        if inner.is_stopped() {
            return;
        }
        let Some((size_bytes, _)) = inner.manifest.file(at.file) else {
            continue;
        };
        if is_known || inner.stage.is_staged(*at) {
            continue;
        }
        if let Some(bytes) = cache.get(hash, block_bytes(size_bytes, at.index)) {
            let kind = Kind::Prefetched { token, is_storable };
            let arrived = inner.stage.arrive(*at, bytes, kind);
            add(&inner.counts.fed, u64::from(arrived == Arrived::Staged));
        }
    }
}
