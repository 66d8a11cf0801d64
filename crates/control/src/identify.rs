//! The node's model: how its outputs follow its inputs, fitted to a run in which both inputs were driven.
//!
//! y(k+1) = A y(k) + B u(k), as differences from an operating point. y is mean tardiness and data response ratio of
//! period k, u the speed and the admitted fraction that are set at its end. The method is that of Kang and Chung, "QoS
//! Management for Embedded Databases in Multicore-Based Embedded Systems", section 4.3.1. Both inputs are driven by
//! square waves of relatively prime periods, least squares give the parameters, and R² says how good they are. Here R²
//! is computed over a part of the run that the fit has not seen.

use nalgebra::{Matrix2, Matrix4, Matrix4x2, Vector2, Vector4};

/// Half periods, in samples, of the square waves of the inputs: relatively prime, so that all combinations occur.
pub const HALF_PERIODS: [u64; 2] = [7, 5];

/// R² of each output below which a model is refused.
pub const R2_MIN: f64 = 0.8;

/// Condition number of the regressors above which a model is refused: the run does not distinguish the inputs.
pub const CONDITION_MAX: f64 = 1e3;

/// Least number of samples for a fit.
pub const SAMPLES_MIN: usize = 40;

/// Part of the run that the fit sees; the rest judges it.
const FITTED_SHARE: f64 = 0.75;

/// One sampling period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Mean tardiness and data response ratio of the period.
    pub outputs: [f64; 2],
    /// Speed and admitted fraction set at its end.
    pub inputs: [f64; 2],
}

/// The result of the fit. Matrices by rows: the first row is that of tardiness, the first column that of tardiness or
/// of speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// How outputs follow outputs.
    pub a: [[f64; 2]; 2],
    /// How outputs follow inputs.
    pub b: [[f64; 2]; 2],
    /// Inputs of the operating point.
    pub inputs: [f64; 2],
    /// Outputs at which the node settles with these inputs.
    pub outputs: [f64; 2],
    /// Of each output: 1 - var(error) / var(output), one step ahead, over the part that was held out.
    pub r2: [f64; 2],
    /// Standard deviation of these errors.
    pub residual: [f64; 2],
    /// Condition number of the regressors.
    pub condition: f64,
    /// Samples of the whole run.
    pub samples: u32,
}

/// Why there is no model.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum IdentifyError {
    /// The run was too short.
    #[error(
        "{0} samples are too few to fit a model to; {SAMPLES_MIN} are needed, and 400 are better"
    )]
    TooFew(usize),
    /// A sample is no number.
    #[error("sample {0} is no finite number")]
    NoNumber(usize),
    /// The inputs did not move, or always together.
    #[error(
        "the run does not tell the inputs apart (condition number {0:.3e}); drive both, by square waves of different \
         periods"
    )]
    Condition(f64),
    /// The model predicts too little.
    #[error(
        "the model explains too little (R² of tardiness {:.3}, of the data response ratio {:.3}; {R2_MIN} are needed); \
         drive the inputs further, or give the task more instances for each sample",
        .0[0], .0[1]
    )]
    Fit([f64; 2]),
}

/// Value of a driven input at sample `k`: a square wave around `center`.
#[must_use]
pub fn square_wave(k: u64, half_period: u64, center: f64, amplitude: f64) -> f64 {
    if (k / half_period.max(1)).is_multiple_of(2) {
        center + amplitude
    } else {
        center - amplitude
    }
}

impl Model {
    /// Fits a model to a run, good or bad: [`check`](Self::check) judges it.
    ///
    /// # Errors
    /// [`IdentifyError::TooFew`], [`IdentifyError::NoNumber`], and [`IdentifyError::Condition`] when no model follows
    /// from the run at all.
    pub fn fit(run: &[Sample]) -> Result<Self, IdentifyError> {
        if run.len() < SAMPLES_MIN {
            return Err(IdentifyError::TooFew(run.len()));
        }
        let is_number = |sample: &Sample| {
            let all = sample.outputs.iter().chain(&sample.inputs);
            all.copied().all(f64::is_finite)
        };
        if let Some(place) = run.iter().position(|sample| !is_number(sample)) {
            return Err(IdentifyError::NoNumber(place));
        }
        let fitted = (run.len() as f64 * FITTED_SHARE) as usize;
        let (seen, held_out) = (&run[..fitted], &run[fitted - 1..]);
        let (left, right) = means(seen);
        let (mut gram, mut cross) = (Matrix4::zeros(), Matrix4x2::zeros());
        for (regressor, next) in steps(seen) {
            let (regressor, next) = (regressor - left, next - right);
            gram += regressor * regressor.transpose();
            cross += regressor * next.transpose();
        }
        let condition = condition_of(&gram);
        let solved = gram.cholesky().map(|factors| factors.solve(&cross));
        let Some(theta) = solved.filter(|_| condition.is_finite()) else {
            return Err(IdentifyError::Condition(condition));
        };
        let theta = theta.transpose();
        let a: Matrix2<f64> = theta.fixed_columns::<2>(0).into_owned();
        let b: Matrix2<f64> = theta.fixed_columns::<2>(2).into_owned();
        // At the mean inputs the outputs settle at their fixed point.
        let constant = right - theta * left;
        let inputs = Vector2::new(left[2], left[3]);
        let Some(inverse) = (Matrix2::identity() - a).try_inverse() else {
            return Err(IdentifyError::Condition(f64::INFINITY));
        };
        let outputs = inverse * (b * inputs + constant);
        let (r2, residual) = judge(held_out, |regressor| theta * regressor + constant);
        Ok(Self {
            a: rows(&a),
            b: rows(&b),
            inputs: inputs.into(),
            outputs: outputs.into(),
            r2,
            residual,
            condition,
            samples: run.len() as u32,
        })
    }

