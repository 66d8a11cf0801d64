//! Authorities and certificates for tests, in folders of their own. Tests of other rooms load this file, too.

// Each test file uses its own part of this.
#![allow(dead_code)]

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, date_time_ymd,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder that is removed with this value.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("keel-tls-{name}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file as programs that renew certificates do: beside it, and renamed.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let (path, beside) = (self.file(name), self.file(&format!("{name}.new")));
        std::fs::write(&beside, text).unwrap();
        std::fs::rename(&beside, &path).unwrap();
        path
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a certificate is for.
#[derive(Clone, Copy)]
pub enum Purpose {
    Server,
    Client,
}

/// A certificate and its key, in PEM.
pub struct Issued {
    pub certificate: String,
    pub key: String,
}

impl Issued {
    /// Writes both files, and returns their paths.
    pub fn write(&self, folder: &Folder, name: &str) -> (PathBuf, PathBuf) {
        let certificate = folder.write(&format!("{name}.pem"), &self.certificate);
        (certificate, folder.write(&format!("{name}.key"), &self.key))
    }
}

/// An authority.
pub struct Authority {
    parameters: CertificateParams,
    key: KeyPair,
    /// Its certificate in PEM.
    pub certificate: String,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let mut parameters = named(name, &[]);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        parameters.not_before = date_time_ymd(1990, 1, 1);
        parameters.not_after = date_time_ymd(2200, 1, 1);
        let certificate = parameters.self_signed(&key).unwrap().pem();
        Self {
            parameters,
            key,
            certificate,
        }
    }

    /// Issues a certificate that holds from the first year to the beginning of the second.
    pub fn issue_for(&self, names: &[&str], purpose: Purpose, (from, to): (i32, i32)) -> Issued {
        let issuer = Issuer::from_params(&self.parameters, &self.key);
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let mut parameters = named("a test", names);
        parameters.is_ca = IsCa::ExplicitNoCa;
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages = vec![match purpose {
            Purpose::Server => ExtendedKeyUsagePurpose::ServerAuth,
            Purpose::Client => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        parameters.use_authority_key_identifier_extension = true;
        parameters.not_before = date_time_ymd(from, 1, 1);
        parameters.not_after = date_time_ymd(to, 1, 1);
        let certificate = parameters.signed_by(&key, &issuer).unwrap().pem();
        Issued {
            certificate,
            key: key.serialize_pem(),
        }
    }

    /// Returns its own certificate and key.
    pub fn issued(&self) -> Issued {
        Issued {
            certificate: self.certificate.clone(),
            key: self.key.serialize_pem(),
        }
    }

    /// Issues a certificate that holds for long.
    pub fn issue(&self, names: &[&str], purpose: Purpose) -> Issued {
        self.issue_for(names, purpose, (2000, 2100))
    }
}

fn named(name: &str, hosts: &[&str]) -> CertificateParams {
    let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
    let mut parameters = CertificateParams::new(hosts).unwrap();
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    parameters.distinguished_name = distinguished;
    parameters
}
