//! A job on n boards, with the cost of communication: time T(n), energy E(n), and the best n.
//!
//! T(n) = T1 ((1 − f) + f ÷ n) + C(n), C(n) = Σ R ceil(log2 n) (α + m β), C(1) = 0;
//! E(n) = P_a T1 + (n − 1) P_i (1 − f) T1 + n P_c C(n) + P_switch T(n). Boards wait for messages by polling, so P_c is
//! near P_a unless it was measured.

use super::hockney::Curve;
use crate::Error;

/// Power of one board in watts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BoardPower {
    /// While it computes.
    pub active_w: f64,
    /// Without load.
    pub idle_w: f64,
    /// While it sends, receives or waits for messages.
    pub communicating_w: f64,
}

/// What the energy of a job includes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boundary {
    /// Boards run anyway: a job is charged with what it adds to idle power.
    BoardsOn,
    /// Boards run for the job alone: it is charged with all of their power.
    BoardsForJob,
}

/// Equal messages between all boards, as a collective of ceil(log2 n) rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exchange {
    /// Number of exchanges in one job.
    pub times: f64,
    /// Size of each message.
    pub bytes: f64,
}

/// The job to be computed.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Time on one board, T1.
    pub single_s: f64,
    /// Fraction that can be shared out, f.
    pub parallel_fraction: f64,
    /// Communication between n boards.
    pub exchanges: Vec<Exchange>,
    /// Bytes that would be sent to a data centre.
    pub input_bytes: f64,
    /// Bytes that would be sent back.
    pub output_bytes: f64,
}

/// Connected boards.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// Power of each board.
    pub board: BoardPower,
    /// Power of the device that connects them.
    pub switch_w: f64,
    /// Cost of a message.
    pub link: Curve,
}

/// What to minimise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Objective {
    /// Energy × delay.
    EnergyDelay,
    /// Time.
    Time,
    /// Energy, among the numbers of boards that end by a deadline in seconds.
    EnergyWithin(f64),
}

impl BoardPower {
    /// # Errors
    /// A power is negative or not finite, or idle power is above active power.
    pub fn new(active_w: f64, idle_w: f64, communicating_w: f64) -> Result<Self, Error> {
        for (what, watts) in [
            ("active_w", active_w),
            ("idle_w", idle_w),
            ("communicating_w", communicating_w),
        ] {
            if !(watts >= 0.0 && watts.is_finite()) {
                return Err(Error::invalid(
                    what,
                    format!("is {watts}, must be 0 or above"),
                ));
            }
        }
        if idle_w > active_w {
            let wrong = format!("is {idle_w}, above active_w, {active_w}: a load that saves power");
            return Err(Error::invalid("idle_w", wrong));
        }
        Ok(Self {
            active_w,
            idle_w,
            communicating_w,
        })
    }

    /// Returns the power that a computing board is charged with.
    #[must_use]
    pub fn charged_w(&self, boundary: Boundary) -> f64 {
        match boundary {
            Boundary::BoardsOn => self.active_w - self.idle_w,
            Boundary::BoardsForJob => self.active_w,
        }
    }

    /// Returns the speed of another machine, in multiples of a board's speed, from which on it needs less energy than
    /// the boards. The job is wholly parallel and has no communication. The number of boards cancels out. `machine_w`
    /// is the power that the machine is charged with. `None` if the board is charged with nothing.
    #[must_use]
    pub fn speed_break_even(&self, boundary: Boundary, machine_w: f64) -> Option<f64> {
        let charged = self.charged_w(boundary);
        (charged > 0.0).then(|| machine_w / charged)
    }
}

impl Job {
    /// # Errors
    /// A number is out of its range.
    pub fn check(&self) -> Result<(), Error> {
        if !(self.single_s > 0.0 && self.single_s.is_finite()) {
            let wrong = format!("is {}, must be above 0", self.single_s);
            return Err(Error::invalid("single_s", wrong));
        }
        if !(0.0..=1.0).contains(&self.parallel_fraction) {
            let wrong = format!("is {}, must be from 0 to 1", self.parallel_fraction);
            return Err(Error::invalid("parallel_fraction", wrong));
        }
        let exchanged = self
            .exchanges
            .iter()
            .flat_map(|exchange| [exchange.times, exchange.bytes]);
        for amount in exchanged.chain([self.input_bytes, self.output_bytes]) {
            if !(amount >= 0.0 && amount.is_finite()) {
                return Err(Error::invalid(
                    "job",
                    format!("has an amount of {amount}, must be 0 or above"),
                ));
            }
        }
        Ok(())
    }

