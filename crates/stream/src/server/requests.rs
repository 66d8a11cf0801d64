//! The handlers of a device's requests.

use super::connection::Connection;
use super::counters::{Reason, add};
use super::queue::ReadJob;
use super::task::{Task, around_of};
use crate::block::{BlockAt, FileId, SEGMENT_BLOCKS, Token, block_bytes};
use crate::group::{GroupAt, groups_of};
use crate::predict::{Mode, Needed, Push};
use crate::provide::{AHEAD_PIECES, Arm};
use crate::wire::{Answer, HeldBlocks, Refusal, Request};
use std::sync::Arc;

/// Handles a request. An error ends the connection.
pub(super) fn handle(connection: &Connection, request: Request) -> Result<(), Reason> {
    match request {
        Request::Hello { .. } => return Err(Reason::OutOfOrder),
        Request::Begin { token, task, held } => begin(connection, token, task, held),
        Request::Read {
            id,
            token,
            at,
            around,
        } => read(connection, id, token, at, around),
        Request::Fetch { id, blocks } => fetch(connection, id, blocks),
        Request::AskHashes { files } => {
            let first = |file: &FileId| GroupAt {
                file: *file,
                group: 0,
            };
            hashes(connection, files.iter().map(first).collect());
        }
        Request::AskGroups { groups } => hashes(connection, groups),
        Request::AskPlan { id, task } => plan(connection, id, task),
        Request::Trace { token, blocks } => trace(connection, token, &blocks),
        Request::End {
            token,
            is_exact,
            has_exited,
        } => end(connection, token, is_exact, has_exited),
        Request::Ping { id } => connection.answer(Answer::Pong { id }),
    }
    Ok(())
}

fn has(connection: &Connection, at: BlockAt) -> bool {
    let file = connection.published.manifest.file(at.file);
    file.is_some_and(|(size_bytes, _)| block_bytes(size_bytes, at.index) > 0)
}

fn begin(connection: &Connection, token: Token, task: FileId, held: HeldBlocks) {
    let state = &connection.state;
    let session = &connection.session;
    if connection.published.manifest.file(task).is_none() {
        return connection.refuse_token(token, Refusal::NoSuchBlock, Reason::NoSuchBlock);
    }
    match session.admit(token, state.settings.tasks_max) {
        Ok(None) => {}
        Ok(Some(gone)) => {
            let now_ms = state.now_ms();
            let mut predictor = session.tenant.predictor();
            predictor.end(gone, false, true, now_ms);
        }
        Err(Refusal::TokenReused) => {
            return connection.refuse_token(token, Refusal::TokenReused, Reason::TokenReused);
        }
        Err(refusal) => return connection.refuse_token(token, refusal, Reason::Tokens),
    }
    let now_ms = state.now_ms();
    let company = session.company(now_ms);
    let begun = {
        let mut predictor = session.tenant.predictor();
        if predictor.is_used(token) {
            drop(predictor);
            return connection.refuse_token(token, Refusal::TokenReused, Reason::TokenReused);
        }
        match &company {
            None => predictor.begin(token, task, &held, now_ms),
            Some(there) => {
                let begun = predictor.begin_beside(token, task, &held, now_ms);
                predictor.beside(token, there);
                begun
            }
        }
    };
    let mut new = Task::new(token, task, connection.id, held, &session.sent_room);
    new.starts_at(now_ms);
    session.accompany(&mut new, now_ms);
    let blocks = new.push(begun.push);
    add(&state.counters.tasks_begun, 1);
    add(&state.counters.tasks_predicted, usize::from(new.has_next()));
    add(&state.counters.blocks_held, new.held_blocks());
    if let Some(turn) = state.provider.begin() {
        let mut files = session.tenant.predictor().files(task);
        files.insert(task);
        let published = Arc::clone(&connection.published);
        tokio::task::spawn_blocking(move || turn.advise(&published, &files));
    }
    let ahead: Vec<BlockAt> = new.ahead(AHEAD_PIECES).copied().collect();
    state.provider.expect(&connection.published, &ahead);
    // Queue this before the writer can see the task, so that it is sent before everything else of the task.
    connection.answer(Answer::Begun {
        token,
        blocks,
        is_audit: begun.is_audit,
    });
    session.begin(new);
    connection.wake.notify_one();
}

fn read(connection: &Connection, id: u32, token: Option<Token>, at: BlockAt, around: u8) {
    let state = &connection.state;
    if !has(connection, at) {
        return connection.refuse(id, Refusal::NoSuchBlock, Reason::NoSuchBlock);
    }
    let file_blocks = connection.published.manifest.blocks(at.file);
    let session = &connection.session;
    let known = token.and_then(|token| {
        let of_task = session.with(token, |task| {
            task.is_paused = false;
            task.demand(at);
        });
        of_task?;
        let (push, behind) = {
            let mut predictor = session.tenant.predictor();
            let push = predictor.request(token, at, state.now_ms());
            // Only this arm reads ahead what follows, and the list is long with large segments.
            let behind = if state.provider.arm() == Arm::Async {
                predictor.following(token, at.file, AHEAD_PIECES)
            } else {
                Vec::new()
            };
            (push, behind)
        };
        // In SYSFLOW an action continues when certain blocks of it are requested. If such a block arrived as a
        // neighbour, the device would not request it. While an action is recorded nothing is prefetched, and neighbours
        // save round trips.
        let is_followed = state.settings.predict == Mode::Paper && push != Push::Nothing;
        let around = if is_followed { 0 } else { around };
        let now_ms = state.now_ms();
        let around = session.with(token, |task| {
            task.push(push);
            task.around(at, around, file_blocks)
        })?;
        let mut sent = vec![at];
        sent.extend(&around);
        session.share(token, &sent, now_ms);
        let has_action = is_followed || !behind.is_empty();
        Some((around, has_action.then_some(behind)))
    });
    if let Some(token) = token
        && known.is_none()
    {
        // Send the block anyway: a restarted server knows no tokens, and programs wait for the block.
        match connection.protocol {
            1 => state.counters.refuse(Reason::NoSuchToken),
            _ => connection.refuse_token(token, Refusal::NoSuchToken, Reason::NoSuchToken),
        }
    }
    let (around, behind) =
        known.unwrap_or_else(|| (around_of(at, around, file_blocks, |_| true), None));
    // A known action says what is requested next; without one, a file is likely to be read on.
    let behind = behind.unwrap_or_else(|| next_runs(at, file_blocks));
    state.provider.expect(&connection.published, &behind);
    let job = ReadJob {
        id,
        token,
        at,
        around,
    };
    connection.queue().read(job);
    connection.wake.notify_one();
}

