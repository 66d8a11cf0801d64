//! The result of a job: comparison of two answers, a summary, and the whole answer as a table.

use super::order::Settings;
use super::readings::Readings;
use super::{k_means, matrix_profile, vibration};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Boards of different types transform spectra with different instructions, whose results differ in the last bits.
const DIFFERENCE_MAX: f64 = 1e-9;

/// The answer of a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Features of vibration.
    Vibration(vibration::Answer),
    /// A model of usual windows.
    KMeans(k_means::Answer),
    /// The nearest neighbour of each window.
    MatrixProfile(matrix_profile::Answer),
}

/// The comparison of an answer with that of a single rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sameness {
    /// Bitwise equal.
    Same,
    /// Spectra differ relatively by this amount, because boards use different instructions.
    Near(f64),
    /// They are different answers.
    Different,
    /// They are not compared, or not yet.
    Unchecked,
}

impl Answer {
    /// Returns all of its numbers, in a fixed order.
    fn numbers(&self) -> Vec<f64> {
        match self {
            Self::Vibration(answer) => {
                let starts = answer.starts.iter().map(|&start| start as f64);
                starts
                    .chain(answer.features.iter().flatten().copied())
                    .collect()
            }
            Self::KMeans(answer) => {
                let clusters = answer.clusters.iter();
                let clusters =
                    clusters.flat_map(|one| one.centre.iter().copied().chain([one.windows as f64]));
                let unusual = answer
                    .unusual
                    .iter()
                    .flat_map(|one| [one.row as f64, one.score]);
                let others = [answer.windows as f64, answer.rounds as f64, answer.distance];
                clusters.chain(unusual).chain(others).collect()
            }
            Self::MatrixProfile(answer) => {
                let neighbours = answer.neighbours.iter();
                let neighbours = neighbours.map(|neighbour| neighbour.map_or(-1.0, |at| at as f64));
                answer
                    .correlations
                    .iter()
                    .copied()
                    .chain(neighbours)
                    .collect()
            }
        }
    }

    /// Compares with the answer of a single rank. All answers must be bitwise equal; only spectra may differ slightly.
    #[must_use]
    pub fn compare(&self, alone: &Self) -> Sameness {
        let (mine, theirs) = (self.numbers(), alone.numbers());
        if mine.len() != theirs.len() {
            return Sameness::Different;
        }
        let mut pairs = mine.iter().zip(&theirs);
        if pairs.all(|(a, b)| a.to_bits() == b.to_bits()) {
            return Sameness::Same;
        }
        let (Self::Vibration(_), Self::Vibration(_)) = (self, alone) else {
            return Sameness::Different;
        };
        let difference = |(a, b): (&f64, &f64)| {
            let scale = a.abs().max(b.abs());
            if a.to_bits() == b.to_bits() || scale <= f64::MIN_POSITIVE {
                0.0
            } else {
                (a - b).abs() / scale
            }
        };
        // NaN beside a number is a difference without a size.
        let most = mine
            .iter()
            .zip(&theirs)
            .map(difference)
            .fold(0.0, |most: f64, one| {
                if one.is_nan() {
                    f64::INFINITY
                } else {
                    most.max(one)
                }
            });
        if most <= DIFFERENCE_MAX {
            Sameness::Near(most)
        } else {
            Sameness::Different
        }
    }

    /// Returns a summary for a person.
    #[must_use]
    pub fn summary(&self, settings: &Settings, readings: &Readings) -> Value {
        let at = |found: Option<(usize, f64)>| {
            found.map(|(row, value)| json!({"row": row, "value": value}))
        };
        match self {
            Self::Vibration(answer) => {
                let count = readings.names.len();
                let columns = readings.names.iter().enumerate().map(|(column, name)| {
                    let summary = answer.summary(count, column);
                    json!({
                        "column": name,
                        "rms_max": at(summary.rms_max),
                        "kurtosis_max": at(summary.kurtosis_max),
                        "frequency_median": summary.frequency_median,
                        "frequency_unit": if readings.step_s.is_some() { "Hz" } else { "cycles per reading" },
                    })
                });
                json!({"windows": answer.starts.len(), "columns": columns.collect::<Vec<_>>()})
            }
            Self::KMeans(answer) => {
                let clusters = answer.clusters.iter().map(|cluster| {
                    let centre: Vec<Value> = readings
                        .names
                        .iter()
                        .zip(cluster.centre.chunks(k_means::FEATURES))
                        .map(|(name, values)| {
                            let named = k_means::NAMES.iter().zip(values);
                            let named: serde_json::Map<String, Value> = named
                                .map(|(name, value)| ((*name).to_owned(), json!(value)))
                                .collect();
                            json!({"column": name, "centre": named})
                        })
                        .collect();
                    json!({"windows": cluster.windows, "columns": centre})
                });
                let unusual = answer
                    .unusual
                    .iter()
                    .map(|one| json!({"row": one.row, "score": one.score}));
                json!({
                    "windows": answer.windows,
                    "rounds": answer.rounds,
                    "settled": answer.has_settled,
                    "distance": answer.distance,
                    "clusters": clusters.collect::<Vec<_>>(),
                    "unusual": unusual.collect::<Vec<_>>(),
                })
            }
            Self::MatrixProfile(answer) => {
                let pair = |found: Option<(usize, usize, f64)>| {
                    found.map(|(row, other, distance)| json!({"row": row, "like": other, "distance": distance}))
                };
                json!({
                    "windows": answer.correlations.len(),
                    "window": settings.window(),
                    "motif": pair(answer.motif()),
                    "discord": pair(answer.discord()),
                })
            }
        }
    }

