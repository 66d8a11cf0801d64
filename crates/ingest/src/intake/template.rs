//! How a key is built from a topic or from a line.

use crate::Error;
use crate::line::{ESCAPED, Escaped, Line, push_tag};

/// Size of the longest template, in bytes.
pub const TEMPLATE_BYTES_MAX: usize = 256;

/// The data that a template can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplateKind {
    /// A topic: `{topic}` and its levels `{1}` to `{9}`.
    Topic,
    /// A field of a line: `{measurement}`, `{tags}` (the values in the order of the tags' names, separated by
    /// `/`), `{tag:NAME}` and `{field}`.
    Line,
    /// A field of a line in a message: all of these.
    TopicAndLine,
    /// One of several values of a JSON document: a topic and `{path}`, the value's path as levels.
    TopicAndPath,
}

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
}

/// A checked template. A missing part of a message is empty, and an empty level is left out with its `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(String),
    Topic,
    /// A topic level, from 0.
    Level(usize),
    Measurement,
    Tags,
    Tag(String),
    Field,
    Path,
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
        Ok(Self { parts })
    }

    /// Returns the template of the topic itself.
    #[must_use]
    pub fn topic() -> Self {
        Self {
            parts: vec![Part::Topic],
        }
    }

    /// Returns `{measurement}/{tags}/{field}`.
    #[must_use]
    pub fn line() -> Self {
        let slash = || Part::Literal("/".to_owned());
        Self {
            parts: vec![Part::Measurement, slash(), Part::Tags, slash(), Part::Field],
        }
    }

    /// Writes the key of a reading of a message with this topic, or of a line, to `key`.
    pub(crate) fn render(&self, key: &mut String, topic: &str, subject: Subject<'_>) {
        key.clear();
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
                (Part::Measurement, Subject::Field(line, _)) => line.measurement().push_to(key),
                (Part::Tags, Subject::Field(line, _)) => line.push_tag_values(key),
                (Part::Tag(name), Subject::Field(line, _)) => {
                    if let Some(value) = line.tag(name) {
                        value.push_to(key);
                    }
                }
                (Part::Field, Subject::Field(_, field)) => field.push_to(key),
                (Part::Path, Subject::Member { key_part, .. }) => key.push_str(key_part),
                _ => {}
            }
            let at_level_start = before == 0 || key.as_bytes().get(before - 1) == Some(&b'/');
            level_is_empty = key.len() == before && at_level_start;
        }
        if level_is_empty {
            key.pop();
        }
    }

    /// Appends the data that [`render`](Self::render) uses, in line protocol form, to `identity`: two messages or
    /// fields have the same text if and only if they agree in everything that the template names. Two values of
    /// documents must also have the same path, whatever the template names: one message brings both. What stands for
    /// the path counts, too: rules with the same template may name it differently. Topics and paths must not contain
    /// line feeds.
    pub(crate) fn identify(&self, identity: &mut String, topic: &str, subject: Subject<'_>) {
        let begin = identity.len();
        for part in &self.parts {
            match (part, subject) {
                // A line feed at both ends delimits the topic: commas, spaces and backslashes stand for themselves
                // here.
                (Part::Topic, _) => {
                    identity.push('\n');
                    identity.push_str(topic);
                    identity.push('\n');
                }
                (Part::Level(level), _) => {
                    identity.push('\n');
                    identity.push_str(topic.split('/').nth(*level).unwrap_or(""));
                    identity.push('\n');
                }
                (Part::Measurement, Subject::Field(line, _)) => {
                    if identity.len() > begin {
                        identity.push('\n');
                    }
                    line.measurement().push_escaped_to(identity, &[',', ' ']);
                }
                (Part::Tags, Subject::Field(line, _)) => line.push_tags(identity),
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
        if let Subject::Member { path, key_part } = subject {
            identity.push('\n');
            identity.push_str(path);
            identity.push('\n');
            if key_part != path {
                identity.push('\n');
                identity.push_str(key_part);
                identity.push('\n');
            }
        }
    }

    /// Returns whether the key is the topic, so that no two topics have the same key.
    pub(crate) fn is_topic(&self) -> bool {
        self.parts == [Part::Topic]
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
        b"field" => Part::Field,
        b"path" => Part::Path,
        _ => match name.strip_prefix("tag:") {
            Some(tag) if !tag.is_empty() => Part::Tag(tag.to_owned()),
            _ => {
                return Err(
                    "it may hold {topic}, {1} to {9}, {path}, {measurement}, {tags}, {tag:NAME} and {field} only",
                );
            }
        },
    };
    let is_of_topic = matches!(part, Part::Topic | Part::Level(_));
    let is_path = part == Part::Path;
    match kind {
        TemplateKind::Topic if is_path => Err("{path} is for json_fields only"),
        TemplateKind::Topic if !is_of_topic => Err("only {topic} and {1} to {9} make sense here"),
        TemplateKind::Line if is_of_topic || is_path => {
            Err("only {measurement}, {tags}, {tag:NAME} and {field} make sense here")
        }
        TemplateKind::TopicAndLine if is_path => Err("{path} is for json_fields only"),
        TemplateKind::TopicAndPath if !is_of_topic && !is_path => {
            Err("only {topic}, {1} to {9} and {path} make sense here")
        }
        _ => Ok(part),
    }
}
