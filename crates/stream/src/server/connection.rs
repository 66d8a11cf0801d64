//! The state of one connection.

use super::counters::Reason;
use super::queue::Queue;
use super::session::{Session, SessionKey};
use super::state::State;
use crate::block::{BlockAt, Token};
use crate::group::GroupAt;
use crate::store::{Lease, Published};
use crate::sync::locked;
use crate::wire::{Answer, Refusal};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::Notify;

/// The maximum number of hash groups that a connection remembers as sent (some 400 KiB): those of 16 GiB of long files.
const GROUPS_SENT_MAX: usize = 16 << 10;

/// A connection whose `Hello` was accepted.
pub(super) struct Connection {
    pub(super) state: Arc<State>,
    pub(super) id: u64,
    /// The version of the protocol that the device speaks.
    pub(super) protocol: u16,
    pub(super) key: SessionKey,
    pub(super) session: Arc<Session>,
    pub(super) published: Arc<Published>,
    /// Keeps the version open while a device uses it, also after it is pruned.
    pub(super) _lease: Lease,
    pub(super) queue: Mutex<Queue>,
    /// Notified when there is something to send.
    pub(super) wake: Arc<Notify>,
    /// Notified when something was taken off the queue.
    pub(super) room: Notify,
    pub(super) hashes: Mutex<HashSet<GroupAt>>,
}

impl Connection {
    /// Ignores poisoning: a panic leaves no update half done.
    pub(super) fn queue(&self) -> MutexGuard<'_, Queue> {
        locked(&self.queue)
    }

    fn hashes(&self) -> MutexGuard<'_, HashSet<GroupAt>> {
        locked(&self.hashes)
    }

    /// Returns the groups whose hashes must be sent before these blocks, because they are not remembered as sent. In
    /// protocol 1 all hashes of a file are sent together, and its first group stands for them.
    pub(super) fn unproven(&self, blocks: &[BlockAt]) -> Vec<GroupAt> {
        let sent = self.hashes();
        let mut groups = Vec::new();
        for at in blocks {
            let at = self.proves(GroupAt::from(*at));
            if groups.last() != Some(&at) && !sent.contains(&at) && !groups.contains(&at) {
                groups.push(at);
            }
        }
        groups
    }

    fn proves(&self, at: GroupAt) -> GroupAt {
        match self.protocol {
            1 => GroupAt { group: 0, ..at },
            _ => at,
        }
    }

    /// Remembers that the hashes of a group were sent.
    pub(super) fn is_proven(&self, at: GroupAt) {
        let mut sent = self.hashes();
        if sent.len() >= GROUPS_SENT_MAX {
            // Forgetting is harmless: the hashes are sent again when needed.
            *sent = HashSet::new();
        }
        sent.insert(self.proves(at));
    }

    /// Queues a short message, which is sent before everything else.
    pub(super) fn answer(&self, answer: Answer) {
        self.queue().answer(answer);
        self.wake.notify_one();
    }

    /// Refuses a request. The connection stays open.
    pub(super) fn refuse(&self, id: u32, reason: Refusal, counted: Reason) {
        self.state.counters.refuse(counted);
        let token = None;
        self.answer(Answer::Refused { id, token, reason });
    }

    /// Refuses a token, which the device must not use again.
    pub(super) fn refuse_token(&self, token: Token, reason: Refusal, counted: Reason) {
        self.state.counters.refuse(counted);
        let (id, token) = (0, Some(token));
        self.answer(Answer::Refused { id, token, reason });
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let now_ms = self.state.now_ms();
        let admission = &self.state.admission;
        admission.leave(&self.session, &self.key, self.id, now_ms);
    }
}
