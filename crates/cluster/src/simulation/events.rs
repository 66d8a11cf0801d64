//! Plays an option of a scenario as events on boards, a network and a data centre.

use super::scenario::Truth;
use crate::advisor::{Input, Machine, Minimise, Place, Question};
use crate::model::Boundary;
use crate::random::Random;

/// Number of packets of an upload; this determines their size.
const PACKETS: u32 = 64;

/// The true result of an option.
#[derive(Clone, Copy, Debug)]
pub(super) struct Played {
    pub(super) time_s: f64,
    pub(super) energy_j: f64,
    pub(super) cost: f64,
}

impl Played {
    /// What the question minimises.
    pub(super) fn value(&self, question: &Question) -> f64 {
        match question.minimise {
            Minimise::Cost => self.cost,
            _ => self.energy_j,
        }
    }
}

/// The activity of one board, for its energy.
#[derive(Clone, Copy, Default)]
struct Ledger {
    active_s: f64,
    talking_s: f64,
}

pub(super) fn play(truth: &Truth, question: &Question, place: Place) -> Played {
    let mut random = Random::new(truth.seed);
    let of = |input: Input| truth.of[input as usize];
    let (time_s, energy_j, bytes, machine_s) = match place {
        Place::Boards(count) => {
            let (time_s, ledgers) = play_boards(truth, count as usize, &mut random);
            let (active_w, idle_w) = (of(Input::BoardActiveW), of(Input::BoardIdleW));
            let talking_w = of(Input::BoardCommunicatingW);
            let switch_w = if count > 1 { of(Input::SwitchW) } else { 0.0 };
            let used_j = ledgers.iter().map(|ledger| {
                let idle_s = (time_s - ledger.active_s - ledger.talking_s).max(0.0);
                let whole =
                    ledger.active_s * active_w + ledger.talking_s * talking_w + idle_s * idle_w;
                match question.boundary {
                    Boundary::BoardsForJob => whole,
                    Boundary::BoardsOn => whole - time_s * idle_w,
                }
            });
            let switch_j = match question.boundary {
                Boundary::BoardsForJob => switch_w * time_s,
                Boundary::BoardsOn => 0.0,
            };
            (time_s, used_j.sum::<f64>() + switch_j, 0.0, 0.0)
        }
        Place::DataCentre => play_centre(truth, question, &mut random),
    };
    let cost = energy_j / 3.6e6 * of(Input::EnergyPricePerKwh)
        + bytes * 1e-9 * of(Input::NetworkPricePerGb)
        + machine_s / 3_600.0 * of(Input::MachinePricePerHour);
    Played {
        time_s,
        energy_j,
        cost,
    }
}

/// Plays the serial part on the first board, then every board's share in as many pieces as there are exchanges, each
/// followed by its exchange.
fn play_boards(truth: &Truth, count: usize, random: &mut Random) -> (f64, Vec<Ledger>) {
    let of = |input: Input| truth.of[input as usize];
    let single_s = of(Input::SingleS);
    let serial_s = single_s * (1.0 - of(Input::ParallelFraction)) / truth.speeds[0];
    let mut ledgers = vec![Ledger::default(); count];
    ledgers[0].active_s = serial_s;
    let mut clocks = vec![serial_s; count];
    let exchanges = of(Input::ExchangeTimes) as u32;
    let pieces = exchanges.max(1);
    let piece_s = single_s * of(Input::ParallelFraction) / count as f64 / f64::from(pieces);
    for _ in 0..pieces {
        for (board, clock) in clocks.iter_mut().enumerate() {
            let length_s = piece_s / truth.speeds[board];
            *clock += length_s;
            ledgers[board].active_s += length_s;
        }
        if count == 1 || exchanges == 0 {
            continue;
        }
        // In each round a board sends to the board at a distance, which doubles, and waits for the board that far
        // behind it.
        let mut distance = 1;
        while distance < count {
            let before = clocks.clone();
            for board in 0..count {
                let from = (board + count - distance) % count;
                let length_s = of(Input::MessageAlphaS)
                    + of(Input::ExchangeBytes) / of(Input::MessageBytesPerS);
                let length_s = length_s * (truth.jitter * random.between(-1.0, 1.0)).exp();
                clocks[board] = before[board].max(before[from]) + length_s;
                ledgers[board].talking_s += clocks[board] - before[board];
            }
            distance *= 2;
        }
    }
    let end_s = clocks.iter().copied().fold(0.0, f64::max);
    (end_s, ledgers)
}

/// Plays the packets up, the machine, the packets down; returns time, energy, bytes and seconds of the machine.
fn play_centre(truth: &Truth, question: &Question, random: &mut Random) -> (f64, f64, f64, f64) {
    let of = |input: Input| truth.of[input as usize];
    let mut now_s = 0.0;
    let mut bytes = 0.0;
    let half_way_s = of(Input::RoundTripS) / 2.0;
    let mut transfer = |amount: f64, rate: f64, now_s: &mut f64| {
        let packet = amount / f64::from(PACKETS);
        for _ in 0..PACKETS {
            let times = if random.unit() < truth.lost { 2.0 } else { 1.0 };
            *now_s += times * packet / rate;
            bytes += times * packet;
        }
        *now_s += half_way_s;
    };
    transfer(of(Input::InputBytes), of(Input::UpBytesPerS), &mut now_s);
    let machine_s = of(Input::SingleS) / of(Input::MachineSpeed);
    now_s += truth.begin_s + machine_s;
    transfer(of(Input::OutputBytes), of(Input::DownBytesPerS), &mut now_s);
    let machine_w = match question.machine {
        Machine::Dedicated => of(Input::MachineActiveW),
        Machine::Shared => of(Input::MachineActiveW) - of(Input::MachineIdleW),
    };
    let waiting_w = match question.boundary {
        Boundary::BoardsForJob => of(Input::BoardIdleW),
        Boundary::BoardsOn => 0.0,
    };
    let energy_j = bytes * (of(Input::RadioJPerByte) + of(Input::NetworkJPerByte))
        + machine_s * machine_w * of(Input::Pue)
        + now_s * waiting_w;
    (now_s, energy_j, bytes, machine_s)
}
