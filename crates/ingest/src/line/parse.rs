//! The grammar of one line, without allocation: parsed items borrow from the text, including escapes.

use std::cmp::Ordering;

use base::seeded_bug::SeededBug;

use crate::intake::Reason;

/// Largest number of tags of one line.
pub const TAGS_MAX: usize = 32;

/// Largest number of fields of one line.
pub const FIELDS_MAX: usize = 256;

/// A measurement, a name or value of a tag, or a field's name, with its escapes as in the line.
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a>(&'a str);

impl<'a> Escaped<'a> {
    /// Returns the characters without escapes.
    pub fn chars(self) -> impl Iterator<Item = char> + 'a {
        unescaped(self.0, is_escapable)
    }

    /// Appends the text without escapes to `text`.
    pub fn push_to(self, text: &mut String) {
        if self.0.contains('\\') {
            text.extend(self.chars());
        } else {
            text.push_str(self.0);
        }
    }

    /// Appends it with a backslash before each of `special` alone. This form is unique for each name, also where
    /// another part of the line follows it, because no name ends with a backslash.
    pub(crate) fn push_escaped_to(self, text: &mut String, special: &[char]) {
        if !self.0.contains('\\') {
            // A text without escapes contains none of the special characters.
            text.push_str(self.0);
            return;
        }
        for found in self.chars() {
            if special.contains(&found) {
                text.push('\\');
            }
            text.push(found);
        }
    }

    /// Appends the text without escapes as a part of a key that can be read back. `/` separates levels there, so it
    /// becomes `~1`, and `~` becomes `~0`. In a tag's name, `=` becomes `~2`, because the first one ends the name.
    pub(crate) fn push_level_to(self, text: &mut String, is_name_of_tag: bool) {
        for found in self.chars() {
            match found {
                '~' => text.push_str("~0"),
                '/' if !SeededBug::SlashUnescaped.is_on() => text.push_str("~1"),
                '=' if is_name_of_tag => text.push_str("~2"),
                other => text.push(other),
            }
        }
    }

    fn order(self, other: Self) -> Ordering {
        if self.0.contains('\\') || other.0.contains('\\') {
            self.chars().cmp(other.chars())
        } else {
            self.0.cmp(other.0)
        }
    }
}

/// The content of a quoted text, with its escapes.
#[derive(Clone, Copy, Debug)]
pub struct Quoted<'a>(&'a str);

impl Quoted<'_> {
    /// Appends the text without escapes to `text`.
    pub fn push_to(self, text: &mut String) {
        if self.0.contains('\\') {
            text.extend(unescaped(self.0, |byte| matches!(byte, b'"' | b'\\')));
        } else {
            text.push_str(self.0);
        }
    }
}

/// The value of a field.
#[derive(Clone, Copy, Debug)]
pub enum FieldValue<'a> {
    /// `21.5`
    Float(f64),
    /// `21i`
    Integer(i64),
    /// `21u`
    Unsigned(u64),
    /// `t`, `true`, `f` …
    Boolean(bool),
    /// `"open"`
    Text(Quoted<'a>),
}

/// One line that is valid as a whole.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    measurement: Escaped<'a>,
    /// `name=value,…` or empty.
    tags: &'a str,
    fields: &'a str,
    time: Option<i64>,
}

