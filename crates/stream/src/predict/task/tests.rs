//! The answers of the default predictor, step by step.

mod incomplete;

use super::*;
use crate::predict::{ActionKind, Predictor};
use proptest::prelude::*;

fn block(file: u32, index: u32) -> BlockAt {
    BlockAt {
        file: FileId(file),
        index,
    }
}

fn blocks(file: u32, indexes: impl IntoIterator<Item = u32>) -> Vec<BlockAt> {
    indexes
        .into_iter()
        .map(|index| block(file, index))
        .collect()
}

const TASK: FileId = FileId(1);

struct Driver {
    predictor: TaskPredictor,
    tokens: u128,
    now_ms: u64,
}

impl Driver {
    fn new(settings: TaskSettings) -> Self {
        Self {
            predictor: TaskPredictor::new(settings),
            tokens: 0,
            now_ms: 0,
        }
    }

    fn token(&mut self) -> Token {
        self.tokens += 1;
        self.now_ms += 10_000;
        Token(self.tokens.to_le_bytes())
    }

    fn begin(&mut self) -> (Token, Begun) {
        let token = self.token();
        let begun = self
            .predictor
            .begin(token, TASK, &HeldBlocks::default(), self.now_ms);
        (token, begun)
    }

    /// Does a whole run. Returns the response to its begin.
    fn run(&mut self, read: &[BlockAt], is_exact: bool) -> Begun {
        let (token, begun) = self.begin();
        self.predictor.trace(token, read, self.now_ms);
        self.predictor.end(token, is_exact, true, self.now_ms);
        begun
    }

    fn planned(&self) -> Vec<BlockAt> {
        let plan = self.predictor.plan(TASK);
        plan.map_or_else(Vec::new, |plan| plan.blocks().collect())
    }
}

impl Default for Driver {
    fn default() -> Self {
        Self::new(TaskSettings::default())
    }
}

