//! JSON documents: their values and times, found by paths.
//!
//! A path names members (or numbers elements, from 0) separated by dots; a part in quotes may contain dots.

use std::borrow::Cow;
use std::collections::BTreeMap;

use db::Time;
use serde_json::value::RawValue;

use super::template::IDENTITY_BYTES_MAX;
use super::time::{rfc3339, times_ten_to};
use super::value::{Decoded, Sent, ValueRule, finite, of_member, payload_text};
use super::{Reason, excerpt};
use crate::Error;
use crate::line::Precision;

/// Size of the longest JSON payload, in bytes: a parsed document takes up to about 100 times its size.
pub const JSON_BYTES_MAX: usize = 64 << 10;

/// Number of values that a document may hold if several are taken.
pub const JSON_VALUES_MAX: usize = 4096;

/// Deepest nesting of objects and arrays.
const LEVELS_MAX: usize = 127;

/// What is taken from a JSON document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonRule {
    /// Which values are readings.
    pub take: JsonTake,
    /// Path of the time, as a number in `time_unit` since 1970 or as RFC 3339 text; without a path the node gives the
    /// time.
    pub time_field: Option<String>,
    /// Unit of times and offsets that are numbers.
    pub time_unit: Precision,
}

impl JsonRule {
    /// Returns the rule that takes the value at `path` as it is, with its time, in ms, at `time_field`.
    #[must_use]
    pub fn one(path: &str, time_field: Option<&str>) -> Self {
        Self {
            take: JsonTake::One(path.to_owned(), ValueRule::default()),
            time_field: time_field.map(str::to_owned),
            time_unit: Precision::Milliseconds,
        }
    }
}

/// Which values of a document are readings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JsonTake {
    /// The value at this path; an empty path is the document itself.
    One(String, ValueRule),
    /// All values that patterns name.
    Several(Box<MemberRules>),
}

/// Which of several values are readings, and how. A value at the place of a time is none, and neither is `null`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberRules {
    /// Values that are taken.
    pub take: Vec<PathPattern>,
    /// Values that are left out, even if they are taken otherwise.
    pub leave: Vec<PathPattern>,
    /// Values that are taken with rules of their own. The first one that fits decides.
    pub own: Vec<MemberRule>,
    /// How values without rules of their own are read.
    pub value: ValueRule,
    /// An array whose elements hold the values, each with its time.
    pub array: Option<ArrayRule>,
}

/// How values at some paths are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberRule {
    /// The paths.
    pub pattern: PathPattern,
    /// What stands in keys for the part of the path that the pattern names; without it, the path itself.
    pub name: Option<String>,
    /// How they are read.
    pub value: ValueRule,
}

/// An array of readings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayRule {
    /// Its path; empty: the document itself.
    pub path: String,
    /// Path of the time in each element: an offset to the time of the document if that has one.
    pub time_field: String,
}

/// Some paths: a path and all paths below it. A `*` in a part stands for any letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Exact(String),
    /// What a name begins and ends with.
    Around(String, String),
}

/// Why a value is a reading or not: the index of the pattern in its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// One of [`MemberRules::own`] takes it.
    Own(usize),
    /// One of [`MemberRules::take`] takes it.
    Taken(usize),
    /// One of [`MemberRules::leave`] leaves it out.
    Left(usize),
    /// It is a time.
    Time,
    /// No pattern names it.
    Unnamed,
    /// It is a metric of Sparkplug, of which all are taken.
    Metric,
}

