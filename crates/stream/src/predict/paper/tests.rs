//! The example of figures 4 and 5, step by step, and further cases.

use super::*;
use crate::predict::Predictor;

const FILE: FileId = FileId(1);

fn at(index: u32) -> BlockAt {
    BlockAt { file: FILE, index }
}

fn send(indexes: &[u32]) -> Push {
    Push::Blocks(indexes.iter().map(|index| at(*index)).collect())
}

struct Driver {
    predictor: PaperPredictor,
    tokens: u128,
    now_ms: u64,
}

impl Driver {
    fn new(seg_max: u32) -> Self {
        Self {
            predictor: PaperPredictor::new(PaperSettings {
                seg_max,
                ..PaperSettings::default()
            }),
            tokens: 0,
            now_ms: 0,
        }
    }

    fn begin(&mut self) -> Token {
        self.tokens += 1;
        self.now_ms += 10_000;
        let token = Token(self.tokens.to_le_bytes());
        let begun = self
            .predictor
            .begin(token, FILE, &HeldBlocks::default(), self.now_ms);
        assert_eq!(begun, Begun::default());
        token
    }

    fn ask(&mut self, token: Token, index: u32) -> Push {
        self.predictor.request(token, at(index), self.now_ms)
    }

    fn construct(&mut self, token: Token, indexes: &[u32]) {
        for index in indexes {
            assert_eq!(self.ask(token, *index), Push::Nothing, "{index}");
        }
        self.now_ms += 3_000;
        self.predictor.tick(self.now_ms);
    }

    fn end(&mut self, token: Token) {
        self.predictor.end(token, true, true, self.now_ms);
    }
}

/// The actions of figure 4: startup (B1, B3, B8, B9), (B11, B12, B14, B15); workload (B16, B17, B18, B13), (B4, ...).
fn figure_4() -> Driver {
    let mut driver = Driver::new(4);
    let token = driver.begin();
    driver.construct(token, &[1, 3, 8, 9, 11, 12, 14, 15]);
    driver.construct(token, &[16, 17, 18, 13, 4, 5, 6, 7]);
    driver.now_ms += 60_000;
    for index in [20, 21, 22] {
        assert_eq!(driver.ask(token, index), Push::Nothing);
    }
    driver.end(token);
    driver
}

#[test]
fn figure_5a_constructs_an_action() {
    let driver = figure_4();
    let listed: Vec<_> = driver
        .predictor
        .actions()
        .into_iter()
        .map(|action| {
            let segments: Vec<Vec<u32>> = action
                .segments
                .iter()
                .map(|segment| segment.iter().map(|at| at.index).collect())
                .collect();
            (action.kind, segments)
        })
        .collect();
    assert_eq!(
        listed,
        [
            (
                ActionKind::Startup,
                vec![vec![1, 3, 8, 9], vec![11, 12, 14, 15]]
            ),
            (
                ActionKind::Workload,
                vec![vec![16, 17, 18, 13], vec![4, 5, 6, 7]]
            ),
            (ActionKind::Exit, vec![vec![20, 21, 22]]),
        ]
    );
}

#[test]
fn figures_5b_and_5c_match_and_generate_an_action() {
    let mut driver = figure_4();
    let token = driver.begin();
    // B1 is answered with (B1, B3), B8 with SEG_MAX - 2 blocks (B8, B9), then a segment on its first block.
    assert_eq!(driver.ask(token, 1), send(&[3]));
    assert_eq!(driver.ask(token, 8), send(&[9]));
    assert_eq!(driver.ask(token, 11), send(&[12, 14, 15]));
    // The action has ended; the next one is matched from its own first block.
    assert_eq!(driver.ask(token, 16), send(&[17]));
    assert_eq!(driver.ask(token, 18), send(&[13]));
    assert_eq!(driver.ask(token, 4), send(&[5, 6, 7]));
    assert_eq!(driver.predictor.counters().misses, 0);
    assert_eq!(driver.predictor.actions()[1].runs, 2);
}

