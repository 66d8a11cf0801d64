//! Which subscriptions the broker's session holds, and the packets that bring it to what is wanted.

use super::codec::{self, Grant};
use super::options::{Qos, Subscription, Version};
use super::packet::Malformed;
use super::state::MqttState;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Filters in one packet; some hosted brokers refuse more.
const FILTERS_PER_PACKET: usize = 8;

enum Asked {
    Subscribe(Vec<Subscription>),
    Unsubscribe(Vec<String>),
}

struct Pending {
    packet_id: u16,
    asked: Asked,
}

/// The subscriptions of one client id at one broker, over all its connections.
#[derive(Default)]
pub(super) struct Filters {
    /// Granted, with the QoS asked for (a broker may grant less).
    held: Vec<Subscription>,
    /// Those of `held` that the broker granted with less than asked.
    lowered: Vec<String>,
    /// Refused on this connection; asked for again on the next one.
    refused: Vec<Subscription>,
    pending: Vec<Pending>,
    pending_since: Option<Duration>,
    last_id: u16,
}

impl Filters {
    /// A new connection. Without a session at the broker nothing is held there.
    pub(super) fn connected(&mut self, session_present: bool) {
        self.pending.clear();
        self.pending_since = None;
        self.refused.clear();
        if !session_present {
            self.held.clear();
            self.lowered.clear();
        }
    }

    /// Forgets everything: the session is another one.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// New options: what was refused may be asked for again.
    pub(super) fn changed(&mut self) {
        self.refused.clear();
    }

    /// Since when, on the session's clock, the broker owes an answer.
    pub(super) fn pending_since(&self) -> Option<Duration> {
        self.pending_since
    }

    /// Reading starts again after a pause: the broker may have answered long ago.
    pub(super) fn resumed(&mut self, now: Duration) {
        if self.pending_since.is_some() {
            self.pending_since = Some(now);
        }
    }

    /// Appends the packets that are due to `out`. Nothing is due while an answer is.
    pub(super) fn reconcile(
        &mut self,
        version: Version,
        wanted: &[Subscription],
        out: &mut Vec<u8>,
        now: Duration,
    ) -> Result<(), &'static str> {
        if !self.pending.is_empty() {
            return Ok(());
        }
        let gone = |held: &&Subscription| wanted.iter().all(|want| want.filter != held.filter);
        let gone: Vec<String> = self
            .held
            .iter()
            .filter(gone)
            .map(|held| held.filter.clone())
            .collect();
        let missing =
            |want: &&Subscription| !self.held.contains(want) && !self.refused.contains(want);
        let missing: Vec<Subscription> = wanted.iter().filter(missing).cloned().collect();
        for filters in gone.chunks(FILTERS_PER_PACKET) {
            let packet_id = self.next_id();
            out.extend_from_slice(&codec::unsubscribe(version, packet_id, filters)?);
            let asked = Asked::Unsubscribe(filters.to_vec());
            self.pending.push(Pending { packet_id, asked });
        }
        for wanted in missing.chunks(FILTERS_PER_PACKET) {
            let packet_id = self.next_id();
            out.extend_from_slice(&codec::subscribe(version, packet_id, wanted)?);
            let asked = Asked::Subscribe(wanted.to_vec());
            self.pending.push(Pending { packet_id, asked });
        }
        self.pending_since = (!self.pending.is_empty()).then_some(now);
        Ok(())
    }

    /// A SUBACK has come.
    pub(super) fn granted(
        &mut self,
        packet_id: u16,
        grants: Vec<Grant>,
        state: &MqttState,
    ) -> Result<(), Malformed> {
        let Some(Asked::Subscribe(asked)) = self.take(packet_id) else {
            return Err(Malformed("a SUBACK that nobody asked for"));
        };
        if asked.len() != grants.len() {
            return Err(Malformed("a SUBACK with another number of filters"));
        }
        for (asked, grant) in asked.into_iter().zip(grants) {
            self.held.retain(|held| held.filter != asked.filter);
            self.lowered.retain(|lowered| *lowered != asked.filter);
            match grant {
                Grant::Refused(reason) => {
                    state.set_error(&format!(
                        "the broker refuses the subscription `{}`: {reason}",
                        asked.filter
                    ));
                    self.refused.push(asked);
                }
                Grant::Granted(qos) => {
                    if asked.qos == Qos::AtLeastOnce && qos == 0 {
                        self.lowered.push(asked.filter.clone());
                        state.set_error(&format!(
                            "the broker grants the subscription `{}` with QoS 0 only",
                            asked.filter
                        ));
                    }
                    self.held.push(asked);
                }
            }
        }
        self.publish(state);
        Ok(())
    }

    /// An UNSUBACK has come.
    pub(super) fn released(&mut self, packet_id: u16, state: &MqttState) -> Result<(), Malformed> {
        let Some(Asked::Unsubscribe(filters)) = self.take(packet_id) else {
            return Err(Malformed("an UNSUBACK that nobody asked for"));
        };
        self.held.retain(|held| !filters.contains(&held.filter));
        self.lowered.retain(|lowered| !filters.contains(lowered));
        self.publish(state);
        Ok(())
    }

    /// Shows the numbers.
    pub(super) fn publish(&self, state: &MqttState) {
        state
            .subscriptions_held
            .store(self.held.len() as u64, Relaxed);
        let refused = self.refused.len() + self.lowered.len();
        state.subscriptions_refused.store(refused as u64, Relaxed);
    }

    fn take(&mut self, packet_id: u16) -> Option<Asked> {
        let at = self
            .pending
            .iter()
            .position(|pending| pending.packet_id == packet_id)?;
        let asked = self.pending.swap_remove(at).asked;
        if self.pending.is_empty() {
            self.pending_since = None;
        }
        Some(asked)
    }

    fn next_id(&mut self) -> u16 {
        // 0 is no packet id. An id is free again long before the numbers come round.
        self.last_id = self.last_id.checked_add(1).unwrap_or(1);
        self.last_id
    }
}
