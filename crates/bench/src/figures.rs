//! Figures of a bench: one value per round. Medians, ratios, a table and JSON are derived from them.

use std::fmt::Write;
use std::path::Path;

use serde_json::json;

use crate::machine::Machine;
use crate::report::{Json, Ratio, Row, Verdict, median};

/// The system that goals apply to and that ratios compare with the peers.
pub(crate) const OURS: &str = "keel";

/// A bound for a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    Below(f64),
    AtMost(f64),
    AtLeast(f64),
}

/// Relative rounding error allowed for thousands of additions.
const ROUNDING: f64 = 1e-12;

impl Bound {
    pub(crate) fn goal(self) -> f64 {
        match self {
            Self::Below(goal) | Self::AtMost(goal) | Self::AtLeast(goal) => goal,
        }
    }

    /// Whether `value` meets the bound. A value that differs from the goal only in its last digits, like a sum of
    /// rounded parts, counts as equal to it.
    pub(crate) fn is_met(self, value: f64) -> bool {
        let goal = self.goal();
        let is_goal = (value - goal).abs() <= goal.abs() * ROUNDING;
        match self {
            Self::Below(_) => value < goal && !is_goal,
            Self::AtMost(_) => value <= goal || is_goal,
            Self::AtLeast(_) => value >= goal || is_goal,
        }
    }

    pub(crate) fn verdict(self, value: f64) -> Verdict {
        Verdict {
            goal: self.goal(),
            better: self.better(),
            met: self.is_met(value),
        }
    }

    fn better(self) -> &'static str {
        if matches!(self, Self::AtLeast(_)) {
            "higher"
        } else {
            "lower"
        }
    }

    fn text(self) -> String {
        match self {
            Self::Below(goal) => format!("below {goal}"),
            Self::AtMost(goal) => format!("at most {goal}"),
            Self::AtLeast(goal) => format!("at least {goal}"),
        }
    }
}

/// A metric: its name and unit in reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    /// Whether our figure is divided by those of the peers.
    pub(crate) is_compared: bool,
}

impl Metric {
    pub(crate) const fn compared(name: &'static str, unit: &'static str) -> Self {
        Self {
            name,
            unit,
            is_compared: true,
        }
    }

    fn better(self) -> &'static str {
        match self.unit {
            "1/s" | "MiB/s" => "higher",
            _ => "lower",
        }
    }

    pub(crate) const fn shown(name: &'static str, unit: &'static str) -> Self {
        Self {
            name,
            unit,
            is_compared: false,
        }
    }
}

struct Figure {
    case: &'static str,
    system: &'static str,
    metric: Metric,
    rounds: Vec<f64>,
}

/// A goal of ours: for the figure itself, or for its ratio to a peer's figure.
pub(crate) struct Goal {
    pub(crate) case: &'static str,
    pub(crate) metric: &'static str,
    pub(crate) peer: Option<&'static str>,
    pub(crate) bound: Bound,
}

/// Everything that a run has measured so far.
pub(crate) struct Figures {
    figures: Vec<Figure>,
    goals: Vec<Goal>,
    missing: Vec<String>,
    notes: Vec<String>,
    /// Cases that lack a part.
    incomplete: Vec<&'static str>,
}

impl Figures {
    /// Creates an empty collection. `goals` are judged at the end, for the figures that exist then.
    pub(crate) fn new(goals: Vec<Goal>) -> Self {
        Self {
            figures: Vec::new(),
            goals,
            missing: Vec::new(),
            notes: Vec::new(),
            incomplete: Vec::new(),
        }
    }

    /// Adds a goal for figures measured so far. If a figure has two lower bounds, the higher one applies.
    pub(crate) fn add_goal(&mut self, goal: Goal) {
        let same = self.goals.iter_mut().find(|known| {
            (known.case, known.metric, known.peer) == (goal.case, goal.metric, goal.peer)
        });
        match same {
            Some(known) => {
                if let (Bound::AtLeast(old), Bound::AtLeast(new)) = (known.bound, goal.bound) {
                    known.bound = Bound::AtLeast(old.max(new));
                }
            }
            None => self.goals.push(goal),
        }
    }

    /// Returns the median of a figure if it was measured.
    pub(crate) fn value(&self, case: &str, system: &str, metric: Metric) -> Option<f64> {
        self.figure(case, system, metric).map(Figure::median)
    }

    /// Returns the values of the rounds; empty if the figure was not measured.
    pub(crate) fn rounds(&self, case: &str, system: &str, metric: Metric) -> &[f64] {
        self.figure(case, system, metric)
            .map_or(&[], |figure| &figure.rounds)
    }

    /// Returns our figure divided by a peer's if both were measured.
    pub(crate) fn ratio(&self, case: &str, peer: &str, metric: Metric) -> Option<f64> {
        Some(ratio(
            self.figure(case, OURS, metric)?,
            self.figure(case, peer, metric)?,
        ))
    }

