//! Which updates are admitted to the table: a fraction of all, spread over the objects so that each loses little.
//!
//! An object of weight w and period p that loses a part s of its readings loses about p s of its freshness. The parts
//! are such that w p s is the same for all objects, up to the largest part that each may lose. So frequent and
//! unimportant readings go first. Within an object, shed readings are spread evenly: with a fraction of three quarters
//! every fourth is shed.
//!
//! Periods are measured, not configured: readings are counted, and old counts decay.
//!
//! The minimum that an object keeps is a part of its readings, or of the freshness that it would have with all of them
//! ([`Quality`]). A value that is valid for ten periods loses no freshness if only every tenth reading is admitted.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::mutex::lock;
use crate::realtime;

use super::plan::{Measured, Plan, free_of, most_of};

/// The value 1 in the fixed-point format of fractions. The phase is taken modulo this.
const ONE: u32 = 1 << 31;

/// Time constant by which counts decay, ns. It is long enough that an object with a reading every 10 s has a period. It
/// is short enough that a sensor's new period soon prevails.
const FORGET_NS: f64 = 60e9;

/// Time without a measurement, ns, after which the rates say little about the present.
const STALE_NS: f64 = 10.0 * FORGET_NS;

/// Shortest time between two measurements of the rates while all readings are admitted, ns.
const LOOK_NS: u64 = 1_000_000_000;

/// A count below this belongs to an object whose last reading is long ago.
const COUNT_MIN: f64 = 1e-6;

/// More readings than this between two measurements were not taken by this table: its memory was overwritten.
const READINGS_MAX: u64 = u32::MAX as u64;

/// What the minimum that an object keeps is a part of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Quality {
    /// Of its readings.
    #[default]
    Admitted,
    /// The time in which it would be fresh if all of its readings were admitted.
    Fresh,
}

/// What happens to a reading that is not admitted to the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShedPolicy {
    /// It goes to the log, so that the history has it.
    #[default]
    Log,
    /// It is discarded and counted.
    Drop,
}

/// How often a value is offered, and how long it is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Readings that went to the table so far.
    pub admitted: u64,
    /// How long a value is fresh, ns.
    pub valid_ns: u64,
}

/// What happens to a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes to the table and to the log.
    Admitted,
    /// It goes to the log alone.
    Logged,
    /// It is discarded.
    Dropped,
}

/// How many of the offered readings went to the table. Counts of readings of temporal objects, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AdmissionFigures {
    /// Fraction that was requested last, within the limits; 1 at the start.
    pub wanted: f64,
    /// The fraction expected from that of the readings that can be shed, by the rates measured then.
    pub expected: f64,
    /// The least fraction that may be requested, by the same rates.
    pub least: f64,
    /// Readings taken, admitted or shed.
    pub offered: u64,
    /// Offered readings that went to the table (and to the log).
    pub admitted: u64,
    /// Offered readings that did not go to the table.
    pub shed: u64,
    /// Shed readings that did not go to the log either.
    pub dropped: u64,
}

/// One object, as producers see it.
#[derive(Debug)]
struct Share {
    shed: AtomicU64,
    /// Readings that went to the table without being judged: what firm tasks commit.
    unshed: AtomicU64,
    fraction: AtomicU32,
    phase: AtomicU32,
    drops: AtomicBool,
    /// All of its readings are admitted, under any load.
    is_exempt: AtomicBool,
    /// Longest time from one admitted reading to the next, for any measured rate, ns; 0: no limit.
    gap_ns_max: AtomicU64,
    /// When a reading was last admitted in its turn, or replaced the value, while not all were admitted.
    admitted_ns: AtomicU64,
}

#[derive(Debug)]
struct Measurement {
    objects: Box<[Measured]>,
    looked_ns: u64,
    /// Time over which the counts were collected, earlier time decayed like them.
    span_ns: f64,
    wanted: f64,
    expected: f64,
    least: f64,
}

