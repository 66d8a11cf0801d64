//! A trace replayed against a clock: every reading at its time, in order, at any speed.
//!
//! Readings are numbered from 0 across repetitions, so an interrupted writer can resume at a number and offer single
//! readings again by number.

use crate::Error;
use crate::Trace;
use base::clock::Clock;

/// Slowest replay: one second of trace in a thousand seconds.
pub const SPEED_MIN: f64 = 0.001;

/// Fastest replay.
pub const SPEED_MAX: f64 = 1_000_000.0;

/// The clock of a trace: it stands at `origin_ms` when created and runs at `speed`.
#[derive(Clone, Copy, Debug)]
pub struct TraceTime {
    origin_monotonic_ns: u64,
    origin_ms: u64,
    speed: f64,
}

impl TraceTime {
    /// Starts now, at `origin_ms` of the trace.
    ///
    /// # Errors
    /// [`Error::Option`] unless the speed lies between [`SPEED_MIN`] and [`SPEED_MAX`].
    pub fn start(clock: &dyn Clock, origin_ms: u64, speed: f64) -> Result<Self, Error> {
        if !(SPEED_MIN..=SPEED_MAX).contains(&speed) {
            return Err(Error::Option(
                "the speed must lie between 0.001 and 1000000",
            ));
        }
        Ok(Self {
            origin_monotonic_ns: clock.monotonic_ns(),
            origin_ms,
            speed,
        })
    }

    /// Returns the current time of the trace, in ms.
    #[must_use]
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss
    )]
    pub fn now_ms(&self, clock: &dyn Clock) -> u64 {
        let elapsed_ns = clock
            .monotonic_ns()
            .saturating_sub(self.origin_monotonic_ns);
        // A float-to-integer cast saturates, and 2^53 ns are a hundred days.
        self.origin_ms
            .saturating_add((elapsed_ns as f64 * self.speed / 1e6) as u64)
    }

    /// Returns the time in ns of the clock until the trace reaches `time_ms`; 0 if it already has.
    #[must_use]
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss
    )]
    pub fn until_ns(&self, clock: &dyn Clock, time_ms: u64) -> u64 {
        let ahead_ms = time_ms.saturating_sub(self.origin_ms);
        let at_ns = self
            .origin_monotonic_ns
            .saturating_add((ahead_ms as f64 * 1e6 / self.speed).ceil() as u64);
        at_ns.saturating_sub(clock.monotonic_ns())
    }
}

/// One reading as it is offered to the store.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offer {
    /// Number of the reading, from 0, across repetitions of the trace.
    pub number: u64,
    /// Milliseconds on the clock of the trace.
    pub time_ms: u64,
    /// Index of the sensor.
    pub sensor: u16,
    /// The value.
    pub value: f64,
}

/// The replayer's answer for the current moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// The time of this reading has come.
    Ready(Offer),
    /// The next reading is due in this many nanoseconds of the clock.
    Wait {
        /// Nanoseconds of the clock, at least 1.
        ns: u64,
    },
    /// No reading is left before the end.
    End,
}

/// Walks through a trace. It never sleeps; the caller waits for the returned time.
pub struct Replayer<'t> {
    trace: &'t Trace,
    time: TraceTime,
    next: u64,
    end_ms: u64,
}

impl<'t> Replayer<'t> {
    /// Replays from reading `first` to the end of the trace or to `end_ms`, whichever comes first. A trace that
    /// was read completely repeats, with its times moved on, until `end_ms`; one that was cut short ends.
    #[must_use]
    pub fn new(trace: &'t Trace, time: TraceTime, first: u64, end_ms: u64) -> Self {
        Self {
            trace,
            time,
            next: first,
            end_ms,
        }
    }

    /// Returns what is due now.
    pub fn step(&mut self, clock: &dyn Clock) -> Step {
        let Some(offer) = offer(self.trace, self.next).filter(|offer| offer.time_ms <= self.end_ms)
        else {
            return Step::End;
        };
        match self.time.until_ns(clock, offer.time_ms) {
            0 => {
                self.next += 1;
                Step::Ready(offer)
            }
            ns => Step::Wait { ns },
        }
    }

    /// Returns the number of the next reading.
    #[must_use]
    pub fn next_number(&self) -> u64 {
        self.next
    }
}

/// Returns the reading with this number; `None` past the end of a trace that does not repeat.
#[must_use]
pub fn offer(trace: &Trace, number: u64) -> Option<Offer> {
    let readings = trace.readings();
    let count = u64::try_from(readings.len())
        .ok()
        .filter(|count| *count > 0)?;
    let pass = number / count;
    if pass > 0 && !trace.is_complete() {
        return None;
    }
    let reading = readings.get(usize::try_from(number % count).ok()?)?;
    let time_ms = pass
        .checked_mul(pass_ms(trace))?
        .checked_add(reading.time_ms)?;
    Some(Offer {
        number,
        time_ms,
        sensor: reading.sensor,
        value: reading.value,
    })
}

