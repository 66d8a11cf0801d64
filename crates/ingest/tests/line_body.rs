//! Bodies of lines: taken as a stream of the same lines, in slices, with the refused ones named.

use crate::intake_support::{Fake, NOW_MS, intake, options, refused};
use ingest::intake::{Intake, IntakeOptions, Reason};
use ingest::line::{BodyStopped, BodyTaken, LineBody, Precision, REFUSED_LINES_MAX};

/// Takes a whole body; the destination makes room each time.
fn take(intake: &mut Intake<Fake>, text: &str, line_bytes_max: usize) -> BodyTaken {
    let mut body = LineBody::new(text.into(), Precision::Nanoseconds, line_bytes_max);
    loop {
        match body.take(intake) {
            BodyStopped::Done => return body.into_taken(),
            BodyStopped::Slice | BodyStopped::Wait { .. } => {}
            BodyStopped::Failed => panic!("the log does not fail"),
        }
    }
}

#[test]
fn good_lines_are_kept_and_each_refused_one_is_named_with_its_reasons() {
    let fake = Fake::new();
    fake.with(|inner| inner.unknown = vec!["b/x".to_owned()]);
    let mut intake = intake(&fake);
    let long = "x".repeat(300);
    let text = format!(
        "a v=1\r\n# a comment\n\nbad\na t=\"one\ntwo\"\nb v=2,x=3,+=4\na v=5 1\n{long}\na v=6"
    );
    let taken = take(&mut intake, &text, 200);
    assert_eq!(
        fake.texts(),
        ["a/v=1", "a/t=\"one\ntwo\"", "b/v=2", "a/v=6"]
    );
    assert_eq!((taken.accepted, taken.refused, taken.shed), (4, 5, 0));
    assert_eq!((taken.lsn_end, taken.text_open_line), (4, None));
    let lines: Vec<(u64, Vec<Reason>)> = taken
        .lines
        .iter()
        .map(|line| (line.line, line.reasons.clone()))
        .collect();
    assert_eq!(
        lines,
        [
            (4, vec![Reason::LineInvalid]),
            (7, vec![Reason::KeyInvalid, Reason::KeyUnknown]),
            (8, vec![Reason::TimeAbsurd]),
            (9, vec![Reason::Oversized]),
        ]
    );
    assert_eq!(taken.lines[0].text, "bad");
    assert!(taken.lines[3].text.len() <= ingest::intake::EXCERPT_BYTES_MAX);
    // The counters are those of the line port.
    let counted = refused(&intake);
    assert_eq!(counted.values().sum::<u64>(), 5);
    assert_eq!(counted["key_unknown"], 1);
    assert_eq!(intake.counters().readings(), 4);
}

#[test]
fn a_line_has_no_reasons_of_other_sources() {
    let fake = Fake::new();
    let mut intake = intake(&fake);
    let _ = intake.line(b"bad");
    let taken = take(&mut intake, "a v=NaN\n", 200);
    assert_eq!(taken.lines[0].reasons, [Reason::NotFinite]);
}

#[test]
fn a_line_that_has_to_wait_goes_on_where_it_stopped() {
    let fake = Fake::new();
    fake.with(|inner| {
        inner.room = 2;
        inner.full = true;
    });
    let mut intake = intake(&fake);
    let mut body = LineBody::new(b"a v=1,+=2,w=3,x=4".to_vec(), Precision::Nanoseconds, 200);
    assert_eq!(body.take(&mut intake), BodyStopped::Wait { full: true });
    assert_eq!(fake.texts(), ["a/v=1", "a/w=3"]);
    let _ = intake.line(b"bad");
    assert_eq!(body.take(&mut intake), BodyStopped::Done);
    assert_eq!(fake.texts(), ["a/v=1", "a/w=3", "a/x=4"]);
    let taken = body.into_taken();
    assert_eq!((taken.accepted, taken.refused, taken.lsn_end), (3, 1, 3));
    assert_eq!(taken.lines[0].reasons, [Reason::KeyInvalid]);
    fake.with(|inner| inner.failed = true);
    let mut body = LineBody::new(b"a v=1".to_vec(), Precision::Nanoseconds, 200);
    assert_eq!(body.take(&mut intake), BodyStopped::Failed);
}

