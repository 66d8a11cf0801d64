//! The columns of a CSV file that a job takes, found by their headings.
//!
//! A decimal comma may have split a value into two of them: the file also finds the signs of that.

use crate::Error;
use crate::error::excerpt;

/// Largest number of headings of a file.
const HEADINGS_MAX: usize = 1_024;

/// A later time, in s since 1970, is in another unit than its column says: it is after the year 5000.
const TIME_S_MAX: f64 = 1e11;

/// Headings of times, in any case, with their units in s. The most exact one first: readings of a fast sensor lie in
/// one ms.
const TIMES: [(&str, f64); 4] = [
    ("time_ns", 1e-9),
    ("time_us", 1e-6),
    ("time_ms", 1e-3),
    ("time_s", 1.0),
];

/// The columns that a job takes.
pub(super) struct Chosen {
    /// Places of the columns of values.
    pub(super) values: Vec<usize>,
    /// Place of the column of times, and its unit in s.
    pub(super) time: Option<(usize, f64)>,
}

/// Returns the headings of a file with this first line, and whether that line is a row already.
pub(super) fn headings_of(fields: &[String]) -> Result<(Vec<String>, bool), Error> {
    if fields.len() > HEADINGS_MAX {
        return Err(Error::Limit {
            what: "columns of a file",
            value: fields.len() as u64,
            limit: HEADINGS_MAX as u64,
        });
    }
    let is_data = fields.iter().all(|field| field.parse::<f64>().is_ok());
    let headings: Vec<String> = if is_data {
        (1..=fields.len())
            .map(|at| format!("column_{at}"))
            .collect()
    } else {
        fields.to_vec()
    };
    Ok((headings, is_data))
}

/// Returns the time of a row from the column of this heading, place and unit; `None` if it has none.
pub(super) fn time_of(
    fields: &[String],
    heading: &str,
    (at, unit): (usize, f64),
) -> Result<Option<f64>, Error> {
    let value = fields
        .get(at)
        .and_then(|field| field.trim().parse::<f64>().ok());
    let time_s = value.map(|value| value * unit);
    if time_s.is_some_and(|time_s| time_s.is_finite() && time_s.abs() > TIME_S_MAX) {
        let wrong = format!(
            "has {}, which is after the year 5000: name it by the unit of its times, time_s, time_ms, time_us or \
             time_ns",
            value.unwrap_or_default()
        );
        return Err(Error::invalid(format!("column `{heading}`"), wrong));
    }
    Ok(time_s)
}

/// Chooses columns. `wanted` names those of values; without it `value` is used, or the only column that is no time.
pub(super) fn choose(headings: &[String], wanted: &[String]) -> Result<Chosen, Error> {
    let time = TIMES.iter().find_map(|&(name, unit)| {
        let is_it = |heading: &String| heading.eq_ignore_ascii_case(name);
        Some((headings.iter().position(is_it)?, unit))
    });
    let unknown = |heading: &&String| is_like_time(heading) && !wanted.contains(heading);
    if let Some(heading) = headings.iter().find(unknown).filter(|_| time.is_none()) {
        let wrong = "looks like a time without a unit: name it time_s, time_ms, time_us or time_ns (a number since \
                     1970), or otherwise if it is no time";
        return Err(Error::invalid(
            format!("column `{}`", excerpt(heading)),
            wrong,
        ));
    }
    let values = values_of(headings, wanted)?;
    if let Some(at) = (1..wanted.len()).find(|&at| wanted[..at].contains(&wanted[at])) {
        let wrong = "is named twice; name it once";
        let what = format!("column `{}`", excerpt(&wanted[at]));
        return Err(Error::invalid(what, wrong));
    }
    let is_twice = |at: usize, is_same: fn(&str, &str) -> bool| {
        let same = headings
            .iter()
            .filter(|heading| is_same(heading, &headings[at]));
        same.count() > 1
    };
    let twice = values
        .iter()
        .copied()
        .find(|&at| is_twice(at, |one, other| one == other));
    let time_twice = time.map(|(at, _)| at);
    let time_twice = time_twice.filter(|&at| is_twice(at, str::eq_ignore_ascii_case));
    if let Some(at) = twice.or(time_twice) {
        let wrong = "is there twice; give each column a name of its own";
        let what = format!("column `{}`", excerpt(&headings[at]));
        return Err(Error::invalid(what, wrong));
    }
    Ok(Chosen { values, time })
}

/// Returns the places of the columns of values.
fn values_of(headings: &[String], wanted: &[String]) -> Result<Vec<usize>, Error> {
    let find = |name: &str| headings.iter().position(|heading| heading == name);
    let shown = || {
        let names: Vec<String> = headings.iter().take(20).map(|name| excerpt(name)).collect();
        names.join(", ")
    };
    if wanted.is_empty() {
        let is_value = |at: &usize| !is_like_time(&headings[*at]);
        let others: Vec<usize> = (0..headings.len()).filter(is_value).collect();
        return match (find("value"), others.as_slice()) {
            (Some(value), _) => Ok(vec![value]),
            (None, [only]) => Ok(vec![*only]),
            _ => {
                let wrong = format!("is not clear; name those that are wanted, of: {}", shown());
                Err(Error::invalid("column", wrong))
            }
        };
    }
    let find = |name: &String| {
        find(name).ok_or_else(|| {
            let wrong = format!("is not there; there are: {}", shown());
            Error::invalid(format!("column `{}`", excerpt(name)), wrong)
        })
    };
    wanted.iter().map(find).collect()
}

