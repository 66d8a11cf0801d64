//! The controller's gains, from the model: a linear quadratic regulator of the errors and their sums.
//!
//! e = r - y; e(k+1) = A e(k) - B u(k); x(k+1) = x(k) + e(k); u = -(P e + I x). The gains minimise the sum of zᵀ Q z +
//! uᵀ R u, z = (e, x). They follow from the solution of the discrete algebraic Riccati equation (Kang and Chung,
//! section 4.3.2; they took theirs from MATLAB's `dlqr`). It is solved by structure-preserving doubling: Chu, Fan, Lin
//! and Wang, "Structure-preserving algorithms for periodic discrete-time algebraic Riccati equations", 2004; eight
//! steps where the plain iteration takes a hundred.
//!
//! **A machine is not its model.** Least squares take noise that lasts longer than a sample for memory of the outputs.
//! Gains that rely on memory that does not exist overshoot at each sample: a loop on Berkeley DB swung between the
//! limits of the speed. Also, the time of a task is proportional to 1 / speed, so that at low speeds the speed moves
//! tardiness more than around the middle. [`Design::robust`] tolerates both.

use nalgebra::{Complex, Matrix2, Matrix2x4, Matrix3, Matrix4, Matrix4x2, SMatrix, Schur, Vector2};

use crate::identify::{Model, matrix, rows};

/// The closed loop's poles must lie within this; otherwise its answers to errors decay too slowly to be of use.
pub const POLE_MAX: f64 = 0.95;

/// Factor by which the inputs may move tardiness more than a model says: at half the speed of the identification it is
/// twice as much.
pub const TARDINESS_GAIN_MAX: f64 = 2.0;

/// Steps of doubling after which the equation counts as one without a solution.
const STEPS_MAX: u32 = 60;

/// Change of a step, relative to the solution, at which the solution is accepted.
const CHANGE_MAX: f64 = 1e-15;

/// Most steps of the search for poles; a dozen are usual. For some matrices the search never ends, and a file from any
/// source must not block its reader.
const POLE_STEPS_MAX: usize = 1_000;

/// Greatest number that is accepted in a model or in gains.
pub const NUMBER_MAX: f64 = 1e6;

/// The costs of errors and efforts: of tardiness and data response ratio, or of speed and admitted fraction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    /// Of an error.
    pub error: [f64; 2],
    /// Of the sum of errors.
    pub integral: [f64; 2],
    /// Of a change of an input.
    pub effort: [f64; 2],
}

impl Default for Weights {
    /// Tardiness counts ten times as much as the data response ratio; the sums settle in two samples in simulation.
    fn default() -> Self {
        Self {
            error: [10.0, 1.0],
            integral: [5.0, 0.5],
            effort: [1.0, 1.0],
        }
    }
}

/// Gains of a loop from one output to one input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SingleGains {
    /// Of the error.
    pub proportional: f64,
    /// Of the sum of errors.
    pub integral: f64,
    /// Greatest absolute value of the loop's poles, with the other input fixed.
    pub pole_max: f64,
}

impl SingleGains {
    /// Returns the greatest absolute value of the poles that these gains have with a model; `None` if a number is not
    /// valid. `input`: 0 for the speed, 1 for the admitted fraction.
    #[must_use]
    pub fn pole_max_with(&self, model: &Model, input: usize) -> Option<f64> {
        let own = [self.proportional, self.integral];
        let rows = [&model.a, &model.b].into_iter().flatten().flatten();
        if input > 1 || !rows.chain(&own).all(|number| number.abs() <= NUMBER_MAX) {
            return None;
        }
        let (a, b) = (matrix(&model.a), matrix(&model.b));
        Some(single_pole_max(
            &a,
            &b,
            input,
            self.proportional,
            self.integral,
        ))
    }
}