    fn figure(&self, case: &str, system: &str, metric: Metric) -> Option<&Figure> {
        self.figures
            .iter()
            .find(|figure| (figure.case, figure.system, figure.metric) == (case, system, metric))
    }

    /// Adds the value of one round.
    pub(crate) fn record(
        &mut self,
        case: &'static str,
        system: &'static str,
        metric: Metric,
        value: f64,
    ) {
        let place = self
            .figures
            .iter_mut()
            .find(|figure| (figure.case, figure.system, figure.metric) == (case, system, metric));
        match place {
            Some(figure) => figure.rounds.push(value),
            None => self.figures.push(Figure {
                case,
                system,
                metric,
                rounds: vec![value],
            }),
        }
    }

    pub(crate) fn missing(&mut self, what: String) {
        self.missing.push(what);
    }

    pub(crate) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Notes that a case lacks a part. Its figures are shown, but none of its goals counts as met.
    pub(crate) fn incomplete(&mut self, case: &'static str) {
        self.incomplete.push(case);
    }

    fn is_met(&self, goal: &Goal, value: f64) -> bool {
        goal.bound.is_met(value) && !self.incomplete.contains(&goal.case)
    }

    /// Returns our compared figures, each paired with the same figure of each peer. Systems that are parts of ours are
    /// not peers.
    fn pairs(&self) -> impl Iterator<Item = (&Figure, &Figure)> {
        let ours = self
            .figures
            .iter()
            .filter(|figure| figure.system == OURS && figure.metric.is_compared);
        ours.flat_map(|ours| {
            let same = move |peer: &&Figure| {
                (peer.case, peer.metric) == (ours.case, ours.metric)
                    && !peer.system.starts_with(OURS)
            };
            self.figures
                .iter()
                .filter(same)
                .map(move |peer| (ours, peer))
        })
    }

    fn goal(&self, case: &str, metric: &str, peer: Option<&str>) -> Option<&Goal> {
        self.goals
            .iter()
            .find(|goal| (goal.case, goal.metric, goal.peer) == (case, metric, peer))
    }

    /// Returns the figures of `bench` as data. `method` describes the measurement.
    pub(crate) fn json(
        &self,
        bench: &'static str,
        machine: &Machine,
        mut method: serde_json::Value,
    ) -> Json {
        if let Some(object) = method.as_object_mut() {
            object.insert("notes".to_owned(), json!(self.notes));
            let each = |figure: &Figure| {
                json!({"case": figure.case, "system": figure.system, "metric": figure.metric.name,
                       "values": figure.rounds})
            };
            object.insert("rounds".to_owned(), self.figures.iter().map(each).collect());
        }
        let rows = self.figures.iter().map(|figure| {
            let value = figure.median();
            let goal =
                (figure.system == OURS).then(|| self.goal(figure.case, figure.metric.name, None));
            Row {
                case: figure.case,
                system: figure.system.to_owned(),
                metric: figure.metric.name,
                unit: figure.metric.unit,
                value,
                verdict: goal.flatten().map(|goal| Verdict {
                    met: self.is_met(goal, value),
                    ..goal.bound.verdict(value)
                }),
            }
        });
        let ratios = self.pairs().map(|(ours, peer)| {
            let ratio = ratio(ours, peer);
            let goal = self.goal(ours.case, ours.metric.name, Some(peer.system));
            Ratio {
                case: ours.case,
                metric: ours.metric.name,
                peer: peer.system.to_owned(),
                ratio,
                better: ours.metric.better(),
                goal: goal.map(|goal| goal.bound.goal()),
                met: goal.map(|goal| self.is_met(goal, ratio)),
                floor_ratio: None,
                of_rounds: Some(ratio_range(ours, peer)),
            }
        });
        Json {
            bench,
            version: env!("CARGO_PKG_VERSION"),
            machine: machine.clone(),
            rows: rows.collect(),
            ratios: ratios.collect(),
            missing: self.missing.clone(),
            method: Some(method),
        }
    }

    /// Returns the report of `bench`: the figures as data, and as a table of text.
    pub(crate) fn report(
        &self,
        bench: &'static str,
        title: &str,
        machine: &Machine,
        method: serde_json::Value,
    ) -> (Json, String) {
        (
            self.json(bench, machine, method),
            self.table(title, machine),
        )
    }

    /// Writes the value of each round into the file at `path`, if one is named.
    ///
    /// # Errors
    /// One line with the path.
    pub(crate) fn write_csv(&self, path: Option<&Path>) -> Result<(), String> {
        path.map_or(Ok(()), |path| {
            std::fs::write(path, self.csv()).map_err(|error| format!("{}: {error}", path.display()))
        })
    }

