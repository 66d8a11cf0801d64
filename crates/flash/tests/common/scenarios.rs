//! The hand-made scenarios of the crash suite: one for each mechanism.

use flash::{APPEND_ATOMIC_BYTES_MAX, OVERWRITE_ATOMIC_BYTES_MAX, PAYLOAD_BYTES};

use super::crash::Scenario;
use super::operation::Operation;

pub fn bytes(length: usize, tag: u8, step: u8) -> Vec<u8> {
    (0..length)
        .map(|index| tag ^ (index as u8).wrapping_mul(step) ^ (index >> 8) as u8)
        .collect()
}

pub fn create(name: &str) -> Operation {
    Operation::Create(name.to_owned())
}

fn delete(name: &str) -> Operation {
    Operation::Delete(name.to_owned())
}

fn rename(from: &str, to: &str) -> Operation {
    Operation::Rename(from.to_owned(), to.to_owned())
}

pub fn append(name: &str, length: usize, tag: u8) -> Operation {
    Operation::Append(name.to_owned(), bytes(length, tag, 31))
}

pub fn replace(name: &str, length: usize, tag: u8) -> Operation {
    Operation::Replace(name.to_owned(), bytes(length, tag, 17))
}

fn write(name: &str, offset: usize, length: usize, tag: u8) -> Operation {
    Operation::WriteAt(name.to_owned(), offset as u64, bytes(length, tag, 13))
}

fn truncate(name: &str, length: usize) -> Operation {
    Operation::Truncate(name.to_owned(), length as u64)
}

pub fn append_later(name: &str, length: usize, tag: u8) -> Operation {
    Operation::AppendNosync(name.to_owned(), bytes(length, tag, 31))
}

fn write_later(name: &str, offset: usize, length: usize, tag: u8) -> Operation {
    Operation::WriteAtNosync(name.to_owned(), offset as u64, bytes(length, tag, 13))
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("f{number}")).collect()
}

pub fn scenario(
    name: &'static str,
    device_blocks: u64,
    files_max: u64,
    prepare: Vec<Operation>,
    observe: Vec<Operation>,
) -> Scenario {
    Scenario {
        name,
        device_blocks,
        files_max,
        prepare,
        observe,
        every_block_tear: false,
    }
}

const BLOCK: usize = PAYLOAD_BYTES;

/// Names and appending.
pub fn appending() -> Vec<Scenario> {
    vec![
        scenario(
            "create and delete",
            256,
            4,
            vec![create("a"), append("a", 5000, 1)],
            vec![
                create("b"),
                create("c"),
                delete("a"),
                create("a"),
                delete("b"),
                Operation::Reopen,
                delete("c"),
            ],
        ),
        scenario(
            "small appends take lanes in turn",
            256,
            4,
            vec![create("log")],
            (0..60)
                .map(|tag| append("log", 100 + usize::from(tag) * 37 % 900, tag))
                .collect(),
        ),
        scenario(
            "block appends",
            512,
            4,
            vec![create("log"), append("log", 100, 9)],
            (0..40).map(|tag| append("log", 4096, tag)).collect(),
        ),
        scenario(
            "largest atomic appends over run ends",
            512,
            4,
            vec![create("log"), append("log", 1, 9)],
            (0..24)
                .map(|tag| append("log", APPEND_ATOMIC_BYTES_MAX - usize::from(tag % 3), tag))
                .collect(),
        ),
        scenario(
            "long appends",
            1024,
            4,
            vec![create("log"), append("log", 4000, 9)],
            vec![
                append("log", 70_000, 1),
                append("log", 10, 2),
                append("log", 150_000, 3),
                append("log", BLOCK * 16, 4),
                append("log", 99_999, 5),
            ],
        ),
        scenario(
            "replace",
            512,
            4,
            vec![replace("a", 20_000, 1), create("b"), append("b", 30_000, 2)],
            vec![
                replace("a", 500, 3),
                replace("a", 40_000, 4),
                replace("b", 0, 5),
                replace("c", 12_000, 6),
                replace("b", 9000, 7),
                append("b", 5000, 8),
                replace("b", 100, 9),
            ],
        ),
        scenario(
            "two files in turn",
            512,
            4,
            vec![create("a"), create("b")],
            (0..30)
                .map(|tag| {
                    append(
                        if tag % 2 == 0 { "a" } else { "b" },
                        700 + usize::from(tag) * 150,
                        tag,
                    )
                })
                .collect(),
        ),
        eviction(),
        rename_of_many_kinds(),
        scenario(
            "renaming over a file that is being appended to",
            384,
            6,
            vec![
                replace("new", 9000, 1),
                create("log"),
                append("log", 100, 2),
            ],
            vec![
                append("log", 4096, 3),
                rename("new", "log"),
                append("log", 300, 4),
                create("new"),
                append("new", 5000, 5),
                append("log", 4096, 6),
                rename("log", "new"),
                append("new", 12_000, 7),
                create("log"),
                rename("new", "log"),
                append("log", 10, 8),
            ],
        ),
    ]
}

