//! Which series owns each key. A template writes less into a key than a line contains (the names of tags are left out,
//! values may contain slashes), so it can give one key to two series, whose readings could not be told apart later. The
//! first series keeps the key; readings of another one are refused. Series that differ only in what the template leaves
//! out share their key, as its author wants; how many readings come of others than the first is counted.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use super::{
    EXCERPT_BYTES_MAX, IntakeOptions, JsonTake, PathPattern, PayloadKind, Reason, Template,
};

/// Largest size in bytes of the data that a key is made from: names of tags take room here although they are not in the
/// key.
pub(super) const IDENTITY_BYTES_MAX: usize = 1024;

/// The owner of each key that a template has created, unless what the template names can be read back from its keys. It
/// takes about 200 bytes per key, 1,300 at most. For each template there are never more keys than the destination has.
#[derive(Debug, Default)]
pub(super) struct KeyOwners {
    /// The templates in use with their names, each with its number.
    sources: Vec<(char, Source)>,
    /// Numbers of the templates: first that of lines, then that of each subscription. Rules with the same template have
    /// the same number: readings for one of its keys belong to one series.
    numbers: Vec<char>,
    /// By number and key.
    owners: HashMap<Box<str>, Owner>,
    /// Number and key; a reused buffer.
    place: String,
    /// Hashes whole identities, with a random seed: senders must not be able to choose two with the same hash.
    hasher: RandomState,
}

/// The first series of a key.
#[derive(Debug)]
struct Owner {
    /// The data that the key is made from, as `Template::identify` writes it.
    identity: Box<str>,
    /// Of a template that leaves something out: the series with that.
    whole: Option<Whole>,
}

/// A series with everything that its sender says. The text can be long, and only readings are counted by it, so a hash
/// stands for it.
#[derive(Debug)]
struct Whole {
    hash: u64,
    /// The beginning of it, for people.
    shown: Box<str>,
}

/// What a reading is of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Series<'a> {
    /// What `Template::identify` writes, behind the number of the template.
    pub(super) identity: &'a str,
    /// What `Template::identify_whole` writes, likewise, if the template leaves something out.
    pub(super) whole: Option<&'a str>,
}

/// What keys are made by.
#[derive(Debug)]
struct Source {
    template: Template,
    /// What its rules name values of documents: for each rule that names some, its tables in their order.
    names: Vec<Names>,
}

type Names = Vec<(PathPattern, Option<String>)>;

/// The order of rules does not count.
impl PartialEq for Source {
    fn eq(&self, other: &Self) -> bool {
        self.template == other.template
            && self.names.len() == other.names.len()
            && self.names.iter().all(|names| other.names.contains(names))
    }
}

/// Returns the different sources, and for lines and for each subscription the place of its source.
fn sources(options: &IntakeOptions) -> (Vec<Source>, Vec<usize>) {
    let of_rules = options.subscriptions.iter();
    let of_rules = of_rules.map(|rule| (&rule.key, Some(&rule.payload)));
    let mut sources: Vec<Source> = Vec::new();
    let mut places = Vec::new();
    for (template, payload) in std::iter::once((&options.line_key, None)).chain(of_rules) {
        let names: Names = match payload {
            Some(PayloadKind::Json(json)) => match &json.take {
                JsonTake::Several(rules) => {
                    let own = rules.own.iter();
                    own.map(|own| (own.pattern.clone(), own.name.clone()))
                        .collect()
                }
                JsonTake::One(..) => Vec::new(),
            },
            _ => Vec::new(),
        };
        let known = sources.iter().position(|known| known.template == *template);
        let place = known.unwrap_or(sources.len());
        if known.is_none() {
            sources.push(Source {
                template: template.clone(),
                names: Vec::new(),
            });
        }
        if let Some(source) = sources.get_mut(place)
            && names.iter().any(|(_, name)| name.is_some())
            && !source.names.contains(&names)
        {
            source.names.push(names);
        }
        places.push(place);
    }
    (sources, places)
}

impl KeyOwners {
    pub(super) fn new(options: &IntakeOptions) -> Self {
        let mut owners = Self::default();
        owners.reload(options);
        owners
    }

    /// Sets new rules. Keys that a template has given stay owned as long as rules have this template and give the same
    /// names to paths: with other names, keys come from other values.
    pub(super) fn reload(&mut self, options: &IntakeOptions) {
        let (wanted, places) = sources(options);
        let known = &mut self.sources;
        known.retain(|(_, source)| wanted.contains(source));
        self.owners.retain(|place, _| {
            let number = place.chars().next().unwrap_or_default();
            known.iter().any(|(used, _)| *used == number)
        });
        let mut numbers = Vec::new();
        for source in wanted {
            let number = match known.iter().find(|(_, one)| *one == source) {
                Some((number, _)) => *number,
                None => {
                    let is_free = |number: &char| known.iter().all(|(used, _)| used != number);
                    // There are more characters than a configuration can have rules.
                    let number = ('\u{100}'..).find(is_free).unwrap_or('\u{ff}');
                    known.push((number, source));
                    number
                }
            };
            numbers.push(number);
        }
        let number_at = |place: &usize| numbers.get(*place).copied().unwrap_or_default();
        self.numbers = places.iter().map(number_at).collect();
    }

    /// Returns the number of the template of a rule, or of lines from a socket.
    pub(super) fn number(&self, rule: Option<usize>) -> char {
        let place = rule.map_or(0, |rule| rule + 1);
        self.numbers.get(place).copied().unwrap_or_default()
    }

    /// Checks that the series may have this key: the series already owns it, or the key has no owner. Returns whether
    /// another series, which differs only in what the template leaves out, came first; `text` then names both.
    ///
    /// # Errors
    /// [`Reason::KeyShared`]; `text` then names both series.
    pub(super) fn check(
        &mut self,
        number: char,
        key: &str,
        series: Series<'_>,
        text: &mut String,
    ) -> Result<bool, Reason> {
        self.set_place(number, key);
        let Some(owner) = self.owners.get(self.place.as_str()) else {
            return Ok(false);
        };
        if *owner.identity != *series.identity {
            let first = readable(number, &owner.identity);
            write_both(text, &readable(number, series.identity), &first, key);
            return Err(Reason::KeyShared);
        }
        let (Some(whole), Some(first)) = (series.whole, &owner.whole) else {
            return Ok(false);
        };
        if self.hasher.hash_one(whole) == first.hash {
            return Ok(false);
        }
        write_both(text, &readable(number, whole), &first.shown, key);
        Ok(true)
    }

    /// Gives the key to a series that [`check`](Self::check) has accepted.
    pub(super) fn keep(&mut self, number: char, key: &str, series: Series<'_>) {
        self.set_place(number, key);
        if !self.owners.contains_key(self.place.as_str()) {
            let whole = series.whole.map(|whole| Whole {
                hash: self.hasher.hash_one(whole),
                shown: readable(number, whole).into(),
            });
            let owner = Owner {
                identity: series.identity.into(),
                whole,
            };
            self.owners.insert(self.place.as_str().into(), owner);
        }
    }

    fn set_place(&mut self, number: char, key: &str) {
        self.place.clear();
        self.place.push(number);
        self.place.push_str(key);
    }
}

/// Writes that a series has the key of the first one.
fn write_both(text: &mut String, series: &str, first: &str, key: &str) {
    text.clear();
    for part in [series, " has the key of ", first, ": ", key] {
        text.push_str(part);
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
