//! A question as JSON: what `keel advise --job` reads. `docs/cluster.md` describes it.

use super::input::{INPUTS, Input, Machine, Minimise, Origin, Privacy, Question};
use crate::Error;
use crate::error::excerpt;
use crate::model::Boundary;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt;

/// The supported version.
const VERSION: u64 = 1;

/// Largest size of a question, in bytes.
const FILE_BYTES_MAX: usize = 1 << 20;

/// Size of the longest text, in bytes.
const TEXT_BYTES_MAX: usize = 256;

// Without `expecting`, errors name these private types.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Versioned {
    version: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct File {
    #[serde(rename = "version")]
    _version: u64,
    name: String,
    #[serde(default)]
    boards_max: Option<u32>,
    #[serde(default)]
    boundary: Option<BoundaryName>,
    #[serde(default)]
    machine: Option<MachineName>,
    #[serde(default)]
    data_may_go: Option<PrivacyName>,
    #[serde(default)]
    deadline_s: Option<f64>,
    #[serde(default)]
    minimise: Option<MinimiseName>,
    #[serde(default)]
    confidence: Option<f64>,
    #[serde(default)]
    confidence_floor: Option<f64>,
    #[serde(default)]
    late_penalty: Option<f64>,
    inputs: Inputs,
}

/// The inputs by name. A map of serde would take the last of two of one name silently.
struct Inputs(BTreeMap<String, Figure>);

impl<'de> Deserialize<'de> for Inputs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(InputsVisitor)
    }
}

struct InputsVisitor;

impl<'de> Visitor<'de> for InputsVisitor {
    type Value = Inputs;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Inputs, A::Error> {
        let mut inputs = BTreeMap::new();
        while let Some((name, figure)) = members.next_entry::<String, Figure>()? {
            let duplicate = format!("duplicate input `{}`", excerpt(&name));
            if inputs.insert(name, figure).is_some() {
                return Err(A::Error::custom(duplicate));
            }
        }
        Ok(Inputs(inputs))
    }
}

