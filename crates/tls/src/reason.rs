//! Failures of handshakes and connections in words: what is wrong, and what helps.

use crate::Error;
use base::error::Code;
use rustls::{AlertDescription, CertificateError};
use std::fmt::Display;
use std::io;

/// Largest number of letters of the library's or the peer's own words in a line.
const QUOTED_LETTERS_MAX: usize = 160;
/// Largest number of names of a certificate that are shown.
const NAMES_MAX: usize = 3;

/// What helps when the name, or a date of a certificate is wrong; the latter also while the node's clock is in doubt.
const OTHER_NAME: &str = "correct the address, or set server_name to the name in the certificate";
const TOO_EARLY: &str = "correct the clock of the machine that made the certificate";
const TOO_EARLY_IN_DOUBT: &str =
    "set this node's clock, which is not trusted; it connects once the clock is right";
const TOO_LATE: &str = "renew the certificate at the server";
const TOO_LATE_IN_DOUBT: &str =
    "set this node's clock, which is not trusted, or renew the certificate at the server";

/// What a client knows when its server's certificate is refused.
pub(crate) struct View<'a> {
    pub(crate) address: &'a str,
    /// The file of the authorities.
    pub(crate) authorities: String,
    pub(crate) clock_trusted: bool,
    pub(crate) has_identity: bool,
}

/// Returns why a handshake with a server has failed.
pub(crate) fn of_handshake(view: &View<'_>, error: &io::Error) -> Error {
    let (wrong, remedy) = match find(error) {
        Some(rustls::Error::InvalidCertificate(certificate)) => of_certificate(view, certificate),
        Some(other) => of_session(other, view.has_identity),
        None if has_left(error) => (
            "ends the connection during the TLS handshake".to_owned(),
            "give the port that speaks TLS (8883 for MQTT, 443 for HTTPS), and see the server's log",
        ),
        None => (
            format!("the TLS handshake breaks off: {}", quoted(error)),
            "check the link to the server",
        ),
    };
    Error::new(Code::Denied, view.address, wrong, remedy)
}

/// Returns whether the peer has ended the connection. It resets it if it has not read all that came.
fn has_left(error: &io::Error) -> bool {
    use io::ErrorKind as E;
    matches!(
        error.kind(),
        E::UnexpectedEof | E::ConnectionReset | E::ConnectionAborted | E::BrokenPipe
    )
}

/// Returns what stands behind the failure of a connection, if that is TLS, and what helps. In TLS 1.3 a server refuses
/// the certificate of a client after the handshake, so that the first answer fails.
#[must_use]
pub fn reason(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let (wrong, remedy) = of_session(find(error)?, true);
    Some(format!("{wrong}; {remedy}"))
}

