//! Reads a TOML document key by key. Each value is requested by name, with its default and its range. A key that is
//! never requested is unknown. So the keys that the program knows and those that it accepts cannot diverge, and each
//! problem has a line.

use std::cell::RefCell;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The least similarity of two names, as a share of their length, for a suspected spelling mistake.
const SIMILARITY_MIN: f64 = 0.7;

/// Characters of a user's value or key that an error repeats, at most.
const SHOWN_LETTERS_MAX: usize = 80;

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// Line, from 1.
    pub(crate) line: usize,
    /// Key and problem.
    pub(crate) wrong: String,
    /// The remedy.
    pub(crate) remedy: String,
    /// Whether it is reported first: a misspelt key comes before its consequences, such as a missing key.
    pub(super) first: bool,
}

/// A document that is being read.
pub(super) struct Document<'t> {
    text: &'t str,
    /// The end of each line. Kept because each setting needs its line: counting again each time would be quadratic.
    line_ends: Vec<usize>,
    problems: RefCell<Vec<Problem>>,
    /// Every key that was requested, such as `store.image`.
    known: RefCell<Vec<String>>,
}

impl<'t> Document<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self {
            text,
            line_ends: text.match_indices('\n').map(|(at, _)| at).collect(),
            problems: RefCell::new(Vec::new()),
            known: RefCell::new(Vec::new()),
        }
    }

    /// Returns the top of the document; notes a problem if it is no TOML.
    pub(super) fn parse(&self) -> Option<Spanned<DeTable<'t>>> {
        match DeTable::parse(self.text) {
            Ok(table) => Some(table),
            Err(error) => {
                let line = error.span().map_or(1, |span| self.line(&span));
                let message = shorten(&error.message().replace('\n', ", "));
                self.problem(line, format!("is not TOML: {message}"), "mend this line");
                None
            }
        }
    }

    fn line(&self, span: &Range<usize>) -> usize {
        self.line_ends.partition_point(|end| *end < span.start) + 1
    }

    pub(super) fn problem(&self, line: usize, wrong: impl Into<String>, remedy: impl Into<String>) {
        self.problems.borrow_mut().push(Problem {
            line,
            wrong: wrong.into(),
            remedy: remedy.into(),
            first: false,
        });
    }

    /// Returns the problems, misspelt keys first, then by line, and the requested keys.
    pub(super) fn finish(self) -> (Vec<Problem>, Vec<String>) {
        let mut problems = self.problems.into_inner();
        problems.sort_by_key(|problem| (!problem.first, problem.line));
        (problems, self.known.into_inner())
    }
}

/// A table of the document, or an absent one that has only defaults.
pub(super) struct Section<'d, 't> {
    document: &'d Document<'t>,
    /// `store`, or empty at the top.
    name: String,
    /// Line of its heading.
    line: usize,
    table: Option<&'d DeTable<'t>>,
    asked: RefCell<Vec<&'static str>>,
}

/// A value and its position.
pub(super) struct At<T> {
    pub(super) line: usize,
    pub(super) value: T,
}

impl<'d, 't> Section<'d, 't> {
    pub(super) fn top(document: &'d Document<'t>, table: &'d DeTable<'t>) -> Self {
        Self::new(document, String::new(), 1, Some(table))
    }

    fn new(
        document: &'d Document<'t>,
        name: String,
        line: usize,
        table: Option<&'d DeTable<'t>>,
    ) -> Self {
        Self {
            document,
            name,
            line,
            table,
            asked: RefCell::new(Vec::new()),
        }
    }

    /// Returns the line of its heading.
    pub(super) fn line(&self) -> usize {
        self.line
    }

