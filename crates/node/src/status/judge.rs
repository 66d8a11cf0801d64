//! Judges whether a node is well. A node that drops, lags or guesses must not look healthy, so every rule here can only
//! make the state worse.

use super::text::{because, readings_wait};
use super::{Judgement, NO_ROOM, NodeFigures, Reason, RefusalReason, State, UpstreamFigures};
use command::progress::bytes_text;

/// The longest wait of a reading for flash, in commit intervals, before the node counts as lagging.
const LAG_INTERVALS: f64 = 4.0;
/// The shortest wait that counts as lagging, in ms: shorter stalls are normal for cards.
const LAG_MS_MIN: f64 = 1_000.0;
/// How long readings may wait for a new upstream before it counts as unreachable, in ms.
const UPSTREAM_NEW_MS: u64 = 10_000;

/// How long readings may wait for an upstream that accepts readings before it counts as behind, in ms. The time for
/// which readings wait to be sent together comes on top.
const UPSTREAM_BEHIND_MS: u64 = 120_000;

/// Every code and what it means; `docs/operate.md` must explain each.
pub const CODES: &[(&str, &str)] = &[
    (
        "job_failing",
        "the last run of a job of the configuration failed; readings are not touched by it",
    ),
    (
        "job_boards_missing",
        "the last run of a job was without boards that it may use: they cannot be reached, or were lost",
    ),
    (
        "task_leftover",
        "programs of an earlier run are, or may be, still there",
    ),
    (
        "task_failing",
        "a program of the configuration has ended or does not run as it should",
    ),
    (
        "mount_failing",
        "a tree that programs come from is not mounted",
    ),
    (
        "mount_disconnected",
        "a mounted tree has no connection to its server: programs get only what the cache holds",
    ),
    (
        "log_failed",
        "the store or its device failed: nothing becomes durable until the node starts again",
    ),
    (
        "shedding",
        "updates are left out on purpose to keep deadlines",
    ),
    (
        "deadlines_missed",
        "instances of real-time tasks were late in the latest sampling period, or within a minute where none shows it",
    ),
    (
        "qos_at_limit",
        "speed and updates are both at their limits, and nothing is left to hold deadlines with",
    ),
    (
        "qos_blind",
        "tasks that are declared report nothing: full speed, all updates",
    ),
    (
        "task_silent",
        "a task that is declared reports nothing, so its deadlines are not watched",
    ),
    (
        "task_slow",
        "a task comes too seldom for the control loop, which does not go by it",
    ),
    (
        "qos_model_wrong",
        "the model no longer predicts what is measured: identify and design again",
    ),
    (
        "qos_speed_failing",
        "the speed cannot be set, or the machine does not do what it is told",
    ),
    (
        "qos_speed_left",
        "settings of the processors that a node had changed could not be put back",
    ),
    (
        "qos_gains_unusable",
        "the configured gains cannot be used, so nothing is driven",
    ),
    (
        "dropping",
        "readings were refused or deleted within the last minute because the store is full",
    ),
    ("store_full", "the store has no room"),
    ("lagging", "the store is slower than the senders: they wait"),
    ("log_damaged", "a part of the log cannot be read"),
    (
        "checkpoint_failing",
        "a checkpoint could not be written: the next start takes longer, and the store may fill up",
    ),
    (
        "table_large",
        "the latest values are so large that a checkpoint may find no room in the store",
    ),
    (
        "history_failing",
        "index and retention do not go on: history is not deleted, and the store fills up",
    ),
    ("clock_untrusted", "the wall clock has not been set"),
    ("mqtt_disconnected", "no connection to the broker"),
    ("mqtt_refused", "the broker refused a subscription"),
    ("mqtt_unanswered", "a subscription has no answer"),
    (
        "modbus_failing",
        "a Modbus device did not answer all requests of its last polls",
    ),
    (
        "sparkplug_dead",
        "an edge node of Sparkplug, or a device, is gone: its death says so, or it was not born again",
    ),
    (
        "sparkplug_birth_missing",
        "messages of an edge node of Sparkplug are missing, a birth perhaps: its metrics cannot all be named",
    ),
    (
        "keys_max",
        "new keys are refused because there are keys_max already, or their names take all bytes that they may",
    ),
    (
        "key_shared",
        "readings are refused because another series has their key",
    ),
    (
        "intake_refused",
        "all that lines, messages and devices brought within the last ten minutes was refused",
    ),
    (
        "connections_max",
        "senders of lines (HTTP, too) or clients of the socket were turned away within the last minute, or made room",
    ),
    (
        "listener_failed",
        "connections could not be taken over within the last minute",
    ),
    (
        "source_ended",
        "line protocol, MQTT or Modbus has ended: no reading comes that way until the node starts again",
    ),
    (
        "region_unusable",
        "the region cannot be used: other processes ask the node for values",
    ),
    (
        "region_checkpoint_failing",
        "the region's last checkpoint failed: a power cut would take what was written since the one before",
    ),
    (
        "upstream_disconnected",
        "an upstream cannot be reached, or takes nothing: readings wait in the history",
    ),
    (
        "upstream_behind",
        "an upstream is reached, and its oldest reading waits for minutes: it is slower than readings come, catches \
         up, or stands still",
    ),
    (
        "upstream_lost",
        "readings were deleted, or hidden by damage, within the last ten minutes before they went upstream",
    ),
    (
        "upstream_refused",
        "readings could not be sent, or were not taken, within the last ten minutes",
    ),
    (
        "upstream_cursor",
        "how far an upstream is cannot be written, or was not known at the start",
    ),
    (
        "http_unusable",
        "nothing is served over HTTP, because its tokens or its certificate cannot be read",
    ),
    ("http_certificate", "a certificate of HTTP cannot be used"),
    (
        "upstream_unusable",
        "an upstream cannot be used as it is configured or stored: nothing goes there",
    ),
    (
        "broker_disconnected",
        "a broker that alarms or actuators go to cannot be reached, or takes nothing",
    ),
    (
        "alarm_undelivered",
        "within the last ten minutes a message or command of an alarm failed",
    ),
    (
        "actuator_undelivered",
        "values for actuators did not reach them within the last ten minutes",
    ),
    (
        "alarm_unwatched",
        "keys that fit an alarm or an actuator are beyond its keys_max, or make no topic",
    ),
    (
        "config_refused",
        "a reload was refused, or a declared key could not be made",
    ),
    (
        "config_pending_restart",
        "a changed setting waits for the next start",
    ),
];

