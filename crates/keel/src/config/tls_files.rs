//! Files of certificates and keys that a whole configuration names, and what is wrong with them.

use super::Config;
use base::clock::{Clock, SystemClock};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use tls::ClientOptions;

/// Permission bits of users other than owner and group.
const OTHERS: u32 = 0o007;

/// Returns the clients of a configuration, each with the name of its section.
fn clients(config: &Config) -> Vec<(&'static str, &ClientOptions)> {
    let mqtt = config.mqtt.iter().map(|mqtt| ("mqtt", mqtt.tls.as_ref()));
    let upstreams = config.upstream.iter();
    let upstreams = upstreams.map(|upstream| ("upstream", upstream.tls.as_ref()));
    let brokers = config.urgent.brokers.iter();
    let brokers = brokers.map(|broker| ("broker", broker.tls.as_ref()));
    let all = mqtt.chain(upstreams).chain(brokers);
    all.filter_map(|(section, options)| Some((section, options?)))
        .collect()
}

/// Returns the files of certificates and keys, each with the name of its key.
pub(super) fn files(config: &Config) -> Vec<(&'static str, &Path)> {
    let mut files = Vec::new();
    for (section, options) in clients(config) {
        let [authorities, certificate, key] = match section {
            "mqtt" => ["mqtt.ca_file", "mqtt.certificate_file", "mqtt.key_file"],
            "upstream" => [
                "upstream.ca_file",
                "upstream.certificate_file",
                "upstream.key_file",
            ],
            _ => [
                "broker.ca_file",
                "broker.certificate_file",
                "broker.key_file",
            ],
        };
        files.extend(options.ca_file.as_deref().map(|path| (authorities, path)));
        if let Some(own) = &options.identity {
            files.push((certificate, own.certificate_file.as_path()));
            files.push((key, own.key_file.as_path()));
        }
    }
    if let Some(options) = config.http.as_ref().and_then(|http| http.tls.as_ref()) {
        let own = &options.identity;
        files.push(("http.certificate_file", own.certificate_file.as_path()));
        files.push(("http.key_file", own.key_file.as_path()));
        let authorities = options.client_ca_file.as_deref();
        files.extend(authorities.map(|path| ("http.client_ca_file", path)));
    }
    files
}

/// Returns the warnings about files that cannot be used now, and about keys that others can read.
pub(super) fn warnings(config: &Config) -> Vec<String> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let mut warnings = Vec::new();
    for (section, options) in clients(config) {
        let unusable = options.check(&clock).err();
        warnings.extend(unusable.map(|error| format!("{section}: {error}")));
        let own = options.identity.as_ref();
        warnings.extend(own.and_then(|own| key_warning(section, &own.key_file)));
    }
    if let Some(options) = config.http.as_ref().and_then(|http| http.tls.as_ref()) {
        let unusable = options.check(&clock).err();
        warnings.extend(unusable.map(|error| format!("http: {error}")));
        warnings.extend(key_warning("http", &options.identity.key_file));
    }
    warnings
}

fn key_warning(section: &str, path: &Path) -> Option<String> {
    let about = std::fs::metadata(path).ok()?;
    let shown = path.display();
    (about.permissions().mode() & OTHERS != 0).then(|| {
        format!(
            "{section}.key_file {shown} is open to every user of this machine; chmod 600 {shown}"
        )
    })
}
