//! The wear of the card by writing: rates over the run and over a window of samples, and the remaining years.

use super::NodeFigures;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Span of the window.
const WINDOW_MS: u64 = 600_000;
/// Time between two samples that are kept.
const SAMPLE_MS: u64 = 5_000;
/// Shortest run, in ms, for a rate per day that is more than a guess.
const RATE_MS_MIN: u64 = 60_000;
/// Shortest run, in ms, for an estimate of years that is more than a guess.
const YEARS_MS_MIN: u64 = 600_000;

const DAY_MS: f64 = 86_400_000.0;
const YEAR_DAYS: f64 = 365.25;
const GIGABYTE: f64 = 1e9;
const TERABYTE: f64 = 1e12;

/// Defines the counters of [`Sample`] and [`Delta`].
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters at one moment of a run.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub(crate) struct Sample {
            /// How long the node had run, in ms.
            pub(crate) uptime_ms: u64,
            $($(#[$doc])* pub(crate) $name: u64,)*
        }

        /// The increase of the counters within a time span.
        #[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
        #[serde(default)]
        pub struct Delta {
            /// The span in ms; it is shorter than its name says until the node has run that long.
            pub span_ms: u64,
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Delta {
            /// Returns the increase from one sample to a later one.
            fn between(from: &Sample, to: &Sample) -> Self {
                Self {
                    span_ms: to.uptime_ms.saturating_sub(from.uptime_ms),
                    $($name: to.$name.saturating_sub(from.$name),)*
                }
            }
        }
    };
}

counters! {
    /// Bytes written to the device.
    bytes_written,
    /// Flushes of the device.
    flushes,
    /// Readings that became durable.
    readings,
    /// Offers refused because the queue was full.
    refused_busy,
    /// Offers refused because the store was full.
    refused_full,
    /// Readings deleted to make room in a full store.
    readings_dropped,
    /// Readings refused because there were `keys_max` keys.
    refused_keys_max,
    /// Readings refused because another series has their key.
    refused_key_shared,
    /// Failed accepts.
    listeners_failed,
    /// Line protocol connections that were refused.
    connections_refused,
    /// Line protocol connections closed to make room for others.
    connections_made_room,
    /// Connections to the node's own socket that were refused.
    clients_refused,
    /// Requests of HTTP writers, and connections that may have carried some, that were turned away.
    writes_turned_away,
    /// Missed deadlines that no sampling period shows.
    deadline_misses_apart,
    /// Readings deleted or damaged before they went upstream.
    forward_lost,
    /// Readings that could not be sent or were not accepted.
    forward_refused,
    /// Changes of alarms that were not delivered.
    alarms_undelivered,
    /// Values that reached no actuator.
    actuators_undelivered,
    /// Bad input.
    refused_input,
    /// Good readings from the same sources.
    taken_input,
}

/// The counters of the last ten minutes, one sample every 5 s; about 21 KiB.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    samples: VecDeque<Sample>,
}

impl Window {
    /// Creates a window with the counters of a node that has just started, so that all increases belong to this run.
    pub(crate) fn new(start: Sample) -> Self {
        let mut samples = VecDeque::with_capacity((WINDOW_MS / SAMPLE_MS + 3) as usize);
        samples.push_back(start);
        Self { samples }
    }

