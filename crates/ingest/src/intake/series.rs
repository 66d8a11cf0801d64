//! Series and their keys. A template writes less into a key than a line contains (the names of tags are left out,
//! values may contain slashes), so it can give one key to two series, whose readings could not be told apart later. The
//! first series has the key, which the destination keeps; readings of another one are refused. Series that differ only
//! in what the template leaves out share their key, as its author wants; how many readings come of others than the
//! first is counted.
//!
//! **Invariants:** what is kept is the identity that `Template::identify` writes, and the checksum of what [`texts`]
//! says. Both are on flash, so they stay as they are.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use super::{
    Destination, EXCERPT_BYTES_MAX, IntakeOptions, JsonTake, KeyOwner, PayloadKind, Reason,
};

/// Largest size in bytes of the data that a key is made from: names of tags take room here although they are not in the
/// key.
pub(super) const IDENTITY_BYTES_MAX: usize = 1024;

const _: () = assert!(IDENTITY_BYTES_MAX <= db::SERIES_BYTES_MAX);

/// What makes keys: the template of a rule, with the names that its rules give to values of documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source {
    /// Stands for it in front of identities, until the rules change. Rules with the same template have the same one.
    pub(super) mark: char,
    /// Stands for it on flash.
    pub(super) template: u32,
}

impl Source {
    /// Returns an identity without its mark, as it is on flash.
    pub(super) fn unmarked(self, identity: &str) -> &str {
        identity.strip_prefix(self.mark).unwrap_or_default()
    }
}

/// What makes the keys of each rule, and the first series of each key.
#[derive(Debug, Default)]
pub(super) struct Sources {
    /// That of lines, then that of each subscription.
    of_rules: Vec<Source>,
    /// By template and object, where a template leaves something out: the first series since the start. It takes about
    /// 200 bytes per key.
    firsts: HashMap<(u32, u32), Whole>,
    /// Hashes whole identities, with a random seed: senders must not be able to choose two with the same hash.
    hasher: RandomState,
}

/// A series with everything that its sender says. The text can be long, and only readings are counted by it, so a hash
/// stands for it.
#[derive(Debug)]
struct Whole {
    hash: u64,
    /// The beginning of it, for people.
    shown: Box<str>,
}

impl Sources {
    pub(super) fn new(options: &IntakeOptions) -> Self {
        let mut sources = Self::default();
        sources.reload(options);
        sources
    }

    /// Sets new rules.
    pub(super) fn reload(&mut self, options: &IntakeOptions) {
        let texts = texts(options);
        let source = |text: &String| {
            let place = texts.iter().position(|known| known == text);
            // There are more characters than a configuration can have rules.
            let mark = ('\u{100}'..).nth(place.unwrap_or_default());
            Source {
                mark: mark.unwrap_or('\u{ff}'),
                template: db::Owner::template_of(text),
            }
        };
        self.of_rules = texts.iter().map(source).collect();
        let used = &self.of_rules;
        self.firsts
            .retain(|(template, _), _| used.iter().any(|source| source.template == *template));
    }

    /// Returns what makes the keys of a rule, or of lines from a socket.
    pub(super) fn of(&self, rule: Option<usize>) -> Source {
        let place = rule.map_or(0, |rule| rule + 1);
        let none = Source {
            mark: '\u{ff}',
            template: 0,
        };
        self.of_rules.get(place).copied().unwrap_or(none)
    }

    /// Returns whether another series with this key came first, which differs only in what the template leaves out;
    /// `text` then names both.
    pub(super) fn is_merged(
        &mut self,
        (template, object): (u32, u32),
        whole: &str,
        key: &str,
        text: &mut String,
    ) -> bool {
        let hash = self.hasher.hash_one(whole);
        let Some(first) = self.firsts.get(&(template, object)) else {
            let shown = readable(whole).into();
            self.firsts
                .insert((template, object), Whole { hash, shown });
            return false;
        };
        let is_merged = first.hash != hash;
        if is_merged {
            *text = both(&readable(whole), &first.shown, key);
        }
        is_merged
    }
}

/// Returns the object of a key that a template has made, with its owner if the identity cannot be read back from the
/// key.
///
/// # Errors
/// The reason why there is none; for [`Reason::KeyShared`], `text` names both series.
pub(super) fn resolve<D: Destination>(
    destination: &D,
    key: &str,
    owner: Option<KeyOwner<'_>>,
    text: &mut String,
) -> Result<u32, Reason> {
    // A template of which nothing is in the key makes all of them one series.
    let Some(owner) = owner.filter(|owner| !owner.series.is_empty()) else {
        return destination.resolve(key);
    };
    let resolved = destination.resolve_for(key, owner, text);
    if resolved == Err(Reason::KeyShared) {
        *text = both(&readable(owner.series), &readable(text), key);
    }
    resolved
}

