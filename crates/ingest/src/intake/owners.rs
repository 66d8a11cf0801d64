//! Which series each key belongs to. A template writes less into a key than a line says (the names of tags are left
//! out, values may hold slashes), so it can give one key to two series, whose readings nobody could tell apart later.
//! The first one keeps the key; readings of another are refused.

use std::collections::HashMap;

use super::{EXCERPT_BYTES_MAX, IntakeOptions, Reason, Template};

/// Bytes of what a key is made of, at most: names of tags take room here although they are not in the key.
pub(super) const IDENTITY_BYTES_MAX: usize = 1024;

/// The owner of each key that a template has made. It takes some 200 bytes a key, 1,200 at most, and there are never
/// more keys than the destination has, for each template.
#[derive(Debug, Default)]
pub(super) struct KeyOwners {
    /// The templates that are in use, each with its number.
    templates: Vec<(char, Template)>,
    /// Numbers of the templates, of lines first and then of each subscription. Rules with the same template have the
    /// same number: what they give one key is one series.
    numbers: Vec<char>,
    /// From number and key to what the key is made of, as `Template::identify` writes it.
    owners: HashMap<Box<str>, Box<str>>,
    /// Number and key; used again.
    place: String,
}

impl KeyOwners {
    pub(super) fn new(options: &IntakeOptions) -> Self {
        let mut owners = Self::default();
        owners.reload(options);
        owners
    }

    /// Takes other rules. What a template has given away stays given away as long as a rule has this template.
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

    /// The number of the template of a rule, or of lines that came in by a socket.
    pub(super) fn number(&self, rule: Option<usize>) -> char {
        let place = rule.map_or(0, |rule| rule + 1);
        self.numbers.get(place).copied().unwrap_or_default()
    }

    /// Whether the series may have this key: it has it already, or nobody has.
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

    /// Gives the key to a series that [`check`](Self::check) has let pass.
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

/// An identity for people, short.
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