/// Returns a block of each of the next runs of a file.
fn next_runs(at: BlockAt, file_blocks: u32) -> Vec<BlockAt> {
    let steps = 1..=AHEAD_PIECES as u32;
    let indexes = steps.filter_map(|step| at.index.checked_add(step * SEGMENT_BLOCKS));
    let indexes = indexes.filter(|index| *index < file_blocks);
    indexes.map(|index| BlockAt { index, ..at }).collect()
}

fn fetch(connection: &Connection, id: u32, blocks: Vec<BlockAt>) {
    if !blocks.iter().all(|at| has(connection, *at)) {
        return connection.refuse(id, Refusal::NoSuchBlock, Reason::NoSuchBlock);
    }
    let waiting = connection.queue().fetch_blocks() + blocks.len();
    if waiting > connection.state.settings.fetch_blocks_max {
        return connection.refuse(id, Refusal::Limit, Reason::Waiting);
    }
    connection.queue().fetch(id, blocks);
    connection.wake.notify_one();
}

fn hashes(connection: &Connection, groups: Vec<GroupAt>) {
    let manifest = &connection.published.manifest;
    let exists = |at: &GroupAt| {
        manifest.file(at.file).is_some() && at.group < groups_of(manifest.blocks(at.file))
    };
    if !groups.iter().all(exists) {
        return connection.refuse(0, Refusal::NoSuchBlock, Reason::NoSuchBlock);
    }
    let mut queue = connection.queue();
    for at in groups {
        match connection.protocol {
            1 => queue.list(at),
            _ => queue.group(at),
        }
    }
    drop(queue);
    connection.wake.notify_one();
}

fn plan(connection: &Connection, id: u32, task: FileId) {
    if connection.published.manifest.file(task).is_none() {
        return connection.refuse(id, Refusal::NoSuchBlock, Reason::NoSuchBlock);
    }
    let session = &connection.session;
    // A device that runs the task asks what is sent ahead to it. Any other one wants all that the task may need.
    let needed = match session.runs(task) {
        true => {
            let plan = session.tenant.predictor().plan(task);
            plan.map_or(Needed::Nothing, Needed::Plan)
        }
        false => session.tenant.predictor().needed(task),
    };
    match needed {
        Needed::Plan(plan) => connection.queue().plan(id, task, Some(&plan)),
        Needed::Nothing => connection.queue().plan(id, task, None),
        // Two messages without blocks say this. Older devices take them for a plan without blocks.
        Needed::Part => {
            for has_more in [true, false] {
                let blocks = Vec::new();
                connection.answer(Answer::Plan {
                    id,
                    has_more,
                    blocks,
                });
            }
        }
    }
    connection.wake.notify_one();
}

fn trace(connection: &Connection, token: Token, blocks: &[BlockAt]) {
    if !blocks.iter().all(|at| has(connection, *at)) {
        return connection.refuse(0, Refusal::NoSuchBlock, Reason::NoSuchBlock);
    }
    let session = &connection.session;
    if session.with(token, |task| task.trace(blocks)).is_none() {
        return connection.refuse_token(token, Refusal::NoSuchToken, Reason::NoSuchToken);
    }
    let mut predictor = session.tenant.predictor();
    predictor.trace(token, blocks, connection.state.now_ms());
}

fn end(connection: &Connection, token: Token, is_exact: bool, has_exited: bool) {
    let state = &connection.state;
    let session = &connection.session;
    let known = session.with(token, |task| {
        task.is_paused = true;
        task.has_started();
        if has_exited {
            task.drop_rest();
        }
        let unread = if is_exact { task.unread_blocks() } else { 0 };
        (task.task, task.has_next(), unread)
    });
    let Some((task, was_sending, unread)) = known else {
        return connection.refuse_token(token, Refusal::NoSuchToken, Reason::NoSuchToken);
    };
    add(&state.counters.blocks_unread, unread);
    let plan = {
        let mut predictor = session.tenant.predictor();
        predictor.end(token, is_exact, has_exited, state.now_ms());
        predictor.plan(task)
    };
    if has_exited {
        session.end(token);
        if was_sending {
            let was_stopped = true;
            connection.answer(Answer::PrefetchDone { token, was_stopped });
        }
    }
    if let Some(plan) = plan {
        state.improver.plan(&connection.published, &plan);
    }
}
