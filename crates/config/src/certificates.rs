//! Certificates and keys that sections name, for connections with TLS.

use super::reader::Section;
use super::values::{PATH_BYTES_MAX, TEXT_BYTES_MAX};
use std::path::{Path, PathBuf};
use tls::{ClientOptions, Identity, ServerOptions};

/// The keys of a client.
const CLIENT_KEYS: [&str; 4] = ["ca_file", "certificate_file", "key_file", "server_name"];

/// Reads what a client of a broker or a server needs. Without TLS these keys have no effect, and `remedy` says how to
/// switch it on.
pub(super) fn client(
    section: &Section<'_, '_>,
    has_tls: bool,
    remedy: &str,
    base_dir: &Path,
) -> Option<ClientOptions> {
    let ca_file = path(section, "ca_file", base_dir);
    let identity = identity(section, base_dir);
    let server_name = section.text("server_name", TEXT_BYTES_MAX);
    if let Some(name) = &server_name
        && !tls::is_server_name(&name.value)
    {
        let wrong = format!("is \"{}\"", name.value);
        let remedy = "give a host name or an address, as the server's certificate has it";
        section.wrong(name.line, "server_name", &wrong, remedy);
    }
    if !has_tls {
        for key in CLIENT_KEYS.into_iter().filter(|key| section.has(key)) {
            let wrong = "is for connections with TLS only";
            section.wrong(section.line_of(key), key, wrong, remedy);
        }
        return None;
    }
    Some(ClientOptions {
        ca_file,
        identity,
        server_name: server_name.map(|at| at.value),
    })
}

/// Reads what a server needs. Without a certificate it has no TLS.
pub(super) fn server(section: &Section<'_, '_>, base_dir: &Path) -> Option<ServerOptions> {
    let client_ca_file = path(section, "client_ca_file", base_dir);
    let identity = identity(section, base_dir);
    if client_ca_file.is_some() && !section.has("certificate_file") {
        let remedy = "give certificate_file and key_file as well";
        let line = section.line_of("client_ca_file");
        section.wrong(line, "client_ca_file", "lacks a certificate", remedy);
    }
    Some(ServerOptions {
        identity: identity?,
        client_ca_file,
    })
}

fn path(section: &Section<'_, '_>, key: &'static str, base_dir: &Path) -> Option<PathBuf> {
    let at = section.text(key, PATH_BYTES_MAX)?;
    Some(base_dir.join(at.value))
}

fn identity(section: &Section<'_, '_>, base_dir: &Path) -> Option<Identity> {
    const BOTH: [&str; 2] = ["certificate_file", "key_file"];
    let certificate = path(section, BOTH[0], base_dir);
    let key = path(section, BOTH[1], base_dir);
    for (given, other) in [(BOTH[0], BOTH[1]), (BOTH[1], BOTH[0])] {
        if section.has(given) && !section.has(other) {
            let wrong = format!("lacks a {other}");
            let remedy = format!("give {other} as well");
            section.wrong(section.line_of(given), given, &wrong, remedy);
        }
    }
    Some(Identity {
        certificate_file: certificate?,
        key_file: key?,
    })
}
