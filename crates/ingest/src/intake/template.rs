//! How a key is built from a topic or from a line.

use crate::Error;
use crate::line::{ESCAPED, Escaped, Line, push_tag};

/// Size of the longest template, in bytes.
pub const TEMPLATE_BYTES_MAX: usize = 256;

/// Largest size in bytes of the data that a key is made from. Names of tags count although they are not in the key.
pub(super) const IDENTITY_BYTES_MAX: usize = 1024;

const _: () = assert!(IDENTITY_BYTES_MAX <= db::SERIES_BYTES_MAX);

/// The data that a template can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplateKind {
    /// A topic: `{topic}` and its levels `{1}` to `{9}`.
    Topic,
    /// A field of a line: `{measurement}`, `{pairs}`, `{values}`, `{tags}`, `{tag:NAME}` and `{field}`. `{pairs}` is
    /// `NAME=VALUE` of each tag, in the order of the names, separated by `/`. `{values}` is the same with the values
    /// alone. `{tags}` is one of both, see [`TagsForm`].
    Line,
    /// A field of a line in a message: all of these.
    TopicAndLine,
    /// One of several values of a JSON document: a topic and `{path}`, the value's path as levels.
    TopicAndPath,
    /// A metric of Sparkplug: `{group}`, `{edge}`, `{device}`, `{place}` and `{metric}`. `{device}` is empty for
    /// metrics of an edge node. `{place}` is `node`, `device/DEVICE`, or `state` for the state of either. `{metric}` is
    /// the metric's name as levels.
    Sparkplug,
}

/// What `{tags}` of a template stands for. It depends on the store, so that a new version of the program makes no new
/// series in a store of an older one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagsForm {
    /// `NAME=VALUE` of each tag, as `{pairs}`.
    Pairs,
    /// The value of each tag, as `{values}`.
    Values,
}

impl TagsForm {
    /// The form in a store that has no keys yet: no two series of lines have one key.
    pub const OF_NEW_STORES: Self = Self::Pairs;

    /// Returns the part of a template that stands for this form in any store.
    #[must_use]
    pub const fn placeholder(self) -> &'static str {
        match self {
            Self::Pairs => "{pairs}",
            Self::Values => "{values}",
        }
    }
}

/// The part whose meaning depends on the store.
const TAGS: &str = "{tags}";

/// What a template of Sparkplug may hold.
const SPARKPLUG_ONLY: &str = "only {group}, {edge}, {device}, {place} and {metric} make sense here";

/// What a key is made from, beside the topic.
#[derive(Clone, Copy)]
pub(crate) enum Subject<'a> {
    /// The only reading of a message.
    Message,
    /// A field of a line, and its name.
    Field(&'a Line<'a>, Escaped<'a>),
    /// A value of a document.
    Member {
        /// Its path as levels.
        path: &'a str,
        /// What `{path}` stands for.
        key_part: &'a str,
    },
    /// A metric of Sparkplug, or the state of an edge node or device.
    Metric {
        group: &'a str,
        edge: &'a str,
        /// Empty: it is of the edge node.
        device: &'a str,
        place: &'a str,
        /// Its name as levels.
        path: &'a str,
    },
}

/// A checked template. A missing part of a message is empty, and an empty level is left out with its `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
    /// Whether some of a topic is in no part.
    leaves_topic: bool,
    /// Whether some of a line is in no part. Its topic counts only where the template names a level of it: a line has
    /// a name of its own.
    leaves_line: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(String),
    Topic,
    /// A topic level, from 0.
    Level(usize),
    Measurement,
    /// As [`Values`](Part::Values), until [`Template::with_tags`] says otherwise.
    Tags,
    Pairs,
    Values,
    Tag(String),
    Field,
    Path,
    Group,
    Edge,
    Device,
    Place,
    Metric,
}

impl Template {
    /// Parses `text`.
    ///
    /// # Errors
    /// [`Error::Template`] says what is wrong with it.
    pub fn parse(text: &str, kind: TemplateKind) -> Result<Self, Error> {
        let fail = |reason| Error::Template {
            template: super::excerpt(text.as_bytes()),
            reason,
        };
        if text.is_empty() || text.len() > TEMPLATE_BYTES_MAX {
            return Err(fail("it must have 1 to 256 bytes"));
        }
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((literal, tail)) = rest.split_once('{') {
            parts.extend(literal_part(literal).map_err(fail)?);
            let (name, tail) = tail.split_once('}').ok_or(fail("a `{` lacks its `}`"))?;
            parts.push(placeholder(name, kind).map_err(fail)?);
            rest = tail;
        }
        parts.extend(literal_part(rest).map_err(fail)?);
        // Each part that is drawn can be any text.
        let drawn = |part: &Part| match part {
            Part::Literal(text) => text.clone(),
            _ => "x".to_owned(),
        };
        let key: String = parts.iter().map(drawn).collect();
        if !crate::pattern::is_exact(&key) {
            return Err(fail("no level of a key is `+` or `#` alone"));
        }
        Ok(Self::of(parts))
    }