/// Returns a text for lines and for each subscription: the template, and what its rules name values of documents. All
/// rules with one template have one text, whatever their order, because readings for one of its keys belong to one
/// series; with other names, keys come from other values.
fn texts(options: &IntakeOptions) -> Vec<String> {
    let of_rules = options.subscriptions.iter();
    let of_rules = of_rules.map(|rule| (rule.key.text(), names(&rule.payload)));
    let lines = (options.line_key.text(), None);
    let all: Vec<(String, Option<String>)> = std::iter::once(lines).chain(of_rules).collect();
    let text = |template: &String| {
        let of_template = all.iter().filter(|(other, _)| other == template);
        let mut names: Vec<&str> = of_template
            .filter_map(|(_, names)| names.as_deref())
            .collect();
        names.sort_unstable();
        names.dedup();
        let mut text = template.clone();
        for names in names {
            text.push('\n');
            text.push_str(names);
        }
        text
    };
    all.iter().map(|(template, _)| text(template)).collect()
}

/// Returns the names that a rule gives to values of documents; `None` if it gives none.
fn names(payload: &PayloadKind) -> Option<String> {
    let PayloadKind::Json(json) = payload else {
        return None;
    };
    let JsonTake::Several(rules) = &json.take else {
        return None;
    };
    let mut text = String::new();
    let mut any = false;
    for own in &rules.own {
        own.pattern.push_text(&mut text);
        text.push('\t');
        if let Some(name) = &own.name {
            text.push_str(name);
            any = true;
        }
    }
    any.then_some(text)
}

/// Says that a series has the key of the first one.
fn both(series: &str, first: &str, key: &str) -> String {
    [series, " has the key of ", first, ": ", key].concat()
}

/// Returns a short, readable form of an identity.
fn readable(identity: &str) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intake::{
        JsonRule, MemberRule, MemberRules, PathPattern, Retained, SubscriptionRule, TagsForm,
        Template, TemplateKind, ValueRule,
    };

    fn of(template: &str, payload: PayloadKind) -> SubscriptionRule {
        let kind = payload.template_kind();
        SubscriptionRule {
            filter: "#".to_owned(),
            key: Template::parse(template, kind).expect("a template"),
            payload,
            retained: Retained::default(),
        }
    }

    fn options(line: &str, subscriptions: Vec<SubscriptionRule>) -> IntakeOptions {
        IntakeOptions {
            line_key: Template::parse(line, TemplateKind::Line).expect("a template"),
            subscriptions,
            ..IntakeOptions::default()
        }
    }

    /// A rule for several values, some of which it names.
    fn naming(named: &[(&str, Option<&str>)]) -> SubscriptionRule {
        let own = named.iter().map(|(path, name)| MemberRule {
            pattern: PathPattern::parse(path).expect("a pattern"),
            name: name.map(str::to_owned),
            value: ValueRule::default(),
        });
        let rules = MemberRules {
            own: own.collect(),
            ..MemberRules::default()
        };
        let rule = JsonRule {
            take: JsonTake::Several(Box::new(rules)),
            ..JsonRule::one("v", None)
        };
        of("{topic}/{path}", PayloadKind::Json(rule))
    }

    /// A difference makes every store forget which series has which key.
    #[test]
    fn what_stands_for_templates_on_flash_is_what_it_was() {
        let lines = "x-{measurement}/{pairs}/{values}/{tag:a b}/{field}";
        let rules = vec![
            of("{topic}/{1}/{9}", PayloadKind::Number),
            naming(&[("a.b", Some("n")), ("c*d", None)]),
            naming(&[("e", None)]),
        ];
        let found = texts(&options(lines, rules));
        let named = "{topic}/{path}\n\u{1}a\u{1}b\tn\u{1}c\u{2}d\t";
        assert_eq!(found, [lines, "{topic}/{1}/{9}", named, named]);
        assert_eq!(db::Owner::template_of("123456789"), 0xe306_9283);
        // What `{tags}` stands for.
        let tags = options("{measurement}/{tags}/{field}", Vec::new());
        for (form, text) in [
            (TagsForm::Values, "{measurement}/{values}/{field}"),
            (TagsForm::Pairs, "{measurement}/{pairs}/{field}"),
        ] {
            assert_eq!(texts(&tags.clone().with_tags(form)), [text]);
        }
        let parts = "{group}/{edge}/{device}/{place}/{metric}";
        let template = Template::parse(parts, TemplateKind::Sparkplug).expect("a template");
        assert_eq!(template.text(), parts);
    }

    #[test]
    fn rules_with_one_template_are_one_source_whatever_their_order() {
        let (one, other) = (naming(&[("a", Some("n"))]), naming(&[("b", Some("n"))]));
        let lines = "{measurement}";
        let both = texts(&options(lines, vec![one.clone(), other.clone()]));
        assert_eq!(
            both,
            texts(&options(lines, vec![other.clone(), one.clone()]))
        );
        assert_eq!(both[1], both[2]);
        let single = texts(&options(lines, vec![one]));
        assert_ne!(both[1], single[1]);
        assert_ne!(single[1], texts(&options(lines, vec![other]))[1]);
        let sources = Sources::new(&options(lines, vec![of("{2}", PayloadKind::Number)]));
        assert_ne!(sources.of(None), sources.of(Some(0)));
        assert_ne!(sources.of(None).mark, sources.of(Some(0)).mark);
    }
}