/// More files than the root has slots: each append evicts another file.
fn eviction() -> Scenario {
    let names = names(36);
    scenario(
        "eviction",
        2048,
        40,
        names
            .iter()
            .flat_map(|name| [create(name), append(name, 300, 7)])
            .collect(),
        (0..10)
            .map(|tag: u8| append(&names[usize::from(tag) * 3 % 36], 4096, tag))
            .collect(),
    )
}

fn rename_of_many_kinds() -> Scenario {
    scenario(
        "renaming",
        384,
        6,
        vec![replace("a", 20_000, 1), replace("b", 5000, 2), create("c")],
        vec![
            rename("a", "d"),
            rename("d", "b"),
            append("b", 700, 3),
            rename("c", "c"),
            rename("b", "c"),
            create("b"),
            rename("b", "c"),
            Operation::Reopen,
            rename("c", "a"),
            append("a", 4000, 4),
            rename("a", "b"),
            delete("b"),
        ],
    )
}

/// Overwriting and writing beyond the end.
pub fn writing() -> Vec<Scenario> {
    let atomic = OVERWRITE_ATOMIC_BYTES_MAX;
    vec![
        scenario(
            "overwriting within a file",
            384,
            4,
            vec![replace("a", 30_000, 1), replace("b", 100, 2)],
            vec![
                write("a", 0, 100, 3),
                write("a", BLOCK, BLOCK, 4),
                write("a", 1, atomic, 5),
                write("a", BLOCK - 1, 2, 6),
                write("a", 29_999, 1, 7),
                write("b", 10, 50, 8),
                write("a", 30_000 - atomic, atomic, 9),
                append("a", 10, 10),
                write("a", 3 * BLOCK - 5, atomic - 1, 11),
                write("b", 0, 100, 12),
                write("b", 0, 100, 13),
                Operation::Reopen,
                write("a", 4 * BLOCK, 10, 14),
            ],
        ),
        scenario(
            "long overwrites",
            512,
            4,
            vec![replace("a", 60_000, 1), replace("b", 3 * BLOCK, 2)],
            vec![
                write("a", 2000, atomic + 1, 3),
                write("a", 100, 40_000, 4),
                write("b", 0, 3 * BLOCK, 5),
                write("a", BLOCK, 6 * BLOCK, 6),
                write("a", 0, 60_000, 7),
            ],
        ),
        scenario(
            "overwriting the partly filled last block and appending after it",
            256,
            4,
            vec![replace("a", 5000, 1)],
            (0..9)
                .flat_map(|tag| {
                    let length = 5000 + usize::from(tag) * 900;
                    [
                        write("a", length - 200, 100, tag),
                        append("a", 450, tag + 50),
                        write("a", length + 250, 200, tag + 100),
                        append("a", 450, tag + 150),
                    ]
                })
                .collect(),
        ),
        scenario(
            "writing across the end",
            384,
            4,
            vec![replace("a", 5000, 1), replace("b", 2 * BLOCK, 2)],
            vec![
                write("a", 4000, 2000, 3),
                write("a", 5999, 2, 4),
                write("a", 0, 15_000, 5),
                write("b", 2 * BLOCK - 1, 2, 6),
                write("b", BLOCK, 30_000, 7),
                write("a", 14_000, 20_000, 8),
                append("a", 100, 9),
            ],
        ),
        scenario(
            "writing beyond the end",
            512,
            4,
            vec![create("a"), replace("b", 100, 1)],
            vec![
                write("a", 1, 1, 2),
                write("a", 100, 300, 3),
                write("b", 4000, 100, 4),
                write("b", 4050, 10, 5),
                write("b", 30_000, 9000, 6),
                write("b", 20_000, 2000, 7),
                write("a", 3 * BLOCK, BLOCK, 8),
                write("a", 4 * BLOCK, 10, 9),
            ],
        ),
        scenario(
            "overwriting a block and deleting the file",
            160,
            6,
            vec![
                replace("a", 20_000, 1),
                replace("b", 20_000, 2),
                replace("c", 9000, 3),
            ],
            vec![
                write("a", 5000, 3000, 4),
                delete("a"),
                replace("d", 18_000, 5),
                write("b", 100, 100, 6),
                replace("b", 50, 7),
                append("d", 9000, 8),
                write("c", 0, atomic, 9),
                rename("d", "c"),
                append("b", 15_000, 10),
                write("c", 0, 20, 11),
                delete("c"),
                create("a"),
                append("a", 20_000, 12),
            ],
        ),
    ]
}

