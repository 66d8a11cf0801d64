//! The same job in a data centre: send the input, wait, fetch the result.
//!
//! T = D ÷ B_up + RTT + T1 ÷ σ + D_out ÷ B_down; E = (e_radio + e_net) (D + D_out) + PUE P T1 ÷ σ + P_i T. The last
//! term is the waiting board; boards that run anyway are not charged with it.

use super::job::{BoardPower, Boundary, Job};
use crate::Error;

/// A data centre and the connection to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DataCentre {
    /// Speed of a machine there ÷ speed of a board, σ.
    pub speed: f64,
    /// Power that the job is charged with there: of the whole machine, or only the part above its idle power.
    pub machine_w: f64,
    /// Power of the building ÷ power of its machines (power usage effectiveness).
    pub pue: f64,
    /// Bytes per second to it.
    pub up_bytes_per_s: f64,
    /// Bytes per second from it.
    pub down_bytes_per_s: f64,
    /// Round-trip time of an empty message.
    pub round_trip_s: f64,
    /// Energy of this device's radio or network card for one byte.
    pub radio_j_per_byte: f64,
    /// Energy of the network behind it for one byte.
    pub network_j_per_byte: f64,
}

/// Time and energy of one option.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// From the start to the result.
    pub time_s: f64,
    /// As far as the boundary charges it.
    pub energy_j: f64,
}

impl DataCentre {
    /// # Errors
    /// A number is out of its range.
    pub fn check(&self) -> Result<(), Error> {
        let positive = [
            ("speed", self.speed),
            ("up_bytes_per_s", self.up_bytes_per_s),
            ("down_bytes_per_s", self.down_bytes_per_s),
        ];
        for (what, value) in positive {
            if !(value > 0.0 && value.is_finite()) {
                return Err(Error::invalid(what, format!("is {value}, must be above 0")));
            }
        }
        let amounts = [
            ("machine_w", self.machine_w),
            ("round_trip_s", self.round_trip_s),
            ("radio_j_per_byte", self.radio_j_per_byte),
            ("network_j_per_byte", self.network_j_per_byte),
        ];
        for (what, value) in amounts {
            if !(value >= 0.0 && value.is_finite()) {
                return Err(Error::invalid(
                    what,
                    format!("is {value}, must be 0 or above"),
                ));
            }
        }
        if !(self.pue >= 1.0 && self.pue.is_finite()) {
            return Err(Error::invalid(
                "pue",
                format!("is {}, must be 1 or above", self.pue),
            ));
        }
        Ok(())
    }

    /// Returns the seconds of a machine there.
    #[must_use]
    pub fn machine_s(&self, job: &Job) -> f64 {
        job.single_s / self.speed
    }

    /// Returns time and energy of the job there.
    #[must_use]
    pub fn run(&self, job: &Job, board: &BoardPower, boundary: Boundary) -> Outcome {
        let machine_s = self.machine_s(job);
        let time_s = job.input_bytes / self.up_bytes_per_s
            + self.round_trip_s
            + machine_s
            + job.output_bytes / self.down_bytes_per_s;
        let moved = job.input_bytes + job.output_bytes;
        let waiting_w = match boundary {
            Boundary::BoardsOn => 0.0,
            Boundary::BoardsForJob => board.idle_w,
        };
        let energy_j = (self.radio_j_per_byte + self.network_j_per_byte) * moved
            + self.pue * self.machine_w * machine_s
            + waiting_w * time_s;
        Outcome { time_s, energy_j }
    }
}

impl DataCentre {
    /// Returns the bytes of input per second of computing on a board above which one board needs less energy than the
    /// data centre. The board runs anyway. The result is 0 if the board needs less with any input. `None` if sending
    /// costs nothing.
    #[must_use]
    pub fn input_rate_break_even(&self, board: &BoardPower) -> Option<f64> {
        let machine_w = self.pue * self.machine_w / self.speed;
        let sending_j_per_byte = self.radio_j_per_byte + self.network_j_per_byte;
        let left_w = board.active_w - board.idle_w - machine_w;
        (sending_j_per_byte > 0.0).then(|| (left_w / sending_j_per_byte).max(0.0))
    }
}

