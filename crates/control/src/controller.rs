//! The control law: from the outputs of a period to the inputs of the next one. Pure arithmetic: no clock, no files, no
//! threads; the same samples always give the same inputs.
//!
//! Both inputs follow both errors and their sums (Kang and Chung, equation 7). This file adds what that leaves out.
//! Inputs have limits, move by steps and no faster than allowed. Sums of errors do not grow while an input cannot
//! follow (back-calculation). While one input is at its limit, the other one holds tardiness alone, which is the more
//! important goal. If samples stop, the node runs at full speed with all updates. If the model becomes wrong, that is
//! reported.

use nalgebra::{Matrix2, Vector2};

use crate::design::Design;
use crate::identify::{Model, Sample, matrix};

/// Speed, the first input.
pub const SPEED: usize = 0;
/// Admitted fraction, the second one.
pub const ADMISSION: usize = 1;

/// Part of what an input could not follow that is subtracted from the sums at each sample.
const BACK_CALCULATION: f64 = 0.5;

/// A mean tardiness above this many set points counts as this many. The inputs reach their limits long before. So no
/// figure that a program reports moves the sums by more than a few other samples take back.
const TARDINESS_MAX: f64 = 4.0;

/// Consecutive samples for which an input is beyond its limits before the other one works alone: a peak passes sooner.
const LIMITED_AFTER: u32 = 3;

/// Samples over which the model's errors are judged.
const RESIDUAL_WINDOW: f64 = 20.0;

/// Standard deviations of the identification's errors beyond which the model no longer predicts.
const RESIDUAL_MAX: f64 = 3.0;

/// Largest value that the square of one sample's error counts as, in squares of the identification's. A single sample
/// takes the mean to the limit and not beyond.
const SURPRISE_MAX: f64 = RESIDUAL_MAX * RESIDUAL_MAX * RESIDUAL_WINDOW;

/// The least standard deviation of an output that is considered real: smaller ones mean that nothing was measured.
const RESIDUAL_LEAST: f64 = 1e-3;

/// Which inputs are driven.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// None: full speed, all updates.
    #[default]
    Open,
    /// Speed alone holds tardiness; all updates are admitted.
    SpeedOnly,
    /// The admitted fraction alone holds tardiness, at the present speed.
    AdmissionOnly,
    /// Both hold tardiness and the data response ratio.
    Both,
}

/// The range of an input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// Least value.
    pub min: f64,
    /// Greatest value.
    pub max: f64,
    /// Greatest change from one sample to the next.
    pub change_max: f64,
    /// A smaller change is not made: half a step of the actuator.
    pub dead_band: f64,
}

/// The set points of the controller.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SetPoints {
    /// Mean tardiness.
    pub tardiness: f64,
    /// Data response ratio.
    pub data_ratio: f64,
}

/// Why settings are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// A range is empty, or not a number.
    #[error("a range of an input has a least value below its greatest one, and steps above 0")]
    Range,
    /// A set point is out of range.
    #[error("set points are above 0, and the data response ratio is below 1")]
    SetPoint,
    /// The gains of the integral part cannot be used.
    #[error("the gains cannot be used: identify and design again")]
    Gains,
}

/// The limit that saturates an input: the law wants more, or less than a step back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Saturation {
    /// At none.
    #[default]
    Free,
    /// At its least value.
    Low,
    /// At its greatest value.
    High,
}

/// The inputs of the next period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Action {
    /// Speed and admitted fraction.
    pub inputs: [f64; 2],
    /// Which of them are at their limits.
    pub held: [Saturation; 2],
    /// Whether tardiness is held by one input alone because the other one is at its limit.
    pub is_single: bool,
    /// Whether samples have stopped, so that both inputs are at full.
    pub is_blind: bool,
    /// Whether the model predicts what is measured.
    pub is_model_true: bool,
}

