//! Why there is no server: a kind, for which a user can be given a remedy, and a text.

use crate::device::counters::Reason;
use crate::link::LinkError;
use crate::tls;
use crate::wire::Refusal;
use base::error::io_text;
use rustls::{AlertDescription, CertificateError, Error};
use std::fmt;
use std::io::{self, ErrorKind};

/// Why a connection ended, or was not made.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The link failed.
    Link(LinkError),
    /// The socket was closed or timed out.
    Socket(io::Error),
    /// The server sent something wrong.
    Wrong(Reason),
    /// The server refused the request.
    Refused(Refusal),
}

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureKind {
    /// The name does not exist, nothing listens there, or there is no answer in time.
    Unreachable,
    /// The server's certificate was not issued for the name or address by which it was reached.
    Name,
    /// The server's certificate was not issued by this device's authority.
    Authority,
    /// The certificate that this device presents is not a device certificate.
    NotADevice,
    /// The server does not accept this device's certificate, or no longer.
    NotLetIn,
    /// This device uses TLS, and the peer does not.
    NoTls,
    /// The server closed the connection silently before the greeting of a device without TLS.
    ClosedPlain,
    /// The same after the TLS handshake with a device that has presented its certificate.
    ClosedListed,
    /// The peer's answer is not a greeting of a server.
    OtherService,
    /// The server has another tree under the version number that is used here: it is another store, perhaps another
    /// owner's.
    OtherTree,
    /// The server does not have the version that is used here.
    VersionGone,
    /// The server's list of devices cannot be read or parsed.
    NoList,
    /// The server serves its maximum number of devices, or of connections of this device.
    Limit,
    /// The server's store is damaged.
    Damaged,
    /// The server has sent wrong data.
    Lied,
}

/// Why there is no connection to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFailure {
    /// The kind of the failure.
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
    pub(crate) fn new(kind: FailureKind, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { kind, text }
    }

    /// The server has sent wrong data on a connection that was up.
    pub(crate) fn lied(rejected: &str) -> Self {
        let text =
            format!("the server is left alone for a while, as it sent wrong things: {rejected}");
        Self::new(FailureKind::Lied, text)
    }

    /// Returns why a connection could not be made. `has_tls`: this device has an identity; `version`: the version that
    /// it uses already.
    pub(crate) fn of(ended: &Ended, has_tls: bool, version: Option<u64>) -> Self {
        if let Some(failure) = tls_error(ended).and_then(of_tls) {
            return failure;
        }
        match ended {
            Ended::Link(LinkError::Socket { source, .. }) if has_tls && is_closed(source) => {
                let text = format!(
                    "it has closed the connection instead of shaking hands: {}",
                    io_text(source)
                );
                Self::new(FailureKind::NoTls, text)
            }
            Ended::Link(error @ LinkError::Tls { .. }) => {
                Self::new(FailureKind::OtherService, error.to_string())
            }
            Ended::Link(LinkError::Address { source, .. } | LinkError::Socket { source, .. }) => {
                Self::new(FailureKind::Unreachable, io_text(source))
            }
            Ended::Link(error @ LinkError::NotLoopback(_)) => {
                Self::new(FailureKind::Unreachable, error.to_string())
            }
            Ended::Socket(error) => {
                let text = format!("the connection ended: {}", io_text(error));
                match (error.kind(), has_tls) {
                    (ErrorKind::TimedOut, _) => Self::new(FailureKind::Unreachable, text),
                    (_, true) => Self::new(FailureKind::ClosedListed, text),
                    (_, false) => Self::new(FailureKind::ClosedPlain, text),
                }
            }
            Ended::Refused(reason) => of_refusal(*reason, version),
            Ended::Wrong(reason) => match version {
                Some(version) if *reason == Reason::Greeting => {
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

    /// Whether a retry a moment later fails in the same way.
    pub(crate) fn is_final(&self) -> bool {
        matches!(
            self.kind,
            FailureKind::Name
                | FailureKind::Authority
                | FailureKind::NotADevice
                | FailureKind::NotLetIn
        )
    }
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

/// Returns the meaning of a refusal.
pub(crate) fn said_of(reason: Refusal) -> &'static str {
    match reason {
        Refusal::NoSuchBlock => "the server has no such file or block",
        Refusal::NoSuchVersion => "the server has no such version",
        Refusal::TokenReused | Refusal::NoSuchToken => "the server does not know this task",
        Refusal::Limit => "the server is at a limit",
        Refusal::Damaged => "what the server's store holds of it is damaged",
        Refusal::NoList => "the server cannot read its list of devices, and lets no device in",
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
