//! A report for people: the first line shows the state and its reasons; one or two lines follow for each subject.

use super::{NodeFigures, Report, State};
use command::progress::bytes_text;
use std::fmt::Display;

/// Width of the first column.
const SUBJECT_WIDTH: usize = 9;

/// Below this number of readings, the writes of the node's start hide the cost of a reading.
const READINGS_MIN: u64 = 1_000;

/// Placeholder of an unknown figure.
const UNKNOWN: &str = "unknown";

impl Report {
    /// Returns the text form; each line ends with a line feed.
    #[must_use]
    pub fn text(&self) -> String {
        let mut page = Page::default();
        page.state(self);
        let figures = &self.figures;
        page.node(figures);
        page.store(figures);
        page.region(figures);
        page.history(figures);
        page.qos(figures);
        for mount in &figures.mounts {
            page.line("mount", mount.line());
        }
        for task in &figures.tasks {
            page.line("task", task.line());
        }
        page.jobs(figures);
        page.power(figures);
        page.intake(figures);
        page.sources(figures);
        page.upstreams(figures);
        for (subject, text) in figures.urgent.lines() {
            page.line(subject, text);
        }
        page.wear(self);
        page.text
    }
}

#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn raw(&mut self, line: impl Display) {
        self.text.push_str(&line.to_string());
        self.text.push('\n');
    }

    fn line(&mut self, subject: &str, text: impl Display) {
        self.raw(format_args!("{subject:<SUBJECT_WIDTH$} {text}"));
    }

    fn state(&mut self, report: &Report) {
        if report.state == State::Ok {
            return self.raw("ok");
        }
        let mut codes: Vec<&str> = Vec::new();
        for reason in &report.reasons {
            if !codes.contains(&reason.code.as_str()) {
                codes.push(&reason.code);
            }
        }
        self.raw(format_args!(
            "{}: {}",
            report.state.name(),
            codes.join(", ")
        ));
        let width = codes.iter().map(|code| code.len()).max().unwrap_or(0);
        for reason in &report.reasons {
            self.raw(format_args!("  {:<width$}  {}", reason.code, reason.text));
        }
    }

    fn node(&mut self, figures: &NodeFigures) {
        let node = &figures.node;
        self.line(
            "node",
            format_args!(
                "keel {}, process {}, up {}, {} of memory",
                node.version,
                node.pid,
                span(node.uptime_ms),
                bytes_text(node.memory_resident_bytes)
            ),
        );
        let clock = &figures.clock;
        let trusted = if clock.trusted {
            "trusted"
        } else {
            "not trusted"
        };
        let steps = plural(clock.steps, "step", "steps");
        self.line("clock", format_args!("{trusted}, {steps}"));
    }

    fn store(&mut self, figures: &NodeFigures) {
        let store = &figures.store;
        self.line(
            "store",
            format_args!(
                "{}, {} free of {}{}",
                store.image,
                bytes_text(store.free_bytes),
                bytes_text(store.capacity_bytes),
                if store.full { ", FULL" } else { "" }
            ),
        );
        let log = &figures.log;
        let waiting = match log.readings_outstanding {
            0 => "none waiting".to_owned(),
            count => format!(
                "{} waiting, {:.0} ms at most",
                grouped(count),
                log.durable_lag_ms
            ),
        };
        self.line(
            "log",
            format_args!(
                "{} on flash, {waiting}; a flush every {} ms at most",
                plural(log.readings_durable, "reading", "readings"),
                log.commit_interval_ms
            ),
        );
        // A node of an earlier version does not report it.
        if log.table_checkpoint_bytes > 0 {
            let failed = if log.checkpoint_failing {
                "; the last try of another FAILED"
            } else {
                ""
            };
            self.line(
                "",
                format_args!(
                    "a start would read {} of it, and a checkpoint of at most {}{failed}",
                    bytes_text(log.replay_bytes),
                    bytes_text(log.table_checkpoint_bytes)
                ),
            );
        }
        if log.put_durable_us.count > 0 {
            let (put, append) = (&log.put_durable_us, &log.append_us);
            self.line(
                "latency",
                format_args!(
                    "to flash: half within {}, 99 % within {}, at most {}; the device: {}, {}, {}",
                    us(put.p50),
                    us(put.p99),
                    us(put.max),
                    us(append.p50),
                    us(append.p99),
                    us(append.max)
                ),
            );
        }
    }

    fn region(&mut self, figures: &NodeFigures) {
        let Some(region) = &figures.region else {
            return;
        };
        let values = match (&region.error, region.served) {
            (None, true) => format!("values in {}", region.table),
            _ => "NOT USED".to_owned(),
        };
        self.line(
            "region",
            format_args!(
                "{}, {} free of {}; {values}",
                region.file,
                bytes_text(region.free_bytes),
                bytes_text(region.capacity_bytes)
            ),
        );
        let loss = match (&region.checkpoint_image, region.loss_window_seconds) {
            (None, _) => "no checkpoints: a power cut would take all of it".to_owned(),
            (Some(image), None) => {
                format!("no checkpoint in {image} yet: a power cut would take all of it")
            }
            (Some(image), Some(seconds)) => format!(
                "checkpoint {} in {image}: a power cut would take what was written in the last {}{}",
                region.checkpoint_generation,
                span((seconds * 1000.0) as u64),
                if region.checkpoint_failing {
                    ", and the last try FAILED"
                } else {
                    ""
                }
            ),
        };
        self.line("", loss);
    }

    fn qos(&mut self, figures: &NodeFigures) {
        let qos = &figures.qos;
        if qos.tasks.is_empty() && qos.mode == "open" {
            return;
        }
        let tasks = plural(qos.tasks.len() as u64, "task", "tasks");
        let last = match &qos.last {
            None => "no instance yet".to_owned(),
            Some(last) => format!(
                "tardiness {:.2}, {:.1} % late",
                last.tardiness_mean,
                last.miss_ratio * 100.0
            ),
        };
        self.line(
            "deadlines",
            format_args!(
                "{}, {tasks}: {last}; speed {:.0} %, updates {:.0} %, {} of {} fresh",
                qos.mode,
                qos.speed * 100.0,
                qos.admitted * 100.0,
                grouped(u64::from(qos.keys_fresh)),
                plural(u64::from(qos.keys_temporal), "key", "keys")
            ),
        );
    }

    fn jobs(&mut self, figures: &NodeFigures) {
        for job in &figures.jobs {
            let place = job
                .place
                .as_deref()
                .map_or(String::new(), |place| format!(" on {place}"));
            let last = match (job.running, job.last_seconds) {
                (true, _) => "; runs now".to_owned(),
                (false, Some(seconds)) => format!("; the last took {}", us(seconds * 1e6)),
                (false, None) => String::new(),
            };
            self.line(
                "job",
                format_args!(
                    "{}: {} of {} every {}{place}; {}, {} failed, {} skipped, {} late{last}",
                    job.name,
                    job.kernel,
                    job.key,
                    span(u64::from(job.period_seconds) * 1_000),
                    plural(job.runs, "run", "runs"),
                    grouped(job.failed),
                    grouped(job.skipped),
                    grouped(job.late)
                ),
            );
        }
    }

    fn power(&mut self, figures: &NodeFigures) {
        for sensor in &figures.power {
            let value = match (sensor.watts, &sensor.why) {
                (Some(watts), None) => format!("{watts:.2} W"),
                (Some(watts), Some(why)) => format!("{watts:.2} W, {why}"),
                (None, why) => format!("no value: {}", why.as_deref().unwrap_or("not read yet")),
            };
            self.line(
                "power",
                format_args!("{}: {value}; {}", sensor.name, sensor.covers),
            );
        }
    }

    fn history(&mut self, figures: &NodeFigures) {
        let history = &figures.history;
        let mut limits = String::new();
        if history.bytes_max > 0 {
            limits = format!(" of at most {}", bytes_text(history.bytes_max));
        }
        if history.days_max > 0 {
            let days = plural(u64::from(history.days_max), "day", "days");
            limits.push_str(&format!(" or {days}"));
        }
        self.line(
            "history",
            format_args!(
                "{}{limits}, {}; {} expired, {} dropped; if full all the same: {}",
                bytes_text(history.bytes),
                plural(history.segments, "segment", "segments"),
                plural(history.readings_expired, "reading", "readings"),
                grouped(history.readings_dropped),
                history.full_policy
            ),
        );
        let keys = &figures.keys;
        let made = if keys.auto_create {
            "made by their first reading"
        } else {
            "declared ones only"
        };
        self.line(
            "keys",
            format_args!(
                "{} of at most {}, {made}",
                grouped(keys.count),
                grouped(keys.count_max)
            ),
        );
        if let Some(note) = &keys.tags_note {
            self.line("", note);
        }
    }

    fn intake(&mut self, figures: &NodeFigures) {
        let intake = &figures.intake;
        let shed = match intake.readings_shed {
            0 => String::new(),
            shed => format!(", {} thrown away", grouped(shed)),
        };
        let retained = match intake.retained_taken {
            0 => String::new(),
            taken => format!(" ({} retained)", grouped(taken)),
        };
        let skipped = match intake.retained_skipped {
            0 => String::new(),
            skipped => format!(", {} retained left out", grouped(skipped)),
        };
        self.line(
            "intake",
            format_args!(
                "{}{retained} from {} and {}; {} refused{shed}{skipped}",
                plural(intake.readings, "reading", "readings"),
                plural(intake.messages, "message", "messages"),
                plural(intake.lines, "line", "lines"),
                grouped(intake.refused_total)
            ),
        );
        if intake.key_merged > 0 {
            let last = match &intake.key_merged_last {
                Some(last) => format!(", last: {last}"),
                None => String::new(),
            };
            let merged = plural(intake.key_merged, "reading", "readings");
            self.line("", format_args!("key_merged {merged}{last}"));
        }
        for (reason, count) in intake.refused.iter().filter(|(_, count)| **count > 0) {
            let last = match intake.refused_last.get(reason) {
                Some(last) => format!(", last: {last}"),
                None => String::new(),
            };
            self.line("", format_args!("{reason} {}{last}", grouped(*count)));
        }
    }

    fn sources(&mut self, figures: &NodeFigures) {
        if let Some(mqtt) = &figures.mqtt {
            self.line(
                "mqtt",
                format_args!(
                    "{} {}, {} of {}; {}, {} not yet acknowledged; {} lost",
                    mqtt.address,
                    if mqtt.connected {
                        "connected"
                    } else {
                        "NOT CONNECTED"
                    },
                    grouped(mqtt.subscriptions_held),
                    plural(mqtt.subscriptions_wanted, "subscription", "subscriptions"),
                    plural(mqtt.messages, "message", "messages"),
                    grouped(mqtt.in_flight),
                    plural(mqtt.losses, "connection", "connections")
                ),
            );
        }
        for device in &figures.modbus.modbus {
            self.line("modbus", device.line());
        }
        for node in &figures.sparkplug {
            self.line("sparkplug", node.line());
        }
        let line = &figures.line;
        if !line.listen.is_empty() {
            let counts = [
                (line.connections_refused, "turned away"),
                (line.connections_made_room, "made room"),
                (line.connections_ended_early, "ended early"),
                (line.connections_text_open, "ended in a text"),
            ];
            let counts = counts.iter().filter(|(count, _)| *count > 0);
            let counts: String = counts
                .map(|(count, what)| format!(", {} {what}", grouped(*count)))
                .collect();
            self.line(
                "line",
                format_args!(
                    "{}; {} open{counts}; {}",
                    line.listen.join(", "),
                    plural(line.connections, "connection", "connections"),
                    plural(line.lines, "line", "lines")
                ),
            );
        }
        let commands = &figures.commands;
        self.line(
            "commands",
            format_args!(
                "{}; {} open, {}",
                commands.socket,
                grouped(commands.connections),
                plural(commands.requests, "request", "requests")
            ),
        );
    }

    fn upstreams(&mut self, figures: &NodeFigures) {
        for one in &figures.upstream {
            if one.unusable.is_some() {
                self.line("upstream", format_args!("{}: NOT USED", one.name));
                continue;
            }
            let state = match (one.connected, one.waits_for_clock) {
                (true, false) => "connected",
                (true, true) => "connected, WAITS FOR THE CLOCK",
                (false, _) => "NOT CONNECTED",
            };
            let age = match one.backlog_age_ms {
                Some(age_ms) if one.backlog_readings > 0 => {
                    format!(", the oldest {} old", span(age_ms))
                }
                _ => String::new(),
            };
            self.line(
                "upstream",
                format_args!(
                    "{}, {} {} {state}; {} waiting{age}",
                    one.name,
                    one.kind,
                    one.address,
                    plural(one.backlog_readings, "reading", "readings")
                ),
            );
            self.line(
                "",
                format_args!(
                    "{} acknowledged, {} on the way, {} sent twice; {} lost, {} late, {} thinned, {} refused",
                    grouped(one.acknowledged),
                    grouped(one.in_flight),
                    grouped(one.sent_twice),
                    grouped(one.forward_lost.saturating_add(one.missing)),
                    grouped(one.late_sent.saturating_add(one.late_skipped)),
                    grouped(one.thinned),
                    grouped(one.refused_total)
                ),
            );
        }
    }

    fn wear(&mut self, report: &Report) {
        let wear = &report.wear;
        let readings = report.figures.log.readings_durable;
        let each = match (wear.bytes_per_reading, wear.flushes_per_reading) {
            (Some(bytes), Some(flushes)) if readings >= READINGS_MIN => format!(
                "{} bytes and {} flushes a reading",
                digits(bytes),
                digits(flushes)
            ),
            _ => format!("per reading {UNKNOWN} before {READINGS_MIN} of them"),
        };
        let per_day = |rate: Option<f64>| match rate {
            Some(rate) => format!("{} GB a day", digits(rate)),
            None => UNKNOWN.to_owned(),
        };
        self.line(
            "wear",
            format_args!(
                "{each}; this run: {}, last 10 minutes: {}",
                per_day(wear.gigabytes_per_day),
                per_day(wear.gigabytes_per_day_recent)
            ),
        );
        let written = decimal(report.figures.lifetime.bytes_written);
        let card = match (wear.card_rated_terabytes, wear.card_years_left) {
            (None, _) => {
                format!("{written} written since the store was made; its rating is {UNKNOWN}")
            }
            (Some(rated), None) => {
                format!("{written} of {rated} TB written; years left: {UNKNOWN}")
            }
            (Some(rated), Some(years)) => {
                format!(
                    "{written} of {rated} TB written; {} years left at this rate",
                    digits(years)
                )
            }
        };
        self.line("card", card);
    }
}

