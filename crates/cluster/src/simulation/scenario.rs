//! Scenarios: the true figures, what the advisor sees of them, and the question.

use crate::advisor::{INPUTS, Input, Machine, Minimise, Privacy, Question};
use crate::model::Boundary;
use crate::random::Random;

/// The true figures of one scenario, by [`Input`], and the effects that the model does not know.
#[derive(Clone, Debug)]
pub(super) struct Truth {
    pub(super) of: [f64; INPUTS.len()],
    /// Speed of each board, around 1.
    pub(super) speeds: Vec<f64>,
    /// Relative spread of message times.
    pub(super) jitter: f64,
    /// Fraction of packets that are sent twice.
    pub(super) lost: f64,
    /// Seconds until a machine begins.
    pub(super) begin_s: f64,
    pub(super) seed: u64,
}

/// Returns whether an input is counted and not measured: then it is seen as it is.
pub(super) fn is_counted(input: Input) -> bool {
    matches!(
        input,
        Input::ExchangeTimes
            | Input::ExchangeBytes
            | Input::InputBytes
            | Input::OutputBytes
            | Input::EnergyPricePerKwh
            | Input::NetworkPricePerGb
            | Input::MachinePricePerHour
    )
}

/// Returns a figure as the advisor sees it.
pub(super) fn observe(input: Input, truth: f64, noise: f64, random: &mut Random) -> f64 {
    if is_counted(input) {
        return truth;
    }
    let factor = (noise * random.normal()).exp();
    let seen = if input == Input::ParallelFraction {
        1.0 - (1.0 - truth) * factor
    } else {
        truth * factor
    };
    let (least, most) = input.range();
    seen.clamp(least, most)
}

/// If noise has put idle power above active power, active power is used for both, as a careful user would.
pub(super) fn consistent(question: &mut Question) {
    for (idle, active) in [
        (Input::BoardIdleW, Input::BoardActiveW),
        (Input::MachineIdleW, Input::MachineActiveW),
    ] {
        let most = question.given[active as usize]
            .as_ref()
            .map_or(f64::INFINITY, |given| given.value);
        if let Some(given) = question.given[idle as usize].as_mut() {
            given.value = given.value.min(most);
        }
    }
}

/// How an input is drawn, and from which range.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drawn {
    pub(super) input: Input,
    /// Even in the logarithm, or in the value.
    is_log: bool,
    pub(super) low: f64,
    pub(super) high: f64,
    /// The range is relative to this input, which is drawn before it.
    pub(super) of: Option<Input>,
}

const fn even(input: Input, low: f64, high: f64) -> Drawn {
    Drawn {
        input,
        is_log: false,
        low,
        high,
        of: None,
    }
}

const fn log(input: Input, low: f64, high: f64) -> Drawn {
    Drawn {
        is_log: true,
        ..even(input, low, high)
    }
}

const fn part(of: Input, input: Input, low: f64, high: f64) -> Drawn {
    Drawn {
        of: Some(of),
        ..even(input, low, high)
    }
}

/// The typical ranges of small boards, radios and data centres, in the order in which they are drawn. That of the
/// parallel fraction is of the serial part.
pub(super) const DRAWN: [Drawn; 24] = [
    even(Input::BoardActiveW, 2.0, 12.0),
    log(Input::SingleS, 0.5, 600.0),
    log(Input::ParallelFraction, 0.003, 0.5),
    log(Input::ExchangeTimes, 1.0, 150.0),
    log(Input::ExchangeBytes, 64.0, 1e6),
    log(Input::InputBytes, 1e4, 1e9),
    log(Input::OutputBytes, 10.0, 1e5),
    part(Input::BoardActiveW, Input::BoardIdleW, 0.3, 0.8),
    part(Input::BoardActiveW, Input::BoardCommunicatingW, 0.85, 1.0),
    even(Input::SwitchW, 0.0, 4.0),
    log(Input::MessageAlphaS, 8e-6, 300e-6),
    log(Input::MessageBytesPerS, 4e6, 120e6),
    log(Input::UpBytesPerS, 2e4, 2e7),
    log(Input::DownBytesPerS, 1e5, 5e7),
    log(Input::RoundTripS, 0.005, 0.3),
    log(Input::MachineSpeed, 2.0, 40.0),
    log(Input::MachineActiveW, 15.0, 200.0),
    part(Input::MachineActiveW, Input::MachineIdleW, 0.2, 0.6),
    even(Input::Pue, 1.1, 2.0),
    log(Input::RadioJPerByte, 0.05e-6, 3e-6),
    log(Input::NetworkJPerByte, 0.1e-6, 5e-6),
    even(Input::EnergyPricePerKwh, 0.1, 0.5),
    log(Input::NetworkPricePerGb, 0.001, 1.0),
    log(Input::MachinePricePerHour, 0.001, 0.2),
];

/// Draws a scenario.
pub(super) fn draw(random: &mut Random) -> (Truth, Question) {
    let mut of = [0.0; INPUTS.len()];
    for drawn in DRAWN {
        let value = match drawn.is_log {
            true => random.between_log(drawn.low, drawn.high),
            false => random.between(drawn.low, drawn.high),
        };
        of[drawn.input as usize] = match drawn.input {
            Input::ParallelFraction => 1.0 - value,
            Input::ExchangeTimes
            | Input::ExchangeBytes
            | Input::InputBytes
            | Input::OutputBytes => value.floor(),
            _ => value * drawn.of.map_or(1.0, |base| of[base as usize]),
        };
    }
    let mut question = Question::new("a scenario");
    question.boards_max = 2 + random.below(5) as u32;
    question.boundary = if random.unit() < 0.5 {
        Boundary::BoardsOn
    } else {
        Boundary::BoardsForJob
    };
    question.machine = if random.unit() < 0.5 {
        Machine::Dedicated
    } else {
        Machine::Shared
    };
    question.minimise = if random.unit() < 0.5 {
        Minimise::Cost
    } else {
        Minimise::Energy
    };
    question.privacy = match random.below(6) {
        0 => Privacy::Board,
        1 => Privacy::Neighbours,
        _ => Privacy::Anywhere,
    };
    let truth = hidden(of, question.boards_max, random);
    (truth, question)
}

/// Draws what no advisor knows.
pub(super) fn hidden(of: [f64; INPUTS.len()], boards: u32, random: &mut Random) -> Truth {
    let mut speeds: Vec<f64> = (0..boards)
        .map(|_| (0.01 * random.normal()).exp())
        .collect();
    // The times on one board were measured on the first board.
    speeds[0] = 1.0;
    Truth {
        of,
        speeds,
        jitter: random.between(0.0, 0.1),
        lost: random.between(0.0, 0.02),
        begin_s: random.between(0.0, 0.02),
        seed: random.bits(),
    }
}
