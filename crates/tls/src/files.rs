//! Files of certificates and keys: read within limits, and looked at for changes.

use crate::Error;
use base::error::Code;
use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The authorities that the system trusts, which the package `ca-certificates` keeps.
pub const SYSTEM_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Size of the largest file of certificates: several times the list of a distribution.
const CERTIFICATES_BYTES_MAX: u64 = 4 << 20;
/// Size of the largest file of a key.
const KEY_BYTES_MAX: u64 = 64 << 10;

/// Permission bits of users other than owner and group.
const OTHERS: u32 = 0o007;

/// The authorities of the system, as this process has read them last. All clients share them.
static OF_SYSTEM: Mutex<Option<KnownAuthorities>> = Mutex::new(None);

/// Authorities, and the file that they were read from.
type KnownAuthorities = (Stamp, Arc<RootCertStore>);

/// A certificate and its key, by which a peer knows this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The certificate in PEM, followed by those of the authorities between it and the one that peers know.
    pub certificate_file: PathBuf,
    /// Its private key in PEM, without a password.
    pub key_file: PathBuf,
}

impl Identity {
    /// Reads both files.
    pub(crate) fn read(
        &self,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), Error> {
        let certificates = certificates(&self.certificate_file)?;
        let pem = read(&self.key_file, KEY_BYTES_MAX)?;
        // The library's reason could repeat a part of the file.
        let key = PrivateKeyDer::from_pem_slice(&pem).map_err(|_| {
            Error::new(
                Code::Corrupt,
                self.key_file.display(),
                "holds no private key in PEM",
                "write the key there, without a password",
            )
        })?;
        Ok((certificates, key))
    }

    /// Returns the warning about a key that every user of the machine can read.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let about = fs::metadata(&self.key_file).ok()?;
        let shown = self.key_file.display();
        (about.mode() & OTHERS != 0).then(|| {
            format!("key_file {shown} is open to every user of this machine; chmod 600 {shown}")
        })
    }

    /// Returns why the library does not take the two together.
    pub(crate) fn refused(&self, error: &rustls::Error) -> Error {
        let certificate = self.certificate_file.display();
        match error {
            rustls::Error::InconsistentKeys(_) => Error::new(
                Code::Invalid,
                self.key_file.display(),
                format!("does not belong to the certificate in {certificate}"),
                "name a certificate and the key that it was made for",
            ),
            rustls::Error::InvalidCertificate(_) => Error::new(
                Code::Corrupt,
                certificate,
                "holds a damaged certificate",
                "write the certificate there again",
            ),
            _ => Error::new(
                Code::Unsupported,
                self.key_file.display(),
                "is a key of a kind that is not supported",
                "make a key for ECDSA (P-256 or P-384), Ed25519 or RSA of 2048 bits or more",
            ),
        }
    }
}

/// Passed explicitly, because a process may have several providers.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Returns the authorities in a file that the operator names: each certificate must be sound.
pub(crate) fn authorities(path: &Path) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots
            .add(certificate)
            .map_err(|_| damaged(path, "holds a damaged certificate"))?;
    }
    Ok(roots)
}

/// Returns the authorities of the system. Each client of a node needs them at once after a reload, so they are read
/// again only if the file has changed.
pub(crate) fn system_authorities() -> Result<Arc<RootCertStore>, Error> {
    shared_authorities(Path::new(SYSTEM_AUTHORITIES), &OF_SYSTEM)
}

/// Returns the authorities in a file that changes seldom, read again only if it has changed.
fn shared_authorities(
    path: &Path,
    known: &Mutex<Option<KnownAuthorities>>,
) -> Result<Arc<RootCertStore>, Error> {
    // Taken before the file is read: a change meanwhile is seen at the next call.
    let now = stamp(path);
    // The content is whole or none. Others wait here, because they want the same.
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    if let (Some((before, authorities)), Some(now)) = (&*known, &now)
        && before == now
    {
        return Ok(Arc::clone(authorities));
    }
    *known = None;
    let authorities = Arc::new(parsable_authorities(path)?);
    *known = now.map(|now| (now, Arc::clone(&authorities)));
    Ok(authorities)
}

