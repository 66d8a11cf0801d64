//! The file of a wall meter: comma-separated values with a heading. The time is in `time_s` or `time_ms` (since 1970),
//! the power in `watts` or `power_w`; a negative power flows back into the mains. Other columns are ignored. Another
//! program writes it; its last line may be incomplete and is ignored until it is complete.

use super::root::Root;
use super::source::{Meaning, Power, Source};
use crate::Error;
use crate::csv::{ROW_BYTES_MAX, Rows};
use crate::error::excerpt;
use base::clock::Clock;
use base::error::io_text;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;

/// Largest number of rows of a log.
const ROWS_MAX: usize = 4_000_000;

/// Largest size of a log, in bytes.
pub const LOG_BYTES_MAX: usize = 256 << 20;

/// A later time, in s since 1970, is in another unit than its column says: it is after the year 5000.
const TIME_S_MAX: f64 = 1e11;

/// A value older than this is not the current power; meters write each second.
const AGE_S_MAX: f64 = 5.0;

/// Bytes of a heading that are read, at most: enough to see that a row is too long.
const HEADING_BYTES_MAX: u64 = 2 * ROW_BYTES_MAX as u64;

/// Names of columns of text. Digits alone in such a column, right after whole watts, are often decimals behind a comma.
const TEXT_NAMES: [&str; 6] = ["note", "notes", "comment", "comments", "remark", "text"];

/// One row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeterPoint {
    /// Seconds since 1970.
    pub time_s: f64,
    /// Watts.
    pub watts: f64,
}

/// The recorded rows.
#[derive(Clone, Debug, PartialEq)]
pub struct MeterLog {
    points: Vec<MeterPoint>,
}

/// The positions of the two columns.
#[derive(Clone, Copy, Debug)]
struct Columns {
    /// Number of all columns.
    count: usize,
    time: usize,
    time_per_s: f64,
    watts: usize,
    /// Whether the column after the power is one of text.
    has_text_behind: bool,
}

impl Columns {
    fn of(names: &[String]) -> Result<Self, Error> {
        let names: Vec<String> = names.iter().map(|name| name.to_ascii_lowercase()).collect();
        let find = |wanted: &str| names.iter().position(|name| name == wanted);
        if names.iter().any(String::is_empty) {
            let wrong = "the heading has a column without a name; a comma too many?";
            return Err(Error::malformed(1, wrong));
        }
        let twice = |wanted: &str| names.iter().filter(|name| *name == wanted).count() > 1;
        for name in ["time_s", "time_ms", "watts", "power_w"] {
            if twice(name) {
                let wrong = format!("the heading has the column `{name}` twice");
                return Err(Error::malformed(1, wrong));
            }
        }
        let (time, time_per_s) = find("time_s")
            .map(|at| (at, 1.0))
            .or_else(|| find("time_ms").map(|at| (at, 1_000.0)))
            .ok_or_else(|| {
                Error::malformed(1, "the heading has no column `time_s` or `time_ms`")
            })?;
        let watts = match (find("watts"), find("power_w")) {
            (Some(_), Some(_)) => Err("the heading has both columns `watts` and `power_w`"),
            (None, None) => Err("the heading has no column `watts` or `power_w`"),
            (Some(at), None) | (None, Some(at)) => Ok(at),
        };
        let watts = watts.map_err(|wrong| Error::malformed(1, wrong))?;
        let behind = names.get(watts + 1).map(String::as_str);
        Ok(Self {
            count: names.len(),
            time,
            time_per_s,
            watts,
            has_text_behind: behind.is_some_and(|name| TEXT_NAMES.contains(&name)),
        })
    }

    /// Returns whether a decimal comma may have made a power and a text of one number.
    fn is_like_a_comma(&self, row: &[String]) -> bool {
        let is_whole = |at: usize| {
            let field = row.get(at).map_or("", String::as_str);
            !field.is_empty() && field.bytes().all(|byte| byte.is_ascii_digit())
        };
        self.has_text_behind && is_whole(self.watts) && is_whole(self.watts + 1)
    }