    /// Returns C(n): seconds of communication.
    #[must_use]
    pub fn communication_s(&self, link: &Curve, boards: u32) -> f64 {
        let rounds = f64::from(rounds(boards));
        let costs = self
            .exchanges
            .iter()
            .map(|exchange| exchange.times * link.seconds(exchange.bytes));
        rounds * costs.sum::<f64>()
    }

    /// Returns T(n).
    #[must_use]
    pub fn time_s(&self, link: &Curve, boards: u32) -> f64 {
        let shared = self.parallel_fraction / f64::from(boards.max(1));
        self.single_s * ((1.0 - self.parallel_fraction) + shared)
            + self.communication_s(link, boards)
    }

    /// Returns E(n), as far as the boundary charges it.
    #[must_use]
    pub fn energy_j(&self, cluster: &Cluster, boundary: Boundary, boards: u32) -> f64 {
        let count = f64::from(boards.max(1));
        let board = &cluster.board;
        let communication_s = self.communication_s(&cluster.link, boards);
        let time_s = self.time_s(&cluster.link, boards);
        let serial_s = (1.0 - self.parallel_fraction) * self.single_s;
        let whole = board.active_w * self.single_s
            + (count - 1.0) * board.idle_w * serial_s
            + count * board.communicating_w * communication_s;
        // One board needs no switch.
        let switch_w = if boards > 1 { cluster.switch_w } else { 0.0 };
        match boundary {
            Boundary::BoardsForJob => whole + switch_w * time_s,
            // The switch of boards that run anyway also runs anyway.
            Boundary::BoardsOn => whole - count * board.idle_w * time_s,
        }
    }

    /// Returns the number of boards from 1 to `boards_max` with the smallest objective; the fewest if equal. `None` if
    /// no number ends by the deadline.
    #[must_use]
    pub fn boards_best(
        &self,
        cluster: &Cluster,
        boundary: Boundary,
        objective: Objective,
        boards_max: u32,
    ) -> Option<u32> {
        let mut best: Option<(f64, u32)> = None;
        for boards in 1..=boards_max.max(1) {
            let time_s = self.time_s(&cluster.link, boards);
            let energy_j = self.energy_j(cluster, boundary, boards);
            let value = match objective {
                Objective::EnergyDelay => energy_j * time_s,
                Objective::Time => time_s,
                Objective::EnergyWithin(deadline_s) if time_s > deadline_s => continue,
                Objective::EnergyWithin(_) => energy_j,
            };
            if best.is_none_or(|(least, _)| value < least) {
                best = Some((value, boards));
            }
        }
        best.map(|(_, boards)| boards)
    }
}

