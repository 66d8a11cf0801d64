//! The subscriptions that the broker's session holds, and the packets that change them to the wanted ones.
//!
//! **Invariant:** a subscription counts as held once the broker has granted it on this connection. A broker that comes
//! back with an older save of a session says that the session is present, and lacks later subscriptions. So all wanted
//! ones are requested on each connection. A request for a subscription that the broker has replaces it by an equal one,
//! and interrupts nothing.

use super::codec::{self, Grant};
use super::copies::name_of;
use super::options::{Qos, Subscription, Version};
use super::packet::Malformed;
use super::state::MqttState;
use crate::pattern;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Number of filters in one packet; some hosted brokers refuse more.
const FILTERS_PER_PACKET: usize = 8;

/// A broker that sends messages, and no answer, is left after this multiple of the longest wait for an answer. Messages
/// that it has kept may come before the answer, but not without end.
const WAITS_MAX: u32 = 10;

enum FilterRequest {
    /// The subscriptions, and whether they were named.
    Subscribe(Vec<Subscription>, bool),
    Unsubscribe(Vec<String>),
}

struct Pending {
    packet_id: u16,
    asked: FilterRequest,
}

/// Returns whether two filters match the same topic.
fn have_overlap(wanted: &[Subscription]) -> bool {
    let filters: Vec<&str> = wanted.iter().map(|want| want.filter.as_str()).collect();
    let pair =
        |(at, one): (usize, &&str)| filters[at + 1..].iter().any(|other| overlap(one, other));
    filters.iter().enumerate().any(pair)
}

/// Returns whether this time has passed since a moment, if there is one.
fn has_passed(since: Option<Duration>, now: Duration, time: Duration) -> bool {
    since.is_some_and(|since| now.saturating_sub(since) >= time)
}

fn overlap(one: &str, other: &str) -> bool {
    let levels = |filter| pattern::topic_filter(filter).split('/');
    let (mut one, mut other) = (levels(one), levels(other));
    loop {
        match (one.next(), other.next()) {
            (None, None) | (Some("#"), _) | (_, Some("#")) => return true,
            (None, _) | (_, None) => return false,
            (Some("+"), _) | (_, Some("+")) => {}
            (Some(one), Some(other)) if one != other => return false,
            _ => {}
        }
    }
}

/// A subscription that was granted, on this connection or on an earlier one.
struct ActiveSubscription {
    /// With the requested QoS (a broker may grant less).
    subscription: Subscription,
    /// Whether the broker names it with each message.
    is_named: bool,
    /// Whether it was granted on this connection. Otherwise the broker may have it from an earlier one.
    is_held: bool,
}

/// The subscriptions of one client id at one broker, over all its connections.
#[derive(Default)]
pub(super) struct Filters {
    active: Vec<ActiveSubscription>,
    /// Those of `active` that the broker granted with a lower QoS than requested.
    lowered: Vec<String>,
    /// Refused on this connection; requested again on the next one.
    refused: Vec<Subscription>,
    pending: Vec<Pending>,
    /// When the packets of `pending` were made, moved by the time of pauses.
    asked_since: Option<Duration>,
    /// The same, or when bytes came from the broker since.
    pending_since: Option<Duration>,
    last_id: u16,
    /// Whether the broker names the subscriptions of a message, if it is asked to.
    can_name: bool,
    /// Whether two of the wanted filters match the same topic; `None`: not determined yet.
    overlap: Option<bool>,
}

impl Filters {
    /// Handles a new connection. If the broker has no session, it has no subscriptions.
    pub(super) fn connected(&mut self, session_present: bool, can_name: bool) {
        self.can_name = can_name;
        self.overlap = None;
        self.pending.clear();
        self.asked_since = None;
        self.pending_since = None;
        self.refused.clear();
        if !session_present {
            self.active.clear();
            self.lowered.clear();
        }
        for active in &mut self.active {
            active.is_held = false;
        }
    }