/// Gains. Rows: of speed, then of the admitted fraction; columns: of tardiness, then of the data response ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Design {
    /// Of the errors.
    pub proportional: [[f64; 2]; 2],
    /// Of the sums of errors.
    pub integral: [[f64; 2]; 2],
    /// Poles of the closed loop: real and imaginary part, the smallest first.
    pub poles: [[f64; 2]; 4],
    /// Largest element by which the solution misses the Riccati equation.
    pub riccati_residual: f64,
    /// Gains for tardiness by each input alone; `None` where that input cannot be used for it.
    pub single: [Option<SingleGains>; 2],
    /// Whether there are gains for both inputs; if not, they are all zeros.
    pub is_for_both: bool,
}

/// Why there is no design.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum DesignError {
    /// A weight is 0 or less, or not a number.
    #[error("weights are numbers above 0")]
    Weights,
    /// No gains make the loop stable.
    #[error("the model cannot be controlled: the Riccati equation has no solution")]
    NoSolution,
    /// The loop would be too slow, or unstable.
    #[error(
        "the closed loop has a pole at {0:.3}; below {POLE_MAX} is needed: weigh the sums of errors more, or identify \
         again"
    )]
    Pole(f64),
}

impl Design {
    /// Computes the gains for a model.
    ///
    /// # Errors
    /// [`DesignError`].
    pub fn new(model: &Model, weights: &Weights) -> Result<Self, DesignError> {
        weights.check()?;
        let (a, b) = (matrix(&model.a), matrix(&model.b));
        let (aa, ba) = errors_and_sums(&a, &b);
        let q = Matrix4::from_diagonal(&nalgebra::Vector4::new(
            weights.error[0],
            weights.error[1],
            weights.integral[0],
            weights.integral[1],
        ));
        let r = Matrix2::from_diagonal(&Vector2::from(weights.effort));
        let x = solve_riccati(&aa, &ba, &q, &r).ok_or(DesignError::NoSolution)?;
        let gains = gains_of(&aa, &ba, &r, &x).ok_or(DesignError::NoSolution)?;
        let poles = poles_of(&aa, &ba, &gains).ok_or(DesignError::NoSolution)?;
        let largest = size(&poles[3]);
        // This form also refuses NaN.
        let is_quick = largest < POLE_MAX;
        if !is_quick {
            return Err(DesignError::Pole(largest));
        }
        Ok(Self {
            proportional: rows(&gains.fixed_columns::<2>(0).into_owned()),
            integral: rows(&gains.fixed_columns::<2>(2).into_owned()),
            poles: poles.map(|pole| [pole.re, pole.im]),
            riccati_residual: residual(&aa, &ba, &q, &r, &x).unwrap_or(f64::INFINITY),
            single: [0, 1].map(|input| single(&a, &b, input, weights)),
            is_for_both: true,
        })
    }

    /// Computes the gains for a machine that a model describes. They are those of [`new`](Self::new) if these also hold
    /// a machine whose outputs remember nothing. Its tardiness moves as the model says, or [`TARDINESS_GAIN_MAX`] times
    /// as much. Otherwise they are those for the model without its memory.
    ///
    /// # Errors
    /// [`DesignError`].
    pub fn robust(model: &Model, weights: &Weights) -> Result<Self, DesignError> {
        let design = Self::new(model, weights)?;
        let is_borne = |poles: [f64; 2]| poles.iter().all(|pole| *pole < POLE_MAX);
        let Some(at_once) = without_memory(model) else {
            return Ok(design);
        };
        let single = robust_single(model, &at_once, weights);
        let own = design.poles_at_once(model);
        if own.is_none_or(is_borne) {
            return Ok(Self { single, ..design });
        }
        let careful = Self::new(&at_once, weights)?;
        let poles = Self::poles(model, &careful.proportional, &careful.integral)
            .ok_or(DesignError::NoSolution)?;
        let careful = Self {
            poles,
            single,
            ..careful
        };
        let largest = careful.pole_max();
        let is_quick = largest < POLE_MAX;
        if is_quick {
            Ok(careful)
        } else {
            Err(DesignError::Pole(largest))
        }
    }

