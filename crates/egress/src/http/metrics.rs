//! The metrics as OpenMetrics text. Values that the node does not know are left out, never shown as 0.

use std::fmt::Write;

use serde_json::Value;

use super::metric_table::{Kind, METRICS, Metric};

/// Content type of the text.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns the text for the object of `keel status --json`.
#[must_use]
pub fn text(status: &Value) -> String {
    let mut out = String::with_capacity(16 << 10);
    for metric in METRICS {
        let found = metric
            .path
            .split('.')
            .try_fold(status, |value, level| value.get(level));
        if let Some(found) = found.filter(|found| !found.is_null()) {
            write(&mut out, metric, found);
        }
    }
    out.push_str("# EOF\n");
    out
}

/// Writing to a string does not fail.
fn head(out: &mut String, metric: &Metric, kind: &str) {
    let Metric { name, help, .. } = metric;
    let _ = write!(out, "# TYPE {name} {kind}\n# HELP {name} {help}\n");
}

fn number(found: &Value) -> Option<f64> {
    match found {
        Value::Bool(flag) => Some(f64::from(u8::from(*flag))),
        other => other.as_f64(),
    }
}

fn sample(out: &mut String, name: &str, labels: &[(&str, &str)], value: f64) {
    out.push_str(name);
    for (at, (label, text)) in labels.iter().enumerate() {
        let before = if at == 0 { '{' } else { ',' };
        let _ = write!(out, "{before}{label}=\"{}\"", escaped(text));
    }
    if !labels.is_empty() {
        out.push('}');
    }
    let _ = writeln!(out, " {value}");
}

/// Escapes the text of a label: three characters have an escape; other control characters, which no line may contain,
/// are replaced.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            other if other.is_control() => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
    out
}

fn write(out: &mut String, metric: &Metric, found: &Value) {
    let name = metric.name;
    let total = format!("{name}_total");
    match metric.kind {
        Kind::Counter => {
            if let Some(value) = number(found) {
                head(out, metric, "counter");
                sample(out, &total, &[], value * metric.scale);
            }
        }
        Kind::Gauge | Kind::Flag => {
            if let Some(value) = number(found) {
                head(out, metric, "gauge");
                sample(out, name, &[], value * metric.scale);
            }
        }
        Kind::CounterEach(label) => {
            head(out, metric, "counter");
            for (entry, value) in found.as_object().into_iter().flatten() {
                if let Some(value) = number(value) {
                    sample(out, &total, &[(label, entry)], value * metric.scale);
                }
            }
        }
        Kind::Summary => {
            head(out, metric, "summary");
            for (member, quantile) in [("p50", "0.5"), ("p99", "0.99"), ("p999", "0.999")] {
                if let Some(value) = found.get(member).and_then(number) {
                    let labels = [("quantile", quantile)];
                    sample(out, name, &labels, value * metric.scale);
                }
            }
            if let Some(count) = found.get("count").and_then(number) {
                sample(out, &format!("{name}_count"), &[], count);
            }
        }
        Kind::Info(label) => {
            if let Some(text) = found.as_str() {
                head(out, metric, "info");
                sample(out, &format!("{name}_info"), &[(label, text)], 1.0);
            }
        }
        Kind::Reasons => {
            head(out, metric, "gauge");
            let mut shown: Vec<&str> = Vec::new();
            for reason in found.as_array().into_iter().flatten() {
                let code = reason.get("code").and_then(Value::as_str);
                // One code may have two texts.
                if let Some(code) = code.filter(|code| !shown.contains(code)) {
                    shown.push(code);
                    sample(out, name, &[("code", code)], 1.0);
                }
            }
        }
        Kind::States => {
            head(out, metric, "stateset");
            for state in ["ok", "degraded", "failed"] {
                let is_it = found.as_str() == Some(state);
                sample(out, name, &[(name, state)], f64::from(u8::from(is_it)));
            }
        }
        Kind::CounterOf(label, by, member) => {
            head(out, metric, "counter");
            each(found, by, |text, object| {
                if let Some(value) = object.get(member).and_then(number) {
                    let before = object.get("before_start").and_then(|all| all.get(member));
                    let value = (value - before.and_then(number).unwrap_or(0.0)).max(0.0);
                    sample(out, &total, &[(label, text)], value * metric.scale);
                }
            });
        }
        Kind::GaugeOf(label, by, member) => {
            head(out, metric, "gauge");
            each(found, by, |text, object| {
                if let Some(value) = object.get(member).and_then(number) {
                    sample(out, name, &[(label, text)], value * metric.scale);
                }
            });
        }
        Kind::StatesOf(label, by, member, states) => {
            head(out, metric, "stateset");
            each(found, by, |text, object| {
                for &state in states {
                    let is_it = object.get(member).and_then(Value::as_str) == Some(state);
                    let labels = [(label, text), (name, state)];
                    sample(out, name, &labels, f64::from(u8::from(is_it)));
                }
            });
        }
    }
}

