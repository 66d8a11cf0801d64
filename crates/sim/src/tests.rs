//! Whole runs of small size.

use crate::check::Invariant;
use crate::report::Figures;
use crate::run::{Setup, run};
use crate::sensors::Sensors;

const SETUP: Setup = Setup {
    readings: 2_000,
    ignores_flushes: false,
    prints: false,
};

fn sensors() -> Sensors {
    Sensors::read(SETUP.readings).expect("the bundled trace")
}

#[test]
fn forty_seeds_hold() {
    let sensors = sensors();
    let mut sum = Figures::default();
    for seed in 1..=40 {
        match run(&sensors, seed, SETUP) {
            Ok(figures) => sum.add(&figures),
            Err(failure) => panic!("{failure}"),
        }
    }
    println!("{sum:?}");
    assert_eq!(sum.readings, 40 * SETUP.readings);
    // What is drawn must happen, too.
    assert!(sum.acknowledged > sum.readings / 3, "{sum:?}");
    assert!(sum.cuts > 20 && sum.kills > 5 && sum.stops >= 40, "{sum:?}");
    assert!(
        sum.images > 150 && sum.again > 0 && sum.refused > 0,
        "{sum:?}"
    );
}

#[test]
fn one_seed_replays_itself() {
    let sensors = sensors();
    let ran = |seed| match run(&sensors, seed, SETUP) {
        Ok(figures) => figures,
        Err(failure) => panic!("{failure}"),
    };
    let first = ran(7);
    assert_eq!(ran(7), first);
    assert_ne!(ran(8).hash, first.hash);
}

/// A judge that passes this device would pass every node.
#[test]
fn a_device_that_ignores_flushes_is_found() {
    let sensors = sensors();
    let lies = Setup {
        ignores_flushes: true,
        ..SETUP
    };
    for seed in 1..=6 {
        let failure = run(&sensors, seed, lies).expect_err("nothing is durable");
        let invariant = failure.broken.invariant;
        let finders = [Invariant::NothingLost, Invariant::TrueAcknowledgement];
        assert!(finders.contains(&invariant), "{failure}");
    }
}