    /// Offers a sample; call this about every second. Only what the window needs is kept.
    pub(crate) fn offer(&mut self, sample: Sample) {
        let last_ms = self.samples.back().map_or(0, |last| last.uptime_ms);
        if sample.uptime_ms < last_ms + SAMPLE_MS {
            return;
        }
        // Keep one sample that is old enough: the whole window is compared with it.
        while let Some(second) = self.samples.get(1) {
            if second.uptime_ms + WINDOW_MS > sample.uptime_ms {
                break;
            }
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
    }

    /// Returns the increase within the last `span_ms` before `now`. The actual span is at most one sample longer.
    pub(crate) fn delta(&self, now: &Sample, span_ms: u64) -> Delta {
        let begin_ms = now.uptime_ms.saturating_sub(span_ms);
        let mut newest_first = self.samples.iter().rev();
        let old = newest_first.find(|sample| sample.uptime_ms <= begin_ms);
        let from = old.or(self.samples.front()).copied().unwrap_or_default();
        Delta::between(&from, now)
    }

    /// Returns the increase within the last minute.
    pub(crate) fn last_minute(&self, now: &Sample) -> Delta {
        self.delta(now, 60_000)
    }

    /// Returns the increase within the last ten minutes.
    pub(crate) fn last_ten_minutes(&self, now: &Sample) -> Delta {
        self.delta(now, WINDOW_MS)
    }
}

/// Wear. Unknown values and mere guesses are `None`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Wear {
    /// Bytes written per durable reading in this run.
    pub bytes_per_reading: Option<f64>,
    /// Flushes per durable reading in this run.
    pub flushes_per_reading: Option<f64>,
    /// Gigabytes (10^9 bytes) per day at the rate of this run.
    pub gigabytes_per_day: Option<f64>,
    /// The same at the rate of the last ten minutes.
    pub gigabytes_per_day_recent: Option<f64>,
    /// Terabytes (10^12 bytes) written since the store was made.
    pub card_written_terabytes: f64,
    /// Terabytes that the card is rated for; `None` if unknown.
    pub card_rated_terabytes: Option<f64>,
    /// Years until the rating is reached at the rate of this run.
    pub card_years_left: Option<f64>,
}

impl Wear {
    /// Returns the wear of these figures.
    pub(crate) fn of(figures: &NodeFigures) -> Self {
        let device = &figures.device;
        let readings = figures.log.readings_durable;
        let each = |count: u64| (readings > 0).then(|| count as f64 / readings as f64);
        let run_ms = figures.node.uptime_ms;
        let recent = &figures.last_ten_minutes;
        let per_day = gigabytes_per_day(device.bytes_written, run_ms);
        let written = figures.lifetime.bytes_written as f64 / TERABYTE;
        let rated = figures.store.card_rated_write_terabytes;
        let rated = (rated > 0.0).then_some(rated);
        let years_left = per_day.zip(rated).and_then(|(per_day, rated)| {
            let left = ((rated - written) * TERABYTE / GIGABYTE).max(0.0);
            let is_known = run_ms >= YEARS_MS_MIN && per_day > 0.0;
            is_known.then(|| left / per_day / YEAR_DAYS)
        });
        Self {
            bytes_per_reading: each(device.bytes_written),
            flushes_per_reading: each(device.flushes),
            gigabytes_per_day: per_day,
            gigabytes_per_day_recent: gigabytes_per_day(recent.bytes_written, recent.span_ms),
            card_written_terabytes: written,
            card_rated_terabytes: rated,
            card_years_left: years_left,
        }
    }
}

fn gigabytes_per_day(bytes: u64, span_ms: u64) -> Option<f64> {
    (span_ms >= RATE_MS_MIN).then(|| bytes as f64 / GIGABYTE * DAY_MS / span_ms as f64)
}

#[cfg(test)]
mod tests {
    use super::super::judge;
    use super::*;
    use egress::http::HttpFigures;

    #[test]
    fn http_writers_that_are_turned_away_are_a_reason_for_a_minute() {
        let mut figures = NodeFigures {
            http: Some(HttpFigures::default()),
            ..NodeFigures::default()
        };
        let mut window = Window::new(figures.sample());
        let mut told = |uptime_ms: u64, writes_turned_away: u64| {
            figures.node.uptime_ms = uptime_ms;
            figures.http = Some(HttpFigures {
                writes_turned_away,
                ..HttpFigures::default()
            });
            let sample = figures.sample();
            figures.last_minute = window.last_minute(&sample);
            window.offer(sample);
            let reasons = judge(&figures).reasons.into_iter();
            let of_writers = reasons.filter(|reason| reason.code == "connections_max");
            of_writers.map(|reason| reason.text).collect::<String>()
        };
        assert_eq!(told(5_000, 0), "");
        let text = told(10_000, 3);
        assert!(
            text.contains("3 requests to write") && text.contains("http.writes_max"),
            "{text}"
        );
        assert_eq!(told(110_000, 3), "");
    }
}
