//! Tests power cuts at every device write and after every call, with every subset of the unflushed writes, torn and
//! complete. A second cut comes during recovery, and a third.
//!
//! # The oracle
//!
//! After a cut the store must open, its check must be clean, and every block must have one owner. Its content must be
//! the same whether it is opened read-only or for writing. The content, also after another cut during recovery, is
//! judged by the calls that had returned and the running call, if any:
//!
//! - **A durable call that had returned** is there, and so is everything written before it to any file, because the
//!   flush covers the whole device. The durable calls are `create`, `delete`, `rename`, `replace`, `append`,
//!   `write_at`, `truncate`, `sync` and `close`. A call that was refused, or had nothing to do (no bytes, the same
//!   name), promises nothing.
//! - **A running call** on names, or `replace`: the names are those before or those after, and nothing else changed.
//!   `rename` has no third outcome. The file that had the target's name is there completely until it is replaced. The
//!   renamed one is there under exactly one of its two names.
//! - **`append`** of up to `APPEND_ATOMIC_BYTES_MAX` bytes: all or nothing; of more: a prefix.
//! - **`write_at`** within the file of up to `OVERWRITE_ATOMIC_BYTES_MAX` bytes: all or nothing; of more: a prefix,
//!   followed by the old bytes. Across the end: a prefix. The file is never shorter than it was, and ends where the
//!   prefix does if that is beyond its old end. Beyond the end: the gap grows first, by a prefix of zeros, then the
//!   data behind it by a prefix.
//! - **`truncate`** to less: the old length or the new one, with all bytes below it unchanged. To more: a prefix of the
//!   zeros.
//! - **`write_pieces_at_once`**: bytes that make the file longer come first, as by `write_at_nosync` one piece after
//!   the other. Then come all changes within the file, all or nothing. If it refuses the pieces, it leaves nothing.
//!   Once it has returned, it is durable if it changed anything within the file.
//! - **`write_pieces_nosync`**: the same, but within the file the changed blocks may be there up to the third, the
//!   sixth and so on.
//! - **`append_nosync`, `write_at_nosync`, `write_pieces_nosync`** that had returned, without a later durable call:
//!   each file separately holds its content after some number of them, in their order. The last of them may be there in
//!   part if it is not atomic (as above). A store may make them durable at once. A durable call that was running on the
//!   same file comes after all of them.
//!
//! Never allowed: bytes that no call wrote to that place of the file, bytes of another file, a name that the file never
//! had.
//!
//! With `KEEL_SEEDED_BUG=swapped-barrier` in the environment these tests must fail.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::crash::{Scenario, Tally, explore, report, spills_over_older_lists};
use crate::common::oracle::{Ledger, is_between};
use crate::common::pieces::Pieces;
use crate::common::random_scenarios::random_scenario;
use crate::common::scenarios::{appending, cutting, spilling, spilling_again, unsynced, writing};
use crate::common::scenarios_of_pieces::in_pieces;
use crate::common::{Files, Operation};
use flash::{APPEND_ATOMIC_BYTES_MAX, OVERWRITE_ATOMIC_BYTES_MAX, PAYLOAD_BYTES};

/// Prints the number of states for the summary of all tests (scripts/test-report.py), whose sum has a minimum.
fn count(tally: &Tally) {
    println!("crash states: {}", tally.states);
}

/// Runs hand-made scenarios.
fn run(name: &str, scenarios: &[Scenario], states_min: u64) {
    let mut tally = Tally::default();
    for scenario in scenarios {
        let one = explore(scenario, 7, 60);
        println!("  {}: {} states", scenario.name, one.states);
        tally.add(&one);
    }
    report(name, &tally);
    count(&tally);
    assert!(
        tally.states >= states_min,
        "the suite explores too little: {}",
        tally.states
    );
}

#[test]
fn names_and_appends_survive_a_cut_at_every_write() {
    run("names and appends", &appending(), 6000);
}

#[test]
fn overwrites_survive_a_cut_at_every_write() {
    run("overwrites", &writing(), 3000);
}

#[test]
fn truncation_survives_a_cut_at_every_write() {
    run("truncation", &cutting(), 7000);
}

