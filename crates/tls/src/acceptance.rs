//! What clients make of a server's own certificate.

use crate::Error;
use crate::files;
use crate::reason::span;
use crate::wall::WallTime;
use base::clock::Clock;
use base::error::Code;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::time_provider::TimeProvider;
use rustls::{CertificateError, RootCertStore};
use std::path::Path;
use std::sync::Arc;

/// Returns why no client accepts this certificate as that of a server. Only the certificate is judged: its kind, its
/// purpose and, if the clock is trusted, its dates. The authorities of clients and the name that they expect are not
/// known here.
pub(crate) fn refused(
    file: &Path,
    chain: &[CertificateDer<'static>],
    clock: &Arc<dyn Clock>,
) -> Option<Error> {
    let (own, others) = chain.split_first()?;
    let mut authorities = RootCertStore::empty();
    // Any authority will do, because what depends on it is not judged.
    authorities.add(own.clone()).ok()?;
    let verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(authorities), files::provider());
    let name = ServerName::try_from("localhost").ok()?;
    let now = WallTime(Arc::clone(clock)).current_time()?;
    let verified = verifier
        .build()
        .ok()?
        .verify_server_cert(own, others, &name, &[], now);
    let rustls::Error::InvalidCertificate(error) = verified.err()? else {
        return None;
    };
    let (wrong, remedy) = words(&error, clock.wall_is_trusted())?;
    Some(Error::new(Code::Invalid, file.display(), wrong, remedy))
}

fn words(error: &CertificateError, is_time_trusted: bool) -> Option<(String, &'static str)> {
    use CertificateError as E;
    let told = match error {
        E::Expired | E::ExpiredContext { .. } | E::NotValidYet | E::NotValidYetContext { .. }
            if !is_time_trusted =>
        {
            return None;
        }
        E::ExpiredContext { time, not_after } => {
            let seconds = time.as_secs().saturating_sub(not_after.as_secs());
            (
                format!("has expired {} ago", span(seconds)),
                "renew the certificate",
            )
        }
        E::Expired => ("has expired".to_owned(), "renew the certificate"),
        E::NotValidYetContext { time, not_before } => {
            let seconds = not_before.as_secs().saturating_sub(time.as_secs());
            (
                format!("is not valid yet: it begins in {}", span(seconds)),
                "correct the clock of the machine that made it, or wait",
            )
        }
        E::NotValidYet => (
            "is not valid yet".to_owned(),
            "correct the clock of the machine that made it, or wait",
        ),
        E::InvalidPurpose | E::InvalidPurposeContext { .. } => (
            "is not for a server".to_owned(),
            "make one with the purpose serverAuth",
        ),
        E::Other(_) => (
            "is that of an authority, or of an old version".to_owned(),
            "make one for the server, signed by the authority, with an extfile",
        ),
        // Of these, another authority or another name may be right.
        _ => return None,
    };
    Some(told)
}
