//! Files of certificates and keys that a whole configuration names, and what is wrong with them.

use super::Config;
use super::upstream::UpstreamKind;
use base::clock::{Clock, SystemClock};
use std::path::Path;
use std::sync::Arc;
use tls::ClientOptions;

/// The port that brokers have for TLS.
const TLS_PORT: &str = ":8883";

/// A section that has a client.
struct Place<'c> {
    section: &'static str,
    /// The name of an upstream or a broker: there may be several.
    name: Option<&'c str>,
    /// Its address, if it is a broker's.
    broker: Option<String>,
    tls: Option<&'c ClientOptions>,
}

impl Place<'_> {
    fn shown(&self) -> String {
        match self.name {
            None => self.section.to_owned(),
            Some(name) => format!("{} {name}", self.section),
        }
    }
}

/// Returns the sections of a configuration that have a client.
fn places(config: &Config) -> Vec<Place<'_>> {
    let mqtt = config.mqtt.iter().map(|mqtt| Place {
        section: "mqtt",
        name: None,
        broker: Some(mqtt.address()),
        tls: mqtt.tls.as_ref(),
    });
    let upstreams = config.upstream.iter().map(|upstream| Place {
        section: "upstream",
        name: Some(&upstream.options.name),
        broker: match upstream.kind {
            UpstreamKind::Mqtt => Some(upstream.options.address().to_owned()),
            UpstreamKind::Http => None,
        },
        tls: upstream.tls.as_ref(),
    });
    let brokers = config.urgent.brokers.iter().map(|broker| Place {
        section: "broker",
        name: Some(&broker.options.name),
        broker: Some(broker.options.address.clone()),
        tls: broker.tls.as_ref(),
    });
    mqtt.chain(upstreams).chain(brokers).collect()
}

/// Returns the files of certificates and keys, each with the name of its key.
pub(super) fn files(config: &Config) -> Vec<(&'static str, &Path)> {
    let mut files = Vec::new();
    for place in places(config) {
        let Some(options) = place.tls else { continue };
        let [authorities, certificate, key] = match place.section {
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

/// Returns the warnings about files that cannot be used now, about keys that others can read, and about brokers that
/// seem to speak TLS.
pub(super) fn warnings(config: &Config) -> Vec<String> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let mut warnings = Vec::new();
    for place in places(config) {
        let shown = place.shown();
        let Some(options) = place.tls else {
            let broker = place.broker.filter(|address| address.ends_with(TLS_PORT));
            warnings.extend(broker.map(|address| {
                format!(
                    "{shown}: {address} has the port for TLS, and tls is not set; set tls = true"
                )
            }));
            continue;
        };
        let unusable = options.check(&clock).err();
        warnings.extend(unusable.map(|error| format!("{shown}: {error}")));
        let own = options.identity.as_ref();
        let open = own.and_then(tls::Identity::warning);
        warnings.extend(open.map(|warning| format!("{shown}: {warning}")));
    }
    if let Some(options) = config.http.as_ref().and_then(|http| http.tls.as_ref()) {
        let unusable = options.check(&clock).err();
        warnings.extend(unusable.map(|error| format!("http: {error}")));
        let open = options.identity.warning();
        warnings.extend(open.map(|warning| format!("http: {warning}")));
    }
    warnings
}