/// Returns whether a column of this name has times, known or not.
fn is_like_time(heading: &str) -> bool {
    let name = heading.to_ascii_lowercase();
    let is_other = ["timeout", "timer"]
        .iter()
        .any(|other| name.starts_with(other));
    matches!(name.as_str(), "date" | "datetime" | "ts") || (name.starts_with("time") && !is_other)
}

/// A column behind one of values that the job does not take. A decimal comma puts the digits behind it there.
#[derive(Debug)]
pub(super) struct Behind {
    value: usize,
    names: (String, String),
    /// No value had a fraction, and this column had nothing but digits.
    is_possible: bool,
    has_digits: bool,
    /// A number like 07 is the rest of another.
    has_zero: bool,
}

impl Behind {
    /// Returns these columns.
    pub(super) fn of(headings: &[String], chosen: &Chosen) -> Vec<Self> {
        let behind = |&value: &usize| {
            let heading = headings.get(value + 1)?;
            let is_taken = chosen.values.contains(&(value + 1)) || is_like_time(heading);
            (!is_taken).then(|| Self {
                value,
                names: (excerpt(&headings[value]), excerpt(heading)),
                is_possible: true,
                has_digits: false,
                has_zero: false,
            })
        };
        chosen.values.iter().filter_map(behind).collect()
    }

    /// Looks at a row.
    pub(super) fn look(&mut self, fields: &[String]) {
        let (Some(value), Some(rest)) = (fields.get(self.value), fields.get(self.value + 1)) else {
            return;
        };
        let is_whole =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if value.parse::<f64>().is_err() {
            return;
        }
        if !is_whole(value.trim_start_matches(['-', '+'])) {
            self.is_possible = false;
        } else if is_whole(rest) {
            self.has_digits = true;
            self.has_zero |= rest.len() > 1 && rest.starts_with('0');
        } else if !rest.is_empty() {
            self.is_possible = false;
        }
    }

    /// Returns why values may be parts of numbers; `None` if there is no sign of it. Columns of whole numbers are no
    /// sign.
    pub(super) fn suspect(&self) -> Option<String> {
        let (value, rest) = &self.names;
        let is_sign = self.has_zero || rest.is_empty();
        (self.is_possible && self.has_digits && is_sign).then(|| {
            format!(
                "column `{value}` has only whole numbers, and column `{rest}` behind it only digits: decimal commas \
                 may have split numbers; write decimal points"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<String> {
        text.split(',').map(str::to_owned).collect()
    }

    fn suspect(headings: &str, rows: &[&str]) -> Option<String> {
        let headings = texts(headings);
        let chosen = choose(&headings, &[]).expect("columns");
        let mut behind = Behind::of(&headings, &chosen);
        for row in rows {
            behind.iter_mut().for_each(|one| one.look(&texts(row)));
        }
        behind.first().and_then(Behind::suspect)
    }

    #[test]
    fn a_decimal_comma_in_a_row_with_as_many_fields_as_headings_is_suspected() {
        for headings in ["time_ms,value,note", "time_ms,value,"] {
            let said = suspect(headings, &["0,0,309017", "1,-0,007919", "2,1"]);
            let said = said.expect("a sign");
            assert!(said.contains("write decimal points"), "{said}");
        }
        assert!(suspect("time_ms,value,", &["0,21,5"]).is_some());
        // Whole numbers, a text, an empty column, a fraction, and a time.
        assert_eq!(suspect("time_ms,value,count", &["0,5,10", "1,6,0"]), None);
        assert_eq!(suspect("time_ms,value,note", &["0,5,007", "1,6,on"]), None);
        assert_eq!(suspect("time_ms,value,", &["0,5,", "1,6,"]), None);
        assert_eq!(suspect("time_ms,value,id", &["0,5,007", "1,6.5,008"]), None);
        assert_eq!(suspect("time_ms,value,time_ns", &["0,5,007"]), None);
    }

    #[test]
    fn headings_of_times_have_any_case_and_unknown_ones_are_refused() {
        for (heading, unit) in [("Time_ms", 1e-3), ("TIME_NS", 1e-9), ("time_us", 1e-6)] {
            let chosen = choose(&texts(&format!("{heading},value")), &[]).expect("a time");
            assert_eq!((chosen.values, chosen.time), (vec![1], Some((0, unit))));
        }
        for heading in ["timestamp", "Time", "date", "ts", "time_min"] {
            let refused = choose(&texts(&format!("{heading},value")), &[]).err();
            let said = refused.expect("unknown").to_string();
            assert!(
                said.contains(heading) && said.contains("time_us or time_ns"),
                "{said}"
            );
            // Beside a known one it is a text for a person.
            let chosen = choose(&texts(&format!("{heading},x,time_s")), &[]).expect("a time");
            assert_eq!((chosen.values, chosen.time), (vec![1], Some((2, 1.0))));
        }
        assert!(choose(&texts("timeout_s"), &[]).is_ok());
        assert!(choose(&texts("Time_s,time_s,value"), &[]).is_err());
    }
}
