//! The answer: what is advised and why, its basis, and where it would change.

use super::evaluate::{
    Choice, Estimate, Fit, Place, Values, choose_with, figures, scaled, values_of,
};
use super::input::{Input, Minimise, Origin, Question};
use crate::Error;
use serde_json::{Value, json};

/// In the search for another answer, an input is multiplied by up to this factor and down to its reciprocal.
const FACTOR_MAX: f64 = 100.0;

/// Number of steps of the search on each side.
const STEPS: u32 = 24;

/// Number of halvings of a step, which determine a break-even point to about a part in ten thousand.
const HALVINGS: u32 = 12;

/// Step in the logarithm for elasticities.
const STEP: f64 = 0.02;

/// A value of one input at which the answer changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BreakEven {
    /// The input.
    pub input: Input,
    /// Its value now.
    pub now: f64,
    /// The value at which the answer changes.
    pub at: f64,
    /// The advice beyond this value; `None` if nothing keeps the deadline.
    pub then: Option<Place>,
}

/// The effect of one input on the advised option.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sensitivity {
    /// The input.
    pub input: Input,
    /// Percent of time for a percent of the input; of the serial part for `parallel_fraction`.
    pub time: f64,
    /// The same for energy.
    pub energy: f64,
    /// The same for cost, if the question minimises it.
    pub cost: Option<f64>,
    /// The advice at half of the input.
    pub at_half: Option<Place>,
    /// The advice at twice the input.
    pub at_double: Option<Place>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// The question.
    pub question: Question,
    /// Options and the choice.
    pub choice: Choice,
    /// Where the answer changes, by input; the nearest point on each side.
    pub break_even: Vec<BreakEven>,
    /// The effect of each input.
    pub sensitivity: Vec<Sensitivity>,
}

/// Answers a question.
///
/// # Errors
/// As [`Question::check`]: all missing inputs are named.
pub fn advise(question: &Question) -> Result<Advice, Error> {
    question.check()?;
    let values = values_of(question);
    let choice = choose_with(question, &values);
    let place_at = |input: Input, factor: f64| {
        let choice = choose_with(question, &scaled(&values, input, factor));
        choice.advised.map(|at| choice.options[at].place)
    };
    let now = choice.advised.map(|at| choice.options[at].place);
    let shown = now.or_else(|| choice.likeliest.map(|at| choice.options[at].place));
    let mut break_even = Vec::new();
    let mut sensitivity = Vec::new();
    for input in question.needed() {
        for outermost in [FACTOR_MAX, 1.0 / FACTOR_MAX] {
            let at = |factor| {
                let is_possible = is_possible(&values, &scaled(&values, input, factor));
                if is_possible {
                    place_at(input, factor)
                } else {
                    now
                }
            };
            let found = change(at, now, outermost);
            if let Some((factor, then)) = found {
                let value = |factor| scaled(&values, input, factor)[input as usize];
                break_even.push(BreakEven {
                    input,
                    now: value(1.0),
                    at: value(factor),
                    then,
                });
            }
        }
        if let Some(place) = shown {
            let above = figures(question, &scaled(&values, input, STEP.exp()), place);
            let below = figures(question, &scaled(&values, input, (-STEP).exp()), place);
            let slope = |above: f64, below: f64| {
                if above > 0.0 && below > 0.0 {
                    (above / below).ln() / (2.0 * STEP)
                } else {
                    0.0
                }
            };
            sensitivity.push(Sensitivity {
                input,
                time: slope(above.time_s, below.time_s),
                energy: slope(above.energy_j, below.energy_j),
                cost: (question.minimise == Minimise::Cost).then(|| slope(above.cost, below.cost)),
                at_half: place_at(input, 0.5),
                at_double: place_at(input, 2.0),
            });
        }
    }
    Ok(Advice {
        question: question.clone(),
        choice,
        break_even,
        sensitivity,
    })
}

/// Returns whether changed figures are possible for a machine: busy power must not be below idle power, unless the
/// given figures were so.
fn is_possible(given: &Values, changed: &Values) -> bool {
    let pairs = [
        (Input::BoardActiveW, Input::BoardIdleW),
        (Input::BoardCommunicatingW, Input::BoardIdleW),
        (Input::MachineActiveW, Input::MachineIdleW),
    ];
    pairs.into_iter().all(|(active, idle)| {
        let is_below = |values: &Values| values[active as usize] < values[idle as usize];
        is_below(given) || !is_below(changed)
    })
}

/// Returns the factor nearest to 1, towards `outermost`, at which the answer differs.
fn change(
    at: impl Fn(f64) -> Option<Place>,
    now: Option<Place>,
    outermost: f64,
) -> Option<(f64, Option<Place>)> {
    let factor = |step: f64| outermost.powf(step / f64::from(STEPS));
    let outside = (1..=STEPS)
        .map(f64::from)
        .find(|step| at(factor(*step)) != now)?;
    let (mut inside, mut outside) = (outside - 1.0, outside);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(inside, outside);
        if at(factor(middle)) == now {
            inside = middle;
        } else {
            outside = middle;
        }
    }
    Some((factor(outside), at(factor(outside))))
}

