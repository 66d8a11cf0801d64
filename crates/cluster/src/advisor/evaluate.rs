//! Options with their time, energy and cost, the effect of the inputs' spread on them, and the choice.
//!
//! The inputs are assumed to be lognormal around the given values. Time gets a margin from its first derivatives by the
//! logarithm of each input; the objective's expected value gets a second-order term. Both come from central
//! differences. Idle power varies up to active power only.

use super::input::{IDLE_AND_ACTIVE, INPUTS, Input, Machine, Minimise, Privacy, Question};
use crate::Error;
use crate::model::{BoardPower, Boundary, Cluster, Curve, DataCentre, Exchange, Job};

/// Where a job can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// This number of boards.
    Boards(u32),
    /// The data centre.
    DataCentre,
}

impl std::fmt::Display for Place {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Boards(1) => write!(formatter, "one board"),
            Self::Boards(count) => write!(formatter, "{count} boards"),
            Self::DataCentre => write!(formatter, "the data centre"),
        }
    }
}

/// Whether an option keeps all conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It does.
    Fits,
    /// Data would go where it must not.
    Private,
    /// It would end after the deadline.
    Late,
    /// It would end in time, but with less than the margin.
    Risky,
}

/// One option.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The place.
    pub place: Place,
    /// Time.
    pub time_s: f64,
    /// Time that it does not exceed with the question's confidence.
    pub time_with_margin_s: f64,
    /// Relative standard deviation of time.
    pub time_spread: f64,
    /// Probability of ending after the deadline; 0 without one.
    pub late_probability: f64,
    /// Energy, as far as the job is charged with it.
    pub energy_j: f64,
    /// Money; `None` if prices were not given.
    pub cost: Option<f64>,
    /// Expected value of the objective.
    pub expected: f64,
    /// Expected loss of choosing it, in multiples of a result's cost. It is the price of being late plus the extra
    /// cost, relative to the cheapest option that turns out to be in time.
    pub loss: f64,
    /// Whether it may be advised.
    pub fit: Fit,
}

/// The choice and the options.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// All options.
    pub options: Vec<Estimate>,
    /// The advised one.
    pub advised: Option<usize>,
    /// If none is advised: the option that is most likely in time among those that privacy allows.
    pub likeliest: Option<usize>,
    /// If none is advised: the one of these with the least expected loss, which weighs its chance against its cost; of
    /// equal ones the likeliest.
    pub least_loss: Option<usize>,
}

/// Time, energy and cost of an option.
#[derive(Clone, Copy)]
pub(super) struct Figures {
    pub(super) time_s: f64,
    pub(super) energy_j: f64,
    pub(super) cost: f64,
}

/// Values of all inputs; those that are not needed are 0 or without effect.
pub(super) type Values = [f64; INPUTS.len()];

/// Step in the logarithm of an input: small compared with every spread, large compared with rounding errors.
const STEP: f64 = 0.02;

const J_PER_KWH: f64 = 3.6e6;

/// Returns the values of a question; 1 for values that are neither given nor needed.
pub(super) fn values_of(question: &Question) -> Values {
    std::array::from_fn(|at| question.given[at].as_ref().map_or(1.0, |given| given.value))
}

/// Multiplies one input by a factor, within its range. For the parallel fraction the serial part is multiplied, since
/// 0.95 times 1.1 is no valid fraction.
pub(super) fn scaled(values: &Values, input: Input, factor: f64) -> Values {
    let mut changed = *values;
    let place = &mut changed[input as usize];
    *place = if input == Input::ParallelFraction {
        1.0 - (1.0 - *place) * factor
    } else {
        *place * factor
    };
    let (least, most) = input.range();
    *place = place.clamp(least, most);
    changed
}

/// Returns the options of a question, without those that privacy forbids.
fn places(question: &Question) -> Vec<Place> {
    let boards = (1..=question.boards_max).map(Place::Boards);
    let all = boards.chain([Place::DataCentre]);
    // For options that privacy forbids, inputs may be missing; they have no figures.
    all.filter(|place| is_allowed(question.privacy, *place))
        .collect()
}

fn is_allowed(privacy: Privacy, place: Place) -> bool {
    match place {
        Place::Boards(1) => true,
        Place::Boards(_) => privacy != Privacy::Board,
        Place::DataCentre => privacy == Privacy::Anywhere,
    }
}

