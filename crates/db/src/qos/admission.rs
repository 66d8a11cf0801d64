//! Which updates are admitted to the table: a fraction of all, spread over the objects so that each loses little.
//!
//! An object of weight w whose readings come every p loses a part s of them, and with it about p s of freshness. The
//! parts are such that w p s is the same for all, up to the most that may be shed of any: frequent and unimportant
//! readings go first. Within an object they are spread evenly: of a fraction of three quarters every fourth is shed.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// 1 in the fixed point of fractions.
const ONE: u64 = 1 << 32;

/// Steps of the search for the parts; each halves what is left.
const SEARCH_STEPS: u32 = 60;

/// What is known of an object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weight {
    /// How much its freshness counts; more is shed less. Above 0.
    pub weight: f64,
    /// Time between its readings, ms. Above 0.
    pub period_ms: f64,
}

/// One object's part. A line of its own, since each has its own producer.
#[derive(Debug)]
#[repr(align(64))]
struct Share {
    fraction: AtomicU64,
    phase: AtomicU32,
    shed: AtomicU64,
}

/// The admission of a database's objects.
#[derive(Debug)]
pub struct Admission {
    weights: Box<[Weight]>,
    shares: Box<[Share]>,
    min: f64,
}

impl Admission {
    /// Admits all. `min` is the least fraction of any object's readings, 0 to 1. Weights and periods that are no
    /// numbers above 0 count as 1.
    #[must_use]
    pub fn new(weights: &[Weight], min: f64) -> Self {
        let sound = |value: f64| {
            if value.is_finite() && value > 0.0 {
                value
            } else {
                1.0
            }
        };
        let weights: Box<[_]> = weights
            .iter()
            .map(|given| Weight {
                weight: sound(given.weight),
                period_ms: sound(given.period_ms),
            })
            .collect();
        let shares = (0..weights.len())
            .map(|number| Share {
                fraction: AtomicU64::new(ONE),
                // Not all shed at the same moment: multiples of the golden ratio are spread evenly.
                phase: AtomicU32::new((number as u32).wrapping_mul(0x9e37_79b9)),
                shed: AtomicU64::new(0),
            })
            .collect();
        Self {
            weights,
            shares,
            min: if min.is_finite() {
                min.clamp(0.0, 1.0)
            } else {
                1.0
            },
        }
    }

    /// Whether the next reading of an object goes to the table; counts it if not. An object that is not known is
    /// admitted. Neither waits nor allocates.
    #[inline]
    pub fn admits(&self, object: usize) -> bool {
        let Some(share) = self.shares.get(object) else {
            return true;
        };
        let fraction = share.fraction.load(Ordering::Relaxed);
        if fraction == ONE {
            return true;
        }
        let phase = share.phase.fetch_add(fraction as u32, Ordering::Relaxed);
        let is_admitted = u64::from(phase) + fraction >= ONE;
        if !is_admitted {
            share.shed.fetch_add(1, Ordering::Relaxed);
        }
        is_admitted
    }

    /// Readings of an object that were shed so far.
    #[must_use]
    pub fn shed(&self, object: usize) -> u64 {
        let share = self.shares.get(object);
        share.map_or(0, |share| share.shed.load(Ordering::Relaxed))
    }

    /// Readings of all objects that were shed so far.
    #[must_use]
    pub fn shed_total(&self) -> u64 {
        let counts = self
            .shares
            .iter()
            .map(|share| share.shed.load(Ordering::Relaxed));
        counts.sum()
    }

    /// Fraction of an object's readings that is admitted now.
    #[must_use]
    pub fn fraction(&self, object: usize) -> f64 {
        let share = self.shares.get(object);
        share.map_or(1.0, |share| {
            share.fraction.load(Ordering::Relaxed) as f64 / ONE as f64
        })
    }

