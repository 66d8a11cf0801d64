//! The cases of `LINE.md`: the node does with each line what the page says.

use std::collections::BTreeMap;

use crate::intake_support::{Fake, offer, options, refused, topic_rule};
use ingest::intake::{Intake, IntakeOptions, PayloadKind};
use ingest::line::{BodyStopped, LineBody, LineBuffer, Piece, Precision};

const PAGE: &str = include_str!("../LINE.md");

/// Symbols of the page for characters that are invisible there.
const SYMBOLS: [(&str, &str); 6] = [
    ("␊", "\n"),
    ("␍", "\r"),
    ("␉", "\t"),
    ("[BOM]", "\u{feff}"),
    ("[ZWSP]", "\u{200b}"),
    ("␠", " "),
];

struct Case {
    precision: Precision,
    /// As on the page, like what follows.
    line: String,
    node: Vec<String>,
}

/// Returns the texts in code of a cell.
fn in_code(cell: &str) -> Vec<String> {
    let parts: Vec<&str> = cell.split('`').collect();
    assert!(parts.len() % 2 == 1, "{cell}");
    parts
        .iter()
        .skip(1)
        .step_by(2)
        .map(|text| (*text).to_owned())
        .collect()
}

/// Returns the cases of all tables of the page, and checks the form of their cells.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut is_in_table = false;
    let (_, section) = PAGE.split_once("\n## Cases\n").expect("the page has cases");
    for row in section.lines() {
        if !row.starts_with('|') {
            assert!(!row.contains('|'), "{row}");
            is_in_table = false;
            continue;
        }
        let inside = row.strip_prefix('|').and_then(|row| row.strip_suffix('|'));
        let inside = inside.unwrap_or_else(|| panic!("{row}"));
        let cells: Vec<&str> = inside.split('|').map(str::trim).collect();
        if cells.ends_with(&["line", "the node", "InfluxDB", "Telegraf"]) {
            is_in_table = true;
            continue;
        }
        assert!(is_in_table, "in no table of cases: {row}");
        if !inside.starts_with('-') {
            let [unit @ .., line, node, influx, telegraf] = &cells[..] else {
                panic!("{row}");
            };
            let precision = match unit {
                [] => Precision::Nanoseconds,
                [unit] => Precision::of_name(unit).unwrap_or_else(|| panic!("{row}")),
                _ => panic!("{row}"),
            };
            for reference in [influx, telegraf] {
                let is_word = ["same", "refused", "nothing"].contains(reference);
                assert!(is_word || !in_code(reference).is_empty(), "{row}");
            }
            let line = in_code(line);
            assert_eq!(line.len(), 1, "{row}");
            let found = in_code(node);
            assert_eq!(found.is_empty(), *node == "nothing", "{row}");
            cases.push(Case {
                precision,
                line: line.concat(),
                node: found,
            });
        }
    }
    cases
}

/// Returns readings and reasons of refusals in the order of the lines, as the page writes them.
fn done(case: &Case) -> Vec<String> {
    let mut stream = case.line.clone() + "\n";
    for (symbol, character) in SYMBOLS {
        stream = stream.replace(symbol, character);
    }
    let fake = Fake::new();
    // The times of the page are those of no clock.
    fake.with(|inner| inner.trusted = false);
    let options = IntakeOptions {
        line_precision: case.precision,
        ..options()
    };
    let mut intake = Intake::new(options, fake.clone());
    let mut buffer = LineBuffer::new(1000);
    buffer.spare()[..stream.len()].copy_from_slice(stream.as_bytes());
    buffer.filled(stream.len());
    let mut done = Vec::new();
    let mut reasons = BTreeMap::new();
    while let Some(piece) = buffer.peek() {
        let Piece::Line(line) = piece else {
            panic!("{}: {piece:?}", case.line);
        };
        let _ = intake.line(line);
        buffer.consume();
        for (key, value, time) in fake.with(|inner| std::mem::take(&mut inner.puts)) {
            let time = time.map_or(String::new(), |time| format!(" @{}", time.ns()));
            done.push(format!("{key}={value}{time}"));
        }
        let now = refused(&intake);
        for (reason, count) in &now {
            let before = reasons.get(reason).copied().unwrap_or(0);
            done.extend((before..*count).map(|_| (*reason).to_owned()));
        }
        reasons = now;
    }
    if !buffer.unfinished().is_empty() {
        // The end of the connection.
        done.push("line_invalid".to_owned());
    }
    for text in &mut done {
        for (symbol, character) in SYMBOLS.iter().filter(|(_, character)| *character != " ") {
            *text = text.replace(character, symbol);
        }
    }
    done
}