/// Evaluates the model with these values.
pub(super) fn figures(question: &Question, values: &Values, place: Place) -> Figures {
    let of = |input: Input| values[input as usize];
    let job = Job {
        single_s: of(Input::SingleS),
        parallel_fraction: of(Input::ParallelFraction),
        exchanges: vec![Exchange {
            times: of(Input::ExchangeTimes),
            bytes: of(Input::ExchangeBytes),
        }],
        input_bytes: of(Input::InputBytes),
        output_bytes: of(Input::OutputBytes),
    };
    let board = BoardPower {
        active_w: of(Input::BoardActiveW),
        idle_w: of(Input::BoardIdleW),
        // Measurement noise can put it below idle power, but communication cannot save power.
        communicating_w: of(Input::BoardCommunicatingW).max(of(Input::BoardIdleW)),
    };
    let (time_s, energy_j, bytes, machine_s) = match place {
        Place::Boards(count) => {
            // The ranges of the inputs are within those of a line.
            let link = Curve::line(of(Input::MessageAlphaS), 1.0 / of(Input::MessageBytesPerS));
            let link = link.unwrap_or_else(|_| Curve::free());
            let cluster = Cluster {
                board,
                switch_w: of(Input::SwitchW),
                link,
            };
            let time_s = job.time_s(&cluster.link, count);
            (
                time_s,
                job.energy_j(&cluster, question.boundary, count),
                0.0,
                0.0,
            )
        }
        Place::DataCentre => {
            let idle_w = match question.machine {
                Machine::Dedicated => 0.0,
                Machine::Shared => of(Input::MachineIdleW),
            };
            let centre = DataCentre {
                speed: of(Input::MachineSpeed),
                machine_w: (of(Input::MachineActiveW) - idle_w).max(0.0),
                pue: of(Input::Pue),
                up_bytes_per_s: of(Input::UpBytesPerS),
                down_bytes_per_s: of(Input::DownBytesPerS),
                round_trip_s: of(Input::RoundTripS),
                radio_j_per_byte: of(Input::RadioJPerByte),
                network_j_per_byte: of(Input::NetworkJPerByte),
            };
            let outcome = centre.run(&job, &board, question.boundary);
            let bytes = job.input_bytes + job.output_bytes;
            (
                outcome.time_s,
                outcome.energy_j,
                bytes,
                centre.machine_s(&job),
            )
        }
    };
    let cost = energy_j / J_PER_KWH * of(Input::EnergyPricePerKwh)
        + bytes / 1e9 * of(Input::NetworkPricePerGb)
        + machine_s / 3_600.0 * of(Input::MachinePricePerHour);
    Figures {
        time_s,
        energy_j,
        cost,
    }
}

/// Returns the objective.
fn objective(question: &Question, figures: &Figures) -> f64 {
    match question.minimise {
        Minimise::Cost => figures.cost,
        Minimise::Energy => figures.energy_j,
        Minimise::Time => figures.time_s,
    }
}

/// Chooses.
///
/// # Errors
/// As [`Question::check`].
pub fn choose(question: &Question) -> Result<Choice, Error> {
    question.check()?;
    Ok(choose_with(question, &values_of(question)))
}

