//! Power cuts at every device write, with every subset of the unflushed writes, torn and whole, and a second
//! cut during recovery.
//!
//! The oracle: every call that had returned is there; the call that was running is wholly there or wholly
//! absent (a longer append: a prefix of it); nothing else has changed; every block is accounted for; no read
//! returns bytes that were not written.
//!
//! With `--features seeded-bug-swapped-barrier` these tests must fail.

mod common;

use common::Operation;
use common::crash::{Scenario, Tally, explore, random_scenario, report};
use flash::APPEND_ATOMIC_BYTES_MAX;

fn append(name: &str, length: usize, tag: u8) -> Operation {
    let data = (0..length)
        .map(|index| tag ^ (index as u8).wrapping_mul(31))
        .collect();
    Operation::Append(name.to_owned(), data)
}

fn replace(name: &str, length: usize, tag: u8) -> Operation {
    let data = (0..length)
        .map(|index| tag ^ (index as u8).wrapping_mul(17))
        .collect();
    Operation::Replace(name.to_owned(), data)
}

/// Hand-made scenarios: one for each mechanism.
fn scenarios() -> Vec<Scenario> {
    let create = |name: &str| Operation::Create(name.to_owned());
    let delete = |name: &str| Operation::Delete(name.to_owned());
    let mut all = Vec::new();
    all.push(Scenario {
        name: "create and delete",
        device_blocks: 256,
        files_max: 4,
        prepare: vec![create("a"), append("a", 5000, 1)],
        observe: vec![
            create("b"),
            create("c"),
            delete("a"),
            create("a"),
            delete("b"),
            Operation::Reopen,
            delete("c"),
        ],
    });
    all.push(Scenario {
        name: "small appends take lanes in turn",
        device_blocks: 256,
        files_max: 4,
        prepare: vec![create("log")],
        observe: (0..60)
            .map(|tag| append("log", 100 + usize::from(tag) * 37 % 900, tag))
            .collect(),
    });
    all.push(Scenario {
        name: "block appends",
        device_blocks: 512,
        files_max: 4,
        prepare: vec![create("log"), append("log", 100, 9)],
        observe: (0..40).map(|tag| append("log", 4096, tag)).collect(),
    });
    all.push(Scenario {
        name: "largest atomic appends over run ends",
        device_blocks: 512,
        files_max: 4,
        prepare: vec![create("log"), append("log", 1, 9)],
        observe: (0..24)
            .map(|tag| append("log", APPEND_ATOMIC_BYTES_MAX - usize::from(tag % 3), tag))
            .collect(),
    });
    all.push(Scenario {
        name: "long appends",
        device_blocks: 1024,
        files_max: 4,
        prepare: vec![create("log"), append("log", 4000, 9)],
        observe: vec![
            append("log", 70_000, 1),
            append("log", 10, 2),
            append("log", 150_000, 3),
            append("log", 3904 * 16, 4),
            append("log", 99_999, 5),
        ],
    });
    all.push(Scenario {
        name: "replace",
        device_blocks: 512,
        files_max: 4,
        prepare: vec![replace("a", 20_000, 1), create("b"), append("b", 30_000, 2)],
        observe: vec![
            replace("a", 500, 3),
            replace("a", 40_000, 4),
            replace("b", 0, 5),
            replace("c", 12_000, 6),
            replace("b", 9000, 7),
            append("b", 5000, 8),
            replace("b", 100, 9),
        ],
    });
    all.push(Scenario {
        name: "two files in turn",
        device_blocks: 512,
        files_max: 4,
        prepare: vec![create("a"), create("b")],
        observe: (0..30)
            .map(|tag| {
                append(
                    if tag % 2 == 0 { "a" } else { "b" },
                    700 + usize::from(tag) * 150,
                    tag,
                )
            })
            .collect(),
    });
    // More files than the root has slots: each append evicts another file.
    let names: Vec<String> = (0..36).map(|number| format!("f{number}")).collect();
    all.push(Scenario {
        name: "eviction",
        device_blocks: 2048,
        files_max: 40,
        prepare: names
            .iter()
            .flat_map(|name| [create(name), append(name, 300, 7)])
            .collect(),
        observe: (0..10)
            .map(|tag: u8| append(&names[usize::from(tag) * 3 % 36], 4096, tag))
            .collect(),
    });
    // Fragmented free space: deletions that spill the free list, then allocations that load it again.
    let names: Vec<String> = (0..160).map(|number| format!("f{number}")).collect();
    let mut prepare: Vec<Operation> = names
        .iter()
        .map(|name| replace(name, 3000 + name.len() * 900, 3))
        .collect();
    prepare.extend(names.iter().step_by(2).take(50).map(|name| delete(name)));
    all.push(Scenario {
        name: "spilling the free list",
        device_blocks: 2048,
        files_max: 160,
        prepare: prepare.clone(),
        observe: names
            .iter()
            .step_by(2)
            .skip(50)
            .take(16)
            .map(|name| delete(name))
            .collect(),
    });
    prepare.extend(names.iter().step_by(2).skip(50).map(|name| delete(name)));
    prepare.push(append("f1", 4_900_000, 4));
    all.push(Scenario {
        name: "allocating from spilled pieces on a nearly full store",
        device_blocks: 1600,
        files_max: 160,
        prepare: prepare.clone(),
        observe: vec![
            append("f3", 30_000, 1),
            append("f5", 60_000, 2),
            append("f7", 90_000, 3),
            delete("f1"),
            append("f9", 50_000, 4),
            append("f11", 4096, 5),
        ],
    });
    all
}

#[test]
fn every_scenario_survives_a_cut_at_every_write() {
    let mut tally = Tally::default();
    for (number, scenario) in scenarios().iter().enumerate() {
        explore(scenario, number, 7, 80, &mut tally);
    }
    report("hand-made scenarios", &tally);
    assert!(
        tally.states.len() >= 10_000,
        "the suite explores too little: {}",
        tally.states.len()
    );
}

/// Explores the random scenarios of a range of seeds.
fn random_scenarios(seeds: std::ops::Range<u64>) {
    let mut tally = Tally::default();
    for seed in seeds.clone() {
        explore(&random_scenario(seed), seed as usize, seed, 24, &mut tally);
    }
    report(
        &format!("random scenarios {} to {}", seeds.start, seeds.end - 1),
        &tally,
    );
    assert!(
        tally.states.len() >= 20_000,
        "the suite explores too little: {}",
        tally.states.len()
    );
}

#[test]
fn random_scenarios_survive_a_cut_at_every_write_first_half() {
    random_scenarios(0..110);
}

#[test]
fn random_scenarios_survive_a_cut_at_every_write_second_half() {
    random_scenarios(1000..1110);
}
