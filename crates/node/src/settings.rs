//! Converts the configuration to the options of the rooms.

use super::log;
use base::clock::Clock;
use command::error::CliError;
use config::{Config, KeyConfig, MqttConfig, MqttVersion, SubscribeConfig, VALIDITY_MS};
use db::DbOptions;
use ingest::intake::{IntakeOptions, KeyRule, KeyRules, SubscriptionRule, Template, TemplateKind};
use ingest::line::LineOptions;
use ingest::mqtt::{MqttOptions, Qos, Subscription, Version};
use std::sync::Arc;

/// Returns the options of the database for a store of this capacity.
pub(crate) fn database(config: &Config, capacity_bytes: u64) -> DbOptions {
    DbOptions {
        objects_max: config.keys.keys_max,
        value_bytes_max: config.keys.value_bytes_max as usize,
        key_bytes_mean: config.keys.key_bytes_mean,
        commit_interval_ms: config.store.commit_interval_ms,
        // Any store has room for several segments, so that the oldest can be deleted before the store is full.
        segment_bytes_max: (4 << 20).min(capacity_bytes / 8),
        // At full speed the data that wait for a commit go to flash in one append and one flush instead of six.
        append_bytes_max: 512 << 10,
        retention: config.retention(capacity_bytes),
        admission_percent_min: config.qos.admitted_percent_min,
        admission_quality: config.qos.quality,
        ..DbOptions::default()
    }
}

/// Returns the text of a database error and its remedy, in terms of the configuration; the remedy may be empty.
pub(crate) fn told(error: &db::Error) -> (String, String) {
    let name = |option: &str| match option {
        "objects_max" => "keys.keys_max".to_owned(),
        "value_bytes_max" => "keys.value_bytes_max".to_owned(),
        "key_bytes_mean" => "keys.key_bytes_mean".to_owned(),
        "commit_interval_ms" => "store.commit_interval_ms".to_owned(),
        other => other.to_owned(),
    };
    match error {
        db::Error::Full => (
            "the store is full".to_owned(),
            "keep less history (store.history_mebibytes_max), let the oldest readings make room \
             (store.full_policy = \"drop-oldest\"), or take a larger store"
                .to_owned(),
        ),
        db::Error::TableFull { objects_max } => (
            format!("there are {objects_max} keys already, as many as keys.keys_max allows"),
            "raise keys.keys_max, then start the node again".to_owned(),
        ),
        db::Error::KeysFull { key_bytes_mean } => (
            format!(
                "the names of the keys take all bytes that keys.key_bytes_mean = {key_bytes_mean} gives them"
            ),
            "raise keys.key_bytes_mean, then start the node again".to_owned(),
        ),
        db::Error::TableTooSmall {
            what,
            needed,
            configured,
        } => {
            let name = name(what);
            let remedy = if *what == "key_bytes_mean" {
                // `needed` counts the names up to the first one without room: it would be refused again and again.
                format!("raise {name}; {} holds any names", db::KEY_BYTES_MEAN_MAX)
            } else {
                format!("raise {name} in the configuration")
            };
            (
                format!("what is stored needs {name} = {needed} at least, it is {configured}"),
                remedy,
            )
        }
        db::Error::OptionInvalid {
            name: option,
            value,
            low,
            high,
        } => {
            let name = name(option);
            (
                format!("{name} must lie between {low} and {high}, it is {value}"),
                "correct the configuration".to_owned(),
            )
        }
        other => (other.to_string(), String::new()),
    }
}

/// Returns what a declaration of keys left undone, for the operator; none of it stops a node.
pub(crate) fn declare_error(
    declared: Result<(), db::Error>,
    failures: Option<String>,
) -> Option<String> {
    // The text comes from the database, which has its own names for the limits.
    let failures = failures.map(|text| {
        text.replace("objects_max", "keys.keys_max")
            .replace("key_bytes_mean", "keys.key_bytes_mean")
    });
    let general = declared.err().map(|error| {
        let (wrong, _) = told(&error);
        format!("keys are not all declared: {wrong}")
    });
    failures.or(general)
}

/// Returns the rules for keys.
#[must_use]
pub fn key_rules(config: &Config) -> KeyRules {
    let rule = |key: &KeyConfig| KeyRule {
        pattern: key.pattern.clone(),
        validity_ms: key.validity_ms,
        temporal: key.temporal,
        weight: key.weight,
        shed: key.shed,
    };
    KeyRules {
        rules: config.key.iter().map(rule).collect(),
        auto_create: config.keys.auto_create,
        keys_max: config.keys.keys_max,
        default_validity_ms: VALIDITY_MS,
    }
}