    fn row(&self, row: &[String]) -> Result<MeterPoint, String> {
        // A decimal comma makes two fields of a number.
        if row.iter().skip(self.count).any(|field| !field.is_empty()) {
            return Err("it has more fields than the heading; write a decimal point".to_owned());
        }
        let number = |at: usize| {
            let text = row.get(at).map_or("", String::as_str);
            let number = text
                .parse::<f64>()
                .ok()
                .filter(|number| number.abs() < 1e15);
            number.ok_or_else(|| format!("`{}` is no number", excerpt(text)))
        };
        let time_s = number(self.time)? / self.time_per_s;
        if time_s.abs() > TIME_S_MAX {
            return Err("its time is after the year 5000; name milliseconds `time_ms`".to_owned());
        }
        Ok(MeterPoint {
            time_s,
            watts: number(self.watts)?,
        })
    }
}

impl MeterLog {
    /// Reads a whole log. A last line without a line feed is left out.
    ///
    /// # Errors
    /// Missing columns, an invalid number, times that do not increase, too many rows.
    pub fn parse(text: &str) -> Result<Self, Error> {
        if text.len() > LOG_BYTES_MAX {
            let (value, limit) = (text.len() as u64, LOG_BYTES_MAX as u64);
            return Err(Error::Limit {
                what: "bytes of a meter's log",
                value,
                limit,
            });
        }
        let mut rows = Rows::new(text.as_bytes());
        let mut columns = None;
        let mut points: Vec<MeterPoint> = Vec::new();
        while let Some(row) = rows.next_row()? {
            let row = row.map(<[String]>::to_vec);
            // Another program writes it: the last row may be incomplete.
            if !rows.is_whole() {
                break;
            }
            let line = rows.line();
            let row = row.map_err(|wrong| Error::malformed(line, wrong))?;
            let Some(columns) = &columns else {
                columns = Some(Columns::of(&row)?);
                continue;
            };
            let point = columns.row(&row);
            let point = point.map_err(|wrong| Error::malformed(line, wrong))?;
            if points
                .last()
                .is_some_and(|last| last.time_s >= point.time_s)
            {
                return Err(Error::malformed(
                    line,
                    "its time is not after the one before",
                ));
            }
            if points.len() == ROWS_MAX {
                let (value, limit) = (ROWS_MAX as u64 + 1, ROWS_MAX as u64);
                return Err(Error::Limit {
                    what: "rows of a meter's log",
                    value,
                    limit,
                });
            }
            points.push(point);
        }
        if columns.is_none() {
            Columns::of(&[])?;
        }
        Ok(Self { points })
    }

    /// Returns its rows.
    #[must_use]
    pub fn points(&self) -> &[MeterPoint] {
        &self.points
    }
}

/// A file that a meter's program keeps writing.
pub struct Meter {
    path: PathBuf,
    name: String,
    clock: Arc<dyn Clock>,
    followed: Option<Followed>,
}

/// Read position in a file: only new data is read.
struct Followed {
    /// Identity of the file: its device and inode number, and its heading.
    file: (u64, u64),
    heading: Vec<String>,
    columns: Columns,
    /// End of its last complete row, and that row, or why it is unusable.
    end: u64,
    last: Option<Result<MeterPoint, String>>,
    /// Whether each usable row so far looks like a number with a decimal comma; `None` before the first one.
    has_commas: Option<bool>,
}

impl Followed {
    /// Starts at the beginning of a file.
    fn begin(file: (u64, u64), heading: Vec<String>, end: u64) -> Result<Self, Error> {
        Ok(Self {
            file,
            columns: Columns::of(&heading)?,
            heading,
            end,
            last: None,
            has_commas: None,
        })
    }

