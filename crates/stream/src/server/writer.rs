//! What is sent on a connection, and in which order. First come short answers, then blocks that programs wait for,
//! other requested data, prefetched blocks, and last the blocks of `Fetch`. The writer encodes one message at a time
//! and waits until the socket has taken it. So a demanded block waits for at most one piece, and a slow reader costs
//! one message of memory.

use super::bundles::{LEVEL_FAST, compress, compress_bytes};
use super::connection::Connection;
use super::counters::{Reason, add};
use super::failure_log::StoreFailure;
use super::queue::{Job, ReadJob};
use super::state::State;
use super::task::Next;
use crate::block::{BlockAt, Token};
use crate::group::{GROUP_BLOCKS, GroupAt, groups_of};
use crate::provide::AHEAD_PIECES;
use crate::store::Published;
use crate::wire::{Answer, Refusal};
use std::sync::Arc;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Groups of hashes in one message of protocol 1.
const LIST_GROUPS: u32 = 8;

/// The token of blocks that belong to no task.
const NO_TASK: Token = Token([0; 16]);

/// Sends until the connection breaks.
pub(super) async fn run(
    connection: &Connection,
    io: &mut (impl AsyncWrite + Unpin),
) -> Result<(), Reason> {
    let mut writer = Writer { connection, io };
    loop {
        let urgent = connection.queue().next_urgent();
        if let Some(job) = urgent {
            writer.job(job).await?;
            connection.room.notify_one();
            continue;
        }
        if let Some((token, next, ahead)) = connection.session.next(connection.id, AHEAD_PIECES) {
            if let Next::Piece { blocks, .. } = &next {
                let now_ms = connection.state.now_ms();
                connection.session.share(token, blocks, now_ms);
            }
            connection
                .state
                .provider
                .expect(&connection.published, &ahead);
            writer.prefetched(token, next).await?;
            continue;
        }
        let fetch = connection.queue().next_fetch();
        if let Some(job) = fetch {
            writer.job(job).await?;
            connection.room.notify_one();
            continue;
        }
        connection.wake.notified().await;
    }
}

struct Writer<'a, W> {
    connection: &'a Connection,
    io: &'a mut W,
}