#[test]
fn spilled_lists_survive_a_cut_at_every_write() {
    run("spilled lists", &spilling(), 6000);
}

#[test]
fn lists_spilled_over_older_ones_survive_a_cut_at_every_write() {
    let scenarios = spilling_again();
    for scenario in &scenarios {
        assert!(spills_over_older_lists(scenario) > 0, "{}", scenario.name);
    }
    run("lists over older ones", &scenarios, 1000);
}

#[test]
fn unsynced_calls_survive_a_cut_at_every_write() {
    run("unsynced calls", &unsynced(), 6000);
}

#[test]
fn pieces_survive_a_cut_at_every_write() {
    run("pieces", &in_pieces(), 1000);
}

/// Minimum number of distinct states in each of the four tests below; together with those above at least 200,000.
const RANDOM_STATES: u64 = 44_000;
/// Minimum number of scenarios, regardless of the number of states of each.
const RANDOM_SCENARIOS: u64 = 60;
/// Maximum number of scenarios: a test that needs more for its states makes too few cuts.
const RANDOM_SCENARIOS_MAX: u64 = 2000;

/// Explores random scenarios from `seed` on until there are enough scenarios and states.
fn random_scenarios(seed: u64) {
    let mut tally = Tally::default();
    while tally.states < RANDOM_STATES || tally.scenarios < RANDOM_SCENARIOS {
        assert!(
            tally.scenarios < RANDOM_SCENARIOS_MAX,
            "the scenarios have too few states: {}",
            tally.states
        );
        let seed = seed + tally.scenarios;
        let explored = std::panic::catch_unwind(|| explore(&random_scenario(seed), seed, 24));
        match explored {
            Ok(one) => tally.add(&one),
            Err(panic) => {
                println!("failed: FLASH_CRASH_SEED={seed} FLASH_CRASH_SECONDS=0 reproduces it");
                std::panic::resume_unwind(panic);
            }
        }
    }
    report(&format!("random scenarios from {seed} on"), &tally);
    count(&tally);
}

#[test]
fn random_scenarios_survive_a_cut_at_every_write_first_quarter() {
    random_scenarios(0);
}

#[test]
fn random_scenarios_survive_a_cut_at_every_write_second_quarter() {
    random_scenarios(10_000);
}

#[test]
fn random_scenarios_survive_a_cut_at_every_write_third_quarter() {
    random_scenarios(20_000);
}

#[test]
fn random_scenarios_survive_a_cut_at_every_write_last_quarter() {
    random_scenarios(30_000);
}

// ---- tests of the judge ----

fn write(offset: u64, data: &[u8]) -> Operation {
    Operation::WriteAt("a".to_owned(), offset, data.to_vec())
}

fn append(data: &[u8]) -> Operation {
    Operation::Append("a".to_owned(), data.to_vec())
}

fn append_later(name: &str, data: &[u8]) -> Operation {
    Operation::AppendNosync(name.to_owned(), data.to_vec())
}

fn truncate(length: u64) -> Operation {
    Operation::Truncate("a".to_owned(), length)
}