/// Chooses with other values than the given ones; the question has been checked.
pub(super) fn choose_with(question: &Question, values: &Values) -> Choice {
    let spreads: Vec<(Input, f64)> = question
        .needed()
        .into_iter()
        .filter_map(|input| Some((input, question.given[input as usize].as_ref()?.spread)))
        .map(|(input, spread)| (input, spread.min(room_above(values, input))))
        .filter(|(_, spread)| *spread > 0.0)
        .collect();
    let margin = normal_quantile(question.confidence);
    let has_prices = question.minimise == Minimise::Cost;
    let mut options: Vec<Estimate> = places(question)
        .into_iter()
        .map(|place| {
            let at = figures(question, values, place);
            let (mut variance, mut curvature) = (0.0, 0.0);
            let middle = objective(question, &at);
            for &(input, spread) in &spreads {
                let above = figures(question, &scaled(values, input, STEP.exp()), place);
                let below = figures(question, &scaled(values, input, (-STEP).exp()), place);
                let slope = (above.time_s / below.time_s).ln() / (2.0 * STEP);
                variance += (slope * spread).powi(2);
                let second =
                    objective(question, &above) - 2.0 * middle + objective(question, &below);
                curvature += second / (STEP * STEP) * spread * spread;
            }
            let time_spread = variance.sqrt();
            let time_with_margin_s = at.time_s * (margin * time_spread).exp();
            let fit = match question.deadline_s {
                Some(deadline_s) if at.time_s > deadline_s => Fit::Late,
                Some(deadline_s) if time_with_margin_s > deadline_s => Fit::Risky,
                _ => Fit::Fits,
            };
            let late_probability = question.deadline_s.map_or(0.0, |deadline_s| {
                normal_above((deadline_s / at.time_s).ln() / time_spread.max(1e-9))
            });
            Estimate {
                place,
                time_s: at.time_s,
                time_with_margin_s,
                time_spread,
                late_probability,
                energy_j: at.energy_j,
                cost: has_prices.then_some(at.cost),
                expected: (middle + curvature / 2.0).max(0.0),
                loss: 0.0,
                fit,
            }
        })
        .collect();
    set_losses(&mut options, question.late_penalty);
    let least = |of: &dyn Fn(&Estimate) -> Option<f64>| {
        let mut best: Option<(f64, usize)> = None;
        for (at, option) in options.iter().enumerate() {
            if let Some(value) = of(option)
                && best.is_none_or(|(least, _)| value < least)
            {
                best = Some((value, at));
            }
        }
        best.map(|(_, at)| at)
    };
    // Without a safe option a risk cannot be compared with anything: the user must decide.
    let has_safe = options.iter().any(|option| option.fit == Fit::Fits);
    let loss = |option: &Estimate| {
        let is_bold = option.late_probability <= 1.0 - question.confidence_floor;
        (option.fit == Fit::Fits || (has_safe && is_bold)).then_some(option.loss)
    };
    // Of options with equal loss (up to rounding), choose the fastest, and of these the one with the fewest boards.
    let least_loss = least(&loss).map(|at| options[at].loss);
    let is_equal = |option: &Estimate| {
        let both = loss(option).zip(least_loss);
        both.is_some_and(|(loss, least)| loss <= least + TIE)
    };
    let least_time_s = least(&|option| is_equal(option).then_some(option.time_s))
        .map(|at| options[at].time_s * (1.0 + TIE));
    let advised = options.iter().position(|option| {
        is_equal(option) && least_time_s.is_some_and(|time_s| option.time_s <= time_s)
    });
    // Standard deviations from the deadline: the fewest above it, or the most below it.
    let deadline_s = question.deadline_s.unwrap_or(f64::INFINITY);
    let likeliest =
        least(&|option| Some((option.time_s / deadline_s).ln() / option.time_spread.max(1e-9)));
    let likeliest = likeliest.filter(|_| advised.is_none());
    // Of options with equal loss, such as those that are all late for sure, the likeliest.
    let least_loss = least(&|option| Some(option.loss)).map(|at| match likeliest {
        Some(likely) if options[likely].loss <= options[at].loss + TIE => likely,
        _ => at,
    });
    let least_loss = least_loss.filter(|_| advised.is_none());
    if question.privacy != Privacy::Anywhere {
        options.push(forbidden(Place::DataCentre));
    }
    Choice {
        options,
        advised,
        likeliest,
        least_loss,
    }
}

/// Returns how far the logarithm of an input can rise. Idle power cannot vary beyond active power: otherwise the
/// expected energy of a light load would be negative, and all options would cost the same.
fn room_above(values: &Values, input: Input) -> f64 {
    let mut pairs = IDLE_AND_ACTIVE.into_iter();
    let pair = pairs.find(|(idle, _)| *idle == input);
    pair.map_or(f64::INFINITY, |(idle, active)| {
        let ratio = values[active as usize] / values[idle as usize];
        ratio.ln().max(0.0)
    })
}

/// Losses or times that differ by less than this count as equal, because of rounding.
const TIE: f64 = 1e-9;