    /// Returns the greatest absolute value of the poles of the loop with both inputs, on a machine whose outputs
    /// remember nothing. First where tardiness moves as the model says, then where it moves [`TARDINESS_GAIN_MAX`]
    /// times as much. `None` if the model's outputs never come to rest, a number is not valid, or there are no such
    /// gains.
    #[must_use]
    pub fn poles_at_once(&self, model: &Model) -> Option<[f64; 2]> {
        let at_once = without_memory(model).filter(|_| self.is_for_both)?;
        let largest = |model: &Model| {
            let poles = Self::poles(model, &self.proportional, &self.integral)?;
            Some(
                poles
                    .iter()
                    .map(|[re, im]| re.hypot(*im))
                    .fold(0.0, f64::max),
            )
        };
        Some([largest(&at_once)?, largest(&stronger(&at_once))?])
    }

    /// Computes gains for one input at a time, for a model that explains tardiness alone.
    ///
    /// # Errors
    /// [`DesignError::Weights`]; [`DesignError::NoSolution`] where no input can hold tardiness.
    pub fn alone(model: &Model, weights: &Weights) -> Result<Self, DesignError> {
        weights.check()?;
        let (a, b) = (matrix(&model.a), matrix(&model.b));
        let single = match without_memory(model) {
            Some(at_once) => robust_single(model, &at_once, weights),
            None => [0, 1].map(|input| single(&a, &b, input, weights)),
        };
        if single.iter().all(Option::is_none) {
            return Err(DesignError::NoSolution);
        }
        Ok(Self::of_single(single))
    }

    /// Makes a design of one input at a time, with these gains.
    #[must_use]
    pub fn of_single(single: [Option<SingleGains>; 2]) -> Self {
        Self {
            proportional: [[0.0; 2]; 2],
            integral: [[0.0; 2]; 2],
            poles: [[0.0; 2]; 4],
            riccati_residual: 0.0,
            single,
            is_for_both: false,
        }
    }
}

impl Weights {
    fn check(&self) -> Result<(), DesignError> {
        let all = [self.error, self.integral, self.effort];
        let mut numbers = all.iter().flatten();
        if numbers.all(|weight| weight.is_finite() && *weight > 0.0) {
            Ok(())
        } else {
            Err(DesignError::Weights)
        }
    }
}

impl Design {
    /// Returns the poles of the closed loop of a model and gains, the smallest first; `None` if a number is not valid.
    #[must_use]
    pub fn poles(
        model: &Model,
        proportional: &[[f64; 2]; 2],
        integral: &[[f64; 2]; 2],
    ) -> Option<[[f64; 2]; 4]> {
        let all = [&model.a, &model.b, proportional, integral];
        let mut numbers = all.iter().flat_map(|rows| rows.iter().flatten());
        // Products of greater numbers overflow, and no machine has such gains.
        if !numbers.all(|number| number.abs() <= NUMBER_MAX) {
            return None;
        }
        let (aa, ba) = errors_and_sums(&matrix(&model.a), &matrix(&model.b));
        let mut gains = Matrix2x4::zeros();
        gains
            .fixed_columns_mut::<2>(0)
            .copy_from(&matrix(proportional));
        gains.fixed_columns_mut::<2>(2).copy_from(&matrix(integral));
        Some(poles_of(&aa, &ba, &gains)?.map(|pole| [pole.re, pole.im]))
    }

    /// Greatest absolute value of the closed loop's poles.
    #[must_use]
    pub fn pole_max(&self) -> f64 {
        let sizes = self.poles.iter().map(|[re, im]| re.hypot(*im));
        sizes.fold(0.0, |most, size| {
            if size > most || size.is_nan() {
                size
            } else {
                most
            }
        })
    }
}