#[test]
fn the_judge_knows_the_possible_results_of_one_call() {
    let old = b"0123456789".as_slice();
    let right: &[(Operation, &[&[u8]])] = &[
        (append(b"ab"), &[b"0123456789ab"]),
        (write(3, b"ab"), &[b"012ab56789"]),
        // A write across the end: a prefix, and never shorter.
        (
            write(8, b"abcd"),
            &[
                b"01234567a9",
                b"01234567ab",
                b"01234567abc",
                b"01234567abcd",
            ],
        ),
        (write(10, b"ab"), &[b"0123456789a", b"0123456789ab"]),
        (
            write(12, b"ab"),
            &[
                b"0123456789\0",
                b"0123456789\0\0",
                b"0123456789\0\0a",
                b"0123456789\0\0ab",
            ],
        ),
        (truncate(4), &[b"0123"]),
        (truncate(12), &[b"0123456789\0", b"0123456789\0\0"]),
        (truncate(10), &[]),
        (write(50, b""), &[]),
        (append_later("a", b"ab"), &[b"0123456789ab"]),
    ];
    for (call, between) in right {
        assert!(is_between(call, old, old), "{call:?}: nothing happened");
        for found in *between {
            assert!(is_between(call, old, found), "{call:?}: {found:?}");
        }
    }
    let wrong: &[(Operation, &[&[u8]])] = &[
        (append(b"ab"), &[b"0123456789a", b"ab", b"0123456789abc"]),
        (
            write(3, b"ab"),
            &[
                b"012a456789",
                b"0123b56789",
                b"012ab5678",
                b"012ab567890",
                b"x12ab56789",
            ],
        ),
        (
            write(8, b"abcd"),
            &[
                b"01234567",
                b"01234567ab\0",
                b"0123456789c",
                b"01234567abcde",
                b"x1234567ab",
            ],
        ),
        (
            write(12, b"ab"),
            &[
                b"0123456789a",
                b"0123456789\0\0b",
                b"0123456789\0\0abc",
                b"012345678",
            ],
        ),
        (truncate(4), &[b"01234", b"012", b"", b"x123"]),
        (
            truncate(12),
            &[b"0123456789\0\0\0", b"0123456789x", b"012345678"],
        ),
        (
            append_later("a", b"ab"),
            &[b"0123456789b", b"0123456789abc"],
        ),
    ];
    for (call, not_between) in wrong {
        for found in *not_between {
            assert!(!is_between(call, old, found), "{call:?}: {found:?}");
        }
    }
}

#[test]
fn the_judge_knows_which_calls_are_atomic() {
    let old = vec![1_u8; 40_000];
    for (length, is_atomic) in [
        (OVERWRITE_ATOMIC_BYTES_MAX, true),
        (OVERWRITE_ATOMIC_BYTES_MAX + 1, false),
    ] {
        let call = write(100, &vec![2; length]);
        let mut found = old.clone();
        found[100..5000].fill(2);
        assert_ne!(is_between(&call, &old, &found), is_atomic, "{length}");
        found[100..100 + length].fill(2);
        assert!(is_between(&call, &old, &found), "{length}");
        // A hole in the written data is never allowed.
        found[200] = 1;
        assert!(!is_between(&call, &old, &found), "{length}");
    }
    for (length, is_atomic) in [
        (APPEND_ATOMIC_BYTES_MAX, true),
        (APPEND_ATOMIC_BYTES_MAX + 1, false),
    ] {
        let call = append(&vec![2; length]);
        let mut found = old.clone();
        found.extend_from_slice(&[2; 5000]);
        assert_ne!(is_between(&call, &old, &found), is_atomic, "{length}");
    }
}

#[test]
fn the_judge_knows_the_possible_results_of_pieces() {
    let old = vec![1_u8; 10 * PAYLOAD_BYTES];
    let piece = |block: usize| ((block * PAYLOAD_BYTES) as u64, vec![2; 10]);
    let with = |blocks: &[usize], added: usize| {
        let mut found = old.clone();
        for block in blocks {
            found[block * PAYLOAD_BYTES..][..10].fill(2);
        }
        found.resize(old.len() + added, 2);
        found
    };
    let name = || "a".to_owned();
    // The order is that of the blocks, not of the pieces; a piece that changes nothing does not count.
    let same = (7 * PAYLOAD_BYTES as u64, vec![1; 10]);
    let three = vec![piece(5), piece(0), same, piece(8)];
    let mut four = three.clone();
    four.push(piece(9));
    let mut longer = three.clone();
    longer.push((old.len() as u64 - 10, [vec![1; 10], vec![2; 100]].concat()));
    let at_once = |pieces: &Pieces| Operation::WritePiecesAtOnce(name(), pieces.clone());
    let one_by_one = |pieces: &Pieces| Operation::WritePiecesNosync(name(), pieces.clone());
    for (call, blocks, added, is_right) in [
        (at_once(&three), [].as_slice(), 0, true),
        (at_once(&three), &[0, 5, 8], 0, true),
        (at_once(&three), &[0], 0, false),
        (at_once(&three), &[0, 5], 0, false),
        (at_once(&three), &[0, 5, 8, 9], 0, false),
        (at_once(&four), &[], 0, true),
        (at_once(&four), &[0, 5, 8], 0, false),
        (at_once(&four), &[0, 5, 8, 9], 0, false),
        (at_once(&longer), &[], 50, true),
        (at_once(&longer), &[], 100, true),
        (at_once(&longer), &[0, 5, 8], 100, true),
        (at_once(&longer), &[0, 5, 8], 0, false),
        (at_once(&longer), &[0, 5], 100, false),
        (one_by_one(&four), &[0, 5, 8], 0, true),
        (one_by_one(&four), &[0, 5, 8, 9], 0, true),
        (one_by_one(&four), &[0, 5], 0, false),
        (one_by_one(&four), &[9], 0, false),
        (one_by_one(&longer), &[0, 5, 8], 50, false),
    ] {
        let found = with(blocks, added);
        let judged = is_between(&call, &old, &found);
        assert_eq!(judged, is_right, "{}: {blocks:?} {added}", call.brief());
    }
    assert!(at_once(&three).is_durable_on(&old) && !at_once(&four).is_durable_on(&old));
}