#[derive(Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "an object such as {\"value\": 1, \"measured\": \"how\"}"
)]
struct Figure {
    value: f64,
    #[serde(default)]
    measured: Option<String>,
    #[serde(default)]
    stated: Option<String>,
    #[serde(default)]
    assumed: Option<String>,
    #[serde(default)]
    spread: Option<f64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum BoundaryName {
    BoardsOn,
    BoardsForJob,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum MachineName {
    Dedicated,
    Shared,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum PrivacyName {
    Board,
    Neighbours,
    Anywhere,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum MinimiseName {
    Cost,
    Energy,
    Time,
}

/// Reads a question. Inputs may be missing: [`Question::check`] names those that are needed.
///
/// # Errors
/// Another version; an unknown member; a figure out of its range, or without its origin.
pub fn parse_question(text: &str) -> Result<Question, Error> {
    if text.len() > FILE_BYTES_MAX {
        let (value, limit) = (text.len() as u64, FILE_BYTES_MAX as u64);
        return Err(Error::Limit {
            what: "bytes of a question",
            value,
            limit,
        });
    }
    // Some editors begin a file with a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let shape = |error: serde_json::Error| {
        let text = error.to_string();
        let end = text.rfind(" at line ").unwrap_or(text.len());
        let mut wrong: String = text[..end]
            .chars()
            .filter(|letter| !letter.is_control())
            .collect();
        for (ending, words) in [
            ("expected u32", "expected a whole number"),
            ("expected u64", "expected a whole number"),
            ("expected f64", "expected a number"),
            ("expected a map", "expected an object"),
        ] {
            if let Some(before) = wrong.strip_suffix(ending) {
                wrong = format!("{before}{words}");
            }
        }
        Error::malformed(error.line().max(1), wrong)
    };
    let Versioned { version } = serde_json::from_str(text).map_err(shape)?;
    if version != VERSION {
        return Err(Error::Version {
            version,
            known: VERSION,
        });
    }
    let file: File = serde_json::from_str(text).map_err(shape)?;
    check_text("name", &file.name)?;
    let mut question = Question::new(file.name);
    question.boards_max = file.boards_max.unwrap_or(1);
    question.deadline_s = file.deadline_s;
    question.confidence = file.confidence.unwrap_or(question.confidence);
    // If the requested confidence is below the usual floor, the floor is lower, too.
    let floor = question.confidence_floor.min(question.confidence);
    question.confidence_floor = file.confidence_floor.unwrap_or(floor);
    question.late_penalty = file.late_penalty.unwrap_or(question.late_penalty);
    question.boundary = match file.boundary {
        Some(BoundaryName::BoardsForJob) => Boundary::BoardsForJob,
        Some(BoundaryName::BoardsOn) | None => Boundary::BoardsOn,
    };
    question.machine = match file.machine {
        Some(MachineName::Dedicated) => Machine::Dedicated,
        Some(MachineName::Shared) | None => Machine::Shared,
    };
    question.privacy = match file.data_may_go {
        Some(PrivacyName::Board) => Privacy::Board,
        Some(PrivacyName::Neighbours) => Privacy::Neighbours,
        Some(PrivacyName::Anywhere) | None => Privacy::Anywhere,
    };
    question.minimise = match file.minimise {
        Some(MinimiseName::Cost) => Minimise::Cost,
        Some(MinimiseName::Time) => Minimise::Time,
        Some(MinimiseName::Energy) | None => Minimise::Energy,
    };
    for (name, figure) in file.inputs.0 {
        let Some(input) = Input::from_name(&name) else {
            return Err(Error::invalid(
                format!("`{}`", excerpt(&name)),
                "is no input",
            ));
        };
        let origin = match (figure.measured, figure.stated, figure.assumed) {
            (Some(by), None, None) => Origin::Measured(by),
            (None, Some(by), None) => Origin::Stated(by),
            (None, None, Some(after)) => Origin::Assumed(after),
            _ => {
                let wrong = "must say one of `measured`, `stated` and `assumed`, with the source as its text";
                return Err(Error::invalid(name, wrong));
            }
        };
        let (Origin::Measured(source) | Origin::Stated(source) | Origin::Assumed(source)) = &origin;
        check_text(&name, source)?;
        match figure.spread {
            Some(spread) => question.give_with_spread(input, figure.value, origin, spread)?,
            None => question.give(input, figure.value, origin)?,
        }
    }
    Ok(question)
}

/// Returns a question as JSON that [`parse_question`] reads.
///
/// # Errors
/// A text in it could not be read back.
pub fn question_text(question: &Question) -> Result<String, Error> {
    check_text("name", &question.name)?;
    let mut inputs = serde_json::Map::new();
    for input in INPUTS {
        let Some(given) = &question.given[input as usize] else {
            continue;
        };
        let (origin, source) = match &given.origin {
            Origin::Measured(by) => ("measured", by),
            Origin::Stated(by) => ("stated", by),
            Origin::Assumed(after) => ("assumed", after),
        };
        check_text(input.name(), source)?;
        let figure = json!({"value": given.value, origin: source, "spread": given.spread});
        inputs.insert(input.name().to_owned(), figure);
    }
    let mut file = json!({
        "version": VERSION,
        "name": question.name,
        "boards_max": question.boards_max,
        "boundary": match question.boundary {
            Boundary::BoardsOn => "boards-on",
            Boundary::BoardsForJob => "boards-for-job",
        },
        "machine": match question.machine {
            Machine::Dedicated => "dedicated",
            Machine::Shared => "shared",
        },
        "data_may_go": match question.privacy {
            Privacy::Board => "board",
            Privacy::Neighbours => "neighbours",
            Privacy::Anywhere => "anywhere",
        },
        "minimise": match question.minimise {
            Minimise::Cost => "cost",
            Minimise::Energy => "energy",
            Minimise::Time => "time",
        },
        "confidence": question.confidence,
        "confidence_floor": question.confidence_floor,
        "late_penalty": question.late_penalty,
        "inputs": inputs,
    });
    if let (Some(deadline_s), Some(members)) = (question.deadline_s, file.as_object_mut()) {
        members.insert("deadline_s".to_owned(), json!(deadline_s));
    }
    Ok(format!("{file:#}\n"))
}

fn check_text(what: &str, text: &str) -> Result<(), Error> {
    if text.is_empty() || text.len() > TEXT_BYTES_MAX || text.chars().any(char::is_control) {
        let wrong = format!(
            "has a text that is empty, longer than {TEXT_BYTES_MAX} bytes or has a control character"
        );
        return Err(Error::invalid(what, wrong));
    }
    Ok(())
}