/// Returns the library's error in a chain of sources.
pub(crate) fn find<'e>(error: &'e (dyn std::error::Error + 'static)) -> Option<&'e rustls::Error> {
    let mut next = Some(error);
    while let Some(one) = next {
        if let Some(found) = one.downcast_ref::<rustls::Error>() {
            return Some(found);
        }
        // The source of an I/O error is the source of the error in it, not that error itself.
        let held = one.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match held {
            Some(held) => {
                let held: &(dyn std::error::Error + 'static) = held;
                Some(held)
            }
            None => one.source(),
        };
    }
    None
}

fn of_certificate(view: &View<'_>, error: &CertificateError) -> (String, &'static str) {
    use CertificateError as E;
    match error {
        E::Expired | E::ExpiredContext { .. } | E::NotValidYet | E::NotValidYetContext { .. } => {
            of_dates(view, error)
        }
        E::UnknownIssuer | E::BadSignature => (
            format!(
                "its certificate is not signed by an authority in {}",
                view.authorities
            ),
            "name the file with the certificate of its authority in ca_file",
        ),
        E::NotValidForName => ("its certificate is for another name".to_owned(), OTHER_NAME),
        E::NotValidForNameContext {
            expected,
            presented,
        } => {
            let expected = expected.to_str();
            (of_names(&expected, presented), OTHER_NAME)
        }
        E::InvalidPurpose | E::InvalidPurposeContext { .. } => (
            "its certificate is not one of a server".to_owned(),
            "make a certificate for server authentication",
        ),
        E::Other(_) => (
            "its certificate is that of an authority, or of an old version".to_owned(),
            "make one for the server, signed by the authority, with an extfile",
        ),
        other => (
            format!("its certificate cannot be used: {}", quoted(other)),
            "make a new certificate for the server",
        ),
    }
}

/// A certificate is judged by the node's clock, which may be what is wrong.
fn of_dates(view: &View<'_>, error: &CertificateError) -> (String, &'static str) {
    let (wrong, trusted, untrusted) = match error {
        CertificateError::NotValidYet => (
            "its certificate is not valid yet".to_owned(),
            TOO_EARLY,
            TOO_EARLY_IN_DOUBT,
        ),
        CertificateError::NotValidYetContext { time, not_before } => {
            let seconds = not_before.as_secs().saturating_sub(time.as_secs());
            let until = span(seconds);
            (
                format!("its certificate is not valid yet: it begins in {until}"),
                TOO_EARLY,
                TOO_EARLY_IN_DOUBT,
            )
        }
        CertificateError::ExpiredContext { time, not_after } => {
            let seconds = time.as_secs().saturating_sub(not_after.as_secs());
            let wrong = format!("its certificate has expired {} ago", span(seconds));
            (wrong, TOO_LATE, TOO_LATE_IN_DOUBT)
        }
        _ => (
            "its certificate has expired".to_owned(),
            TOO_LATE,
            TOO_LATE_IN_DOUBT,
        ),
    };
    match view.clock_trusted {
        true => (wrong, trusted),
        false => (wrong, untrusted),
    }
}

/// Returns what is wrong with the names of a certificate, which are texts of a stranger.
fn of_names(expected: &str, presented: &[String]) -> String {
    let plain = presented.iter().map(|name| plain_name(name));
    let shown: Vec<String> = plain.take(NAMES_MAX).map(quoted).collect();
    let more = match presented.len() > NAMES_MAX {
        true => " and others",
        false => "",
    };
    let shown = match shown.is_empty() {
        true => "no name".to_owned(),
        false => format!("{}{more}", shown.join(", ")),
    };
    format!("its certificate is for {shown}, not for {expected}")
}

/// Returns the name in the library's form of it: `DnsName("a.example")`, `IpAddress(10.0.0.1)`.
fn plain_name(name: &str) -> &str {
    let inner = name
        .split_once('(')
        .and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.map_or(name, |inner| inner.trim_matches('"'))
}

fn of_session(error: &rustls::Error, has_identity: bool) -> (String, &'static str) {
    use AlertDescription as A;
    match error {
        rustls::Error::AlertReceived(A::CertificateRequired) => (
            "it asks for a certificate of this node".to_owned(),
            "set certificate_file and key_file",
        ),
        rustls::Error::AlertReceived(
            A::BadCertificate
            | A::UnsupportedCertificate
            | A::CertificateRevoked
            | A::CertificateExpired
            | A::CertificateUnknown
            | A::UnknownCA
            | A::AccessDenied
            | A::DecryptError,
        ) if has_identity => (
            format!("it refuses the certificate of this node ({error})"),
            "take a certificate of the authority that it knows, and check its dates and its purpose (client)",
        ),
        rustls::Error::AlertReceived(A::UnrecognisedName) => (
            "it does not know the name that the node asks for".to_owned(),
            "set server_name to the name in its certificate",
        ),
        rustls::Error::AlertReceived(A::ProtocolVersion) | rustls::Error::PeerIncompatible(_) => (
            "it offers no version or cipher of TLS that is safe".to_owned(),
            "let it offer TLS 1.3, or 1.2 with ECDHE and AES-GCM or ChaCha20",
        ),
        rustls::Error::AlertReceived(_) => (
            format!("it ends the TLS connection ({error})"),
            "see its log: it may ask for a certificate (certificate_file, key_file)",
        ),
        rustls::Error::InvalidMessage(_) => (
            "it does not speak TLS".to_owned(),
            "give the port that speaks TLS (8883 for MQTT, 443 for HTTPS), or connect without TLS",
        ),
        other => (
            format!("the TLS connection fails: {}", quoted(other)),
            "see the server's log",
        ),
    }
}

/// Returns a text of others as a short line without control characters.
fn quoted(text: impl Display) -> String {
    let text = text.to_string();
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    plain.take(QUOTED_LETTERS_MAX).collect()
}

/// Returns a length of time in its largest unit.
pub(crate) fn span(seconds: u64) -> String {
    let of = |count: u64, unit: &str| match count {
        1 => format!("1 {unit}"),
        count => format!("{count} {unit}s"),
    };
    match seconds {
        0..60 => of(seconds, "second"),
        60..3_600 => of(seconds / 60, "minute"),
        3_600..86_400 => of(seconds / 3_600, "hour"),
        _ => of(seconds / 86_400, "day"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_the_library_is_found_behind_others() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct Outer(#[source] io::Error);
        let inner = rustls::Error::AlertReceived(AlertDescription::CertificateRequired);
        let outer = Outer(io::Error::other(inner));
        let text = reason(&outer).unwrap();
        assert!(text.contains("certificate_file"), "{text}");
        assert_eq!(reason(&Outer(io::Error::other("else"))), None);
        assert_eq!(reason(&io::Error::from(io::ErrorKind::TimedOut)), None);
    }

    #[test]
    fn names_of_a_stranger_stay_in_one_short_line() {
        let text = quoted(format!("a\nb{}", "x".repeat(1_000)));
        assert_eq!(text.chars().count(), QUOTED_LETTERS_MAX);
        assert!(text.starts_with("a bx"), "{text}");
    }

    #[test]
    fn names_of_a_certificate_are_shown_without_the_form_of_the_library() {
        let presented = [
            "DnsName(\"other.example\")".to_owned(),
            "IpAddress(10.0.0.1)".to_owned(),
            "DirectoryName".to_owned(),
        ];
        assert_eq!(
            of_names("broker.example", &presented),
            "its certificate is for other.example, 10.0.0.1, DirectoryName, not for broker.example"
        );
    }

    #[test]
    fn a_span_has_its_largest_unit() {
        for (seconds, text) in [
            (0, "0 seconds"),
            (1, "1 second"),
            (90, "1 minute"),
            (7_200, "2 hours"),
            (86_400, "1 day"),
            (259_200, "3 days"),
        ] {
            assert_eq!(span(seconds), text);
        }
    }
}