impl PathPattern {
    /// Parses a path in which a part without quotes may hold one `*`.
    ///
    /// # Errors
    /// [`Error::Pattern`] says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let fail = |reason| Error::Pattern {
            pattern: excerpt(text.as_bytes()),
            reason,
        };
        let step = |(part, is_quoted): (&str, bool)| {
            if part.is_empty() {
                return Err(fail("a part of the path is empty"));
            }
            if part.chars().any(char::is_control) {
                return Err(fail("it holds control characters"));
            }
            match part.split_once('*').filter(|_| !is_quoted) {
                Some((_, end)) if end.contains('*') => Err(fail("a part holds more than one `*`")),
                Some((begin, end)) => Ok(Step::Around(begin.to_owned(), end.to_owned())),
                None => Ok(Step::Exact(part.to_owned())),
            }
        };
        let steps = parts(text).map(step).collect::<Result<_, _>>()?;
        Ok(Self { steps })
    }

    /// Returns whether it has no `*`.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        let mut steps = self.steps.iter();
        steps.all(|step| matches!(step, Step::Exact(_)))
    }

    /// Appends a text that no other pattern has; its checksum is on flash. No part holds control characters.
    pub(super) fn push_text(&self, text: &mut String) {
        for step in &self.steps {
            let (begin, mark, end) = match step {
                Step::Exact(name) => (name.as_str(), "", ""),
                Step::Around(begin, end) => (begin.as_str(), "\u{2}", end.as_str()),
            };
            text.extend(["\u{1}", begin, mark, end]);
        }
    }

    /// Returns whether the path is the one that the pattern names, or below it.
    fn fits(&self, path: &[Cow<'_, str>]) -> bool {
        let fits_name = |(step, name): (&Step, &Cow<'_, str>)| match step {
            Step::Exact(wanted) => wanted.as_str() == &**name,
            Step::Around(begin, end) => {
                name.len() >= begin.len() + end.len()
                    && name.starts_with(begin.as_str())
                    && name.ends_with(end.as_str())
            }
        };
        path.len() >= self.steps.len() && self.steps.iter().zip(path).all(fits_name)
    }
}

