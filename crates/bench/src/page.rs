//! What all result pages share: a report that is parsed again, texts of figures, and the texts between `<!-- begin NAME
//! -->` and `<!-- end NAME -->` of a page. The text around the marks stays.

use std::fmt::Write;
use std::path::Path;

use serde_json::Value;

/// Rewrites `page` with these texts between the marks of their names.
///
/// # Errors
/// One line that names the file.
pub(crate) fn fill(page: &Path, parts: &[(&str, String)]) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", page.display());
    let mut filled = std::fs::read_to_string(page).map_err(|error| failed(&error))?;
    for (name, text) in parts {
        filled = replace(&filled, name, text)
            .ok_or_else(|| failed(&format_args!("no place for {name}")))?;
    }
    std::fs::write(page, filled).map_err(|error| failed(&error))
}

/// Returns one line for each item, or a line that says that there is none.
pub(crate) fn list(items: impl IntoIterator<Item = impl std::fmt::Display>) -> String {
    let mut out = String::new();
    for item in items {
        let _ = writeln!(out, "- {item}");
    }
    if out.is_empty() {
        out.push_str("Nothing.\n");
    }
    out
}

/// Returns `page` with other text between the marks of `name`, or `None` if the marks are missing.
fn replace(page: &str, name: &str, text: &str) -> Option<String> {
    let (begin, end) = (
        format!("<!-- begin {name} -->\n"),
        format!("<!-- end {name} -->"),
    );
    let from = page.find(&begin)? + begin.len();
    let to = from + page[from..].find(&end)?;
    Some(format!("{}{text}{}", &page[..from], &page[to..]))
}

/// A report, parsed again.
pub(crate) struct Run {
    pub(crate) report: Value,
}

impl Run {
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
        let report = serde_json::from_str(&text).map_err(|error| failed(&error))?;
        Ok(Self { report })
    }

    pub(crate) fn list(&self, name: &str) -> &[Value] {
        self.report[name].as_array().map_or(&[], Vec::as_slice)
    }

    pub(crate) fn value(&self, case: &str, system: &str, metric: &str) -> Option<f64> {
        let found = self
            .list("rows")
            .iter()
            .find(|row| row["case"] == case && row["system"] == system && row["metric"] == metric);
        found.and_then(|row| row["value"].as_f64())
    }

    pub(crate) fn ratio(&self, case: &str, peer: &str, metric: &str) -> Option<f64> {
        let found = self
            .list("ratios")
            .iter()
            .find(|row| row["case"] == case && row["peer"] == peer && row["metric"] == metric);
        found.and_then(|row| row["ratio"].as_f64())
    }

    /// Returns a table's cell with the lowest and the highest round of a figure; blank if it has only one round.
    pub(crate) fn rounds_cell(&self, case: &str, system: &str, metric: &str) -> String {
        let all = self.report["method"]["rounds"].as_array();
        let found = all.into_iter().flatten().find(|figure| {
            figure["case"] == case && figure["system"] == system && figure["metric"] == metric
        });
        let rounds = found.and_then(|figure| figure["values"].as_array());
        let mut rounds: Vec<f64> = rounds
            .into_iter()
            .flatten()
            .filter_map(Value::as_f64)
            .collect();
        rounds.sort_unstable_by(f64::total_cmp);
        match rounds.as_slice() {
            [low, .., high] => format!(" {} to {} ", number(*low), number(*high)),
            _ => " ".to_owned(),
        }
    }

    /// Returns the rows, or the ratios, that have a goal.
    pub(crate) fn judged(&self, name: &str) -> impl Iterator<Item = &Value> {
        self.list(name).iter().filter(|row| row["goal"].is_number())
    }

    /// Returns the notes of the run.
    pub(crate) fn notes(&self) -> &[Value] {
        let notes = self.report["method"]["notes"].as_array();
        notes.map_or(&[], Vec::as_slice)
    }

    /// Lists what was not measured.
    pub(crate) fn missing(&self) -> String {
        list(self.list("missing").iter().map(text))
    }

    /// Returns date and version of the run, and its machine.
    pub(crate) fn origin(&self) -> String {
        let machine = &self.report["machine"];
        format!(
            "{}, version {}; {}, {} cores, kernel {}",
            text(&self.report["method"]["date"]),
            text(&self.report["version"]),
            text(&machine["cpu"]),
            machine["cores"],
            text(&machine["kernel"]),
        )
    }

    /// Returns a sentence with the load of the machine, after a space; empty if it was not measured.
    pub(crate) fn load(&self) -> String {
        let load = self.report["method"]["load_1min"].as_f64();
        load.map_or_else(String::new, |load| {
            format!(
                " The load of the machine was {} when it began.",
                number(load)
            )
        })
    }

    /// Returns the cases and systems that have `metric`, in the order of the report.
    pub(crate) fn with(&self, metric: &str) -> Vec<(&str, &str)> {
        let rows = self.list("rows").iter();
        rows.filter(|row| row["metric"] == metric)
            .map(|row| (text(&row["case"]), text(&row["system"])))
            .collect()
    }
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Formats a figure with its significant digits.
pub(crate) fn number(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 1000.0 || size.fract() == 0.0 => 0,
        size if size >= 100.0 => 1,
        _ => 2,
    };
    let plain = format!("{value:.decimals$}");
    let (whole, fraction) = plain.split_once('.').unwrap_or((&plain, ""));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) && whole.len() > 3 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if fraction.is_empty() {
        grouped
    } else {
        format!("{grouped}.{fraction}")
    }
}