/// Returns the poles of the closed loop, the smallest first; `None` if they are not found.
fn poles_of(
    aa: &Matrix4<f64>,
    ba: &Matrix4x2<f64>,
    gains: &Matrix2x4<f64>,
) -> Option<[Complex<f64>; 4]> {
    let schur = Schur::try_new(aa - ba * gains, f64::EPSILON, POLE_STEPS_MAX)?;
    let mut poles: [Complex<f64>; 4] = schur.complex_eigenvalues().into();
    poles.sort_by(|one, other| size(one).total_cmp(&size(other)));
    Some(poles)
}

/// Absolute value of a pole.
fn size(pole: &Complex<f64>) -> f64 {
    pole.re.hypot(pole.im)
}

/// Returns the system of errors and their sums.
fn errors_and_sums(a: &Matrix2<f64>, b: &Matrix2<f64>) -> (Matrix4<f64>, Matrix4x2<f64>) {
    let mut aa = Matrix4::zeros();
    aa.fixed_view_mut::<2, 2>(0, 0).copy_from(a);
    aa.fixed_view_mut::<2, 2>(2, 0).fill_with_identity();
    aa.fixed_view_mut::<2, 2>(2, 2).fill_with_identity();
    let mut ba = Matrix4x2::zeros();
    ba.fixed_view_mut::<2, 2>(0, 0).copy_from(&-b);
    (aa, ba)
}

/// Returns a model of the same machine whose outputs remember nothing: inputs move them at once to where they settle in
/// the model. `None` if they settle nowhere.
fn without_memory(model: &Model) -> Option<Model> {
    let (a, b) = (matrix(&model.a), matrix(&model.b));
    // Outputs that grow by themselves come to no rest, though the sum below has a value: Jury's conditions.
    let is_stable = a.determinant().abs() < 1.0 && a.trace().abs() < 1.0 + a.determinant();
    let end = is_stable.then(|| (Matrix2::identity() - a).try_inverse())??;
    Some(Model {
        a: [[0.0; 2]; 2],
        b: rows(&(end * b)),
        ..*model
    })
}

/// Returns the same model, with tardiness that moves [`TARDINESS_GAIN_MAX`] times as much.
fn stronger(model: &Model) -> Model {
    let [tardiness, data_ratio] = model.b;
    Model {
        b: [tardiness.map(|gain| TARDINESS_GAIN_MAX * gain), data_ratio],
        ..*model
    }
}

/// Returns gains for tardiness by each input alone, for a model and for the same machine without memory.
fn robust_single(model: &Model, at_once: &Model, weights: &Weights) -> [Option<SingleGains>; 2] {
    let of = |model: &Model, input| single(&matrix(&model.a), &matrix(&model.b), input, weights);
    [0, 1].map(|input| {
        let is_borne = |gains: &SingleGains| {
            [*at_once, stronger(at_once)].iter().all(|machine| {
                let pole = gains.pole_max_with(machine, input);
                pole.is_some_and(|pole| pole < POLE_MAX)
            })
        };
        let own = of(model, input)?;
        if is_borne(&own) {
            return Some(own);
        }
        let careful = of(at_once, input)?;
        let pole_max = careful.pole_max_with(model, input)?;
        (pole_max < POLE_MAX).then_some(SingleGains {
            pole_max,
            ..careful
        })
    })
}

/// Returns gains for tardiness by one input alone; the other output is not controlled.
fn single(
    a: &Matrix2<f64>,
    b: &Matrix2<f64>,
    input: usize,
    weights: &Weights,
) -> Option<SingleGains> {
    let aa = Matrix2::new(a[(0, 0)], 0.0, 1.0, 1.0);
    let ba = Vector2::new(-b[(0, input)], 0.0);
    let q = Matrix2::from_diagonal(&Vector2::new(weights.error[0], weights.integral[0]));
    let r = SMatrix::<f64, 1, 1>::new(weights.effort[input]);
    let x = solve_riccati(&aa, &ba, &q, &r)?;
    let gains = gains_of(&aa, &ba, &r, &x)?;
    let (proportional, integral) = (gains[0], gains[1]);
    let pole_max = single_pole_max(a, b, input, proportional, integral);
    (pole_max < POLE_MAX).then_some(SingleGains {
        proportional,
        integral,
        pole_max,
    })
}