    /// Refuses a model that is of no use for control.
    ///
    /// # Errors
    /// [`IdentifyError::Condition`], [`IdentifyError::Fit`].
    pub fn check(&self) -> Result<(), IdentifyError> {
        // This form also refuses NaN.
        let is_told_apart = self.condition <= CONDITION_MAX;
        if !is_told_apart {
            return Err(IdentifyError::Condition(self.condition));
        }
        let is_explained = self.r2.iter().all(|r2| *r2 >= R2_MIN);
        if !is_explained {
            return Err(IdentifyError::Fit(self.r2));
        }
        Ok(())
    }

    /// Refuses a model that does not even explain tardiness, which one input alone needs to hold it.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn check_tardiness(&self) -> Result<(), IdentifyError> {
        let r2 = [self.r2[0], 1.0];
        Self { r2, ..*self }.check().map_err(|error| match error {
            IdentifyError::Fit(_) => IdentifyError::Fit(self.r2),
            other => other,
        })
    }

    /// Returns the outputs of the next period that the model predicts.
    #[must_use]
    pub fn predict(&self, sample: &Sample) -> [f64; 2] {
        let y = Vector2::from(sample.outputs) - Vector2::from(self.outputs);
        let u = Vector2::from(sample.inputs) - Vector2::from(self.inputs);
        (Vector2::from(self.outputs) + matrix(&self.a) * y + matrix(&self.b) * u).into()
    }

    /// Returns the greatest change of the settled outputs that an input can make over its range: outputs by inputs.
    #[must_use]
    pub fn authority(&self, ranges: [f64; 2]) -> Option<[[f64; 2]; 2]> {
        let inverse = (Matrix2::identity() - matrix(&self.a)).try_inverse()?;
        let gain = inverse * matrix(&self.b);
        Some(rows(&Matrix2::from_fn(|row, column| {
            (gain[(row, column)] * ranges[column]).abs()
        })))
    }
}

/// A matrix from its rows.
pub(crate) fn matrix(rows: &[[f64; 2]; 2]) -> Matrix2<f64> {
    Matrix2::new(rows[0][0], rows[0][1], rows[1][0], rows[1][1])
}

pub(crate) fn rows(matrix: &Matrix2<f64>) -> [[f64; 2]; 2] {
    [0, 1].map(|row| [matrix[(row, 0)], matrix[(row, 1)]])
}

/// Returns what is known at the end of a period, and the outputs of the next one.
fn steps(run: &[Sample]) -> impl Iterator<Item = (Vector4<f64>, Vector2<f64>)> {
    run.windows(2).map(|pair| {
        let (y, u) = (pair[0].outputs, pair[0].inputs);
        (
            Vector4::new(y[0], y[1], u[0], u[1]),
            Vector2::from(pair[1].outputs),
        )
    })
}

fn means(run: &[Sample]) -> (Vector4<f64>, Vector2<f64>) {
    let zero = (Vector4::zeros(), Vector2::zeros());
    let sum = steps(run).fold(zero, |sum, (left, right)| (sum.0 + left, sum.1 + right));
    let count = (run.len() - 1) as f64;
    (sum.0 / count, sum.1 / count)
}

/// Returns the condition number of the regressors, not of their products.
fn condition_of(gram: &Matrix4<f64>) -> f64 {
    // Squares of huge samples overflow: there is nothing to find, and the search would not end.
    if !gram.iter().all(|element| element.is_finite()) {
        return f64::INFINITY;
    }
    let values = gram.symmetric_eigenvalues();
    let (least, most) = (values.min(), values.max());
    if least > 0.0 {
        (most / least).sqrt()
    } else {
        f64::INFINITY
    }
}

/// Returns R² and standard deviation of the errors, of predictions one step ahead.
fn judge(run: &[Sample], predict: impl Fn(Vector4<f64>) -> Vector2<f64>) -> ([f64; 2], [f64; 2]) {
    let count = (run.len() - 1) as f64;
    let errors = steps(run).map(|(left, right)| right - predict(left));
    let variances = |values: &mut dyn Iterator<Item = Vector2<f64>>| {
        let (sum, squares) = values.fold(
            (Vector2::zeros(), Vector2::zeros()),
            |(sum, squares), value| (sum + value, squares + value.component_mul(&value)),
        );
        let mean: Vector2<f64> = sum / count;
        squares / count - mean.component_mul(&mean)
    };
    let error = variances(&mut errors.into_iter());
    let output = variances(&mut steps(run).map(|(_, right)| right));
    (
        [0, 1].map(|place| 1.0 - error[place] / output[place]),
        [0, 1].map(|place| error[place].max(0.0).sqrt()),
    )
}
