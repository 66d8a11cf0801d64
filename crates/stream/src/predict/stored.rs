//! Learned actions survive restarts and new versions: tests of the files of `ACTIONS.md`.

use super::none::NonePredictor;
use super::paper::{PaperPredictor, PaperSettings};
use super::task::{TaskPredictor, TaskSettings};
use super::{Catalogue, Needed, Predictor, Push};
use crate::block::{BlockAt, ContentId, FileId, Token};
use crate::wire::HeldBlocks;
use proptest::prelude::*;

/// Files of a version: path, content, blocks. The first is number 1.
#[derive(Clone, Default)]
struct Version(Vec<(Vec<u8>, ContentId, u32)>);

impl Version {
    fn of(files: &[(&str, u8, u32)]) -> Self {
        let files = files.iter();
        Self(
            files
                .map(|(path, content, blocks)| {
                    (path.as_bytes().to_vec(), ContentId([*content; 32]), *blocks)
                })
                .collect(),
        )
    }
}

impl Catalogue for Version {
    fn describe(&self, file: FileId) -> Option<(&[u8], ContentId, u32)> {
        let (path, content, blocks) = self.0.get((file.0 as usize).checked_sub(1)?)?;
        Some((path, *content, *blocks))
    }

    fn find(&self, path: &[u8]) -> Option<(FileId, ContentId, u32)> {
        let place = self.0.iter().position(|file| file.0 == path)?;
        Some((FileId(place as u32 + 1), self.0[place].1, self.0[place].2))
    }
}

fn block(file: u32, index: u32) -> BlockAt {
    BlockAt {
        file: FileId(file),
        index,
    }
}

fn task() -> TaskPredictor {
    TaskPredictor::new(TaskSettings::default())
}

fn paper() -> PaperPredictor {
    PaperPredictor::new(PaperSettings::default())
}

fn learn(predictor: &mut dyn Predictor, number: u8, task: u32, read: &[BlockAt]) {
    let (token, now_ms) = (Token([number; 16]), u64::from(number) * 100_000);
    predictor.begin(token, FileId(task), &HeldBlocks::default(), now_ms);
    for at in read {
        predictor.request(token, *at, now_ms);
    }
    predictor.trace(token, read, now_ms);
    predictor.end(token, true, true, now_ms);
}

fn planned(predictor: &dyn Predictor, task: u32) -> Vec<BlockAt> {
    let plan = predictor.plan(FileId(task));
    plan.map_or_else(Vec::new, |plan| plan.blocks().collect())
}

/// The test vector of each format.
const GOLDEN_1: &[u8] = include_bytes!("../../tests/golden/actions-1");
const GOLDEN_2: &[u8] = include_bytes!("../../tests/golden/actions-2");

#[test]
fn a_file_has_the_bytes_of_the_format() {
    let version = Version::of(&[("bin/a", 0x11, 3)]);
    let mut predictor = task();
    learn(&mut predictor, 1, 1, &[block(1, 2), block(1, 0)]);
    let bytes = predictor.save(&version);
    assert_eq!(bytes, GOLDEN_2);
    let mut other = task();
    other.load(&bytes, &version).unwrap();
    assert_eq!(planned(&other, 1), [block(1, 2), block(1, 0)]);
    assert_eq!(other.save(&version), bytes);
}

#[test]
fn an_action_of_format_1_counts_as_whole() {
    let version = Version::of(&[("bin/a", 0x11, 3)]);
    let mut predictor = task();
    predictor.load(GOLDEN_1, &version).unwrap();
    assert_eq!(planned(&predictor, 1), [block(1, 2), block(1, 0)]);
    assert!(predictor.actions()[0].is_whole);
    assert!(matches!(predictor.needed(FileId(1)), Needed::Plan(_)));
    assert_eq!(predictor.save(&version), GOLDEN_2);
}