/// Judges a node by its figures.
pub(crate) fn judge(figures: &NodeFigures) -> Judgement {
    let mut reasons = Vec::new();
    let mut add = |code: &str, text: String| {
        reasons.push(Reason {
            code: code.to_owned(),
            text,
        });
    };
    let log = &figures.log;
    if let Some(failure) = &log.failed {
        let what = match failure.as_str() {
            "device" => "the device failed".to_owned(),
            "full" => "there was no room".to_owned(),
            other => format!("it is {other}"),
        };
        add(
            "log_failed",
            format!(
                "the log takes no readings any more, {what}: check the card, then start the node again"
            ),
        );
    }
    qos(figures, &mut add);
    let minute = &figures.last_minute;
    if minute.readings_dropped > 0 {
        let count = minute.readings_dropped;
        add(
            "dropping",
            format!(
                "{count} of the oldest readings were deleted within the last minute to make room for new ones"
            ),
        );
    }
    if minute.refused_full > 0 {
        let count = minute.refused_full;
        add(
            "dropping",
            format!(
                "the full store refused new readings {count} times within the last minute; senders that do not keep \
                 them lose them"
            ),
        );
    }
    if figures.store.full {
        add(
            "store_full",
            format!("the store has no room: {}", room_remedy(figures)),
        );
    }
    lagging(figures, &mut add);
    let damaged = log.records_damaged + log.pieces_unreadable + log.files_unreadable;
    if damaged > 0 || log.readings_missing > 0 {
        let missing = log.readings_missing;
        add(
            "log_damaged",
            format!(
                "{damaged} places of the log cannot be read, {missing} readings are missing: stop the node and run \
                 `keel flash check` on the image"
            ),
        );
    }
    if log.checkpoint_failing {
        add("checkpoint_failing", checkpoint_failing(figures));
    }
    if let Some(text) = table_large(log.table_checkpoint_bytes, figures.store.capacity_bytes) {
        add("table_large", text);
    }
    if let Some(error) = &figures.history_failing {
        let text = format!(
            "history cannot be indexed and old readings cannot be deleted ({error}): unless that ends, the store \
             fills up; check the card"
        );
        add("history_failing", text);
    }
    if !figures.clock.trusted {
        add(
            "clock_untrusted",
            "the wall clock has not been set since this machine started: times that the node gives are corrected \
             once it is"
                .to_owned(),
        );
    }
    mqtt(figures, &mut add);
    figures.modbus.judge(&mut add);
    super::sparkplug::judge(&figures.sparkplug, &mut add);
    keys(figures, &mut add);
    listeners(figures, &mut add);
    region(figures, &mut add);
    super::jobs::judge(&figures.jobs, &mut add);
    if let Some(text) = &figures.task_leftover {
        add("task_leftover", text.clone());
    }
    super::programs::judge(&figures.tasks, &figures.mounts, &mut add);
    if let Some(why) = &figures.http_unusable {
        add(
            "http_unusable",
            format!("nothing is served over HTTP until the next start: {why}"),
        );
    }
    if let Some(why) = figures.certificate_error() {
        add("http_certificate", why);
    }
    upstream(figures, &mut add);
    let recent = &figures.last_ten_minutes;
    // A store without room refuses readings that would otherwise be taken, so this says nothing about the input.
    let is_for_input = !figures.store.full
        && figures.log.failed.is_none()
        && recent.refused_full == 0
        && recent.refused_busy == 0;
    if recent.refused_input >= REFUSED_INPUT_MIN && recent.taken_input == 0 && is_for_input {
        add("intake_refused", intake_refused(figures));
    }
    figures.urgent.judge(
        recent.alarms_undelivered,
        recent.actuators_undelivered,
        &mut add,
    );
    if let Some(error) = &figures.node.config_error {
        let text =
            format!("the configuration file is not fully in force, earlier settings are: {error}");
        add("config_refused", text);
    }
    if !figures.node.config_pending_restart.is_empty() {
        let keys = figures.node.config_pending_restart.join(", ");
        add(
            "config_pending_restart",
            format!("changed settings wait for the next start: {keys}"),
        );
    }
    let state = if log.failed.is_some() {
        State::Failed
    } else if reasons.is_empty() {
        State::Ok
    } else {
        State::Degraded
    };
    Judgement { state, reasons }
}