    /// Admits a fraction of all readings from now on, as far as the least of each object allows; what it comes to by
    /// the objects' periods.
    pub fn set(&self, fraction: f64) -> f64 {
        let fraction = if fraction.is_finite() {
            fraction.clamp(self.min, 1.0)
        } else {
            1.0
        };
        let rate: f64 = self.weights.iter().map(|it| 1.0 / it.period_ms).sum();
        if rate <= 0.0 {
            return 1.0;
        }
        let part =
            |level: f64, it: &Weight| (level / (it.weight * it.period_ms)).min(1.0 - self.min);
        let shed = |level: f64| {
            let parts = self.weights.iter().map(|it| part(level, it) / it.period_ms);
            parts.sum::<f64>() / rate
        };
        let wanted = 1.0 - fraction;
        let products = self.weights.iter().map(|it| it.weight * it.period_ms);
        // At the highest level every object sheds the most it may.
        let (mut low, mut high) = (0.0, products.fold(0.0, f64::max));
        for _ in 0..SEARCH_STEPS {
            let level = (low + high) / 2.0;
            if shed(level) < wanted {
                low = level;
            } else {
                high = level;
            }
        }
        for (share, it) in self.shares.iter().zip(&self.weights) {
            let admitted = 1.0 - part(high, it);
            let fixed = ((admitted * ONE as f64).round() as u64).min(ONE);
            let fixed = if wanted <= 0.0 { ONE } else { fixed };
            share.fraction.store(fixed, Ordering::Relaxed);
        }
        if wanted <= 0.0 { 1.0 } else { 1.0 - shed(high) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects() -> Vec<Weight> {
        (0..50)
            .map(|number| Weight {
                weight: if number % 5 == 0 { 4.0 } else { 1.0 },
                period_ms: 1000.0 + f64::from(number) * 180.0,
            })
            .collect()
    }

    /// Lets all objects' readings come for a while; fractions admitted, of each and of all.
    fn admitted(admission: &Admission, weights: &[Weight], seconds: u32) -> (Vec<f64>, f64) {
        let (mut each, mut counts) = (Vec::new(), (0_u64, 0_u64));
        for (object, it) in weights.iter().enumerate() {
            let readings = (f64::from(seconds) * 1000.0 / it.period_ms) as u64;
            let taken = (0..readings).filter(|_| admission.admits(object)).count() as u64;
            assert_eq!(readings - taken, admission.shed(object));
            counts = (counts.0 + taken, counts.1 + readings);
            each.push(taken as f64 / readings as f64);
        }
        (each, counts.0 as f64 / counts.1 as f64)
    }

    #[test]
    fn the_fraction_of_all_is_what_was_set_and_no_object_loses_more_than_it_may() {
        for wanted in [1.0, 0.97, 0.8, 0.65, 0.5, 0.2, f64::NAN] {
            let (weights, expected) = (
                objects(),
                if wanted.is_nan() {
                    1.0
                } else {
                    f64::max(wanted, 0.5)
                },
            );
            let admission = Admission::new(&weights, 0.5);
            let set = admission.set(wanted);
            assert!((set - expected).abs() < 1e-6, "{wanted} {set}");
            let (each, all) = admitted(&admission, &weights, 20_000);
            assert!((all - expected).abs() < 0.002, "{wanted} {all}");
            assert!(
                each.iter().all(|fraction| *fraction > 0.499),
                "{wanted} {each:?}"
            );
        }
    }

    #[test]
    fn what_counts_more_and_what_comes_seldom_is_shed_less() {
        let weights = objects();
        let admission = Admission::new(&weights, 0.5);
        admission.set(0.8);
        // 5 counts more than 4 and comes at nearly the same rate; 49 comes seldom.
        assert!(admission.fraction(5) > admission.fraction(4) + 0.1);
        assert!(admission.fraction(49) > admission.fraction(1) + 0.1);
        let loss = |object: usize| {
            let it = weights[object];
            it.weight * it.period_ms * (1.0 - admission.fraction(object))
        };
        // Those not at their least lose the same.
        assert!((loss(48) - loss(49)).abs() < 1e-3 * loss(49));
    }

    #[test]
    fn an_objects_readings_are_shed_evenly() {
        let one = [Weight {
            weight: 1.0,
            period_ms: 10.0,
        }];
        let admission = Admission::new(&one, 0.5);
        admission.set(0.75);
        let taken: Vec<_> = (0..400).map(|_| admission.admits(0)).collect();
        for four in taken.windows(4) {
            assert_eq!(four.iter().filter(|is_admitted| !**is_admitted).count(), 1);
        }
        assert!(admission.admits(7), "an object that is not known");
        assert_eq!(admission.shed_total(), 100);
    }
}