impl<'a> Line<'a> {
    /// Returns the measurement.
    #[must_use]
    pub fn measurement(&self) -> Escaped<'a> {
        self.measurement
    }

    /// Returns names and values of the tags, in the order of the line.
    pub fn tags(&self) -> impl Iterator<Item = (Escaped<'a>, Escaped<'a>)> + use<'a> {
        let mut rest = self.tags;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let (name, value, tail) = tag(rest).ok()?;
            rest = tail.strip_prefix(',').unwrap_or("");
            Some((name, value))
        })
    }

    /// Returns the value of the first tag with this name.
    #[must_use]
    pub fn tag(&self, name: &str) -> Option<Escaped<'a>> {
        self.tag_pair(name).map(|(_, value)| value)
    }

    pub(crate) fn tag_pair(&self, name: &str) -> Option<(Escaped<'a>, Escaped<'a>)> {
        self.tags()
            .find(|(found, _)| found.chars().eq(name.chars()))
    }

    /// Appends the values of the tags, in the order of the tags' names, separated by `/`; with `is_escaped`, so that
    /// they can be read back.
    pub(crate) fn push_tag_values(&self, text: &mut String, is_escaped: bool) {
        self.with_sorted_tags(|tags| {
            for (index, (_, value)) in tags.iter().enumerate() {
                if index > 0 {
                    text.push('/');
                }
                if is_escaped {
                    value.push_level_to(text, false);
                } else {
                    value.push_to(text);
                }
            }
        });
    }

    /// Appends `name=value` for each tag, in the order of the names, separated by `/`, so that they can be read back.
    pub(crate) fn push_tag_pairs(&self, text: &mut String) {
        self.with_sorted_tags(|tags| {
            for (index, (name, value)) in tags.iter().enumerate() {
                if index > 0 {
                    text.push('/');
                }
                name.push_level_to(text, true);
                text.push('=');
                value.push_level_to(text, false);
            }
        });
    }

    /// Appends `,name=value` for each tag, in the order of the names, in the form of this protocol.
    pub(crate) fn push_tags(&self, text: &mut String) {
        self.with_sorted_tags(|tags| {
            for (name, value) in tags {
                push_tag(text, *name, *value);
            }
        });
    }

    fn with_sorted_tags<T>(&self, take: impl FnOnce(&[(Escaped<'a>, Escaped<'a>)]) -> T) -> T {
        let mut sorted = [(Escaped(""), Escaped("")); TAGS_MAX];
        let mut count = 0;
        for (place, tag) in sorted.iter_mut().zip(self.tags()) {
            *place = tag;
            count += 1;
        }
        let sorted = &mut sorted[..count];
        sorted.sort_by(|left, right| left.0.order(right.0));
        take(sorted)
    }

    /// Returns names and values of the fields, in the order of the line; at least one.
    pub fn fields(&self) -> impl Iterator<Item = (Escaped<'a>, FieldValue<'a>)> + use<'a> {
        let mut rest = self.fields;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let (name, value, tail) = field(rest).ok()?;
            rest = tail.strip_prefix(',').unwrap_or("");
            Some((name, value))
        })
    }

    /// Returns the timestamp, in the sender's unit.
    #[must_use]
    pub fn time(&self) -> Option<i64> {
        self.time
    }
}

/// Parses one line without its end. The caller must skip blank lines and comments.
///
/// # Errors
/// [`Reason::LineInvalid`], [`Reason::NotFinite`] for a NaN or infinite number, [`Reason::Oversized`] for more
/// than [`TAGS_MAX`] tags or [`FIELDS_MAX`] fields.
pub fn parse(text: &str) -> Result<Line<'_>, Reason> {
    let text = text.trim_start_matches(' ');
    let (measurement, mut rest) = text.split_at(token_end(text, b", "));
    if measurement.is_empty() {
        return Err(Reason::LineInvalid);
    }
    let mut tags = "";
    if let Some(from) = rest.strip_prefix(',') {
        let mut tail = from;
        let mut count = 0;
        loop {
            count += 1;
            if count > TAGS_MAX {
                return Err(Reason::Oversized);
            }
            (_, _, tail) = tag(tail)?;
            match tail.strip_prefix(',') {
                Some(next) => tail = next,
                None => break,
            }
        }
        tags = &from[..from.len() - tail.len()];
        rest = tail;
        if count > 1 && has_twice(tags) {
            return Err(Reason::LineInvalid);
        }
    }
    let from = rest.trim_start_matches(' ');
    if from.len() == rest.len() {
        return Err(Reason::LineInvalid);
    }
    let tail = match after_fields::<FEW>(from)? {
        Some(tail) => tail,
        None => after_fields::<FIELDS_MAX>(from)?.ok_or(Reason::Oversized)?,
    };
    let fields = &from[..from.len() - tail.len()];
    let time = match tail.trim_matches(' ') {
        "" => None,
        digits => Some(digits.parse().map_err(|_| Reason::LineInvalid)?),
    };
    Ok(Line {
        measurement: Escaped(measurement),
        tags,
        fields,
        time,
    })
}

/// Returns whether a tag appears twice: it would be ambiguous which one counts.
fn has_twice(tags: &str) -> bool {
    let line = Line {
        measurement: Escaped(""),
        tags,
        fields: "",
        time: None,
    };
    line.with_sorted_tags(|tags| {
        tags.windows(2)
            .any(|pair| pair[0].0.order(pair[1].0) == std::cmp::Ordering::Equal)
    })
}

/// Fields of most lines, at most: their names are sorted in a smaller place.
const FEW: usize = 16;

/// Parses the fields with which `text` begins, at most `N`. Returns the rest; `None` if there are more fields.
///
/// # Errors
/// Those of a field; [`Reason::LineInvalid`] also if a field appears twice.
fn after_fields<const N: usize>(text: &str) -> Result<Option<&str>, Reason> {
    let mut names = [Escaped(""); N];
    let (mut rest, mut count) = (text, 0);
    while count < N {
        let (name, _, tail) = field(rest)?;
        names[count] = name;
        count += 1;
        match tail.strip_prefix(',') {
            Some(next) => rest = next,
            None if is_any_twice(&mut names[..count]) => return Err(Reason::LineInvalid),
            None => return Ok(Some(tail)),
        }
    }
    Ok(None)
}