/// Returns the bytes of input per second of computing above which one board that runs anyway needs less energy than
/// sending alone. `None` if sending costs nothing.
#[must_use]
pub fn upload_rate_break_even(board: &BoardPower, sending_j_per_byte: f64) -> Option<f64> {
    (sending_j_per_byte > 0.0).then(|| (board.active_w - board.idle_w) / sending_j_per_byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn board() -> BoardPower {
        BoardPower::new(4.9871, 2.5663, 4.9871).expect("in range")
    }

    fn job() -> Job {
        Job {
            single_s: 10.0,
            parallel_fraction: 0.95,
            exchanges: Vec::new(),
            input_bytes: 10e6,
            output_bytes: 0.0,
        }
    }

    fn centre(speed: f64) -> DataCentre {
        DataCentre {
            speed,
            machine_w: 18.2385,
            pue: 1.5,
            up_bytes_per_s: 10e6 / 8.0,
            down_bytes_per_s: 10e6 / 8.0,
            round_trip_s: 0.05,
            radio_j_per_byte: 2e-6,
            network_j_per_byte: 4.8e-6,
        }
    }

    #[test]
    fn worked_numbers_are_reproduced() {
        let time = |speed| {
            centre(speed)
                .run(&job(), &board(), Boundary::BoardsForJob)
                .time_s
        };
        assert!((time(8.0) - 9.3).abs() < 1e-9);
        assert!((time(20.0) - 8.55).abs() < 1e-9);
        let full = centre(8.0).run(&job(), &board(), Boundary::BoardsForJob);
        let worked = 6.8e-6 * 10e6 + 1.5 * 18.2385 * 1.25 + 2.5663 * 9.3;
        assert!((full.energy_j - worked).abs() < 1e-9);
        let marginal = centre(8.0).run(&job(), &board(), Boundary::BoardsOn);
        assert!((full.energy_j - marginal.energy_j - 2.5663 * 9.3).abs() < 1e-9);
    }

    #[test]
    fn break_even_rates_are_reproduced() {
        for (sending, printed, within) in [
            (0.16e-6, 15.1, 0.05),
            (2e-6, 1.21, 0.005),
            (6.8e-6, 0.36, 0.005),
        ] {
            let rate = upload_rate_break_even(&board(), sending).expect("sending costs") / 1e6;
            assert!((rate - printed).abs() <= within, "{rate}");
        }
        assert_eq!(upload_rate_break_even(&board(), 0.0), None);
    }

    #[test]
    fn a_centre_that_cannot_be_is_refused() {
        let good = centre(8.0);
        assert_eq!(good.check(), Ok(()));
        for wrong in [
            DataCentre { speed: 0.0, ..good },
            DataCentre {
                up_bytes_per_s: f64::NAN,
                ..good
            },
            DataCentre { pue: 0.9, ..good },
            DataCentre {
                machine_w: -1.0,
                ..good
            },
            DataCentre {
                round_trip_s: f64::INFINITY,
                ..good
            },
        ] {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn a_faster_machine_or_uplink_is_never_slower(speed in 0.1..100.0, factor in 1.0..10.0) {
            let slow = centre(speed).run(&job(), &board(), Boundary::BoardsForJob);
            let fast = centre(speed * factor).run(&job(), &board(), Boundary::BoardsForJob);
            let wide = DataCentre { up_bytes_per_s: 1.25e6 * factor, ..centre(speed) };
            let wide = wide.run(&job(), &board(), Boundary::BoardsForJob);
            prop_assert!(fast.time_s <= slow.time_s && fast.energy_j <= slow.energy_j);
            prop_assert!(wide.time_s <= slow.time_s && wide.energy_j <= slow.energy_j);
        }
    }
}
