//! `[[mqtt.subscribe]]`: how the messages of a topic become readings.

use super::reader::{At, Section};
use super::values::{LINE_KEY, TEXT_BYTES_MAX, check_pattern, key_template, reason};
use ingest::intake::{
    ArrayRule, JsonRule, JsonTake, MemberRule, MemberRules, PathPattern, PayloadKind, Retained,
    SparkplugRule, ValueKind, ValueRule, check_key,
};
use ingest::line::Precision;
use ingest::pattern;

/// `[[mqtt.subscribe]]` tables.
const SUBSCRIPTIONS_MAX: usize = 256;
/// Entries of `json_fields`, and `[[mqtt.subscribe.field]]` tables of one subscription.
const FIELDS_MAX: usize = 256;
/// Words for a truth value, and bytes of each.
const WORDS_MAX: (usize, usize) = (64, 64);
/// Units, and bytes of each.
const UNITS_MAX: (usize, usize) = (16, 32);

/// Default key of a metric of Sparkplug: no two metrics have the same.
const SPARKPLUG_KEY: &str = "{group}/{edge}/{place}/{metric}";

/// The kinds of values, by name.
const KINDS: [(&str, ValueKind); 5] = [
    ("auto", ValueKind::Auto),
    ("number", ValueKind::Number),
    ("integer", ValueKind::Integer),
    ("bool", ValueKind::Boolean),
    ("text", ValueKind::Text),
];

/// `[[mqtt.subscribe]]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscribeConfig {
    /// Topic filter.
    pub filter: String,
    /// Delivery class, 0 or 1.
    pub qos: u8,
    /// Format of the messages, and what is taken from them.
    pub payload: PayloadKind,
    /// How the key is made from the topic; for lines and values of documents, also from these.
    pub key: String,
    /// What happens to retained messages of the broker.
    pub retained: Retained,
    /// Where all this stands.
    pub lines: Lines,
}

/// Lines of the file, to explain which of them decides. Subscriptions that differ only in these are equal, so a reload
/// does not take one that has moved for another.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    /// The heading.
    pub table: usize,
    /// The entries of `json_fields` that take values.
    pub take: Vec<usize>,
    /// Those that leave values out.
    pub leave: Vec<usize>,
    /// The headings of `[[mqtt.subscribe.field]]`.
    pub own: Vec<usize>,
}

