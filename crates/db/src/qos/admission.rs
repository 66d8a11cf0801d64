//! Which updates are admitted to the table: a fraction of all, spread over the objects so that each loses little.
//!
//! An object of weight w whose readings come every p loses a part s of them, and with it about p s of freshness. The
//! parts are such that w p s is the same for all, up to the most that may be shed of any: frequent and unimportant
//! readings go first. Within an object they are spread evenly: of a fraction of three quarters every fourth is shed.
//!
//! Periods are measured, not configured: readings are counted, and those of long ago are forgotten.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::commit::lock;
use crate::options::ShedPolicy;
use crate::realtime;

/// 1 in the fixed point of fractions. The phase is what is left by it.
const ONE: u32 = 1 << 31;

/// Steps of the search for the parts. Each passes at least one object that has come to the most it may shed; a few do.
const SEARCH_STEPS: u32 = 60;

/// Time in which what was counted loses most of its say: long enough that an object which comes every ten seconds
/// has a period, short enough that a sensor which has changed its own is soon believed.
const FORGET_NS: f64 = 60e9;

/// More readings than this between two looks were not taken by this table: somebody has written over its memory.
const READINGS_MAX: u64 = u32::MAX as u64;

/// What becomes of a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes to the table and to the log.
    Admitted,
    /// It goes to the log alone.
    Logged,
    /// It goes nowhere.
    Dropped,
}

/// How much of what was offered went to the table. Counts of readings of temporal objects, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AdmissionFigures {
    /// Fraction that was asked for last, within the limits; 1 at the start.
    pub wanted: f64,
    /// What that came to by the rates measured then.
    pub expected: f64,
    /// Readings taken, admitted or shed.
    pub offered: u64,
    /// Of those, readings that went to the table (and to the log).
    pub admitted: u64,
    /// The others.
    pub shed: u64,
    /// Of the shed ones, those that did not go to the log either.
    pub dropped: u64,
}

/// One object, as a producer meets it.
#[derive(Debug)]
struct Share {
    shed: AtomicU64,
    fraction: AtomicU32,
    phase: AtomicU32,
    drops: AtomicBool,
    /// All of its readings are admitted, whatever the load.
    is_exempt: AtomicBool,
}

/// One object, as whoever sets fractions sees it.
#[derive(Clone, Copy, Debug)]
struct Measured {
    weight: f64,
    /// Readings taken up to the last look.
    seen: u64,
    /// Readings since then, those of long ago forgotten: in proportion to the rate.
    count: f64,
}

#[derive(Debug)]
struct Measurement {
    objects: Box<[Measured]>,
    looked_ns: u64,
    wanted: f64,
    expected: f64,
}

/// The admission of a database's objects. All memory is taken at the start.
#[derive(Debug)]
pub struct Admission {
    shares: Box<[Share]>,
    /// No producer takes this lock.
    measured: Mutex<Measurement>,
    min: f64,
}

impl Admission {
    /// Admits all. `min` is the least fraction of any object's readings, 0 to 1.
    #[must_use]
    pub fn new(objects_max: u32, min: f64) -> Self {
        let share = |number: u32| Share {
            shed: AtomicU64::new(0),
            fraction: AtomicU32::new(ONE),
            // Not all shed at the same moment: multiples of the golden ratio are spread evenly.
            phase: AtomicU32::new(number.wrapping_mul(0x9e37_79b9)),
            drops: AtomicBool::new(false),
            is_exempt: AtomicBool::new(false),
        };
        let measured = Measured {
            weight: 1.0,
            seen: 0,
            count: 0.0,
        };
        Self {
            shares: (0..objects_max).map(share).collect(),
            measured: Mutex::new(Measurement {
                objects: vec![measured; objects_max as usize].into(),
                looked_ns: 0,
                wanted: 1.0,
                expected: 1.0,
            }),
            min: if min.is_finite() {
                min.clamp(0.0, 1.0)
            } else {
                1.0
            },
        }
    }

    /// How much an object's freshness counts, more being shed less, and what becomes of its shed readings. A weight
    /// that is no number above 0 counts as 1. Takes effect with the next [`set`](Self::set); the policy at once.
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

    /// Admits all readings of an object from now on: each of them is acted upon.
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