/// Visits each object of a list with its name. Two objects with the same name are told apart by their numbers.
fn each(found: &Value, by: &str, mut visit: impl FnMut(&str, &Value)) {
    let mut shown: Vec<String> = Vec::new();
    for object in found.as_array().into_iter().flatten() {
        let Some(text) = object.get(by).and_then(Value::as_str) else {
            continue;
        };
        let mut text = text.to_owned();
        let mut copy = 1;
        while shown.contains(&text) {
            copy += 1;
            text = format!("{}#{copy}", text.split('#').next().unwrap_or_default());
        }
        visit(&text, object);
        shown.push(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::collections::BTreeSet;

    #[test]
    fn every_metric_has_one_name_and_the_ending_of_its_unit() {
        let mut names = BTreeSet::new();
        for metric in METRICS {
            assert!(names.insert(metric.name), "{}", metric.name);
            let is_plain = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(metric.name.starts_with("keel_") && metric.name.chars().all(is_plain));
            assert!(!metric.name.ends_with("_total") && !metric.name.ends_with("_info"));
            assert!(metric.help.ends_with('.') && !metric.help.contains(['\n', '\\', '"']));
            assert!(!metric.name.ends_with("_ms") && !metric.name.ends_with("_us"));
        }
    }

    #[test]
    fn the_text_follows_the_specification() {
        let upstream = json!([{
            "name": "cloud", "connected": false, "backlog_age_ms": 2500, "sent_twice": 4, "forward_lost": 5,
            "missing": 6, "refused_total": 17,
            "before_start": {"refused_total": 10, "late_sent": 9}, "late_sent": 8, "late_skipped": 9,
        }]);
        let status = json!({
            "state": "degraded",
            "reasons": [{"code": "lagging", "text": "a"}, {"code": "lagging", "text": "b"}],
            "node": {"version": "1", "uptime_ms": 1500},
            "store": {"full": true},
            "log": {"readings_taken": 7, "append_us": {"count": 2, "p50": 1000.0, "p99": 2000.0, "p999": 3000.0}},
            "intake": {"refused": {"key\"_\\\n": 3}},
            "wear": {"card_years_left": null},
            "qos": {"tasks": [
                {"name": "valve", "instances": 1, "deadline_misses": 0, "tardiness_mean": 0.5},
                {"name": "valve", "instances": 2, "deadline_misses": 1, "tardiness_mean": 0.25},
            ]},
            "upstream": upstream,
            "tasks": [{"name": "pump", "state": "given_up", "failing": true, "failed": 12}],
            "jobs": [{"name": "mean", "running": true, "failed": 13, "last_seconds": 0.5}],
            "mounts": [{"name": "tools", "mounted": true, "reads_failed": 14, "connections": null}],
            "region": {"served": true, "free_bytes": 15},
        });
        let text = text(&status);
        for line in [
            "keel_state{keel_state=\"ok\"} 0",
            "keel_state{keel_state=\"degraded\"} 1",
            "keel_reason{code=\"lagging\"} 1",
            "keel_build_info{version=\"1\"} 1",
            "keel_uptime_seconds 1.5",
            "keel_store_full 1",
            "keel_readings_taken_total 7",
            "keel_append_seconds{quantile=\"0.5\"} 0.001",
            "keel_append_seconds_count 2",
            "keel_input_refused_total{reason=\"key\\\"_\\\\\\n\"} 3",
            "keel_task_instances_total{task=\"valve\"} 1",
            "keel_task_instances_total{task=\"valve#2\"} 2",
            "keel_upstream_connected{upstream=\"cloud\"} 0",
            "keel_upstream_backlog_age_seconds{upstream=\"cloud\"} 2.5",
            "keel_upstream_repeated_readings_total{upstream=\"cloud\"} 4",
            "keel_upstream_lost_readings_total{upstream=\"cloud\"} 5",
            "keel_upstream_missing_readings_total{upstream=\"cloud\"} 6",
            "keel_upstream_refused_readings_total{upstream=\"cloud\"} 7",
            "keel_upstream_late_sent_readings_total{upstream=\"cloud\"} 0",
            "keel_upstream_late_skipped_readings_total{upstream=\"cloud\"} 9",
            "keel_program_state{program=\"pump\",keel_program_state=\"given_up\"} 1",
            "keel_program_state{program=\"pump\",keel_program_state=\"running\"} 0",
            "keel_program_failing{program=\"pump\"} 1",
            "keel_job_running{job=\"mean\"} 1",
            "keel_job_failed_runs_total{job=\"mean\"} 13",
            "keel_job_last_run_seconds{job=\"mean\"} 0.5",
            "keel_mount_mounted{mount=\"tools\"} 1",
            "keel_mount_reads_failed_total{mount=\"tools\"} 14",
            "keel_region_free_bytes 15",
        ] {
            assert_eq!(
                text.lines().filter(|other| *other == line).count(),
                1,
                "{line}\n{text}"
            );
        }
        assert!(
            !text.contains("years_left") && !text.contains("keel_mount_connections{"),
            "what is not known is left out"
        );
        assert!(text.ends_with("\n# EOF\n"));
    }
}
