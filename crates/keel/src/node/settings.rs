//! From the configuration to the options of the rooms.

use crate::config::Config;
use db::DbOptions;
use ingest::intake::{KeyRule, KeyRules};

/// A key that no `[[key]]` fits is fresh for so long.
const VALIDITY_MS: u32 = 60_000;

/// Options of the database of a store with this capacity.
pub(crate) fn database(config: &Config, capacity_bytes: u64) -> DbOptions {
    DbOptions {
        objects_max: config.keys.keys_max,
        value_bytes_max: config.keys.value_bytes_max as usize,
        commit_interval_ms: config.store.commit_interval_ms,
        retention: config.store.retention(capacity_bytes),
        ..DbOptions::default()
    }
}

/// What is declared about keys.
pub(crate) fn key_rules(config: &Config) -> KeyRules {
    let rule = |key: &crate::config::KeyConfig| KeyRule {
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