/// Truncating, and the blocks freed by it.
pub fn cutting() -> Vec<Scenario> {
    vec![
        scenario(
            "truncating",
            512,
            4,
            vec![replace("a", 90_000, 1), replace("b", 3000, 2)],
            vec![
                truncate("a", 60_000),
                truncate("a", 10 * BLOCK),
                truncate("a", 10 * BLOCK),
                truncate("b", 1),
                truncate("a", 10 * BLOCK - 1),
                truncate("a", BLOCK + 1),
                truncate("b", 0),
                truncate("b", 9000),
                truncate("a", 50_000),
                Operation::Reopen,
                truncate("a", 1),
                truncate("a", 0),
                truncate("b", 5000),
            ],
        ),
        scenario(
            "a small file shrinks and grows",
            192,
            4,
            vec![replace("a", 100, 1), replace("b", 100, 2)],
            (0..8)
                .flat_map(|tag| {
                    [
                        append("a", 100, tag),
                        truncate("a", 50 + usize::from(tag)),
                        append("b", 4096, tag + 40),
                        append("a", 4096, tag + 80),
                        truncate("b", usize::from(tag % 3) * 1000),
                        truncate("a", usize::from(tag % 2) * 100),
                    ]
                })
                .collect(),
        ),
        scenario(
            "truncating, then appending",
            256,
            4,
            vec![replace("a", 50_000, 1)],
            vec![
                truncate("a", 20_000),
                append("a", 3000, 2),
                truncate("a", 21_000),
                append("a", 12_000, 3),
                truncate("a", 4 * BLOCK),
                append("a", 100, 4),
                truncate("a", 4 * BLOCK),
                append("a", BLOCK, 5),
                write("a", 4 * BLOCK + 10, 100, 6),
                truncate("a", 4 * BLOCK + 50),
                append("a", 9000, 7),
                truncate("a", 0),
                append("a", 4096, 8),
                append("a", 4096, 9),
            ],
        ),
        scenario(
            "freed blocks go to another file at once",
            104,
            6,
            vec![
                replace("a", 80_000, 1),
                replace("b", 60_000, 2),
                replace("c", 4000, 3),
            ],
            vec![
                truncate("a", 20_000),
                append("c", 40_000, 4),
                truncate("b", 100),
                append("a", 50_000, 5),
                write("c", 1000, 3000, 6),
                append("b", 20_000, 7),
                truncate("c", 0),
                append("b", 30_000, 8),
                delete("a"),
                append("c", 60_000, 9),
                rename("c", "b"),
                replace("a", 70_000, 10),
            ],
        ),
        changes_with_eviction(),
        nearly_full(),
        many_truncations(),
    ]
}

/// 36 files with content, more than the root has slots; each kind of change on files that have lost their slots.
fn changes_with_eviction() -> Scenario {
    let names = names(36);
    let mut prepare: Vec<Operation> = names
        .iter()
        .flat_map(|name| [create(name), append(name, 9000, 7)])
        .collect();
    prepare.push(delete("f35"));
    let observe = (0..6_u8)
        .flat_map(|round| {
            let name = |place: u8| &names[usize::from(round * 5 + place)];
            [
                write(name(0), 5000, 3000, round),
                truncate(name(1), 5000),
                append(name(2), 700, round),
                write(name(3), 8000, 3000, round),
                truncate(name(4), 0),
            ]
        })
        .chain([rename("f0", "f1"), append("f1", 100, 1), create("f0")])
        .collect();
    scenario("changes with eviction", 2048, 40, prepare, observe)
}

