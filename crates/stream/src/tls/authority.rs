//! The authority: its key signs the certificates of servers and devices.

use super::files::{self, PEM_BYTES_MAX, PRIVATE, PUBLIC};
use super::{
    AUTHORITY_FILE, AUTHORITY_KEY_FILE, CERTIFICATE_FILE, DEVICES_FILE, Device, Devices, KEY_FILE,
    TlsError, check_name, fingerprint,
};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ED25519, date_time_ymd,
};
use rustls::pki_types::ServerName;
use std::io;
use std::path::{Path, PathBuf};

/// The name of every authority in its certificate. The key distinguishes authorities.
const AUTHORITY_NAME: &str = "Evenkeel streaming authority";

/// The maximum number of names of a server.
const SERVER_NAMES_MAX: usize = 64;

/// An authority in its folder.
pub struct Authority {
    folder: PathBuf,
    key: KeyPair,
    certificate_pem: Vec<u8>,
}

impl Authority {
    /// Creates an authority in a folder, and the folder if needed.
    ///
    /// # Errors
    /// The folder has an authority already, or cannot be written.
    pub fn new(folder: &Path) -> Result<Self, TlsError> {
        files::make_folder(folder)?;
        let _lock = files::lock(folder)?;
        refuse_if_there(&folder.join(AUTHORITY_KEY_FILE))?;
        let key = new_key(folder)?;
        let certificate = parameters(AUTHORITY_NAME, &[], true)
            .and_then(|parameters| parameters.self_signed(&key))
            .map_err(|error| TlsError::cryptography(folder, &error))?;
        let certificate_pem = certificate.pem().into_bytes();
        files::replace(folder, AUTHORITY_FILE, &certificate_pem, PUBLIC)?;
        files::replace(folder, DEVICES_FILE, b"", PUBLIC)?;
        // Write the key last: if it exists, the authority is complete.
        let pem = key.serialize_pem();
        files::replace(folder, AUTHORITY_KEY_FILE, pem.as_bytes(), PRIVATE)?;
        Ok(Self {
            folder: folder.to_path_buf(),
            key,
            certificate_pem,
        })
    }

    /// Opens the authority of a folder.
    ///
    /// # Errors
    /// There is no authority, or its key cannot be read.
    pub fn open(folder: &Path) -> Result<Self, TlsError> {
        let path = folder.join(AUTHORITY_KEY_FILE);
        let pem = String::from_utf8(files::read(&path, PEM_BYTES_MAX)?)
            .map_err(|_| TlsError::damaged(&path, "not a private key"))?;
        let key = KeyPair::from_pem(&pem)
            .map_err(|_| TlsError::damaged(&path, "not a private key in PEM"))?;
        let certificate_pem = files::read(&folder.join(AUTHORITY_FILE), PEM_BYTES_MAX)?;
        Ok(Self {
            folder: folder.to_path_buf(),
            key,
            certificate_pem,
        })
    }

    /// Creates the identity of a server in a folder. Its certificate has these host names and addresses, by which
    /// devices reach it. The folder also gets a link to the authority's list of devices; a server on another machine
    /// needs a copy of the list instead.
    ///
    /// # Errors
    /// A name is invalid; the folder has an identity already, or cannot be written.
    pub fn issue_server(&self, names: &[String], out: &Path) -> Result<(), TlsError> {
        if names.is_empty() || names.len() > SERVER_NAMES_MAX {
            return Err(TlsError::Host(names.join(" ")));
        }
        for name in names {
            // This refuses a name with a port.
            ServerName::try_from(name.as_str()).map_err(|_| TlsError::Host(name.clone()))?;
        }
        let usage = ExtendedKeyUsagePurpose::ServerAuth;
        self.issue(&names[0], names, usage, out, |_| Ok(()))?;
        let list = self.folder.join(DEVICES_FILE);
        let list = std::fs::canonicalize(&list).map_err(TlsError::file(&list))?;
        let link = out.join(DEVICES_FILE);
        match std::os::unix::fs::symlink(list, &link) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(TlsError::file(&link)(error))
            }
            _ => Ok(()),
        }
    }

    /// Creates the identity of a device in a folder, and adds it to the list. Returns its fingerprint.
    ///
    /// # Errors
    /// A name is invalid, or belongs to another device; the folder has an identity already, or cannot be written.
    pub fn issue_device(&self, name: &str, tenant: &str, out: &Path) -> Result<[u8; 32], TlsError> {
        let name = check_name(name)?.to_owned();
        let tenant = check_name(tenant)?.to_owned();
        let _lock = files::lock(&self.folder)?;
        let devices = self.devices()?;
        if devices.list().iter().any(|device| device.name == name) {
            return Err(TlsError::Listed(name));
        }
        let usage = ExtendedKeyUsagePurpose::ClientAuth;
        self.issue(&name.clone(), &[], usage, out, |fingerprint| {
            let device = Device {
                fingerprint,
                name,
                tenant,
            };
            self.write(&devices.with(device)?)
        })
    }

    /// Returns the list of devices.
    ///
    /// # Errors
    /// The list is missing or damaged.
    pub fn devices(&self) -> Result<Devices, TlsError> {
        Devices::load(&self.folder.join(DEVICES_FILE))
    }

    /// Removes a device from the list, and returns it.
    ///
    /// # Errors
    /// No device has this name, or the list cannot be written.
    pub fn revoke(&self, name: &str) -> Result<Device, TlsError> {
        let _lock = files::lock(&self.folder)?;
        let path = self.folder.join(DEVICES_FILE);
        let devices = self.devices()?;
        let found = devices.list().iter().find(|device| device.name == name);
        let device = found
            .ok_or_else(|| TlsError::NoSuchDevice(name.to_owned()))?
            .clone();
        let mut text = devices.text();
        if let Some(line) = text
            .lines()
            .find(|line| line.split(' ').nth(1) == Some(name))
        {
            text = text.replacen(&format!("{line}\n"), "", 1);
        }
        let left = Devices::parse(&text).map_err(|problem| TlsError::damaged(&path, problem))?;
        self.write(&left)?;
        Ok(device)
    }

    fn write(&self, devices: &Devices) -> Result<(), TlsError> {
        let text = devices.text();
        files::replace(&self.folder, DEVICES_FILE, text.as_bytes(), PUBLIC)
    }

    /// Creates a key and its certificate. Calls `enter` with the fingerprint before the identity is usable, so that no
    /// device exists that is not on the list.
    fn issue(
        &self,
        name: &str,
        hosts: &[String],
        usage: ExtendedKeyUsagePurpose,
        out: &Path,
        enter: impl FnOnce([u8; 32]) -> Result<(), TlsError>,
    ) -> Result<[u8; 32], TlsError> {
        let failed = |error: rcgen::Error| TlsError::cryptography(&self.folder, &error);
        files::make_folder(out)?;
        let _lock = files::lock(out)?;
        refuse_if_there(&out.join(KEY_FILE))?;
        let authority = parameters(AUTHORITY_NAME, &[], true).map_err(failed)?;
        let issuer = Issuer::from_params(&authority, &self.key);
        let key = new_key(out)?;
        let mut own = parameters(name, hosts, false).map_err(failed)?;
        own.extended_key_usages = vec![usage];
        let certificate = own.signed_by(&key, &issuer).map_err(failed)?;
        let fingerprint = fingerprint(certificate.der());
        enter(fingerprint)?;
        files::replace(out, AUTHORITY_FILE, &self.certificate_pem, PUBLIC)?;
        let pem = certificate.pem();
        files::replace(out, CERTIFICATE_FILE, pem.as_bytes(), PUBLIC)?;
        let pem = key.serialize_pem();
        files::replace(out, KEY_FILE, pem.as_bytes(), PRIVATE)?;
        Ok(fingerprint)
    }
}

