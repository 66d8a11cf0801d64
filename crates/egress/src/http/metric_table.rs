//! The table of metrics: name, kind, meaning, and the corresponding figure of `keel status --json`.

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows while the node runs. Its name ends with `_total`.
    Counter,
    /// May go up and down.
    Gauge,
    /// 0 or 1 for a truth value.
    Flag,
    /// A counter for each entry of an object, with the entry's name as this label.
    CounterEach(&'static str),
    /// Percentiles of an object with `count`, `p50`, `p99`, `p999`.
    Summary,
    /// 1 for a text, which becomes this label's value.
    Info(&'static str),
    /// 1 for each entry of a list of objects, whose `code` becomes the label `code`.
    Reasons,
    /// 1 for the state that a text is, 0 for the others: `ok`, `degraded`, `failed`.
    States,
    /// A counter for each object of a list; its member of the second name becomes the label of the first name.
    CounterOf(&'static str, &'static str, &'static str),
    /// The same for a gauge.
    GaugeOf(&'static str, &'static str, &'static str),
    /// For each object of a list, as with `CounterOf`: 1 for the state that the member is, 0 for the others.
    StatesOf(
        &'static str,
        &'static str,
        &'static str,
        &'static [&'static str],
    ),
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Name without the suffix that its kind adds.
    pub name: &'static str,
    /// Kind.
    pub kind: Kind,
    /// Meaning.
    pub help: &'static str,
    /// Path in `keel status --json`, levels separated by `.`.
    pub path: &'static str,
    /// Factor that converts the figure to seconds, bytes or a ratio.
    pub scale: f64,
}

const fn metric(name: &'static str, kind: Kind, path: &'static str, help: &'static str) -> Metric {
    Metric {
        name,
        kind,
        help,
        path,
        scale: 1.0,
    }
}

const fn scaled(
    name: &'static str,
    kind: Kind,
    path: &'static str,
    scale: f64,
    help: &'static str,
) -> Metric {
    Metric {
        name,
        kind,
        help,
        path,
        scale,
    }
}

use Kind::{
    Counter, CounterEach, CounterOf, Flag, Gauge, GaugeOf, Info, Reasons, States, StatesOf, Summary,
};

/// The states of a program that the node keeps running.
const PROGRAM_STATES: &[&str] = &[
    "waiting_for_mount",
    "running",
    "between_runs",
    "pausing",
    "given_up",
    "hanging",
    "ending",
];

/// Every metric, in the order in which they are shown.
#[rustfmt::skip]
pub const METRICS: &[Metric] = &[
    metric("keel_state", States, "state", "Whether the node does what it must."),
    metric("keel_reason", Reasons, "reasons", "Why the state is not ok."),
    metric("keel_build", Info("version"), "node.version", "Version of the node."),
    scaled("keel_uptime_seconds", Gauge, "node.uptime_ms", 1e-3, "Time since the node's start."),
    metric("keel_memory_resident_bytes", Gauge, "node.memory_resident_bytes", "Memory of the node's process."),

    metric("keel_store_capacity_bytes", Gauge, "store.capacity_bytes", "Bytes that files of the store can hold."),
    metric("keel_store_free_bytes", Gauge, "store.free_bytes", "How many of them are free."),
    metric("keel_store_full", Flag, "store.full", "Whether new readings are refused for want of room."),
    metric("keel_device_written_bytes", Counter, "device.bytes_written", "Bytes handed to the device."),
    metric("keel_device_flushes", Counter, "device.flushes", "Flushes of the device."),
    metric("keel_device_reads", Counter, "device.reads", "Reads of the device."),
    metric("keel_device_writes", Counter, "device.writes", "Writes to the device."),
    metric("keel_flash_operations_per_reading", Gauge, "flash.operations_per_reading",
        "Writes and flushes for each reading that became durable."),
    metric("keel_flash_operations_per_reading_bound", Gauge, "flash.operations_per_reading_bound",
        "What they may be at most for the same appends."),
    scaled("keel_card_written_bytes", Counter, "wear.card_written_terabytes", 1e12,
        "Bytes written since the store was made."),
    scaled("keel_wear_bytes_per_day", Gauge, "wear.gigabytes_per_day", 1e9, "Bytes a day at the rate of this run."),
    metric("keel_card_years_left", Gauge, "wear.card_years_left", "Years until the card's rating is reached."),

    metric("keel_readings_taken", Counter, "log.readings_taken", "Readings taken."),
    metric("keel_readings_durable", Counter, "log.readings_durable", "Readings that reached flash."),
    metric("keel_readings_outstanding", Gauge, "log.readings_outstanding", "Readings taken and not yet on flash."),
    metric("keel_readings_outdated", Counter, "log.readings_outdated", "Readings whose key had a newer value already."),
    scaled("keel_durable_lag_seconds", Gauge, "log.durable_lag_ms", 1e-3,
        "Age of the oldest reading that is not on flash yet."),
    scaled("keel_commit_interval_seconds", Gauge, "log.commit_interval_ms", 1e-3,
        "Longest time to a flush, as configured."),
    scaled("keel_append_seconds", Summary, "log.append_us", 1e-6, "From the call of an append to its durable return."),
    scaled("keel_put_durable_seconds", Summary, "log.put_durable_us", 1e-6, "From a reading's arrival to flash."),
    metric("keel_queue_bytes", Gauge, "log.queue_bytes", "What waits for the log."),
    metric("keel_queue_bytes_max", Gauge, "log.queue_bytes_max", "What can wait at most."),
    metric("keel_refused_busy", Counter, "log.refused_busy", "Offers refused because the queue was full."),
    metric("keel_refused_full", Counter, "log.refused_full", "Offers refused because the store was full."),
    metric("keel_refused_failed", Counter, "log.refused_failed", "Offers refused because the log had failed."),
    metric("keel_commits", Counter, "log.commits", "Group commits."),
    metric("keel_appends", Counter, "log.appends", "Appends to the log."),
    metric("keel_checkpoints", Counter, "log.checkpoints", "Checkpoints of the latest values."),
    metric("keel_checkpoints_failed", Counter, "log.checkpoints_failed", "Checkpoints given up."),
    metric("keel_records_damaged", Gauge, "log.records_damaged", "Places of the log that cannot be read."),
    metric("keel_readings_missing", Gauge, "log.readings_missing", "Readings that damage hides, as far as known."),

    metric("keel_history_bytes", Gauge, "history.bytes", "Bytes of history."),
    metric("keel_history_bytes_max", Gauge, "history.bytes_max", "Bytes above which the oldest goes."),
    metric("keel_readings_expired", Counter, "history.readings_expired", "Readings deleted because of a limit."),
    metric("keel_readings_dropped", Counter, "history.readings_dropped",
        "Readings deleted to make room in a full store."),
    metric("keel_keys", Gauge, "keys.count", "Keys."),
    metric("keel_keys_max", Gauge, "keys.count_max", "Keys at most."),
    metric("keel_keys_temporal", Gauge, "qos.keys_temporal", "Keys whose freshness counts."),
    metric("keel_keys_fresh", Gauge, "qos.keys_fresh", "Those of them that are fresh."),

    metric("keel_input_readings", Counter, "intake.readings", "Readings from sources."),
    metric("keel_input_refused", CounterEach("reason"), "intake.refused", "Bad input by reason."),
    metric("keel_input_shed", Counter, "intake.readings_shed",
        "Readings of sources that were thrown away to lessen load."),
    metric("keel_input_retained", Counter, "intake.retained_taken",
        "Readings of messages that the broker had retained."),
    metric("keel_input_retained_skipped", Counter, "intake.retained_skipped",
        "Retained messages that a subscription leaves out."),
    metric("keel_input_merged", Counter, "intake.key_merged",
        "Readings whose key another series had first."),
    metric("keel_line_connections", Gauge, "line.connections", "Senders of lines."),
    metric("keel_mqtt_connected", Flag, "mqtt.connected", "Whether the broker is connected."),
    metric("keel_mqtt_losses", Counter, "mqtt.losses", "Connections to the broker that were lost."),
    metric("keel_mqtt_messages", Counter, "mqtt.messages", "Messages of the broker."),
    metric("keel_modbus_failing", GaugeOf("device", "name", "failing"), "modbus",
        "Whether a Modbus device did not answer all requests of its last polls."),
    metric("keel_modbus_polls", CounterOf("device", "name", "polls"), "modbus", "Polls of a device."),
    metric("keel_modbus_failed_polls", CounterOf("device", "name", "polls_failed"), "modbus",
        "Polls without an answer to every request."),
    metric("keel_modbus_missed_polls", CounterOf("device", "name", "polls_missed"), "modbus",
        "Polls that were left out because earlier ones took too long."),
    metric("keel_modbus_readings", CounterOf("device", "name", "readings"), "modbus", "Readings of a device."),
    metric("keel_modbus_left_out_readings", CounterOf("device", "name", "readings_left_out"), "modbus",
        "Readings of a device that were left out because the store took nothing."),
    metric("keel_modbus_faults", CounterEach("reason"), "modbus_faults",
        "Requests to Modbus devices without an answer, by reason."),
    metric("keel_clock_trusted", Flag, "clock.trusted", "Whether the wall clock is trusted."),
    metric("keel_clock_steps", Counter, "clock.steps", "Steps of the wall clock of more than a second."),

    metric("keel_qos_mode", Info("mode"), "qos.mode", "Which inputs are driven."),
    metric("keel_qos_tardiness", Gauge, "qos.last.tardiness_mean",
        "Response time over deadline, mean of the latest period."),
    metric("keel_qos_tardiness_target", Gauge, "qos.tardiness_target", "What it is held at."),
    metric("keel_qos_miss_ratio", Gauge, "qos.last.miss_ratio",
        "Part of the instances that missed their deadlines, in the latest period."),
    metric("keel_qos_data_ratio", Gauge, "qos.last.data_ratio", "Data time over response time, in the latest period."),
    metric("keel_qos_speed", Gauge, "qos.speed", "Part of full speed."),
    metric("keel_qos_admitted", Gauge, "qos.admitted", "Part of the updates that is admitted."),
    metric("keel_qos_readings_shed", Counter, "qos.readings_shed", "Readings whose update was left out."),
    metric("keel_qos_readings_shed_dropped", Counter, "qos.readings_shed_dropped",
        "Those of them that were thrown away."),
    metric("keel_task_instances", CounterOf("task", "name", "instances"), "qos.tasks",
        "Instances of a task that ended."),
    metric("keel_task_deadline_misses", CounterOf("task", "name", "deadline_misses"), "qos.tasks",
        "Those that were late."),
    metric("keel_task_tardiness", GaugeOf("task", "name", "tardiness_mean"), "qos.tasks", "Mean over all of them."),

    metric("keel_program_state", StatesOf("program", "name", "state", PROGRAM_STATES), "tasks",
        "What a program of the configuration does now."),
    metric("keel_program_failing", GaugeOf("program", "name", "failing"), "tasks",
        "Whether it has ended and not run long enough since, or failed in its last run."),
    metric("keel_program_starts", CounterOf("program", "name", "starts"), "tasks", "Starts of it."),
    metric("keel_program_failures", CounterOf("program", "name", "failed"), "tasks",
        "Unrequested ends, and failed periodic runs."),
    metric("keel_program_late_runs", CounterOf("program", "name", "late"), "tasks",
        "Periodic runs that ended after the deadline."),
    metric("keel_program_missed_releases", CounterOf("program", "name", "releases_missed"), "tasks",
        "Releases that passed during a run."),

    metric("keel_job_running", GaugeOf("job", "name", "running"), "jobs",
        "Whether a job of the configuration runs now."),
    metric("keel_job_failing", GaugeOf("job", "name", "failing"), "jobs", "Whether its last run failed."),
    metric("keel_job_runs", CounterOf("job", "name", "runs"), "jobs", "Runs that were started."),
    metric("keel_job_failed_runs", CounterOf("job", "name", "failed"), "jobs", "Runs that failed."),
    metric("keel_job_late_runs", CounterOf("job", "name", "late"), "jobs", "Runs that ended after the deadline."),
    metric("keel_job_skipped_runs", CounterOf("job", "name", "skipped"), "jobs",
        "Starts that were left out because the run before had not ended."),
    metric("keel_job_last_run_seconds", GaugeOf("job", "name", "last_seconds"), "jobs", "Duration of the last run."),

    metric("keel_mount_mounted", GaugeOf("mount", "name", "mounted"), "mounts",
        "Whether a tree that programs come from is mounted."),
    metric("keel_mount_failing", GaugeOf("mount", "name", "failing"), "mounts",
        "Whether it should be mounted and is not."),
    metric("keel_mount_starts", CounterOf("mount", "name", "starts"), "mounts", "Starts of the mount's process."),
    metric("keel_mount_failures", CounterOf("mount", "name", "failed"), "mounts",
        "Unrequested ends of that process."),
    metric("keel_mount_connections", GaugeOf("mount", "name", "connections"), "mounts",
        "Connections of a mount to its server that are up."),
    metric("keel_mount_reads", CounterOf("mount", "name", "reads"), "mounts",
        "Blocks of 4 KiB that programs read from a mount since it was mounted."),
    metric("keel_mount_reads_local", CounterOf("mount", "name", "reads_local"), "mounts",
        "Of these, blocks that needed no network."),
    metric("keel_mount_reads_failed", CounterOf("mount", "name", "reads_failed"), "mounts", "Reads that failed."),
    metric("keel_mount_received_bytes", CounterOf("mount", "name", "bytes_received"), "mounts",
        "Bytes received from its server since it was mounted."),
    metric("keel_power_watts", GaugeOf("sensor", "name", "watts"), "power", "Power that a sensor shows, W."),

    metric("keel_upstream_connected", GaugeOf("upstream", "name", "connected"), "upstream",
        "Whether an upstream takes what it is sent."),
    metric("keel_upstream_backlog_readings", GaugeOf("upstream", "name", "backlog_readings"), "upstream",
        "Readings that it has yet to acknowledge."),
    scaled("keel_upstream_backlog_age_seconds", GaugeOf("upstream", "name", "backlog_age_ms"), "upstream", 1e-3,
        "Age of the oldest of them."),
    metric("keel_upstream_in_flight_readings", GaugeOf("upstream", "name", "in_flight"), "upstream",
        "Readings that were sent and have no answer yet."),
    metric("keel_upstream_sent_readings", CounterOf("upstream", "name", "acknowledged"), "upstream",
        "Readings that it has acknowledged."),
    metric("keel_upstream_repeated_readings", CounterOf("upstream", "name", "sent_twice"), "upstream",
        "Readings that were sent again, or after a crash possibly sent again."),
    metric("keel_upstream_lost_readings", CounterOf("upstream", "name", "forward_lost"), "upstream",
        "Readings that were deleted before they were sent."),
    metric("keel_upstream_missing_readings", CounterOf("upstream", "name", "missing"), "upstream",
        "Readings that damage hid before they were sent."),
    metric("keel_upstream_refused_readings", CounterOf("upstream", "name", "refused_total"), "upstream",
        "Readings that could not be sent, or were not accepted."),
    metric("keel_upstream_late_sent_readings", CounterOf("upstream", "name", "late_sent"), "upstream",
        "Readings older than their deadline that were sent."),
    metric("keel_upstream_late_skipped_readings", CounterOf("upstream", "name", "late_skipped"), "upstream",
        "Readings older than their deadline that were left out, as configured."),
    metric("keel_upstream_thinned_readings", CounterOf("upstream", "name", "thinned"), "upstream",
        "Readings that down-sampling left out."),
    metric("keel_upstream_failures", CounterOf("upstream", "name", "losses"), "upstream",
        "Connections to it that were lost."),

    metric("keel_alarm_active", GaugeOf("alarm", "name", "active"), "alarms", "Alarms that are raised."),
    metric("keel_alarm_raised", CounterOf("alarm", "name", "raised"), "alarms", "Times that one was raised."),
    metric("keel_alarm_cleared", CounterOf("alarm", "name", "cleared"), "alarms", "Times that one was over."),
    metric("keel_alarms_undelivered", Gauge, "last_ten_minutes.alarms_undelivered",
        "Changes of alarms within ten minutes that did not reach a recipient."),
    metric("keel_actuator_delivered", CounterOf("actuator", "name", "delivered"), "actuators",
        "Values that the broker has acknowledged."),
    metric("keel_actuators_undelivered", Gauge, "last_ten_minutes.actuators_undelivered",
        "Values within ten minutes that did not reach their actuators."),
    metric("keel_broker_connected", GaugeOf("broker", "name", "connected"), "brokers",
        "Whether a broker of alarms and actuators is connected."),
    metric("keel_broker_waiting", GaugeOf("broker", "name", "waiting"), "brokers", "Messages that wait for it."),

    metric("keel_region_served", Flag, "region.served",
        "Whether other processes can read the latest values in the region."),
    metric("keel_region_capacity_bytes", Gauge, "region.capacity_bytes", "Bytes that the region can hold."),
    metric("keel_region_free_bytes", Gauge, "region.free_bytes", "How many of them are free."),
    metric("keel_region_loss_window_seconds", Gauge, "region.loss_window_seconds",
        "What a power cut would take of the region."),
    metric("keel_region_checkpoints", Counter, "region.checkpoints", "Checkpoints of the region."),
    metric("keel_region_checkpoints_failed", Counter, "region.checkpoints_failed",
        "Checkpoints of the region that failed."),

    metric("keel_http_connections", Gauge, "http.connections", "Connections of this side."),
    metric("keel_http_requests", Counter, "http.requests", "Requests."),
    metric("keel_http_requests_failed", Counter, "http.requests_failed", "Requests that were answered by an error."),
    metric("keel_http_refused", CounterEach("reason"), "http.refused",
        "Requests and connections that were refused, by reason."),
    metric("keel_http_streams", Gauge, "http.streams", "Readers of the live stream."),
    metric("keel_http_updates_dropped", Counter, "http.updates_dropped", "Updates that slow readers did not get."),
    metric("keel_http_writes", Counter, "http.writes", "Bodies of lines that were taken."),
    metric("keel_http_writes_active", Gauge, "http.writes_active", "Bodies of lines that are received or taken."),
    metric("keel_http_write_bytes", Counter, "http.write_bytes", "Bytes of the lines in these bodies, unpacked."),
    metric("keel_http_write_readings", Counter, "http.write_readings", "Readings of these bodies that were stored."),
    metric("keel_http_write_refused", Counter, "http.write_refused",
        "Lines of these bodies, and single readings, that were refused."),
    metric("keel_http_write_shed", Counter, "http.write_shed",
        "Readings of these bodies that were thrown away to lessen load."),
    metric("keel_http_writes_turned_away", Counter, "http.writes_turned_away",
        "Requests of permitted writers that were turned away; where writing is on, also refused connections."),
];

/// Returns the names under which a metric appears in queries.
#[must_use]
pub fn metric_names(metric: &Metric) -> Vec<String> {
    match metric.kind {
        Counter | CounterEach(_) | CounterOf(..) => vec![format!("{}_total", metric.name)],
        Info(_) => vec![format!("{}_info", metric.name)],
        Summary => vec![metric.name.to_owned(), format!("{}_count", metric.name)],
        Gauge | Flag | GaugeOf(..) | Reasons | States | StatesOf(..) => {
            vec![metric.name.to_owned()]
        }
    }
}
