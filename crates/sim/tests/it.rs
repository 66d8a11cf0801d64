//! The program: seeds that hold, devices and bugs that it must find, and its exit status.
//!
//! Whole runs are tested here alone, so that store and database are compiled for one program and not for two.

use std::process::{Command, Output};

fn sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sim"))
        .args(["--readings", "2000"])
        .args(arguments)
        .env_remove("KEEL_SEEDED_BUG")
        .output()
        .expect("the program starts")
}

/// Returns what was printed, errors behind the rest.
fn text_of(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    format!("{text}{errors}")
}

/// Returns the number that stands before these words.
fn number_before(text: &str, words: &str) -> u64 {
    let before = text.split_once(words).map_or("", |(before, _)| before);
    let number = before.trim_end().rsplit(' ').next();
    match number.and_then(|number| number.parse().ok()) {
        Some(number) => number,
        None => panic!("no number before `{words}`: {text}"),
    }
}

#[test]
fn forty_seeds_hold() {
    let output = sim(&["--seeds", "1..41"]);
    let text = text_of(&output);
    assert!(output.status.success(), "{text}");
    println!("{text}");
    let words = [
        "offered",
        "acknowledged",
        "refused",
        "came again",
        "power cuts",
        "kills",
        "stops",
        "images read",
        "range reads",
        "readings received",
        "of them once more",
    ];
    let [
        offered,
        acknowledged,
        refused,
        again,
        cuts,
        kills,
        stops,
        images,
        range_reads,
        forwarded,
        forwarded_again,
    ] = words.map(|words| number_before(&text, words));
    assert_eq!(offered, 40 * 2_000);
    // What is drawn must happen, too.
    assert!(acknowledged > offered / 3, "{text}");
    assert!(cuts > 20 && kills > 5 && stops >= 40, "{text}");
    assert!(images > 150 && again > 0 && refused > 0, "{text}");
    assert!(range_reads > 2 * images, "{text}");
    assert!(forwarded > offered / 3 && forwarded_again > 0, "{text}");
}

/// Runs seeds of a profile and returns what they tell.
fn holds(profile: &str, readings: &str, seeds: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_sim"))
        .args([
            "--profile",
            profile,
            "--readings",
            readings,
            "--seeds",
            seeds,
        ])
        .env_remove("KEEL_SEEDED_BUG")
        .output()
        .expect("the program starts");
    let text = text_of(&output);
    assert!(output.status.success(), "{text}");
    println!("{text}");
    text
}

/// With the seeds of the other tests, more than 200. In a test of their own: a test has a limit of 120 s.
#[test]
fn thirty_more_seeds_hold() {
    let text = holds("cuts", "2000", "41..71");
    assert!(text.contains("in 30 seeds\n"), "{text}");
    assert!(number_before(&text, "power cuts") > 15, "{text}");
}

#[test]
fn a_device_that_breaks_its_contract_costs_only_what_is_counted() {
    let text = holds("damage", "2000", "1..31");
    assert!(number_before(&text, "of requests") > 20, "{text}");
    assert!(number_before(&text, "readings damaged") > 0, "{text}");
    assert!(number_before(&text, "range reads") > 30, "{text}");
}

#[test]
fn a_device_that_fails_requests_costs_nothing() {
    let text = holds("errors", "2000", "1..31");
    assert!(number_before(&text, "of requests") > 20, "{text}");
    assert!(number_before(&text, "restarts") > 10, "{text}");
    assert_eq!(number_before(&text, "stores given up"), 0, "{text}");
    assert_eq!(number_before(&text, "readings damaged"), 0, "{text}");
}

#[test]
fn a_full_store_and_retention_delete_only_what_is_counted() {
    let text = holds("full", "6000", "1..21");
    assert!(number_before(&text, "deleted") > 5_000, "{text}");
}

#[test]
fn retention_deletes_nothing_that_an_upstream_holds() {
    let text = holds("retention", "6000", "1..21");
    assert!(number_before(&text, "deleted") > 5_000, "{text}");
    assert!(number_before(&text, "readings received") > 0, "{text}");
}