/// Calculates the expected loss of each option, compared with a choice that knows which options will be in time.
///
/// That choice takes the cheapest option that is in time. So an option loses nothing against a cheaper one that turns
/// out to be late. This decides whether a cheap risk is worth it: the expensive option is regretted only if the cheap
/// one would have been in time. Boards share the time of the job, so of two of them the one with the better chance is
/// in time whenever the other is. The data centre's time is that of its uplink, and its chance is assumed to be
/// independent of theirs.
fn set_losses(options: &mut [Estimate], late_penalty: f64) {
    let mut order: Vec<usize> = (0..options.len()).collect();
    order.sort_by(|&a, &b| options[a].expected.total_cmp(&options[b].expected));
    // The cheaper options, each with the probability that it is the cheapest in time. Then the best chance of the
    // boards so far, and the probability that the data centre is late.
    let mut cheaper: Vec<(f64, f64)> = Vec::new();
    let (mut boards, mut centre_late) = (0.0_f64, 1.0);
    for at in order {
        let option = &mut options[at];
        let too_much = cheaper
            .iter()
            .map(|&(probability, cost)| probability * excess(option.expected, cost));
        option.loss = too_much.sum::<f64>() + late_penalty * option.late_probability;
        let chance = 1.0 - option.late_probability;
        let is_cheapest = match option.place {
            Place::Boards(_) => {
                let more = (chance - boards).max(0.0);
                boards = boards.max(chance);
                more * centre_late
            }
            Place::DataCentre => {
                centre_late = 1.0 - chance;
                chance * (1.0 - boards)
            }
        };
        if is_cheapest > 0.0 {
            cheaper.push((is_cheapest, option.expected));
        }
    }
}

/// Returns how much one cost exceeds another, relative to the other; bounded, since the other may be 0.
fn excess(cost: f64, than: f64) -> f64 {
    const EXCESS_MAX: f64 = 1e12;
    if cost <= than {
        return 0.0;
    }
    (cost / than - 1.0).min(EXCESS_MAX)
}

/// Returns an option that was not evaluated, because it is forbidden.
fn forbidden(place: Place) -> Estimate {
    Estimate {
        place,
        time_s: 0.0,
        time_with_margin_s: 0.0,
        time_spread: 0.0,
        late_probability: 0.0,
        energy_j: 0.0,
        cost: None,
        expected: 0.0,
        loss: 0.0,
        fit: Fit::Private,
    }
}

/// Returns the value that a normal variable stays below with a probability (Acklam's rational approximation, 1.2e-9).
fn normal_quantile(probability: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969683028665376e1,
        2.209460984245205e2,
        -2.759285104469687e2,
        1.38357751867269e2,
        -3.066479806614716e1,
        2.506628277459239,
    ];
    const B: [f64; 5] = [
        -5.447609879822406e1,
        1.615858368580409e2,
        -1.556989798598866e2,
        6.680131188771972e1,
        -1.328068155288572e1,
    ];
    const C: [f64; 6] = [
        -7.784894002430293e-3,
        -3.223964580411365e-1,
        -2.400758277161838,
        -2.549732539343734,
        4.374664141464968,
        2.938163982698783,
    ];
    const D: [f64; 4] = [
        7.784695709041462e-3,
        3.224671290700398e-1,
        2.445134137142996,
        3.754408661907416,
    ];
    let polynomial = |terms: &[f64], at: f64| terms.iter().fold(0.0, |sum, term| sum * at + term);
    let tail = 0.024_25;
    if probability > 1.0 - tail {
        let at = (-2.0 * (1.0 - probability).ln()).sqrt();
        return -polynomial(&C, at) / (polynomial(&D, at) * at + 1.0);
    }
    let offset = probability - 0.5;
    let square = offset * offset;
    polynomial(&A, square) * offset / (polynomial(&B, square) * square + 1.0)
}

/// Returns the probability that a normal variable is above a value (Abramowitz and Stegun 7.1.26, within 1e-7).
fn normal_above(value: f64) -> f64 {
    let at = value.abs() / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * at);
    let terms = [
        1.061405429,
        -1.453152027,
        1.421413741,
        -0.284496736,
        0.254829592,
    ];
    let tail = 0.5 * t * terms.iter().fold(0.0, |sum, term| sum * t + term) * (-at * at).exp();
    if value >= 0.0 { tail } else { 1.0 - tail }
}

impl Boundary {
    /// Returns the sentence in each answer about what is counted.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::BoardsOn => "boards run anyway: counted is what the job adds to their idle power",
            Self::BoardsForJob => {
                "boards run for this job alone: counted is all of their power, waiting included"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{normal_above, normal_quantile};

    #[test]
    fn quantiles_match_published_tables() {
        for (probability, quantile) in [
            (0.5, 0.0),
            (0.95, 1.644_854),
            (0.99, 2.326_348),
            (0.999, 3.090_232),
        ] {
            assert!(
                (normal_quantile(probability) - quantile).abs() < 1e-5,
                "{probability}"
            );
            assert!((normal_above(quantile) - (1.0 - probability)).abs() < 1e-6);
            assert!((normal_above(-quantile) - probability).abs() < 1e-6);
        }
    }
}
