//! Keys and input of all sources in the status.

use super::{NodeFigures, RefusalReason};
use ingest::intake::{IntakeCounters, TagsForm};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Keys.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct KeyFigures {
    /// Keys that exist.
    pub count: u64,
    /// The most keys (`keys.keys_max`).
    pub count_max: u64,
    /// Bytes that their names take.
    pub name_bytes: u64,
    /// Bytes that their names may take.
    pub name_bytes_max: u64,
    /// Whether the first reading of a key makes it.
    pub auto_create: bool,
    /// What `{tags}` of templates stands for in this store: `pairs` or `values`.
    pub tags_form: String,
    /// What to write into the configuration, and whether the store's mark cannot be read. Null if new stores have the
    /// same form and it can be read, or no key has `{tags}`.
    pub tags_note: Option<String>,
}

/// Input of all sources.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct IntakeFigures {
    /// Readings taken.
    pub readings: u64,
    /// Readings dropped to reduce load; not included in `readings`.
    pub readings_shed: u64,
    /// Messages of brokers.
    pub messages: u64,
    /// Lines of all sources of lines.
    pub lines: u64,
    /// Readings of messages that the broker had retained; included in `readings`.
    pub retained_taken: u64,
    /// Retained messages of the broker, skipped because of `retained = "skip"`.
    pub retained_skipped: u64,
    /// Readings whose key another series had first, which differs only in what the template leaves out; included in
    /// `readings`.
    pub key_merged: u64,
    /// The latest two such series, with their key; null if there are none.
    pub key_merged_last: Option<String>,
    /// Bad input, in total.
    pub refused_total: u64,
    /// Bad input by reason.
    pub refused: BTreeMap<String, u64>,
    /// The beginning of the latest refused input by reason, if one is kept.
    pub refused_last: BTreeMap<String, String>,
}

impl IntakeFigures {
    /// Returns the bad input of one reason.
    pub(super) fn refused_for(&self, reason: RefusalReason) -> u64 {
        self.refused.get(reason.name()).copied().unwrap_or_default()
    }
}

impl KeyFigures {
    /// Sets what `{tags}` of templates stands for, and what the operator should know of it.
    pub(crate) fn take_form(&mut self, form: TagsForm, note: Option<String>) {
        self.tags_form = match form {
            TagsForm::Pairs => "pairs",
            TagsForm::Values => "values",
        }
        .to_owned();
        self.tags_note = note;
    }
}

impl NodeFigures {
    /// Copies the counters of the intake.
    pub(crate) fn take_intake(&mut self, counters: &IntakeCounters) {
        self.intake = IntakeFigures {
            readings: counters.readings(),
            readings_shed: counters.shed(),
            messages: counters.messages(),
            lines: counters.lines(),
            retained_taken: counters.retained_taken(),
            retained_skipped: counters.retained_skipped(),
            key_merged: counters.merged(),
            key_merged_last: Some(counters.merged_last()).filter(|last| !last.is_empty()),
            refused_total: counters.refused_total(),
            ..IntakeFigures::default()
        };
        for reason in RefusalReason::ALL {
            let name = reason.name().to_owned();
            let excerpt = counters.excerpt(reason);
            if !excerpt.is_empty() {
                self.intake.refused_last.insert(name.clone(), excerpt);
            }
            self.intake.refused.insert(name, counters.refused(reason));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::tests::well;
    use crate::status::{Report, State};

    #[test]
    fn retained_messages_of_the_broker_are_counted() {
        let report = Report::new(well());
        let text = report.text();
        assert!(text.contains(" readings (4 retained) from "), "{text}");
        assert!(text.contains(", 2 retained left out"), "{text}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["intake"]["retained_taken"], 4);
        let mut figures = well();
        figures.intake = IntakeFigures::default();
        assert!(!Report::new(figures).text().contains("retained"));
    }

    #[test]
    fn readings_that_share_a_key_on_purpose_are_said_and_degrade_nothing() {
        let mut figures = well();
        assert!(!Report::new(figures.clone()).text().contains("key_merged"));
        figures.intake.key_merged = 1200;
        figures.intake.key_merged_last = Some("m,a=2 v has the key of m,a=1 v: m/v".to_owned());
        let report = Report::new(figures);
        assert_eq!(report.state, State::Ok);
        let text = report.text();
        let said = " key_merged 1,200 readings, last: m,a=2 v has the key of m,a=1 v: m/v\n";
        assert!(text.contains(said), "{text}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["intake"]["key_merged"], 1200);
    }

    #[test]
    fn a_form_that_new_stores_do_not_have_is_reported_without_degradation() {
        let mut figures = well();
        let line = "key = \"{measurement}/{values}/{field}\"";
        figures
            .keys
            .take_form(TagsForm::Values, Some(format!("write {line}")));
        let report = Report::new(figures);
        assert_eq!(report.state, State::Ok);
        let text = report.text();
        assert!(
            text.contains(&format!("          write {line}\n")),
            "{text}"
        );
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["keys"]["tags_form"], "values");
        assert_eq!(json["keys"]["tags_note"], format!("write {line}"));
    }
}
