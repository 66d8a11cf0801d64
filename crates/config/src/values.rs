//! Values that several sections hold: paths, addresses, patterns and templates, with their limits.

use super::reader::{At, Section};
use ingest::intake::{TEMPLATE_BYTES_MAX, Template, TemplateKind};

/// Bytes of the longest path.
pub(super) const PATH_BYTES_MAX: usize = 4095;
/// Bytes of the longest host name, address, member name or tag.
pub(super) const TEXT_BYTES_MAX: usize = 256;
/// Bytes of the longest client id and user name.
pub(super) const CREDENTIAL_BYTES_MAX: usize = 4096;
/// How to switch TLS on for a broker.
pub(super) const TLS_REMEDY: &str = "set tls = true, or remove the line";
/// How to write the address of a broker.
pub(super) const BROKER_ADDRESS: &str = "give host:port, such as \"192.168.1.10:1883\"";
/// The beginnings by which other programs say that a broker speaks TLS.
const TLS_SCHEMES: [&str; 3] = ["mqtts://", "ssl://", "tls://"];
/// Default key of a line. What `{tags}` stands for depends on the store.
pub(super) const LINE_KEY: &str = "{measurement}/{tags}/{field}";

/// Notes what is wrong with a pattern.
pub(super) fn check_pattern(
    section: &Section<'_, '_>,
    key: &'static str,
    pattern: &At<String>,
    check: fn(&str) -> Result<(), ingest::Error>,
) {
    if pattern.value.is_empty() {
        return; // Already told.
    }
    if let Err(error) = check(&pattern.value) {
        let wrong = format!("is \"{}\"", pattern.value);
        section.wrong(pattern.line, key, &wrong, reason(&error));
    }
}

/// Reads the template of keys.
pub(super) fn key_template(section: &Section<'_, '_>, kind: TemplateKind, default: &str) -> String {
    let Some(at) = section.text("key", TEMPLATE_BYTES_MAX) else {
        return default.to_owned();
    };
    if let Err(error) = Template::parse(&at.value, kind) {
        let wrong = format!("is \"{}\"", at.value);
        section.wrong(at.line, "key", &wrong, reason(&error));
    }
    at.value
}

/// Returns why a pattern or template is invalid, without repeating its text.
pub(super) fn reason(error: &ingest::Error) -> String {
    match error {
        ingest::Error::Pattern { reason, .. } | ingest::Error::Template { reason, .. } => {
            (*reason).to_owned()
        }
        other => other.to_string(),
    }
}

/// Returns what helps with the address of a broker that cannot be read.
pub(super) fn address_remedy(given: &str) -> &'static str {
    if TLS_SCHEMES.iter().any(|scheme| given.starts_with(scheme)) {
        "give host:port alone, such as \"broker.example:8883\", and set tls = true"
    } else {
        BROKER_ADDRESS
    }
}

/// Parses `host:port` or `[::1]:1883`.
pub(super) fn host_port(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let port: u16 = port.parse().ok().filter(|port| *port != 0)?;
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?,
        None if host.contains(':') => return None,
        None => host,
    };
    let is_plain = !host.is_empty() && !host.contains(['/', '@', '[', ']', ' ']);
    is_plain.then(|| (host.to_owned(), port))
}