#[test]
fn an_action_in_part_is_in_part_after_a_restart() {
    let version = Version::of(&[("bin/a", 1, 10)]);
    let mut predictor = task();
    let token = Token([1; 16]);
    predictor.begin(token, FileId(1), &HeldBlocks::default(), 0);
    predictor.trace(token, &[block(1, 0)], 0);
    predictor.cut(token, 0);
    let mut other = task();
    other.load(&predictor.save(&version), &version).unwrap();
    for predictor in [&mut predictor, &mut other] {
        assert_eq!(planned(&*predictor, 1), [block(1, 0)]);
        assert!(!predictor.actions()[0].is_whole);
        assert_eq!(predictor.needed(FileId(1)), Needed::Part);
    }
    learn(&mut other, 2, 1, &[block(1, 0), block(1, 5)]);
    let mut third = task();
    third.load(&other.save(&version), &version).unwrap();
    assert!(third.actions()[0].is_whole);
    let Needed::Plan(plan) = third.needed(FileId(1)) else {
        panic!("a whole start");
    };
    assert!(plan.blocks().eq([block(1, 0), block(1, 5)]));
}

#[test]
fn unchanged_blocks_are_kept_under_new_numbers() {
    let version = Version::of(&[("bin/a", 1, 10), ("lib/b", 2, 10)]);
    let later = Version::of(&[("new", 9, 1), ("lib/b", 2, 10), ("bin/a", 1, 10)]);
    let read = [block(1, 0), block(2, 3), block(1, 1)];
    let mut predictor = task();
    for number in 1..=4 {
        learn(&mut predictor, number, 1, &read);
    }
    let mut other = task();
    other.load(&predictor.save(&version), &later).unwrap();
    assert_eq!(planned(&other, 3), [block(3, 0), block(2, 3), block(3, 1)]);
    let begun = other.begin(Token([9; 16]), FileId(3), &HeldBlocks::default(), 0);
    assert!(matches!(begun.push, Push::Plan(_)) && !begun.is_audit);

    let mut predictor = paper();
    learn(&mut predictor, 1, 1, &read);
    let mut other = paper();
    other.load(&predictor.save(&version), &later).unwrap();
    assert_eq!(planned(&other, 3), [block(3, 0), block(3, 1)]);
    assert_eq!(planned(&other, 2), [block(2, 3)]);
}

#[test]
fn changed_blocks_must_be_confirmed_and_gone_blocks_are_dropped() {
    let version = Version::of(&[("bin/a", 1, 10), ("lib/b", 2, 10), ("lib/c", 3, 10)]);
    let later = Version::of(&[("bin/a", 1, 10), ("lib/b", 7, 4)]);
    let read = [
        block(1, 0),
        block(2, 3),
        block(2, 4),
        block(2, 1),
        block(3, 0),
    ];
    let mut predictor = task();
    for number in 1..=4 {
        learn(&mut predictor, number, 1, &read);
    }
    let mut other = task();
    other.load(&predictor.save(&version), &later).unwrap();
    let kept = [block(1, 0), block(2, 3), block(2, 1)];
    assert_eq!(planned(&other, 1), kept);
    // The need for confirmation is saved as well.
    let mut again = task();
    again.load(&other.save(&later), &later).unwrap();
    let token = Token([9; 16]);
    let begun = again.begin(token, FileId(1), &HeldBlocks::default(), 0);
    assert!(begun.is_audit);
    again.trace(token, &[block(1, 0), block(2, 3)], 0);
    again.end(token, true, true, 0);
    assert_eq!(planned(&again, 1), kept[..2]);

    // If an executable is gone, its actions are dropped.
    let without = Version::of(&[("lib/b", 2, 10)]);
    let mut other = task();
    other.load(&predictor.save(&version), &without).unwrap();
    assert!(other.actions().is_empty());
}

