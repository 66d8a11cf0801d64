//! The list of devices in a server. The server reads it again when its file changes, and checks it in the handshake. So
//! a device that is not on it gets a TLS alert.

use super::{Devices, TlsError, config, fingerprint};
use crate::sync::locked;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    AlertDescription, CertificateError, DigitallySignedStruct, DistinguishedName, Error,
    SignatureScheme,
};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

/// The identity of a server, and its list of devices.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The TLS configuration: its certificate, and the verifier of devices.
    pub(crate) tls: Arc<rustls::ServerConfig>,
    /// The list of devices.
    pub(crate) devices: Arc<ListedDevices>,
}

impl Identity {
    /// Loads the identity from a server's folder, and the list of devices from a file.
    ///
    /// # Errors
    /// A file of the folder cannot be read, is damaged, or does not fit the others; or the list.
    pub fn load(folder: &Path, devices: &Path) -> Result<Self, TlsError> {
        // First: a device's folder has no list either, and the list is not what is wrong with it.
        config::check_may_serve(folder)?;
        // Report a missing or invalid list now and not when the first device connects.
        Devices::load(devices)?;
        let devices = Arc::new(ListedDevices {
            path: devices.to_path_buf(),
            read: Mutex::default(),
        });
        let tls = config::server_config_of(folder, |authority| {
            let devices = Arc::clone(&devices);
            Arc::new(ListedVerifier { authority, devices })
        })?;
        Ok(Self { tls, devices })
    }
}

/// The list, or its problem, as text of [`TlsError`].
type List = Result<Arc<Devices>, Arc<str>>;

/// The list of devices as of the last look at its file.
#[derive(Debug)]
pub(crate) struct ListedDevices {
    path: PathBuf,
    read: Mutex<Read>,
}

#[derive(Debug, Default)]
struct Read {
    /// The time of the file's last change, and its length in bytes.
    about: Option<(SystemTime, u64)>,
    /// `None` if it was not read yet.
    list: Option<List>,
    /// The problem of the list that was reported last.
    told: Option<Arc<str>>,
}

impl ListedDevices {
    fn read(&self) -> MutexGuard<'_, Read> {
        locked(&self.read)
    }

    /// Returns the list, and reads it again if the file has changed. On an error the list is missing or invalid, and no
    /// device is admitted: the unreadable change may be the removal of a device. Reads the disk.
    pub(crate) fn get(&self) -> List {
        let found = std::fs::metadata(&self.path);
        let about = found.and_then(|about| Ok((about.modified()?, about.len())));
        let mut read = self.read();
        if let (Ok(about), Some(list)) = (&about, &read.list)
            && read.about == Some(*about)
        {
            return list.clone();
        }
        read.about = about.as_ref().ok().copied();
        let loaded = about
            .map_err(TlsError::file(&self.path))
            .and_then(|_| Devices::load(&self.path));
        let list: List = loaded
            .map(Arc::new)
            .map_err(|error| error.to_string().into());
        read.list = Some(list.clone());
        list
    }

    /// Returns the line to log about the list now: once when it becomes unusable, with the reason, and once when it is
    /// usable again.
    pub(crate) fn news(&self) -> Option<String> {
        let list = self.get();
        let wrong = list.err();
        let mut read = self.read();
        if read.told == wrong {
            return None;
        }
        read.told.clone_from(&wrong);
        Some(match wrong {
            Some(wrong) => {
                format!("{wrong}; mend the list of devices: until then no device is let in")
            }
            None => format!("{}: devices are let in again", self.path.display()),
        })
    }

    /// Returns whether a device was on the list when it was read last. Never waits for the disk.
    fn is_listed(&self, certificate: &CertificateDer<'_>) -> bool {
        match &self.read().list {
            Some(Ok(devices)) => devices.tenant(&fingerprint(certificate)).is_some(),
            // Let it pass: the check after the handshake can report the problem in text.
            Some(Err(_)) | None => true,
        }
    }
}

/// Admits devices that have a certificate of the authority and are on the list.
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
            // On the wire this is the alert `access_denied`.
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

/// Returns whether a handshake failed because the device is not on the list.
pub(crate) fn is_unlisted(error: &io::Error) -> bool {
    let unlisted = CertificateError::ApplicationVerificationFailure;
    tls_error(error) == Some(&Error::InvalidCertificate(unlisted))
}

/// Returns why the server refuses this device's certificate, if that is why the connection failed.
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
