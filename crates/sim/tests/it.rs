//! The program: its exit status, and the seeded bugs that it must find.

use std::process::{Command, Output};

fn sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sim"))
        .args(["--readings", "2000"])
        .args(arguments)
        .env_remove("KEEL_SEEDED_BUG")
        .output()
        .expect("the program starts")
}

/// Checks that a run with the bug is red, or that a build without the bugs says so.
fn is_found(bug: &str) {
    let output = sim(&["--until", bug]);
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    if cfg!(debug_assertions) {
        assert!(output.status.success(), "{text}{errors}");
        assert!(text.starts_with(&format!("{bug} found: ")), "{text}");
    } else {
        assert_eq!(output.status.code(), Some(2), "{text}{errors}");
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
fn a_seed_that_holds_ends_with_0_and_a_wrong_command_with_2() {
    let output = sim(&["--seed", "3", "--twice", "--trace"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("hours a minute") && text.contains("Committed"),
        "{text}"
    );
    for wrong in [
        &["--seeds", "5..5"][..],
        &["--until", "no-such-bug"],
        &["--seed", "1", "--seeds", "1..3"],
    ] {
        assert_eq!(sim(wrong).status.code(), Some(2), "{wrong:?}");
    }
}