/// The admission of a database's objects. All memory is allocated at the start.
#[derive(Debug)]
pub struct Admission {
    shares: Box<[Share]>,
    /// No producer takes this lock.
    measured: Mutex<Measurement>,
    min: f64,
    quality: Quality,
}

impl Admission {
    /// Makes an admission that admits all. `min` is the least part that any object keeps, 0 to 1; `quality` says of
    /// what.
    #[must_use]
    pub fn new(objects_max: u32, min: f64, quality: Quality) -> Self {
        let min = if min.is_finite() {
            min.clamp(0.0, 1.0)
        } else {
            1.0
        };
        let share = |number: u32| Share {
            shed: AtomicU64::new(0),
            unshed: AtomicU64::new(0),
            fraction: AtomicU32::new(ONE),
            // Objects must not all shed at the same moment: multiples of the golden ratio are spread evenly.
            phase: AtomicU32::new(number.wrapping_mul(0x9e37_79b9)),
            drops: AtomicBool::new(false),
            is_exempt: AtomicBool::new(false),
            gap_ns_max: AtomicU64::new(0),
            admitted_ns: AtomicU64::new(0),
        };
        let measured = Measured {
            weight: 1.0,
            seen: 0,
            is_new: false,
            count: 0.0,
            free: 0.0,
            most: 0.0,
        };
        Self {
            shares: (0..objects_max).map(share).collect(),
            measured: Mutex::new(Measurement {
                objects: vec![measured; objects_max as usize].into(),
                looked_ns: 0,
                span_ns: 0.0,
                wanted: 1.0,
                expected: 1.0,
                least: match quality {
                    Quality::Admitted => min,
                    // Nothing is known about any object yet.
                    Quality::Fresh => 1.0,
                },
            }),
            min,
            quality,
        }
    }

    /// Sets how much an object's freshness counts, more being shed less, and what happens to its shed readings. A
    /// weight that is no number above 0 counts as 1. Takes effect with the next [`set`](Self::set); the policy at once.
    pub fn set_quality(&self, object: usize, weight: f64, policy: ShedPolicy) {
        let is_sound = weight.is_finite() && weight > 0.0;
        if let Some(measured) = lock(&self.measured).objects.get_mut(object) {
            measured.weight = if is_sound { weight } else { 1.0 };
        }
        if let Some(share) = self.shares.get(object) {
            share
                .drops
                .store(policy == ShedPolicy::Drop, Ordering::Relaxed);
        }
    }

    /// Admits all readings of an object from now on, because each of them is acted upon.
    pub fn exempt(&self, object: usize) {
        if let Some(share) = self.shares.get(object) {
            share.is_exempt.store(true, Ordering::Relaxed);
            share.fraction.store(ONE, Ordering::Relaxed);
        }
    }

    fn is_exempt(&self, object: usize) -> bool {
        let share = self.shares.get(object);
        share.is_some_and(|share| share.is_exempt.load(Ordering::Relaxed))
    }

    /// Decides about the next reading of an object, which arrives now; counts it if it is shed. A reading of an unknown
    /// object is admitted. If an admitted reading replaces the value, the caller must call
    /// [`note_new`](Self::note_new). Neither waits nor allocates.
    #[inline]
    pub fn judge(&self, object: usize, now_ns: u64) -> Verdict {
        let Some(share) = self.shares.get(object) else {
            return Verdict::Admitted;
        };
        let fraction = share.fraction.load(Ordering::Relaxed);
        // A concurrent `set` may give an exempt object a lower fraction once more, so the mark decides too.
        if fraction == ONE || share.is_exempt.load(Ordering::Relaxed) {
            return Verdict::Admitted;
        }
        let phase = share.phase.fetch_add(fraction, Ordering::Relaxed) & (ONE - 1);
        let gap_ns_max = share.gap_ns_max.load(Ordering::Relaxed);
        let passed_ns = now_ns.saturating_sub(share.admitted_ns.load(Ordering::Relaxed));
        let is_due = gap_ns_max > 0 && passed_ns >= gap_ns_max;
        if phase + fraction >= ONE {
            share.admitted_ns.store(now_ns, Ordering::Relaxed);
            return Verdict::Admitted;
        }
        if is_due {
            return Verdict::Admitted;
        }
        share.shed.fetch_add(1, Ordering::Relaxed);
        if share.drops.load(Ordering::Relaxed) {
            Verdict::Dropped
        } else {
            Verdict::Logged
        }
    }