#[test]
fn following_blocks_are_the_rest_of_the_segment_and_the_requested_segments() {
    let mut driver = Driver::new(8);
    let token = driver.begin();
    let blocks: Vec<u32> = (0..40).map(|position| 400 - 7 * position).collect();
    driver.construct(token, &blocks);
    assert_eq!(driver.predictor.following(token, FILE, 3), []);
    let all = |positions: std::ops::Range<usize>| -> Vec<BlockAt> {
        blocks[positions].iter().map(|index| at(*index)).collect()
    };
    let token = driver.begin();
    assert_eq!(driver.predictor.following(token, FILE, 3), []);
    // The first segment is matched at the positions 2 and 6; the others at their first block.
    let steps = [
        (0, 2..32),
        (2, 6..32),
        (6, 8..32),
        (8, 16..40),
        (16, 24..40),
        (24, 32..40),
        (32, 40..40),
    ];
    for (position, behind) in steps {
        driver.ask(token, blocks[position]);
        let following = driver.predictor.following(token, FILE, 3);
        assert_eq!(following, all(behind), "behind {position}");
        assert_eq!(driver.predictor.following(token, FileId(9), 3), []);
    }
    // The scan sends the whole segment of a block.
    let token = driver.begin();
    driver.ask(token, blocks[19]);
    assert_eq!(driver.predictor.following(token, FILE, 1), all(24..32));
    assert_eq!(driver.predictor.files(FileId(9)), BTreeSet::from([FILE]));
}

#[test]
fn a_miss_matches_anew_then_scans_then_constructs() {
    let mut driver = figure_4();
    let token = driver.begin();
    driver.ask(token, 16);
    driver.ask(token, 18);
    // B11 instead of B4: the scan finds it in the second segment of the startup action.
    assert_eq!(driver.ask(token, 11), send(&[12, 14, 15]));
    assert_eq!(driver.predictor.counters().misses, 1);
    // Not the first of its segment: the whole segment is sent, and then the next ones.
    let other = driver.begin();
    assert_eq!(driver.ask(other, 9), send(&[1, 3, 8]));
    assert_eq!(driver.ask(other, 11), send(&[12, 14, 15]));
    // Another action's first block instead of the match pointer: matched again.
    let third = driver.begin();
    assert_eq!(driver.ask(third, 1), send(&[3]));
    assert_eq!(driver.ask(third, 16), send(&[17]));
    // In no action: constructed from here on, even if a later block is known.
    assert_eq!(driver.ask(third, 99), Push::Nothing);
    assert_eq!(driver.ask(third, 1), Push::Nothing);
    driver.now_ms += 3_000;
    assert_eq!(driver.ask(third, 1), send(&[3]));
    assert_eq!(driver.predictor.actions().len(), 4);
    assert_eq!(driver.predictor.actions()[3].kind, ActionKind::Workload);
}

#[test]
fn construction_ends_three_seconds_after_its_first_request() {
    let mut driver = Driver::new(4);
    let token = driver.begin();
    let begun_ms = driver.now_ms;
    for (index, after_ms) in [(1, 0), (2, 1_500), (3, 2_999)] {
        driver.now_ms = begun_ms + after_ms;
        driver.predictor.tick(driver.now_ms);
        assert_eq!(driver.ask(token, index), Push::Nothing);
    }
    assert!(driver.predictor.actions().is_empty());
    driver.predictor.tick(begun_ms + 3_000);
    assert_eq!(driver.predictor.actions().len(), 1);
    assert!(driver.predictor.take_changed() && !driver.predictor.take_changed());
}

/// With blocks 0, 1, 2, ...: each request that the device would make.
fn asked(seg_max: u32, blocks: u32) -> Vec<u32> {
    let mut driver = Driver::new(seg_max);
    let token = driver.begin();
    driver.construct(token, &(0..blocks).collect::<Vec<_>>());
    let token = driver.begin();
    let (mut has, mut asked) = (HashSet::new(), Vec::new());
    for index in 0..blocks {
        if has.insert(index) {
            asked.push(index);
            match driver.ask(token, index) {
                Push::Nothing => {}
                Push::Blocks(blocks) => has.extend(blocks.iter().map(|at| at.index)),
                Push::Plan(plan) => has.extend(plan.blocks().map(|at| at.index)),
                Push::Stop => panic!("nothing is being sent"),
            }
        }
    }
    assert_eq!(driver.predictor.counters().misses, 0);
    asked
}