    fn of(parts: Vec<Part>) -> Self {
        let has = |part: &Part| parts.contains(part);
        let leaves_topic = !has(&Part::Topic);
        let has_tags = has(&Part::Tags) || has(&Part::Pairs) || has(&Part::Values);
        let is_line_whole = has(&Part::Measurement) && has_tags && has(&Part::Field);
        let names_level = parts.iter().any(|part| matches!(part, Part::Level(_)));
        Self {
            leaves_topic,
            leaves_line: !is_line_whole || names_level && leaves_topic,
            parts,
        }
    }

    /// Returns the template of the topic itself.
    #[must_use]
    pub fn topic() -> Self {
        Self::of(vec![Part::Topic])
    }

    /// Returns `{measurement}/{tags}/{field}`.
    #[must_use]
    pub fn line() -> Self {
        let slash = || Part::Literal("/".to_owned());
        Self::of(vec![
            Part::Measurement,
            slash(),
            Part::Tags,
            slash(),
            Part::Field,
        ])
    }

    /// Returns the template with another part in place of `{tags}`.
    #[must_use]
    pub fn with_tags(mut self, form: TagsForm) -> Self {
        for part in &mut self.parts {
            if *part == Part::Tags {
                *part = match form {
                    TagsForm::Pairs => Part::Pairs,
                    TagsForm::Values => Part::Values,
                };
            }
        }
        self
    }