    /// Forgets everything: the session is another one.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Handles new options: refused subscriptions may be requested again.
    pub(super) fn changed(&mut self) {
        self.overlap = None;
        self.refused.clear();
    }

    /// Returns whether the broker has owed an answer for too long: it is silent for `wait_max`, or sends messages
    /// instead for a multiple of that.
    pub(super) fn is_overdue(&self, now: Duration, wait_max: Duration) -> bool {
        has_passed(self.pending_since, now, wait_max)
            || has_passed(self.asked_since, now, wait_max.saturating_mul(WAITS_MAX))
    }

    /// Returns the number of subscriptions that were requested `wait_max` ago or earlier, and have no answer.
    pub(super) fn unanswered(&self, now: Duration, wait_max: Duration) -> u64 {
        if !has_passed(self.asked_since, now, wait_max) {
            return 0;
        }
        let requested = |pending: &Pending| match &pending.asked {
            FilterRequest::Subscribe(asked, _) => asked.len() as u64,
            FilterRequest::Unsubscribe(_) => 0,
        };
        self.pending.iter().map(requested).sum()
    }

    /// Handles the end of a read pause, and bytes from the broker: its answer may wait behind them.
    pub(super) fn heard(&mut self, now: Duration) {
        if self.pending_since.is_some() {
            self.pending_since = Some(now);
        }
    }

    /// Handles a part of a read pause, which took this time: it does not count.
    pub(super) fn paused(&mut self, time: Duration) {
        if let Some(asked_since) = &mut self.asked_since {
            *asked_since += time;
        }
    }

