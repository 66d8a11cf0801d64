//! Files of measurements, version 1: `SPEC.md` defines every member. `row.rs` contains the members, this file reads and
//! writes them.
//!
//! A file is checked completely when it is read: its version, its format, every limit, the number of rows and the
//! checksum.

mod row;

pub use row::{
    Benchmark, BenchmarkRow, HALF_WIDTH_WIDE, Header, Host, Known, Link, Mode, Origin, PowerRow,
    Row, Stopped, Transport,
};

use crate::Error;
use crate::error::excerpt;
use serde::{Deserialize, Serialize};

/// The version that is written, and the only one that can be read.
pub const VERSION: u64 = 1;

const FORMAT: &str = "evenkeel-cluster-result";

/// Largest size of a file, in bytes.
pub const FILE_BYTES_MAX: usize = 64 << 20;

/// Size of the longest line, in bytes.
pub const LINE_BYTES_MAX: usize = 4 << 20;

/// Largest number of rows of a file.
pub const ROWS_MAX: usize = 100_000;

/// One file.
#[derive(Clone, Debug, PartialEq)]
pub struct ResultFile {
    /// The conditions of the measurement.
    pub header: Header,
    /// In the order of measurement.
    pub rows: Vec<Row>,
}

/// The version of a line: it is checked first, because another version may have other members.
#[derive(Deserialize)]
struct Versioned {
    kind: String,
    format: String,
    version: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeaderLine {
    kind: String,
    format: String,
    version: u64,
    run: Header,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct End {
    kind: String,
    rows: u64,
    crc32c: String,
}

impl ResultFile {
    /// Returns the file as text.
    ///
    /// # Errors
    /// Some content is outside of what [`parse`](Self::parse) accepts.
    pub fn text(&self) -> Result<String, Error> {
        self.header.check(1)?;
        if self.rows.len() > ROWS_MAX {
            return Err(limit("rows of a result file", self.rows.len(), ROWS_MAX));
        }
        let mut text = String::new();
        let header = HeaderLine {
            kind: "header".to_owned(),
            format: FORMAT.to_owned(),
            version: VERSION,
            run: self.header.clone(),
        };
        push_line(&mut text, 1, &header)?;
        for (line, row) in (2..).zip(&self.rows) {
            row.check(line)?;
            push_line(&mut text, line, row)?;
        }
        let end = End {
            kind: "end".to_owned(),
            rows: self.rows.len() as u64,
            crc32c: format!("{:08x}", crc32c::crc32c(text.as_bytes())),
        };
        push_line(&mut text, self.rows.len() + 2, &end)?;
        if text.len() > FILE_BYTES_MAX {
            return Err(limit("bytes of a result file", text.len(), FILE_BYTES_MAX));
        }
        Ok(text)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// Another version; a line with a wrong format, with its number; an exceeded limit; a file that was cut off or
    /// changed.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() > FILE_BYTES_MAX {
            return Err(limit("bytes of a result file", bytes.len(), FILE_BYTES_MAX));
        }
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let before = &bytes[..error.valid_up_to()];
            Error::malformed(count_lines(before) + 1, "is not UTF-8")
        })?;
        // Some programs that copy text begin a file with a byte order mark.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let bytes = text.as_bytes();
        let cut = |line| Error::malformed(line, "the file was cut off: its end is missing");
        let Some(body) = text.strip_suffix('\n') else {
            return Err(cut(count_lines(bytes) + 1));
        };
        let (before, last) = body.rsplit_once('\n').ok_or_else(|| cut(1))?;
        let mut lines = (1..).zip(before.split('\n'));
        let header = lines.next().map_or("", |(_, line)| line);
        let header = parse_header(header)?;
        let mut rows = Vec::new();
        for (number, line) in lines {
            if rows.len() == ROWS_MAX {
                return Err(limit("rows of a result file", ROWS_MAX + 1, ROWS_MAX));
            }
            check_length(line)?;
            let row: Row = serde_json::from_str(line).map_err(|error| {
                if serde_json::from_str::<End>(line).is_ok_and(|end| end.kind == "end") {
                    let wrong = "the file ends here, but more follows: something was appended";
                    return Error::malformed(number, wrong);
                }
                shape(number, &error)
            })?;
            row.check(number)?;
            rows.push(row);
        }
        let line = rows.len() + 2;
        check_length(last)?;
        let end: End = serde_json::from_str(last).map_err(|_| cut(line))?;
        if end.kind != "end" {
            return Err(cut(line));
        }
        if end.rows != rows.len() as u64 {
            let wrong = format!("has {} rows, its end says {}", rows.len(), end.rows);
            return Err(Error::malformed(line, wrong));
        }
        let sum = crc32c::crc32c(&bytes[..before.len() + 1]);
        if end.crc32c != format!("{sum:08x}") {
            return Err(Error::malformed(
                line,
                "the checksum does not hold: the file was changed",
            ));
        }
        Ok(Self { header, rows })
    }
}

fn parse_header(line: &str) -> Result<Header, Error> {
    check_length(line)?;
    let versioned: Versioned = serde_json::from_str(line)
        .map_err(|_| Error::malformed(1, "is no header of a cluster's result file"))?;
    if versioned.kind != "header" || versioned.format != FORMAT {
        return Err(Error::malformed(
            1,
            "is no header of a cluster's result file",
        ));
    }
    if versioned.version != VERSION {
        return Err(Error::Version {
            version: versioned.version,
            known: VERSION,
        });
    }
    let line: HeaderLine = serde_json::from_str(line).map_err(|error| shape(1, &error))?;
    line.run.check(1)?;
    Ok(line.run)
}

fn push_line(text: &mut String, line: usize, value: &impl Serialize) -> Result<(), Error> {
    let json = serde_json::to_string(value).map_err(|error| shape(line, &error))?;
    check_length(&json)?;
    text.push_str(&json);
    text.push('\n');
    Ok(())
}

fn check_length(line: &str) -> Result<(), Error> {
    if line.len() > LINE_BYTES_MAX {
        return Err(limit("bytes of a line", line.len(), LINE_BYTES_MAX));
    }
    Ok(())
}

fn limit(what: &'static str, value: usize, limit: usize) -> Error {
    Error::Limit {
        what,
        value: value as u64,
        limit: limit as u64,
    }
}

fn shape(line: usize, error: &serde_json::Error) -> Error {
    Error::malformed(line, excerpt(&error.to_string()))
}

fn count_lines(bytes: &[u8]) -> usize {
    bytes.iter().filter(|&&byte| byte == b'\n').count()
}

#[cfg(test)]
pub(crate) mod tests;
