//! Runs random crash scenarios and random lives of stores for a chosen time, from random seeds.
//!
//! `FLASH_CRASH_SECONDS` sets the duration (default 2), `FLASH_CRASH_SEED` the first seed (default: the time). A
//! failure prints its seed; that seed, with 0 seconds, reproduces it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::common::crash::{Tally, explore, report};
use crate::common::lives::run_seed;
use crate::common::random_scenarios::random_scenario;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is not a number: {text}"))
    })
}

#[test]
fn random_scenarios_and_lives_survive_for_the_given_time() {
    let time_left = Duration::from_secs(variable("FLASH_CRASH_SECONDS").unwrap_or(2));
    let clock = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let mut seed = variable("FLASH_CRASH_SEED").unwrap_or(clock << 20);
    let started = Instant::now();
    let mut tally = Tally::default();
    let mut stores = 0_u64;
    loop {
        let explored = std::panic::catch_unwind(|| {
            let one = explore(&random_scenario(seed), seed, 24);
            run_seed(seed);
            one
        });
        match explored {
            Ok(one) => tally.add(&one),
            Err(panic) => {
                eprintln!("failed: FLASH_CRASH_SEED={seed} FLASH_CRASH_SECONDS=0 reproduces it");
                std::panic::resume_unwind(panic);
            }
        }
        stores += 1;
        if started.elapsed() >= time_left {
            break;
        }
        seed = seed.wrapping_add(1);
    }
    report("random scenarios", &tally);
    println!("cycles, random: {stores} stores, each with all its lives");
    assert!(tally.states > 0);
}
