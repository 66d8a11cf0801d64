//! The input of a job: columns of readings in the order of time, from a CSV file or from a node's history.
//!
//! An unusable row is left out and counted by its reason. The readings have a break where a row is left out, the step
//! between two readings is too long, or the rate changes (`steps.rs`). No window reaches across a break.

use super::columns::{Behind, choose, headings_of, time_of};
use super::steps;
use crate::Error;
use crate::csv::Rows;
use std::collections::BTreeMap;
use std::io::BufRead;

/// Largest number of columns of a job.
pub const COLUMNS_MAX: usize = 16;

/// Largest number of values in all columns (128 MiB).
pub const VALUES_MAX: usize = 1 << 24;

/// The reason of rows whose time is not after that of the row before.
const BEHIND: &str = "not later than the rows before";

/// Readings for a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Readings {
    /// Names of the columns.
    pub names: Vec<String>,
    /// The columns, all of the same length, with finite values.
    pub columns: Vec<Vec<f64>>,
    /// Mean time between two readings without a break, if they have times.
    pub step_s: Option<f64>,
    /// The mean step of each stretch between breaks, if they differ; else none.
    pub steps_s: Vec<f64>,
    /// Rows before which readings are missing, or have another step, in order.
    pub breaks: Vec<usize>,
    /// Times of the rows in seconds since 1970, or none.
    pub times_s: Vec<f64>,
    /// Lines of the file, if there is one: a row and its line wherever a line does not follow that of the row before.
    pub lines: Vec<(usize, usize)>,
    /// Why values may not be what the sensor measured.
    pub suspects: Vec<String>,
}

/// Number of rows that were left out, by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    counts: BTreeMap<&'static str, u64>,
    /// The line after which most rows were not later, and their number.
    behind: Option<(usize, u64)>,
}

impl LeftOut {
    /// Counts one row.
    pub fn count(&mut self, reason: &'static str) {
        *self.counts.entry(reason).or_default() += 1;
    }

    /// Returns the reasons with their counts.
    pub fn reasons(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.counts.iter().map(|(&reason, &count)| (reason, count))
    }

    /// Returns the total.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Returns where most of the rows with this reason are, in brackets; empty if that is unknown.
    #[must_use]
    pub fn place(&self, reason: &str) -> String {
        match self.behind.filter(|_| reason == BEHIND) {
            Some((line, count)) => format!(" ({count} of them after line {line})"),
            None => String::new(),
        }
    }

    /// Returns all reasons with their counts as text; `None` if no row was left out.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        let reasons = self
            .reasons()
            .map(|(reason, count)| format!("{count} {reason}{}", self.place(reason)));
        let reasons: Vec<String> = reasons.collect();
        (!reasons.is_empty()).then(|| format!("rows left out: {}", reasons.join(", ")))
    }
}

/// Largest absolute value: sums of squares of a whole input stay within a double's range.
pub const VALUE_MAX: f64 = 1e30;

/// Takes rows one after the other and builds [`Readings`].
#[derive(Debug)]
pub struct Taker {
    readings: Readings,
    left_out: LeftOut,
    is_broken: bool,
    has_times: bool,
    /// The line of the next row; 0 if there is no file.
    line: usize,
    /// The line of the last row that was taken, and the number of rows since then that were not later.
    behind: (usize, u64),
}

impl Taker {
    /// Creates a taker for rows with these columns, with or without times.
    #[must_use]
    pub fn new(names: Vec<String>, has_times: bool) -> Self {
        let columns = vec![Vec::new(); names.len()];
        Self {
            readings: Readings {
                names,
                columns,
                ..Readings::default()
            },
            left_out: LeftOut::default(),
            is_broken: false,
            has_times,
            line: 0,
            behind: (0, 0),
        }
    }

    /// Sets the line of the file in which the next row begins, from 1.
    pub fn at_line(&mut self, line: usize) {
        self.line = line;
    }