fn files(contents: &[(&str, &[u8])]) -> Files {
    contents
        .iter()
        .map(|(name, content)| ((*name).to_owned(), Arc::new(content.to_vec())))
        .collect::<BTreeMap<_, _>>()
}

#[test]
fn the_judge_knows_the_changes_that_a_cut_may_undo() {
    let mut ledger = Ledger::new(files(&[("a", b"1"), ("b", b"2")]));
    ledger.returned(&append_later("a", b"xy"));
    ledger.returned(&append_later("b", b"z"));
    ledger.returned(&append_later("a", b"w"));
    let judge = |ledger: &Ledger, a: &[u8], b: &[u8], running: Option<&Operation>| {
        ledger.judge(&files(&[("a", a), ("b", b)]), running).is_ok()
    };
    for (a, b, is_right) in [
        (b"1".as_slice(), b"2".as_slice(), true),
        (b"1xy", b"2z", true),
        (b"1x", b"2z", false),
        (b"1xyw", b"2", true),
        (b"1w", b"2", false),
        (b"1xw", b"2z", false),
        (b"1xyw", b"z", false),
    ] {
        assert_eq!(judge(&ledger, a, b, None), is_right, "{a:?} {b:?}");
    }
    // The durable call comes after the earlier calls on its own file.
    let running = append(b"q");
    assert!(judge(&ledger, b"1xywq", b"2", Some(&running)));
    assert!(judge(&ledger, b"1xy", b"2", Some(&running)));
    assert!(!judge(&ledger, b"1xyq", b"2", Some(&running)));
    // Once it has returned, nothing may be undone any more, in any file.
    ledger.returned(&running);
    assert!(judge(&ledger, b"1xywq", b"2z", None));
    assert!(!judge(&ledger, b"1xywq", b"2", None));
    assert!(!judge(&ledger, b"1xyw", b"2z", None));
}

#[test]
fn the_judge_knows_the_possible_results_of_a_rename() {
    let mut ledger = Ledger::new(files(&[("a", b"1"), ("b", b"2")]));
    ledger.returned(&append_later("a", b"x"));
    let rename = Operation::Rename("a".to_owned(), "b".to_owned());
    let judge = |ledger: &Ledger, contents: &[(&str, &[u8])], running: Option<&Operation>| {
        ledger.judge(&files(contents), running).is_ok()
    };
    let running = Some(&rename);
    assert!(judge(&ledger, &[("a", b"1x"), ("b", b"2")], running));
    assert!(judge(&ledger, &[("a", b"1"), ("b", b"2")], running));
    assert!(judge(&ledger, &[("b", b"1x")], running));
    assert!(judge(&ledger, &[("b", b"1")], running));
    for wrong in [
        [("b", b"2".as_slice())].as_slice(),
        &[("a", b"1x")],
        &[("b", b"2x")],
        &[],
        &[("a", b"2"), ("b", b"1")],
        // Both names at once.
        &[("a", b"1x"), ("b", b"1x")],
    ] {
        assert!(!judge(&ledger, wrong, running), "{wrong:?}");
    }
    ledger.returned(&rename);
    assert!(judge(&ledger, &[("b", b"1x")], None));
    assert!(!judge(&ledger, &[("b", b"1")], None));
    assert!(!judge(&ledger, &[("a", b"1x"), ("b", b"2")], None));
}