/// Returns the same for the body of a request, with or without a last line feed, sorted.
fn done_as_body(case: &Case, end: &str) -> Vec<String> {
    let mut text = case.line.clone();
    for (symbol, character) in SYMBOLS {
        text = text.replace(symbol, character);
    }
    text.push_str(end);
    let fake = Fake::new();
    fake.with(|inner| inner.trusted = false);
    let mut intake = Intake::new(options(), fake.clone());
    let mut body = LineBody::new(text.into(), case.precision, 1000);
    assert_eq!(body.take(&mut intake), BodyStopped::Done);
    sorted(&fake, &intake)
}

/// Returns the same for the payload of a message.
fn done_as_payload(case: &Case, end: &str) -> Vec<String> {
    let mut text = case.line.clone();
    for (symbol, character) in SYMBOLS {
        text = text.replace(symbol, character);
    }
    text.push_str(end);
    let fake = Fake::new();
    fake.with(|inner| inner.trusted = false);
    let key = "{measurement}/{values}/{field}";
    let options = IntakeOptions {
        subscriptions: vec![topic_rule("lines", key, PayloadKind::Line)],
        line_precision: case.precision,
        ..options()
    };
    let mut intake = Intake::new(options, fake.clone());
    let _ = offer(&mut intake, b"lines", text.as_bytes());
    sorted(&fake, &intake)
}

/// Returns readings and reasons as the page writes them, sorted.
fn sorted(fake: &Fake, intake: &Intake<Fake>) -> Vec<String> {
    let mut done = Vec::new();
    for (key, value, time) in fake.with(|inner| inner.puts.clone()) {
        let time = time.map_or(String::new(), |time| format!(" @{}", time.ns()));
        done.push(format!("{key}={value}{time}"));
    }
    for (reason, count) in refused(intake) {
        done.extend((0..count).map(|_| reason.to_owned()));
    }
    for text in &mut done {
        for (symbol, character) in SYMBOLS.iter().filter(|(_, character)| *character != " ") {
            *text = text.replace(character, symbol);
        }
    }
    done.sort();
    done
}

#[test]
fn a_body_is_read_by_the_same_table() {
    for case in cases() {
        let mut wanted = case.node.clone();
        wanted.sort();
        for end in ["", "\n"] {
            assert_eq!(done_as_body(&case, end), wanted, "`{}`{end:?}", case.line);
        }
    }
}

/// Other ends of lines in messages than on connections make it red, and times in another unit.
#[test]
fn a_payload_is_read_by_the_same_table() {
    for case in cases() {
        let mut wanted = case.node.clone();
        wanted.sort();
        for end in ["", "\n"] {
            let done = done_as_payload(&case, end);
            assert_eq!(done, wanted, "`{}`{end:?}", case.line);
        }
    }
}

#[test]
fn the_node_handles_each_line_of_the_page_as_stated() {
    let cases = cases();
    assert!(cases.len() > 150, "{} cases", cases.len());
    let units = [
        Precision::Nanoseconds,
        Precision::Microseconds,
        Precision::Milliseconds,
        Precision::Seconds,
    ];
    for unit in units {
        assert!(cases.iter().any(|case| case.precision == unit), "{unit:?}");
    }
    let wrong: Vec<String> = cases
        .iter()
        .map(|case| (case, done(case)))
        .filter(|(case, done)| case.node != *done)
        .map(|(case, done)| format!("`{}`: {:?}, not {:?}", case.line, done, case.node))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