/// Returns how messages and lines become readings; what `{tags}` stands for depends on the store.
///
/// # Errors
/// A template of keys is invalid.
pub fn intake(config: &Config) -> Result<IntakeOptions, CliError> {
    let subscribed = config.mqtt.iter().flat_map(|mqtt| &mqtt.subscribe);
    Ok(IntakeOptions {
        subscriptions: subscribed.map(subscription).collect::<Result<_, _>>()?,
        line_key: template(&config.line.key, TemplateKind::Line)?,
        line_precision: config.line.precision,
        value_bytes_max: config.keys.value_bytes_max as usize,
        future_seconds_max: config.time.future_seconds_max,
        past_days_max: config.time.past_days_max,
        topics_cached_max: config.keys.keys_max as usize,
    })
}

fn subscription(config: &SubscribeConfig) -> Result<SubscriptionRule, CliError> {
    Ok(SubscriptionRule {
        filter: config.filter.clone(),
        key: template(&config.key, config.payload.template_kind())?,
        payload: config.payload.clone(),
        retained: config.retained,
    })
}

fn template(text: &str, kind: TemplateKind) -> Result<Template, CliError> {
    Template::parse(text, kind)
        .map_err(|error| CliError::failure("key", error, "correct the configuration"))
}

/// Returns where to listen for lines.
pub(crate) fn line(config: &Config) -> LineOptions {
    let line = &config.line;
    LineOptions {
        tcp_listen: line.tcp_listen.map(|address| address.to_string()),
        unix_socket: line.unix_socket.clone(),
        connections_max: line.connections_max,
        line_bytes_max: line.line_bytes_max as usize,
        idle_seconds_max: u64::from(line.idle_seconds_max),
        make_room_seconds_min: u64::from(line.make_room_seconds_min),
        ..LineOptions::default()
    }
}

/// Returns the options of the session with the broker. Reads the password.
pub(crate) fn mqtt(config: &MqttConfig, clock: &Arc<dyn Clock>) -> Result<MqttOptions, CliError> {
    let address = config.address();
    let subscription = |subscribe: &SubscribeConfig| Subscription {
        filter: subscribe.filter.clone(),
        qos: match subscribe.qos {
            0 => Qos::AtMostOnce,
            _ => Qos::AtLeastOnce,
        },
    };
    Ok(MqttOptions {
        version: match config.version {
            MqttVersion::V3_1_1 => Version::V311,
            MqttVersion::V5 => Version::V5,
        },
        tls: config.tls.clone().map(|tls| {
            let client = tls::Client::new(tls, Arc::clone(clock));
            log::of_client(Some(&client));
            client
        }),
        username: config.username.clone(),
        password: config.password()?,
        keep_alive_seconds: config.keep_alive_seconds,
        packet_bytes_max: config.packet_bytes_max as usize,
        reconnect_ms_min: u64::from(config.reconnect_ms_min),
        reconnect_ms_max: u64::from(config.reconnect_ms_max),
        subscriptions: config.subscribe.iter().map(subscription).collect(),
        ..MqttOptions::new(address, config.client_id.clone())
    })
}

#[cfg(test)]
mod tests {
    use super::told;

    #[test]
    fn errors_of_the_database_name_keys_of_the_configuration() {
        let small = |what| db::Error::TableTooSmall {
            what,
            needed: 9,
            configured: 8,
        };
        let cases = [
            (db::Error::Full, "store.history_mebibytes_max"),
            (db::Error::Full, "store.full_policy"),
            (db::Error::TableFull { objects_max: 8 }, "keys.keys_max"),
            (small("objects_max"), "keys.keys_max"),
            (small("value_bytes_max"), "keys.value_bytes_max"),
            (small("key_bytes_mean"), "keys.key_bytes_mean"),
            (small("key_bytes_mean"), "256 holds any names"),
            (
                db::Error::KeysFull { key_bytes_mean: 16 },
                "keys.key_bytes_mean",
            ),
        ];
        for (error, name) in cases {
            let (wrong, remedy) = told(&error);
            assert!(remedy.contains(name), "{error:?}: {wrong}; {remedy}");
            assert!(!wrong.contains("objects_max"), "{wrong}");
        }
    }
}