#[test]
fn the_first_segment_is_matched_twice_and_above_32_three_times() {
    assert_eq!(asked(32, 100), [0, 2, 30, 32, 64, 96]);
    assert_eq!(asked(64, 200), [0, 2, 32, 62, 64, 128, 192]);
    assert_eq!(asked(256, 600), [0, 2, 128, 254, 256, 512]);
    assert_eq!(asked(32, 20), [0, 2]);
    assert_eq!(asked(32, 2), [0]);
    assert_eq!(asked(32, 1), [0]);
}

#[test]
fn two_runs_at_once_have_a_state_each() {
    let mut driver = figure_4();
    let (left, right) = (driver.begin(), driver.begin());
    assert_eq!(driver.ask(left, 1), send(&[3]));
    assert_eq!(driver.ask(right, 16), send(&[17]));
    assert_eq!(driver.ask(left, 8), send(&[9]));
    assert_eq!(driver.ask(right, 18), send(&[13]));
    assert_eq!(driver.predictor.counters().misses, 0);
    // Each executable of a run has its own state.
    let other = BlockAt {
        file: FileId(2),
        index: 1,
    };
    assert_eq!(
        driver.predictor.request(left, other, driver.now_ms),
        Push::Nothing
    );
    assert_eq!(driver.ask(left, 11), send(&[12, 14, 15]));
}

#[test]
fn two_constructions_of_one_program_make_one_action() {
    let mut driver = Driver::new(4);
    let (left, right) = (driver.begin(), driver.begin());
    for index in 0..10 {
        assert_eq!(driver.ask(left, index), Push::Nothing);
        assert_eq!(driver.ask(right, index), Push::Nothing);
    }
    driver.end(left);
    driver.end(right);
    let actions = driver.predictor.actions();
    assert_eq!((actions.len(), actions[0].runs), (1, 2));
}

#[test]
fn every_table_has_its_limit() {
    let mut driver = Driver::new(4);
    driver.predictor.settings.actions_max = 3;
    driver.predictor.settings.executables_max = 2;
    driver.predictor.settings.blocks_per_action_max = 5;
    driver.predictor.settings.blocks_total_max = 24;
    let token = driver.begin();
    for first in 0..6 {
        let indexes: Vec<u32> = (first * 100..first * 100 + 7).collect();
        driver.construct(token, &indexes);
    }
    assert_eq!(driver.predictor.actions().len(), 3);
    let counters = driver.predictor.counters();
    assert_eq!(counters.actions_refused, 3);
    assert_eq!(counters.blocks_refused, 12);
    assert_eq!(driver.predictor.blocks_total, 15);
    for file in 2..5 {
        for index in 0..4 {
            let file = FileId(file);
            let at = BlockAt { file, index };
            driver.predictor.request(token, at, driver.now_ms);
        }
    }
    driver.end(token);
    assert_eq!(driver.predictor.executables.len(), 2);
    assert!(driver.predictor.blocks_total <= 24);
    assert!(driver.predictor.forget(FILE) && !driver.predictor.forget(FILE));
    assert!(driver.predictor.plan(FILE).is_none());
    let known = driver
        .predictor
        .plan(FileId(2))
        .map(|plan| plan.blocks().count());
    assert_eq!(driver.predictor.blocks_total, known.unwrap());
}

#[test]
fn neighbours_that_were_read_are_recorded() {
    let mut driver = Driver::new(4);
    let token = driver.begin();
    for index in [1, 9] {
        assert_eq!(driver.ask(token, index), Push::Nothing);
    }
    // 2 and 3 were sent with 1, and 10 and 11 with 9; 11 was not read.
    let traced: Vec<BlockAt> = [1, 2, 3, 9, 10].map(at).to_vec();
    driver.predictor.trace(token, &traced, driver.now_ms);
    driver.predictor.trace(token, &traced, driver.now_ms);
    driver.end(token);
    let plan = driver.predictor.plan(FILE).unwrap();
    assert_eq!(plan.blocks().collect::<Vec<_>>(), traced);
    assert_eq!(driver.predictor.blocks_total, traced.len());
    // Reads of a followed action are reported as well, and change nothing.
    let token = driver.begin();
    assert_eq!(driver.ask(token, 1), send(&[2]));
    driver.predictor.trace(token, &[at(30)], driver.now_ms);
    driver.end(token);
    assert_eq!(driver.predictor.blocks_total, traced.len());
}