/// Returns the authorities in a file of a distribution. Old ones that the library does not understand are left out.
fn parsable_authorities(path: &Path) -> Result<RootCertStore, Error> {
    let found = certificates(path).map_err(|error| Error {
        remedy: "install ca-certificates, or name the server's authority in ca_file".to_owned(),
        ..error
    })?;
    let mut roots = RootCertStore::empty();
    let (taken, _) = roots.add_parsable_certificates(found);
    if taken == 0 {
        return Err(damaged(path, "holds no certificate that can be used"));
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let pem = read(path, CERTIFICATES_BYTES_MAX)?;
    // The library takes a second beginning for the first one's.
    if !has_whole_blocks(&pem) {
        return Err(damaged(path, "holds a damaged certificate"));
    }
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(damaged(path, "holds no certificate in PEM")),
        Err(_) => Err(damaged(path, "holds a damaged certificate")),
    }
}

/// Returns whether each block ends before the next one begins, and each end has its beginning. The library
/// ignores a beginning that does not begin its line: after a byte order mark, or an end without a line feed.
fn has_whole_blocks(pem: &[u8]) -> bool {
    let mut is_inside = false;
    for line in pem.split(|byte| matches!(byte, b'\n' | b'\r')) {
        let begins = line.starts_with(b"-----BEGIN ");
        let ends = line.starts_with(b"-----END ");
        if (begins && is_inside) || (ends && !is_inside) {
            return false;
        }
        is_inside = begins || (is_inside && !ends);
    }
    !is_inside
}

fn damaged(path: &Path, wrong: &str) -> Error {
    let remedy = "write certificates there that begin with -----BEGIN CERTIFICATE-----";
    Error::new(Code::Corrupt, path.display(), wrong, remedy)
}

/// Reads a regular file up to a limit. Waits only for the disk: opening a FIFO would wait for its other end.
fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, Error> {
    let failed = |error: &io::Error| {
        let (wrong, remedy) = match error.kind() {
            io::ErrorKind::NotFound => ("is not there".to_owned(), "name the right file"),
            io::ErrorKind::PermissionDenied => (
                "cannot be read: permission denied".to_owned(),
                "let the node's user read it; with node.paths, start the node again",
            ),
            _ => (format!("cannot be read: {error}"), "name a file"),
        };
        Error::new(Code::from_io(error), path.display(), wrong, remedy)
    };
    let no_file = || {
        let wrong = "is no regular file";
        Error::new(Code::Invalid, path.display(), wrong, "name a file")
    };
    // Some devices act when they are opened, so the kind is read first.
    if !fs::metadata(path)
        .map_err(|error| failed(&error))?
        .is_file()
    {
        return Err(no_file());
    }
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY)
        .open(path)
        .map_err(|error| failed(&error))?;
    if !file.metadata().map_err(|error| failed(&error))?.is_file() {
        return Err(no_file());
    }
    let mut bytes = Vec::new();
    file.take(bytes_max + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| failed(&error))?;
    if bytes.len() as u64 > bytes_max {
        let wrong = format!("is larger than {bytes_max} bytes");
        return Err(Error::new(
            Code::Invalid,
            path.display(),
            wrong,
            "name the right file",
        ));
    }
    Ok(bytes)
}

/// What tells one content of a file from the next without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    file: (u64, u64),
    bytes: u64,
    mode: u32,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// Returns the stamp of a file; `None` if it cannot be looked at.
pub(crate) fn stamp(path: &Path) -> Option<Stamp> {
    let about = std::fs::metadata(path).ok()?;
    Some(Stamp {
        file: (about.dev(), about.ino()),
        bytes: about.size(),
        mode: about.mode(),
        modified: (about.mtime(), about.mtime_nsec()),
        changed: (about.ctime(), about.ctime_nsec()),
    })
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