/// Almost no block is free: calls that need one are refused, all others work.
fn nearly_full() -> Scenario {
    scenario(
        "a nearly full store",
        256,
        8,
        vec![
            replace("a", 20_000, 1),
            replace("b", 9000, 2),
            replace("ballast", 680_000, 3),
            append("ballast", 60_000, 3),
            append("ballast", 12_000, 3),
            append("ballast", 12_000, 3),
        ],
        vec![
            append("a", 11_000, 4),
            write("a", 100, 7000, 5),
            write("b", 8000, 9000, 6),
            append("b", 30_000, 7),
            truncate("a", 5000),
            rename("a", "b"),
            append("b", 9000, 8),
            write("b", 0, 4000, 9),
            truncate("ballast", 600_000),
            replace("c", 30_000, 10),
            append("b", 50_000, 11),
            delete("ballast"),
            append("b", 60_000, 12),
        ],
    )
}

/// Each truncation frees blocks in another place.
fn many_truncations() -> Scenario {
    let names = names(60);
    let prepare = names.iter().map(|name| replace(name, 33_000, 3)).collect();
    let mut observe: Vec<Operation> = names
        .iter()
        .step_by(2)
        .take(24)
        .enumerate()
        .map(|(number, name)| truncate(name, number * 613))
        .collect();
    observe.push(append("f1", 90_000, 4));
    observe.push(write("f3", 20_000, 40_000, 5));
    observe.push(truncate("f1", 10));
    observe.push(append("f5", 60_000, 6));
    scenario("many truncations", 1024, 60, prepare, observe)
}

/// Fragmented free space: deletions that spill the free list, then allocations that load it again.
pub fn spilling() -> Vec<Scenario> {
    let names = names(160);
    let mut prepare: Vec<Operation> = names
        .iter()
        .map(|name| replace(name, 3000 + name.len() * 900, 3))
        .collect();
    prepare.extend(names.iter().step_by(2).take(50).map(|name| delete(name)));
    let spilling = scenario(
        "spilling the free list",
        2048,
        160,
        prepare.clone(),
        names
            .iter()
            .step_by(2)
            .skip(50)
            .take(16)
            .map(|name| delete(name))
            .collect(),
    );
    prepare.extend(names.iter().step_by(2).skip(50).map(|name| delete(name)));
    prepare.push(append("f1", 4_900_000, 4));
    vec![
        spilling,
        scenario(
            "allocating from spilled pieces on a nearly full store",
            1600,
            160,
            prepare,
            vec![
                append("f3", 30_000, 1),
                append("f5", 60_000, 2),
                append("f7", 90_000, 3),
                delete("f1"),
                append("f9", 50_000, 4),
                append("f11", 4096, 5),
            ],
        ),
        deletions_in_a_row(),
        allocations_from_spilled_lists(),
    ]
}

/// Files of several runs each, in pieces that do not touch.
fn fragments(count: usize) -> Vec<Operation> {
    let names = names(count);
    let mut prepare: Vec<Operation> = names.iter().map(|name| create(name)).collect();
    for round in 0..3 {
        prepare.extend(names.iter().map(|name| append(name, 9000, round)));
    }
    prepare
}

/// Twice as many deletions as the root has places for pieces, cut at every write.
fn deletions_in_a_row() -> Scenario {
    scenario(
        "many deletions in a row",
        2048,
        70,
        fragments(70),
        names(70)
            .iter()
            .step_by(2)
            .map(|name| delete(name))
            .collect(),
    )
}

fn allocations_from_spilled_lists() -> Scenario {
    let mut prepare = fragments(110);
    prepare.extend(names(110).iter().step_by(2).map(|name| delete(name)));
    scenario(
        "allocating from spilled lists, freeing in between",
        2000,
        110,
        prepare,
        vec![
            append("f1", 200_000, 1),
            append("f3", 200_000, 2),
            truncate("f1", 30_000),
            replace("f5", 100_000, 3),
            delete("f7"),
            append("f9", 12_000, 4),
            delete("f3"),
            write("f11", 20_000, 60_000, 5),
            rename("f13", "f15"),
            append("f17", 4096, 6),
        ],
    )
}

/// Half of the files are deleted and created again, repeatedly: lists are spilled into clusters that still hold an
/// intact list of an earlier life. The power is cut there, with every subset of the record's blocks: in a deletion, and
/// in a replacement that allocates.
pub fn spilling_again() -> Vec<Scenario> {
    let names = names(80);
    let half = || names.iter().step_by(2);
    let mut calls: Vec<Operation> = names.iter().map(|name| create(name)).collect();
    for round in 0..2 {
        calls.extend(names.iter().map(|name| append(name, 3000, round)));
    }
    for cycle in 0..3 {
        calls.extend(half().map(|name| delete(name)));
        calls.extend(half().map(|name| replace(name, 3000, cycle)));
    }
    let cut_from = |name, first: usize| Scenario {
        every_block_tear: true,
        ..scenario(
            name,
            600,
            80,
            calls[..first].to_vec(),
            calls[first..first + 6].to_vec(),
        )
    };
    vec![
        cut_from("a deletion spills over an older list", 332),
        cut_from("a replacement spills over an older list", 378),
    ]
}