fn plan_of(push: &Push) -> &Arc<Plan> {
    match push {
        Push::Plan(plan) => plan,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_second_start_gets_the_blocks_of_the_first_in_order() {
    let mut driver = Driver::default();
    let mut read = blocks(2, (0..50).rev());
    read.extend(blocks(1, 0..30));
    assert_eq!(driver.run(&read, true), Begun::default());
    assert!(driver.predictor.take_changed());
    let begun = driver.run(&[], false);
    let plan = plan_of(&begun.push);
    assert_eq!(plan.blocks().collect::<Vec<_>>(), read);
    let lengths: Vec<usize> = plan.pieces.iter().map(Vec::len).collect();
    assert_eq!(lengths, [32, 32, 16]);
    let listed = driver.predictor.actions();
    assert_eq!((listed[0].kind, listed[0].runs), (ActionKind::Startup, 1));
    assert_eq!(listed[0].segments, plan.pieces);
}

#[test]
fn a_part_that_one_run_does_without_goes_before_blocks_that_chance_decides_about() {
    let mut driver = Driver::new(TaskSettings {
        chance_share_max: 0.0,
        ..TaskSettings::default()
    });
    // Five blocks of a file that is always read, and five of a file of their own.
    let (always, chance, part) = (blocks(1, 0..200), blocks(1, 200..205), blocks(2, 0..5));
    let all = [&always[..], &chance, &part].concat();
    for _ in 0..3 {
        driver.run(&all, true);
    }
    assert_eq!(driver.planned(), all);
    // Both are equally rare from now on.
    driver.run(&always, true);
    assert_eq!(driver.planned(), [&always[..], &chance].concat());
}

#[test]
fn a_requested_block_without_a_trace_is_learned() {
    let mut driver = Driver::default();
    let (token, _) = driver.begin();
    for index in [0, 9, 5] {
        let push = driver
            .predictor
            .request(token, block(1, index), driver.now_ms);
        assert_eq!(push, Push::Nothing);
    }
    let traced = blocks(1, [0, 1, 5, 6]);
    driver.predictor.trace(token, &traced, driver.now_ms);
    driver.predictor.end(token, true, true, driver.now_ms);
    assert_eq!(driver.planned(), blocks(1, [0, 9, 1, 5, 6]));
}

#[test]
fn every_second_and_then_every_eighth_start_is_watched() {
    let mut driver = Driver::default();
    let read = blocks(1, 0..40);
    driver.run(&read, true);
    let audits = |driver: &mut Driver, runs: u64| -> Vec<u64> {
        (1..=runs)
            .filter(|_| driver.run(&[], false).is_audit)
            .collect()
    };
    let watched: Vec<u64> = {
        let mut watched = Vec::new();
        for start in 1..=20 {
            if driver.run(&[], false).is_audit {
                watched.push(start);
            }
        }
        watched
    };
    assert_eq!(watched, [2, 10, 18]);
    // A plan that has changed by more than a little is audited at its second start again.
    for _ in 0..3 {
        driver.run(&blocks(1, 0..50), true);
    }
    assert_eq!(driver.planned().len(), 50);
    assert_eq!(audits(&mut driver, 2).len(), 1);
}

#[test]
fn a_plan_keeps_its_number_until_it_changes() {
    let mut driver = Driver::default();
    let read = blocks(1, 0..40);
    driver.run(&read, true);
    let number = driver.predictor.plan(TASK).unwrap().number;
    driver.run(&read, true);
    driver.run(&[], false);
    assert_eq!(driver.predictor.plan(TASK).unwrap().number, number);
    for _ in 0..3 {
        driver.run(&read[1..], true);
    }
    assert_ne!(driver.predictor.plan(TASK).unwrap().number, number);
}

#[test]
fn a_block_unread_in_three_exact_runs_is_dropped() {
    let mut driver = Driver::default();
    let read = blocks(1, 0..40);
    for _ in 0..20 {
        driver.run(&read, true);
    }
    // Runs that do not show all say nothing about what was pushed.
    for _ in 0..5 {
        driver.run(&[], false);
        driver.run(&read[..1], false);
    }
    for _ in 0..2 {
        driver.run(&read[..39], true);
    }
    assert_eq!(driver.planned().len(), 40);
    driver.run(&read[..39], true);
    assert_eq!(driver.planned(), read[..39]);
}

#[test]
fn a_new_block_is_put_behind_the_block_read_before_it() {
    let mut driver = Driver::default();
    driver.run(&blocks(1, [0, 10, 20]), false);
    driver.run(&blocks(1, [10, 11, 12]), false);
    assert_eq!(driver.planned(), blocks(1, [0, 10, 11, 12, 20]));
    driver.run(&blocks(2, [7]), false);
    assert_eq!(driver.planned()[0], block(2, 7));
}

#[test]
fn a_plan_is_stopped_when_the_task_does_other_things() {
    let settings = TaskSettings {
        mismatches_max: 3,
        ..TaskSettings::default()
    };
    let mut driver = Driver::new(settings);
    driver.run(&blocks(1, 0..200), true);
    let (token, _) = driver.begin();
    let now_ms = driver.now_ms;
    let mut ask = |at| driver.predictor.request(token, at, now_ms);
    assert_eq!(ask(block(1, 0)), Push::Nothing);
    assert_eq!(ask(block(9, 0)), Push::Nothing);
    assert_eq!(ask(block(9, 1)), Push::Nothing);
    // Predicted and not sent yet: no mismatch, and the count restarts.
    assert_eq!(ask(block(1, 150)), Push::Nothing);
    assert_eq!(ask(block(9, 2)), Push::Nothing);
    assert_eq!(ask(block(9, 3)), Push::Nothing);
    assert_eq!(ask(block(9, 3)), Push::Nothing);
    assert_eq!(ask(block(9, 4)), Push::Stop);
    assert_eq!(ask(block(9, 5)), Push::Nothing);
    // When the run returns to the plan, blocks are sent piece by piece.
    assert_eq!(ask(block(1, 100)), Push::Blocks(blocks(1, 101..132)));
    assert_eq!(driver.predictor.counters().plans_stopped, 1);
}

#[test]
fn held_blocks_are_not_sent_and_show_nothing() {
    let mut driver = Driver::default();
    let read = blocks(1, 0..40);
    driver.run(&read, true);
    let held = HeldBlocks {
        files: vec![(FileId(1), vec![(0, 40)])],
    };
    for _ in 0..40 {
        let token = driver.token();
        let begun = driver.predictor.begin(token, TASK, &held, driver.now_ms);
        assert_eq!(begun, Begun::default());
        driver.predictor.trace(token, &read[..2], driver.now_ms);
        driver.predictor.end(token, false, true, driver.now_ms);
    }
    assert_eq!(driver.planned(), read);
    assert!(!driver.run(&[], false).is_audit);
    assert!(driver.run(&[], false).is_audit);
}

#[test]
fn after_a_pause_comes_a_workload_and_at_the_end_the_exit() {
    let mut driver = Driver::default();
    let startup = blocks(1, 0..10);
    let (work, exit) = (blocks(2, 0..10), blocks(3, 0..10));
    let pause = |driver: &mut Driver, token, read: &[BlockAt]| {
        driver.predictor.trace(token, read, driver.now_ms);
        driver
            .predictor
            .end(token, true, false, driver.now_ms + 3_000);
        driver.now_ms += 10_000;
    };
    let (token, _) = driver.begin();
    pause(&mut driver, token, &startup);
    pause(&mut driver, token, &work);
    driver.predictor.trace(token, &exit, driver.now_ms);
    driver
        .predictor
        .end(token, true, true, driver.now_ms + 1_000);
    let kinds: Vec<ActionKind> = driver
        .predictor
        .actions()
        .iter()
        .map(|one| one.kind)
        .collect();
    assert_eq!(
        kinds,
        [ActionKind::Startup, ActionKind::Workload, ActionKind::Exit]
    );

    let (token, begun) = driver.begin();
    assert_eq!(plan_of(&begun.push).blocks().collect::<Vec<_>>(), startup);
    pause(&mut driver, token, &[]);
    let push = driver.predictor.request(token, work[0], driver.now_ms);
    assert_eq!(plan_of(&push).blocks().collect::<Vec<_>>(), work);
    pause(&mut driver, token, &[]);
    let push = driver.predictor.request(token, exit[0], driver.now_ms);
    assert_eq!(plan_of(&push).blocks().collect::<Vec<_>>(), exit);
    driver
        .predictor
        .end(token, false, true, driver.now_ms + 500);
    assert_eq!(driver.predictor.actions().len(), 3);
    assert_eq!(driver.planned(), startup);
}

#[test]
fn a_pause_is_noticed_without_a_report() {
    let mut driver = Driver::default();
    let (token, _) = driver.begin();
    for at in blocks(1, 0..5) {
        driver.predictor.request(token, at, driver.now_ms);
    }
    driver.predictor.tick(driver.now_ms + 4_999);
    assert!(driver.planned().is_empty());
    driver.predictor.tick(driver.now_ms + 5_000);
    assert_eq!(driver.planned(), blocks(1, 0..5));
    let (token, _) = driver.begin();
    driver.predictor.request(token, block(1, 7), driver.now_ms);
    for at in blocks(2, 0..5) {
        driver.predictor.request(token, at, driver.now_ms + 3_000);
    }
    driver
        .predictor
        .end(token, false, true, driver.now_ms + 9_000);
    let kinds: Vec<ActionKind> = driver
        .predictor
        .actions()
        .iter()
        .map(|one| one.kind)
        .collect();
    assert_eq!(kinds, [ActionKind::Startup, ActionKind::Workload]);
}

#[test]
fn a_run_begun_without_knowledge_gets_a_plan_learned_since() {
    let mut driver = Driver::default();
    let (early, other) = (driver.token(), driver.token());
    let read = blocks(1, 0..40);
    for token in [early, other] {
        let begun = driver
            .predictor
            .begin(token, TASK, &HeldBlocks::default(), driver.now_ms);
        assert_eq!(begun, Begun::default());
    }
    driver.predictor.trace(other, &read, driver.now_ms);
    driver.predictor.end(other, true, true, driver.now_ms);
    let push = driver.predictor.request(early, read[0], driver.now_ms);
    assert_eq!(plan_of(&push).blocks().collect::<Vec<_>>(), read);
}

#[test]
fn tokens_are_taken_once() {
    let mut driver = Driver::default();
    let read = blocks(1, 0..40);
    driver.run(&read, true);
    let (token, _) = driver.begin();
    assert!(driver.predictor.is_used(token));
    let mut begin = |token| {
        driver
            .predictor
            .begin(token, TASK, &HeldBlocks::default(), 0)
    };
    assert_eq!(begin(token), Begun::default());
    driver.predictor.end(token, true, true, 0);
    let mut begin = |token| {
        driver
            .predictor
            .begin(token, TASK, &HeldBlocks::default(), 0)
    };
    assert_eq!(begin(token), Begun::default());
    driver.predictor.end(token, true, true, 0);
    assert_eq!(driver.predictor.request(token, read[0], 0), Push::Nothing);
    let counters = driver.predictor.counters();
    assert_eq!((counters.tokens_reused, counters.tokens_unknown), (2, 2));
    assert_eq!(driver.planned(), read);
}

#[test]
fn every_table_has_its_limit() {
    let settings = TaskSettings {
        tasks_max: 2,
        workloads_max: 2,
        blocks_per_task_max: 20,
        blocks_total_max: 30,
        recorded_max: 25,
        tokens_max: 2,
        ..TaskSettings::default()
    };
    let mut driver = Driver::new(settings);
    for task in 1..=5 {
        let token = driver.token();
        let begun =
            driver
                .predictor
                .begin(token, FileId(task), &HeldBlocks::default(), driver.now_ms);
        assert_eq!(begun, Begun::default());
        let read = blocks(task, 0..100);
        driver.predictor.trace(token, &read, driver.now_ms);
        driver.predictor.end(token, true, true, driver.now_ms);
        assert!(driver.predictor.tasks.len() <= 2);
        assert!(driver.predictor.blocks_total <= 30);
        assert_eq!(driver.predictor.recorded, 0);
    }
    assert!(driver.predictor.plan(FileId(5)).is_some());
    let counters = driver.predictor.counters();
    assert_eq!(counters.tasks_evicted, 3);
    assert!(counters.blocks_refused >= 5 * 80);

    driver.begin();
    driver.begin();
    let (refused, _) = driver.begin();
    assert_eq!(
        driver.predictor.request(refused, block(1, 0), 0),
        Push::Nothing
    );
    assert_eq!(driver.predictor.counters().tokens_refused, 1);

    let mut driver = Driver::new(settings);
    let (token, _) = driver.begin();
    for file in 1..=5 {
        driver
            .predictor
            .trace(token, &blocks(file, 0..4), driver.now_ms);
        driver.predictor.end(token, true, false, driver.now_ms);
        driver.now_ms += 10_000;
    }
    assert_eq!(driver.predictor.actions().len(), 3);
    assert_eq!(driver.predictor.blocks_total, 12);
    assert!(driver.predictor.forget(TASK) && !driver.predictor.forget(TASK));
    assert_eq!(driver.predictor.blocks_total, 0);
}

#[test]
fn concurrent_starts_of_a_device_teach_nothing_false() {
    let mut driver = Driver::default();
    let core = blocks(1, 0..40);
    driver.run(&core, true);
    let now_ms = driver.now_ms;
    let (first, _) = driver.begin();
    let second = driver.token();
    let (begin, held) = (now_ms, HeldBlocks::default());
    let begun = driver.predictor.begin_beside(second, TASK, &held, begin);
    assert!(!begun.is_audit, "the second start of a plan, but not alone");
    // What one run reads is there for the other one, which reads it unseen although it claims to show everything.
    driver.predictor.beside(second, &core);
    driver.predictor.beside(first, &core);
    for token in [first, second] {
        driver.predictor.trace(token, &core[..5], begin);
        driver.predictor.end(token, true, true, begin);
    }
    assert_eq!(driver.planned(), core);
    // The audit is not lost.
    assert!(driver.begin().1.is_audit);
}

#[test]
fn a_run_that_lost_its_connection_does_not_change_the_plan() {
    let mut driver = Driver::default();
    let (core, now_and_then) = (blocks(1, 0..40), blocks(2, 0..20));
    let both = [core.clone(), now_and_then.clone()].concat();
    // A partial run is better than nothing.
    let (token, _) = driver.begin();
    driver.predictor.trace(token, &core[..10], driver.now_ms);
    driver.predictor.cut(token, driver.now_ms);
    assert_eq!(driver.planned(), core[..10]);
    for _ in 0..4 {
        driver.run(&both, true);
    }
    assert_eq!(driver.planned(), both);
    let changed = driver.predictor.take_changed();
    assert!(changed);
    for _ in 0..6 {
        let (token, _) = driver.begin();
        driver.predictor.request(token, block(9, 0), driver.now_ms);
        driver.predictor.trace(token, &core[..3], driver.now_ms);
        driver.predictor.cut(token, driver.now_ms);
        assert!(driver.predictor.is_used(token));
    }
    assert_eq!((driver.planned(), driver.predictor.recorded), (both, 0));
    assert!(!driver.predictor.take_changed());
}

/// A device that reports a start with a failed read as exact, or as a start in which each file shows its reads.
#[test]
fn a_start_with_a_failed_read_only_adds_to_the_action() {
    for is_exact in [false, true] {
        let mut driver = Driver::default();
        let (core, rest) = (blocks(1, 0..40), blocks(2, 0..20));
        let both = [core.clone(), rest].concat();
        driver.run(&both, true);
        assert!(driver.predictor.take_changed());
        let mut fail = |read: &[BlockAt]| {
            let (token, _) = driver.begin();
            driver.predictor.trace(token, read, driver.now_ms);
            driver.predictor.failed(token);
            driver.predictor.end(token, is_exact, true, driver.now_ms);
            driver.planned()
        };
        for count in [1, 40] {
            for _ in 0..12 {
                assert_eq!(fail(&core[..count]), both);
            }
        }
        // It needs the block whose request has failed.
        let mut with_new = fail(&[core[0], block(3, 7)]);
        assert!(driver.predictor.take_changed());
        with_new.retain(|at| at.file != FileId(3));
        assert_eq!(with_new, both);
    }
}

#[test]
fn blocks_that_a_silent_start_has_not_reached_do_not_count_as_unread() {
    let mut driver = Driver::default();
    let (core, rest) = (blocks(1, 0..40), blocks(2, 0..20));
    let both = [core.clone(), rest].concat();
    driver.run(&both, true);
    for _ in 0..12 {
        // The device waits for its next block, and says nothing.
        let (token, _) = driver.begin();
        driver.predictor.trace(token, &core, driver.now_ms);
        driver.predictor.tick(driver.now_ms + 5_000);
        driver
            .predictor
            .end(token, false, true, driver.now_ms + 9_000);
        assert_eq!(driver.planned(), both);
    }
}

#[test]
fn an_action_learned_from_a_failed_start_heals_at_the_next_good_start() {
    let mut driver = Driver::default();
    let all = blocks(1, 0..10);
    let (token, _) = driver.begin();
    driver.predictor.trace(token, &all[..1], driver.now_ms);
    driver.predictor.cut(token, driver.now_ms);
    assert_eq!(driver.planned(), all[..1]);
    driver.run(&all, false);
    assert_eq!(driver.planned(), all);
}

#[test]
fn needed_blocks_are_the_plan_and_those_that_only_some_runs_read() {
    let mut driver = Driver::default();
    assert_eq!(driver.predictor.needed(TASK), Needed::Nothing);
    let (core, part) = (blocks(1, 0..40), blocks(2, 0..20));
    driver.run(&core, true);
    let needed = |driver: &mut Driver| match driver.predictor.needed(TASK) {
        Needed::Plan(plan) => plan.blocks().collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(needed(&mut driver), core);
    // Another argument, once.
    driver.run(&[core.clone(), part.clone()].concat(), true);
    assert_eq!(driver.planned(), core);
    assert_eq!(needed(&mut driver), [core, part].concat());
    assert_eq!(driver.predictor.actions()[0].others, 20);
}

#[test]
fn a_file_that_shows_no_read_was_not_used_and_one_that_does_was() {
    let mut driver = Driver::default();
    let parts = [blocks(1, 0..60), blocks(2, 0..20), blocks(3, 0..20)];
    let all = parts.concat();
    driver.run(&all, true);
    // In starts that are no audits a device shows the first block of each file.
    let shown = [parts[0][0], parts[1][0]];
    for _ in 0..8 {
        let begun = driver.run(&shown, false);
        if begun.is_audit {
            continue;
        }
    }
    assert_eq!(driver.planned(), parts[..2].concat());
    // The file is planned again after it was read for long enough, and a file that most starts use stays.
    for turn in 0..16 {
        let first = parts[2][usize::from(turn % 4 == 0)..].first().copied();
        let third = if driver.planned().contains(&parts[2][0]) {
            parts[2][..1].to_vec()
        } else {
            parts[2].clone()
        };
        assert!(first.is_some());
        driver.run(&[&shown[..], &third].concat(), false);
    }
    assert_eq!(driver.planned().len(), all.len());
}

#[test]
fn short_runs_and_held_blocks_do_not_change_the_plan() {
    let mut driver = Driver::default();
    let parts = [blocks(1, 0..20), blocks(2, 0..60), blocks(3, 0..10)];
    let all = parts.concat();
    driver.run(&all, true);
    for _ in 0..6 {
        driver.run(&parts[0][..1], false);
    }
    assert_eq!(driver.planned(), all);
    for _ in 0..6 {
        let token = driver.token();
        let held = HeldBlocks::of(parts[2].clone());
        driver.predictor.begin(token, TASK, &held, driver.now_ms);
        let shown = [parts[0][0], parts[1][0]];
        driver.predictor.trace(token, &shown, driver.now_ms);
        driver.predictor.end(token, false, true, driver.now_ms);
    }
    assert_eq!(driver.planned(), all);
}

#[test]
fn a_block_requested_before_it_arrived_is_sent_earlier() {
    let mut driver = Driver::default();
    let read = blocks(1, 0..100);
    driver.run(&read, true);
    let late = [&read[..10], &read[80..], &read[10..80]].concat();
    let mut run = |asks: bool| {
        let (token, begun) = driver.begin();
        driver.predictor.request(token, read[0], driver.now_ms);
        if asks {
            driver.predictor.request(token, read[80], driver.now_ms);
        }
        driver.predictor.trace(token, &late, driver.now_ms);
        driver
            .predictor
            .end(token, begun.is_audit, true, driver.now_ms);
        driver.planned()
    };
    // There was no request, so the order is good enough, and pieces stay compressed as they are.
    assert_eq!((run(false), run(false)), (read.clone(), read.clone()));
    for _ in 0..8 {
        run(true);
    }
    assert_eq!(run(true), late);
}

#[test]
fn blocks_read_by_chance_are_pushed_while_they_cost_little() {
    let mut driver = Driver::default();
    let (core, chance) = (blocks(1, 0..2_000), blocks(2, 0..100));
    driver.run(&core, true);
    driver.run(&core, true);
    let few = [&core[..], &chance[..5]].concat();
    driver.run(&few, true);
    assert_eq!(driver.planned().len(), few.len());
    driver.run(&[&core[..], &chance].concat(), true);
    let planned = driver.planned();
    let by_chance = planned.iter().filter(|at| at.file == FileId(2)).count();
    assert!((1..=20).contains(&by_chance), "{by_chance}");
}

/// The possible inputs, in any order and of any number of concurrent runs.
#[derive(Clone, Copy, Debug)]
enum Input {
    Begin(u8, u32),
    Request(u8, u32, u32),
    Trace(u8, u32, u32),
    End(u8, bool, bool),
    Tick,
    Forget(u32),
}

fn input() -> impl Strategy<Value = Input> {
    let (token, file, index) = (0..8_u8, 1..5_u32, 0..30_u32);
    prop_oneof![
        (token.clone(), file.clone()).prop_map(|(token, task)| Input::Begin(token, task)),
        (token.clone(), file.clone(), index.clone()).prop_map(|(t, f, i)| Input::Request(t, f, i)),
        (token.clone(), file.clone(), index).prop_map(|(t, f, i)| Input::Trace(t, f, i)),
        (token, any::<bool>(), any::<bool>())
            .prop_map(|(t, exact, exited)| { Input::End(t, exact, exited) }),
        Just(Input::Tick),
        file.prop_map(Input::Forget),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_messages_keep_the_sums_right_and_the_limits(
        inputs in prop::collection::vec((input(), 0..2_000_u64), 0..150)
    ) {
        let settings = TaskSettings {
            mismatches_max: 3,
            tasks_max: 2,
            workloads_max: 2,
            blocks_per_task_max: 50,
            blocks_total_max: 70,
            recorded_max: 60,
            tokens_max: 3,
            ended_max: 3,
            ..TaskSettings::default()
        };
        let mut predictor = TaskPredictor::new(settings);
        let mut now_ms = 0;
        for (input, later_ms) in inputs {
            now_ms += later_ms;
            let token = |number: u8| Token([number; 16]);
            match input {
                Input::Begin(number, task) => {
                    let _ = predictor.begin(token(number), FileId(task), &HeldBlocks::default(), now_ms);
                }
                Input::Request(number, file, index) => {
                    let push = predictor.request(token(number), block(file, index), now_ms);
                    if let Push::Blocks(sent) = push {
                        prop_assert!((1..32).contains(&sent.len()));
                        prop_assert!(!sent.contains(&block(file, index)));
                    }
                }
                Input::Trace(number, file, first) => {
                    predictor.trace(token(number), &blocks(file, first..first + 10), now_ms);
                }
                Input::End(number, is_exact, has_exited) => {
                    predictor.end(token(number), is_exact, has_exited, now_ms);
                }
                Input::Tick => predictor.tick(now_ms),
                Input::Forget(task) => {
                    predictor.forget(FileId(task));
                }
            }
            let actions = predictor.tasks.values().flat_map(|task| task.actions.values());
            let total: usize = actions.map(|action| action.entries.len()).sum();
            prop_assert_eq!(total, predictor.blocks_total);
            prop_assert!(total <= 70 && predictor.tasks.len() <= 2);
            let recorded: usize = predictor.runs.iter().map(|(_, run)| run.recorded()).sum();
            prop_assert_eq!(recorded, predictor.recorded);
            prop_assert!(recorded <= 60 && predictor.runs.iter().count() <= 3);
        }
    }
}