    /// Returns the value of each round, one per line.
    pub(crate) fn csv(&self) -> String {
        let mut text = "case,system,metric,unit,round,value\n".to_owned();
        for figure in &self.figures {
            let Metric { name, unit, .. } = figure.metric;
            for (round, value) in figure.rounds.iter().enumerate() {
                // Writing to a string cannot fail.
                let _ = writeln!(
                    text,
                    "{},{},{name},{unit},{},{value}",
                    figure.case,
                    figure.system,
                    round + 1
                );
            }
        }
        text
    }

    /// Returns the figures as text.
    pub(crate) fn table(&self, title: &str, machine: &Machine) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_table(&mut text, title, machine);
        text
    }

    fn write_table(&self, text: &mut String, title: &str, machine: &Machine) -> std::fmt::Result {
        writeln!(text, "{title}")?;
        writeln!(
            text,
            "machine: {}, {} cores, kernel {}\n",
            machine.cpu, machine.cores, machine.kernel
        )?;
        let width = |names: &mut dyn Iterator<Item = &str>, least: usize| {
            names.map(str::len).fold(least, usize::max) + 2
        };
        let cases = width(&mut self.figures.iter().map(|figure| figure.case), 20);
        let systems = width(&mut self.figures.iter().map(|figure| figure.system), 14);
        writeln!(
            text,
            "{:<cases$}{:<systems$}{:<30}{:>16}{:>16}{:>16}  goal",
            "case", "system", "metric", "median", "least", "most"
        )?;
        for figure in &self.figures {
            let unit = if figure.metric.unit == "1" {
                String::new()
            } else {
                format!(" [{}]", figure.metric.unit)
            };
            let least = figure.rounds.iter().copied().fold(f64::INFINITY, f64::min);
            let most = figure
                .rounds
                .iter()
                .copied()
                .fold(f64::NEG_INFINITY, f64::max);
            write!(
                text,
                "{:<cases$}{:<systems$}{:<30}{:>16.3}{:>16.3}{:>16.3}",
                figure.case,
                figure.system,
                format!("{}{unit}", figure.metric.name),
                figure.median(),
                least,
                most
            )?;
            let goal =
                (figure.system == OURS).then(|| self.goal(figure.case, figure.metric.name, None));
            let verdict = self.verdict_text(goal.flatten(), figure.median());
            writeln!(text, "{verdict}")?;
        }
        writeln!(text, "\n{OURS} divided by the peer, median of the rounds")?;
        writeln!(
            text,
            "{:<cases$}{:<systems$}{:<30}{:>12}  goal",
            "case", "peer", "metric", "ratio"
        )?;
        for (ours, peer) in self.pairs() {
            let ratio = ratio(ours, peer);
            let goal = self.goal(ours.case, ours.metric.name, Some(peer.system));
            writeln!(
                text,
                "{:<cases$}{:<systems$}{:<30}{ratio:>12.3}{}",
                ours.case,
                peer.system,
                ours.metric.name,
                self.verdict_text(goal, ratio)
            )?;
        }
        for missing in &self.missing {
            writeln!(text, "\nmissing: {missing}")?;
        }
        for note in &self.notes {
            writeln!(text, "\nnote: {note}")?;
        }
        Ok(())
    }

    fn verdict_text(&self, goal: Option<&Goal>, value: f64) -> String {
        goal.map_or_else(String::new, |goal| {
            let met = if self.is_met(goal, value) {
                "met"
            } else {
                "MISSED"
            };
            format!("  {}: {met}", goal.bound.text())
        })
    }
}

impl Figure {
    fn median(&self) -> f64 {
        median(&mut self.rounds.clone())
    }
}

/// Returns the median over rounds of our value divided by the peer's.
fn ratio(ours: &Figure, peer: &Figure) -> f64 {
    let rounds = ours.rounds.iter().zip(&peer.rounds);
    median(&mut rounds.map(|(ours, peer)| ours / peer).collect::<Vec<_>>())
}

