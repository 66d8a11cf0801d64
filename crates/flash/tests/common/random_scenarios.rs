//! Scenarios of the crash suite that are determined by their seeds.

use base::sim::Random;

use super::crash::Scenario;
use super::operation::{Files, Operation, Weights, content};

/// The state of the store before the power is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// A few files, and much free space.
    Roomy,
    /// A few files, and one that takes the rest of the space.
    Full,
    /// More files than the root has slots.
    Crowded,
    /// Free space in many pieces, with spilled lists of them.
    Fragmented,
}

/// Returns a scenario; the same seed gives the same one.
pub fn random_scenario(seed: u64) -> Scenario {
    let mut random = Random::new(seed);
    let start = match random.below(20) {
        0 | 1 => Start::Crowded,
        2 => Start::Fragmented,
        3..=6 => Start::Full,
        _ => Start::Roomy,
    };
    let (files, device_blocks, long_max) = match start {
        Start::Crowded => (36, 1024, 9000),
        Start::Fragmented => (110, 2048, 60_000),
        Start::Full | Start::Roomy => (
            random.index(6) + 1,
            [128, 192, 256, 512][random.index(4)],
            [9000, 20_000, 60_000][random.index(3)],
        ),
    };
    let weights = match random.index(4) {
        0 | 1 => Weights::WITH_PIECES,
        // Files that shrink, grow and change in the middle.
        2 => Weights {
            write_at: 20,
            truncate: 20,
            append: 12,
            ..Weights::WITH_PIECES
        },
        // Few calls are durable.
        _ => Weights {
            append: 2,
            write_at: 2,
            append_nosync: 30,
            write_at_nosync: 10,
            write_pieces_nosync: 15,
            sync: 3,
            ..Weights::WITH_PIECES
        },
    };
    let mut expected = Files::new();
    let mut prepare = prepare(start, files, device_blocks, &mut random);
    for call in &prepare {
        call.apply(&mut expected);
    }
    let mut calls = |count: usize| {
        (0..count)
            .map(|_| {
                let call = weights.draw(&mut random, &expected, files, long_max);
                // This is an estimate: a full store also refuses some other calls.
                let is_refused =
                    matches!(&call, Operation::Create(name) if expected.contains_key(name));
                if !is_refused {
                    call.apply(&mut expected);
                }
                call
            })
            .collect::<Vec<_>>()
    };
    let warm_up = calls(if start == Start::Roomy { 30 } else { 8 });
    prepare.extend(
        warm_up
            .into_iter()
            .filter(|call| *call != Operation::Reopen),
    );
    Scenario {
        name: "random",
        device_blocks,
        files_max: files.max(6) as u64 + 1,
        prepare,
        observe: calls(12),
        every_block_tear: false,
    }
}

fn prepare(start: Start, files: usize, device_blocks: u64, random: &mut Random) -> Vec<Operation> {
    let mut calls = Vec::new();
    let name = |number: usize| format!("file-{number}");
    let append = |number: usize, random: &mut Random, length_max: usize| {
        let length = random.index(length_max) + 1;
        Operation::Append(name(number), content(random, length))
    };
    match start {
        Start::Roomy => {}
        Start::Full => {
            for number in 0..files {
                calls.push(Operation::Create(name(number)));
                calls.push(append(number, random, 12_000));
            }
            // The last of these are refused, or done in part.
            calls.push(Operation::Create("ballast".to_owned()));
            for length in [40_000, 11_712, 3904] {
                for _ in 0..device_blocks / 10 {
                    let data = vec![7; length];
                    calls.push(Operation::Append("ballast".to_owned(), data));
                }
            }
        }
        Start::Crowded => {
            for number in 0..files {
                calls.push(Operation::Create(name(number)));
                calls.push(append(number, random, 9000));
            }
        }
        Start::Fragmented => {
            calls.extend((0..files).map(|number| Operation::Create(name(number))));
            for _ in 0..3 {
                calls.extend((0..files).map(|number| append(number, random, 9000)));
            }
            for number in 0..files {
                if random.coin() {
                    calls.push(Operation::Delete(name(number)));
                }
            }
        }
    }
    calls
}
