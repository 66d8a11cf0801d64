//! Which series owns each key. A template writes less into a key than a line contains (the names of tags are left out,
//! values may contain slashes), so it can give one key to two series, whose readings could not be told apart later. The
//! first series keeps the key; readings of another one are refused.

use std::collections::HashMap;

use super::{EXCERPT_BYTES_MAX, IntakeOptions, Reason, Template};

/// Largest size in bytes of the data that a key is made from: names of tags take room here although they are not in the
/// key.
pub(super) const IDENTITY_BYTES_MAX: usize = 1024;

/// The owner of each key that a template has created. It takes about 200 bytes per key, 1,200 at most. For each
/// template there are never more keys than the destination has.
#[derive(Debug, Default)]
pub(super) struct KeyOwners {
    /// The templates in use, each with its number.
    templates: Vec<(char, Template)>,
    /// Numbers of the templates: first that of lines, then that of each subscription. Rules with the same template have
    /// the same number: readings for one of its keys belong to one series.
    numbers: Vec<char>,
    /// Maps number and key to the data that the key is made from, as `Template::identify` writes it.
    owners: HashMap<Box<str>, Box<str>>,
    /// Number and key; a reused buffer.
    place: String,
}

impl KeyOwners {
    pub(super) fn new(options: &IntakeOptions) -> Self {
        let mut owners = Self::default();
        owners.reload(options);
        owners
    }

    /// Sets new rules. Keys that a template has given stay owned as long as a rule has this template.
    pub(super) fn reload(&mut self, options: &IntakeOptions) {
        let of_rules = options.subscriptions.iter().map(|rule| &rule.key);
        let wanted: Vec<&Template> = std::iter::once(&options.line_key).chain(of_rules).collect();
        let templates = &mut self.templates;
        templates.retain(|(_, template)| wanted.contains(&template));
        self.owners.retain(|place, _| {
            let number = place.chars().next().unwrap_or_default();
            templates.iter().any(|(known, _)| *known == number)
        });
        self.numbers.clear();
        for template in wanted {
            let number = match templates.iter().find(|(_, known)| known == template) {
                Some((number, _)) => *number,
                None => {
                    let is_free = |number: &char| templates.iter().all(|(used, _)| used != number);
                    // There are more characters than a configuration can have rules.
                    let number = ('\u{100}'..).find(is_free).unwrap_or('\u{ff}');
                    templates.push((number, template.clone()));
                    number
                }
            };
            self.numbers.push(number);
        }
    }

    /// Returns the number of the template of a rule, or of lines from a socket.
    pub(super) fn number(&self, rule: Option<usize>) -> char {
        let place = rule.map_or(0, |rule| rule + 1);
        self.numbers.get(place).copied().unwrap_or_default()
    }

    /// Checks that the series may have this key: the series already owns it, or the key has no owner.
    ///
    /// # Errors
    /// [`Reason::KeyShared`]; `text` then names both series.
    pub(super) fn check(
        &mut self,
        number: char,
        key: &str,
        identity: &str,
        text: &mut String,
    ) -> Result<(), Reason> {
        self.set_place(number, key);
        match self.owners.get(self.place.as_str()) {
            Some(owner) if **owner != *identity => {
                text.clear();
                text.push_str(&readable(number, identity));
                text.push_str(" has the key of ");
                text.push_str(&readable(number, owner));
                text.push_str(": ");
                text.push_str(key);
                Err(Reason::KeyShared)
            }
            _ => Ok(()),
        }
    }

    /// Gives the key to a series that [`check`](Self::check) has accepted.
    pub(super) fn keep(&mut self, number: char, key: &str, identity: &str) {
        self.set_place(number, key);
        if !self.owners.contains_key(self.place.as_str()) {
            self.owners
                .insert(self.place.as_str().into(), identity.into());
        }
    }

    fn set_place(&mut self, number: char, key: &str) {
        self.place.clear();
        self.place.push(number);
        self.place.push_str(key);
    }
}

/// Returns a short, readable form of an identity.
fn readable(number: char, identity: &str) -> String {
    let identity = identity.strip_prefix(number).unwrap_or(identity);
    let parts: Vec<&str> = identity
        .split('\n')
        .filter(|part| !part.is_empty())
        .collect();
    let text = parts.join(" ");
    let text = text.trim_start_matches([',', ' ']);
    match text.char_indices().find(|(at, _)| *at > EXCERPT_BYTES_MAX) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}...", &text[..at]),
    }
}
