//! Series and their keys. A template writes less into a key than a line contains: it leaves out the names of tags, and
//! values may contain slashes. So it can give one key to two series, whose readings could not be told apart later. The
//! first series has the key, which the destination keeps; readings of another one are refused. Series that differ only
//! in what the template leaves out share their key, as its author wants. Readings of the others than the first are
//! counted.
//!
//! **Invariants:** what is kept is the identity that `Template::identify` writes, and the checksum of what [`texts`]
//! says. Both are on flash, so they stay as they are. Nothing is kept where the identity can be read back from each key
//! of the template under any rules. Rules change, and must not mix series then.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use super::{
    Destination, EXCERPT_BYTES_MAX, IntakeOptions, JsonTake, KeyOwner, PayloadKind, Reason,
};

/// What makes keys: the template of a rule, with the names that the rule gives to values of documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source {
    /// Stands for template and names in front of identities, until the rules change.
    pub(super) mark: char,
    /// Stands for them on flash.
    pub(super) template: u32,
    /// Stands for the template alone, if rules that give other names have it, too.
    family: Option<u32>,
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
        let source = |(template, text): &(String, String)| {
            let place = texts.iter().position(|(_, known)| known == text);
            // There are more characters than a configuration can have rules.
            let mark = ('\u{100}'..).nth(place.unwrap_or_default());
            let mut others = texts.iter().filter(|(_, other)| other != text);
            let has_family = others.any(|(other, _)| other == template);
            Source {
                mark: mark.unwrap_or('\u{ff}'),
                template: db::Owner::template_of(text),
                family: has_family.then(|| db::Owner::template_of(template)),
            }
        };
        self.of_rules = texts.iter().map(source).collect();
        let used = &self.of_rules;
        self.firsts
            .retain(|(template, _), _| used.iter().any(|source| source.template == *template));
    }

    /// Forgets the first series of these objects.
    pub(super) fn forget(&mut self, objects: &[u32]) {
        self.firsts
            .retain(|(_, object), _| !objects.contains(object));
    }

    /// Returns what makes the keys of a rule, or of lines from a socket.
    pub(super) fn of(&self, rule: Option<usize>) -> Source {
        let place = rule.map_or(0, |rule| rule + 1);
        let none = Source {
            mark: '\u{ff}',
            template: 0,
            family: None,
        };
        self.of_rules.get(place).copied().unwrap_or(none)
    }

    /// Returns whether another series with this key came first, which differs only in what the template leaves out;
    /// `text` then names both.
    pub(super) fn is_merged(
        &mut self,
        place: (u32, u32),
        whole: &str,
        key: &str,
        text: &mut String,
    ) -> bool {
        let hash = self.hasher.hash_one(whole);
        let Some(first) = self.firsts.get(&place) else {
            let shown = readable(whole).into();
            self.firsts.insert(place, Whole { hash, shown });
            return false;
        };
        let is_merged = first.hash != hash;
        if is_merged {
            *text = both(&readable(whole), &first.shown, key);
        }
        is_merged
    }

    /// Returns the object of a key that a template has made. `owner`: what makes the key, and the series, if this one
    /// cannot be read back from the key.
    ///
    /// # Errors
    /// The reason why there is none; for [`Reason::KeyShared`], `text` names both series.
    pub(super) fn resolve<D: Destination>(
        &self,
        destination: &D,
        key: &str,
        owner: Option<(Source, &str)>,
        text: &mut String,
    ) -> Result<u32, Reason> {
        // A template of which nothing is in the key makes all of them one series.
        let Some((source, series)) = owner.filter(|(_, series)| !series.is_empty()) else {
            return destination.resolve(key);
        };
        let relatives = self.relatives_of(source);
        let owner = KeyOwner {
            template: source.template,
            series,
            relatives: &relatives,
        };
        let resolved = destination.resolve_for(key, owner, text);
        if resolved == Err(Reason::KeyShared) {
            *text = both(&readable(series), &readable(text), key);
        }
        resolved
    }

    /// Returns what stands on flash for rules with the same template and other names. Each of them has owners of its
    /// own, so that a new name leaves the others as they are.
    fn relatives_of(&self, source: Source) -> Vec<u32> {
        let is_relative = |other: &&Source| {
            source.family.is_some()
                && other.family == source.family
                && other.template != source.template
        };
        let relatives = self.of_rules.iter().filter(is_relative);
        relatives.map(|other| other.template).collect()
    }
}