fn checkpoint_failing(figures: &NodeFigures) -> String {
    let log = &figures.log;
    let replay = bytes_text(log.replay_bytes);
    if log.checkpoint_error.as_deref() == Some(NO_ROOM) {
        let bytes = bytes_text(log.table_checkpoint_bytes);
        return format!(
            "the last checkpoint, of up to {bytes}, found no room in the store: readings become durable all the same \
             until the log has filled it, and a start reads {replay} of log; take a larger store (`keel flash grow`), \
             or keep less history (store.history_mebibytes_max)"
        );
    }
    format!(
        "the last checkpoint was given up, because the table of values is not what the node made it: readings become \
         durable all the same, and a start reads {replay} of log; start the node again"
    )
}

/// Returns the warning about a latest-value checkpoint that is large for the store; `None` if there is no problem.
pub(crate) fn table_large(checkpoint_bytes: u64, store_bytes: u64) -> Option<String> {
    let (part, finds) = match db::TableFit::of(checkpoint_bytes, store_bytes) {
        db::TableFit::Sure => return None,
        db::TableFit::Perhaps => ("a quarter", "may find"),
        db::TableFit::Never => ("half", "finds"),
    };
    Some(format!(
        "a checkpoint of the latest values takes up to {}, more than {part} of the store's {}: the next one {finds} no \
         room, and then the store fills up; take a larger store (`keel flash grow`), or fewer keys",
        bytes_text(checkpoint_bytes),
        bytes_text(store_bytes)
    ))
}

fn lagging(figures: &NodeFigures, add: &mut impl FnMut(&str, String)) {
    let log = &figures.log;
    let lag_ms_max = (f64::from(log.commit_interval_ms) * LAG_INTERVALS).max(LAG_MS_MIN);
    if log.durable_lag_ms > lag_ms_max {
        let (lag, limit) = (log.durable_lag_ms, log.commit_interval_ms);
        add(
            "lagging",
            format!(
                "the oldest reading has waited {lag:.0} ms for flash, at a commit interval of {limit} ms"
            ),
        );
    }
    if log.queue_bytes * 2 > log.queue_bytes_max {
        let (bytes, bytes_max) = (log.queue_bytes, log.queue_bytes_max);
        add(
            "lagging",
            format!("the queue of the log holds {bytes} of {bytes_max} bytes"),
        );
    }
    let busy = figures.last_minute.refused_busy;
    if busy > 0 {
        let devices = figures.modbus.modbus.iter();
        let lost = match devices.map(|device| device.readings_left_out).sum::<u64>() {
            0 => String::new(),
            // Devices do not send again.
            count => format!(
                ", and {count} readings of Modbus devices are lost since the start (readings_left_out)"
            ),
        };
        add(
            "lagging",
            format!(
                "the queue of the log was full {busy} times within the last minute: senders had to wait{lost}"
            ),
        );
    }
}

