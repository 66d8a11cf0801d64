//! Why upstreams and brokers are not connected, for the log. The judgement says once that one is lost. While it stays
//! lost, the reason can change, and no later question finds those before the last one.

use crate::status::NodeFigures;
use std::collections::BTreeMap;
use std::time::Duration;

/// The shortest time between two lines about one upstream or broker.
const PAUSE: Duration = Duration::from_secs(60);

/// What was said of each upstream and broker.
#[derive(Default)]
pub(crate) struct Reasons(BTreeMap<(&'static str, String), Said>);

struct Said {
    why: String,
    /// When, since the start of the sampling.
    at: Duration,
}

/// An upstream or a broker as the figures show it.
struct Link<'f> {
    kind: &'static str,
    name: &'f str,
    is_connected: bool,
    why: Option<&'f str>,
}

impl Reasons {
    /// Returns the lines to log now, each with its word.
    pub(crate) fn changed(
        &mut self,
        figures: &NodeFigures,
        now: Duration,
    ) -> Vec<(&'static str, String)> {
        let upstreams = figures.upstream.iter().map(|one| Link {
            kind: "upstream",
            name: &one.name,
            is_connected: one.connected,
            why: one.last_error.as_deref(),
        });
        let brokers = figures.urgent.brokers.iter().map(|one| Link {
            kind: "broker",
            name: &one.name,
            is_connected: one.connected,
            why: one.last_error.as_deref(),
        });
        let links = upstreams.chain(brokers);
        links.filter_map(|link| self.of(&link, now)).collect()
    }

    fn of(&mut self, link: &Link<'_>, now: Duration) -> Option<(&'static str, String)> {
        let why = link.why.filter(|_| !link.is_connected)?;
        let place = (link.kind, link.name.to_owned());
        let is_said = self
            .0
            .get(&place)
            .is_some_and(|said| said.why == why || now.saturating_sub(said.at) < PAUSE);
        if is_said {
            return None;
        }
        let said = Said {
            why: why.to_owned(),
            at: now,
        };
        self.0.insert(place, said);
        Some((link.kind, format!("{}: {why}", link.name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_that_changes_while_an_upstream_stays_lost_is_logged() {
        let mut figures = NodeFigures::default();
        figures.upstream.resize_with(2, Default::default);
        figures.urgent.brokers.resize_with(1, Default::default);
        figures.upstream[0].name = "lake".to_owned();
        figures.upstream[1].name = "cloud".to_owned();
        figures.urgent.brokers[0].name = "lake".to_owned();
        let mut reasons = Reasons::default();
        let at = Duration::from_secs;
        assert!(reasons.changed(&figures, at(5)).is_empty());
        let why = |figures: &mut NodeFigures, text: &str| {
            figures.upstream[0].last_error = Some(text.to_owned());
        };
        let line = |text: &str| vec![("upstream", format!("lake: {text}"))];
        why(&mut figures, "refused");
        assert_eq!(reasons.changed(&figures, at(10)), line("refused"));
        assert!(reasons.changed(&figures, at(99)).is_empty());
        why(&mut figures, "expired");
        assert_eq!(reasons.changed(&figures, at(100)), line("expired"));
        // At most one line a minute, and then the reason that still holds.
        for second in 101..160 {
            why(&mut figures, &format!("number {second}"));
            assert!(reasons.changed(&figures, at(second)).is_empty());
        }
        assert_eq!(reasons.changed(&figures, at(160)), line("number 159"));
        // Another one of the same name has its own time, and a connection has no reason.
        figures.urgent.brokers[0].last_error = Some("denied".to_owned());
        let of_broker = vec![("broker", "lake: denied".to_owned())];
        assert_eq!(reasons.changed(&figures, at(161)), of_broker);
        figures.upstream[0].connected = true;
        why(&mut figures, "another");
        assert!(reasons.changed(&figures, at(900)).is_empty());
    }
}