    /// Returns its size when sent, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        8 * self.numbers().len() as u64
    }

    /// Returns the rounds of k-means; 0 for other jobs.
    #[must_use]
    pub fn rounds(&self) -> usize {
        match self {
            Self::KMeans(answer) => answer.rounds,
            Self::Vibration(_) | Self::MatrixProfile(_) => 0,
        }
    }

    /// Returns the whole answer as lines of CSV, the headings first. Row numbers are those of the accepted readings,
    /// from 0.
    pub fn table<'a>(&'a self, names: &'a [String]) -> Box<dyn Iterator<Item = String> + 'a> {
        match self {
            Self::Vibration(answer) => {
                let mut head = "row".to_owned();
                for name in names {
                    for feature in vibration::NAMES {
                        // Writing to a text does not fail.
                        write!(head, ",{}", csv(&format!("{name} {feature}"))).ok();
                    }
                }
                let width = names.len().max(1);
                let rows = answer.starts.iter().zip(answer.features.chunks(width));
                let lines =
                    rows.map(|(start, features)| numbers_line(*start, features.iter().flatten()));
                Box::new(std::iter::once(head).chain(lines))
            }
            Self::KMeans(answer) => {
                let mut head = "cluster,windows".to_owned();
                for name in names {
                    for feature in k_means::NAMES {
                        write!(head, ",{}", csv(&format!("{name} {feature}"))).ok();
                    }
                }
                let lines = answer.clusters.iter().enumerate();
                let lines = lines.map(|(at, cluster)| {
                    let windows = cluster.windows as f64;
                    numbers_line(at, std::iter::once(&windows).chain(&cluster.centre))
                });
                Box::new(std::iter::once(head).chain(lines))
            }
            Self::MatrixProfile(answer) => {
                let rows = 0..answer.correlations.len();
                let lines = rows.map(|row| {
                    let distance = answer
                        .distance(row)
                        .map_or(String::new(), |distance| distance.to_string());
                    let like =
                        answer.neighbours[row].map_or(String::new(), |like| like.to_string());
                    format!("{row},{distance},{like}")
                });
                Box::new(std::iter::once("row,distance,like".to_owned()).chain(lines))
            }
        }
    }
}

fn numbers_line<'a>(first: usize, values: impl Iterator<Item = &'a f64>) -> String {
    let mut line = first.to_string();
    for value in values {
        write!(line, ",{value}").ok();
    }
    line
}

/// Returns a field of CSV (RFC 4180).
fn csv(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(correlations: Vec<f64>) -> Answer {
        Answer::MatrixProfile(matrix_profile::Answer {
            window: 8,
            neighbours: vec![Some(1); correlations.len()],
            correlations,
        })
    }

    fn vibration(features: [f64; vibration::FEATURES]) -> Answer {
        Answer::Vibration(vibration::Answer {
            starts: vec![0],
            features: vec![features],
        })
    }

    #[test]
    fn spectra_may_differ_slightly_and_other_answers_may_not() {
        let next = f64::from_bits(0.5_f64.to_bits() + 1);
        assert_eq!(
            profile(vec![0.5]).compare(&profile(vec![0.5])),
            Sameness::Same
        );
        assert_eq!(
            profile(vec![0.5]).compare(&profile(vec![next])),
            Sameness::Different
        );
        assert_eq!(
            profile(vec![0.5]).compare(&profile(vec![0.5, 0.5])),
            Sameness::Different
        );
        let mut features = [0.5; vibration::FEATURES];
        let wanted = vibration(features);
        features[3] = next;
        assert!(
            matches!(vibration(features).compare(&wanted), Sameness::Near(by) if by > 0.0 && by < 1e-15)
        );
        for wrong in [0.500_001, f64::NAN, f64::INFINITY, -0.5] {
            features[3] = wrong;
            assert_eq!(
                vibration(features).compare(&wanted),
                Sameness::Different,
                "{wrong}"
            );
        }
        assert_eq!(wanted.compare(&profile(vec![0.5])), Sameness::Different);
    }

    #[test]
    fn tables_have_a_line_for_each_window_or_cluster() {
        let names = vec!["a,b".to_owned()];
        let lines: Vec<String> = vibration([0.5; vibration::FEATURES])
            .table(&names)
            .collect();
        assert!(lines[0].starts_with("row,\"a,b mean\",\"a,b rms\","));
        assert_eq!(lines[1], format!("0{}", ",0.5".repeat(vibration::FEATURES)));
        let lines: Vec<String> = profile(vec![1.0, f64::NEG_INFINITY])
            .table(&names)
            .collect();
        assert_eq!(lines, ["row,distance,like", "0,0,1", "1,,1"]);
    }
}