fn qos(figures: &NodeFigures, add: &mut impl FnMut(&str, String)) {
    let qos = &figures.qos;
    if figures.shedding {
        let percent = qos.admitted * 100.0;
        let thrown = match qos.readings_shed_dropped {
            0 => "the history has them all".to_owned(),
            count => format!("{count} of them are not in the history either (shed = \"drop\")"),
        };
        add(
            "shedding",
            format!(
                "{percent:.0} % of updates are admitted, to keep deadlines; {} readings were left out so far, {thrown}",
                qos.readings_shed
            ),
        );
    }
    if let Some(last) = qos
        .last
        .filter(|_| qos.is_missing() && !qos.tasks.is_empty())
    {
        add(
            "deadlines_missed",
            format!(
                "{:.1} % of {} instances were late, mean tardiness {:.2}; see `keel qos status`",
                last.miss_ratio * 100.0,
                last.instances,
                last.tardiness_mean
            ),
        );
    }
    let apart = figures.last_minute.deadline_misses_apart;
    if apart > 0 {
        add(
            "deadlines_missed",
            format!(
                "{apart} instances were late within the last minute, of tasks too slow for the control loop, or firm \
                 ones whose puts came too late; see `keel qos status`"
            ),
        );
    }
    if qos.is_exhausted() {
        let text = "nothing is left to hold deadlines with, speed and updates are both at their limits: take load off \
                    this machine, or allow more (qos.admitted_percent_min, qos.tardiness_target)";
        add("qos_at_limit", text.to_owned());
    }
    if qos.blind && !qos.tasks.is_empty() && qos.periods > 0 {
        let text = "tasks that are declared have reported nothing for some periods: full speed, all updates";
        add("qos_blind", text.to_owned());
    }
    let names = |is_named: fn(&crate::status::TaskState) -> bool| -> Vec<&str> {
        let named = qos.tasks.iter().filter(|task| is_named(task));
        named.map(|task| task.name.as_str()).collect()
    };
    let slow = names(|task| task.slow);
    if !slow.is_empty() && qos.mode != "open" {
        let names = slow.join(", ");
        add(
            "task_slow",
            format!(
                "instances come too seldom for the control loop, which does not go by them: {names}; \
                 raise qos.sampling_period_ms, or lower qos.instances_min"
            ),
        );
    }
    let silent = names(|task| task.silent && !task.slow);
    if !silent.is_empty() && !qos.blind {
        let names = silent.join(", ");
        add(
            "task_silent",
            format!("declared tasks report nothing: {names}; their deadlines are not watched"),
        );
    }
    if !qos.model_true && qos.periods > 0 {
        let text = "the model no longer predicts what is measured: `keel qos identify`, then `keel qos design`";
        add("qos_model_wrong", text.to_owned());
    }
    if qos.periods > 0 && !qos.obeyed {
        let why = qos
            .actuator_error
            .as_deref()
            .unwrap_or("it was set, and is another");
        add(
            "qos_speed_failing",
            format!("the speed is not what it should be: {why}"),
        );
    }
    if !qos.settings_left.is_empty() {
        add("qos_speed_left", qos.settings_left.join("; "));
    }
    if let Some(error) = &qos.gains_error {
        add("qos_gains_unusable", error.clone());
    }
}

fn mqtt(figures: &NodeFigures, add: &mut impl FnMut(&str, String)) {
    let Some(mqtt) = &figures.mqtt else { return };
    if !mqtt.connected {
        let why = because(mqtt.last_error.as_deref(), &mqtt.address);
        add(
            "mqtt_disconnected",
            format!(
                "no connection to the broker {}{why}: what it keeps arrives later",
                mqtt.address
            ),
        );
    }
    if mqtt.subscriptions_refused > 0 {
        let (count, wanted) = (mqtt.subscriptions_refused, mqtt.subscriptions_wanted);
        add(
            "mqtt_refused",
            format!("the broker refused {count} of {wanted} subscriptions: check its access rules"),
        );
    }
    let (count, wanted) = (mqtt.subscriptions_unanswered, mqtt.subscriptions_wanted);
    if count > 0 {
        let text =
            format!("the broker has not answered {count} of {wanted} subscriptions: check its log");
        add("mqtt_unanswered", text);
    }
}

