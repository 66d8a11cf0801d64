//! From the configuration to the options of the rooms.

use crate::config::{
    Config, KeyConfig, MqttConfig, MqttVersion, Payload, SubscribeConfig, VALIDITY_MS,
};
use crate::error::CliError;
use db::DbOptions;
use ingest::intake::{
    IntakeOptions, KeyRule, KeyRules, PayloadKind, SubscriptionRule, Template, TemplateKind,
};
use ingest::line::LineOptions;
use ingest::mqtt::{MqttOptions, Qos, Subscription, Version};

/// Options of the database of a store with this capacity.
pub(crate) fn database(config: &Config, capacity_bytes: u64) -> DbOptions {
    DbOptions {
        objects_max: config.keys.keys_max,
        value_bytes_max: config.keys.value_bytes_max as usize,
        commit_interval_ms: config.store.commit_interval_ms,
        // At full speed what waits for a commit goes to flash in one append and one flush instead of six.
        append_bytes_max: 512 << 10,
        retention: config.retention(capacity_bytes),
        ..DbOptions::default()
    }
}

/// What is declared about keys.
pub(crate) fn key_rules(config: &Config) -> KeyRules {
    let rule = |key: &KeyConfig| KeyRule {
        pattern: key.pattern.clone(),
        validity_ms: key.validity_ms,
        temporal: key.temporal,
    };
    KeyRules {
        rules: config.key.iter().map(rule).collect(),
        auto_create: config.keys.auto_create,
        keys_max: config.keys.keys_max,
        default_validity_ms: VALIDITY_MS,
    }
}

/// How messages and lines become readings.
pub(crate) fn intake(config: &Config) -> Result<IntakeOptions, CliError> {
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
    let (payload, kind) = match &config.payload {
        Payload::Number => (PayloadKind::Number, TemplateKind::Topic),
        Payload::Json { field, time_field } => {
            let (field, time_field) = (field.clone(), time_field.clone());
            (PayloadKind::Json { field, time_field }, TemplateKind::Topic)
        }
        Payload::Line => (PayloadKind::Line, TemplateKind::TopicAndLine),
    };
    Ok(SubscriptionRule {
        filter: config.filter.clone(),
        key: template(&config.key, kind)?,
        payload,
    })
}

fn template(text: &str, kind: TemplateKind) -> Result<Template, CliError> {
    Template::parse(text, kind)
        .map_err(|error| CliError::failure("key", error, "correct the configuration"))
}

/// Where lines are listened for.
pub(crate) fn line(config: &Config) -> LineOptions {
    let line = &config.line;
    LineOptions {
        tcp_listen: line.tcp_listen.map(|address| address.to_string()),
        unix_socket: line.unix_socket.clone(),
        connections_max: line.connections_max,
        line_bytes_max: line.line_bytes_max as usize,
        idle_seconds_max: u64::from(line.idle_seconds_max),
        ..LineOptions::default()
    }
}

/// The session with the broker. Reads the password.
pub(crate) fn mqtt(config: &MqttConfig) -> Result<MqttOptions, CliError> {
    // An IPv6 address needs its brackets back.
    let address = if config.host.contains(':') {
        format!("[{}]:{}", config.host, config.port)
    } else {
        format!("{}:{}", config.host, config.port)
    };
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