    /// Returns the full name of a key, such as `store.image`.
    fn path(&self, key: &str) -> String {
        if self.name.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.name)
        }
    }

    /// Returns the line of a key, or of the heading if the key is absent.
    pub(super) fn line_of(&self, key: &str) -> usize {
        let mut names = self.table.into_iter().flat_map(DeTable::iter);
        let found = names.find(|(name, _)| name.get_ref().as_ref() == key);
        found.map_or(self.line, |(name, _)| self.document.line(&name.span()))
    }

    /// Returns whether the key is present, with any value.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table
            .is_some_and(|table| table.keys().any(|name| name.get_ref().as_ref() == key))
    }

    fn find(&self, key: &'static str) -> Option<(usize, &'d DeValue<'t>)> {
        self.asked.borrow_mut().push(key);
        self.document.known.borrow_mut().push(self.path(key));
        let (name, value) = self
            .table?
            .iter()
            .find(|(name, _)| name.get_ref().as_ref() == key)?;
        Some((self.document.line(&name.span()), value.get_ref()))
    }

    /// Notes that a key has the wrong value.
    pub(super) fn wrong(&self, line: usize, key: &str, wrong: &str, remedy: impl Into<String>) {
        self.document
            .problem(line, format!("{} {wrong}", self.path(key)), remedy);
    }

    fn wrong_type(&self, line: usize, key: &str, value: &DeValue<'t>, expected: &str) {
        let found = match value {
            DeValue::String(_) => "text",
            DeValue::Integer(_) => "a whole number",
            DeValue::Float(_) => "a number with a fraction",
            DeValue::Boolean(_) => "a truth value",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "an array",
            DeValue::Table(_) => "a table",
        };
        self.wrong(
            line,
            key,
            &format!("is {found}"),
            format!("give {expected}"),
        );
    }

    /// Returns a table in this one; if it is absent, all its keys have their defaults.
    pub(super) fn section(&self, key: &'static str) -> Self {
        self.section_if_there(key)
            .unwrap_or_else(|| Self::new(self.document, self.path(key), self.line, None))
    }

    /// Returns a table in this one, if it is present.
    pub(super) fn section_if_there(&self, key: &'static str) -> Option<Self> {
        let (line, value) = self.find(key)?;
        if let DeValue::Table(table) = value {
            return Some(Self::new(self.document, self.path(key), line, Some(table)));
        }
        self.wrong_type(line, key, value, &format!("a table: [{}]", self.path(key)));
        None
    }

    /// Returns the tables of an array of tables, at most `count_max`.
    pub(super) fn sections(&self, key: &'static str, count_max: usize) -> Vec<Self> {
        let Some((line, value)) = self.find(key) else {
            return Vec::new();
        };
        let expected = format!("tables: [[{}]]", self.path(key));
        let DeValue::Array(array) = value else {
            self.wrong_type(line, key, value, &expected);
            return Vec::new();
        };
        if array.len() > count_max {
            let wrong = format!("is there {} times", array.len());
            self.wrong(line, key, &wrong, format!("give at most {count_max}"));
            return Vec::new();
        }
        let mut sections = Vec::new();
        for element in array.iter() {
            let line = self.document.line(&element.span());
            match element.get_ref() {
                DeValue::Table(table) => {
                    let name = self.path(key);
                    sections.push(Self::new(self.document, name, line, Some(table)));
                }
                other => self.wrong_type(line, key, other, &expected),
            }
        }
        sections
    }

    /// Reads an integer in a range.
    pub(super) fn integer(&self, key: &'static str, default: u64, range: (u64, u64)) -> u64 {
        let Some((line, value)) = self.find(key) else {
            return default;
        };
        let (low, high) = range;
        let expected = format!("a whole number from {low} to {high}");
        let DeValue::Integer(digits) = value else {
            self.wrong_type(line, key, value, &expected);
            return default;
        };
        match i128::from_str_radix(digits.as_str(), digits.radix()) {
            Ok(number) if (i128::from(low)..=i128::from(high)).contains(&number) => number as u64,
            _ => {
                let wrong = format!("is {}", shorten(&digits.to_string()));
                self.wrong(line, key, &wrong, format!("give {expected}"));
                default
            }
        }
    }

    /// Reads a number in a range, with or without a fraction.
    pub(super) fn number(&self, key: &'static str, default: f64, range: (f64, f64)) -> f64 {
        let Some((line, value)) = self.find(key) else {
            return default;
        };
        let (low, high) = range;
        let expected = format!("a number from {low} to {high}");
        let shown = match value {
            DeValue::Float(digits) => digits.as_str().to_owned(),
            DeValue::Integer(digits) if digits.radix() == 10 => digits.as_str().to_owned(),
            _ => {
                self.wrong_type(line, key, value, &expected);
                return default;
            }
        };
        match shown.parse::<f64>() {
            Ok(number) if (low..=high).contains(&number) => number,
            _ => {
                let wrong = format!("is {}", shorten(&shown));
                self.wrong(line, key, &wrong, format!("give {expected}"));
                default
            }
        }
    }

    pub(super) fn boolean(&self, key: &'static str, default: bool) -> bool {
        match self.find(key) {
            None => default,
            Some((_, DeValue::Boolean(value))) => *value,
            Some((line, value)) => {
                self.wrong_type(line, key, value, "true or false");
                default
            }
        }
    }

    /// Reads a non-empty text of at most `bytes_max` bytes.
    pub(super) fn text(&self, key: &'static str, bytes_max: usize) -> Option<At<String>> {
        let at = self.text_or_empty(key, bytes_max)?;
        if at.value.is_empty() {
            self.wrong(at.line, key, "is empty", "give a text, or remove the line");
            return None;
        }
        Some(at)
    }

    /// Reads a text of at most `bytes_max` bytes without control characters.
    pub(super) fn text_or_empty(&self, key: &'static str, bytes_max: usize) -> Option<At<String>> {
        let (line, value) = self.find(key)?;
        let DeValue::String(text) = value else {
            self.wrong_type(line, key, value, "a text in quotes");
            return None;
        };
        if text.len() > bytes_max {
            let wrong = format!("has {} bytes", text.len());
            self.wrong(line, key, &wrong, format!("give at most {bytes_max}"));
            return None;
        }
        if text.chars().any(char::is_control) {
            self.wrong(line, key, "holds a control character", "remove it");
            return None;
        }
        Some(At {
            line,
            value: text.clone().into_owned(),
        })
    }

    /// Reads a mandatory text. If it is missing, notes a problem and returns an empty text.
    pub(super) fn required(&self, key: &'static str, bytes_max: usize, remedy: &str) -> At<String> {
        if !self.has(key) {
            self.wrong(self.line, key, "is missing", remedy);
        }
        self.text(key, bytes_max).unwrap_or(At {
            line: self.line,
            value: String::new(),
        })
    }

    /// Reads an array of texts; `limits`: the most texts, and the most bytes of each.
    pub(super) fn words(
        &self,
        key: &'static str,
        limits: (usize, usize),
    ) -> Option<At<Vec<String>>> {
        let (line, texts) = self.texts(key, limits)?;
        let value = texts.into_iter().map(|at| at.value).collect();
        Some(At { line, value })
    }

    /// As [`words`](Self::words): the line of the key, and the texts, each with its own line.
    pub(super) fn texts(
        &self,
        key: &'static str,
        limits: (usize, usize),
    ) -> Option<(usize, Vec<At<String>>)> {
        let (count_max, bytes_max) = limits;
        let (line, elements) = self.array(key, count_max, "an array of texts in quotes")?;
        let mut texts = Vec::with_capacity(elements.len());
        for element in elements {
            let DeValue::String(text) = element.get_ref() else {
                self.wrong_type(line, key, element.get_ref(), "texts in quotes");
                return None;
            };
            if text.len() > bytes_max {
                let wrong = format!("holds a text of {} bytes", text.len());
                self.wrong(line, key, &wrong, format!("give at most {bytes_max}"));
                return None;
            }
            if text.contains('\0') {
                self.wrong(line, key, "holds a zero byte", "remove it");
                return None;
            }
            texts.push(At {
                line: self.document.line(&element.span()),
                value: text.clone().into_owned(),
            });
        }
        Some((line, texts))
    }

    /// Reads an array of integers; `limits`: the most integers, and the least and the greatest value.
    pub(super) fn integers(&self, key: &'static str, limits: (usize, u64, u64)) -> Vec<u64> {
        let (count_max, low, high) = limits;
        let expected = format!("whole numbers from {low} to {high}");
        let Some((line, elements)) = self.array(key, count_max, &format!("an array of {expected}"))
        else {
            return Vec::new();
        };
        let mut numbers = Vec::with_capacity(elements.len());
        for element in elements {
            let number = match element.get_ref() {
                DeValue::Integer(digits) => {
                    i128::from_str_radix(digits.as_str(), digits.radix()).ok()
                }
                other => {
                    self.wrong_type(line, key, other, &expected);
                    return Vec::new();
                }
            };
            match number.filter(|one| (i128::from(low)..=i128::from(high)).contains(one)) {
                Some(number) => numbers.push(number as u64),
                None => {
                    let wrong = "holds another number";
                    self.wrong(line, key, wrong, format!("give {expected}"));
                    return Vec::new();
                }
            }
        }
        numbers
    }

    /// Returns the elements of an array and its line; `None` also if there are too many, or if it is no array.
    fn array(
        &self,
        key: &'static str,
        count_max: usize,
        expected: &str,
    ) -> Option<(usize, Vec<&'d Spanned<DeValue<'t>>>)> {
        let (line, value) = self.find(key)?;
        let DeValue::Array(array) = value else {
            self.wrong_type(line, key, value, expected);
            return None;
        };
        if array.len() > count_max {
            let wrong = format!("has {} elements", array.len());
            self.wrong(line, key, &wrong, format!("give at most {count_max}"));
            return None;
        }
        Some((line, array.iter().collect()))
    }

    /// Reads one of several words.
    pub(super) fn choice<T: Copy>(
        &self,
        key: &'static str,
        default: T,
        choices: &[(&str, T)],
    ) -> T {
        let Some((line, value)) = self.find(key) else {
            return default;
        };
        let words: Vec<String> = choices
            .iter()
            .map(|(word, _)| format!("\"{word}\""))
            .collect();
        let expected = words.join(" or ");
        let DeValue::String(text) = value else {
            self.wrong_type(line, key, value, &expected);
            return default;
        };
        if let Some((_, chosen)) = choices.iter().find(|(word, _)| *word == text.as_ref()) {
            return *chosen;
        }
        let wrong = format!("is \"{}\"", shorten(text));
        self.wrong(line, key, &wrong, format!("give {expected}"));
        default
    }

    /// Notes every key of this table that was not requested.
    pub(super) fn finish(self) {
        let asked = self.asked.borrow();
        for (name, _) in self.table.into_iter().flat_map(DeTable::iter) {
            let key = name.get_ref().as_ref();
            if asked.contains(&key) {
                continue;
            }
            let path = self.path(key);
            self.document.problems.borrow_mut().push(Problem {
                line: self.document.line(&name.span()),
                wrong: format!("unknown key {}", shorten(&path)),
                remedy: nearest(key, &asked),
                first: true,
            });
        }
    }
}

/// Returns the key that the user may have meant.
fn nearest(key: &str, known: &[&'static str]) -> String {
    let likeness = |one: &&str| strsim::jaro_winkler(one, key);
    let best = known
        .iter()
        .filter(|one| likeness(one) >= SIMILARITY_MIN)
        .max_by(|one, other| likeness(one).total_cmp(&likeness(other)));
    match best {
        Some(best) => format!("did you mean {best}?"),
        None => "remove it; `keel config example` shows every key".to_owned(),
    }
}

/// Returns a text of the user, cut to fit a line.
fn shorten(text: &str) -> String {
    if text.chars().count() <= SHOWN_LETTERS_MAX {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(SHOWN_LETTERS_MAX).collect();
    short.push('…');
    short
}