pub(crate) fn cell(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), number)
}

/// Returns the first two lines of a table; ` | ` separates the headings of its columns.
pub(crate) fn head(columns: &str) -> String {
    let count = columns.matches('|').count() + 1;
    format!("| {columns} |\n|{}\n", "---|".repeat(count))
}

/// Returns whether the goal of a row is met.
pub(crate) fn verdict(row: &Value) -> &'static str {
    if row["met"] == true {
        "met"
    } else {
        "**missed**"
    }
}

/// Returns on which side of its goal a row must be.
pub(crate) fn side(row: &Value) -> &'static str {
    if row["better"] == "higher" {
        "at least"
    } else {
        "at most"
    }
}

/// Returns the table of all goals with the range of their rounds. The two functions describe a case and a metric for a
/// reader; `remark` follows the verdict of a figure.
pub(crate) fn goals_of_rounds(
    run: &Run,
    case_words: impl Fn(&str) -> String,
    metric_words: impl Fn(&str) -> String,
    remark: impl Fn(&Value) -> String,
) -> String {
    let mut out = head("case | figure | measured | rounds | goal |");
    let bound = |row: &Value| format!("{} {}", side(row), cell(row["goal"].as_f64()));
    for row in run.judged("ratios") {
        let of_rounds = |place: usize| cell(row["of_rounds"][place].as_f64());
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "| {} | {}, divided by {} | {} | {} to {} | {} | {} |",
            case_words(text(&row["case"])),
            metric_words(text(&row["metric"])),
            text(&row["peer"]),
            cell(row["ratio"].as_f64()),
            of_rounds(0),
            of_rounds(1),
            bound(row),
            verdict(row),
        );
    }
    for row in run.judged("rows") {
        let [case, system, metric] = ["case", "system", "metric"].map(|key| text(&row[key]));
        let _ = writeln!(
            out,
            "| {} | {} | {} |{}| {} | {}{} |",
            case_words(case),
            metric_words(metric),
            cell(row["value"].as_f64()),
            run.rounds_cell(case, system, metric),
            bound(row),
            verdict(row),
            remark(row),
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_text_between_the_marks_changes() {
        let page = "a\n<!-- begin x -->\nold\n<!-- end x -->\nb\n";
        let changed = replace(page, "x", "new\n").unwrap();
        assert_eq!(changed, "a\n<!-- begin x -->\nnew\n<!-- end x -->\nb\n");
        assert!(replace(page, "y", "").is_none());
    }

    #[test]
    fn a_head_has_a_line_below_each_heading() {
        assert_eq!(head("case"), "| case |\n|---|\n");
        assert_eq!(head("case | goal |"), "| case | goal | |\n|---|---|---|\n");
    }

    #[test]
    fn numbers_are_grouped_and_cut() {
        for (value, expected) in [
            (1_234_567.0, "1,234,567"),
            (1234.5, "1,234"),
            (123.45, "123.5"),
            (1.044, "1.04"),
            (3.0, "3"),
            (0.0, "0"),
        ] {
            assert_eq!(number(value), expected);
        }
    }
}