fn is_any_twice(names: &mut [Escaped<'_>]) -> bool {
    names.sort_unstable_by(|left, right| left.order(*right));
    names
        .windows(2)
        .any(|pair| pair[0].order(pair[1]) == Ordering::Equal)
}

/// Parses one `name=value`. Returns it and the rest: nothing, or from a comma or space on.
fn tag(text: &str) -> Result<(Escaped<'_>, Escaped<'_>, &str), Reason> {
    let (name, rest) = name(text)?;
    let (value, rest) = rest.split_at(token_end(rest, b",= "));
    if value.is_empty() || rest.starts_with('=') {
        return Err(Reason::LineInvalid);
    }
    Ok((name, Escaped(value), rest))
}

/// Parses one `name=value`. Returns it and the rest: nothing, or from a comma or space on.
fn field(text: &str) -> Result<(Escaped<'_>, FieldValue<'_>, &str), Reason> {
    let (name, rest) = name(text)?;
    if let Some(rest) = rest.strip_prefix('"') {
        let end = text_end(rest).ok_or(Reason::LineInvalid)?;
        let (inside, tail) = (&rest[..end], &rest[end + 1..]);
        if !(tail.is_empty() || tail.starts_with([',', ' '])) {
            return Err(Reason::LineInvalid);
        }
        return Ok((name, FieldValue::Text(Quoted(inside)), tail));
    }
    let end = rest
        .bytes()
        .position(|byte| matches!(byte, b',' | b' '))
        .unwrap_or(rest.len());
    Ok((name, plain_value(&rest[..end])?, &rest[end..]))
}

fn name(text: &str) -> Result<(Escaped<'_>, &str), Reason> {
    let (name, rest) = text.split_at(token_end(text, b",= "));
    match rest.strip_prefix('=') {
        Some(rest) if !name.is_empty() => Ok((Escaped(name), rest)),
        _ => Err(Reason::LineInvalid),
    }
}

fn plain_value(text: &str) -> Result<FieldValue<'_>, Reason> {
    match text {
        "t" | "T" | "true" | "True" | "TRUE" => return Ok(FieldValue::Boolean(true)),
        "f" | "F" | "false" | "False" | "FALSE" => return Ok(FieldValue::Boolean(false)),
        _ => {}
    }
    let invalid = |_| Reason::LineInvalid;
    if let Some(digits) = text.strip_suffix('i') {
        return digits.parse().map(FieldValue::Integer).map_err(invalid);
    }
    if let Some(digits) = text.strip_suffix('u') {
        return digits.parse().map(FieldValue::Unsigned).map_err(invalid);
    }
    match crate::intake::finite(text) {
        Ok(value) => Ok(FieldValue::Float(value)),
        Err(Reason::NotFinite) => Err(Reason::NotFinite),
        Err(_) => Err(Reason::LineInvalid),
    }
}

/// Characters that a backslash escapes in a name or in a tag's value. Before any other character, and so before another
/// backslash, it stands for itself.
pub(crate) const ESCAPED: &[char] = &[',', '=', ' '];

/// Appends `,name=value`.
pub(crate) fn push_tag(text: &mut String, name: Escaped<'_>, value: Escaped<'_>) {
    text.push(',');
    name.push_escaped_to(text, ESCAPED);
    text.push('=');
    value.push_escaped_to(text, ESCAPED);
}

fn is_escapable(byte: u8) -> bool {
    matches!(byte, b',' | b'=' | b' ')
}

/// Returns the number of bytes before the first unescaped one of `stops`, or before a line feed. Only quoted texts may
/// hold line feeds.
fn token_end(text: &str, stops: &[u8]) -> usize {
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        if *byte == b'\n' || stops.contains(byte) {
            return at;
        }
        let is_escape = *byte == b'\\' && bytes.get(at + 1).copied().is_some_and(is_escapable);
        at += 1 + usize::from(is_escape);
    }
    bytes.len()
}

/// Returns the number of bytes before the quote that ends a text.
fn text_end(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = 0;
    loop {
        match bytes.get(at)? {
            b'"' => return Some(at),
            b'\\' if matches!(bytes.get(at + 1), Some(b'"' | b'\\')) => at += 2,
            _ => at += 1,
        }
    }
}

/// Returns the characters of `text`; a backslash before a character that `escapable` accepts stands for that character.
fn unescaped(text: &str, escapable: fn(u8) -> bool) -> impl Iterator<Item = char> + '_ {
    let mut chars = text.chars().peekable();
    std::iter::from_fn(move || {
        let found = chars.next()?;
        if found != '\\' {
            return Some(found);
        }
        let escaped = |next: &char| u8::try_from(*next).is_ok_and(escapable);
        Some(chars.next_if(escaped).unwrap_or('\\'))
    })
}