impl<W: AsyncWrite + Unpin> Writer<'_, W> {
    async fn job(&mut self, job: Job) -> Result<(), Reason> {
        match job {
            Job::Answer(answer) => self.send(&answer).await,
            Job::Read(job) => self.read(job).await,
            Job::Manifest { offset, bytes } => {
                let signed = &self.connection.published.signed;
                let piece = &signed[offset as usize..(offset + bytes) as usize];
                let bytes = piece.to_vec();
                self.send(&Answer::Manifest { offset, bytes }).await
            }
            // The device requested these, so send them even if they were sent before.
            Job::Hashes(at) => match self.groups(vec![at]).await? {
                Ok(()) => Ok(()),
                Err(failed) => self.damaged(0, &failed).await,
            },
            Job::Fetch {
                id,
                blocks,
                is_last,
            } => self.fetch(id, blocks, is_last).await,
        }
    }

    async fn read(&mut self, job: ReadJob) -> Result<(), Reason> {
        let counters = &self.connection.state.counters;
        let ReadJob {
            id,
            token,
            at,
            around,
        } = job;
        let (task, token) = (token, token.unwrap_or(NO_TASK));
        if let Err(failed) = self.hashes(&[at]).await? {
            self.read_failed(task);
            return self.damaged(id, &failed).await;
        }
        // The neighbours are in the same segment: reading them now costs nothing more, and their compression can wait.
        let wanted = around.clone();
        let both = blocking(self.connection, move |state, published| {
            let demand = state.provider.blocks(published, &[at])?;
            let demand = compress_bytes(published, &[at], &demand, LEVEL_FAST)?;
            let rest = state.provider.blocks(published, &wanted).ok();
            Ok((demand, rest))
        });
        let (compressed, rest) = match both.await {
            Ok(both) => both,
            Err(failed) => {
                self.read_failed(task);
                return self.damaged(id, &failed).await;
            }
        };
        let blocks = vec![at];
        add(&counters.blocks_demand, 1);
        self.send(&Answer::Blocks {
            id,
            token,
            blocks,
            compressed,
        })
        .await?;
        let (Some(rest), false) = (rest, around.is_empty()) else {
            return Ok(());
        };
        let blocks = around.clone();
        let packed = blocking(self.connection, move |_, published| {
            compress_bytes(published, &blocks, &rest, LEVEL_FAST)
        });
        // No program waits for neighbours, so a failure is not reported.
        let Ok(compressed) = packed.await else {
            return Ok(());
        };
        add(&counters.blocks_around, around.len());
        self.send(&Answer::Blocks {
            id,
            token,
            blocks: around,
            compressed,
        })
        .await
    }

    async fn prefetched(&mut self, token: Token, next: Next) -> Result<(), Reason> {
        let (whole, blocks) = match next {
            Next::Piece { whole, blocks } => (whole, blocks),
            Next::Done { was_stopped } => {
                return self
                    .send(&Answer::PrefetchDone { token, was_stopped })
                    .await;
            }
        };
        if self.hashes(&blocks).await?.is_err() {
            // A program that needs them requests them, and is then told what is wrong.
            return Ok(());
        }
        let state = &self.connection.state;
        let bundle = whole.and_then(|(plan, piece)| state.bundles.get(plan, piece));
        add(&state.counters.bundles_hits, usize::from(bundle.is_some()));
        let compressed = match bundle {
            Some(bundle) => bundle.to_vec(),
            None => {
                let wanted = blocks.clone();
                let packed = blocking(self.connection, move |state, published| {
                    let packed = compress(&state.provider, published, &wanted, LEVEL_FAST)?;
                    if let Some((plan, piece)) = whole {
                        add(&state.counters.bundles_misses, 1);
                        let kept = packed.as_slice().into();
                        state.bundles.put(plan, piece, kept, false);
                    }
                    Ok(packed)
                });
                match packed.await {
                    Ok(packed) => packed,
                    Err(failure) => {
                        self.connection.state.counters.refuse(Reason::Damaged);
                        self.connection.state.log_failure(&failure);
                        return Ok(());
                    }
                }
            }
        };
        add(&state.counters.blocks_prefetched, blocks.len());
        self.send(&Answer::Blocks {
            id: 0,
            token,
            blocks,
            compressed,
        })
        .await
    }

    async fn fetch(&mut self, id: u32, blocks: Vec<BlockAt>, is_last: bool) -> Result<(), Reason> {
        if let Err(failed) = self.hashes(&blocks).await? {
            self.connection.queue().end_fetch(id);
            return self.damaged(id, &failed).await;
        }
        let wanted = blocks.clone();
        let packed = blocking(self.connection, move |state, published| {
            compress(&state.provider, published, &wanted, LEVEL_FAST)
        });
        let compressed = match packed.await {
            Ok(packed) => packed,
            Err(failed) => {
                self.connection.queue().end_fetch(id);
                return self.damaged(id, &failed).await;
            }
        };
        add(&self.connection.state.counters.blocks_fetched, blocks.len());
        self.send(&Answer::Blocks {
            id,
            token: NO_TASK,
            blocks,
            compressed,
        })
        .await?;
        if is_last {
            self.send(&Answer::Fetched { id }).await?;
        }
        Ok(())
    }

    /// Sends the hashes that prove these blocks, unless they were sent on this connection.
    async fn hashes(&mut self, blocks: &[BlockAt]) -> Result<Result<(), StoreFailure>, Reason> {
        let groups = self.connection.unproven(blocks);
        self.groups(groups).await
    }

    /// Sends groups of hashes. One message's blocks lie in few groups, so these fit in memory.
    async fn groups(&mut self, groups: Vec<GroupAt>) -> Result<Result<(), StoreFailure>, Reason> {
        if groups.is_empty() {
            return Ok(Ok(()));
        }
        if self.connection.protocol == 1 {
            return self.lists(groups).await;
        }
        let read = blocking(self.connection, move |state, published| {
            let read = groups.into_iter().map(|at| {
                let (_, content) = published.manifest.file(at.file).ok_or_else(missing)?;
                Ok((at, state.store.group(&content, at.group)?))
            });
            read.collect::<Result<Vec<_>, StoreFailure>>()
        });
        let groups = match read.await {
            Ok(groups) => groups,
            Err(failed) => return Ok(Err(failed)),
        };
        for (at, group) in groups {
            self.send(&Answer::Group { at, group }).await?;
            self.connection.is_proven(at);
        }
        Ok(Ok(()))
    }

    /// Sends all hashes of files, for devices that speak protocol 1: piece by piece, as they are read.
    async fn lists(&mut self, files: Vec<GroupAt>) -> Result<Result<(), StoreFailure>, Reason> {
        for at in files {
            let file = at.file;
            let groups = groups_of(self.connection.published.manifest.blocks(file));
            for from in (0..groups).step_by(LIST_GROUPS as usize) {
                let read = blocking(self.connection, move |state, published| {
                    let (_, content) = published.manifest.file(file).ok_or_else(missing)?;
                    let mut hashes = Vec::new();
                    for group in from..groups.min(from + LIST_GROUPS) {
                        hashes.extend(state.store.group(&content, group)?.hashes);
                    }
                    Ok(hashes)
                });
                let hashes = match read.await {
                    Ok(hashes) => hashes,
                    Err(failed) => return Ok(Err(failed)),
                };
                let first = from * GROUP_BLOCKS;
                self.send(&Answer::Hashes {
                    file,
                    first,
                    hashes,
                })
                .await?;
            }
            self.connection.is_proven(at);
        }
        Ok(Ok(()))
    }

    /// Notes that a program of a task gets an error in place of a block.
    fn read_failed(&self, task: Option<Token>) {
        if let Some(token) = task {
            self.connection.session.tenant.predictor().failed(token);
        }
    }

    async fn damaged(&mut self, id: u32, failed: &StoreFailure) -> Result<(), Reason> {
        let state = &self.connection.state;
        state.counters.refuse(Reason::Damaged);
        state.log_failure(failed);
        let (token, reason) = (None, Refusal::Damaged);
        self.send(&Answer::Refused { id, token, reason }).await
    }

    /// Sends one message, and waits until the socket has taken it.
    async fn send(&mut self, answer: &Answer) -> Result<(), Reason> {
        let mut bytes = Vec::new();
        answer.encode_for(self.connection.protocol, &mut bytes);
        let mut rest = &bytes[..];
        let deadline = self.connection.state.settings.write_deadline;
        while !rest.is_empty() {
            let count = match timeout(deadline, self.io.write(rest)).await {
                Err(_) => return Err(Reason::SlowReader),
                Ok(Err(_) | Ok(0)) => return Err(Reason::Broken),
                Ok(Ok(count)) => count,
            };
            rest = &rest[count..];
        }
        match timeout(deadline, self.io.flush()).await {
            Err(_) => return Err(Reason::SlowReader),
            Ok(Err(_)) => return Err(Reason::Broken),
            Ok(Ok(())) => {}
        }
        add(&self.connection.state.counters.sent_bytes, bytes.len());
        Ok(())
    }
}

fn missing() -> StoreFailure {
    "no such file".into()
}

/// Runs work that may read the disk or take long, on a thread for blocking work.
async fn blocking<T: Send + 'static>(
    connection: &Connection,
    work: impl FnOnce(&Arc<State>, &Arc<Published>) -> Result<T, StoreFailure> + Send + 'static,
) -> Result<T, StoreFailure> {
    let (state, published) = (
        Arc::clone(&connection.state),
        Arc::clone(&connection.published),
    );
    tokio::task::spawn_blocking(move || work(&state, &published))
        .await
        .unwrap_or_else(|_| Err("a thread of the server failed".into()))
}
