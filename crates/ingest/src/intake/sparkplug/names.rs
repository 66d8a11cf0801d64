//! The metrics that a birth has named.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::SPARKPLUG_NAME_BYTES_MAX;
use super::message::{Metric, Payload};
use super::types::DataType;
use crate::intake::json::push_levels;

/// What is known of a metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KnownMetric {
    /// Its name as levels of a key; empty if no key can be made of it.
    pub(super) path: Arc<str>,
    pub(super) kind: DataType,
}

impl KnownMetric {
    pub(super) fn of(name: &str, kind: DataType) -> Self {
        Self {
            path: path_of(name).into(),
            kind,
        }
    }
}

/// Returns a name as levels of a key: its own levels, written so that no two names have the same.
fn path_of(name: &str) -> String {
    let mut path = String::new();
    let mut levels = name.split('/');
    let is_usable = name.len() <= SPARKPLUG_NAME_BYTES_MAX && !name.contains('\n');
    if is_usable && !levels.any(str::is_empty) {
        let levels: Vec<Cow<'_, str>> = name.split('/').map(Cow::Borrowed).collect();
        // Each byte of a name takes three at most.
        push_levels(&mut path, &levels, 3 * SPARKPLUG_NAME_BYTES_MAX);
    }
    path
}

/// The metrics of an edge node, or of a device. Each takes about 200 bytes, 1,200 at most.
#[derive(Debug, Default)]
pub(super) struct Names {
    by_name: HashMap<Box<str>, KnownMetric>,
    /// `None`: the birth has given the alias to two metrics, so it names none.
    by_alias: HashMap<u64, Option<KnownMetric>>,
    count: usize,
}

impl Names {
    /// Returns how many metrics they are.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Takes the metrics of a birth, `room` of them at most. Those without name or type are left out.
    pub(super) fn learn(&mut self, payload: &Payload, room: usize) {
        for bytes in &payload.metrics {
            if self.count >= room {
                return;
            }
            let Ok(metric) = Metric::of(bytes) else {
                continue;
            };
            let name = metric.name.as_deref().filter(|name| !name.is_empty());
            let kind = DataType::of(metric.datatype.unwrap_or_default());
            let (Some(name), Some(kind)) = (name, kind) else {
                continue;
            };
            let known = KnownMetric::of(name, kind);
            self.count += 1;
            if let Some(alias) = metric.alias {
                let first = self.by_alias.entry(alias).or_insert(Some(known.clone()));
                if first.as_ref() != Some(&known) {
                    *first = None;
                }
            }
            if name.len() <= SPARKPLUG_NAME_BYTES_MAX {
                self.by_name.insert(name.into(), known);
            }
        }
    }

    pub(super) fn by_name(&self, name: &str) -> Option<&KnownMetric> {
        self.by_name.get(name)
    }

    pub(super) fn by_alias(&self, alias: u64) -> Option<&KnownMetric> {
        self.by_alias.get(&alias)?.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use prost::Message;

    fn metric(name: &str, alias: Option<u64>, datatype: u32) -> Bytes {
        let metric = Metric {
            name: Some(name.to_owned()),
            alias,
            datatype: Some(datatype),
            ..Metric::default()
        };
        Bytes::from(metric.encode_to_vec())
    }

    fn learned(metrics: Vec<Bytes>, room: usize) -> Names {
        let mut names = Names::default();
        let payload = Payload {
            metrics,
            ..Payload::default()
        };
        names.learn(&payload, room);
        names
    }

    #[test]
    fn names_are_levels_and_no_two_names_have_the_same() {
        for (name, path) in [
            ("Temperature", "Temperature"),
            ("Outputs/LEDs/Green", "Outputs/LEDs/Green"),
            ("Humidity %", "Humidity %25"),
            ("a/+/#", "a/%2B/%23"),
            ("a/%2B", "a/%252B"),
            ("a+b#", "a+b#"),
            // No key can be made of these.
            ("", ""),
            ("/a", ""),
            ("a//b", ""),
            ("a/", ""),
            ("a\nb", ""),
        ] {
            assert_eq!(path_of(name), path, "{name}");
        }
        assert_eq!(path_of(&"n".repeat(255)).len(), 255);
        assert_eq!(path_of(&"%".repeat(255)).len(), 765);
        assert_eq!(path_of(&"n".repeat(256)), "");
    }

    #[test]
    fn an_alias_of_two_metrics_names_none() {
        let names = learned(
            vec![
                metric("a", Some(1), 10),
                metric("b", Some(2), 11),
                metric("c", Some(1), 10),
                metric("b", Some(2), 11),
            ],
            9,
        );
        assert_eq!(names.by_alias(1), None);
        let b = KnownMetric::of("b", DataType::Boolean);
        assert_eq!(
            (names.by_alias(2), names.by_name("b")),
            (Some(&b), Some(&b))
        );
        assert!(names.by_name("a").is_some() && names.by_name("c").is_some());
        assert_eq!((names.by_alias(3), names.by_name("d")), (None, None));
    }

    #[test]
    fn no_more_names_are_kept_than_there_is_room() {
        let all = || -> Vec<Bytes> {
            let metrics = (0..5_u64).map(|at| metric(&at.to_string(), Some(at), 4));
            metrics.collect()
        };
        let names = learned(all(), 3);
        assert_eq!(names.count(), 3);
        assert!(names.by_alias(2).is_some() && names.by_alias(3).is_none());
        assert_eq!(learned(all(), 0).count(), 0);
        // Without a name or a type there is nothing to know.
        let bare = learned(vec![metric("", Some(1), 4), metric("a", Some(2), 0)], 9);
        assert_eq!((bare.count(), bare.by_alias(2)), (0, None));
    }
}