impl MemberRules {
    fn decide(&self, path: &[Cow<'_, str>]) -> Decision {
        let first = |patterns: &[PathPattern]| patterns.iter().position(|one| one.fits(path));
        if let Some(place) = first(&self.leave) {
            return Decision::Left(place);
        }
        if let Some(place) = self.own.iter().position(|own| own.pattern.fits(path)) {
            return Decision::Own(place);
        }
        first(&self.take).map_or(Decision::Unnamed, Decision::Taken)
    }

    /// Returns how the value is read that this decision takes.
    pub(super) fn value_rule(&self, decision: Decision) -> &ValueRule {
        match decision {
            Decision::Own(place) => self.own.get(place).map_or(&self.value, |own| &own.value),
            _ => &self.value,
        }
    }

    /// Returns what stands in a key for a path: its names as levels, or what the operator has named it and the levels
    /// below that.
    fn key_part(&self, path: &[Cow<'_, str>], decision: Decision) -> String {
        let own = match decision {
            Decision::Own(place) => self.own.get(place),
            _ => None,
        };
        let (mut part, rest) = match own.and_then(|own| Some((own.name.as_ref()?, &own.pattern))) {
            Some((name, pattern)) => (name.clone(), path.get(pattern.steps.len()..)),
            None => (String::new(), Some(path)),
        };
        push_levels(&mut part, rest.unwrap_or_default(), db::KEY_BYTES_MAX);
        part
    }
}

/// Appends names as levels of a key. `/` and `%` in a name, and a name that is `+` or `#`, are written as `%` and two
/// hexadecimal digits. So no two paths give the same levels, and a key leads back to its path. It stops above
/// `bytes_max`, where the value must be refused anyway: one long name can be a part of thousands of paths.
pub(super) fn push_levels(part: &mut String, names: &[Cow<'_, str>], bytes_max: usize) {
    let mut is_first = part.is_empty();
    for name in names {
        if part.len() > bytes_max {
            return;
        }
        if !is_first {
            part.push('/');
        }
        is_first = false;
        match &**name {
            "+" => part.push_str("%2B"),
            "#" => part.push_str("%23"),
            name => {
                for letter in name.chars() {
                    if part.len() > bytes_max {
                        return;
                    }
                    match letter {
                        '/' => part.push_str("%2F"),
                        '%' => part.push_str("%25"),
                        other => part.push(other),
                    }
                }
            }
        }
    }
}

/// A value that is to be a reading.
#[derive(Debug, PartialEq)]
pub(super) struct Member<'a> {
    /// Its path as levels, cut where it is too long for an identity.
    pub(super) path: String,
    /// What stands for the path in the key, cut where it is too long for a key.
    pub(super) key_part: String,
    pub(super) decision: Decision,
    pub(super) sent: Sent<'a>,
    /// The time of its element.
    pub(super) time: Option<Time>,
}

/// The readings of a document.
#[derive(Debug, PartialEq)]
pub(super) struct Members<'a> {
    /// The time of all readings that have none of their own.
    pub(super) time: Option<Time>,
    /// Whether each reading has a time of its own.
    pub(super) has_times: bool,
    /// The readings in the order of their names, and why the element with a number gives none.
    pub(super) items: Vec<Result<Member<'a>, (Reason, usize)>>,
}

/// What is called for each value of a document, with its path.
type Found<'f, 'j, 'a> = &'f mut dyn FnMut(&[Cow<'j, str>], Decision, &'j Sent<'a>);

/// A parsed document. Numbers keep their letters, so that none is rounded, and one that is too great for a double
/// affects its own member alone.
#[derive(Debug)]
enum Json<'a> {
    Object(BTreeMap<String, Json<'a>>),
    Array(Vec<Json<'a>>),
    One(Sent<'a>),
    Null,
}

fn parse(bytes: &[u8]) -> Result<Json<'_>, Reason> {
    if bytes.len() > JSON_BYTES_MAX {
        return Err(Reason::Oversized);
    }
    let document: &RawValue =
        serde_json::from_str(payload_text(bytes)?).map_err(|_| Reason::JsonInvalid)?;
    built(document.get(), LEVELS_MAX)
}

/// Builds a part of a document, of which `serde_json` parses one level at a time. `levels`: how many more are allowed.
fn built(text: &str, levels: usize) -> Result<Json<'_>, Reason> {
    let invalid = |_: serde_json::Error| Reason::JsonInvalid;
    let deeper = levels.checked_sub(1).ok_or(Reason::JsonInvalid);
    Ok(match text.as_bytes().first() {
        Some(b'{') => {
            let members: BTreeMap<String, &RawValue> =
                serde_json::from_str(text).map_err(invalid)?;
            let deeper = deeper?;
            let members = members
                .into_iter()
                .map(|(name, raw)| Ok((name, built(raw.get(), deeper)?)));
            Json::Object(members.collect::<Result<_, Reason>>()?)
        }
        Some(b'[') => {
            let elements: Vec<&RawValue> = serde_json::from_str(text).map_err(invalid)?;
            let deeper = deeper?;
            let elements = elements.into_iter().map(|raw| built(raw.get(), deeper));
            Json::Array(elements.collect::<Result<_, Reason>>()?)
        }
        Some(b'"') => Json::One(Sent::Text(serde_json::from_str(text).map_err(invalid)?)),
        Some(b't') => Json::One(Sent::Boolean(true)),
        Some(b'f') => Json::One(Sent::Boolean(false)),
        Some(b'n') => Json::Null,
        _ => Json::One(Sent::Number(text)),
    })
}

impl<'a> Json<'a> {
    /// Returns what lies at a path.
    fn at(&self, path: &str) -> Option<&Self> {
        if path.is_empty() {
            return Some(self);
        }
        parts(path).try_fold(self, |place, (name, _)| match place {
            Self::Object(members) => members.get(name),
            Self::Array(elements) => elements.get(name.parse::<usize>().ok()?),
            Self::One(_) | Self::Null => None,
        })
    }

    /// Returns how many values it holds.
    fn values(&self) -> usize {
        match self {
            Self::Object(members) => members.values().map(Self::values).sum(),
            Self::Array(elements) => elements.iter().map(Self::values).sum(),
            Self::One(_) | Self::Null => 1,
        }
    }

    /// Calls `found` for each value with its path, in the order of names and elements.
    fn each<'j>(
        &'j self,
        path: &mut Vec<Cow<'j, str>>,
        found: &mut dyn FnMut(&[Cow<'j, str>], &'j Sent<'a>),
    ) {
        match self {
            Self::Object(members) => {
                for (name, member) in members {
                    path.push(Cow::Borrowed(name));
                    member.each(path, found);
                    path.pop();
                }
            }
            Self::Array(elements) => {
                for (place, element) in elements.iter().enumerate() {
                    path.push(Cow::Owned(place.to_string()));
                    element.each(path, found);
                    path.pop();
                }
            }
            Self::One(sent) => found(path, sent),
            Self::Null => {}
        }
    }
}

/// Decodes the value at `path`.
///
/// # Errors
/// The reason to refuse the document.
pub(super) fn one(
    payload: &[u8],
    json: &JsonRule,
    path: &str,
    rule: &ValueRule,
) -> Result<Decoded, Reason> {
    let document = parse(payload)?;
    let Some(Json::One(sent)) = document.at(path) else {
        return Err(Reason::JsonFieldMissing);
    };
    let value = of_member(sent, rule)?.into_owned();
    let time = time_of(&document, json)?;
    Ok(Decoded { value, time })
}

/// Returns the values of a document that are readings.
///
/// # Errors
/// The reason to refuse the document as a whole.
pub(super) fn members<'a>(
    payload: &'a [u8],
    json: &JsonRule,
    rules: &MemberRules,
) -> Result<Members<'a>, Reason> {
    let document = parse(payload)?;
    if document.values() > JSON_VALUES_MAX {
        return Err(Reason::Oversized);
    }
    let time = time_of(&document, json)?;
    let mut items = Vec::new();
    let Some(array) = &rules.array else {
        rules.collect(&document, json.time_field.as_deref(), None, &mut items);
        if items.is_empty() {
            return Err(Reason::JsonFieldMissing);
        }
        return Ok(Members {
            time,
            has_times: false,
            items,
        });
    };
    let Some(Json::Array(elements)) = document.at(&array.path) else {
        return Err(Reason::JsonFieldMissing);
    };
    for (place, element) in elements.iter().enumerate() {
        let count = items.len();
        let found = element.at(&array.time_field);
        let reason = match element_time(found, time, json.time_unit) {
            Ok(own) => {
                rules.collect(element, Some(&array.time_field), Some(own), &mut items);
                Reason::JsonFieldMissing
            }
            Err(reason) => reason,
        };
        if items.len() == count {
            items.push(Err((reason, place)));
        }
    }
    Ok(Members {
        time: None,
        has_times: true,
        items,
    })
}

impl MemberRules {
    /// Appends the readings of a document or element.
    fn collect<'a>(
        &self,
        document: &Json<'a>,
        time_field: Option<&str>,
        time: Option<Time>,
        items: &mut Vec<Result<Member<'a>, (Reason, usize)>>,
    ) {
        self.each(document, time_field, &mut |path, decision, sent| {
            if !matches!(decision, Decision::Own(_) | Decision::Taken(_)) {
                return;
            }
            let mut levels = String::new();
            push_levels(&mut levels, path, IDENTITY_BYTES_MAX);
            items.push(Ok(Member {
                path: levels,
                key_part: self.key_part(path, decision),
                decision,
                sent: sent.clone(),
                time,
            }));
        });
    }

    fn each<'j, 'a>(
        &self,
        document: &'j Json<'a>,
        time_field: Option<&str>,
        found: Found<'_, 'j, 'a>,
    ) {
        let is_time = |path: &[Cow<'_, str>]| {
            let names = path.iter().map(|name| &**name);
            time_field.is_some_and(|time| parts(time).map(|(name, _)| name).eq(names))
        };
        document.each(&mut Vec::new(), &mut |path, sent| {
            let decision = if is_time(path) {
                Decision::Time
            } else {
                self.decide(path)
            };
            found(path, decision, sent);
        });
    }

    /// Returns the paths in a document, or in the elements of its array, whose values are no readings, each once, and
    /// why.
    ///
    /// # Errors
    /// [`Reason::JsonInvalid`] and others: the reason to refuse the document as a whole.
    pub fn left_out(
        &self,
        payload: &[u8],
        json: &JsonRule,
    ) -> Result<Vec<(String, Decision)>, Reason> {
        let document = parse(payload)?;
        if document.values() > JSON_VALUES_MAX {
            return Err(Reason::Oversized);
        }
        let mut left: Vec<(String, Decision)> = Vec::new();
        let mut look = |document: &Json<'_>, time_field: Option<&str>| {
            self.each(document, time_field, &mut |path, decision, _| {
                if matches!(decision, Decision::Own(_) | Decision::Taken(_)) {
                    return;
                }
                let mut levels = String::new();
                push_levels(&mut levels, path, IDENTITY_BYTES_MAX);
                if !left.iter().any(|(known, _)| *known == levels) {
                    left.push((levels, decision));
                }
            });
        };
        match &self.array {
            None => look(&document, json.time_field.as_deref()),
            Some(array) => {
                if let Some(Json::Array(elements)) = document.at(&array.path) {
                    for element in elements {
                        look(element, Some(&array.time_field));
                    }
                }
            }
        }
        Ok(left)
    }
}