/// Returns two texts for lines and for each subscription. The first is that of the template. The second has the names
/// that the rule gives to values of documents, too. With other names, keys come from other values. A rule that gives no
/// names has the text of its template, so that names of others change nothing for its keys.
fn texts(options: &IntakeOptions) -> Vec<(String, String)> {
    let of_rules = options.subscriptions.iter();
    let of_rules = of_rules.map(|rule| (rule.key.text(), names(&rule.payload)));
    let lines = (options.line_key.text(), None);
    let with_names = |(template, names): (String, Option<String>)| {
        let text = match names {
            Some(names) => [template.as_str(), "\n", names.as_str()].concat(),
            None => template.clone(),
        };
        (template, text)
    };
    std::iter::once(lines)
        .chain(of_rules)
        .map(with_names)
        .collect()
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
    fn texts_for_templates_on_flash_are_pinned() {
        let lines = "x-{measurement}/{pairs}/{values}/{tag:a b}/{field}";
        let rules = vec![
            of("{topic}/{1}/{9}", PayloadKind::Number),
            naming(&[("a.b", Some("n")), ("c*d", None)]),
            naming(&[("e", None)]),
        ];
        let found = texts(&options(lines, rules));
        let named = "{topic}/{path}\n\u{1}a\u{1}b\tn\u{1}c\u{2}d\t";
        let expected = [
            (lines, lines),
            ("{topic}/{1}/{9}", "{topic}/{1}/{9}"),
            ("{topic}/{path}", named),
            ("{topic}/{path}", "{topic}/{path}"),
        ];
        assert_eq!(
            found,
            expected.map(|(one, two)| (one.to_owned(), two.to_owned()))
        );
        assert_eq!(db::Owner::template_of("123456789"), 0xe306_9283);
        // What `{tags}` stands for.
        let tags = options("{measurement}/{tags}/{field}", Vec::new());
        for (form, text) in [
            (TagsForm::Values, "{measurement}/{values}/{field}"),
            (TagsForm::Pairs, "{measurement}/{pairs}/{field}"),
        ] {
            let found = texts(&tags.clone().with_tags(form));
            assert_eq!(found, [(text.to_owned(), text.to_owned())]);
        }
        let parts = "{group}/{edge}/{device}/{place}/{metric}";
        let template = Template::parse(parts, TemplateKind::Sparkplug).expect("a template");
        assert_eq!(template.text(), parts);
    }

    #[test]
    fn names_make_another_source_of_their_own_rule_alone() {
        let (one, other) = (naming(&[("a", Some("n"))]), naming(&[("b", Some("n"))]));
        let plain = naming(&[("a", None)]);
        let of = |rules: &[&SubscriptionRule]| {
            let rules: Vec<SubscriptionRule> = rules.iter().map(|rule| (*rule).clone()).collect();
            let sources = Sources::new(&options("{measurement}", rules.clone()));
            let of_rules = (0..rules.len()).map(|rule| sources.of(Some(rule)));
            (of_rules.collect::<Vec<_>>(), sources.of(None))
        };
        let (all, lines) = of(&[&one, &other, &plain, &one]);
        let numbers: Vec<u32> = all.iter().map(|source| source.template).collect();
        // Alone, in another order, and with more names beside it, a rule is what it was.
        for (place, rule) in [(0, &one), (1, &other), (2, &plain)] {
            assert_eq!(of(&[rule]).0[0].template, numbers[place], "{place}");
        }
        assert_eq!((all[0].mark, numbers[0]), (all[3].mark, numbers[3]));
        let different = [all[0], all[1], all[2], lines];
        for (place, source) in different.iter().enumerate() {
            for other in &different[..place] {
                assert_ne!(source.mark, other.mark);
                assert_ne!(source.template, other.template);
            }
        }
        // Those of one template are relatives.
        let template = Some(db::Owner::template_of("{topic}/{path}"));
        assert!(all.iter().all(|source| source.family == template));
        assert_eq!(lines.family, None);
        assert_eq!(of(&[&plain, &plain]).0[1].family, None);
        let sources = Sources::new(&options(
            "{measurement}",
            vec![self::of("{2}", PayloadKind::Number)],
        ));
        assert_ne!(sources.of(None).mark, sources.of(Some(0)).mark);
    }
}
