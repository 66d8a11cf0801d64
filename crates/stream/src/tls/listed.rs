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

/// The list, or what is wrong with it, in the words of [`TlsError`].
type List = Result<Arc<Devices>, Arc<str>>;

/// The list of devices as it was when its file was looked at last.
#[derive(Debug)]
pub(crate) struct ListedDevices {
    path: PathBuf,
    read: Mutex<Read>,
}

#[derive(Debug, Default)]
struct Read {
    /// What the file was like.
    about: Option<(SystemTime, u64)>,
    /// None: it was not read yet.
    list: Option<List>,
    /// What is wrong with it, if that was told already.
    told: Option<Arc<str>>,
}

impl ListedDevices {
    fn read(&self) -> MutexGuard<'_, Read> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The list; read anew if the file is another one. An error: it is not there or not understood, and nobody is let
    /// in, as it may be the very change that strikes a device off. Reads the disk.
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

    /// What whoever runs the server is to be told of the list now: once that it cannot be used, with the reason, and
    /// once that it can be again.
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
                format!("{wrong}; mend the list of devices: until then nobody is let in")
            }
            None => format!("{}: devices are let in again", self.path.display()),
        })
    }

    /// Whether a device was on the list when it was read last. Never waits for the disk.
    fn is_listed(&self, certificate: &CertificateDer<'_>) -> bool {
        match &self.read().list {
            Some(Ok(devices)) => devices.tenant(&fingerprint(certificate)).is_some(),
            // Looked up behind the handshake, where there are words for what is wrong.
            Some(Err(_)) | None => true,
        }
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