/// Calls that become durable only with a later one.
pub fn unsynced() -> Vec<Scenario> {
    vec![
        scenario(
            "unsynced appends and a sync",
            256,
            4,
            vec![create("log"), append("log", 100, 1)],
            vec![
                append_later("log", 100, 2),
                append_later("log", 4096, 3),
                append_later("log", 30, 4),
                Operation::Sync,
                append_later("log", 9000, 5),
                append_later("log", 1, 6),
                append_later("log", 20_000, 7),
                Operation::Sync,
                append_later("log", 4096, 8),
                append("log", 500, 9),
                append_later("log", 500, 10),
                Operation::Reopen,
                append_later("log", 500, 11),
                append_later("log", 500, 12),
            ],
        ),
        scenario(
            "many small unsynced appends",
            192,
            4,
            vec![create("log")],
            (0..24)
                .map(|tag| append_later("log", 700 + usize::from(tag) * 10, tag))
                .chain([Operation::Sync])
                .collect(),
        ),
        scenario(
            "a durable call on another file",
            320,
            6,
            vec![create("log"), replace("a", 9000, 1)],
            vec![
                append_later("log", 5000, 2),
                append("a", 10, 3),
                append_later("log", 5000, 4),
                create("b"),
                append_later("log", 100, 5),
                append_later("b", 3000, 6),
                write("a", 100, 100, 7),
                append_later("log", 4096, 8),
                append_later("b", 4096, 9),
                delete("a"),
                append_later("log", 100, 10),
                append_later("b", 100, 11),
                truncate("b", 50),
                append_later("log", 7000, 12),
                rename("log", "b"),
                append_later("b", 3000, 13),
                replace("c", 4000, 14),
            ],
        ),
        scenario(
            "unsynced, then the same file is cut, renamed, replaced, deleted",
            320,
            6,
            vec![replace("a", 10_000, 1), replace("b", 100, 2)],
            vec![
                append_later("a", 5000, 3),
                truncate("a", 12_000),
                append_later("a", 9000, 4),
                truncate("a", 3000),
                append_later("a", 4096, 5),
                rename("a", "b"),
                append_later("b", 4096, 6),
                write("b", 2000, 3000, 7),
                append_later("b", 600, 8),
                replace("b", 700, 9),
                append_later("b", 5000, 10),
                delete("b"),
                create("b"),
                append_later("b", 5000, 11),
                write("b", 4000, 3000, 12),
            ],
        ),
        scenario(
            "unsynced overwrites",
            320,
            4,
            vec![replace("a", 30_000, 1), replace("b", 5000, 2)],
            vec![
                write_later("a", 0, 100, 3),
                write_later("a", 50, 5000, 4),
                append_later("a", 300, 5),
                write_later("a", 29_000, 3000, 6),
                write_later("b", 4000, 9000, 7),
                write_later("b", 15_000, 10, 8),
                Operation::Sync,
                write_later("a", 0, 20_000, 9),
                append_later("b", 4096, 10),
                append("a", 1, 11),
                write_later("a", 10, 10, 12),
                truncate("a", 100),
            ],
        ),
        scenario(
            "unsynced appends fill up what is left",
            112,
            4,
            vec![replace("a", 100_000, 1), create("log")],
            vec![
                append_later("log", 60_000, 2),
                append_later("log", 60_000, 3),
                append_later("log", 90_000, 4),
                truncate("a", 1000),
                append_later("log", 60_000, 5),
                append_later("a", 30_000, 6),
                Operation::Sync,
                delete("log"),
                append_later("a", 60_000, 7),
            ],
        ),
        unsynced_eviction(),
    ]
}

/// More files with pending calls than the root has slots.
fn unsynced_eviction() -> Scenario {
    let names = names(36);
    scenario(
        "unsynced appends with eviction",
        2048,
        40,
        names
            .iter()
            .flat_map(|name| [create(name), append(name, 300, 7)])
            .collect(),
        (0..8)
            .map(|tag: u8| append_later(&names[usize::from(tag) * 3 % 36], 4096, tag))
            .chain([append("f33", 10, 9), append_later("f34", 10, 9)])
            .collect(),
    )
}