/// Returns how many readings a replay to `end_ms` offers.
#[must_use]
pub fn count_until(trace: &Trace, end_ms: u64) -> u64 {
    let readings = trace.readings();
    if readings.is_empty() {
        return 0;
    }
    let passes = if trace.is_complete() {
        end_ms / pass_ms(trace)
    } else {
        0
    };
    let rest_ms = end_ms - passes * pass_ms(trace);
    passes * readings.len() as u64
        + readings.partition_point(|reading| reading.time_ms <= rest_ms) as u64
}

/// Returns the length of one pass in ms: one ms more than the trace, so that no sensor reports twice at the same time.
#[must_use]
pub fn pass_ms(trace: &Trace) -> u64 {
    trace.duration_ms() + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    struct HandClock(AtomicU64);

    impl Clock for HandClock {
        fn monotonic_ns(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }
        fn wall_ms(&self) -> i64 {
            0
        }
        fn wall_is_trusted(&self) -> bool {
            false
        }
        fn boot_id(&self) -> [u8; 16] {
            [0; 16]
        }
    }

    fn small() -> Trace {
        let sensors =
            "sensor,room,storey,quantity,unit,height_m,period_ms,validity_ms\na,H,1,x,u,1,1,1\n";
        Trace::read(
            sensors.as_bytes(),
            &b"time_ms,sensor,value\n0,a,1\n10,a,2\n10,a,3\n25,a,4\n"[..],
            u64::MAX,
        )
        .unwrap()
    }

    /// Runs to the end, jumping over each wait; returns (number, trace time offered at, its own time).
    fn run(
        trace: &Trace,
        speed: f64,
        first: u64,
        origin_ms: u64,
        end_ms: u64,
    ) -> Vec<(u64, u64, u64)> {
        let clock = HandClock(AtomicU64::new(1_000_000_007));
        let time = TraceTime::start(&clock, origin_ms, speed).unwrap();
        let mut replayer = Replayer::new(trace, time, first, end_ms);
        let mut seen = Vec::new();
        loop {
            match replayer.step(&clock) {
                Step::Ready(offer) => seen.push((offer.number, time.now_ms(&clock), offer.time_ms)),
                Step::Wait { ns } => {
                    clock.0.fetch_add(ns, Ordering::Relaxed);
                }
                Step::End => return seen,
            }
        }
    }

    #[test]
    fn readings_come_in_order_and_at_their_time_at_any_speed() {
        let trace = small();
        for speed in [0.5, 1.0, 3.0, 1_000.0] {
            let seen = run(&trace, speed, 0, 0, 25);
            assert_eq!(seen.iter().map(|s| s.0).collect::<Vec<_>>(), [0, 1, 2, 3]);
            for (_, now_ms, time_ms) in seen {
                // Waits are whole nanoseconds, so at a thousand-fold speed the trace is at most 1 ms ahead.
                assert!(
                    now_ms >= time_ms && now_ms <= time_ms + 1,
                    "{speed}: {now_ms} {time_ms}"
                );
            }
        }
    }

    #[test]
    fn a_replay_ends_resumes_and_repeats() {
        let trace = small();
        assert_eq!(run(&trace, 1.0, 0, 0, 10).len(), 3);
        assert_eq!(
            run(&trace, 1.0, 2, 10, 25)
                .iter()
                .map(|s| s.0)
                .collect::<Vec<_>>(),
            [2, 3]
        );
        let twice = run(&trace, 1.0, 0, 0, 26 + 10);
        assert_eq!(
            twice.iter().map(|s| s.2).collect::<Vec<_>>(),
            [0, 10, 10, 25, 26, 36, 36]
        );
        assert_eq!(count_until(&trace, 26 + 10), 7);
        assert_eq!(count_until(&trace, 9), 1);
        assert_eq!(offer(&trace, 5).unwrap().time_ms, 36);
        assert_eq!(offer(&Trace::default(), 0), None);
    }

    #[test]
    fn a_trace_that_was_cut_short_does_not_repeat() {
        let sensors =
            "sensor,room,storey,quantity,unit,height_m,period_ms,validity_ms\na,H,1,x,u,1,1,1\n";
        let readings = b"time_ms,sensor,value\n0,a,1\n10,a,2\n25,a,4\n";
        let trace = Trace::read(sensors.as_bytes(), &readings[..], 10).unwrap();
        assert_eq!(run(&trace, 1.0, 0, 0, 1_000).len(), 2);
        assert_eq!(count_until(&trace, 1_000), 2);
        assert_eq!(offer(&trace, 2), None);
    }

    #[test]
    fn speeds_outside_the_range_are_refused() {
        let clock = HandClock(AtomicU64::new(0));
        for speed in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e7] {
            assert!(matches!(
                TraceTime::start(&clock, 0, speed),
                Err(Error::Option(_))
            ));
        }
    }
}