#[test]
fn a_device_that_stalls_for_seconds_costs_time_alone() {
    let text = holds("slow", "2000", "1..21");
    assert!(number_before(&text, "stalls") > 20, "{text}");
}

#[test]
fn a_clock_that_jumps_makes_no_value_fresh_and_hides_no_alarm() {
    let text = holds("clock", "2000", "1..31");
    // What is drawn must happen, or the models of values and alarms compare nothing.
    assert!(number_before(&text, "jumps") > 10, "{text}");
    assert!(number_before(&text, "probes taken") > 60, "{text}");
    assert!(number_before(&text, "values compared") > 500, "{text}");
    assert!(number_before(&text, "alarms told") > 50, "{text}");
}

#[test]
fn one_seed_replays_itself() {
    let steps = |seed: &str| {
        let output = sim(&["--seed", seed, "--trace"]);
        let text = text_of(&output);
        assert!(output.status.success(), "{text}");
        // The time that it took follows.
        let (steps, _) = text.split_once("every invariant held").expect("it held");
        steps.to_owned()
    };
    let first = steps("7");
    assert!(first.contains("Committed") && first.contains("image_hash"));
    // Not by `assert_eq!`: there are thousands of lines.
    assert!(first == steps("7"), "a second run took other steps");
    assert!(first != steps("8"), "another seed took the same steps");
}

/// A judge that passes this device would pass every node.
#[test]
fn a_device_that_ignores_flushes_is_found() {
    for seed in ["1", "2", "3", "4", "5", "6"] {
        let output = sim(&["--ignore-flushes", "--seed", seed]);
        let text = text_of(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        // A cursor may be what is lost first.
        let finders = [": I1 (", ": I12 (", ": I13 ("];
        assert!(finders.iter().any(|finder| text.contains(finder)), "{text}");
    }
}

/// Checks that a run with the bug is red, or that a build without the bugs says so.
fn is_found(bug: &str) {
    let output = sim(&["--until", bug]);
    let text = text_of(&output);
    if cfg!(debug_assertions) {
        assert!(output.status.success(), "{text}");
        assert!(text.starts_with(&format!("{bug} found: ")), "{text}");
    } else {
        assert_eq!(output.status.code(), Some(2), "{text}");
    }
}

#[test]
fn ack_before_flush_turns_a_run_red() {
    is_found("ack-before-flush");
}

#[test]
fn swapped_barrier_turns_a_run_red() {
    is_found("swapped-barrier");
}

#[test]
fn wake_up_lost_turns_a_run_red() {
    is_found("wake-up-lost");
}

#[test]
fn time_truncated_turns_a_run_red() {
    is_found("time-truncated");
}

#[test]
fn expiry_uncounted_turns_a_run_red() {
    is_found("expiry-uncounted");
}

#[test]
fn age_by_wall_turns_a_run_red() {
    is_found("age-by-wall");
}

#[test]
fn alarm_without_hysteresis_turns_a_run_red() {
    is_found("alarm-without-hysteresis");
}

#[test]
fn alarm_forgets_when_full_turns_a_run_red() {
    is_found("alarm-forgets-when-full");
}

#[test]
fn cursor_before_ack_turns_a_run_red() {
    is_found("cursor-before-ack");
}

#[test]
fn ack_of_another_turns_a_run_red() {
    is_found("ack-of-another");
}

#[test]
fn window_unbounded_turns_a_run_red() {
    is_found("window-unbounded");
}

#[test]
fn a_seed_that_holds_ends_with_0_and_a_wrong_command_with_2() {
    let output = sim(&["--seed", "3", "--twice"]);
    let text = text_of(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("hours a minute"), "{text}");
    assert!(text.contains("in 1 seed\n"), "{text}");
    for wrong in [
        &["--seeds", "5..5"][..],
        &["--until", "no-such-bug"],
        &["--seed", "1", "--seeds", "1..3"],
    ] {
        assert_eq!(sim(wrong).status.code(), Some(2), "{wrong:?}");
    }
}
