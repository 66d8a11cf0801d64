//! Identities of tests: a certificate and its key, in two files of a folder.

use crate::authority::{Authority, Folder, Issued, Purpose};
use tls::Identity;

/// Writes `NAME.pem` and `NAME.key` to a folder.
pub fn written(issued: &Issued, folder: &Folder, name: &str) -> Identity {
    let (certificate_file, key_file) = issued.write(folder, name);
    Identity {
        certificate_file,
        key_file,
    }
}

/// Issues a certificate for a host, and writes it as `server` or `client`.
pub fn issued(authority: &Authority, folder: &Folder, host: &str, purpose: Purpose) -> Identity {
    let name = match purpose {
        Purpose::Server => "server",
        Purpose::Client => "client",
    };
    written(&authority.issue(&[host], purpose), folder, name)
}
