//! The results of an experiment: rows with verdicts, tables, drawings, and the report of them all.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::json;

/// A bound from the table of goals.
pub(crate) use crate::figures::Bound as Goal;
use crate::machine::{Machine, today};
use crate::paper::chart::Shape;
use crate::report::{Json, Ratio, Row};

/// Figures, and files in the folder of the experiment.
pub(crate) struct Findings {
    experiment: &'static str,
    folder: PathBuf,
    rows: Vec<Row>,
    ratios: Vec<Ratio>,
    notes: Vec<String>,
    missing: Vec<String>,
    written: Vec<PathBuf>,
}

impl Findings {
    /// Creates empty findings and the folder.
    ///
    /// # Errors
    /// One line that names the folder.
    pub(crate) fn new(experiment: &'static str, folder: &Path) -> Result<Self, String> {
        std::fs::create_dir_all(folder).map_err(|error| {
            format!(
                "{}: {error}; name another folder with --out",
                folder.display()
            )
        })?;
        Ok(Self {
            experiment,
            folder: folder.to_owned(),
            rows: Vec::new(),
            ratios: Vec::new(),
            notes: Vec::new(),
            missing: Vec::new(),
            written: Vec::new(),
        })
    }

    pub(crate) fn row(
        &mut self,
        case: &'static str,
        system: impl Into<String>,
        (metric, unit): (&'static str, &'static str),
        value: f64,
        goal: Option<Goal>,
    ) {
        // A value that is not finite is not recorded.
        if value.is_finite() {
            self.rows.push(Row {
                case,
                system: system.into(),
                metric,
                unit,
                value,
                verdict: goal.map(|goal| goal.verdict(value)),
            });
        }
    }

    pub(crate) fn ratio(
        &mut self,
        case: &'static str,
        metric: &'static str,
        peer: &str,
        (ratio, range): (f64, [f64; 2]),
        at_most: f64,
    ) {
        self.ratios.push(Ratio {
            case,
            metric,
            peer: peer.to_owned(),
            ratio,
            better: "lower",
            goal: Some(at_most),
            met: Some(Goal::AtMost(at_most).is_met(ratio)),
            floor_ratio: None,
            of_rounds: Some(range),
        });
    }

    /// Removes the goals: a quick run is not judged.
    pub(crate) fn unjudged(&mut self) {
        for row in &mut self.rows {
            row.verdict = None;
        }
        for ratio in &mut self.ratios {
            (ratio.goal, ratio.met) = (None, None);
        }
        self.note("QUICK: these figures mean little, and no goal is judged".to_owned());
    }

    pub(crate) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    pub(crate) fn missing(&mut self, what: String) {
        self.missing.push(what);
    }

    /// Returns the value of a row.
    #[cfg(test)]
    pub(crate) fn value(&self, case: &str, system: &str, metric: &str) -> Option<f64> {
        let found = self
            .rows
            .iter()
            .find(|row| row.case == case && row.system == system && row.metric == metric);
        found.map(|row| row.value)
    }

    /// Returns the rows and ratios that miss their goal.
    #[cfg(test)]
    pub(crate) fn missed(&self) -> Vec<String> {
        let is_missed = |row: &&Row| row.verdict.as_ref().is_some_and(|verdict| !verdict.met);
        let rows = self.rows.iter().filter(is_missed);
        let rows =
            rows.map(|row| format!("{} {} {} {}", row.case, row.system, row.metric, row.value));
        let ratios = self.ratios.iter().filter(|ratio| ratio.met == Some(false));
        rows.chain(ratios.map(|ratio| format!("{} {} {}", ratio.case, ratio.metric, ratio.ratio)))
            .collect()
    }

    /// The number of goals that were judged.
    #[cfg(test)]
    pub(crate) fn judged(&self) -> usize {
        let rows = self.rows.iter().filter(|row| row.verdict.is_some()).count();
        rows + self.ratios.len()
    }