fn keys(figures: &NodeFigures, add: &mut impl FnMut(&str, String)) {
    // Use the last minute: the total keeps old refusals, but they are over once no sender offers such readings.
    let refused = figures.last_minute.refused_keys_max;
    let keys = &figures.keys;
    // Older nodes do not say what names take.
    let are_names_long = keys.name_bytes_max > 0
        && keys.name_bytes.saturating_add(db::KEY_BYTES_MAX as u64) > keys.name_bytes_max;
    if refused > 0 && keys.count >= keys.count_max {
        let count_max = keys.count_max;
        add(
            "keys_max",
            format!(
                "there are {count_max} keys, and {refused} readings of others were refused within the last minute: \
                 raise keys.keys_max, or declare what is wanted with keys.auto_create = false"
            ),
        );
    } else if refused > 0 && are_names_long {
        add(
            "keys_max",
            format!(
                "the names of the keys take {} of {}, and {refused} readings of others were refused within the last \
                 minute: raise keys.key_bytes_mean, or declare what is wanted with keys.auto_create = false",
                bytes_text(keys.name_bytes),
                bytes_text(keys.name_bytes_max)
            ),
        );
    }
    let shared = figures.last_minute.refused_key_shared;
    if shared > 0 {
        let name = ingest::intake::Reason::KeyShared.name();
        let last = figures.intake.refused_last.get(name);
        let last = last.map_or_else(String::new, |text| format!(" ({text})"));
        add(
            "key_shared",
            format!(
                "{shared} readings were refused within the last minute because another series has their key{last}: \
                 if the sensor replaces another one, `keel keys release KEY` gives it the key; else write {{pairs}} \
                 in its template, as in {{measurement}}/{{pairs}}/{{field}}, with which no two series of lines have \
                 one key; it begins new series"
            ),
        );
    }
}

fn region(figures: &NodeFigures, add: &mut impl FnMut(&str, String)) {
    let Some(region) = &figures.region else {
        return;
    };
    if let Some(error) = &region.error {
        let text = format!("the node keeps its values in memory of its own: {error}");
        add("region_unusable", text);
    }
    if region.checkpoint_failing {
        let why = region.checkpoint_error.as_deref().unwrap_or("unknown");
        add("region_checkpoint_failing", why.to_owned());
    }
}

/// Bad input is the senders' fault and no reason, except for this many refused pieces while no reading is taken.
const REFUSED_INPUT_MIN: u64 = 3;

fn intake_refused(figures: &NodeFigures) -> String {
    let why: Vec<String> = figures
        .intake
        .refused
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(reason, count)| format!("{reason} {count}"))
        .collect();
    let unit = match figures.intake.refused_for(RefusalReason::TimeAbsurd) {
        0 => "",
        _ => ", and line.precision is the unit of their times",
    };
    format!(
        "what lines, messages and devices brought within the last ten minutes, {} pieces, was all refused; since the \
         start: {}. Look whether [line], [[mqtt.subscribe]], [[modbus]] and [[key]] fit what comes{unit}",
        figures.last_ten_minutes.refused_input,
        why.join(", ")
    )
}

/// Returns the remedy for a full store.
fn room_remedy(figures: &NodeFigures) -> String {
    let waiting = figures
        .upstream
        .iter()
        .filter(|one| one.hold)
        .max_by_key(|one| one.backlog_readings);
    match waiting {
        Some(one)
            if one.backlog_readings > 0 && figures.history.bytes > figures.history.bytes_max =>
        {
            format!(
                "{} for upstream {}, which holds them; mend that, lower store.backlog_mebibytes_max, set hold = false \
                 there, or take a larger store",
                readings_wait(one.backlog_readings),
                one.name
            )
        }
        _ => "keep less history (store.history_mebibytes_max) or take a larger one".to_owned(),
    }
}

impl UpstreamFigures {
    /// Returns whether it has not been contacted yet, which is no problem unless readings wait for it.
    #[must_use]
    pub fn is_new(&self) -> bool {
        let is_young = self
            .backlog_age_ms
            .is_none_or(|age_ms| age_ms < UPSTREAM_NEW_MS);
        self.last_error.is_none() && self.connects == 0 && is_young
    }
}