    /// Notes that an admitted reading of an object has replaced its value. A reading that is older than the value keeps
    /// nothing fresh, so if it was admitted out of its turn the next one is, too.
    #[inline]
    pub fn note_new(&self, object: usize, now_ns: u64) {
        if let Some(share) = self.shares.get(object) {
            share.admitted_ns.store(now_ns, Ordering::Relaxed);
        }
    }

    /// Counts a reading that went to the table without being judged: it can never be shed.
    pub fn count_unshed(&self, object: usize) {
        if let Some(share) = self.shares.get(object) {
            share.unshed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Readings of an object that were shed so far.
    #[must_use]
    pub fn shed(&self, object: usize) -> u64 {
        let share = self.shares.get(object);
        share.map_or(0, |share| share.shed.load(Ordering::Relaxed))
    }

    /// Fraction of an object's readings that is admitted now.
    #[must_use]
    pub fn fraction(&self, object: usize) -> f64 {
        let share = self.shares.get(object);
        share.map_or(1.0, |share| {
            f64::from(share.fraction.load(Ordering::Relaxed)) / f64::from(ONE)
        })
    }

    /// Returns the fraction set last, the one expected from it, and the least that may be set, by the rates measured
    /// then.
    #[must_use]
    pub fn wanted_expected_least(&self) -> [f64; 3] {
        let measured = lock(&self.measured);
        [measured.wanted, measured.expected, measured.least]
    }

    /// Locks in memory what producers access; returns what was not permitted.
    pub(crate) fn lock_memory(&self) -> Option<String> {
        realtime::lock_memory("the admission", &self.shares)
    }

    /// Starts counting here: what the start has put into the table belongs to no rate.
    pub fn begin(&self, now_ns: u64, admitted: impl Fn(usize) -> Option<u64>) {
        let mut measured = lock(&self.measured);
        measured.looked_ns = now_ns;
        for (object, it) in measured.objects.iter_mut().enumerate() {
            it.seen = self.taken(object, admitted(object).unwrap_or(0));
        }
    }

    /// Returns the readings of an object that could be shed; `admitted` went to the table, with those that could not.
    fn taken(&self, object: usize, admitted: u64) -> u64 {
        let unshed = self.shares.get(object);
        let unshed = unshed.map_or(0, |share| share.unshed.load(Ordering::Relaxed));
        admitted
            .wrapping_add(self.shed(object))
            .wrapping_sub(unshed)
    }

    /// Admits a fraction of all readings from now on, as far as the minimum of each object allows. Returns the fraction
    /// expected by the rates since the last call. `offer` returns how often an object was offered and how long it is
    /// valid, and `None` for objects that are never shed. Before any measurement each object gets the fraction itself,
    /// or with [`Quality::Fresh`] all are admitted.
    ///
    /// Makes several passes over all objects: not for real-time callers. No producer waits for it.
    pub fn set(&self, fraction: f64, now_ns: u64, offer: impl Fn(usize) -> Option<Offer>) -> f64 {
        let mut guard = lock(&self.measured);
        let measured = &mut *guard;
        if fraction >= 1.0 && measured.wanted >= 1.0 {
            // All are admitted, and stay so. Proportions can be measured when that ends, but rates must be recent.
            let passed_ns = now_ns.saturating_sub(measured.looked_ns);
            let is_due = self.quality == Quality::Fresh && passed_ns >= LOOK_NS;
            if !is_due {
                return measured.expected;
            }
        }
        let total = self.measure(measured, now_ns, &offer);
        let full: f64 = measured.objects.iter().map(|it| it.most * it.count).sum();
        measured.least = match self.quality {
            Quality::Admitted => self.min,
            Quality::Fresh if total > 0.0 => (1.0 - full / total).clamp(0.0, 1.0),
            Quality::Fresh => 1.0,
        };
        let fraction = if fraction.is_finite() {
            fraction.clamp(measured.least, 1.0)
        } else {
            1.0
        };
        let plan = Plan::new(&measured.objects, (1.0 - fraction) * total);
        let mut shed = 0.0;
        for (object, it) in measured.objects.iter().enumerate() {
            let part = if fraction >= 1.0 {
                0.0
            } else if total > 0.0 {
                plan.part(it)
            } else if self.offered(object, &offer).is_some() {
                1.0 - fraction
            } else {
                0.0
            };
            shed += part * it.count;
            let fixed = ((1.0 - part) * f64::from(ONE)).round() as u32;
            if let Some(share) = self.shares.get(object) {
                share.fraction.store(fixed.min(ONE), Ordering::Relaxed);
            }
        }
        measured.wanted = fraction;
        measured.expected = if total > 0.0 {
            // No object sheds more than that; the sum may, by rounding.
            (1.0 - shed / total).max(measured.least)
        } else {
            fraction
        };
        measured.expected
    }

    /// Measures what has arrived since the last call; returns the sum of the counts.
    fn measure(
        &self,
        measured: &mut Measurement,
        now_ns: u64,
        offer: &impl Fn(usize) -> Option<Offer>,
    ) -> f64 {
        let passed_ns = now_ns.saturating_sub(measured.looked_ns) as f64;
        measured.looked_ns = now_ns;
        let kept = (-passed_ns / FORGET_NS).exp();
        measured.span_ns = measured.span_ns * kept + passed_ns;
        // The minimum in readings needs only the proportions of rates, that in freshness needs the present rates.
        let is_stale = self.quality == Quality::Fresh && passed_ns > STALE_NS;
        if is_stale {
            measured.span_ns = 0.0;
        }
        let mut total = 0.0;
        for (object, it) in measured.objects.iter_mut().enumerate() {
            let Some(offer) = self.offered(object, offer) else {
                // Counting begins again if the object ever becomes one that may be shed.
                (it.count, it.free, it.most) = (0.0, 0.0, 0.0);
                it.is_new = true;
                continue;
            };
            let taken = self.taken(object, offer.admitted);
            let new = Some(taken.wrapping_sub(it.seen)).filter(|new| *new <= READINGS_MAX);
            let new = new.filter(|_| !std::mem::take(&mut it.is_new));
            it.seen = taken;
            it.count = it.count * kept + new.unwrap_or(0) as f64;
            if is_stale || it.count < COUNT_MIN {
                it.count = 0.0;
            }
            total += it.count;
            if let (Some(share), Quality::Fresh) = (self.shares.get(object), self.quality) {
                // With a value in each such time the object has its part of the freshness, for any measured rate. If
                // its own period is longer than the validity, the planned part already ensures that.
                let period_ns = match it.count > 0.0 {
                    true => (measured.span_ns / it.count).min(FORGET_NS),
                    false => 0.0,
                };
                let gap_ns_max = period_ns.max(offer.valid_ns as f64) / self.min;
                share.gap_ns_max.store(gap_ns_max as u64, Ordering::Relaxed);
            }
            (it.free, it.most) = match self.quality {
                Quality::Admitted => (0.0, 1.0 - self.min),
                Quality::Fresh if it.count > 0.0 => {
                    // Readings that arrive while one value is valid.
                    let valid = it.count / measured.span_ns * offer.valid_ns as f64;
                    (free_of(valid), most_of(valid, self.min))
                }
                Quality::Fresh => (0.0, 0.0),
            };
        }
        total
    }

    /// Returns how often an object that may be shed was offered.
    fn offered(&self, object: usize, offer: &impl Fn(usize) -> Option<Offer>) -> Option<Offer> {
        match self.is_exempt(object) {
            true => None,
            false => offer(object),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Weight and period in ms of some objects.
    fn objects() -> Vec<(f64, f64)> {
        (0..50)
            .map(|number| {
                let weight = if number % 5 == 0 { 4.0 } else { 1.0 };
                (weight, 1000.0 + f64::from(number) * 180.0)
            })
            .collect()
    }

    /// Objects that offer readings at their periods; each value is valid for a second.
    struct Plant {
        admission: Admission,
        objects: Vec<(f64, f64)>,
        admitted: Vec<u64>,
        now_ns: u64,
    }

    impl Plant {
        fn new(objects: Vec<(f64, f64)>) -> Self {
            Self::of(objects, Quality::Admitted)
        }

        fn of(objects: Vec<(f64, f64)>, quality: Quality) -> Self {
            let admission = Admission::new(objects.len() as u32, 0.5, quality);
            for (object, (weight, _)) in objects.iter().enumerate() {
                admission.set_quality(object, *weight, ShedPolicy::Log);
            }
            Self {
                admission,
                admitted: vec![0; objects.len()],
                objects,
                now_ns: 5,
            }
        }

        /// Lets readings arrive for `seconds`; returns the fractions admitted, of each and of all.
        fn run(&mut self, seconds: u32) -> (Vec<f64>, f64) {
            let (mut each, mut counts) = (Vec::new(), (0_u64, 0_u64));
            for (object, (_, period_ms)) in self.objects.iter().enumerate() {
                let readings = (f64::from(seconds) * 1000.0 / period_ms) as u64;
                let before = self.admission.shed(object);
                let admitted = (0..readings)
                    .filter(|n| {
                        let now_ns = self.now_ns + (*n as f64 * period_ms * 1e6) as u64;
                        let is_admitted = self.admission.judge(object, now_ns) == Verdict::Admitted;
                        if is_admitted {
                            self.admission.note_new(object, now_ns);
                        }
                        is_admitted
                    })
                    .count() as u64;
                assert_eq!(readings - admitted, self.admission.shed(object) - before);
                self.admitted[object] += admitted;
                counts = (counts.0 + admitted, counts.1 + readings);
                each.push(admitted as f64 / readings as f64);
            }
            self.now_ns += u64::from(seconds) * 1_000_000_000;
            (each, counts.0 as f64 / counts.1 as f64)
        }

        fn set(&self, fraction: f64) -> f64 {
            let offered = |object: usize| self.admitted.get(object).copied().map(offer);
            self.admission.set(fraction, self.now_ns, offered)
        }

        /// The part of its freshness that an object keeps, by its own period and what is admitted of it.
        fn kept(&self, object: usize) -> f64 {
            let valid = VALID_NS as f64 / 1e6 / self.objects[object].1;
            freshness(self.admission.fraction(object), valid) / valid.min(1.0)
        }
    }

    const VALID_NS: u64 = 1_000_000_000;

    fn offer(admitted: u64) -> Offer {
        let valid_ns = VALID_NS;
        Offer { admitted, valid_ns }
    }

    /// Returns the part of the time in which an object is fresh. A fraction of its readings is admitted, spread evenly;
    /// `valid` readings arrive while one is valid.
    fn freshness(admitted: f64, valid: f64) -> f64 {
        // At three quarters two readings follow each other, and each third one comes two periods after the one before.
        let mean = 1.0 / admitted;
        let short = mean.floor();
        let longer = mean - short;
        admitted * ((1.0 - longer) * valid.min(short) + longer * valid.min(short + 1.0))
    }

    #[test]
    fn the_total_fraction_is_the_set_one_and_no_object_loses_more_than_its_limit() {
        for wanted in [1.0, 0.97, 0.8, 0.65, 0.5, 0.2, f64::NAN] {
            let expected = if wanted.is_nan() {
                1.0
            } else {
                f64::max(wanted, 0.5)
            };
            let mut plant = Plant::new(objects());
            plant.run(2_000);
            let set = plant.set(wanted);
            assert!((set - expected).abs() < 1e-9, "{wanted} {set}");
            assert_eq!(
                plant.admission.wanted_expected_least(),
                [expected, set, 0.5],
                "{wanted}"
            );
            let (each, all) = plant.run(20_000);
            assert!((all - expected).abs() < 0.002, "{wanted} {all}");
            assert!(
                each.iter().all(|fraction| *fraction > 0.499),
                "{wanted} {each:?}"
            );
        }
    }

    #[test]
    fn heavy_and_infrequent_objects_are_shed_less() {
        let mut plant = Plant::new(objects());
        plant.run(100_000);
        plant.set(0.8);
        let fraction = |object: usize| plant.admission.fraction(object);
        // 5 counts more than 4 and comes at nearly the same rate; 49 comes seldom.
        assert!(fraction(5) > fraction(4) + 0.1);
        assert!(fraction(49) > fraction(1) + 0.1);
        let loss = |object: usize| {
            let (weight, period_ms) = plant.objects[object];
            weight * period_ms * (1.0 - fraction(object))
        };
        // Objects that are not at their minimum lose the same.
        assert!((loss(48) - loss(49)).abs() < 1e-3 * loss(49));
    }

    #[test]
    fn an_exempt_object_is_never_shed() {
        let mut plant = Plant::new(objects());
        plant.admission.exempt(3);
        plant.run(2_000);
        plant.set(0.5);
        let (each, _) = plant.run(20_000);
        assert!(each[3] >= 1.0 && each[4] < 0.9, "{each:?}");
        assert_eq!(plant.admission.shed(3), 0);
    }

    #[test]
    fn an_objects_readings_are_shed_evenly() {
        let admission = Admission::new(1, 0.5, Quality::Admitted);
        // Nothing was measured yet: the object gets the fraction itself.
        assert!((admission.set(0.75, 9, |_| Some(offer(0))) - 0.75).abs() < 1e-9);
        let verdicts: Vec<_> = (0..400).map(|_| admission.judge(0, 0)).collect();
        for four in verdicts.windows(4) {
            let shed = four.iter().filter(|it| **it == Verdict::Logged).count();
            assert_eq!(shed, 1);
        }
        assert_eq!(admission.judge(7, 0), Verdict::Admitted, "it is not known");
        assert_eq!(admission.shed(0), 100);
        admission.set_quality(0, f64::NAN, ShedPolicy::Drop);
        let dropped = (0..400)
            .filter(|_| admission.judge(0, 0) == Verdict::Dropped)
            .count();
        assert_eq!(dropped, 100);
    }

    #[test]
    fn rates_are_recent_and_exclude_objects_that_are_never_shed() {
        let admission = Admission::new(4, 0.5, Quality::Admitted);
        let counts = [std::cell::Cell::new(1000_u64), std::cell::Cell::new(0)];
        let admitted = |object: usize| counts.get(object).map(std::cell::Cell::get);
        // Values found by the start are not counted.
        admission.begin(0, admitted);
        let look = |second: u64, each: [u64; 2]| {
            for (count, more) in counts.iter().zip(each) {
                count.set(count.get() + more);
            }
            admission.set(0.9, second * 1_000_000_000, |object| {
                admitted(object).map(offer)
            });
            [0, 1, 2].map(|object| admission.fraction(object))
        };
        let [rare, frequent, never] = look(1, [10, 100]);
        assert!(rare > frequent && never >= 1.0, "{rare} {frequent}");
        // The two rates are swapped after a long time; some minutes later only the new ones count.
        for second in 2..2000 {
            look(second, [10, 100]);
        }
        let mut fractions = [0.0; 3];
        for second in 2000..2400 {
            fractions = look(second, [100, 10]);
        }
        assert!((fractions[0] - frequent).abs() < 0.01, "{fractions:?}");
        assert!((fractions[1] - rare).abs() < 0.01, "{fractions:?}");
        // A count that was overwritten by another process does not count as readings.
        let before = fractions;
        counts[1].set(u64::MAX / 3);
        let after = look(2400, [100, 0]);
        assert!((after[0] - before[0]).abs() < 0.01, "{after:?}");
    }

    #[test]
    fn the_most_that_may_be_shed_leaves_the_wanted_freshness_and_no_more() {
        for valid in [
            0.05, 0.5, 0.99, 1.0, 1.3, 1.5, 1.99, 2.0, 2.7, 10.0, 59.6, 3600.0,
        ] {
            let all = f64::min(valid, 1.0);
            let free = free_of(valid);
            assert!(freshness(1.0 - free, valid) > all - 1e-9, "{valid}");
            for min in [0.01, 0.3, 0.5, 0.8, 0.95, 0.99, 1.0] {
                let most = most_of(valid, min);
                assert!(most >= free - 1e-12 && most < 1.0, "{valid} {min} {most}");
                let kept = freshness(1.0 - most, valid) / all;
                assert!((kept - min).abs() < 1e-9, "{valid} {min} {kept}");
            }
        }
    }

    /// Periods of 100 ms to 4 s beside a validity of a second.
    fn frequent_and_seldom() -> Vec<(f64, f64)> {
        [100.0, 100.0, 350.0, 1000.0, 1000.0, 4000.0]
            .map(|period_ms| (1.0, period_ms))
            .into()
    }

    #[test]
    fn each_object_keeps_its_part_of_the_freshness() {
        let mut plant = Plant::of(frequent_and_seldom(), Quality::Fresh);
        // Nothing is known yet.
        assert_eq!(plant.set(0.0), 1.0);
        plant.run(60);
        let least = plant.set(0.0);
        // 100 ms: one of twenty; 350 ms: one of 5.7; 1 s and 4 s: every other one.
        let rates = [10.0, 10.0, 1.0 / 0.35, 1.0, 1.0, 0.25];
        let parts = [0.05, 0.05, 0.175, 0.5, 0.5, 0.5];
        let admitted: f64 = rates
            .iter()
            .zip(parts)
            .map(|(rate, part)| rate * part)
            .sum();
        let expected = admitted / rates.iter().sum::<f64>();
        assert!((least - expected).abs() < 0.01, "{least} {expected}");
        let kept: Vec<f64> = (0..6).map(|object| plant.kept(object)).collect();
        assert!(
            kept.iter().all(|kept| (kept - 0.5).abs() < 0.02),
            "{kept:?}"
        );
        let (_, all) = plant.run(600);
        assert!((all - expected).abs() < 0.01, "{all} {expected}");
    }

    #[test]
    fn readings_that_cost_no_freshness_are_shed_first() {
        let mut plant = Plant::of(frequent_and_seldom(), Quality::Fresh);
        plant.run(60);
        for wanted in [0.9, 0.5, 0.3] {
            assert!((plant.set(wanted) - wanted).abs() < 1e-6);
            let kept: Vec<f64> = (0..6).map(|object| plant.kept(object)).collect();
            assert!(kept.iter().all(|kept| *kept > 0.98), "{wanted} {kept:?}");
        }
        // Of 25 readings a second 22 are not needed.
        plant.set(0.12);
        assert!(plant.kept(3) < 0.95, "{}", plant.kept(3));
    }

    #[test]
    fn a_silent_object_does_not_stop_shedding_of_others() {
        for quality in [Quality::Admitted, Quality::Fresh] {
            let mut plant = Plant::of(frequent_and_seldom(), quality);
            plant.run(60);
            let silent = plant.objects[3];
            plant.objects[3].1 = 1e12;
            for _ in 0..240 {
                assert!((plant.set(0.6) - 0.6).abs() < 1e-6, "{quality:?}");
                plant.run(60);
            }
            plant.objects[3] = silent;
            plant.run(60);
            assert!((plant.set(0.6) - 0.6).abs() < 1e-6, "{quality:?}");
        }
    }

    /// The planned part is what happens, also where values are valid for less than a period.
    #[test]
    fn the_planned_part_of_readings_rarer_than_their_validity_is_admitted() {
        for period_ms in [900.0, 1_150.0, 2_000.0, 4_000.0, 10_000.0] {
            let mut plant = Plant::of(vec![(1.0, period_ms); 10], Quality::Fresh);
            plant.run(300);
            for wanted in [0.9, 0.6, 0.0] {
                let set = plant.set(wanted);
                assert!(set < 0.95, "{period_ms} {set}");
                let parts: f64 = (0..10)
                    .map(|_| {
                        plant.set(wanted);
                        plant.run(300).1
                    })
                    .sum();
                let all = parts / 10.0;
                assert!(
                    (all - set).abs() < 0.04,
                    "{period_ms} {wanted}: {set} {all}"
                );
            }
        }
    }

    /// What a firm task commits is never shed: it is no surplus of its object.
    #[test]
    fn readings_that_are_never_judged_give_nothing_and_take_nothing() {
        let mut plant = Plant::of(vec![(1.0, 1_000.0); 4], Quality::Fresh);
        plant.set(1.0);
        plant.run(60);
        for _ in 0..60_000 {
            plant.admission.count_unshed(0);
        }
        plant.admitted[0] += 60_000;
        let set = plant.set(0.75);
        assert!((set - 0.75).abs() < 0.01, "{set}");
        assert!((plant.admission.wanted_expected_least()[2] - 0.5).abs() < 0.01);
        let fractions: Vec<f64> = (0..4)
            .map(|object| plant.admission.fraction(object))
            .collect();
        assert!(
            fractions.iter().all(|part| (part - 0.75).abs() < 0.01),
            "{fractions:?}"
        );
    }

    /// The measured rate is used for a while: what an object keeps may be less by one of its periods.
    #[test]
    fn an_object_whose_readings_become_rare_keeps_its_part() {
        let mut plant = Plant::of(vec![(1.0, 100.0); 4], Quality::Fresh);
        plant.run(60);
        assert!(plant.set(0.0) < 0.06);
        for period_ms in [1_000.0, 350.0, 4_000.0] {
            plant.objects = vec![(1.0, period_ms); 4];
            let (each, _) = plant.run(200);
            // One value every two seconds, and all readings that arrive more rarely.
            let least = f64::min(1.0, period_ms / 2_000.0) * 0.9;
            assert!(
                each.iter().all(|part| *part >= least),
                "{period_ms} {each:?}"
            );
        }
    }

    /// A sensor that has become slower during a pause would lose what it needs.
    #[test]
    fn rates_of_before_a_pause_are_not_believed() {
        let mut plant = Plant::of(vec![(1.0, 100.0); 4], Quality::Fresh);
        plant.run(36_000);
        plant.objects = vec![(1.0, 1000.0); 4];
        plant.run(1_000);
        assert_eq!(plant.set(0.3), 1.0, "nothing is known");
        plant.run(10);
        let set = plant.set(0.3);
        assert!((set - 0.5).abs() < 0.01, "{set}");
        assert!((plant.kept(0) - 0.5).abs() < 0.02, "{}", plant.kept(0));
    }
}