/// Returns the minimum and the maximum of the ratios of which [`ratio`] is the median.
fn ratio_range(ours: &Figure, peer: &Figure) -> [f64; 2] {
    let rounds = ours.rounds.iter().zip(&peer.rounds);
    rounds
        .map(|(ours, peer)| ours / peer)
        .fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], ratio| {
            [low.min(ratio), high.max(ratio)]
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_misses_no_goal_and_meets_none() {
        let rounded = (0..10).map(|_| 0.1).sum::<f64>() / 2.0;
        assert!(rounded < 0.5 && Bound::AtLeast(0.5).is_met(rounded));
        assert!(Bound::AtMost(rounded).is_met(0.5) && !Bound::Below(0.5).is_met(rounded));
        assert!(!Bound::AtLeast(0.5).is_met(0.499_999) && !Bound::AtMost(0.5).is_met(0.500_001));
        assert!(Bound::AtMost(0.0).is_met(0.0) && !Bound::AtMost(0.0).is_met(1e-300));
        assert!(!Bound::AtLeast(0.5).is_met(f64::NAN) && !Bound::AtMost(0.5).is_met(f64::NAN));
    }

    const SPEED: Metric = Metric::compared("readings_per_second", "1/s");
    const COST: Metric = Metric::compared("cpu_per_reading", "us");

    fn figures() -> Figures {
        let mut figures = Figures::new(vec![
            Goal {
                case: "rate",
                metric: SPEED.name,
                peer: None,
                bound: Bound::AtLeast(20.0),
            },
            Goal {
                case: "rate",
                metric: COST.name,
                peer: Some("sqlite"),
                bound: Bound::AtMost(0.5),
            },
            Goal {
                case: "steady",
                metric: "resident",
                peer: None,
                bound: Bound::Below(32.0),
            },
        ]);
        for round in [1.0, 2.0, 6.0] {
            figures.record("rate", OURS, SPEED, round * 10.0);
            figures.record("rate", OURS, COST, round);
            figures.record("rate", "sqlite", COST, 4.0);
        }
        figures.record("steady", OURS, Metric::shown("resident", "MiB"), 32.0);
        figures.missing("mosquitto".to_owned());
        figures.note("a note".to_owned());
        figures
    }

    fn machine() -> Machine {
        Machine {
            cpu: "c".to_owned(),
            kernel: "k".to_owned(),
            cores: 2,
        }
    }

    #[test]
    fn json_has_medians_ratios_of_rounds_and_verdicts_where_a_goal_is() {
        let json =
            serde_json::to_value(figures().json("node", &machine(), json!({"quick": false})))
                .unwrap();
        let rows = json["rows"].as_array().unwrap();
        assert_eq!(
            (rows[0]["value"].as_f64(), rows[0]["met"].as_bool()),
            (Some(20.0), Some(true))
        );
        assert_eq!(rows[0]["better"], "higher");
        assert!(rows[1].get("met").is_none());
        assert_eq!(rows[3]["met"], false, "below is not at most");
        let ratios = json["ratios"].as_array().unwrap();
        assert_eq!(ratios.len(), 1);
        assert_eq!(
            (ratios[0]["ratio"].as_f64(), ratios[0]["met"].as_bool()),
            (Some(0.5), Some(true))
        );
        assert_eq!(json["missing"][0], "mosquitto");
        assert_eq!(json["method"]["rounds"][0]["values"][2], 60.0);
        assert_eq!(json["method"]["notes"][0], "a note");
    }

    #[test]
    fn no_goal_of_a_case_that_lacks_a_part_is_met() {
        let mut figures = figures();
        figures.incomplete("rate");
        let json = serde_json::to_value(figures.json("node", &machine(), json!({}))).unwrap();
        let (row, ratio) = (&json["rows"][0], &json["ratios"][0]);
        assert_eq!((&row["value"], &row["met"]), (&json!(20.0), &json!(false)));
        assert_eq!(
            (&ratio["ratio"], &ratio["met"]),
            (&json!(0.5), &json!(false))
        );
        let table = figures.table("a title", &machine());
        assert!(table.contains("at least 20: MISSED") && table.contains("at most 0.5: MISSED"));
    }

    #[test]
    fn the_higher_of_two_goals_for_a_figure_counts() {
        let mut figures = figures();
        let goal = |bound| Goal {
            case: "rate",
            metric: SPEED.name,
            peer: Some("sqlite"),
            bound: Bound::AtLeast(bound),
        };
        figures.record("rate", "sqlite", SPEED, 4.0);
        figures.add_goal(goal(3.0));
        figures.add_goal(goal(2.5));
        assert_eq!(figures.ratio("rate", "sqlite", SPEED), Some(2.5));
        let json = serde_json::to_value(figures.json("node", &machine(), json!({}))).unwrap();
        let ratio = &json["ratios"][0];
        assert_eq!(
            (ratio["goal"].as_f64(), &ratio["met"]),
            (Some(3.0), &json!(false))
        );
        assert_eq!(ratio["better"], "higher");
        assert_eq!(figures.value("rate", OURS, SPEED), Some(20.0));
        assert_eq!(figures.rounds("rate", "nobody", SPEED), [0.0; 0]);
    }

    #[test]
    fn the_table_names_every_figure_verdict_and_gap() {
        let table = figures().table("a title", &machine());
        for part in [
            "a title",
            "readings_per_second [1/s]",
            "at least 20: met",
            "below 32: MISSED",
            "missing: mosquitto",
        ] {
            assert!(table.contains(part), "{part} in\n{table}");
        }
    }
}
