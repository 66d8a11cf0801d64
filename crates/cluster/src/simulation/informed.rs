//! The best decision under the advisor's knowledge: what could be reached at best with figures that have 10 % of noise.
//!
//! It sees what the advisor sees. Beyond that it knows how scenarios are drawn, how large the noise is, and the
//! simulation itself. For each scenario it draws possible truths, plays every place in each of them, and takes the
//! place with the least mean loss. The loss is that of the advisor: cost ÷ cost of the cheapest place in time − 1. If
//! the place is late, it is the penalty. Below the floor, and where nothing is safe, it is bound as the advisor is. So
//! no rule that is bound alike and sees the same has a smaller expected loss. This holds up to the number of draws and
//! to one simplification: each input is taken as even in the logarithm of its range. The regret alone is a part of this
//! loss, and its mean over some seeds can be smaller with another rule.

use super::decision::{Decision, Policy};
use super::events::play;
use super::scenario::{DRAWN, Drawn, Truth, hidden, is_counted};
use crate::advisor::{INPUTS, Input, Place, Question};
use crate::random::Random;

/// Attempts to draw figures that are in all ranges. Then they are brought into them.
const ATTEMPTS: u32 = 100;

/// Decides.
pub(super) fn decide(
    question: &Question,
    places: &[Place],
    policy: Policy,
    noise: f64,
    draws: u32,
    random: &mut Random,
) -> Decision {
    let deadline_s = question.deadline_s.unwrap_or(f64::INFINITY);
    let mut losses = vec![0.0; places.len()];
    let mut in_time = vec![0_u32; places.len()];
    for _ in 0..draws {
        let truth = possible(question, noise, random);
        let played = places.iter().map(|place| play(&truth, question, *place));
        let played: Vec<(f64, f64)> = played
            .map(|one| (one.time_s, one.value(question)))
            .collect();
        let best = played
            .iter()
            .filter(|(time_s, _)| *time_s <= deadline_s)
            .map(|(_, value)| *value)
            .fold(f64::INFINITY, f64::min);
        for (at, (time_s, value)) in played.into_iter().enumerate() {
            if time_s <= deadline_s {
                losses[at] += value / best - 1.0;
                in_time[at] += 1;
            } else {
                losses[at] += policy.late_penalty;
            }
        }
    }
    let chance = |at: usize| f64::from(in_time[at]) / f64::from(draws.max(1));
    let least = |is_open: &dyn Fn(usize) -> bool| {
        let open = (0..places.len()).filter(|at| is_open(*at));
        open.min_by(|a, b| losses[*a].total_cmp(&losses[*b]))
    };
    // As the advisor: it advises if a place is safe, and then takes risks down to the floor.
    let has_safe = (0..places.len()).any(|at| chance(at) >= policy.confidence);
    if has_safe {
        Decision {
            advised: least(&|at| chance(at) >= policy.confidence_floor),
            fallback: None,
        }
    } else {
        Decision {
            advised: None,
            fallback: least(&|_| true),
        }
    }
}

/// Draws figures that may be the true ones behind the given ones, and the hidden effects.
fn possible(question: &Question, noise: f64, random: &mut Random) -> Truth {
    let mut of = [0.0; INPUTS.len()];
    for attempt in 1..=ATTEMPTS {
        let mut is_possible = true;
        for drawn in DRAWN {
            let Some(seen) = question.given[drawn.input as usize].as_ref() else {
                continue;
            };
            let value = before_noise(drawn.input, seen.value, noise, random);
            let (low, high) = range(&drawn, &of);
            is_possible &= is_counted(drawn.input) || (low..=high).contains(&value);
            of[drawn.input as usize] = match attempt {
                ATTEMPTS if !is_counted(drawn.input) => value.clamp(low, high),
                _ => value,
            };
        }
        if is_possible {
            break;
        }
    }
    hidden(of, question.boards_max, random)
}

/// Takes noise off what is seen.
fn before_noise(input: Input, seen: f64, noise: f64, random: &mut Random) -> f64 {
    if is_counted(input) {
        return seen;
    }
    let factor = (noise * random.normal()).exp();
    match input {
        Input::ParallelFraction => 1.0 - (1.0 - seen) * factor,
        _ => seen * factor,
    }
}

/// Returns the range of an input, after those that it is relative to.
fn range(drawn: &Drawn, of: &[f64; INPUTS.len()]) -> (f64, f64) {
    let base = drawn.of.map_or(1.0, |base| of[base as usize]);
    match drawn.input {
        Input::ParallelFraction => (1.0 - drawn.high, 1.0 - drawn.low),
        _ => (drawn.low * base, drawn.high * base),
    }
}