fn upstream(figures: &NodeFigures, add: &mut impl FnMut(&str, String)) {
    for one in &figures.upstream {
        let name = &one.name;
        if let Some(why) = &one.unusable {
            add(
                "upstream_unusable",
                format!("nothing goes to {name}: {why}"),
            );
            continue;
        }
        if !(one.connected || one.is_new()) {
            let why = because(one.last_error.as_deref(), &one.address);
            let waiting = readings_wait(one.backlog_readings);
            add(
                "upstream_disconnected",
                format!(
                    "{name} at {} takes nothing{why}: {waiting} in the history",
                    one.address
                ),
            );
        }
        let waited_ms = one.backlog_age_ms.unwrap_or(0).max(one.unmoved_ms);
        let limit_ms = UPSTREAM_BEHIND_MS.saturating_add(one.linger_ms.saturating_mul(2));
        if one.connected && one.backlog_readings > 0 && waited_ms > limit_ms {
            let (waiting, seconds) = (readings_wait(one.backlog_readings), waited_ms / 1000);
            let why = match one.unmoved_ms > limit_ms {
                true => format!("has taken none of them for {} s", one.unmoved_ms / 1000),
                false => "takes them".to_owned(),
            };
            add(
                "upstream_behind",
                format!(
                    "{name} at {} is behind: {waiting}, the oldest for {seconds} s; it {why}",
                    one.address
                ),
            );
        }
        if let Some(error) = &one.cursor_error {
            let text = format!(
                "{error}; nothing goes to {name} beyond its window until it can be written"
            );
            add("upstream_cursor", text);
        }
        if one.cursor_was_lost {
            let text = format!(
                "the cursor of {name} could not be used: it was given everything that the history has, once more"
            );
            add("upstream_cursor", text);
        }
    }
    let lost = figures.last_ten_minutes.forward_lost;
    if lost > 0 {
        let text = format!(
            "{lost} readings were gone within the last ten minutes before they went upstream: take a larger store, or \
             raise store.backlog_mebibytes_max"
        );
        add("upstream_lost", text);
    }
    let refused = figures.last_ten_minutes.forward_refused;
    if refused > 0 {
        let text = format!(
            "{refused} readings could not be sent, or were not taken, within the last ten minutes; since the cursor \
             was made: {}",
            refusals(figures)
        );
        add("upstream_refused", text);
    }
}

/// Returns the refusals by upstream and reason, and the last message.
fn refusals(figures: &NodeFigures) -> String {
    let of_one = |one: &UpstreamFigures| {
        let counts = one.refused.iter().filter(|(_, count)| **count > 0);
        let mut said: Vec<String> = counts
            .map(|(why, count)| format!("{count} for {why}"))
            .collect();
        said.extend(one.last_error.clone());
        format!("{}: {}", one.name, said.join(", "))
    };
    let refusing = figures.upstream.iter().filter(|one| one.refused_total > 0);
    let all: Vec<String> = refusing.map(of_one).collect();
    all.join("; ")
}

fn listeners(figures: &NodeFigures, add: &mut impl FnMut(&str, String)) {
    let minute = &figures.last_minute;
    let (refused, moved) = (minute.connections_refused, minute.connections_made_room);
    let mut full = Vec::new();
    if refused > 0 || moved > 0 {
        full.push(format!(
            "{refused} senders of line protocol were turned away and {moved} idle ones had to make room, because there \
             were {} connections: raise line.connections_max, or let senders close what they do not need",
            figures.line.connections_max
        ));
    }
    if minute.clients_refused > 0 {
        full.push(format!(
            "{} clients of the node's socket were turned away: raise node.connections_max, or end unused \
             clients",
            minute.clients_refused
        ));
    }
    if minute.writes_turned_away > 0 {
        full.push(format!(
            "{} requests to write over HTTP, or connections that may have carried some, were turned away: raise \
             http.writes_max, http.requests_per_second_max or http.connections_max, or let senders send fewer and \
             larger bodies",
            minute.writes_turned_away
        ));
    }
    if !full.is_empty() {
        let text = format!("within the last minute {}", full.join("; "));
        add("connections_max", text);
    }
    let failed = figures.last_minute.listeners_failed;
    if failed > 0 {
        let why = match &figures.listener_error {
            Some(error) => format!(" ({error})"),
            None => String::new(),
        };
        add(
            "listener_failed",
            format!(
                "{failed} times within the last minute a connection could not be taken over{why}: look for unused \
                 connections, or raise the limit of open files"
            ),
        );
    }
    let ended = &figures.sources_ended;
    if !ended.is_empty() {
        add(
            "source_ended",
            format!(
                "{} sources of readings have ended ({}): do what the error says, then start the node again",
                ended.len(),
                ended.join("; ")
            ),
        );
    }
}