impl PartialEq for Lines {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Lines {}

/// Reads all subscriptions.
pub(super) fn subscriptions(section: &Section<'_, '_>) -> Vec<SubscribeConfig> {
    let mut all: Vec<SubscribeConfig> = Vec::new();
    for one in section.sections("subscribe", SUBSCRIPTIONS_MAX) {
        let line = one.line();
        let subscribe = subscription(one);
        if all.iter().any(|other| other.filter == subscribe.filter) {
            let wrong = "has the same filter twice";
            section.wrong(line, "subscribe", wrong, "remove one of them");
        }
        all.push(subscribe);
    }
    all
}

fn subscription(section: Section<'_, '_>) -> SubscribeConfig {
    #[derive(Clone, Copy, PartialEq)]
    enum Format {
        Number,
        Value,
        Json,
        Line,
        Sparkplug,
    }
    const REMEDY: &str = "give a topic filter, such as \"sensors/#\"";
    const FORMATS: [(&str, Format); 5] = [
        ("number", Format::Number),
        ("value", Format::Value),
        ("json", Format::Json),
        ("line", Format::Line),
        ("sparkplug", Format::Sparkplug),
    ];
    let filter = section.required("filter", pattern::PATTERN_BYTES_MAX, REMEDY);
    check_pattern(&section, "filter", &filter, pattern::check_topics);
    check_shared(&section, &filter);
    let format = section.choice("payload", Format::Number, &FORMATS);
    let mut lines = Lines {
        table: section.line(),
        ..Lines::default()
    };
    let value = value_rule(&section, &ValueRule::default());
    if matches!(format, Format::Number | Format::Line | Format::Sparkplug) {
        let keys = [
            "type",
            "words_true",
            "words_false",
            "decimal_comma",
            "unit_ignored",
        ];
        let other = value != ValueRule::default();
        refuse(
            &section,
            &keys,
            other,
            "is for payload = \"value\" or \"json\" only",
        );
    }
    let json = json(&section, value.clone(), format == Format::Json, &mut lines);
    let rebirth = section.boolean("sparkplug_rebirth", false);
    let is_other = rebirth && format != Format::Sparkplug;
    let only = "is for payload = \"sparkplug\" only";
    refuse(&section, &["sparkplug_rebirth"], is_other, only);
    let payload = match format {
        Format::Number => PayloadKind::Number,
        Format::Value => PayloadKind::Value(value),
        Format::Json => PayloadKind::Json(json),
        Format::Line => PayloadKind::Line,
        Format::Sparkplug => PayloadKind::Sparkplug(SparkplugRule { rebirth }),
    };
    let (default, needs_path) = match &payload {
        PayloadKind::Line => (LINE_KEY, false),
        PayloadKind::Sparkplug(_) => (SPARKPLUG_KEY, false),
        PayloadKind::Json(JsonRule {
            take: JsonTake::Several(rules),
            ..
        }) => ("{topic}/{path}", !is_single(rules)),
        PayloadKind::Number | PayloadKind::Value(_) | PayloadKind::Json(_) => ("{topic}", false),
    };
    let key = key_template(&section, payload.template_kind(), default);
    if needs_path && !key.contains("{path}") {
        let remedy = "add it, so that each value of a message has a key of its own";
        section.wrong(section.line_of("key"), "key", "lacks {path}", remedy);
    }
    if format == Format::Sparkplug {
        check_sparkplug(&section, &filter, &key);
    }
    let subscribe = SubscribeConfig {
        filter: filter.value,
        qos: section.integer("qos", 1, (0, 1)) as u8,
        payload,
        key,
        retained: section.choice(
            "retained",
            Retained::Timed,
            &[
                ("timed", Retained::Timed),
                ("take", Retained::Take),
                ("skip", Retained::Skip),
            ],
        ),
        lines,
    };
    section.finish();
    subscribe
}

/// Checks that the filter can fit messages of Sparkplug, and that each metric of a message has a key of its own.
fn check_sparkplug(section: &Section<'_, '_>, filter: &At<String>, key: &str) {
    if !key.contains("{metric}") {
        let remedy = "add it, so that each metric of a message has a key of its own";
        section.wrong(section.line_of("key"), "key", "lacks {metric}", remedy);
    }
    if filter.value.starts_with("$share/") {
        let wrong = format!("is \"{}\"", filter.value);
        let remedy = "leave out $share/GROUP/: a part of the messages is not enough to know what the others mean";
        section.wrong(filter.line, "filter", &wrong, remedy);
    }
    let namespace = pattern::topic_filter(&filter.value).split('/').next();
    if !filter.value.is_empty() && !matches!(namespace, Some("spBv1.0" | "+" | "#")) {
        let wrong = format!("is \"{}\"", filter.value);
        let remedy = "topics of Sparkplug B begin with spBv1.0, such as \"spBv1.0/plant/#\"";
        section.wrong(filter.line, "filter", &wrong, remedy);
    }
}

/// Returns whether there is one value at most that rules can take, so that the key need not say which.
fn is_single(rules: &MemberRules) -> bool {
    let own = rules.own.iter().map(|own| &own.pattern);
    let mut patterns = rules.take.iter().chain(own);
    let is_exact = patterns.next().is_some_and(PathPattern::is_exact);
    is_exact && patterns.next().is_none()
}

/// Notes the keys that are there although they have no effect.
fn refuse(section: &Section<'_, '_>, keys: &[&'static str], is_other: bool, wrong: &str) {
    for key in keys.iter().filter(|key| is_other && section.has(key)) {
        let line = section.line_of(key);
        section.wrong(line, key, wrong, "set payload, or remove the line");
    }
}

/// Reads what is taken from a document. All keys are read for each format, so that each is known.
fn json(section: &Section<'_, '_>, value: ValueRule, is_json: bool, lines: &mut Lines) -> JsonRule {
    const ONLY: &str = "is for payload = \"json\" only";
    let field = section.text_or_empty("json_field", TEXT_BYTES_MAX);
    let time_field = section.text("json_time_field", TEXT_BYTES_MAX);
    let time_unit = section.choice(
        "json_time_unit",
        Precision::Milliseconds,
        &[
            ("ns", Precision::Nanoseconds),
            ("us", Precision::Microseconds),
            ("ms", Precision::Milliseconds),
            ("s", Precision::Seconds),
        ],
    );
    let (take, leave) = fields(section, lines);
    let own = own_fields(section, &value, lines);
    let array = array(section);
    let several = ["json_fields", "field", "json_array", "json_array_time"];
    let is_several = several.iter().any(|key| section.has(key));
    if !is_json {
        refuse(section, &["json_field", "json_time_field"], true, ONLY);
        refuse(section, &several, true, ONLY);
        let other = time_unit != Precision::Milliseconds;
        refuse(section, &["json_time_unit"], other, ONLY);
    } else if field.is_some() && is_several {
        let remedy = "name all values in json_fields, and remove json_field";
        let wrong = "stands beside keys for several values";
        section.wrong(section.line_of("json_field"), "json_field", wrong, remedy);
    } else if !is_several && !section.has("json_field") {
        let remedy = "name the member that holds the value; \"\" if the document is the value";
        section.wrong(section.line(), "json_field", "is missing", remedy);
    } else if is_several && take.is_empty() && !section.has("field") {
        let remedy = "name the members that hold values; \"*\" stands for all";
        section.wrong(
            section.line_of("json_fields"),
            "json_fields",
            "takes nothing",
            remedy,
        );
    }
    let take = if is_several {
        JsonTake::Several(Box::new(MemberRules {
            take,
            leave,
            own,
            value,
            array,
        }))
    } else {
        JsonTake::One(field.map(|at| at.value).unwrap_or_default(), value)
    };
    JsonRule {
        take,
        time_field: time_field.map(|at| at.value),
        time_unit,
    }
}

/// Reads `json_fields`: the patterns that take values, and those that leave values out.
fn fields(section: &Section<'_, '_>, lines: &mut Lines) -> (Vec<PathPattern>, Vec<PathPattern>) {
    let (mut take, mut leave) = (Vec::new(), Vec::new());
    let given = section.texts("json_fields", (FIELDS_MAX, TEXT_BYTES_MAX));
    for at in given.map(|(_, texts)| texts).unwrap_or_default() {
        let (patterns, places, text) = match at.value.strip_prefix('!') {
            Some(text) => (&mut leave, &mut lines.leave, text),
            None => (&mut take, &mut lines.take, at.value.as_str()),
        };
        if let Some(pattern) = path_pattern(section, "json_fields", text, at.line) {
            patterns.push(pattern);
            places.push(at.line);
        }
    }
    (take, leave)
}

/// Reads `[[mqtt.subscribe.field]]`. What a table does not say is as in the subscription.
fn own_fields(section: &Section<'_, '_>, value: &ValueRule, lines: &mut Lines) -> Vec<MemberRule> {
    const REMEDY: &str = "name the member, such as \"battery.percent\"";
    let mut own = Vec::new();
    let mut paths: Vec<String> = Vec::new();
    for one in section.sections("field", FIELDS_MAX) {
        let path = one.required("path", TEXT_BYTES_MAX, REMEDY);
        let name = one.text_or_empty("name", TEXT_BYTES_MAX);
        let value = value_rule(&one, value);
        if !path.value.is_empty()
            && let Some(pattern) = path_pattern(&one, "path", &path.value, path.line)
        {
            if paths.contains(&path.value) {
                one.wrong(path.line, "path", "is there twice", "remove one of them");
            }
            if let Some(name) = &name {
                check_name(&one, name, &pattern);
            }
            paths.push(path.value);
            own.push(MemberRule {
                pattern,
                name: name.map(|at| at.value),
                value,
            });
            lines.own.push(one.line());
        }
        one.finish();
    }
    own
}

fn check_name(section: &Section<'_, '_>, name: &At<String>, pattern: &PathPattern) {
    if !pattern.is_exact() {
        let wrong = "is for a path without `*`";
        section.wrong(
            name.line,
            "name",
            wrong,
            "name one member, or remove the line",
        );
    }
    let is_level = |level: &str| check_key(level).is_ok();
    if !name.value.is_empty() && !name.value.split('/').all(is_level) {
        let wrong = format!("is \"{}\"", name.value);
        let remedy = "give levels of a key, such as \"battery\"";
        section.wrong(name.line, "name", &wrong, remedy);
    }
}

fn path_pattern(
    section: &Section<'_, '_>,
    key: &'static str,
    text: &str,
    line: usize,
) -> Option<PathPattern> {
    let parsed = PathPattern::parse(text);
    if let Err(error) = &parsed {
        section.wrong(line, key, &format!("holds \"{text}\""), reason(error));
    }
    parsed.ok()
}

fn array(section: &Section<'_, '_>) -> Option<ArrayRule> {
    let path = section.text_or_empty("json_array", TEXT_BYTES_MAX);
    let time_field = section.text("json_array_time", TEXT_BYTES_MAX);
    match (path, time_field) {
        (None, None) => None,
        (Some(path), Some(time_field)) => Some(ArrayRule {
            path: path.value,
            time_field: time_field.value,
        }),
        (Some(path), None) => {
            let remedy = "name the time of an element in json_array_time";
            let wrong = "has readings without times of their own";
            section.wrong(path.line, "json_array", wrong, remedy);
            None
        }
        (None, Some(time_field)) => {
            let remedy = "name the array in json_array; \"\" if the document is the array";
            section.wrong(
                time_field.line,
                "json_array_time",
                "lacks its array",
                remedy,
            );
            None
        }
    }
}

/// Reads the kind of values; `inherited` is what counts without these keys.
fn value_rule(section: &Section<'_, '_>, inherited: &ValueRule) -> ValueRule {
    let list = |key, limits, inherited: &Vec<String>| {
        let at = section.words(key, limits);
        if let Some(at) = at
            .as_ref()
            .filter(|at| at.value.iter().any(String::is_empty))
        {
            section.wrong(at.line, key, "holds an empty text", "remove it");
        }
        at.map_or(inherited.clone(), |at| at.value)
    };
    let rule = ValueRule {
        kind: section.choice("type", inherited.kind, &KINDS),
        words_true: list("words_true", WORDS_MAX, &inherited.words_true),
        words_false: list("words_false", WORDS_MAX, &inherited.words_false),
        decimal_comma: section.boolean("decimal_comma", inherited.decimal_comma),
        units: list("unit_ignored", UNITS_MAX, &inherited.units),
    };
    let needs = |key: &'static str, is_set: bool, kinds: &[ValueKind], remedy: &str| {
        if section.has(key) && is_set && !kinds.contains(&rule.kind) {
            let wrong = "has no effect with this type";
            section.wrong(section.line_of(key), key, wrong, remedy);
        }
    };
    let (words, numbers) = (
        [ValueKind::Boolean, ValueKind::Auto],
        [ValueKind::Number, ValueKind::Integer],
    );
    let (bool, number) = (
        "set type = \"bool\" or \"auto\", or remove the line",
        "set type = \"number\" or \"integer\", or remove the line",
    );
    needs("words_true", !rule.words_true.is_empty(), &words, bool);
    needs("words_false", !rule.words_false.is_empty(), &words, bool);
    needs("decimal_comma", rule.decimal_comma, &numbers, number);
    needs("unit_ignored", !rule.units.is_empty(), &numbers, number);
    let is_false = |word: &&String| {
        let mut others = rule.words_false.iter();
        others.any(|other| other.eq_ignore_ascii_case(word))
    };
    if let Some(word) = rule.words_true.iter().find(is_false)
        && (section.has("words_true") || section.has("words_false"))
    {
        let wrong = format!("has \"{word}\", and so has words_false");
        let line = section.line_of("words_true");
        section.wrong(line, "words_true", &wrong, "remove it from one of them");
    }
    rule
}

/// Checks a shared subscription `$share/GROUP/FILTER`; the broker accepts no other form with this beginning.
fn check_shared(section: &Section<'_, '_>, filter: &At<String>) {
    let Some(rest) = filter.value.strip_prefix("$share/") else {
        return;
    };
    let (group, shared) = rest.split_once('/').unwrap_or((rest, ""));
    if group.is_empty() || group.contains(['+', '#']) || shared.is_empty() {
        let wrong = format!("is \"{}\"", filter.value);
        let remedy =
            "a shared subscription is $share/GROUP/FILTER, such as \"$share/keel/sensors/#\"";
        section.wrong(filter.line, "filter", &wrong, remedy);
    }
}