#[test]
fn a_large_body_is_taken_in_slices_and_names_no_more_lines_than_it_may() {
    let fake = Fake::new();
    let mut intake = intake(&fake);
    let lines = 20_000;
    let mut body = LineBody::new("a v=\n".repeat(lines).into(), Precision::Nanoseconds, 200);
    let mut slices = 1;
    while body.take(&mut intake) == BodyStopped::Slice {
        slices += 1;
    }
    assert_eq!(slices, 2);
    let taken = body.into_taken();
    assert_eq!(taken.refused, lines as u64);
    assert_eq!(taken.lines.len(), REFUSED_LINES_MAX);
}

#[test]
fn a_line_far_above_the_limit_is_followed_in_slices() {
    let long = "x".repeat(1 << 20);
    for line in [long.clone(), format!("a t=\"{long}\""), format!("#{long}")] {
        let fake = Fake::new();
        let mut intake = intake(&fake);
        let text = format!("a v=1\n{line}\na v=2\n{line}");
        let mut body = LineBody::new(text.into(), Precision::Nanoseconds, 200);
        let mut slices = 0;
        while body.take(&mut intake) == BodyStopped::Slice {
            slices += 1;
        }
        assert!(slices >= 2 * (long.len() >> 16) - 2, "{slices}");
        assert_eq!(fake.texts(), ["a/v=1", "a/v=2"]);
        let taken = body.into_taken();
        assert_eq!((taken.refused, taken.text_open_line), (2, None));
        let lines: Vec<u64> = taken.lines.iter().map(|line| line.line).collect();
        assert_eq!(lines, [2, 4]);
        assert_eq!(refused(&intake)["oversized"], 2);
    }
}

#[test]
fn the_unit_of_times_is_that_of_the_body() {
    let fake = Fake::new();
    let options = IntakeOptions {
        line_precision: Precision::Seconds,
        ..options()
    };
    let mut intake = Intake::new(options, fake.clone());
    let units = [
        (Precision::Nanoseconds, NOW_MS * 1_000_000),
        (Precision::Microseconds, NOW_MS * 1000),
        (Precision::Milliseconds, NOW_MS),
        (Precision::Seconds, NOW_MS / 1000),
        (Precision::Minutes, NOW_MS / 60_000),
        (Precision::Hours, NOW_MS / 3_600_000),
    ];
    for (unit, time) in units {
        let mut body = LineBody::new(format!("a v=1 {time}").into(), unit, 200);
        assert_eq!(body.take(&mut intake), BodyStopped::Done);
    }
    // The lines of other sources keep the configured unit.
    let _ = intake.line(format!("a v=1 {}", NOW_MS / 1000).as_bytes());
    let times: Vec<Option<i64>> = fake.puts().into_iter().map(|(_, _, time)| time).collect();
    assert_eq!(times, [Some(NOW_MS); 7]);
}

#[test]
fn a_text_without_a_certain_end_costs_only_the_rest_of_the_body() {
    for (text, open_line, reason) in [
        (
            "a v=1\na t=\"one\nb v=2\nc v=3\n",
            Some(2),
            Reason::LineInvalid,
        ),
        (
            "a v=1\na t=\"one\nb t=\"two\"\n",
            Some(2),
            Reason::Oversized,
        ),
        // Nothing stands behind the line.
        ("a v=1\n m=\"x v=1", None, Reason::LineInvalid),
    ] {
        let fake = Fake::new();
        let mut intake = intake(&fake);
        let taken = take(&mut intake, text, 200);
        assert_eq!(fake.texts(), ["a/v=1"], "{text}");
        let found = (taken.refused, taken.text_open_line);
        assert_eq!(found, (1, open_line), "{text}");
        assert_eq!(taken.lines[0].line, 2);
        assert_eq!(taken.lines[0].reasons, [reason], "{text}");
    }
}