impl Advice {
    /// Returns the advised place.
    #[must_use]
    pub fn advised(&self) -> Option<Place> {
        self.choice.advised.map(|at| self.choice.options[at].place)
    }

    /// Returns the advised option and the cheapest safe one, if the advised option is not safe.
    #[must_use]
    pub fn risked(&self) -> Option<(&Estimate, &Estimate)> {
        let options = &self.choice.options;
        let advised = self.choice.advised.map(|at| &options[at]);
        let advised = advised.filter(|option| option.fit != Fit::Fits)?;
        let safe = options.iter().filter(|option| option.fit == Fit::Fits);
        let safe = safe.min_by(|a, b| a.expected.total_cmp(&b.expected))?;
        Some((advised, safe))
    }

    /// Returns why there is no advice; `None` if there is.
    #[must_use]
    pub fn why_none(&self) -> Option<String> {
        if self.choice.advised.is_some() {
            return None;
        }
        let deadline_s = self.question.deadline_s.unwrap_or(f64::INFINITY);
        let percent = self.question.confidence * 100.0;
        let likeliest = self.choice.likeliest.map(|at| &self.choice.options[at]);
        Some(likeliest.map_or("there is no option".to_owned(), |option| {
            let least = self.choice.least_loss.map(|at| &self.choice.options[at]);
            let least = least.filter(|least| least.place != option.place);
            let least = least.map_or(String::new(), |least| {
                let chance = (1.0 - least.late_probability) * 100.0;
                format!("; the least expected loss is that of {}, in time with {chance:.0} %", least.place)
            });
            format!(
                "no option ends within {deadline_s} s with a probability of {percent} %; the likeliest is {}, \
                 {:.4} s, or {:.4} s with the margin{least}",
                option.place, option.time_s, option.time_with_margin_s
            )
        }))
    }

    /// Returns the answer as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let question = &self.question;
        let place = |place: Option<Place>| place.map(|place| place.to_string());
        let options = self.choice.options.iter().map(|option| {
            let fit = match option.fit {
                Fit::Fits => "fits",
                Fit::Private => "forbidden",
                Fit::Late => "late",
                Fit::Risky => "risky",
            };
            if option.fit == Fit::Private {
                return json!({"place": option.place.to_string(), "fit": fit});
            }
            json!({
                "place": option.place.to_string(),
                "fit": fit,
                "time_s": option.time_s,
                "time_with_margin_s": option.time_with_margin_s,
                "time_spread": option.time_spread,
                "late_probability": option.late_probability,
                "energy_j": option.energy_j,
                "cost": option.cost,
                "expected": option.expected,
                "loss": option.loss,
            })
        });
        let inputs = question.needed().into_iter().filter_map(|input| {
            let given = question.given[input as usize].as_ref()?;
            let (origin, source) = match &given.origin {
                Origin::Measured(by) => ("measured", by),
                Origin::Stated(by) => ("stated", by),
                Origin::Assumed(after) => ("assumed", after),
            };
            let name = input.name();
            Some(json!({"input": name, "value": given.value, origin: source, "spread": given.spread}))
        });
        let break_even = self.break_even.iter().map(|point| {
            json!({"input": point.input.name(), "now": point.now, "at": point.at, "then": place(point.then)})
        });
        let sensitivity = self.sensitivity.iter().map(|one| {
            json!({
                "input": one.input.name(),
                "time": one.time,
                "energy": one.energy,
                "cost": one.cost,
                "at_half": place(one.at_half),
                "at_double": place(one.at_double),
            })
        });
        let option = |at: Option<usize>| at.map(|at| self.choice.options[at].place);
        json!({
            "version": 1,
            "job": question.name,
            "advised": place(self.advised()),
            "why_none": self.why_none(),
            "likeliest_in_time": place(option(self.choice.likeliest)),
            "least_loss": place(option(self.choice.least_loss)),
            "risked": self.risked().map(|(advised, safe)| json!({
                "late_probability": advised.late_probability,
                "safe": safe.place.to_string(),
                "safe_costs_times": safe.expected / advised.expected,
            })),
            "minimise": match question.minimise {
                Minimise::Cost => "cost",
                Minimise::Energy => "energy",
                Minimise::Time => "time",
            },
            "deadline_s": question.deadline_s,
            "confidence": question.confidence,
            "confidence_floor": question.confidence_floor,
            "late_penalty": question.late_penalty,
            "boundary": question.boundary.text(),
            "options": options.collect::<Vec<_>>(),
            "inputs": inputs.collect::<Vec<_>>(),
            "break_even": break_even.collect::<Vec<_>>(),
            "sensitivity": sensitivity.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