    /// Appends the packets that are due to `out`. None is due while an answer is outstanding.
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
        let gone: Vec<String> = self
            .active
            .iter()
            .map(|active| &active.subscription.filter)
            .filter(|active| wanted.iter().all(|want| want.filter != **active))
            .cloned()
            .collect();
        let is_named = self.is_named(version, wanted);
        let is_active = |want: &Subscription| {
            let found = |active: &ActiveSubscription| {
                active.is_held && active.subscription == *want && active.is_named == is_named
            };
            self.active.iter().any(found)
        };
        let missing = |want: &&Subscription| !is_active(want) && !self.refused.contains(want);
        let missing: Vec<Subscription> = wanted.iter().filter(missing).cloned().collect();
        for filters in gone.chunks(FILTERS_PER_PACKET) {
            let packet_id = self.next_id();
            out.extend_from_slice(&codec::unsubscribe(version, packet_id, filters)?);
            let asked = FilterRequest::Unsubscribe(filters.to_vec());
            self.pending.push(Pending { packet_id, asked });
        }
        // A name applies to all filters in a packet.
        let together = if is_named { 1 } else { FILTERS_PER_PACKET };
        for wanted in missing.chunks(together) {
            let packet_id = self.next_id();
            let name = wanted.first().filter(|_| is_named);
            let name = name.map(|wanted| name_of(&wanted.filter));
            out.extend_from_slice(&codec::subscribe(version, packet_id, wanted, name)?);
            let asked = FilterRequest::Subscribe(wanted.to_vec(), is_named);
            self.pending.push(Pending { packet_id, asked });
        }
        self.pending_since = (!self.pending.is_empty()).then_some(now);
        self.asked_since = self.pending_since;
        Ok(())
    }

    /// Handles a SUBACK; `wanted`: what the options say now.
    pub(super) fn granted(
        &mut self,
        packet_id: u16,
        grants: Vec<Grant>,
        wanted: &[Subscription],
        state: &MqttState,
    ) -> Result<(), Malformed> {
        let Some(FilterRequest::Subscribe(asked, is_named)) = self.take(packet_id) else {
            return Err(Malformed("a SUBACK without a SUBSCRIBE"));
        };
        if asked.len() != grants.len() {
            return Err(Malformed("a SUBACK with another number of filters"));
        }
        for (asked, grant) in asked.into_iter().zip(grants) {
            self.lowered.retain(|lowered| *lowered != asked.filter);
            if matches!(grant, Grant::Refused(_)) {
                self.not_held(&asked.filter);
            }
            match grant {
                // A reload has removed it while the answer was outstanding.
                Grant::Refused(_) if !wanted.contains(&asked) => {}
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
                        if wanted.contains(&asked) {
                            state.set_error(&format!(
                                "the broker grants the subscription `{}` with QoS 0 only",
                                asked.filter
                            ));
                        }
                    }
                    self.active
                        .retain(|active| active.subscription.filter != asked.filter);
                    self.active.push(ActiveSubscription {
                        subscription: asked,
                        is_named,
                        is_held: true,
                    });
                }
            }
        }
        self.publish(wanted, state);
        Ok(())
    }

    /// Handles a refused renewal. The broker may still have the subscription from before, so a removal unsubscribes it.
    fn not_held(&mut self, filter: &str) {
        for active in &mut self.active {
            active.is_held &= active.subscription.filter != filter;
        }
    }

    /// Handles an UNSUBACK.
    pub(super) fn released(
        &mut self,
        packet_id: u16,
        wanted: &[Subscription],
        state: &MqttState,
    ) -> Result<(), Malformed> {
        let Some(FilterRequest::Unsubscribe(filters)) = self.take(packet_id) else {
            return Err(Malformed("an UNSUBACK without an UNSUBSCRIBE"));
        };
        self.active
            .retain(|active| !filters.contains(&active.subscription.filter));
        self.lowered.retain(|lowered| !filters.contains(lowered));
        self.publish(wanted, state);
        Ok(())
    }

    /// Returns whether subscriptions have names: if filters overlap, a broker of MQTT 5 may send a message for each of
    /// them.
    fn is_named(&mut self, version: Version, wanted: &[Subscription]) -> bool {
        let overlap = &mut self.overlap;
        version == Version::V5
            && self.can_name
            && *overlap.get_or_insert_with(|| have_overlap(wanted))
    }

    /// Updates the figures.
    pub(super) fn publish(&self, wanted: &[Subscription], state: &MqttState) {
        // A reload may have removed a lowered one, or wants no more than it has.
        let is_lacking = |lowered: &&String| {
            let at_least_once = |wanted: &&Subscription| wanted.qos == Qos::AtLeastOnce;
            let mut wanted = wanted.iter().filter(at_least_once);
            wanted.any(|wanted| wanted.filter == **lowered)
        };
        let lowered = self.lowered.iter().filter(is_lacking).count();
        let held = self.active.iter().filter(|active| active.is_held).count();
        state.subscriptions_held.store(held as u64, Relaxed);
        let refused = self.refused.len() + lowered;
        state.subscriptions_refused.store(refused as u64, Relaxed);
    }

    fn take(&mut self, packet_id: u16) -> Option<FilterRequest> {
        let at = self
            .pending
            .iter()
            .position(|pending| pending.packet_id == packet_id)?;
        let asked = self.pending.swap_remove(at).asked;
        if self.pending.is_empty() {
            self.asked_since = None;
            self.pending_since = None;
        }
        Some(asked)
    }

    fn next_id(&mut self) -> u16 {
        // 0 is not a valid packet id. An id is free again long before the numbers wrap around.
        self.last_id = self.last_id.checked_add(1).unwrap_or(1);
        self.last_id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_subscription_that_was_removed_before_the_answer_is_forgotten() {
        let subscription = |filter: &str| Subscription {
            filter: filter.to_owned(),
            qos: Qos::AtLeastOnce,
        };
        let both = [subscription("t"), subscription("secret")];
        let one = &both[..1];
        for (wanted, refused) in [(&both[..], 1), (one, 0)] {
            let (mut filters, state) = (Filters::default(), MqttState::default());
            let mut out = Vec::new();
            filters.connected(false, false);
            filters
                .reconcile(Version::V311, &both, &mut out, Duration::ZERO)
                .unwrap();
            filters.changed();
            let grants = vec![
                Grant::Granted(1),
                Grant::Refused("not authorized".to_owned()),
            ];
            filters
                .granted(filters.last_id, grants, wanted, &state)
                .unwrap();
            let figures = state.figures();
            assert_eq!(
                (figures.subscriptions_held, figures.subscriptions_refused),
                (1, refused)
            );
            assert_eq!(state.last_error().is_some(), refused > 0);
        }
    }

    #[test]
    fn a_subscription_is_held_when_the_broker_has_granted_it_on_this_connection() {
        let wanted = [Subscription {
            filter: "t".to_owned(),
            qos: Qos::AtLeastOnce,
        }];
        let (mut filters, state) = (Filters::default(), MqttState::default());
        let mut asked_and_held = |session_present| {
            filters.connected(session_present, false);
            filters.publish(&wanted, &state);
            let before = state.figures().subscriptions_held;
            let mut out = Vec::new();
            filters
                .reconcile(Version::V311, &wanted, &mut out, Duration::ZERO)
                .unwrap();
            let asked = out.first().copied();
            filters
                .granted(filters.last_id, vec![Grant::Granted(1)], &wanted, &state)
                .unwrap();
            let mut more = Vec::new();
            filters
                .reconcile(Version::V311, &wanted, &mut more, Duration::ZERO)
                .unwrap();
            assert!(more.is_empty(), "once on a connection");
            (asked, before, state.figures().subscriptions_held)
        };
        for session_present in [false, true, true, false] {
            let found = asked_and_held(session_present);
            assert_eq!(found, (Some(0x82), 0, 1), "{session_present}");
        }
    }

    #[test]
    fn a_subscription_whose_renewal_is_refused_is_unsubscribed_when_it_goes() {
        let wanted = [Subscription {
            filter: "t".to_owned(),
            qos: Qos::AtLeastOnce,
        }];
        let (mut filters, state) = (Filters::default(), MqttState::default());
        let asked = |filters: &mut Filters, wanted: &[Subscription]| {
            let mut out = Vec::new();
            filters
                .reconcile(Version::V311, wanted, &mut out, Duration::ZERO)
                .unwrap();
            out.first().copied()
        };
        let refused = || vec![Grant::Refused("not authorized".to_owned())];
        for (grants, held) in [(vec![Grant::Granted(1)], 1), (refused(), 0)] {
            filters.connected(true, false);
            assert_eq!(asked(&mut filters, &wanted), Some(0x82), "a SUBSCRIBE");
            filters
                .granted(filters.last_id, grants, &wanted, &state)
                .unwrap();
            assert_eq!(state.figures().subscriptions_held, held);
        }
        // Refused: it is not requested again on this connection.
        assert_eq!(asked(&mut filters, &wanted), None);
        assert_eq!(asked(&mut filters, &[]), Some(0xa2), "an UNSUBSCRIBE");
        filters.released(filters.last_id, &[], &state).unwrap();
        assert_eq!(asked(&mut filters, &[]), None);
    }

    #[test]
    fn a_pause_does_not_count_as_a_wait_for_an_answer() {
        let wanted = [Subscription {
            filter: "t".to_owned(),
            qos: Qos::AtLeastOnce,
        }];
        let seconds = Duration::from_secs;
        let mut filters = Filters::default();
        filters.connected(true, false);
        let mut out = Vec::new();
        filters
            .reconcile(Version::V311, &wanted, &mut out, seconds(0))
            .unwrap();
        assert!(!filters.is_overdue(seconds(9), seconds(10)));
        assert!(filters.is_overdue(seconds(10), seconds(10)));
        filters.paused(seconds(30));
        filters.heard(seconds(39));
        assert_eq!(filters.unanswered(seconds(39), seconds(10)), 0);
        assert_eq!(filters.unanswered(seconds(40), seconds(10)), 1);
        // Messages put off the end, but not for ever.
        filters.heard(seconds(129));
        assert!(!filters.is_overdue(seconds(129), seconds(10)));
        assert!(filters.is_overdue(seconds(130), seconds(10)));
    }
}