    /// Returns the text of the template. Its checksum is on flash, so the text of each template stays as it is.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Literal(literal) => text.push_str(literal),
                Part::Level(level) => text.extend(["{", &(level + 1).to_string(), "}"]),
                Part::Tag(name) => text.extend(["{tag:", name, "}"]),
                Part::Topic => text.push_str("{topic}"),
                Part::Measurement => text.push_str("{measurement}"),
                Part::Pairs => text.push_str(TagsForm::Pairs.placeholder()),
                Part::Tags | Part::Values => text.push_str(TagsForm::Values.placeholder()),
                Part::Field => text.push_str("{field}"),
                Part::Path => text.push_str("{path}"),
                Part::Group => text.push_str("{group}"),
                Part::Edge => text.push_str("{edge}"),
                Part::Device => text.push_str("{device}"),
                Part::Place => text.push_str("{place}"),
                Part::Metric => text.push_str("{metric}"),
            }
        }
        text
    }

    /// Returns the text of a template with another part in place of `{tags}`, so that it means this form in any store.
    /// `None` if it does not have `{tags}`.
    #[must_use]
    pub fn text_with_tags(text: &str, form: TagsForm) -> Option<String> {
        text.contains(TAGS)
            .then(|| text.replace(TAGS, form.placeholder()))
    }

    /// Writes the key of a reading of a message with this topic, or of a line, to `key`.
    pub(crate) fn render(&self, key: &mut String, topic: &str, subject: Subject<'_>) {
        key.clear();
        let is_escaped = self.is_escaped();
        let mut level_is_empty = false;
        for part in &self.parts {
            let before = key.len();
            match (part, subject) {
                (Part::Literal(text), _) => {
                    let rest = text.strip_prefix('/').filter(|_| level_is_empty);
                    key.push_str(rest.unwrap_or(text));
                    level_is_empty = false;
                    continue;
                }
                (Part::Topic, _) => key.push_str(topic),
                (Part::Level(level), _) => key.push_str(topic.split('/').nth(*level).unwrap_or("")),
                (Part::Measurement, Subject::Field(line, _)) => {
                    push_text(key, line.measurement(), is_escaped);
                }
                (Part::Pairs, Subject::Field(line, _)) => line.push_tag_pairs(key),
                (Part::Tags | Part::Values, Subject::Field(line, _)) => {
                    line.push_tag_values(key, is_escaped);
                }
                (Part::Tag(name), Subject::Field(line, _)) => {
                    if let Some(value) = line.tag(name) {
                        push_text(key, value, is_escaped);
                    }
                }
                (Part::Field, Subject::Field(_, field)) => push_text(key, field, is_escaped),
                (Part::Path, Subject::Member { key_part, .. }) => key.push_str(key_part),
                (Part::Group, Subject::Metric { group, .. }) => key.push_str(group),
                (Part::Edge, Subject::Metric { edge, .. }) => key.push_str(edge),
                (Part::Device, Subject::Metric { device, .. }) => key.push_str(device),
                (Part::Place, Subject::Metric { place, .. }) => key.push_str(place),
                (Part::Metric, Subject::Metric { path, .. }) => key.push_str(path),
                _ => {}
            }
            let at_level_start = before == 0 || key.as_bytes().get(before - 1) == Some(&b'/');
            level_is_empty = key.len() == before && at_level_start;
        }
        if level_is_empty {
            key.pop();
        }
    }

    /// Appends the data that [`render`](Self::render) uses, in line protocol form, to `identity`. Two messages or
    /// fields have the same text if and only if they agree in everything that the template names. Two values of
    /// documents must also have the same path, even if the template does not name it: one message brings both. The text
    /// in place of the path counts, too: rules with the same template may name it differently. A metric of Sparkplug
    /// has all of its identity with any template. Topics and paths must not contain line feeds.
    pub(crate) fn identify(&self, identity: &mut String, topic: &str, subject: Subject<'_>) {
        let begin = identity.len();
        for part in &self.parts {
            match (part, subject) {
                (Part::Topic, _) => push_topic(identity, topic),
                (Part::Level(level), _) => {
                    push_topic(identity, topic.split('/').nth(*level).unwrap_or(""));
                }
                (Part::Measurement, Subject::Field(line, _)) => {
                    if identity.len() > begin {
                        identity.push('\n');
                    }
                    line.measurement().push_escaped_to(identity, &[',', ' ']);
                }
                (Part::Tags | Part::Pairs | Part::Values, Subject::Field(line, _)) => {
                    line.push_tags(identity);
                }
                (Part::Tag(name), Subject::Field(line, _)) => {
                    if let Some((name, value)) = line.tag_pair(name) {
                        push_tag(identity, name, value);
                    }
                }
                (Part::Field, Subject::Field(_, field)) => {
                    identity.push(' ');
                    field.push_escaped_to(identity, ESCAPED);
                }
                _ => {}
            }
        }
        push_member(identity, subject);
    }

    /// Appends everything that tells a reading from those of other series, also what the template leaves out. The form
    /// is that of [`identify`](Self::identify): two series with the same text have the same identity, too.
    pub(crate) fn identify_whole(&self, whole: &mut String, topic: &str, subject: Subject<'_>) {
        match subject {
            Subject::Field(line, field) => {
                let of_topic = |part: &Part| matches!(part, Part::Topic | Part::Level(_));
                if self.parts.iter().any(of_topic) {
                    push_topic(whole, topic);
                    whole.push('\n');
                }
                line.measurement().push_escaped_to(whole, &[',', ' ']);
                line.push_tags(whole);
                whole.push(' ');
                field.push_escaped_to(whole, ESCAPED);
            }
            Subject::Message => push_topic(whole, topic),
            Subject::Member { .. } => {
                push_topic(whole, topic);
                push_member(whole, subject);
            }
            Subject::Metric { .. } => push_member(whole, subject),
        }
    }

    /// Returns whether series that differ can agree in everything that the template names.
    pub(crate) fn leaves_out(&self, subject: Subject<'_>) -> bool {
        match subject {
            Subject::Field(..) => self.leaves_line,
            Subject::Message | Subject::Member { .. } => self.leaves_topic,
            // Each metric has its whole identity.
            Subject::Metric { .. } => false,
        }
    }

    /// Returns whether the identity can be read back from each key, so that no two identities have the same key. The
    /// identity of a value of a document cannot: the end of a topic and the beginning of a path look alike. Filters may
    /// say how many levels a topic has, and can change.
    pub(crate) fn can_be_read_back(&self, subject: Subject<'_>) -> bool {
        let is_literal = |part: &&Part| matches!(part, Part::Literal(_));
        let literals = self.parts.iter().take_while(is_literal).count();
        match (subject, self.parts.get(literals..)) {
            (Subject::Message | Subject::Field(..), Some([Part::Topic])) => true,
            (
                Subject::Field(..),
                Some(
                    [
                        Part::Measurement,
                        Part::Literal(first),
                        Part::Pairs,
                        Part::Literal(second),
                        Part::Field,
                    ],
                ),
            ) => first == "/" && second == "/",
            // No level of a topic of Sparkplug is empty, and the place says where the metric's name begins.
            (
                Subject::Metric { .. },
                Some(
                    [
                        Part::Group,
                        Part::Literal(first),
                        Part::Edge,
                        Part::Literal(second),
                        Part::Place,
                        Part::Literal(third),
                        Part::Metric,
                    ],
                ),
            ) => [first, second, third].iter().all(|text| *text == "/"),
            _ => false,
        }
    }

    /// Returns whether measurements, values of tags and fields are escaped. They are where a template has pairs, whose
    /// keys can be read back, and nowhere else: keys of older templates must stay what they were.
    fn is_escaped(&self) -> bool {
        self.parts.contains(&Part::Pairs)
    }
}

