//! Why there is no server: a kind, which somebody can be told a remedy for, and a text.

use super::greet::Ended;
use crate::link::LinkError;
use crate::tls;
use crate::wire::Refusal;
use rustls::{AlertDescription, CertificateError, Error};
use std::fmt;
use std::io::{self, ErrorKind};

/// What kind of reason it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureKind {
    /// No such name, nobody listens there, or nobody answers in time.
    Unreachable,
    /// The server's certificate is not made for the name or address by which it was reached.
    Name,
    /// The server's certificate is not of this device's authority.
    Authority,
    /// What this device shows is no certificate of a device.
    NotADevice,
    /// The server knows this device's certificate not, or not any more.
    NotLetIn,
    /// This device speaks TLS, and what is there does not.
    NoTls,
    /// It has ended the connection without a word: before the greeting of a device without TLS.
    ClosedPlain,
    /// The same behind the handshake with a device that has shown its certificate.
    ClosedListed,
    /// What it says is no greeting of a server.
    OtherService,
    /// Another tree with the number of the version that is used here: another store, perhaps of somebody else.
    OtherTree,
    /// It does not have the version that is used here.
    VersionGone,
    /// Its list of devices cannot be read or understood.
    NoList,
    /// It has as many devices as it may serve, or as many connections of this one.
    Limit,
    /// What its store holds is damaged.
    Damaged,
    /// What it has sent was wrong.
    Lied,
}

/// Why there is no connection to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFailure {
    /// What kind of reason it is.
    pub kind: FailureKind,
    /// The reason in words, without a remedy.
    pub text: String,
}

impl fmt::Display for ServerFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl ServerFailure {
    pub(super) fn new(kind: FailureKind, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { kind, text }
    }

    /// The server has sent something else than it should have, on a connection that was up.
    pub(super) fn lied(rejected: &str) -> Self {
        let text =
            format!("the server is left alone for a while, as it sent wrong things: {rejected}");
        Self::new(FailureKind::Lied, text)
    }

    /// Why a connection did not come about. `has_tls`: this device has an identity; `version`: the one it uses already.
    pub(super) fn of(ended: &Ended, has_tls: bool, version: Option<u64>) -> Self {
        if let Some(failure) = tls_error(ended).and_then(of_tls) {
            return failure;
        }
        match ended {
            Ended::Link(LinkError::Socket { source, .. }) if has_tls && is_closed(source) => {
                let text = format!(
                    "it has closed the connection instead of shaking hands: {}",
                    said(source)
                );
                Self::new(FailureKind::NoTls, text)
            }
            Ended::Link(error @ LinkError::Tls { .. }) => {
                Self::new(FailureKind::OtherService, error.to_string())
            }
            Ended::Link(LinkError::Address { source, .. } | LinkError::Socket { source, .. }) => {
                Self::new(FailureKind::Unreachable, said(source))
            }
            Ended::Link(error @ LinkError::NotLoopback(_)) => {
                Self::new(FailureKind::Unreachable, error.to_string())
            }
            Ended::Socket(error) => {
                let text = format!("the connection ended: {}", said(error));
                match (error.kind(), has_tls) {
                    (ErrorKind::TimedOut, _) => Self::new(FailureKind::Unreachable, text),
                    (_, true) => Self::new(FailureKind::ClosedListed, text),
                    (_, false) => Self::new(FailureKind::ClosedPlain, text),
                }
            }
            Ended::Refused(reason) => of_refusal(*reason, version),
            Ended::Wrong(reason) => match version {
                Some(version) if *reason == super::Reason::Greeting => {
                    let text = format!("another tree is version {version} there");
                    Self::new(FailureKind::OtherTree, text)
                }
                _ => {
                    let text = format!("the server's greeting was rejected: {}", reason.name());
                    Self::new(FailureKind::OtherService, text)
                }
            },
        }
    }

    /// Whether a moment later it is the same.
    pub(super) fn is_final(&self) -> bool {
        matches!(
            self.kind,
            FailureKind::Name
                | FailureKind::Authority
                | FailureKind::NotADevice
                | FailureKind::NotLetIn
        )
    }
}

/// What the system says, without its number.
pub(super) fn said(error: &io::Error) -> String {
    let mut text = error.to_string();
    if let Some(end) = text.find(" (os error") {
        text.truncate(end);
    }
    text
}

fn is_closed(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
    )
}

fn tls_error(ended: &Ended) -> Option<io::Error> {
    match ended {
        Ended::Link(LinkError::Tls { source, .. }) => Some(io::Error::other(source.clone())),
        Ended::Socket(error) => {
            let error = error.get_ref()?.downcast_ref::<Error>()?;
            Some(io::Error::other(error.clone()))
        }
        _ => None,
    }
}