    /// What becomes of the next reading of an object; counts it if it is shed. An object that is not known is
    /// admitted. Neither waits nor allocates.
    #[inline]
    pub fn judge(&self, object: usize) -> Verdict {
        let Some(share) = self.shares.get(object) else {
            return Verdict::Admitted;
        };
        let fraction = share.fraction.load(Ordering::Relaxed);
        // One that was exempted a moment ago may be given its old fraction once more.
        if fraction == ONE || share.is_exempt.load(Ordering::Relaxed) {
            return Verdict::Admitted;
        }
        let phase = share.phase.fetch_add(fraction, Ordering::Relaxed) & (ONE - 1);
        if phase + fraction >= ONE {
            return Verdict::Admitted;
        }
        share.shed.fetch_add(1, Ordering::Relaxed);
        if share.drops.load(Ordering::Relaxed) {
            Verdict::Dropped
        } else {
            Verdict::Logged
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

    /// The fraction set last, and what it came to.
    #[must_use]
    pub fn wanted_and_expected(&self) -> (f64, f64) {
        let measured = lock(&self.measured);
        (measured.wanted, measured.expected)
    }

    /// Keeps in memory what producers look at; what was not permitted.
    pub(crate) fn lock_memory(&self) -> Option<String> {
        realtime::lock_memory("the admission", &self.shares)
    }

    /// Counts from here on: what the start has put into the table is nobody's rate.
    pub fn begin(&self, now_ns: u64, admitted: impl Fn(usize) -> Option<u64>) {
        let mut measured = lock(&self.measured);
        measured.looked_ns = now_ns;
        for (object, it) in measured.objects.iter_mut().enumerate() {
            it.seen = admitted(object).unwrap_or(0);
        }
    }

    /// Admits a fraction of all readings from now on, as far as the least of each object allows; what it comes to by
    /// the rates since the last call. `admitted` tells how many readings of an object went to the table so far, and
    /// nothing for those that are never shed. Before anything was measured each object gets the fraction itself.
    ///
    /// Takes some passes over all objects: not for real-time callers. No producer waits for it.
    pub fn set(&self, fraction: f64, now_ns: u64, admitted: impl Fn(usize) -> Option<u64>) -> f64 {
        let admitted = |object| match self.is_exempt(object) {
            true => None,
            false => admitted(object),
        };
        let fraction = if fraction.is_finite() {
            fraction.clamp(self.min, 1.0)
        } else {
            1.0
        };
        let mut guard = lock(&self.measured);
        let measured = &mut *guard;
        let passed_ns = now_ns.saturating_sub(measured.looked_ns);
        measured.looked_ns = now_ns;
        let kept = (-(passed_ns as f64) / FORGET_NS).exp();
        let mut total = 0.0;
        for (object, it) in measured.objects.iter_mut().enumerate() {
            let Some(admitted) = admitted(object) else {
                it.count = 0.0;
                continue;
            };
            let taken = admitted.wrapping_add(self.shed(object));
            let new = Some(taken.wrapping_sub(it.seen)).filter(|new| *new <= READINGS_MAX);
            it.seen = taken;
            it.count = it.count * kept + new.unwrap_or(0) as f64;
            total += it.count;
        }
        let most = 1.0 - self.min;
        let level = level(&measured.objects, (1.0 - fraction) * total, most);
        let mut shed = 0.0;
        for (object, it) in measured.objects.iter().enumerate() {
            let part = if fraction >= 1.0 {
                0.0
            } else if total > 0.0 {
                (level * it.count / it.weight).min(most)
            } else if admitted(object).is_some() {
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
            // No object sheds more than that; their sum may, by its rounding.
            (1.0 - shed / total).max(self.min)
        } else {
            fraction
        };
        measured.expected
    }
}

/// The product of weight, period and part at which so many readings are shed of all, none of an object more than
/// `most`. What is shed grows with the level in straight pieces, ever flatter, so steps along the tangent
/// approach from below and arrive on the last piece.
fn level(objects: &[Measured], wanted: f64, most: f64) -> f64 {
    let mut level = 0.0;
    for _ in 0..SEARCH_STEPS {
        let (mut full, mut slope) = (0.0, 0.0);
        for it in objects {
            if level * it.count >= most * it.weight {
                full += most * it.count;
            } else {
                slope += it.count * it.count / it.weight;
            }
        }
        let next = (wanted - full) / slope;
        // Also where all are at the most and the slope is 0.
        let is_nearer = next.is_finite() && next > level * (1.0 + 1e-12);
        if !is_nearer {
            break;
        }
        level = next;
    }
    level
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

    /// Objects that offer readings at their periods.
    struct Plant {
        admission: Admission,
        objects: Vec<(f64, f64)>,
        admitted: Vec<u64>,
        now_ns: u64,
    }

    impl Plant {
        fn new(objects: Vec<(f64, f64)>) -> Self {
            let admission = Admission::new(objects.len() as u32, 0.5);
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

        /// Lets readings come for a while; fractions admitted, of each and of all.
        fn run(&mut self, seconds: u32) -> (Vec<f64>, f64) {
            let (mut each, mut counts) = (Vec::new(), (0_u64, 0_u64));
            for (object, (_, period_ms)) in self.objects.iter().enumerate() {
                let readings = (f64::from(seconds) * 1000.0 / period_ms) as u64;
                let before = self.admission.shed(object);
                let admitted = (0..readings)
                    .filter(|_| self.admission.judge(object) == Verdict::Admitted)
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
            let admitted = |object: usize| self.admitted.get(object).copied();
            self.admission.set(fraction, self.now_ns, admitted)
        }
    }

    #[test]
    fn the_fraction_of_all_is_what_was_set_and_no_object_loses_more_than_it_may() {
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
                plant.admission.wanted_and_expected(),
                (expected, set),
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
    fn what_counts_more_and_what_comes_seldom_is_shed_less() {
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
        // Those not at their least lose the same.
        assert!((loss(48) - loss(49)).abs() < 1e-3 * loss(49));
    }

    #[test]
    fn what_is_exempt_is_never_shed() {
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
        let admission = Admission::new(1, 0.5);
        // Nothing was measured yet: the fraction itself.
        assert!((admission.set(0.75, 9, |_| Some(0)) - 0.75).abs() < 1e-9);
        let verdicts: Vec<_> = (0..400).map(|_| admission.judge(0)).collect();
        for four in verdicts.windows(4) {
            let shed = four.iter().filter(|it| **it == Verdict::Logged).count();
            assert_eq!(shed, 1);
        }
        assert_eq!(admission.judge(7), Verdict::Admitted, "it is not known");
        assert_eq!(admission.shed(0), 100);
        admission.set_quality(0, f64::NAN, ShedPolicy::Drop);
        let dropped = (0..400)
            .filter(|_| admission.judge(0) == Verdict::Dropped)
            .count();
        assert_eq!(dropped, 100);
    }

    #[test]
    fn rates_are_those_of_late_and_what_is_never_shed_takes_no_part() {
        let admission = Admission::new(4, 0.5);
        let counts = [std::cell::Cell::new(1000_u64), std::cell::Cell::new(0)];
        let admitted = |object: usize| counts.get(object).map(std::cell::Cell::get);
        // What the start has found is not counted.
        admission.begin(0, admitted);
        let look = |second: u64, each: [u64; 2]| {
            for (count, more) in counts.iter().zip(each) {
                count.set(count.get() + more);
            }
            admission.set(0.9, second * 1_000_000_000, admitted);
            [0, 1, 2].map(|object| admission.fraction(object))
        };
        let [rare, frequent, never] = look(1, [10, 100]);
        assert!(rare > frequent && never >= 1.0, "{rare} {frequent}");
        // They change places after a long time; some minutes later only that counts.
        for second in 2..2000 {
            look(second, [10, 100]);
        }
        let mut fractions = [0.0; 3];
        for second in 2000..2400 {
            fractions = look(second, [100, 10]);
        }
        assert!((fractions[0] - frequent).abs() < 0.01, "{fractions:?}");
        assert!((fractions[1] - rare).abs() < 0.01, "{fractions:?}");
        // Words that somebody else wrote over the count are no readings.
        let before = fractions;
        counts[1].set(u64::MAX / 3);
        let after = look(2400, [100, 0]);
        assert!((after[0] - before[0]).abs() < 0.01, "{after:?}");
    }
}
