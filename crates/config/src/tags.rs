//! What `{tags}` in keys of a configuration stands for: it depends on the store.

use super::Config;
use ingest::intake::{TagsForm, Template};

/// Returns what a form writes.
fn meaning(form: TagsForm) -> &'static str {
    match form {
        TagsForm::Pairs => "NAME=VALUE of each tag",
        TagsForm::Values => "the value of each tag",
    }
}

/// Returns the line that says this form in any store.
fn line(key: &str, form: TagsForm) -> String {
    let text = Template::text_with_tags(key, form);
    // A template has no control characters, so a text of JSON is one of TOML.
    let text = serde_json::Value::from(text.as_deref().unwrap_or(key));
    format!("key = {text}")
}

impl Config {
    /// Returns the keys that have `{tags}`, each behind its place.
    #[must_use]
    pub fn keys_with_tags(&self) -> Vec<(String, &str)> {
        let of_lines = std::iter::once(("[line]".to_owned(), self.line.key.as_str()));
        let rules = self.mqtt.iter().flat_map(|mqtt| &mqtt.subscribe);
        let of_rules = rules.map(|rule| {
            let place = format!("mqtt.subscribe {}", rule.filter);
            (place, rule.key.as_str())
        });
        let has_tags =
            |(_, key): &(String, &str)| Template::text_with_tags(key, TagsForm::Values).is_some();
        of_lines.chain(of_rules).filter(has_tags).collect()
    }

    /// Returns the two lines that say in any store what `{tags}` stands for, and how many further keys have it.
    fn lines_for_tags(&self, first: TagsForm, second: TagsForm) -> Option<[String; 4]> {
        let keys = self.keys_with_tags();
        let (place, key) = keys.first()?;
        let more = match keys.len() - 1 {
            0 => String::new(),
            count => format!("; the same holds for {count} more"),
        };
        Some([place.clone(), line(key, first), line(key, second), more])
    }

    /// Returns what the operator of a store with this form should know; `None` if new stores have the same, or no key
    /// has `{tags}`.
    #[must_use]
    pub fn tags_note(&self, form: TagsForm, of_new: TagsForm) -> Option<String> {
        if form == of_new {
            return None;
        }
        let [place, own, others, more] = self.lines_for_tags(form, of_new)?;
        Some(format!(
            "{{tags}} of {place} stands for {} in this store, as when it was made, and for {} in new ones: {own} says \
             the former in any store, {others} the latter and begins new series{more}",
            meaning(form),
            meaning(of_new)
        ))
    }

    /// Returns what `{tags}` stands for, if stores differ in it and a key has it.
    pub(super) fn tags_sentence(&self, of_new: TagsForm) -> Option<String> {
        // No store without keys has been marked by a version with this form.
        if of_new == TagsForm::Values {
            return None;
        }
        let [place, pairs, values, more] =
            self.lines_for_tags(TagsForm::Pairs, TagsForm::Values)?;
        Some(format!(
            "{{tags}} of {place} stands for {} in new stores, {pairs}, and for {} in stores that had keys before, \
             {values}{more}",
            meaning(TagsForm::Pairs),
            meaning(TagsForm::Values)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn config(text: &str) -> Config {
        Config::parse_all(text, Path::new("/etc")).unwrap_or_else(|problems| panic!("{problems:?}"))
    }

    #[test]
    fn both_lines_are_named_where_stores_differ() {
        use TagsForm::{Pairs, Values};
        let default = config("");
        assert_eq!(default.tags_note(Values, Values), None);
        assert_eq!(default.tags_note(Pairs, Pairs), None);
        assert_eq!(
            default.tags_note(Values, Pairs).as_deref(),
            Some(
                "{tags} of [line] stands for the value of each tag in this store, as when it was made, and for \
                 NAME=VALUE of each tag in new ones: key = \"{measurement}/{values}/{field}\" says the former in any \
                 store, key = \"{measurement}/{pairs}/{field}\" the latter and begins new series"
            )
        );
        let note = default.tags_note(Pairs, Values).unwrap();
        assert!(
            note.contains("\"{measurement}/{pairs}/{field}\" says the former"),
            "{note}"
        );
        assert_eq!(default.tags_sentence(Values), None);
        let sentence = default.tags_sentence(Pairs).unwrap();
        assert!(
            sentence.contains("in new stores, key = \"{measurement}/{pairs}/{field}\"")
                && sentence.ends_with("before, key = \"{measurement}/{values}/{field}\""),
            "{sentence}"
        );
        // Keys that say their form depend on no store.
        for key in ["{measurement}/{values}/{field}", "{measurement}/{tag:a}"] {
            let own = config(&format!("[line]\nkey = \"{key}\"\n"));
            assert!(own.keys_with_tags().is_empty());
            assert_eq!(own.tags_note(Values, Pairs), None);
            assert_eq!(own.tags_sentence(Pairs), None);
        }
        let rules = config(
            "[line]\nkey = \"{field}\"\n[mqtt]\naddress = \"h:1883\"\nclient_id = \"k\"\n\
             [[mqtt.subscribe]]\nfilter = \"a/+\"\npayload = \"line\"\nkey = \"{2}/{tags}\"\n\
             [[mqtt.subscribe]]\nfilter = \"b/+\"\npayload = \"line\"\n",
        );
        let note = rules.tags_note(Values, Pairs).unwrap();
        assert!(
            note.starts_with("{tags} of mqtt.subscribe a/+ stands for")
                && note.contains("key = \"{2}/{values}\" says the former")
                && note.ends_with("; the same holds for 1 more"),
            "{note}"
        );
    }
}