/// Returns a count with its noun: `1,234 readings`.
pub(super) fn plural(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(count), if count == 1 { one } else { many })
}

/// Returns a reason in brackets, for a place behind its address, which it does not repeat; nothing if there is none.
pub(super) fn because(why: Option<&str>, address: &str) -> String {
    let Some(why) = why else {
        return String::new();
    };
    let rest = why
        .strip_prefix(address)
        .and_then(|rest| rest.strip_prefix(": "));
    format!(" ({})", rest.unwrap_or(why))
}

/// Returns that this many readings wait.
pub(super) fn readings_wait(count: u64) -> String {
    match count {
        1 => "1 reading waits".to_owned(),
        count => format!("{count} readings wait"),
    }
}

/// Returns a number with separated thousands.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns bytes in the units of card data sheets, which are powers of ten.
fn decimal(bytes: u64) -> String {
    match bytes as f64 {
        bytes if bytes < 1e6 => format!("{} kB", digits(bytes / 1e3)),
        bytes if bytes < 1e9 => format!("{} MB", digits(bytes / 1e6)),
        bytes if bytes < 1e12 => format!("{} GB", digits(bytes / 1e9)),
        bytes => format!("{} TB", digits(bytes / 1e12)),
    }
}

/// Returns a number with three significant digits.
fn digits(value: f64) -> String {
    let places = match value.abs() {
        size if size >= 99.5 || size == 0.0 => 0,
        size if size >= 9.95 => 1,
        size if size >= 0.995 => 2,
        size if size >= 0.0995 => 3,
        size if size >= 0.00995 => 4,
        _ => 5,
    };
    if places == 0 {
        return grouped(value.max(0.0).round() as u64);
    }
    format!("{value:.places$}")
}