/// Returns ceil(log2 n).
fn rounds(boards: u32) -> u32 {
    boards.max(1).next_power_of_two().trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cluster(alpha_s: f64, rate: f64) -> Cluster {
        Cluster {
            board: BoardPower::new(4.9871, 2.5663, 4.9871).expect("in range"),
            switch_w: 0.0,
            link: Curve::line(alpha_s, 1.0 / rate).expect("in range"),
        }
    }

    fn job(times: f64, bytes: f64) -> Job {
        Job {
            single_s: 10.0,
            parallel_fraction: 0.95,
            exchanges: vec![Exchange { times, bytes }],
            input_bytes: 10e6,
            output_bytes: 0.0,
        }
    }

    #[test]
    fn worked_numbers_are_reproduced() {
        let gigabit = cluster(10e-6, 122e6);
        let slow = cluster(60e-6, 12e6);
        let small = job(200.0, 65_536.0);
        let large = job(50.0, 1_048_576.0);
        for (job, cluster, best, time_s, energy_j) in [
            (&small, &gigabit, 8, 3.09, 58.0),
            (&small, &slow, 2, 5.08, 98.0),
            (&large, &gigabit, 4, 3.74, 71.0),
            (&large, &slow, 1, 11.6, 228.0),
        ] {
            let found =
                job.boards_best(cluster, Boundary::BoardsForJob, Objective::EnergyDelay, 16);
            assert_eq!(found, Some(best));
            assert!((job.time_s(&cluster.link, 4) / time_s - 1.0).abs() < 0.005);
            assert!((job.energy_j(cluster, Boundary::BoardsForJob, 4) - energy_j).abs() < 0.6);
        }
        assert!((small.energy_j(&gigabit, Boundary::BoardsForJob, 1) - 49.871).abs() < 1e-9);
    }

    #[test]
    fn break_even_speeds_are_reproduced() {
        let board = cluster(0.0, 1.0).board;
        let near = |boundary, machine_w, printed: f64| {
            let speed = board
                .speed_break_even(boundary, machine_w)
                .expect("charged");
            assert!((speed - printed).abs() < 0.005, "{speed}");
        };
        near(Boundary::BoardsForJob, 18.2385, 3.66);
        near(Boundary::BoardsOn, 18.2385, 7.53);
        near(Boundary::BoardsOn, 18.2385 - 4.4801, 5.68);
        let free = BoardPower::new(2.0, 2.0, 2.0).expect("in range");
        assert_eq!(free.speed_break_even(Boundary::BoardsOn, 18.0), None);
    }

    #[test]
    fn a_deadline_that_nothing_meets_has_no_answer() {
        let gigabit = cluster(10e-6, 122e6);
        let best = |deadline_s| {
            let within = Objective::EnergyWithin(deadline_s);
            job(200.0, 65_536.0).boards_best(&gigabit, Boundary::BoardsForJob, within, 16)
        };
        assert_eq!(best(0.1), None);
        assert_eq!(best(10.0), Some(1));
        assert_eq!(best(3.1), Some(4));
    }

    proptest! {
        #[test]
        fn a_silent_job_is_woo_and_lee(parallel in 0.0..=1.0, idle in 0.0..=1.0, boards in 1_u32..64) {
            let silent = Job { single_s: 3.0, parallel_fraction: parallel, exchanges: Vec::new(), ..job(0.0, 0.0) };
            let cluster = Cluster {
                board: BoardPower::new(5.0, 5.0 * idle, 5.0).expect("in range"),
                ..cluster(1.0, 1.0)
            };
            let scaling = crate::model::Scaling::new(parallel, idle).expect("in range");
            let time = silent.time_s(&cluster.link, boards) / 3.0;
            let energy = silent.energy_j(&cluster, Boundary::BoardsForJob, boards) / 15.0;
            prop_assert!((time - scaling.time(boards)).abs() < 1e-9);
            prop_assert!((energy - scaling.energy(boards)).abs() < 1e-9);
        }

        #[test]
        fn boards_never_save_energy(
            parallel in 0.0..=1.0, times in 0.0..1e4, bytes in 0.0..1e6, boards in 1_u32..64, switch_w in 0.0..20.0,
        ) {
            let job = Job { parallel_fraction: parallel, ..job(times, bytes) };
            let cluster = Cluster { switch_w, ..cluster(1e-5, 1e8) };
            for boundary in [Boundary::BoardsOn, Boundary::BoardsForJob] {
                let one = job.energy_j(&cluster, boundary, 1);
                prop_assert!(job.energy_j(&cluster, boundary, boards) >= one * (1.0 - 1e-9));
            }
            prop_assert!(
                job.energy_j(&cluster, Boundary::BoardsOn, boards)
                    <= job.energy_j(&cluster, Boundary::BoardsForJob, boards)
            );
        }

        #[test]
        fn one_board_has_no_communication_time(times in 0.0..1e6, bytes in 0.0..1e9) {
            prop_assert_eq!(job(times, bytes).communication_s(&cluster(1.0, 1.0).link, 1), 0.0);
        }
    }

    #[test]
    fn rounds_are_the_rounded_logarithm() {
        let found: Vec<u32> = [0, 1, 2, 3, 4, 5, 8, 9].into_iter().map(rounds).collect();
        assert_eq!(found, [0, 0, 1, 2, 2, 3, 3, 4]);
    }
}