    /// Takes one row; a missing value is replaced by the reason.
    ///
    /// # Errors
    /// More values than a job accepts.
    pub fn take(
        &mut self,
        time_s: Option<f64>,
        values: impl Iterator<Item = Result<f64, &'static str>>,
    ) -> Result<(), Error> {
        let rows = self.readings.rows();
        let mut row = [0.0; COLUMNS_MAX];
        let width = self.readings.columns.len().min(COLUMNS_MAX);
        let mut found = 0;
        let mut wrong = None;
        for (place, value) in row.iter_mut().zip(values) {
            match value {
                Ok(value) if value.abs() <= VALUE_MAX => *place = value,
                Ok(value) if value.is_finite() => wrong = Some("too large"),
                Ok(_) => wrong = Some("not finite"),
                Err(reason) => wrong = Some(reason),
            }
            found += 1;
        }
        if found < width {
            wrong = Some("too few fields");
        }
        if let Some(reason) = wrong.or_else(|| self.wrong_time(time_s)) {
            self.leave_out(reason);
            return Ok(());
        }
        if (rows + 1) * width > VALUES_MAX {
            return Err(Error::Limit {
                what: "numbers of a job",
                value: ((rows + 1) * width) as u64,
                limit: VALUES_MAX as u64,
            });
        }
        let readings = &mut self.readings;
        if std::mem::take(&mut self.is_broken) && rows > 0 {
            readings.breaks.push(rows);
        }
        if self.line > 0 && readings.line(rows) != Some(self.line) {
            readings.lines.push((rows, self.line));
        }
        self.behind = (self.line, 0);
        for (column, value) in readings.columns.iter_mut().zip(row) {
            column.push(value);
        }
        if let Some(time_s) = time_s.filter(|_| self.has_times) {
            readings.times_s.push(time_s);
        }
        Ok(())
    }

    /// Returns why this time is none for the next row.
    fn wrong_time(&self, time_s: Option<f64>) -> Option<&'static str> {
        if !self.has_times {
            return None;
        }
        match (time_s, self.readings.times_s.last()) {
            (Some(time_s), _) if !time_s.is_finite() => Some("no time"),
            (Some(time_s), Some(&last_s)) if time_s <= last_s => Some(BEHIND),
            (Some(_), _) => None,
            (None, _) => Some("no time"),
        }
    }

    /// Counts an unusable row.
    pub fn leave_out(&mut self, reason: &'static str) {
        self.left_out.count(reason);
        if reason == BEHIND && self.line > 0 {
            self.behind.1 += 1;
            let most = self.left_out.behind.map_or(0, |(_, count)| count);
            if self.behind.1 > most {
                self.left_out.behind = Some(self.behind);
            }
        }
        self.is_broken = true;
    }

    /// Returns all readings.
    #[must_use]
    pub fn finish(self) -> (Readings, LeftOut) {
        let mut readings = self.readings;
        let known = std::mem::take(&mut readings.breaks);
        (readings.breaks, readings.step_s) = steps::measured(&readings.times_s, known);
        if let Some(step_s) = readings.step_s {
            readings.steps_s = steps::of_stretches(&readings.times_s, &readings.breaks, step_s);
        }
        (readings, self.left_out)
    }
}