/// Returns a time in µs for people.
fn us(us: f64) -> String {
    match us {
        us if us < 999.5 => format!("{} µs", digits(us)),
        us if us < 999_500.0 => format!("{} ms", digits(us / 1e3)),
        us => format!("{} s", digits(us / 1e6)),
    }
}

/// Returns a duration: `3 d 4 h`, `5 min 12 s`.
#[must_use]
pub fn span(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_behind_an_address_does_not_repeat_it() {
        let of = |why| because(why, "h:1883");
        assert_eq!(of(Some("h:1883: cannot connect")), " (cannot connect)");
        assert_eq!(of(Some("h:18830: no")), " (h:18830: no)");
        assert_eq!(of(None), "");
    }

    #[test]
    fn one_reading_that_waits_is_not_several() {
        assert_eq!(readings_wait(1), "1 reading waits");
        assert_eq!(readings_wait(0), "0 readings wait");
        assert_eq!(readings_wait(1_000), "1000 readings wait");
    }

    #[test]
    fn numbers_are_rounded_and_grouped() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(digits(1234.6), "1,235");
        assert_eq!(digits(0.0), "0");
        assert_eq!(digits(12.34), "12.3");
        assert_eq!(digits(1.234), "1.23");
        assert_eq!(digits(0.01234), "0.0123");
        assert_eq!(decimal(1_200_000_000_000), "1.20 TB");
        assert_eq!(decimal(4_096), "4.10 kB");
        assert_eq!(us(12.0), "12.0 µs");
        assert_eq!(us(249_800.0), "250 ms");
        assert_eq!(us(1_250_000.0), "1.25 s");
        assert_eq!(span(59_999), "59 s");
        assert_eq!(span(61_000), "1 min 1 s");
        assert_eq!(span(3_600_000 * 25), "1 d 1 h");
    }
}