    fn path(&mut self, name: &str) -> PathBuf {
        let path = self.folder.join(name);
        self.written.push(path.clone());
        path
    }

    /// Writes text into the folder.
    ///
    /// # Errors
    /// One line that names the file.
    pub(crate) fn write(&mut self, name: &str, text: &str) -> Result<(), String> {
        let path = self.path(name);
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Writes a comma-separated table.
    ///
    /// # Errors
    /// One line that names the file.
    pub(crate) fn table(
        &mut self,
        name: &str,
        head: &[&str],
        rows: &[Vec<String>],
    ) -> Result<(), String> {
        let mut text = head.join(",") + "\n";
        for row in rows {
            text.push_str(&row.join(","));
            text.push('\n');
        }
        self.write(&format!("{name}.csv"), &text)
    }

    /// Writes a drawing as SVG and PNG.
    ///
    /// # Errors
    /// One line that names the file.
    pub(crate) fn draw(&mut self, name: &str, shapes: &[Shape]) -> Result<(), String> {
        crate::paper::render::write(&self.folder, name, shapes)?;
        for ending in ["svg", "png"] {
            self.path(&format!("{name}.{ending}"));
        }
        Ok(())
    }

    /// Returns the report as data and as text; also writes the data into the folder.
    ///
    /// # Errors
    /// One line that names the file.
    pub(crate) fn finish(
        mut self,
        machine: &Machine,
        mut method: serde_json::Value,
    ) -> Result<(Json, String), String> {
        if let Some(object) = method.as_object_mut() {
            object.insert("date".to_owned(), json!(today()));
            object.insert("notes".to_owned(), json!(self.notes));
        }
        let path = self.path(&format!("{}.json", self.experiment));
        let text = self.text(machine);
        let report = Json {
            bench: self.experiment,
            version: env!("CARGO_PKG_VERSION"),
            machine: machine.clone(),
            rows: self.rows,
            ratios: self.ratios,
            missing: self.missing,
            method: Some(method),
        };
        let written = serde_json::to_string_pretty(&report).map_err(|error| error.to_string())?;
        std::fs::write(&path, written + "\n")
            .map_err(|error| format!("{}: {error}", path.display()))?;
        Ok((report, text))
    }

    fn text(&self, machine: &Machine) -> String {
        let mut text = format!(
            "{}\nmachine: {}, {} cores, kernel {}\n\n",
            self.experiment, machine.cpu, machine.cores, machine.kernel
        );
        let told = |goal: f64, better: &str, met: bool| {
            format!(
                "  at {} {goal}: {}",
                if better == "lower" { "most" } else { "least" },
                if met { "met" } else { "MISSED" }
            )
        };
        for row in &self.rows {
            let verdict = row.verdict.as_ref();
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{:<14}{:<32}{:<24}{:>10.3} {}{}",
                row.case,
                row.system,
                row.metric,
                row.value,
                if row.unit == "1" { "" } else { row.unit },
                verdict.map_or_else(String::new, |it| told(it.goal, it.better, it.met))
            );
        }
        for ratio in &self.ratios {
            let verdict = ratio.goal.zip(ratio.met);
            let _ = writeln!(
                text,
                "{:<14}{:<56}{:>10.3} {}",
                ratio.case,
                format!("{}, divided by {}", ratio.metric, ratio.peer),
                ratio.ratio,
                verdict.map_or_else(String::new, |(goal, met)| told(goal, ratio.better, met))
            );
        }
        for missing in &self.missing {
            let _ = writeln!(text, "missing: {missing}");
        }
        for note in &self.notes {
            let _ = writeln!(text, "note: {note}");
        }
        for path in &self.written {
            let _ = writeln!(text, "written: {}", path.display());
        }
        text
    }
}

/// Formats a figure for a table; empty if there is none.
pub(crate) fn cell(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| format!("{value:.5}"))
}
