//! The body of the fuzz target `configuration`. A test of `config` includes this file too and runs the committed corpus
//! through it.

use config::{Config, reload};
use std::path::Path;

/// Any text is a configuration, or gives one line that names the file and a line of it. The same text gives the same
/// result. A reload of it changes nothing, and a reload from the default does not change settings that need a restart.
pub(crate) fn configuration(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let read = |text: &str| Config::parse(text, "keel.toml", Path::new("base"));
    let config = match read(text) {
        Ok(config) => config,
        Err(error) => {
            let error = error.to_string();
            assert!(error.starts_with("keel.toml:"), "{error}");
            assert!(!error.contains('\n') && error.len() < 12_000, "{error}");
            return;
        }
    };
    assert!(read(text).is_ok_and(|again| again == config));
    let same = reload(&config, &config);
    assert!(same.applied.is_empty() && same.needs_restart.is_empty());
    assert!(same.effective == config);
    let Ok(default) = read("") else {
        panic!("an empty file is a configuration");
    };
    let changes = reload(&default, &config);
    assert_eq!(changes.effective.store.image, default.store.image);
    assert_eq!(changes.effective.keys, {
        let mut keys = default.keys;
        keys.auto_create = config.keys.auto_create;
        keys
    });
    assert_eq!(changes.effective.key, config.key);
    assert!((1..=60_000).contains(&config.store.commit_interval_ms));
    let bytes_max = config.retention(1 << 30).history_bytes_max;
    assert!(bytes_max > 0, "a store without a limit fills up");
    if let Some(mqtt) = &config.mqtt {
        assert!(mqtt.reconnect_ms_min <= mqtt.reconnect_ms_max);
        assert!(!mqtt.host.is_empty() && !mqtt.client_id.is_empty() && !mqtt.subscribe.is_empty());
    }
}