/// Returns the time of a document, if the rule names one.
fn time_of(document: &Json<'_>, json: &JsonRule) -> Result<Option<Time>, Reason> {
    let path = json.time_field.as_ref();
    path.map(|path| time_at(document.at(path), json.time_unit))
        .transpose()
}

fn time_at(found: Option<&Json<'_>>, unit: Precision) -> Result<Time, Reason> {
    match found {
        Some(Json::One(Sent::Number(digits))) => in_time(digits, unit),
        Some(Json::One(Sent::Text(text))) => rfc3339(text).ok_or(Reason::TimeAbsurd),
        _ => Err(Reason::JsonFieldMissing),
    }
}

/// Returns the time of an element: an offset to the time of the document, if that has one.
fn element_time(
    found: Option<&Json<'_>>,
    base: Option<Time>,
    unit: Precision,
) -> Result<Time, Reason> {
    let Some(base) = base else {
        return time_at(found, unit);
    };
    match found {
        Some(Json::One(Sent::Number(digits))) => {
            let offset = in_time(digits, unit)?;
            // Of a time beyond those that ns can count, a sum would be another time.
            if !base.is_countable() || !offset.is_countable() {
                return Err(Reason::TimeAbsurd);
            }
            let time_ns = base.ns().checked_add(offset.ns());
            time_ns.map(Time::from_ns).ok_or(Reason::TimeAbsurd)
        }
        Some(Json::One(_)) => Err(Reason::TimeAbsurd),
        _ => Err(Reason::JsonFieldMissing),
    }
}

