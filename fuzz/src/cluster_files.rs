//! The body of the fuzz target `cluster_files`. A test of `cluster` includes this file and runs the committed corpus
//! through it.

use cluster::advisor::{advise, parse_question};
use cluster::compare::Comparison;
use cluster::model::{ParityTable, parse_power_table};
use cluster::power::{MeterLog, parse_pmic};
use cluster::results::{ResultFile, Row};

/// Parses one of the files that a cluster's commands read; the first byte selects which.
pub(crate) fn cluster_files(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else {
        return;
    };
    match (kind % 6, std::str::from_utf8(bytes)) {
        (0, _) => result(bytes),
        // With a valid end line, which no fuzzer finds.
        (1, _) => {
            let rows = bytes
                .iter()
                .filter(|byte| **byte == b'\n')
                .count()
                .saturating_sub(1);
            let sum = crc32c::crc32c(bytes);
            let end = format!("{{\"kind\":\"end\",\"rows\":{rows},\"crc32c\":\"{sum:08x}\"}}\n");
            result(&[bytes, end.as_bytes()].concat());
        }
        (2, Ok(text)) => question(text),
        (3, Ok(text)) => meter(text),
        (4, Ok(text)) => {
            if let Err(why) = parse_pmic(text) {
                assert!(!why.contains('\n') && why.len() < 2_000, "{why}");
            }
        }
        (5, Ok(text)) => {
            if let Ok(rows) = parse_power_table(text) {
                let table = ParityTable::new(&rows, &rows);
                assert_eq!(table.rows.len() + table.faulty.len() / 2, rows.len());
                assert!(table.rows.iter().all(|row| row.boards == 1.0));
            }
        }
        _ => {}
    }
}

/// An accepted file is written and read back equal, and every row has a median.
fn result(bytes: &[u8]) {
    let found = match ResultFile::parse(bytes) {
        Ok(found) => found,
        Err(error) => return is_line(&error),
    };
    let text = match found.text() {
        Ok(text) => text,
        Err(error) => panic!("read and not written: {error}"),
    };
    assert_eq!(ResultFile::parse(text.as_bytes()), Ok(found.clone()));
    for row in &found.rows {
        if let Row::Benchmark(row) = row {
            assert!(row.median_us().is_ok());
        }
    }
    // Two rows of one size are refused.
    if let Ok(comparison) = Comparison::new(std::slice::from_ref(&found)) {
        assert!(comparison.csv().lines().count() > comparison.rows.len());
    }
}

/// Every question is answered or refused, and an answer contains only valid numbers.
fn question(text: &str) {
    let mut question = match parse_question(text) {
        Ok(question) => question,
        Err(error) => return is_line(&error),
    };
    question.boards_max = question.boards_max.min(4);
    question.assume();
    match advise(&question) {
        Ok(advice) => {
            for option in &advice.choice.options {
                assert!(
                    !option.time_s.is_nan() && !option.energy_j.is_nan(),
                    "{option:?}"
                );
            }
            assert!(advice.advised().is_some() != advice.why_none().is_some());
        }
        Err(error) => is_line(&error),
    }
}

/// The times of rows increase.
fn meter(text: &str) {
    let log = match MeterLog::parse(text) {
        Ok(log) => log,
        Err(error) => return is_line(&error),
    };
    let mut pairs = log.points().windows(2);
    assert!(pairs.all(|pair| pair[0].time_s < pair[1].time_s));
}

fn is_line(error: &cluster::Error) {
    let text = error.to_string();
    assert!(!text.contains('\n') && text.len() < 4_000, "{text}");
}
