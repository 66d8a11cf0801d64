//! What a running node can change when its configuration is read again.

use super::Config;
use std::path::Path;

/// The difference between two configurations.
#[derive(Clone, Debug, PartialEq)]
pub struct Changes {
    /// Keys that a running node can change.
    pub applied: Vec<&'static str>,
    /// Keys that take effect at the next start.
    pub needs_restart: Vec<&'static str>,
    /// The configuration now in force: the new one, with the old values of the keys that need a restart.
    pub effective: Config,
}

impl Changes {
    /// Adds a key that takes effect at the next start.
    pub fn needs(&mut self, key: &'static str) {
        if !self.needs_restart.contains(&key) {
            self.needs_restart.push(key);
        }
    }

    /// Keeps the old values of a section that names files which the running node may not open. Their keys need a
    /// restart.
    pub fn keep_unlisted(&mut self, old: &Config, permits: impl Fn(&Path) -> bool) {
        // Other sections with files need a restart anyway, or cannot be with `node.paths`.
        let files = self.effective.files();
        let unlisted = files.iter().filter(|(_, path)| !permits(path));
        let keys: Vec<&'static str> = unlisted.map(|(key, _)| *key).collect();
        for key in keys {
            if key.starts_with("mqtt.") {
                self.effective.mqtt.clone_from(&old.mqtt);
                self.applied.retain(|applied| *applied != "mqtt");
            } else if key == "qos.gains" {
                self.effective.qos.gains.clone_from(&old.qos.gains);
                self.applied.retain(|applied| *applied != key);
            } else {
                continue;
            }
            self.needs(key);
        }
    }
}

/// Compares two configurations.
#[must_use]
pub fn reload(old: &Config, new: &Config) -> Changes {
    let mut effective = new.clone();
    let mut applied = Vec::new();
    let mut needs_restart = Vec::new();
    macro_rules! can_change {
        ($($field:ident).+, $name:literal) => {
            if old.$($field).+ != new.$($field).+ {
                applied.push($name);
            }
        };
    }
    macro_rules! needs_restart {
        ($($field:ident).+, $name:literal) => {
            if old.$($field).+ != new.$($field).+ {
                needs_restart.push($name);
                effective.$($field).+.clone_from(&old.$($field).+);
            }
        };
    }
    needs_restart!(node.socket, "node.socket");
    needs_restart!(node.connections_max, "node.connections_max");
    needs_restart!(node.user, "node.user");
    needs_restart!(node.system_calls, "node.system_calls");
    needs_restart!(node.are_paths_listed, "node.paths");
    needs_restart!(store.image, "store.image");
    needs_restart!(store.create_mebibytes, "store.create_mebibytes");
    needs_restart!(store.commit_interval_ms, "store.commit_interval_ms");
    can_change!(store.full_policy, "store.full_policy");
    can_change!(store.history_days_max, "store.history_days_max");
    can_change!(store.history_mebibytes_max, "store.history_mebibytes_max");
    can_change!(store.backlog_mebibytes_max, "store.backlog_mebibytes_max");
    can_change!(
        store.card_rated_write_terabytes,
        "store.card_rated_write_terabytes"
    );
    needs_restart!(keys.keys_max, "keys.keys_max");
    needs_restart!(keys.key_bytes_mean, "keys.key_bytes_mean");
    can_change!(keys.auto_create, "keys.auto_create");
    needs_restart!(keys.value_bytes_max, "keys.value_bytes_max");
    can_change!(key, "key");
    can_change!(time.future_seconds_max, "time.future_seconds_max");
    can_change!(time.past_days_max, "time.past_days_max");
    needs_restart!(time.wall_clock_trusted, "time.wall_clock");
    if old.mqtt.is_some() == new.mqtt.is_some() {
        can_change!(mqtt, "mqtt");
    } else {
        // A session lasts as long as the node.
        needs_restart!(mqtt, "mqtt");
    }
    needs_restart!(line.tcp_listen, "line.tcp_listen");
    needs_restart!(line.unix_socket, "line.unix_socket");
    needs_restart!(line.connections_max, "line.connections_max");
    needs_restart!(line.line_bytes_max, "line.line_bytes_max");
    needs_restart!(line.idle_seconds_max, "line.idle_seconds_max");
    needs_restart!(line.make_room_seconds_min, "line.make_room_seconds_min");
    can_change!(line.precision, "line.precision");
    can_change!(line.key, "line.key");
    needs_restart!(modbus, "modbus");
    needs_restart!(region, "region");
    needs_restart!(http, "http");
    can_change!(qos.mode, "qos.mode");
    can_change!(qos.gains, "qos.gains");
    can_change!(qos.tardiness, "qos.tardiness_target");
    can_change!(qos.data_ratio, "qos.data_ratio_target");
    can_change!(qos.sampling_period_ms, "qos.sampling_period_ms");
    can_change!(qos.instances_min, "qos.instances_min");
    can_change!(qos.samples_missing_max, "qos.samples_missing_max");
    needs_restart!(qos.quality, "qos.quality_of_data");
    needs_restart!(qos.admitted_percent_min, "qos.admitted_percent_min");
    can_change!(
        qos.admitted_change_percent_max,
        "qos.admitted_change_percent_max"
    );
    can_change!(qos.actuator, "qos.actuator");
    needs_restart!(qos.machine_root, "qos.machine_root");
    can_change!(qos.speed_percent_min, "qos.speed_percent_min");
    can_change!(qos.speed_change_percent_max, "qos.speed_change_percent_max");
    can_change!(qos.tasks_max, "qos.tasks_max");
    needs_restart!(qos.lock_memory, "qos.lock_memory");
    needs_restart!(job, "job");
    needs_restart!(mount, "mount");
    can_change!(task, "task");
    needs_restart!(upstream, "upstream");
    needs_restart!(urgent.brokers, "broker");
    needs_restart!(urgent.alarms, "alarm");
    needs_restart!(urgent.actuators, "actuator");
    Changes {
        applied,
        needs_restart,
        effective,
    }
}
