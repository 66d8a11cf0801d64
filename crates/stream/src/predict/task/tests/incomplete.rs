//! What starts teach that fail or lose their connection, and what they leave as it is.

use super::{Begun, BlockAt, Driver, Phase, TASK, block, blocks};
use crate::predict::{Needed, Predictor};

/// Does a start that ends early: its connection is lost, or one of its reads fails.
fn end_early(driver: &mut Driver, read: &[BlockAt], is_cut: bool) -> Begun {
    let (token, begun) = driver.begin();
    driver.predictor.trace(token, read, driver.now_ms);
    if is_cut {
        driver.predictor.cut(token, driver.now_ms);
    } else {
        driver.predictor.failed(token);
        driver.predictor.end(token, true, true, driver.now_ms);
    }
    begun
}

#[test]
fn blocks_that_only_a_failed_start_has_read_are_no_whole_plan() {
    for is_cut in [true, false] {
        let mut driver = Driver::default();
        let all = blocks(1, 0..116);
        end_early(&mut driver, &all[..12], is_cut);
        assert_eq!(driver.planned(), all[..12]);
        for count in [12, 20] {
            assert_eq!(driver.predictor.needed(TASK), Needed::Part);
            assert!(!driver.predictor.actions()[0].is_whole);
            end_early(&mut driver, &all[..count], is_cut);
        }
        driver.run(&all, false);
        assert!(driver.predictor.actions()[0].is_whole);
        let needed = |driver: &mut Driver| match driver.predictor.needed(TASK) {
            Needed::Plan(plan) => plan.blocks().collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        assert_eq!(needed(&mut driver), all);
        // A start that fails later takes nothing from that.
        end_early(&mut driver, &all[..1], is_cut);
        assert_eq!(needed(&mut driver), all);
    }
}

#[test]
fn a_task_whose_start_is_not_known_is_known_in_part() {
    let mut driver = Driver::default();
    let (token, _) = driver.begin();
    // The start reads nothing that the server sees.
    driver.predictor.end(token, false, false, driver.now_ms);
    let work = blocks(2, 0..10);
    driver.predictor.trace(token, &work, driver.now_ms + 10_000);
    driver
        .predictor
        .end(token, true, true, driver.now_ms + 20_000);
    assert_eq!(driver.predictor.actions().len(), 1);
    assert!(driver.predictor.actions()[0].is_whole);
    assert_eq!(driver.predictor.needed(TASK), Needed::Part);
}

#[test]
fn a_failed_start_with_a_new_block_is_no_run_of_the_history() {
    let mut driver = Driver::default();
    let all = blocks(1, 0..40);
    driver.run(&all, true);
    let history = |driver: &Driver| {
        let startup = &driver.predictor.tasks[&TASK].actions[&Phase::Startup];
        let entry = startup.entry(all[39]).unwrap();
        (startup.exact, entry.read, entry.known)
    };
    let before = history(&driver);
    for index in 0..40 {
        end_early(&mut driver, &[all[0], block(2, index)], false);
        assert_eq!(history(&driver), before, "{index}");
    }
    let with_new = [&all[..1], &blocks(2, (0..40).rev()), &all[1..]].concat();
    assert_eq!(driver.planned(), with_new);
}

#[test]
fn an_audit_that_ends_early_is_repeated() {
    for is_cut in [true, false] {
        let mut driver = Driver::default();
        let all = blocks(1, 0..40);
        driver.run(&all, true);
        assert!(!driver.run(&[], false).is_audit);
        for _ in 0..3 {
            assert!(end_early(&mut driver, &all[..5], is_cut).is_audit);
            assert!(driver.predictor.take_changed(), "a restart must know it");
        }
        assert!(driver.run(&all, true).is_audit);
        assert!(!end_early(&mut driver, &all[..5], is_cut).is_audit);
        assert!(!driver.run(&all, true).is_audit);
    }
}

#[test]
fn an_audit_is_over_at_the_first_pause() {
    let mut driver = Driver::default();
    let all = blocks(1, 0..40);
    driver.run(&all, true);
    driver.run(&[], false);
    let (token, begun) = driver.begin();
    assert!(begun.is_audit);
    driver.predictor.trace(token, &all, driver.now_ms);
    driver
        .predictor
        .end(token, true, false, driver.now_ms + 3_000);
    let work = blocks(2, 0..10);
    driver.predictor.trace(token, &work, driver.now_ms + 8_000);
    driver.predictor.cut(token, driver.now_ms + 8_000);
    assert!(!driver.run(&all, true).is_audit);
}
