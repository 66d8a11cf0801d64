//! Where a line ends: at the first line break outside of a quoted text.
//!
//! An outside person may choose the content of a logged text. If such a text were cut at its line breaks, the pieces
//! would be lines of their own, and that person could set any sensor. So quotes are followed even in a line that is
//! later refused. `="` after the first space begins a text, also in a line with other errors. Where a tag's value may
//! end with a backslash, which has no form in lines, the space behind it counts as the first, too.

use memchr::memchr2;

/// What is known about the end of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The end has not arrived yet.
    More,
    /// The position of the line break, counted from the beginning of the line.
    At(usize),
    /// A quoted text contains line breaks, and its end is unknown. It is longer than a line may be, or its line was cut
    /// off and the quote belongs to a later line. Bytes after its first quote cannot be trusted.
    Open,
}

/// Finds the end of one line, as its bytes arrive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LineEnd {
    line_bytes_max: usize,
    /// Number of leading bytes without a line break or a quote, before any byte is followed.
    plain: usize,
    /// Number of bytes that have been followed.
    followed: usize,
    place: Place,
    /// Whether the previous byte was a backslash that escapes.
    is_escaped: bool,
    /// Whether the line begins with white space.
    is_indented: bool,
    /// Position of the first line break within the open text.
    text_break: Option<usize>,
    /// What is known about the text behind its last line break.
    tail: Tail,
}

/// The end of a text, which may be the beginning of a line: a name, a space, and a field's name with its equals sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tail {
    Name,
    Fields,
    Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Only white space so far.
    Blank,
    /// The measurement of a line that begins with white space, or a tag's value behind an escaped space. The
    /// measurement may be missing, so a name before an equals sign here is a field.
    Indented,
    Comment,
    /// The measurement, where a quote stands for itself.
    Head,
    /// The name of a tag, and its value: the same.
    TagName,
    Tag,
    Fields,
    /// After an equals sign.
    Value,
    Text,
    /// After the quote that ends a text.
    Closed,
}

impl LineEnd {
    pub(crate) fn new(line_bytes_max: usize) -> Self {
        Self {
            line_bytes_max,
            plain: 0,
            followed: 0,
            place: Place::Blank,
            is_escaped: false,
            is_indented: false,
            text_break: None,
            tail: Tail::Name,
        }
    }

    /// Searches the line's bytes from its byte `begin` on. All of them must have been passed before; the bytes before
    /// `begin` have been [followed](Self::follow).
    pub(crate) fn find(&mut self, begin: usize, bytes: &[u8]) -> Found {
        if self.followed == 0 {
            // Most lines contain no quoted text.
            let rest = bytes.get(self.plain..).unwrap_or_default();
            match memchr2(b'\n', b'"', rest) {
                None => {
                    self.plain = bytes.len();
                    return Found::More;
                }
                Some(offset) if rest[offset] == b'\n' => return Found::At(self.plain + offset),
                Some(_) => {}
            }
        }
        self.follow(begin, bytes)
    }

    /// As [`find`](Self::find), but the caller need not pass these bytes again.
    pub(crate) fn follow(&mut self, begin: usize, bytes: &[u8]) -> Found {
        let from = self.followed.saturating_sub(begin);
        for byte in bytes.get(from..).unwrap_or_default() {
            let found = self.step(*byte);
            if found != Found::More {
                return found;
            }
            self.followed += 1;
        }
        Found::More
    }

    /// Returns whether a quoted text is open that has contained a line break.
    pub(crate) fn is_open(&self) -> bool {
        self.place == Place::Text && self.text_break.is_some()
    }

    /// Returns whether a quoted text is open.
    pub(crate) fn is_in_text(&self) -> bool {
        self.place == Place::Text
    }

    fn step(&mut self, byte: u8) -> Found {
        use Place::{Blank, Closed, Comment, Fields, Head, Indented, Tag, TagName, Text, Value};
        if byte == b'\n' && self.place != Text {
            return Found::At(self.followed);
        }
        if self.place == Text {
            return self.step_in_text(byte);
        }
        if std::mem::take(&mut self.is_escaped) && matches!(byte, b',' | b'=' | b' ') {
            // A value cannot end with a backslash, yet its sender may not know that. The author of the value may also
            // be the author of a text behind it. In a value that goes on, an equals sign is escaped.
            if byte == b' ' && self.place == Tag {
                self.place = Indented;
            }
            return Found::More;
        }
        self.place = match (self.place, byte) {
            // A byte order mark, which is skipped.
            (Blank, 0xef) if self.followed == 0 => Blank,
            (Blank, 0xbb) if self.followed == 1 => Blank,
            (Blank, 0xbf) if self.followed == 2 => Blank,
            (Blank, b'#') => Comment,
            (Blank, byte) if byte.is_ascii_whitespace() => {
                self.is_indented = true;
                Blank
            }
            (Value, b'"') => {
                self.text_break = None;
                Text
            }
            // No valid text ends like this: its line was cut off, and this is the quote of a later line. The author of
            // the text of that line also chose what follows.
            (Closed, byte) if self.text_break.is_some() && !matches!(byte, b',' | b' ' | b'\r') => {
                return Found::Open;
            }
            (Blank | Indented, byte)
                if (self.is_indented || self.place == Indented) && byte != b',' =>
            {
                self.is_escaped = byte == b'\\';
                match byte {
                    b' ' => Fields,
                    b'=' => Value,
                    _ => Indented,
                }
            }
            (Blank | Head, b'\\') => {
                self.is_escaped = true;
                Head
            }
            (place @ (TagName | Tag), b'\\') => {
                self.is_escaped = true;
                place
            }
            (Blank | Head | Indented | Tag, b',') => TagName,
            (Head | TagName | Tag, b' ') => Fields,
            (TagName, b'=') => Tag,
            (place @ (TagName | Tag), _) => place,
            (Blank | Head | Indented, _) => Head,
            (Comment, _) => Comment,
            (Fields | Value | Closed, byte) => {
                self.is_escaped = byte == b'\\';
                if byte == b'=' { Value } else { Fields }
            }
            (Text, _) => Text,
        };
        Found::More
    }

    fn step_in_text(&mut self, byte: u8) -> Found {
        let tail = self.tail;
        self.tail = match (tail, byte) {
            (_, b'\n') => Tail::Name,
            (Tail::Name, b' ') => Tail::Fields,
            (Tail::Name, _) => Tail::Name,
            (_, b'=') => Tail::Value,
            _ => Tail::Fields,
        };
        if byte == b'\n' {
            self.text_break.get_or_insert(self.followed);
        }
        if self.text_break.is_some() && self.followed > self.line_bytes_max {
            return Found::Open;
        }
        let was_escaped = std::mem::take(&mut self.is_escaped);
        match byte {
            // The last line of the text looks like the beginning of a line whose own text begins here.
            b'"' if !was_escaped && self.text_break.is_some() && tail == Tail::Value => {
                return Found::Open;
            }
            b'"' if !was_escaped => self.place = Place::Closed,
            b'\\' => self.is_escaped = !was_escaped,
            _ => {}
        }
        Found::More
    }
}

/// Returns the size of the first line of `bytes` without its line feed. `None` if there is no line feed outside of a
/// quoted text, so that all bytes are one line.
#[must_use]
pub fn first_line_bytes(bytes: &[u8]) -> Option<usize> {
    match LineEnd::new(usize::MAX).find(0, bytes) {
        Found::At(at) => Some(at),
        Found::More | Found::Open => None,
    }
}
