//! The list of devices as a server has it: read anew when its file changes, and asked in the handshake, so that a
//! device that is not on it is told so by TLS itself.

use super::{Devices, TlsError, config, fingerprint};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    AlertDescription, CertificateError, DigitallySignedStruct, DistinguishedName, Error,
    SignatureScheme,
};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// How a server is told apart from others by its devices, and who they are.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Its certificate, and whose devices are let in.
    pub(crate) tls: Arc<rustls::ServerConfig>,
    /// The list of devices.
    pub(crate) devices: Arc<ListedDevices>,
}

impl Identity {
    /// Of a server's folder, and the list of devices in a file.
    ///
    /// # Errors
    /// A file of the folder cannot be read, is damaged, or does not fit the others; or the list.
    pub fn load(folder: &Path, devices: &Path) -> Result<Self, TlsError> {
        // A list that is missing or not understood is said now and not with the first device.
        Devices::load(devices)?;
        let devices = Arc::new(ListedDevices {
            path: devices.to_path_buf(),
            read: Mutex::default(),
        });
        let tls = config::listed_server_config(folder, &devices)?;
        Ok(Self { tls, devices })
    }
}

/// A list as it was read, and what its file was like.
type Read = (SystemTime, u64, Arc<Devices>);

/// The list of devices as it was when its file was looked at last.
#[derive(Debug)]
pub(crate) struct ListedDevices {
    path: PathBuf,
    read: Mutex<Option<Read>>,
}

impl ListedDevices {
    fn read(&self) -> MutexGuard<'_, Option<Read>> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The list; read anew if the file is another one. None: it cannot be read, and nobody is let in. Reads the disk.
    pub(crate) fn get(&self) -> Option<Arc<Devices>> {
        let about = std::fs::metadata(&self.path).ok()?;
        let (time, bytes) = (about.modified().ok()?, about.len());
        let mut read = self.read();
        if let Some((read_time, read_bytes, devices)) = &*read
            && (*read_time, *read_bytes) == (time, bytes)
        {
            return Some(Arc::clone(devices));
        }
        let devices = Arc::new(Devices::load(&self.path).ok()?);
        *read = Some((time, bytes, Arc::clone(&devices)));
        Some(devices)
    }

    /// Whether a device was on the list when it was read last. Never waits for the disk.
    fn is_listed(&self, certificate: &CertificateDer<'_>) -> bool {
        let read = self.read();
        // Who comes before it was read is looked up behind the handshake.
        read.as_ref()
            .is_none_or(|(_, _, devices)| devices.tenant(&fingerprint(certificate)).is_some())
    }
}

/// Lets in who has a certificate of the authority and is on the list.
#[derive(Debug)]
pub(super) struct ListedVerifier {
    pub(super) authority: Arc<dyn ClientCertVerifier>,
    pub(super) devices: Arc<ListedDevices>,
}

impl ClientCertVerifier for ListedVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.authority.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        device: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self
            .authority
            .verify_client_cert(device, intermediates, now)?;
        match self.devices.is_listed(device) {
            true => Ok(verified),
            // On the wire it is the alert `access_denied`.
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authority
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authority
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authority.supported_verify_schemes()
    }
}

fn tls_error(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
}

/// Whether a handshake failed because the device is not on the list.
pub(crate) fn is_unlisted(error: &io::Error) -> bool {
    let unlisted = CertificateError::ApplicationVerificationFailure;
    tls_error(error) == Some(&Error::InvalidCertificate(unlisted))
}

/// Why the server refuses this device's certificate, if that is why the connection failed.
pub(crate) fn why_refused(error: &io::Error) -> Option<&'static str> {
    match tls_error(error)? {
        Error::AlertReceived(AlertDescription::AccessDenied) => {
            Some("it is not on the server's list of devices, or was struck off")
        }
        Error::AlertReceived(
            AlertDescription::UnknownCA
            | AlertDescription::DecryptError
            | AlertDescription::BadCertificate,
        ) => Some("it is not of the authority that the server knows"),
        _ => None,
    }
}