/// Returns the time that a number of JSON says, exactly, rounded down to ns: a double of it is not exact.
fn in_time(digits: &str, unit: Precision) -> Result<Time, Reason> {
    if let Ok(whole) = digits.parse() {
        return unit.time(whole).ok_or(Reason::TimeAbsurd);
    }
    finite(digits)?;
    let (power, unit) = match unit {
        Precision::Seconds => (9, Precision::Nanoseconds),
        Precision::Milliseconds => (6, Precision::Nanoseconds),
        Precision::Microseconds => (3, Precision::Nanoseconds),
        other => (0, other),
    };
    let count = times_ten_to(digits, power).ok_or(Reason::TimeAbsurd)?;
    unit.time(count).ok_or(Reason::TimeAbsurd)
}

/// Splits a path at its dots, and says of each part whether it stood in quotes: there it may contain dots. A quote that
/// is not closed stands for itself.
fn parts(path: &str) -> impl Iterator<Item = (&str, bool)> {
    let mut rest = Some(path);
    std::iter::from_fn(move || {
        let path = rest?;
        if let Some(quoted) = path.strip_prefix('"')
            && let Some((part, tail)) = quoted.split_once('"')
            && (tail.is_empty() || tail.starts_with('.'))
        {
            rest = tail.strip_prefix('.');
            return Some((part, true));
        }
        let (part, tail) = match path.split_once('.') {
            Some((part, tail)) => (part, Some(tail)),
            None => (path, None),
        };
        rest = tail;
        Some((part, false))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(
        text: &str,
        field: &str,
        time_field: Option<&str>,
    ) -> Result<(String, Option<i64>), Reason> {
        let json = JsonRule::one(field, time_field);
        let decoded = one(text.as_bytes(), &json, field, &ValueRule::default())?;
        let time_ms = decoded.time.map(Time::ms);
        Ok((decoded.value.as_value().to_string(), time_ms))
    }

    #[test]
    fn a_number_that_is_too_great_costs_its_own_member_alone() {
        use Reason::{JsonFieldMissing, JsonInvalid, NotFinite};
        for (text, field, value) in [
            (r#"{"x":1e400,"a":{"c":[-1e999],"b":1}}"#, "a.b", Ok("1")),
            (r#" {"a":{"b":"o\u00fcn"},"x":1e400} "#, "a.b", Ok("oün")),
            (r#"{"\u0061":{"b":true},"x":1e400}"#, "a.b", Ok("true")),
            (r#"{"a":{"b":1e400},"a":{"b":2}}"#, "a.b", Ok("2")),
            (r#"[1e400,{"v":-3}]"#, "1.v", Ok("-3")),
            (r#"{"a":{"b":1e400}}"#, "a.b", Err(NotFinite)),
            ("1e400", "", Err(NotFinite)),
            (r#"{"a":[1e400]}"#, "a", Err(JsonFieldMissing)),
            (r#"{"a":1e400}"#, "a.b", Err(JsonFieldMissing)),
            ("[-1e999]", "1", Err(JsonFieldMissing)),
            (r#"{"x":1e400,"a":1"#, "a", Err(JsonInvalid)),
        ] {
            let expected = value.map(|value: &str| (value.to_owned(), None));
            assert_eq!(decoded(text, field, None), expected, "{text}");
        }
        for (text, expected) in [
            (r#"{"x":1e400,"v":4,"t":7}"#, Ok(("4".to_owned(), Some(7)))),
            (r#"{"v":4,"t":-1e400}"#, Err(NotFinite)),
            (r#"{"v":4,"x":1e400}"#, Err(JsonFieldMissing)),
        ] {
            assert_eq!(decoded(text, "v", Some("t")), expected, "{text}");
        }
    }

    #[test]
    fn nesting_has_a_limit() {
        let nested = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
        let refused = |levels| parse(nested(levels).as_bytes()).err();
        assert_eq!(refused(LEVELS_MAX), None);
        for levels in [LEVELS_MAX + 1, 30_000] {
            assert_eq!(refused(levels), Some(Reason::JsonInvalid));
        }
    }

    #[test]
    fn a_pattern_names_a_path_and_all_below() {
        let cases: [(&str, &[&str], &[&str]); 11] = [
            ("*", &["a", "a.b", "0"], &[]),
            ("a", &["a", "a.b", "a.b.c"], &["b", "aa", "b.a"]),
            ("a.b", &["a.b", "a.b.c"], &["a", "a.c"]),
            ("*.b", &["a.b", "c.b.d"], &["b", "a.c"]),
            ("*.*", &["a.b", "a.b.c"], &["a"]),
            ("temp*", &["temp", "temperature"], &["tem", "a.temp"]),
            ("*_in", &["t_in", "_in"], &["in"]),
            ("a*a", &["aa", "aba"], &["a", "ab"]),
            ("\"a.b\".c", &["\"a.b\".c"], &["a.b.c"]),
            ("\"*\"", &["*"], &["a"]),
            ("list.1.v", &["list.1.v"], &["list.0.v"]),
        ];
        for (pattern, fits, others) in cases {
            let parsed = PathPattern::parse(pattern).unwrap();
            let does_fit = |path: &str| {
                let names: Vec<Cow<'_, str>> = parts(path).map(|(name, _)| name.into()).collect();
                parsed.fits(&names)
            };
            assert!(fits.iter().all(|path| does_fit(path)), "{pattern}");
            assert!(!others.iter().any(|path| does_fit(path)), "{pattern}");
        }
        for (wrong, reason) in [
            ("", "empty"),
            ("a..b", "empty"),
            ("a.", "empty"),
            ("a*b*", "more than one"),
            ("a\n", "control"),
        ] {
            let error = PathPattern::parse(wrong).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn levels_of_a_key_lead_back_to_the_path() {
        let levels = |names: &[&str]| {
            let names: Vec<Cow<'_, str>> = names.iter().map(|name| (*name).into()).collect();
            let mut part = String::new();
            push_levels(&mut part, &names, usize::MAX);
            part
        };
        let cases: [(&[&str], &str); 6] = [
            (&["a", "b"], "a/b"),
            (&["a/b"], "a%2Fb"),
            (&["a%2Fb"], "a%252Fb"),
            (&["+", "c++"], "%2B/c++"),
            (&["#", "#1"], "%23/#1"),
            (&["", "temp.in", ""], "/temp.in/"),
        ];
        for (names, part) in cases {
            assert_eq!(levels(names), part);
        }
    }

    #[test]
    fn a_long_name_of_many_values_is_not_written_for_each_of_them() {
        let values = vec!["0"; JSON_VALUES_MAX].join(",");
        let payload = format!("{{\"{}\":[{values}]}}", "%".repeat(57_000));
        assert!(payload.len() <= JSON_BYTES_MAX);
        let rules = MemberRules {
            take: vec![PathPattern::parse("*").unwrap()],
            ..MemberRules::default()
        };
        let json = JsonRule::one("", None);
        let found = members(payload.as_bytes(), &json, &rules).unwrap();
        assert_eq!(found.items.len(), JSON_VALUES_MAX);
        for member in &found.items {
            let member = member.as_ref().unwrap();
            // Too long to be taken, and hardly longer.
            let over = |text: &str, bytes_max: usize| (1..=4).contains(&(text.len() - bytes_max));
            assert!(over(&member.path, IDENTITY_BYTES_MAX));
            assert!(over(&member.key_part, db::KEY_BYTES_MAX));
        }
        let leaves = MemberRules::default();
        let left = leaves.left_out(payload.as_bytes(), &json).unwrap();
        assert!(
            left.iter()
                .all(|(path, _)| path.len() <= IDENTITY_BYTES_MAX + 4)
        );
        let more = format!("[{values},0]");
        let refused = leaves.left_out(more.as_bytes(), &json);
        assert_eq!(refused, Err(Reason::Oversized));
    }

    #[test]
    fn times_have_a_unit_and_lose_no_digit() {
        use Precision::{Microseconds, Milliseconds, Nanoseconds, Seconds};
        const N: i64 = 1_780_272_000_000_000_000;
        for (digits, unit, ns) in [
            ("1780272000", Seconds, Some(N)),
            ("1780272000.53", Seconds, Some(N + 530_000_000)),
            ("1780272000.123456789", Seconds, Some(N + 123_456_789)),
            ("1780272000.1234567899", Seconds, Some(N + 123_456_789)),
            ("1.780272000123456789E9", Seconds, Some(N + 123_456_789)),
            ("1780272000123456789e-9", Seconds, Some(N + 123_456_789)),
            ("-0.5", Seconds, Some(-500_000_000)),
            ("-0.0000000001", Seconds, Some(-1)),
            ("0.0000000001", Seconds, Some(0)),
            ("1.5e3", Seconds, Some(1_500_000_000_000)),
            ("1780272000000", Milliseconds, Some(N)),
            ("1780272000000.75", Milliseconds, Some(N + 750_000)),
            ("-0.5", Milliseconds, Some(-500_000)),
            ("-0.0", Milliseconds, Some(0)),
            ("1780272000000999.5", Microseconds, Some(N + 999_500)),
            ("1780272000000999999", Nanoseconds, Some(N + 999_999)),
            ("1780272000000999999.9", Nanoseconds, Some(N + 999_999)),
            ("-1.5", Nanoseconds, Some(-2)),
            ("1e-99999999999", Seconds, Some(0)),
            ("-1e-400", Seconds, Some(-1)),
            ("0e99", Seconds, Some(0)),
            ("1e18", Milliseconds, None),
            ("99999999999999999999", Milliseconds, None),
            ("99999999999999999999.5", Milliseconds, None),
            ("9223372036854775807", Seconds, None),
        ] {
            let time = ns.map(Time::from_ns).ok_or(Reason::TimeAbsurd);
            assert_eq!(in_time(digits, unit), time, "{digits}");
        }
        assert_eq!(in_time("1e400", Seconds), Err(Reason::NotFinite));
        // The sum of a time that ns can count and an offset, and of one that they cannot.
        let back = Json::One(Sent::Number("-2e9"));
        let sum = |base| element_time(Some(&back), Some(base), Seconds);
        let earlier = Time::from_ns(N - 2_000_000_000_000_000_000);
        assert_eq!(sum(Time::from_ns(N)), Ok(earlier));
        let far = Time::from_ms(253_402_300_799_500);
        assert_eq!(sum(far), Err(Reason::TimeAbsurd));
    }
}
