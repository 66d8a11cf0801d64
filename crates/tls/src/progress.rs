//! How far an attempt to connect has come, and what helps if it takes too long.

use std::cell::Cell;
use std::time::Duration;

/// The phase of an attempt to connect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// The name is not resolved yet.
    #[default]
    Resolving,
    /// No address has answered.
    Connecting,
    /// The TLS handshake is in progress.
    Handshake,
    /// There is a connection, and the protocol begins.
    Greeting,
}

/// The phase of an attempt. It outlives the attempt: an attempt that takes too long is dropped.
#[derive(Debug, Default)]
pub struct Progress(Cell<Phase>);

impl Progress {
    /// Records that the attempt has reached a phase.
    pub fn set(&self, phase: Phase) {
        self.0.set(phase);
    }

    /// Returns why an attempt has failed that did not end within `limit`. `hint` is as in [`with_hint`].
    #[must_use]
    pub fn late(&self, address: &str, limit: Duration, hint: Option<&str>) -> String {
        let seconds = limit.as_secs_f64();
        match self.0.get() {
            Phase::Resolving => format!(
                "{address}: the name has no address within {seconds} s; check the machine's name servers, or give an \
                 address as a number"
            ),
            Phase::Connecting => format!(
                "{address}: no connection within {seconds} s; check that the host is up, and that no firewall drops \
                 this port"
            ),
            Phase::Handshake => format!(
                "{address}: connects, but does not finish the TLS handshake within {seconds} s; give the port that \
                 speaks TLS (8883 for MQTT, 443 for HTTPS)"
            ),
            Phase::Greeting => with_hint(
                format!("{address}: connects, but does not answer within {seconds} s"),
                hint,
            ),
        }
    }
}

/// Adds `hint` to the failure of a plain connection: the option that helps if the server speaks TLS. `None` for a
/// connection that is encrypted.
#[must_use]
pub fn with_hint(why: String, hint: Option<&str>) -> String {
    match hint {
        Some(hint) => format!("{why}; if it speaks TLS: {hint}"),
        None => why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_attempt_names_its_phase_and_what_helps() {
        let progress = Progress::default();
        let late = |hint| progress.late("host:1883", Duration::from_secs(10), hint);
        let texts = [
            (Phase::Resolving, "check the machine's name servers"),
            (
                Phase::Connecting,
                "no connection within 10 s; check that the host is up",
            ),
            (
                Phase::Handshake,
                "connects, but does not finish the TLS handshake within 10 s; give the port",
            ),
        ];
        for (phase, text) in texts {
            progress.set(phase);
            assert!(late(Some("tls = true")).contains(text), "{phase:?}");
            assert_eq!(late(Some("tls = true")), late(None));
        }
        progress.set(Phase::Greeting);
        let plain = "host:1883: connects, but does not answer within 10 s";
        assert_eq!(late(None), plain);
        assert_eq!(
            late(Some("tls = true")),
            format!("{plain}; if it speaks TLS: tls = true")
        );
    }
}
