//! Which series each key belongs to. A template writes less into a key than a line says (the names of tags are left
//! out, values may hold slashes), so it can give one key to two series, whose readings nobody could tell apart later.
//! The first one keeps the key; readings of another are refused.

use std::collections::HashMap;

use super::{EXCERPT_BYTES_MAX, IntakeOptions, Reason, Template};

/// Bytes of what a key is made of, at most: names of tags take room here although they are not in the key.
pub(super) const IDENTITY_BYTES_MAX: usize = 1024;

/// The owner of each key that a template has made. It takes some 200 bytes a key, 1,200 at most, and there are never
/// more keys than the destination has, for each template.
#[derive(Debug)]
pub(super) struct KeyOwners {
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
        let of_rules = options.subscriptions.iter().map(|rule| &rule.key);
        let templates: Vec<&Template> =
            std::iter::once(&options.line_key).chain(of_rules).collect();
        let first = |template: &&Template| templates.iter().position(|other| other == template);
        let number = |place: Option<usize>| {
            let place = place.and_then(|place| u32::try_from(place).ok());
            // Nobody has so many rules; those beyond would count as one.
            place
                .and_then(|place| char::from_u32(0x100 + place))
                .unwrap_or('\u{ff}')
        };
        Self {
            numbers: templates
                .iter()
                .map(|template| number(first(template)))
                .collect(),
            owners: HashMap::new(),
            place: String::new(),
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