/// Appends a part of a key.
fn push_text(key: &mut String, text: Escaped<'_>, is_escaped: bool) {
    if is_escaped {
        text.push_level_to(key, false);
    } else {
        text.push_to(key);
    }
}

/// Appends a topic, or a level of one, to an identity.
///
/// A line feed at both ends delimits it: commas, spaces and backslashes stand for themselves here.
fn push_topic(identity: &mut String, topic: &str) {
    identity.push('\n');
    identity.push_str(topic);
    identity.push('\n');
}

/// Appends what tells a value of a document from others of the same document, or a metric from all others, to an
/// identity.
fn push_member(identity: &mut String, subject: Subject<'_>) {
    match subject {
        Subject::Member { path, key_part } => {
            push_topic(identity, path);
            if key_part != path {
                push_topic(identity, key_part);
            }
        }
        Subject::Metric {
            group,
            edge,
            place,
            path,
            ..
        } => {
            for part in [group, edge, place, path] {
                push_topic(identity, part);
            }
        }
        Subject::Message | Subject::Field(..) => {}
    }
}

fn literal_part(text: &str) -> Result<Option<Part>, &'static str> {
    if text.contains('}') {
        return Err("a `}` lacks its `{`");
    }
    if text.chars().any(char::is_control) {
        return Err("it holds control characters");
    }
    if text.chars().any(base::pattern::is_invisible) {
        return Err("it holds invisible characters");
    }
    Ok((!text.is_empty()).then(|| Part::Literal(text.to_owned())))
}

fn placeholder(name: &str, kind: TemplateKind) -> Result<Part, &'static str> {
    let part = match name.as_bytes() {
        b"topic" => Part::Topic,
        [digit @ b'1'..=b'9'] => Part::Level(usize::from(digit - b'1')),
        b"measurement" => Part::Measurement,
        b"tags" => Part::Tags,
        b"pairs" => Part::Pairs,
        b"values" => Part::Values,
        b"field" => Part::Field,
        b"path" => Part::Path,
        b"group" => Part::Group,
        b"edge" => Part::Edge,
        b"device" => Part::Device,
        b"place" => Part::Place,
        b"metric" => Part::Metric,
        _ if kind == TemplateKind::Sparkplug => return Err(SPARKPLUG_ONLY),
        _ => match name.strip_prefix("tag:") {
            Some(tag) if !tag.is_empty() => Part::Tag(tag.to_owned()),
            _ => {
                return Err(
                    "it may hold {topic}, {1} to {9}, {path}, {measurement}, {tags}, {pairs}, {values}, {tag:NAME} and \
                     {field} only",
                );
            }
        },
    };
    let is_of_topic = matches!(part, Part::Topic | Part::Level(_));
    let is_path = part == Part::Path;
    let is_of_sparkplug = matches!(
        part,
        Part::Group | Part::Edge | Part::Device | Part::Place | Part::Metric
    );
    match kind {
        TemplateKind::Sparkplug if !is_of_sparkplug => Err(SPARKPLUG_ONLY),
        TemplateKind::Sparkplug => Ok(part),
        _ if is_of_sparkplug => Err(
            "{group}, {edge}, {device}, {place} and {metric} are for payload = \"sparkplug\" only",
        ),
        TemplateKind::Topic if is_path => Err("{path} is for json_fields only"),
        TemplateKind::Topic if !is_of_topic => Err("only {topic} and {1} to {9} make sense here"),
        TemplateKind::Line if is_of_topic || is_path => Err(
            "only {measurement}, {tags}, {pairs}, {values}, {tag:NAME} and {field} make sense here",
        ),
        TemplateKind::TopicAndLine if is_path => Err("{path} is for json_fields only"),
        TemplateKind::TopicAndPath if !is_of_topic && !is_path => {
            Err("only {topic}, {1} to {9} and {path} make sense here")
        }
        _ => Ok(part),
    }
}
