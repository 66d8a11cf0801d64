//! Performance and energy of n equal boards, as in equations 3.3 and 3.4 of the thesis. They follow Amdahl, and Woo and
//! Lee, "Extending Amdahl's Law for Energy-Efficient Computing in the Many-Core Era" (2008). Everything is relative to
//! one busy board: its time, power and energy are 1.

use crate::Error;

/// A job's parallel fraction and a board's idle power.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaling {
    /// Part of the work that can be shared out, 0 to 1.
    parallel: f64,
    /// Idle power ÷ power when busy, 0 to 1.
    idle: f64,
}

impl Scaling {
    /// # Errors
    /// `parallel` or `idle` is not from 0 to 1.
    pub fn new(parallel: f64, idle: f64) -> Result<Self, Error> {
        for (what, value) in [("parallel fraction", parallel), ("idle power ratio", idle)] {
            if !(0.0..=1.0).contains(&value) {
                return Err(Error::invalid(
                    what,
                    format!("is {value}, must be from 0 to 1"),
                ));
            }
        }
        Ok(Self { parallel, idle })
    }

    /// Returns the time on `boards`, relative to one board: (1 − f) + f ÷ n.
    #[must_use]
    pub fn time(&self, boards: u32) -> f64 {
        (1.0 - self.parallel) + self.parallel / count(boards)
    }

    /// Returns Perf, equation 3.3.
    #[must_use]
    pub fn performance(&self, boards: u32) -> f64 {
        1.0 / self.time(boards)
    }

    /// Returns the energy on `boards`, relative to one board: 1 + (n − 1) k (1 − f). Waiting boards idle through the
    /// serial part.
    #[must_use]
    pub fn energy(&self, boards: u32) -> f64 {
        1.0 + (count(boards) - 1.0) * self.idle * (1.0 - self.parallel)
    }

    /// Returns W, the average power of all boards, relative to one busy board.
    #[must_use]
    pub fn power(&self, boards: u32) -> f64 {
        self.energy(boards) / self.time(boards)
    }

    /// Returns Perf/W, equation 3.4: the reciprocal of energy, so it never rises with the number of boards.
    #[must_use]
    pub fn performance_per_watt(&self, boards: u32) -> f64 {
        1.0 / self.energy(boards)
    }

    /// Returns Perf/J: the reciprocal of energy × delay. It can have a maximum.
    #[must_use]
    pub fn performance_per_joule(&self, boards: u32) -> f64 {
        1.0 / self.energy_delay(boards)
    }

    /// Returns energy × delay.
    #[must_use]
    pub fn energy_delay(&self, boards: u32) -> f64 {
        self.energy(boards) * self.time(boards)
    }

    /// Returns the real number of boards with the least energy × delay: sqrt(f (1 − k (1 − f)) ÷ (k (1 − f)²)). It may
    /// be below one. `None` if each further board pays: everything is parallel, or idle boards cost nothing.
    #[must_use]
    pub fn boards_best(&self) -> Option<f64> {
        let serial = 1.0 - self.parallel;
        let divisor = self.idle * serial * serial;
        let best = (self.parallel * (1.0 - self.idle * serial) / divisor).sqrt();
        (divisor > 0.0 && best.is_finite()).then_some(best)
    }

    /// Returns the whole number of boards, up to `boards_max`, with the least energy × delay. It is next to the real
    /// one, because energy × delay falls before that and rises after it.
    #[must_use]
    pub fn boards_best_whole(&self, boards_max: u32) -> u32 {
        let boards_max = boards_max.max(1);
        let Some(best) = self.boards_best() else {
            return if self.parallel > 0.0 { boards_max } else { 1 };
        };
        let below = best.floor().clamp(1.0, f64::from(boards_max)) as u32;
        let above = best.ceil().clamp(1.0, f64::from(boards_max)) as u32;
        if self.energy_delay(above) < self.energy_delay(below) {
            above
        } else {
            below
        }
    }

    /// Returns the parallel fraction for which `boards` is the best number, with idle power ratio `idle`. The serial
    /// fraction g is the root of k (n² − 1) g² + (1 + k) g = 1.
    ///
    /// # Errors
    /// `boards` is not above 1, or `idle` not above 0 and at most 1.
    pub fn parallel_for(boards: f64, idle: f64) -> Result<f64, Error> {
        if !(boards > 1.0 && boards.is_finite()) {
            return Err(Error::invalid(
                "boards",
                format!("is {boards}, must be above 1"),
            ));
        }
        if !(idle > 0.0 && idle <= 1.0) {
            let wrong = format!("is {idle}, must be above 0 and at most 1");
            return Err(Error::invalid("idle power ratio", wrong));
        }
        let square = idle * (boards * boards - 1.0);
        let linear = 1.0 + idle;
        // The same root as the usual formula, in a form without cancellation for small `square`.
        let serial = 2.0 / (linear + (linear * linear + 4.0 * square).sqrt());
        Ok(1.0 - serial)
    }
}

/// Returns measured Perf/W: a benchmark's result (KB/s, transactions/s) ÷ average watts. It is not equation 3.4.
#[must_use]
pub fn measured_per_watt(result: f64, watts: f64) -> Option<f64> {
    (watts > 0.0 && watts.is_finite() && result.is_finite()).then(|| result / watts)
}

