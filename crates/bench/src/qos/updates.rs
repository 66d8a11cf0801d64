//! Sensor updates: the bundled fire trace, accelerated by a multiplier and filtered by an admission.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use db::qos::admission::{Admission, Offer, Quality, Verdict};
use trace::Trace;

use super::scenario::ADMITTED_MIN;

/// Length of the trace, in ms; it is played repeatedly.
const TRACE_MS: u64 = 120_000;

/// The updates of a run.
pub(crate) struct Updates {
    /// Sensors in the order of their readings.
    order: Vec<u32>,
    /// Speed of playback relative to the recording.
    multiplier: f64,
    per_second: f64,
    /// One for each quality of data: by readings, and by freshness.
    admissions: [Admission; 2],
    by_freshness: AtomicBool,
    /// The number of readings of each sensor that went to the store.
    admitted: Vec<AtomicU64>,
    /// Time when each sensor's value was last stored, in µs since the start; -1: never.
    stored_us: Vec<AtomicI64>,
    /// How long each value stays fresh, in µs.
    valid_us: Vec<i64>,
}

impl Updates {
    /// Creates updates at a rate of `per_second` readings.
    ///
    /// # Errors
    /// The errors of the trace.
    pub(crate) fn new(per_second: f64) -> Result<Self, String> {
        let trace = trace::bundled(TRACE_MS).map_err(|error| error.to_string())?;
        let order = sensors_in_order(&trace);
        let recorded = order.len() as f64 * 1000.0 / TRACE_MS as f64;
        let multiplier = per_second / recorded;
        let sensors = trace.sensors().as_slice();
        let valid_us = |validity_ms: u32| (f64::from(validity_ms) * 1000.0 / multiplier) as i64;
        Ok(Self {
            order,
            multiplier,
            per_second,
            admissions: [(0.0, Quality::Admitted), (ADMITTED_MIN, Quality::Fresh)]
                .map(|(min, quality)| Admission::new(sensors.len() as u32, min, quality)),
            by_freshness: AtomicBool::new(false),
            admitted: sensors.iter().map(|_| AtomicU64::new(0)).collect(),
            stored_us: sensors.iter().map(|_| AtomicI64::new(-1)).collect(),
            valid_us: sensors
                .iter()
                .map(|sensor| valid_us(sensor.validity_ms))
                .collect(),
        })
    }

    pub(crate) fn sensors(&self) -> u32 {
        self.stored_us.len() as u32
    }

    pub(crate) fn multiplier(&self) -> f64 {
        self.multiplier
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.per_second
    }

    fn admission(&self) -> &Admission {
        &self.admissions[usize::from(self.by_freshness.load(Ordering::Relaxed))]
    }

    /// Sets the quantity of which a sensor's minimum is a fraction. All updates are admitted at first.
    pub(crate) fn set_quality(&self, quality: Quality, now_us: i64) {
        self.admit(1.0, now_us);
        self.by_freshness
            .store(quality == Quality::Fresh, Ordering::Relaxed);
        let admitted = |sensor: usize| Some(self.admitted.get(sensor)?.load(Ordering::Relaxed));
        self.admission()
            .begin(now_us.unsigned_abs() * 1000, admitted);
        self.admit(1.0, now_us);
    }

    /// Returns the minimum fraction that can be admitted, by the rates of the last evaluation. `None` if freshness does
    /// not decide what a sensor keeps.
    pub(crate) fn least(&self) -> Option<f64> {
        let [.., least] = self.admission().wanted_expected_least();
        self.by_freshness.load(Ordering::Relaxed).then_some(least)
    }

    /// Admits a fraction of later updates. Returns the expected fraction.
    pub(crate) fn admit(&self, fraction: f64, now_us: i64) -> f64 {
        let offer = |sensor: usize| {
            let admitted = self.admitted.get(sensor)?.load(Ordering::Relaxed);
            let valid_ns = self.valid_us.get(sensor)?.unsigned_abs() * 1000;
            Some(Offer { admitted, valid_ns })
        };
        self.admission()
            .set(fraction, now_us.unsigned_abs() * 1000, offer)
    }

    /// Returns the sensor of an update, and whether the update goes to the store.
    pub(crate) fn next(&self, number: u64, now_us: i64) -> (u32, bool) {
        let sensor = self.order[(number % self.order.len() as u64) as usize];
        let (admission, now_ns) = (self.admission(), now_us.unsigned_abs() * 1000);
        let is_admitted = admission.judge(sensor as usize, now_ns) == Verdict::Admitted;
        if is_admitted {
            admission.note_new(sensor as usize, now_ns);
        }
        if let Some(admitted) = self.admitted.get(sensor as usize).filter(|_| is_admitted) {
            admitted.fetch_add(1, Ordering::Relaxed);
        }
        (sensor, is_admitted)
    }

    /// Records that a value was stored.
    pub(crate) fn stored(&self, sensor: u32, now_us: i64) {
        if let Some(stored) = self.stored_us.get(sensor as usize) {
            stored.store(now_us, Ordering::Relaxed);
        }
    }

    /// Returns fresh objects ÷ all.
    pub(crate) fn fresh(&self, now_us: i64) -> f64 {
        let is_fresh = |(stored, valid): (&AtomicI64, &i64)| {
            let stored = stored.load(Ordering::Relaxed);
            stored >= 0 && now_us - stored <= *valid
        };
        let fresh = self
            .stored_us
            .iter()
            .zip(&self.valid_us)
            .filter(|pair| is_fresh(*pair))
            .count();
        fresh as f64 / self.stored_us.len().max(1) as f64
    }
}

fn sensors_in_order(trace: &Trace) -> Vec<u32> {
    trace
        .readings()
        .iter()
        .map(|reading| u32::from(reading.sensor))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_come_at_their_rate_and_are_shed_by_their_fraction() {
        let updates = Updates::new(50_000.0).unwrap();
        assert!(
            updates.multiplier() > 100.0 && updates.multiplier() < 400.0,
            "{}",
            updates.multiplier()
        );
        assert!(updates.valid_us.len() == 1024);
        let admitted = |from: u64| {
            (from..from + 100_000)
                .filter(|number| updates.next(*number, 1_000_000 + (*number * 20) as i64).1)
                .count()
        };
        assert_eq!(admitted(0), 100_000);
        let expected = updates.admit(0.6, 3_000_000);
        assert!((expected - 0.6).abs() < 0.01, "{expected}");
        let share = admitted(100_000) as f64 / 100_000.0;
        assert!((share - 0.6).abs() < 0.02, "{share}");
        // By freshness: sensors with surplus lose updates first, and the minimum has another value.
        updates.set_quality(Quality::Fresh, 5_000_000);
        assert_eq!(admitted(200_000), 100_000);
        updates.admit(1.0, 7_000_000);
        let least = updates.least().expect("by freshness");
        assert!(least > 0.0 && least < 0.9, "{least}");
        let expected = updates.admit(0.0, 7_000_000);
        assert!((expected - least).abs() < 0.01, "{expected} {least}");
        let share = admitted(300_000) as f64 / 100_000.0;
        assert!((share - least).abs() < 0.05, "{share} {least}");
    }

    #[test]
    fn a_value_stored_long_ago_is_not_fresh() {
        let updates = Updates::new(50_000.0).unwrap();
        assert_eq!(updates.fresh(0), 0.0);
        for sensor in 0..512 {
            updates.stored(sensor, 1_000_000);
        }
        assert!((updates.fresh(1_000_001) - 0.5).abs() < 1e-9);
        assert_eq!(updates.fresh(60_000_000), 0.0);
    }
}
