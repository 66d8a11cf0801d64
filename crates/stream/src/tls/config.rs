//! The rustls configuration: TLS 1.3 only, certificates on both sides, no resumption of sessions.
//!
//! A resumed session would admit a device without a check of its certificate, even one that was removed from the list
//! meanwhile. And its handshake takes as many round trips.

use super::files::{self, PEM_BYTES_MAX};
use super::{AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE, TlsError};
use rustls::CertificateError::{InvalidPurpose, InvalidPurposeContext};
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, Error, RootCertStore, ServerConfig};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Returns the configuration of a server with the identity of this folder. A client must have a certificate of the same
/// authority. The server must check separately whether the device is still on the list, by its [`fingerprint`].
///
/// # Errors
/// A file of the folder cannot be read, is damaged, or does not fit the others.
pub fn server_config(folder: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    server_config_of(folder, |authority| authority)
}

/// Like [`server_config`], with another verifier of devices, which gets the one that checks the authority.
pub(super) fn server_config_of(
    folder: &Path,
    verifier: impl FnOnce(Arc<dyn ClientCertVerifier>) -> Arc<dyn ClientCertVerifier>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let failed = |error: &dyn std::error::Error| TlsError::cryptography(folder, &error);
    let provider = provider();
    let (certificates, key) = identity(folder)?;
    let roots = Arc::new(authority(folder)?);
    let authority = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider))
        .build()
        .map_err(|error| failed(&error))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| failed(&error))?
        .with_client_cert_verifier(verifier(authority))
        .with_single_cert(certificates, key)
        .map_err(|error| of_pair(folder, &error))?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// Returns the configuration of a device with the identity of this folder, and the name that the server's certificate
/// must have. The name is the host of `server` (`host`, `host:port`, an address, `[address]:port`).
///
/// # Errors
/// A file of the folder cannot be read, is damaged, or does not fit the others; or `server` is invalid.
pub fn device_config(
    folder: &Path,
    server: &str,
) -> Result<(Arc<ClientConfig>, ServerName<'static>), TlsError> {
    let failed = |error: &dyn std::error::Error| TlsError::cryptography(folder, &error);
    let name = server_name(server)?;
    let (certificates, key) = identity(folder)?;
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| failed(&error))?
        .with_root_certificates(authority(folder)?)
        .with_client_auth_cert(certificates, key)
        .map_err(|error| of_pair(folder, &error))?;
    config.resumption = Resumption::disabled();
    Ok((Arc::new(config), name))
}

/// Returns the host of `host`, `host:port`, an address, or `[address]:port`.
///
/// # Errors
/// The host is neither a host name nor an address.
pub fn server_name(server: &str) -> Result<ServerName<'static>, TlsError> {
    let refused = || TlsError::Host(server.to_owned());
    if let Ok(address) = server.parse::<IpAddr>() {
        return Ok(address.into());
    }
    let host = match server.rsplit_once(':') {
        Some((host, port)) => {
            port.parse::<u16>().map_err(|_| refused())?;
            host
        }
        None => server,
    };
    if let Some(inner) = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
    {
        let address: IpAddr = inner.parse().map_err(|_| refused())?;
        return Ok(address.into());
    }
    ServerName::try_from(host.to_owned()).map_err(|_| refused())
}

/// Returns the fingerprint of a certificate in the list of devices: the blake3 hash of its bytes.
#[must_use]
pub fn fingerprint(certificate: &CertificateDer<'_>) -> [u8; 32] {
    *blake3::hash(certificate).as_bytes()
}

/// Checks that the certificate of a folder may serve. A server with the certificate of a device would start, and every
/// device would refuse it.
///
/// # Errors
/// [`TlsError::NotAServer`]; or a file of the folder cannot be read, or is damaged.
pub(super) fn check_may_serve(folder: &Path) -> Result<(), TlsError> {
    let (certificates, _) = identity(folder)?;
    let roots = Arc::new(authority(folder)?);
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider()).build();
    let (Ok(verifier), [first, others @ ..]) = (verifier, &certificates[..]) else {
        return Ok(());
    };
    // Certificates do not expire, so any time is right. The name is checked last, and does not matter here.
    let time = UnixTime::since_unix_epoch(Duration::from_secs(1 << 30));
    let name = ServerName::from(IpAddr::from([127, 0, 0, 1]));
    match verifier.verify_server_cert(first, others, &name, &[], time) {
        Err(Error::InvalidCertificate(InvalidPurpose | InvalidPurposeContext { .. })) => {
            Err(TlsError::NotAServer(folder.join(CERTIFICATE_FILE)))
        }
        _ => Ok(()),
    }
}

/// Returns the error for a certificate and a key that cannot be used together.
fn of_pair(folder: &Path, error: &rustls::Error) -> TlsError {
    match error {
        rustls::Error::InconsistentKeys(_) => {
            let text = format!("{CERTIFICATE_FILE} and {KEY_FILE} do not belong together");
            TlsError::cryptography(folder, &text)
        }
        other => TlsError::cryptography(folder, other),
    }
}

/// Passed explicitly, because a process may have several providers.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = files::read(path, PEM_BYTES_MAX)?;
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|_| TlsError::damaged(path, "not certificates in PEM"))?;
    if certificates.is_empty() {
        return Err(TlsError::damaged(path, "no certificate"));
    }
    Ok(certificates)
}

fn identity(
    folder: &Path,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let path = folder.join(KEY_FILE);
    let pem = files::read(&path, PEM_BYTES_MAX)?;
    let key = PrivateKeyDer::from_pem_slice(&pem)
        .map_err(|_| TlsError::damaged(&path, "not a private key in PEM"))?;
    Ok((certificates(&folder.join(CERTIFICATE_FILE))?, key))
}

fn authority(folder: &Path) -> Result<RootCertStore, TlsError> {
    let path = folder.join(AUTHORITY_FILE);
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&path)? {
        roots
            .add(certificate)
            .map_err(|error| TlsError::damaged(&path, error))?;
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_named_with_and_without_its_port() {
        let dns = |name: &str| ServerName::try_from(name.to_owned()).unwrap();
        assert_eq!(server_name("a.example").unwrap(), dns("a.example"));
        assert_eq!(server_name("a.example:7000").unwrap(), dns("a.example"));
        let address = |text: &str| ServerName::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(server_name("127.0.0.1:1").unwrap(), address("127.0.0.1"));
        assert_eq!(server_name("::1").unwrap(), address("::1"));
        assert_eq!(server_name("[::1]:7000").unwrap(), address("::1"));
        for bad in [
            "",
            ":1",
            "a:b",
            "a:70000",
            "[a]:1",
            "a b",
            "[::1",
            "a.example:",
        ] {
            assert!(server_name(bad).is_err(), "{bad}");
        }
    }
}