    /// Returns whether this is the same file, and it has only grown.
    fn is_of(&self, id: (u64, u64), heading: &[String], file: &File) -> bool {
        let mut byte = [0];
        let last = file.read_exact_at(&mut byte, self.end.saturating_sub(1));
        self.file == id && self.heading == heading && last.is_ok() && byte == *b"\n"
    }

    /// Reads the new data.
    fn read(&mut self, file: &File) -> Result<(), Error> {
        let mut reader = file;
        let failed = |error: std::io::Error| Error::invalid("file", error.to_string());
        let begin = reader.seek(SeekFrom::Start(self.end)).map_err(failed)?;
        let mut rows = Rows::behind(BufReader::new(reader.take(LOG_BYTES_MAX as u64)));
        loop {
            let (row, is_like_a_comma) = match rows.next_row()? {
                None => return Ok(()),
                Some(Ok(row)) => {
                    let point = self.columns.row(row).map_err(|wrong| {
                        format!("its last row is `{}`: {wrong}", excerpt(&row.join(",")))
                    });
                    (point, self.columns.is_like_a_comma(row))
                }
                Some(Err(wrong)) => (Err(format!("its last row has {wrong}")), false),
            };
            // The last row may be incomplete.
            if !rows.is_whole() {
                return Ok(());
            }
            if row.is_ok() {
                self.has_commas = Some(is_like_a_comma && self.has_commas.unwrap_or(true));
            }
            (self.end, self.last) = (begin + rows.whole_bytes(), Some(row));
        }
    }
}

/// Returns the beginning of the last line that ends after `end_min`, within the first `end` bytes; reads only the last
/// ones.
fn line_begin(file: &File, end_min: u64, end: u64) -> std::io::Result<u64> {
    let from = end
        .saturating_sub(ROW_BYTES_MAX as u64)
        .max(end_min.min(end));
    let mut bytes = vec![0; (end - from) as usize];
    file.read_exact_at(&mut bytes, from)?;
    let line_feed = bytes.iter().rposition(|byte| *byte == b'\n');
    // Without a line feed the search is repeated when there is more data.
    Ok(line_feed.map_or(end_min, |at| from + at as u64 + 1))
}

impl Meter {
    /// Creates a meter for a file below the root.
    #[must_use]
    pub fn new(root: &Root, path: &str, clock: Arc<dyn Clock>) -> Self {
        Self {
            path: root.path(path),
            name: format!("meter {path}"),
            clock,
            followed: None,
        }
    }

    fn watts(&mut self) -> Result<f64, String> {
        let path = self.path.display();
        let io = |error: std::io::Error| format!("{path}: {}", io_text(&error));
        // Opening a pipe would wait for its writer, and a device has no end.
        if !std::fs::metadata(&self.path).map_err(io)?.is_file() {
            return Err(format!("{path}: is no regular file"));
        }
        let file = std::fs::OpenOptions::new()
            .read(true)
            .open(&self.path)
            .map_err(io)?;
        let found = file.metadata().map_err(io)?;
        let id = (found.dev(), found.ino());
        let mut rows = Rows::new(BufReader::new((&file).take(HEADING_BYTES_MAX)));
        let heading = match rows.next_row().map_err(|error| error.to_string())? {
            Some(Ok(heading)) => heading.to_vec(),
            Some(Err(wrong)) => return Err(format!("its heading has {wrong}")),
            None => Vec::new(),
        };
        let end = rows.whole_bytes();
        // Another file, or one that was started again, is read from its beginning.
        let before = self.followed.take();
        let before = before.filter(|before| before.is_of(id, &heading, &file));
        let followed = match before {
            Some(before) => before,
            None => Followed::begin(id, heading, end).map_err(|error| error.to_string())?,
        };
        if end == 0 {
            return Err("the meter has written nothing yet".to_owned());
        }
        let followed = self.followed.insert(followed);
        if let Err(error) = followed.read(&file) {
            // After an unterminated quote, rows cannot be determined: reading continues with the lines that arrive from
            // now on.
            followed.end = line_begin(&file, followed.end, found.len()).map_err(io)?;
            followed.last = Some(Err(error.to_string()));
        }
        let last = followed.last.clone();
        let point = last.ok_or("the meter has written nothing yet")??;
        let age_s = self.clock.wall_ms() as f64 / 1e3 - point.time_s;
        if age_s < -AGE_S_MAX {
            let ahead_s = -age_s;
            return Err(format!(
                "its last value lies {ahead_s:.0} s in the future by this machine's clock"
            ));
        }
        if age_s > AGE_S_MAX {
            return Err(format!(
                "its last value is of {age_s:.0} s ago by this machine's clock"
            ));
        }
        Ok(point.watts)
    }
}