/// Returns a new private key. Ed25519, because its certificates are the shortest.
fn new_key(folder: &Path) -> Result<KeyPair, TlsError> {
    KeyPair::generate_for(&PKCS_ED25519).map_err(|error| TlsError::cryptography(folder, &error))
}

fn refuse_if_there(path: &Path) -> Result<(), TlsError> {
    if path.symlink_metadata().is_ok() {
        return Err(TlsError::Exists(path.display().to_string()));
    }
    Ok(())
}

/// Returns the parameters of a certificate.
fn parameters(
    name: &str,
    hosts: &[String],
    is_authority: bool,
) -> Result<CertificateParams, rcgen::Error> {
    let mut parameters = CertificateParams::new(hosts)?;
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    parameters.distinguished_name = distinguished;
    // A device without the correct time assumes 1970, and an unattended device needs a certificate that does not
    // expire.
    parameters.not_before = date_time_ymd(1970, 1, 1);
    parameters.not_after = date_time_ymd(4096, 1, 1);
    if is_authority {
        parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    } else {
        parameters.is_ca = IsCa::ExplicitNoCa;
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.use_authority_key_identifier_extension = true;
    }
    Ok(parameters)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::{device_config, server_config};
    use rustls::CertificateError::{InvalidPurpose, InvalidPurposeContext};
    use rustls::{ClientConnection, Error, ServerConnection};

    /// Does a handshake in memory between two folders' identities, until it completes or one side refuses.
    fn shake_hands(server: &Path, device: &Path) -> Result<(), Error> {
        let (config, name) = device_config(device, "127.0.0.1").unwrap();
        let mut device = ClientConnection::new(config, name)?;
        let mut server = ServerConnection::new(server_config(server).unwrap())?;
        while device.is_handshaking() || server.is_handshaking() {
            let mut records = Vec::new();
            while device.wants_write() {
                device.write_tls(&mut records).unwrap();
            }
            let mut rest = &records[..];
            while !rest.is_empty() {
                server.read_tls(&mut rest).unwrap();
                server.process_new_packets()?;
            }
            records.clear();
            while server.wants_write() {
                server.write_tls(&mut records).unwrap();
            }
            let mut rest = &records[..];
            while !rest.is_empty() {
                device.read_tls(&mut rest).unwrap();
                device.process_new_packets()?;
            }
        }
        Ok(())
    }

    #[test]
    fn a_certificate_serves_only_its_purpose() {
        let name = format!("stream-authority-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let (server, device) = (folder.join("server"), folder.join("device"));
        let authority = Authority::new(&folder.join("authority")).unwrap();
        let hosts = ["127.0.0.1".to_owned()];
        authority.issue_server(&hosts, &server).unwrap();
        authority
            .issue_device("device", "default", &device)
            .unwrap();
        assert_eq!(shake_hands(&server, &device), Ok(()));

        // A device whose certificate has the server's name, so that only its usage shows that it is no server.
        let pretender = folder.join("pretender");
        let usage = ExtendedKeyUsagePurpose::ClientAuth;
        authority
            .issue("pretender", &hosts, usage, &pretender, |_| Ok(()))
            .unwrap();
        for (serves, connects) in [(&pretender, &device), (&server, &server)] {
            let error = shake_hands(serves, connects).unwrap_err();
            let is_usage = matches!(
                error,
                Error::InvalidCertificate(InvalidPurpose | InvalidPurposeContext { .. })
            );
            assert!(is_usage, "{error}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