fn of_tls(error: io::Error) -> Option<ServerFailure> {
    if let Some(why) = tls::why_refused(&error) {
        let text = format!("the server refuses this device's certificate: {why}");
        return Some(ServerFailure::new(FailureKind::NotLetIn, text));
    }
    let error = error.get_ref()?.downcast_ref::<Error>()?;
    let kind = match error {
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => FailureKind::Name,
        Error::InvalidCertificate(_) => FailureKind::Authority,
        Error::AlertReceived(AlertDescription::UnsupportedCertificate) => {
            let text = "the server refuses this device's certificate: it is none of a device";
            return Some(ServerFailure::new(FailureKind::NotADevice, text));
        }
        Error::AlertReceived(_) => return None,
        _ => {
            let text = format!("what answers there does not speak TLS: {error}");
            return Some(ServerFailure::new(FailureKind::NoTls, text));
        }
    };
    let text = format!("the server's certificate is not to be believed: {error}");
    Some(ServerFailure::new(kind, text))
}

/// What a refusal means.
pub(super) fn said_of(reason: Refusal) -> &'static str {
    match reason {
        Refusal::NoSuchBlock => "the server has no such file or block",
        Refusal::NoSuchVersion => "the server has no such version",
        Refusal::TokenReused | Refusal::NoSuchToken => "the server does not know this task",
        Refusal::Limit => "the server is at a limit",
        Refusal::Damaged => "what the server's store holds of it is damaged",
        Refusal::NoList => "the server cannot read its list of devices, and lets nobody in",
    }
}

fn of_refusal(reason: Refusal, version: Option<u64>) -> ServerFailure {
    match (reason, version) {
        (Refusal::Limit, _) => ServerFailure::new(
            FailureKind::Limit,
            "the server is at a limit: as many devices as it may serve, or as many mounts with this device's \
             certificate, or connections of this mount",
        ),
        (Refusal::NoSuchVersion, Some(version)) => ServerFailure::new(
            FailureKind::VersionGone,
            format!("version {version} is no longer published there"),
        ),
        (Refusal::Damaged, _) => ServerFailure::new(
            FailureKind::Damaged,
            "what the server's store holds of this version is damaged",
        ),
        (Refusal::NoList, _) => ServerFailure::new(FailureKind::NoList, said_of(reason)),
        (reason, _) => ServerFailure::new(FailureKind::OtherService, said_of(reason)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Reason;
    use super::*;

    fn kind(ended: &Ended, has_tls: bool, version: Option<u64>) -> FailureKind {
        let failure = ServerFailure::of(ended, has_tls, version);
        assert!(!failure.text.contains('\n') && !failure.text.is_empty());
        failure.kind
    }

    #[test]
    fn each_way_to_have_no_server_has_its_kind() {
        let server = || "plant:7007".to_owned();
        let tls = |source| {
            Ended::Link(LinkError::Tls {
                server: server(),
                source,
            })
        };
        let socket = |kind: ErrorKind| {
            Ended::Link(LinkError::Socket {
                server: server(),
                source: kind.into(),
            })
        };
        let alert = |alert| Ended::Socket(io::Error::other(Error::AlertReceived(alert)));
        let eof = || Ended::Socket(ErrorKind::UnexpectedEof.into());
        let certificate = |error| tls(Error::InvalidCertificate(error));
        let all = [
            (
                socket(ErrorKind::ConnectionRefused),
                FailureKind::Unreachable,
            ),
            (socket(ErrorKind::TimedOut), FailureKind::Unreachable),
            (socket(ErrorKind::UnexpectedEof), FailureKind::NoTls),
            (
                Ended::Socket(ErrorKind::TimedOut.into()),
                FailureKind::Unreachable,
            ),
            (eof(), FailureKind::ClosedListed),
            (
                certificate(CertificateError::NotValidForName),
                FailureKind::Name,
            ),
            (
                certificate(CertificateError::UnknownIssuer),
                FailureKind::Authority,
            ),
            (
                certificate(CertificateError::BadSignature),
                FailureKind::Authority,
            ),
            (
                tls(Error::InvalidMessage(
                    rustls::InvalidMessage::InvalidContentType,
                )),
                FailureKind::NoTls,
            ),
            (
                alert(AlertDescription::UnsupportedCertificate),
                FailureKind::NotADevice,
            ),
            (alert(AlertDescription::AccessDenied), FailureKind::NotLetIn),
            (
                alert(AlertDescription::InternalError),
                FailureKind::ClosedListed,
            ),
            (Ended::Refused(Refusal::NoList), FailureKind::NoList),
            (Ended::Refused(Refusal::Limit), FailureKind::Limit),
            (Ended::Refused(Refusal::Damaged), FailureKind::Damaged),
            (
                Ended::Refused(Refusal::NoSuchVersion),
                FailureKind::VersionGone,
            ),
            (Ended::Wrong(Reason::Greeting), FailureKind::OtherTree),
            (Ended::Wrong(Reason::Frame), FailureKind::OtherService),
        ];
        for (ended, wanted) in &all {
            assert_eq!(kind(ended, true, Some(3)), *wanted, "{ended:?}");
        }
        assert_eq!(kind(&eof(), false, Some(3)), FailureKind::ClosedPlain);
        let first = Ended::Wrong(Reason::Greeting);
        assert_eq!(kind(&first, false, None), FailureKind::OtherService);
    }
}
