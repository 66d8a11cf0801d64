//! The energy that a board used for a job: one figure from all of its sensors, or why there is none.
//!
//! Sensors overlap: a processor's package is part of the board's input. Figures are added only if they are of the same
//! kind and do not overlap, as packages of processors.

use crate::power::Summary;
use crate::results::{Known, Origin};
use serde::{Deserialize, Serialize};

/// The energy of one board.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoardEnergy {
    /// The sensor, or several.
    pub source: String,
    /// What it covers.
    pub covers: String,
    /// The source of the formula, if it is not a measurement.
    pub modelled: Option<String>,
    /// Time covered by values.
    pub seconds: f64,
    /// Energy in that time.
    pub energy_j: f64,
    /// Average power in that time.
    pub average_w: f64,
    /// Power before the job, without load.
    pub idle_w: Known<f64>,
}

/// Determines the figure of a board from its sensors' summaries.
///
/// # Errors
/// No sensor gave a value, or several sensors are ambiguous.
pub fn of_board(summaries: &[Summary]) -> Result<BoardEnergy, String> {
    let is_there = |summary: &&Summary| !matches!(summary.origin, Origin::Unavailable(_));
    let there: Vec<&Summary> = summaries.iter().filter(is_there).collect();
    match (there.as_slice(), that_count(&there, |one| &one.source)) {
        ([], _) => {
            let why = summaries.iter().find_map(|summary| match &summary.origin {
                Origin::Unavailable(why) => Some(format!("{}: {why}", summary.source)),
                _ => None,
            });
            Err(why.unwrap_or_else(|| "no sensor was read".to_owned()))
        }
        (_, Some(counted)) => Ok(sum(&counted)),
        (several, None) => {
            let names: Vec<&str> = several
                .iter()
                .map(|summary| summary.source.as_str())
                .collect();
            Err(format!(
                "several sensors have values, name one with --sensor: {}",
                names.join(", ")
            ))
        }
    }
}

/// Returns those of a board's sensors whose sum is its figure, selected by name; `None` if that is ambiguous.
pub(crate) fn that_count<'a, T>(there: &[&'a T], name: impl Fn(&T) -> &str) -> Option<Vec<&'a T>> {
    // A meter measures the whole board.
    let is_platform =
        |one: &&&T| name(one).starts_with("rapl psys") || name(one).starts_with("meter");
    let is_package = |one: &&T| name(one).starts_with("rapl package");
    match there {
        [] => None,
        [only] => Some(vec![only]),
        several => match several.iter().find(is_platform) {
            Some(platform) => Some(vec![platform]),
            None => several.iter().all(is_package).then(|| several.to_vec()),
        },
    }
}

fn sum(summaries: &[&Summary]) -> BoardEnergy {
    let names: Vec<&str> = summaries
        .iter()
        .map(|summary| summary.source.as_str())
        .collect();
    let modelled = summaries.iter().find_map(|summary| match &summary.origin {
        Origin::Modelled(after) => Some(after.clone()),
        _ => None,
    });
    let idle: Option<f64> = summaries.iter().map(|summary| summary.idle_w.value()).sum();
    let why = summaries.iter().find_map(|summary| match &summary.idle_w {
        Known::Unavailable(why) => Some(why.clone()),
        Known::Value(_) => None,
    });
    BoardEnergy {
        source: names.join(" + "),
        covers: summaries
            .first()
            .map_or(String::new(), |summary| summary.covers.clone()),
        modelled,
        seconds: summaries
            .iter()
            .map(|summary| summary.seconds)
            .fold(0.0, f64::max),
        energy_j: summaries.iter().map(|summary| summary.energy_j).sum(),
        average_w: summaries.iter().map(|summary| summary.average_w).sum(),
        idle_w: match idle {
            Some(watts) => Known::Value(watts),
            None => Known::Unavailable(why.unwrap_or_else(|| "not measured".to_owned())),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(source: &str, energy_j: f64) -> Summary {
        Summary {
            source: source.to_owned(),
            covers: "something".to_owned(),
            origin: Origin::Measured,
            seconds: 2.0,
            samples: 10,
            gap_s_max: 0.1,
            without_s: 0.0,
            reasons: Vec::new(),
            remark: None,
            average_w: energy_j / 2.0,
            maximum_w: energy_j,
            minimum_w: 0.0,
            energy_j,
            idle_w: Known::Value(1.0),
        }
    }

    fn missing(source: &str) -> Summary {
        Summary {
            origin: Origin::Unavailable("not permitted".to_owned()),
            idle_w: Known::Unavailable("not permitted".to_owned()),
            energy_j: 0.0,
            ..summary(source, 0.0)
        }
    }

    #[test]
    fn one_figure_comes_of_all_sensors_or_the_reason_why_none_does() {
        let energy =
            |summaries: &[Summary]| of_board(summaries).map(|board| (board.source, board.energy_j));
        assert_eq!(energy(&[]), Err("no sensor was read".to_owned()));
        assert_eq!(
            energy(&[missing("rapl psys")]),
            Err("rapl psys: not permitted".to_owned())
        );
        assert_eq!(
            energy(&[missing("a"), summary("b", 4.0)]),
            Ok(("b".to_owned(), 4.0))
        );
        let packages = [
            summary("rapl package-0", 4.0),
            summary("rapl package-1", 6.0),
        ];
        assert_eq!(
            energy(&packages),
            Ok(("rapl package-0 + rapl package-1".to_owned(), 10.0))
        );
        let platform = [summary("rapl psys", 20.0), packages[0].clone()];
        assert_eq!(energy(&platform), Ok(("rapl psys".to_owned(), 20.0)));
        let rails = [summary("ina219 5-0040", 1.0), summary("ina219 5-0041", 2.0)];
        let why = energy(&rails).expect_err("rails overlap or do not");
        assert!(
            why.contains("--sensor: ina219 5-0040, ina219 5-0041"),
            "{why}"
        );
    }

    #[test]
    fn idle_power_is_that_of_all_or_unknown() {
        let idle = |summaries: &[Summary]| of_board(summaries).expect("a figure").idle_w;
        let mut packages = [
            summary("rapl package-0", 4.0),
            summary("rapl package-1", 6.0),
        ];
        assert_eq!(idle(&packages), Known::Value(2.0));
        packages[1].idle_w = Known::Unavailable("too short".to_owned());
        assert_eq!(idle(&packages), Known::Unavailable("too short".to_owned()));
    }
}