/// The state of the loop.
#[derive(Clone, Debug)]
pub struct Controller {
    model: Model,
    proportional: Matrix2<f64>,
    integral: Matrix2<f64>,
    integral_inverse: Matrix2<f64>,
    single: [Option<(f64, f64)>; 2],
    ranges: [Range; 2],
    set_points: Vector2<f64>,
    mode: Mode,
    /// Sums of errors of the loop with both inputs.
    sums: Vector2<f64>,
    /// Sum of tardiness errors of the loop with one input.
    single_sum: f64,
    /// The inputs in force.
    inputs: Vector2<f64>,
    /// The input that is held at its limit while the other one works alone.
    limited: Option<usize>,
    /// Number of samples for which each input has been beyond its limits.
    beyond: [u32; 2],
    /// The loop begins with the next sample, without a jump.
    begins: bool,
    missing: u32,
    missing_max: u32,
    last: Option<Sample>,
    /// Mean square of the model's errors, in squares of the identification's.
    surprise: [f64; 2],
    last_error: Option<Vector2<f64>>,
    is_for_both: bool,
}

impl Controller {
    /// Makes a controller in [`Mode::Open`], with both inputs at full. After `missing_max` samples in a row without a
    /// figure it returns to that.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn new(
        model: Model,
        design: &Design,
        ranges: [Range; 2],
        set_points: SetPoints,
        missing_max: u32,
    ) -> Result<Self, ControlError> {
        let is_range = |range: &Range| {
            let all = [range.min, range.max, range.change_max, range.dead_band];
            all.iter().all(|value| value.is_finite())
                && range.min < range.max
                && range.change_max > 0.0
                && range.dead_band >= 0.0
        };
        if !ranges.iter().all(is_range) {
            return Err(ControlError::Range);
        }
        let integral = matrix(&design.integral);
        let integral_inverse = if design.is_for_both {
            integral.try_inverse().ok_or(ControlError::Gains)?
        } else {
            Matrix2::zeros()
        };
        let single = design
            .single
            .map(|gains| gains.map(|gains| (gains.proportional, gains.integral)))
            .map(|gains| gains.filter(|(_, integral)| *integral != 0.0));
        let mut made = Self {
            model,
            proportional: matrix(&design.proportional),
            integral,
            integral_inverse,
            single,
            ranges,
            set_points: Vector2::zeros(),
            mode: Mode::Open,
            sums: Vector2::zeros(),
            single_sum: 0.0,
            inputs: Vector2::new(ranges[0].max, ranges[1].max),
            limited: None,
            beyond: [0; 2],
            begins: true,
            missing: 0,
            missing_max: missing_max.max(1),
            last: None,
            surprise: [0.0; 2],
            last_error: None,
            is_for_both: design.is_for_both,
        };
        made.set_points(set_points)?;
        Ok(made)
    }

    /// Changes the set points, from the next sample on.
    ///
    /// # Errors
    /// [`ControlError::SetPoint`].
    pub fn set_points(&mut self, set_points: SetPoints) -> Result<(), ControlError> {
        let SetPoints {
            tardiness,
            data_ratio,
        } = set_points;
        let is_possible =
            tardiness.is_finite() && tardiness > 0.0 && data_ratio > 0.0 && data_ratio < 1.0;
        if !is_possible {
            return Err(ControlError::SetPoint);
        }
        self.set_points = Vector2::new(tardiness, data_ratio);
        Ok(())
    }

    /// Changes the least value of an input, which may also be its greatest: then the input cannot be reduced.
    pub fn set_min(&mut self, input: usize, min: f64) {
        if let Some(range) = self.ranges.get_mut(input).filter(|_| min.is_finite()) {
            range.min = min.clamp(0.0, range.max);
        }
    }

    /// Changes which inputs are driven; those that are continue from their present values. [`Mode::Both`] with gains
    /// that are not for both becomes [`Mode::Open`].
    pub fn set_mode(&mut self, mode: Mode) {
        let mode = match mode {
            Mode::Both if !self.is_for_both => Mode::Open,
            mode => mode,
        };
        if self.mode != mode {
            self.mode = mode;
            self.begins = true;
            self.limited = None;
        }
    }

    /// Which inputs are driven.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Takes the inputs that the actuators applied, where they differ from the requested ones.
    pub fn applied(&mut self, inputs: [f64; 2]) {
        if inputs.iter().all(|input| input.is_finite()) {
            self.inputs = Vector2::from(inputs);
        }
    }

    /// Runs one period, with its outputs, mean tardiness and data response ratio, or `None` if no instance has finished
    /// in it. A tardiness above four times its set point counts as that, a ratio outside 0 to 1 as the nearer of them.
    /// An output that is NaN or infinite makes the period one without a sample.
    pub fn step(&mut self, outputs: Option<[f64; 2]>) -> Action {
        let outputs = outputs.filter(|outputs| outputs.iter().all(|output| output.is_finite()));
        let Some([tardiness, data_ratio]) = outputs else {
            return self.without_sample();
        };
        let outputs = Vector2::new(
            tardiness.clamp(0.0, TARDINESS_MAX * self.set_points[0]),
            data_ratio.clamp(0.0, 1.0),
        );
        self.missing = 0;
        self.judge_model(&outputs);
        let error = self.set_points - outputs;
        let wanted = match self.mode {
            Mode::Open => self.full(),
            Mode::SpeedOnly => {
                let speed = self.single_step(SPEED, error[0]);
                Vector2::new(speed, self.ranges[ADMISSION].max)
            }
            Mode::AdmissionOnly => {
                let admission = self.single_step(ADMISSION, error[0]);
                Vector2::new(self.inputs[SPEED], admission)
            }
            Mode::Both => self.both_step(&error),
        };
        self.begins = false;
        self.put(&wanted);
        let held = self.held(&wanted);
        self.last = Some(Sample {
            outputs: outputs.into(),
            inputs: self.inputs.into(),
        });
        self.action(held, false)
    }

    /// Notes that samples have stopped for longer than the periods show: without one in the next step both inputs go to
    /// full.
    pub fn lose(&mut self) {
        self.missing = self.missing.max(self.missing_max.saturating_sub(1));
    }

    fn without_sample(&mut self) -> Action {
        self.missing = self.missing.saturating_add(1);
        self.last = None;
        self.last_error = None;
        let is_blind = self.missing >= self.missing_max;
        if is_blind {
            // Go to full at once: a controller without samples must not slow the node down.
            self.inputs = self.full();
            self.begins = true;
            self.limited = None;
        }
        self.action([Saturation::Free; 2], is_blind)
    }

    fn full(&self) -> Vector2<f64> {
        Vector2::new(self.ranges[0].max, self.ranges[1].max)
    }

    fn action(&self, held: [Saturation; 2], is_blind: bool) -> Action {
        Action {
            inputs: self.inputs.into(),
            held,
            is_single: self.limited.is_some(),
            is_blind,
            is_model_true: self
                .surprise
                .iter()
                .all(|square| *square <= RESIDUAL_MAX * RESIDUAL_MAX),
        }
    }

    /// Returns the value that an input can take at this sample.
    fn clamp(&self, input: usize, wanted: f64) -> f64 {
        let Range {
            min,
            max,
            change_max,
            ..
        } = self.ranges[input];
        let now = self.inputs[input];
        wanted
            .clamp(now - change_max, now + change_max)
            .clamp(min, max)
    }

    /// Returns where the limits of the range, not those of its changes, hold an input. The wanted value is beyond them,
    /// or within by less than a step.
    fn held(&self, wanted: &Vector2<f64>) -> [Saturation; 2] {
        [0, 1].map(|input| {
            let Range { min, max, .. } = self.ranges[input];
            let is_driven = match self.mode {
                Mode::Open => false,
                Mode::SpeedOnly => input == SPEED,
                Mode::AdmissionOnly => input == ADMISSION,
                Mode::Both => true,
            };
            match wanted[input] {
                _ if !is_driven => Saturation::Free,
                wanted if wanted < min || self.inputs[input] <= min => Saturation::Low,
                wanted if wanted > max || self.inputs[input] >= max => Saturation::High,
                _ => Saturation::Free,
            }
        })
    }

    fn put(&mut self, wanted: &Vector2<f64>) {
        for input in 0..2 {
            let clamped = self.clamp(input, wanted[input]);
            let Range {
                min,
                max,
                dead_band,
                ..
            } = self.ranges[input];
            // Always move to a limit: the input would otherwise stay half a step short of it for ever.
            let is_limit = clamped <= min || clamped >= max;
            if is_limit || (clamped - self.inputs[input]).abs() >= dead_band {
                self.inputs[input] = clamped;
            }
        }
    }

    /// Drives one input for tardiness alone; returns the wanted value, without limits.
    fn single_step(&mut self, input: usize, error: f64) -> f64 {
        let Some((proportional, integral)) = self.single[input] else {
            return self.inputs[input];
        };
        let center = self.model.inputs[input];
        if self.begins {
            // The sum with which the input stays where it is.
            self.single_sum = -(self.inputs[input] - center + proportional * error) / integral;
        }
        let wanted = center - (proportional * error + integral * self.single_sum);
        let possible = self.clamp(input, wanted);
        self.single_sum += error - BACK_CALCULATION * (possible - wanted) / integral;
        wanted
    }

    /// Drives both inputs for both outputs.
    fn both_step(&mut self, error: &Vector2<f64>) -> Vector2<f64> {
        let center = Vector2::from(self.model.inputs);
        if self.begins {
            let now = self.inputs - center + self.proportional * error;
            self.sums = -(self.integral_inverse * now);
        }
        let wanted = center - (self.proportional * error + self.integral * self.sums);
        self.sums += error;
        let possible = Vector2::new(self.clamp(0, wanted[0]), self.clamp(1, wanted[1]));
        for input in 0..2 {
            let Range { min, max, .. } = self.ranges[input];
            let is_beyond = wanted[input] < min || wanted[input] > max;
            self.beyond[input] = if is_beyond {
                self.beyond[input].saturating_add(1)
            } else {
                0
            };
        }
        let Some(input) = self.limited_by() else {
            self.limited = None;
            self.sums -= BACK_CALCULATION * (self.integral_inverse * (possible - wanted));
            return wanted;
        };
        // The other input holds tardiness alone, from its present value.
        let free = 1 - input;
        let begins = std::mem::replace(&mut self.begins, self.limited != Some(input));
        let mut alone = self.single_step(free, error[0]);
        self.begins = begins;
        if self.single[free].is_none() {
            alone = wanted[free];
        }
        self.limited = Some(input);
        // The loop of both follows the applied inputs, so that it can take over at any sample.
        let mut followed = wanted;
        followed[free] = self.clamp(free, alone);
        followed[input] += BACK_CALCULATION * (possible[input] - wanted[input]);
        self.sums -= self.integral_inverse * (followed - wanted);
        let mut answer = wanted;
        answer[free] = alone;
        answer
    }

    /// Returns the input that cannot follow and so leaves tardiness to the other one. If neither can, it stays as it
    /// is.
    fn limited_by(&self) -> Option<usize> {
        match self.beyond.map(|samples| samples >= LIMITED_AFTER) {
            [true, false] => Some(SPEED),
            [false, true] => Some(ADMISSION),
            [true, true] => self.limited,
            [false, false] => None,
        }
    }

    /// Compares the step from one sample to the next with the model's. It compares steps, because a load that stays
    /// moves the outputs and leaves the model true.
    fn judge_model(&mut self, outputs: &Vector2<f64>) {
        let Some(last) = self.last else {
            return;
        };
        let error = outputs - Vector2::from(self.model.predict(&last));
        if let Some(before) = self.last_error {
            let step = error - before;
            for output in 0..2 {
                let deviation = self.model.residual[output].max(RESIDUAL_LEAST);
                // Doubled, because a step is the difference of two errors.
                let square = step[output] * step[output] / (2.0 * deviation * deviation);
                let square = square.min(SURPRISE_MAX);
                self.surprise[output] += (square - self.surprise[output]) / RESIDUAL_WINDOW;
            }
        }
        self.last_error = Some(error);
    }
}