impl Source for Meter {
    fn name(&self) -> &str {
        &self.name
    }

    fn covers(&self) -> &str {
        "what hangs on the meter"
    }

    fn meaning(&self) -> Meaning {
        Meaning::Moment
    }

    fn read(&mut self, _now_ns: u64) -> Power {
        match self.watts() {
            Ok(watts) => Power::Measured { watts },
            Err(why) => Power::unavailable(why),
        }
    }

    fn remark(&self) -> Option<String> {
        let has_commas = self.followed.as_ref()?.has_commas == Some(true);
        has_commas.then(|| {
            "watts are whole in each row, and only digits follow in a column of text: write a decimal point if that is \
             a decimal comma"
                .to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::Tree;
    use super::*;
    use base::sim::SimClock;

    #[test]
    fn columns_are_found_by_their_names_and_a_last_half_row_is_left_out() {
        let log = MeterLog::parse("Power_W, time_ms\n5,1000\n-5,3000\n7,40").expect("a log");
        let points = log.points().iter();
        let points: Vec<(f64, f64)> = points.map(|point| (point.time_s, point.watts)).collect();
        assert_eq!(points, [(1.0, 5.0), (3.0, -5.0)]);
    }

    #[test]
    fn a_byte_order_mark_before_the_heading_of_a_meter_is_left_out() {
        let log = MeterLog::parse("\u{feff}time_s,watts\n1,5\n3,4\n").expect("a log");
        let watts: Vec<f64> = log.points().iter().map(|point| point.watts).collect();
        assert_eq!(watts, [5.0, 4.0]);
        // The same while the meter writes it.
        let tree = Tree::new();
        let clock = Arc::new(SimClock::new(1));
        let now_s = clock.wall_ms() / 1_000;
        let mut meter = Meter::new(&tree.root(), "meter.csv", clock);
        let mut text = "\u{feff}watts,time_s\n".to_owned();
        for watts in [5.0, 4.0] {
            text += &format!("{watts},{now_s}\n");
            tree.write("meter.csv", &text);
            assert_eq!(meter.read(0), Power::Measured { watts }, "{text}");
        }
    }

    #[test]
    fn logs_of_another_shape_are_refused_with_their_line() {
        for (text, line) in [
            ("", 1),
            ("time,watts\n", 1),
            ("time_s,volts\n", 1),
            ("time_s,watts\n1,2\n1,2\n", 3),
            ("time_s,watts\n1,nan\n", 2),
            ("time_s,watts\n1\n", 2),
        ] {
            let error = MeterLog::parse(text).expect_err(text);
            assert!(
                matches!(error, Error::Malformed { line: at, .. } if at == line),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn a_decimal_comma_a_second_power_and_milliseconds_as_seconds_are_no_power() {
        let tree = Tree::new();
        let clock = Arc::new(SimClock::new(1));
        let now_s = clock.wall_ms() / 1_000;
        let mut meter = Meter::new(&tree.root(), "meter.csv", clock);
        for (text, said) in [
            (
                format!("time_s,watts\n{now_s},4,7\n"),
                "write a decimal point",
            ),
            (
                format!("time_s,watts,power_w\n{now_s},4,7\n"),
                "both columns",
            ),
            (
                "time_s,watts\n1700000000000,4\n".to_owned(),
                "name milliseconds `time_ms`",
            ),
        ] {
            tree.write("meter.csv", &text);
            let Power::Unavailable { why } = meter.read(0) else {
                panic!("{text} was taken");
            };
            assert!(why.contains(said), "{why}");
            assert!(MeterLog::parse(&text).is_err(), "{text}");
        }
        // A comma too many would hide a decimal comma.
        for heading in ["time_s,watts,", "time_s,,watts", "time_s,watts,\"\""] {
            let text = format!("{heading}\n{now_s},4,7\n");
            tree.write("meter.csv", &text);
            let read = meter.read(0);
            let is_refused =
                matches!(&read, Power::Unavailable { why } if why.contains("without a name"));
            assert!(is_refused && MeterLog::parse(&text).is_err(), "{read:?}");
        }
        // Power that flows back.
        tree.write("meter.csv", format!("time_s,watts\n{now_s},-4.5,\n"));
        assert_eq!(meter.read(0), Power::Measured { watts: -4.5 });
    }

    #[test]
    fn the_last_whole_row_is_the_power_of_now_while_it_is_fresh() {
        let tree = Tree::new();
        let clock = Arc::new(SimClock::new(1));
        let now_s = clock.wall_ms() / 1_000;
        let mut meter = Meter::new(&tree.root(), "meter.csv", clock.clone());
        assert!(matches!(meter.read(0), Power::Unavailable { .. }));
        tree.write("meter.csv", "time_s,watts\n");
        assert!(matches!(meter.read(0), Power::Unavailable { .. }));
        let rows: String = (0..500)
            .map(|at| format!("{},{}.5\n", now_s - 500 + at, at % 9))
            .collect();
        let text = format!("time_s,watts\n{rows}");
        tree.write("meter.csv", format!("{text}{now_s},7.25\n{},99", now_s + 1));
        assert_eq!(meter.read(0), Power::Measured { watts: 7.25 });
        tree.write("meter.csv", format!("time_s,watts\n{},7.25\n", now_s - 60));
        let Power::Unavailable { why } = meter.read(0) else {
            panic!("an old value was taken");
        };
        assert!(why.contains("60 s ago"), "{why}");
        tree.write(
            "meter.csv",
            format!("time_s,watts\n{},7.25\n", now_s + 3_600),
        );
        let Power::Unavailable { why } = meter.read(0) else {
            panic!("a value of the future was taken");
        };
        assert!(why.contains("3600 s in the future"), "{why}");
    }

    #[test]
    fn digits_in_a_column_of_text_behind_whole_watts_have_a_remark() {
        let tree = Tree::new();
        let clock = Arc::new(SimClock::new(1));
        let now_s = clock.wall_ms() / 1_000;
        let remark = |heading: &str, rows: &[&str]| {
            let lines = rows.iter().map(|row| format!("{now_s},{row}\n"));
            let text = format!("{heading}\n{}", lines.collect::<String>());
            tree.write("meter.csv", text);
            let mut meter = Meter::new(&tree.root(), "meter.csv", clock.clone());
            assert!(meter.read(0).watts().is_some(), "{heading} {rows:?}");
            meter.remark()
        };
        let said = remark("time_s,watts,note", &["4,7", "4,25"]).expect("a remark");
        assert!(said.contains("decimal point"), "{said}");
        for (heading, rows) in [
            ("time_s,watts,note", ["4,7", "4.5,7"]),
            ("time_s,watts,note", ["4,7", "4,door open"]),
            ("time_s,watts,note", ["4,", "4,"]),
            ("time_s,watts,volts", ["4,230", "4,231"]),
        ] {
            assert_eq!(remark(heading, &rows), None, "{heading} {rows:?}");
        }
    }

    #[test]
    fn a_meter_that_is_no_file_is_unavailable_and_a_row_without_an_end_is_bounded() {
        let tree = Tree::new();
        let clock = Arc::new(SimClock::new(1));
        for path in ["/", "/dev/null", "/dev/zero"] {
            let mut meter = Meter::new(&Root::new(""), path, clock.clone());
            let why = format!("{path}: is no regular file");
            assert_eq!(meter.read(0), Power::Unavailable { why });
        }
        tree.write("meter.csv", "x".repeat(5 * ROW_BYTES_MAX));
        let mut meter = Meter::new(&tree.root(), "meter.csv", clock);
        let Power::Unavailable { why } = meter.read(0) else {
            panic!("a heading without an end was taken");
        };
        assert!(why.contains("a line of more than 64 KiB"), "{why}");
    }

    /// A note may contain text that looks like columns or rows; it is also handled while it grows.
    #[test]
    fn numbers_in_quotes_are_not_power() {
        let tree = Tree::new();
        let clock = Arc::new(SimClock::new(1));
        let now_s = clock.wall_ms() / 1_000;
        let mut meter = Meter::new(&tree.root(), "meter.csv", clock.clone());
        let mut text = "time_s,note,watts\n".to_owned();
        for (row, watts) in [
            (format!("{now_s},\"a,3,b\",5\n"), 5.0),
            (format!("{now_s},\"a\n"), 5.0),
            (format!("{now_s},x,999\n"), 5.0),
            ("\",6\n".to_owned(), 6.0),
            (format!("{now_s},\"half"), 6.0),
        ] {
            text.push_str(&row);
            tree.write("meter.csv", &text);
            assert_eq!(meter.read(0), Power::Measured { watts }, "{text}");
            // A reader that starts now sees the same.
            let mut other = Meter::new(&tree.root(), "meter.csv", clock.clone());
            assert_eq!(other.read(0), Power::Measured { watts }, "{text}");
        }
        // Rewritten in place, with other columns.
        let text = format!(
            "time_s,volts,watts,note\n{now_s},230,4,{}\n",
            "x".repeat(200)
        );
        tree.write("meter.csv", &text);
        assert_eq!(meter.read(0), Power::Measured { watts: 4.0 });
        // An unterminated quote loses only the existing rows, wherever its writer's buffer ends.
        for rest in ["", "x"] {
            let open = format!("{text}{now_s},230,4,\"{}{rest}", "x\n".repeat(40_000));
            tree.write("meter.csv", &open);
            let Power::Unavailable { why } = meter.read(0) else {
                panic!("a value behind an open quote was taken");
            };
            assert!(why.contains("does not end"), "{why}");
            tree.write("meter.csv", format!("{open}\n{now_s},230,8,y\n"));
            assert_eq!(meter.read(0), Power::Measured { watts: 8.0 });
            tree.write("meter.csv", &text);
            assert_eq!(meter.read(0), Power::Measured { watts: 4.0 });
        }
        // Half a row after an empty line is still half a row.
        for more in ["", "\n", "\r\n"] {
            tree.write("meter.csv", format!("{text}{more}{now_s},230,1"));
            assert_eq!(meter.read(0), Power::Measured { watts: 4.0 }, "{more:?}");
        }
        let log = MeterLog::parse("time_s,watts\n1,2\n\n2,1").expect("a log");
        assert_eq!(log.points().len(), 1);
        let rows = "time_s,note,watts\n1,\"a\n2,x,999\n\",6\n3,c,7\n";
        let log = MeterLog::parse(rows).expect("a log");
        let watts: Vec<f64> = log.points().iter().map(|point| point.watts).collect();
        assert_eq!(watts, [6.0, 7.0]);
        let twice = MeterLog::parse("time_s,watts,watts\n1,2,3\n").expect_err("two columns");
        assert!(twice.to_string().contains("twice"), "{twice}");
    }
}