/// Returns the greatest absolute value of the poles of the loop from tardiness to one input, with the other input
/// fixed.
fn single_pole_max(
    a: &Matrix2<f64>,
    b: &Matrix2<f64>,
    input: usize,
    proportional: f64,
    integral: f64,
) -> f64 {
    // The errors of both outputs, and the sum of the first.
    let column = -b.column(input);
    let mut closed = Matrix3::zeros();
    closed.fixed_view_mut::<2, 2>(0, 0).copy_from(a);
    for row in 0..2 {
        closed[(row, 0)] -= column[row] * proportional;
        closed[(row, 2)] -= column[row] * integral;
    }
    closed[(2, 0)] = 1.0;
    closed[(2, 2)] = 1.0;
    // Poles that are not found count as too slow.
    let schur = Schur::try_new(closed, f64::EPSILON, POLE_STEPS_MAX);
    schur.map_or(f64::INFINITY, |schur| {
        let poles = schur.complex_eigenvalues();
        poles.iter().map(size).fold(0.0, f64::max)
    })
}

/// Returns the stabilising solution X of X = Aᵀ X A - Aᵀ X B (R + Bᵀ X B)⁻¹ Bᵀ X A + Q; `None` if there is none.
pub(crate) fn solve_riccati<const STATES: usize, const INPUTS: usize>(
    a: &SMatrix<f64, STATES, STATES>,
    b: &SMatrix<f64, STATES, INPUTS>,
    q: &SMatrix<f64, STATES, STATES>,
    r: &SMatrix<f64, INPUTS, INPUTS>,
) -> Option<SMatrix<f64, STATES, STATES>> {
    let mut a = *a;
    let mut g = b * r.try_inverse()? * b.transpose();
    let mut h = *q;
    for _ in 0..STEPS_MAX {
        let w = (SMatrix::identity() + g * h).try_inverse()?;
        let next = h + a.transpose() * h * w * a;
        g += a * w * g * a.transpose();
        a = a * w * a;
        let change = (next - h).abs().max();
        // Rounding makes it slightly asymmetric.
        h = (next + next.transpose()) * 0.5;
        if !h.iter().all(|element| element.is_finite()) {
            return None;
        }
        if change <= CHANGE_MAX * h.abs().max() {
            return Some(h);
        }
    }
    None
}

fn gains_of<const STATES: usize, const INPUTS: usize>(
    a: &SMatrix<f64, STATES, STATES>,
    b: &SMatrix<f64, STATES, INPUTS>,
    r: &SMatrix<f64, INPUTS, INPUTS>,
    x: &SMatrix<f64, STATES, STATES>,
) -> Option<SMatrix<f64, INPUTS, STATES>> {
    let inverse = (r + b.transpose() * x * b).try_inverse()?;
    Some(inverse * b.transpose() * x * a)
}

/// Returns the largest element by which a solution misses.
fn residual<const STATES: usize, const INPUTS: usize>(
    a: &SMatrix<f64, STATES, STATES>,
    b: &SMatrix<f64, STATES, INPUTS>,
    q: &SMatrix<f64, STATES, STATES>,
    r: &SMatrix<f64, INPUTS, INPUTS>,
    x: &SMatrix<f64, STATES, STATES>,
) -> Option<f64> {
    let gains = gains_of(a, b, r, x)?;
    let right = a.transpose() * x * a - a.transpose() * x * b * gains + q;
    Some((right - x).abs().max())
}