fn count(boards: u32) -> f64 {
    f64::from(boards.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// f, then Perf/W and energy × delay for n = 2 to 6, then n*; k = 0.53.
    type Worked = (f64, [(f64, f64); 5], f64);

    const WORKED: &[Worked] = &[
        (
            0.5,
            [
                (0.791, 0.949),
                (0.654, 1.020),
                (0.557, 1.122),
                (0.485, 1.236),
                (0.430, 1.356),
            ],
            1.67,
        ),
        (
            0.7,
            [
                (0.863, 0.753),
                (0.759, 0.703),
                (0.677, 0.702),
                (0.611, 0.720),
                (0.557, 0.748),
            ],
            3.51,
        ),
        (
            0.8,
            [
                (0.904, 0.664),
                (0.825, 0.566),
                (0.759, 0.527),
                (0.702, 0.513),
                (0.654, 0.510),
            ],
            5.81,
        ),
        (
            0.9,
            [
                (0.950, 0.579),
                (0.904, 0.442),
                (0.863, 0.377),
                (0.825, 0.339),
                (0.791, 0.316),
            ],
            12.68,
        ),
    ];

    #[test]
    fn worked_numbers_are_reproduced() {
        for (parallel, rows, best) in WORKED {
            let scaling = Scaling::new(*parallel, 0.53).expect("in range");
            for (boards, (per_watt, energy_delay)) in (2..).zip(rows) {
                let near = |value: f64, printed: f64| (value - printed).abs() <= 0.000_5 + 1e-9;
                assert!(
                    near(scaling.performance_per_watt(boards), *per_watt),
                    "{parallel} {boards}"
                );
                assert!(
                    near(scaling.energy_delay(boards), *energy_delay),
                    "{parallel} {boards}"
                );
            }
            assert!((scaling.boards_best().expect("finite") - best).abs() < 0.005 + 1e-9);
        }
    }

    #[test]
    fn three_to_four_boards_need_these_parallel_fractions() {
        // Printed with two digits; one of them is 0.7048, printed as 0.71.
        for (idle, low, high) in [(0.53, 0.66, 0.73), (0.44, 0.63, 0.71), (0.61, 0.68, 0.75)] {
            let at = |boards| Scaling::parallel_for(boards, idle).expect("in range");
            assert!((at(3.0) - low).abs() < 0.005_5, "{idle}: {}", at(3.0));
            assert!((at(4.0) - high).abs() < 0.005_5, "{idle}: {}", at(4.0));
        }
    }

    #[test]
    fn fractions_out_of_range_are_refused() {
        for (parallel, idle) in [
            (-0.1, 0.5),
            (1.1, 0.5),
            (f64::NAN, 0.5),
            (0.5, -1.0),
            (0.5, f64::INFINITY),
        ] {
            assert!(Scaling::new(parallel, idle).is_err(), "{parallel} {idle}");
        }
        for (boards, idle) in [(1.0, 0.5), (f64::NAN, 0.5), (3.0, 0.0), (3.0, 1.1)] {
            assert!(
                Scaling::parallel_for(boards, idle).is_err(),
                "{boards} {idle}"
            );
        }
        assert_eq!(measured_per_watt(10.0, 0.0), None);
        assert_eq!(measured_per_watt(10.0, 4.0), Some(2.5));
    }

    proptest! {
        #[test]
        fn one_board_has_the_scaling_of_1(parallel in 0.0..=1.0, idle in 0.0..=1.0) {
            let scaling = Scaling::new(parallel, idle).expect("in range");
            for value in [scaling.time(1), scaling.energy(1), scaling.power(1), scaling.performance_per_watt(1)] {
                prop_assert!((value - 1.0).abs() < 1e-12);
            }
        }

        #[test]
        fn boards_buy_time_and_never_energy(parallel in 0.0..=1.0, idle in 0.0..=1.0, boards in 1_u32..200) {
            let scaling = Scaling::new(parallel, idle).expect("in range");
            prop_assert!(scaling.time(boards + 1) <= scaling.time(boards));
            prop_assert!(scaling.energy(boards + 1) >= scaling.energy(boards));
            prop_assert!(scaling.performance_per_watt(boards + 1) <= scaling.performance_per_watt(boards));
            // At most the power of all boards when busy.
            prop_assert!(scaling.power(boards) <= f64::from(boards) * (1.0 + 1e-12));
        }

        #[test]
        fn the_closed_form_is_where_a_search_ends(parallel in 0.0..=1.0, idle in 0.0..=1.0, most in 1_u32..300) {
            let scaling = Scaling::new(parallel, idle).expect("in range");
            let found = scaling.energy_delay(scaling.boards_best_whole(most));
            let least = (1..=most).map(|boards| scaling.energy_delay(boards)).fold(f64::INFINITY, f64::min);
            prop_assert!(found <= least * (1.0 + 1e-12), "{found} {least}");
        }

        #[test]
        fn the_fraction_for_a_number_leads_back_to_it(boards in 1.01..100.0, idle in 0.01..=1.0) {
            let parallel = Scaling::parallel_for(boards, idle).expect("in range");
            let best = Scaling::new(parallel, idle).expect("in range").boards_best().expect("finite");
            prop_assert!((best / boards - 1.0).abs() < 1e-6, "{best} {boards}");
        }
    }
}