impl Readings {
    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.columns.first().map_or(0, Vec::len)
    }

    /// Returns the line of the file that has this row; `None` if there is no file.
    #[must_use]
    pub fn line(&self, row: usize) -> Option<usize> {
        let behind = self.lines.partition_point(|&(first, _)| first <= row);
        let (first, line) = *self.lines.get(behind.checked_sub(1)?)?;
        Some(line + row - first)
    }

    /// Returns the mean step of the stretch of this row; `None` if all stretches have [`Self::step_s`].
    #[must_use]
    pub fn own_step_s(&self, row: usize) -> Option<f64> {
        let stretch = self.breaks.partition_point(|&at| at <= row);
        self.steps_s.get(stretch).copied()
    }

    /// Returns the number of steps between breaks that differ from the mean step of their stretch by more than a
    /// quarter.
    ///
    /// Rows are missing there, times are too coarse to tell, or the rate changes. 0 without times.
    #[must_use]
    pub fn uneven_steps(&self) -> usize {
        let count = |mean_s| steps::uneven(&self.times_s, &self.breaks, &self.steps_s, mean_s);
        self.step_s.map_or(0, count)
    }

    /// Returns the mean number of readings between two breaks if the breaks take most of the time.
    ///
    /// The sensor measures in bursts, or the times are those of batches.
    #[must_use]
    pub fn burst(&self) -> Option<usize> {
        steps::burst(&self.times_s, &self.breaks)
    }

    /// Returns its size when sent, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        8 * (self.rows() * self.columns.len()) as u64
    }

    /// Returns the first `rows` rows.
    #[must_use]
    pub fn head(&self, rows: usize) -> Self {
        let first = |column: &Vec<f64>| column[..rows.min(column.len())].to_vec();
        let breaks: Vec<usize> = self
            .breaks
            .iter()
            .copied()
            .filter(|&at| at < rows)
            .collect();
        let stretches = self.steps_s.len().min(breaks.len() + 1);
        Self {
            names: self.names.clone(),
            columns: self.columns.iter().map(first).collect(),
            step_s: self.step_s,
            steps_s: self.steps_s[..stretches].to_vec(),
            breaks,
            times_s: first(&self.times_s),
            lines: self
                .lines
                .iter()
                .copied()
                .filter(|&(row, _)| row < rows)
                .collect(),
            suspects: self.suspects.clone(),
        }
    }

    /// Checks that columns, names and breaks are consistent and within the limits.
    ///
    /// # Errors
    /// They are not.
    pub fn check(&self) -> Result<(), Error> {
        let count = self.columns.len();
        if !(1..=COLUMNS_MAX).contains(&count) || self.names.len() != count {
            let wrong = format!("are {count}, must be 1 to {COLUMNS_MAX}, each with a name");
            return Err(Error::invalid("columns", wrong));
        }
        let rows = self.rows();
        if rows == 0 {
            return Err(Error::invalid("readings", "are none"));
        }
        if rows * count > VALUES_MAX {
            return Err(Error::Limit {
                what: "numbers of a job",
                value: (rows * count) as u64,
                limit: VALUES_MAX as u64,
            });
        }
        let is_whole = self.columns.iter().all(|column| column.len() == rows);
        let values = self.columns.iter().flatten();
        if !is_whole
            || values
                .into_iter()
                .any(|value| value.is_nan() || value.abs() > VALUE_MAX)
        {
            return Err(Error::invalid(
                "columns",
                "differ in length, or have a value that is not finite or above 1e30",
            ));
        }
        let is_sorted = self.breaks.windows(2).all(|pair| pair[0] < pair[1]);
        let is_inside = self.breaks.iter().all(|&at| (1..rows).contains(&at));
        let mut steps = self.step_s.iter().chain(&self.steps_s);
        let is_step = steps.all(|step_s| *step_s > 0.0 && step_s.is_finite());
        let is_each = self.steps_s.is_empty() || self.steps_s.len() == self.breaks.len() + 1;
        if !is_sorted || !is_inside || !is_step || !is_each {
            return Err(Error::invalid("breaks", "do not fit the rows"));
        }
        Ok(())
    }

    /// Reads CSV. The first line has headings, unless all of its fields are numbers. `wanted` names columns; without it
    /// `value` is used, or the only column that is no time. Times are those of the first column that there is of
    /// `time_ns`, `time_us`, `time_ms` and `time_s`.
    ///
    /// # Errors
    /// A column that is missing, ambiguous or a time of no known unit, more values than a job accepts, an unreadable
    /// file.
    pub fn from_csv(reader: impl BufRead, wanted: &[String]) -> Result<(Self, LeftOut), Error> {
        let mut rows = Rows::new(reader);
        let fields: Vec<String> = match rows.next_row()? {
            None => return Err(Error::invalid("readings", "are none: the file is empty")),
            Some(Err(reason)) => return Err(Error::malformed(1, reason)),
            Some(Ok(fields)) => fields.to_vec(),
        };
        let (headings, is_data) = headings_of(&fields)?;
        let chosen = choose(&headings, wanted)?;
        if chosen.values.len() > COLUMNS_MAX {
            return Err(Error::Limit {
                what: "columns of a job",
                value: chosen.values.len() as u64,
                limit: COLUMNS_MAX as u64,
            });
        }
        let name = |&at: &usize| headings[at].clone();
        let names = chosen.values.iter().map(name).collect();
        let mut taker = Taker::new(names, chosen.time.is_some());
        let mut behind = Behind::of(&headings, &chosen);
        let mut take = |taker: &mut Taker, fields: &[String]| {
            // A decimal comma makes two fields of a number.
            let mut more = fields.iter().skip(headings.len());
            if more.any(|field| !field.is_empty()) {
                taker.leave_out("too many fields");
                return Ok(());
            }
            behind.iter_mut().for_each(|one| one.look(fields));
            let time_s = match chosen.time {
                Some((at, unit)) => time_of(fields, &headings[at], (at, unit))?,
                None => None,
            };
            let number = |&at: &usize| match fields.get(at) {
                Some(field) => field.trim().parse::<f64>().map_err(|_| "not a number"),
                None => Err("too few fields"),
            };
            taker.take(time_s, chosen.values.iter().map(number))
        };
        if is_data {
            taker.at_line(rows.begin());
            take(&mut taker, &fields)?;
        }
        while let Some(row) = rows.next_row()? {
            let wrong = row.err();
            taker.at_line(rows.begin());
            match wrong {
                None => take(&mut taker, rows.fields())?,
                Some(reason) => (0..rows.row_lines()).for_each(|_| taker.leave_out(reason)),
            }
        }
        let (mut readings, left_out) = taker.finish();
        readings.suspects = behind.iter().filter_map(Behind::suspect).collect();
        if readings.rows() == 0 {
            let why = left_out.text();
            let why = why.unwrap_or_else(|| "the file has headings alone".to_owned());
            return Err(Error::invalid("readings", format!("are none: {why}")));
        }
        Ok((readings, left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str, wanted: &[&str]) -> Result<(Readings, LeftOut), Error> {
        let wanted: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
        Readings::from_csv(text.as_bytes(), &wanted)
    }

    fn reasons(left_out: &LeftOut) -> Vec<(&'static str, u64)> {
        left_out.reasons().collect()
    }

    /// The output of `keel history --csv` for a log text with line breaks.
    #[test]
    fn a_text_with_line_breaks_is_one_row() {
        let text = "time,time_ms,value,type\n\
            x,1000,1.5,float\n\
            x,1500,\"err\nx,1600,99999,float\nx,1700,99999,float\n\",text\n\
            x,2000,2.5,float\n";
        let (readings, left_out) = read(text, &[]).unwrap();
        assert_eq!(readings.columns, [[1.5, 2.5]]);
        assert_eq!(reasons(&left_out), [("not a number", 1)]);
    }

    /// `time_ns` behind `time_ms` in the list of `columns.rs` makes it red.
    #[test]
    fn readings_of_one_ms_are_told_apart_by_their_ns() {
        let text = "time,time_ms,value,time_ns\n\
            x,1000,1.5,1000100000\n\
            x,1000,2.5,1000200000\n\
            x,1000,3.5,1000300000\n";
        let (readings, left_out) = read(text, &[]).unwrap();
        assert_eq!(readings.columns, [[1.5, 2.5, 3.5]]);
        assert_eq!((readings.step_s, left_out.total()), (Some(1e-4), 0));
        // A column of times is no value.
        let (readings, _) = read("time_ns,x\n1000000000,1\n2000000000,2\n", &[]).unwrap();
        assert_eq!((&*readings.names[0], readings.step_s), ("x", Some(1.0)));
    }

    #[test]
    fn a_history_is_read_and_unusable_rows_are_counted_by_reason() {
        let text = "time,time_ms,value,type\n\
            2026-01-01T00:00:00Z,1000,1.5,number\n\
            2026-01-01T00:00:01Z,2000,2.5,number\n\
            x,3000,door open,text\n\
            x,4000,\"3,5\",text\n\
            x,5000,3.5,number\n\
            x,6000,NaN,number\n\
            x,6000\n\
            x,5000,9,number\n\
            x,,9,number\n\
            x,7000,4.5,number\n\
            \n\
            x,12000,\"5.5\",number\n\
            x,13000,\"6.5,number\n\
            x,14000,7.5,number\n\
            x,15000,8.5,number";
        let (readings, left_out) = read(text, &[]).expect("readings");
        assert_eq!(readings.names, ["value"]);
        assert_eq!(readings.columns, [[1.5, 2.5, 3.5, 4.5, 5.5]]);
        assert_eq!(readings.times_s, [1.0, 2.0, 5.0, 7.0, 12.0]);
        // Before the last row too much time has passed; before the third and fourth a row was left out. So one step is
        // left.
        assert_eq!(
            (readings.step_s, readings.breaks.clone()),
            (Some(1.0), vec![2, 3, 4])
        );
        assert_eq!(
            reasons(&left_out),
            [
                ("a quote is not closed", 3),
                ("no time", 1),
                ("not a number", 2),
                ("not finite", 1),
                ("not later than the rows before", 1),
                ("too few fields", 1),
            ]
        );
        assert_eq!((left_out.total(), readings.check()), (9, Ok(())));
    }

    #[test]
    fn a_decimal_comma_makes_too_many_fields_and_no_value() {
        let text = "time_s,value\n0,1.5\n1,2,7\n2,3.5,\n";
        let (readings, left_out) = read(text, &[]).expect("two");
        assert_eq!(readings.columns, [[1.5, 3.5]]);
        assert_eq!(reasons(&left_out), [("too many fields", 1)]);
        assert_eq!(
            left_out.text().as_deref(),
            Some("rows left out: 1 too many fields")
        );
    }

    #[test]
    fn milliseconds_in_the_column_of_seconds_are_refused() {
        for heading in ["time_s", "time_ms"] {
            let text = format!("{heading},value\n1700000000000000,1\n");
            let said = read(&text, &[]).expect_err("another unit").to_string();
            assert!(
                said.contains(&format!("column `{heading}` has 1700000000000000")),
                "{said}"
            );
            assert!(said.contains("name it by the unit of its times"), "{said}");
        }
    }

    #[test]
    fn steps_that_differ_from_the_mean_are_counted() {
        let text = |kept: fn(&u32) -> bool| {
            let rows = (0..300)
                .filter(kept)
                .map(|row| format!("{row},{}\n", row % 7));
            format!("time_ms,value\n{}", rows.collect::<String>())
        };
        let (missing, _) = read(&text(|row| row % 3 != 2), &[]).expect("readings");
        assert_eq!((missing.uneven_steps(), missing.breaks.len()), (199, 0));
        let (whole, _) = read(&text(|_| true), &[]).expect("readings");
        assert_eq!(whole.uneven_steps(), 0);
        let (bare, _) = read("1\n2\n4\n", &[]).expect("readings");
        assert_eq!(bare.uneven_steps(), 0);
    }

    #[test]
    fn a_row_is_found_again_by_its_line() {
        let text = "time_s,value\n0,1\nx\n\n1,2\n2,3\n\"a\nb\",4\n3,5";
        let (readings, _) = read(text, &[]).expect("readings");
        let lines: Vec<Option<usize>> = (0..4).map(|row| readings.line(row)).collect();
        assert_eq!(lines, [Some(2), Some(5), Some(6), Some(9)]);
        let (bare, _) = read("7\n8\n", &[]).expect("no headings");
        assert_eq!((bare.line(0), bare.line(1)), (Some(1), Some(2)));
    }

    #[test]
    fn a_time_far_ahead_is_named_by_its_line() {
        let text = "time_s,value\n0,1\n0,1\n1,2\n900,3\n2,4\n3,5\n4,6\n";
        let (_, left_out) = read(text, &[]).expect("readings");
        let said = left_out.text().expect("some were left out");
        assert_eq!(
            said,
            "rows left out: 4 not later than the rows before (3 of them after line 5)"
        );
    }

    #[test]
    fn a_value_split_by_a_decimal_comma_is_suspected() {
        let (readings, left_out) =
            read("time_s,value,note\n0,0,309017\n1,0,007919\n", &[]).unwrap();
        assert_eq!((readings.suspects.len(), left_out.total()), (1, 0));
        let (whole, _) = read("time_s,value,note\n0,3,309\n1,0,7919\n", &[]).unwrap();
        assert_eq!(whole.suspects, [] as [String; 0]);
    }

    #[test]
    fn each_line_that_a_wrong_quote_takes_is_counted() {
        for (rest, reason, lines) in [
            ("2,\"6.5\n", "a quote is not closed", 1),
            ("2,\"6.5", "a quote is not closed", 1),
            ("\n\n2,\"6.5\n3,4\n", "a quote is not closed", 2),
            ("\r\n\n2,\"6.5\n3,4", "a quote is not closed", 2),
            ("\n\n2,\"a\" x\n3,4\n", "a quote inside of a field", 1),
            ("2,\"a\n\nb\" x\n3,4\n", "a quote inside of a field", 3),
        ] {
            let (_, left_out) = read(&format!("time_s,value\n1,5\n{rest}"), &[]).expect("one");
            assert_eq!(reasons(&left_out), [(reason, lines)], "{rest:?}");
        }
    }

    #[test]
    fn columns_are_found_by_name_or_where_there_is_only_one() {
        let text = "time_s,x,y\n0,1,2\n1,3,4\n";
        assert_eq!(
            read(text, &["y", "x"]).expect("both").0.columns,
            [[2.0, 4.0], [1.0, 3.0]]
        );
        let said = read(text, &[]).expect_err("not clear").to_string();
        assert!(said.contains("time_s, x, y"), "{said}");
        for twice in [
            "time_s,value,value\n0,1,2\n",
            "time_s,value,time_s\n0,1,2\n",
        ] {
            let said = read(twice, &[]).expect_err("which one?").to_string();
            assert!(said.contains("is there twice"), "{said}");
        }
        // Unused columns may appear any number of times.
        assert!(read("time_s,value,x,x\n0,1,2,3\n", &[]).is_ok());
        let said = read(text, &["x", "x"]).expect_err("twice").to_string();
        assert_eq!(said, "column `x` is named twice; name it once");
        let said = read(text, &["z"]).expect_err("not there").to_string();
        assert_eq!(said, "column `z` is not there; there are: time_s, x, y");
        let (only, _) = read("time_s,x\n0,1\n0.5,3\n", &[]).expect("one");
        assert_eq!((only.names, only.step_s), (vec!["x".to_owned()], Some(0.5)));
        let (near, _) = read("time_ms,x\n1700000000001,1\n1700000000002,3\n", &[]).expect("one");
        assert!(
            near.step_s
                .is_some_and(|step_s| (step_s - 1e-3).abs() < 1e-6),
            "{near:?}"
        );
        let (exact, _) = read("time_ms,x\n7,1\n8,3\n9,3\n", &[]).expect("one");
        assert_eq!(exact.step_s, Some(1e-3));
        let (bare, _) = read("1\n2\r\n3", &[]).expect("no headings");
        assert_eq!(
            (bare.columns, bare.step_s),
            (vec![vec![1.0, 2.0, 3.0]], None)
        );
    }

    #[test]
    fn files_without_readings_say_why_there_are_none() {
        let said = |text: &str| read(text, &[]).expect_err("none").to_string();
        assert_eq!(said(""), "readings are none: the file is empty");
        assert_eq!(
            said("value\n"),
            "readings are none: the file has headings alone"
        );
        assert_eq!(
            said("value\nx\ny\n"),
            "readings are none: rows left out: 2 not a number"
        );
        assert!(said("\"value\n").contains("line 1"));
        let wide = vec!["x"; 1_025].join(",");
        assert!(matches!(read(&wide, &[]), Err(Error::Limit { .. })));
        let long = format!("value\n{}\n7\n", "1".repeat(crate::csv::ROW_BYTES_MAX + 1));
        let (readings, left_out) = read(&long, &[]).expect("one");
        assert_eq!((readings.columns, left_out.total()), (vec![vec![7.0]], 1));
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_read_as_sound_readings(
            bytes in proptest::collection::vec(any::<u8>(), 0..400)
        ) {
            if let Ok((readings, _)) = Readings::from_csv(bytes.as_slice(), &[]) {
                prop_assert_eq!(readings.check(), Ok(()));
            }
        }

        #[test]
        fn rows_are_kept_or_counted(rows in proptest::collection::vec("(-?[0-9]{1,4}|x|,|)", 1..40)) {
            let text = format!("value,other\n{}\n", rows.join("\n"));
            let filled = rows.iter().filter(|row| !row.trim().is_empty()).count();
            let (kept, left_out) = match read(&text, &[]) {
                Ok((readings, left_out)) => (readings.rows(), left_out.total()),
                Err(_) => (0, filled as u64),
            };
            prop_assert_eq!(kept as u64 + left_out, filled as u64);
        }
    }
}