#[test]
fn a_damaged_file_is_refused_whole() {
    let version = Version::of(&[("bin/a", 1, 10), ("lib/b", 2, 10)]);
    let predictors: [fn() -> Box<dyn Predictor>; 3] = [
        || Box::new(NonePredictor),
        || Box::new(task()),
        || Box::new(paper()),
    ];
    for (mode, make) in predictors.iter().enumerate() {
        let mut predictor = make();
        learn(
            &mut *predictor,
            1,
            1,
            &[block(1, 0), block(2, 3), block(1, 1)],
        );
        let bytes = predictor.save(&version);
        let mut other = make();
        learn(&mut *other, 1, 2, &[block(2, 5)]);
        let before = other.save(&version);
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            other.load(&flipped, &version).unwrap_err();
            other.load(&bytes[..at], &version).unwrap_err();
            // Also with a correct checksum: any file that loads must be within the rules.
            reseal(&mut flipped);
            let mut third = make();
            if third.load(&flipped, &version).is_ok() {
                let saved = third.save(&version);
                make().load(&saved, &version).unwrap();
            }
        }
        let mut longer = bytes.clone();
        longer.push(0);
        reseal(&mut longer);
        other.load(&longer, &version).unwrap_err();
        assert_eq!(other.save(&version), before);
        for (another, make) in predictors.iter().enumerate() {
            assert_eq!(make().load(&bytes, &version).is_ok(), mode == another);
        }
    }
}

fn reseal(bytes: &mut [u8]) {
    let payload = bytes.len() - 4;
    let checksum = crc32c::crc32c(&bytes[..payload]).to_le_bytes();
    bytes[payload..].copy_from_slice(&checksum);
}

/// A run: its task, the blocks of its phases, whether it is exact.
type AnyRun = (u32, Vec<Vec<(u32, u32)>>, bool);

/// Runs of tasks: the blocks that each reads, in phases.
fn runs() -> impl Strategy<Value = Vec<AnyRun>> {
    let phase = prop::collection::vec((1..6_u32, 0..60_u32), 0..80);
    let phases = prop::collection::vec(phase, 1..4);
    prop::collection::vec((1..4_u32, phases, any::<bool>()), 0..8)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn learned_actions_come_back_as_they_were(runs in runs(), is_paper in any::<bool>()) {
        let files: Vec<(String, u8)> = (0..6).map(|number| (format!("f{number}"), number)).collect();
        let files: Vec<(&str, u8, u32)> =
            files.iter().map(|(path, number)| (path.as_str(), *number, 60)).collect();
        let version = Version::of(&files);
        let make = || -> Box<dyn Predictor> {
            if is_paper { Box::new(paper()) } else { Box::new(task()) }
        };
        let mut predictor = make();
        for (number, (task, phases, is_exact)) in runs.iter().enumerate() {
            let (token, mut now_ms) = (Token([number as u8; 16]), number as u64 * 1_000_000);
            predictor.begin(token, FileId(*task), &HeldBlocks::default(), now_ms);
            for phase in phases {
                let blocks: Vec<BlockAt> =
                    phase.iter().map(|(file, index)| block(*file, *index)).collect();
                for at in blocks.iter().step_by(2) {
                    predictor.request(token, *at, now_ms);
                }
                predictor.trace(token, &blocks, now_ms);
                now_ms += 10_000;
                predictor.end(token, *is_exact, false, now_ms);
                predictor.tick(now_ms);
            }
            predictor.end(token, *is_exact, true, now_ms);
        }
        let saved = predictor.save(&version);
        let mut other = make();
        other.load(&saved, &version).unwrap();
        prop_assert_eq!(other.actions(), predictor.actions());
        prop_assert_eq!(other.save(&version), saved);
        for task in 1..4 {
            prop_assert_eq!(planned(&*other, task), planned(&*predictor, task));
        }
    }

    #[test]
    fn any_stored_bytes_load_without_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 16..400),
        format in 1..3_u8,
        mode in 0..3_u8,
    ) {
        bytes[..8].copy_from_slice(b"KEELACTS");
        bytes[8..12].copy_from_slice(&[format, 0, mode, 0]);
        bytes[13..16].copy_from_slice(&[0; 3]);
        reseal(&mut bytes);
        let version = Version::of(&[("", 1, 10)]);
        let _ = task().load(&bytes, &version);
        let _ = paper().load(&bytes, &version);
    }
}
