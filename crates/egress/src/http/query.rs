//! Input from clients: the query of a URL, and the number of the last message that a reader has seen.
//!
//! **Invariants:** any bytes give an answer, in one pass over them. No input is misread silently: an unknown name, a
//! name given twice and a broken escape are refused.

use base::error::Code;

use super::answer::Refused;

/// Largest number of pairs of a query.
const PAIRS_MAX: usize = 64;

/// The decoded pairs of a query that have not been asked for yet.
#[derive(Debug)]
pub struct Query {
    pairs: Vec<(String, String)>,
}

/// What is wrong with a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryError {
    /// Name of the parameter, or `query`.
    pub name: String,
    /// What is wrong.
    pub wrong: String,
}

impl QueryError {
    fn new(name: &str, wrong: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            wrong: wrong.into(),
        }
    }
}

impl From<QueryError> for Refused {
    fn from(error: QueryError) -> Self {
        let remedy = "see /openapi.json for what this address takes";
        Self::new(Code::Invalid, &error.name, error.wrong, remedy)
    }
}

impl Query {
    /// Reads `name=value&name=value`, with `%XX` for a byte. `+` stays as it is, because keys and patterns contain it.
    ///
    /// # Errors
    /// A broken escape, bytes that are not UTF-8, more than 64 pairs.
    pub fn parse(text: &str) -> Result<Self, QueryError> {
        let mut pairs = Vec::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            if pairs.len() >= PAIRS_MAX {
                let wrong = format!("has more than {PAIRS_MAX} parameters");
                return Err(QueryError::new("query", wrong));
            }
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decode(name).ok_or_else(|| broken("query"))?;
            let value = decode(value).ok_or_else(|| broken(&name))?;
            pairs.push((name, value));
        }
        Ok(Self { pairs })
    }

    /// Returns the value of a name that may appear once.
    ///
    /// # Errors
    /// The name appears twice.
    pub fn text(&mut self, name: &str) -> Result<Option<String>, QueryError> {
        #[cfg(test)]
        asked::note(name, asked::Kind::Text);
        self.take_one(name)
    }

    /// Returns every value of a name, in order.
    pub fn all(&mut self, name: &str) -> Vec<String> {
        #[cfg(test)]
        asked::note(name, asked::Kind::Texts);
        self.take(name)
    }

    fn take_one(&mut self, name: &str) -> Result<Option<String>, QueryError> {
        let mut all = self.take(name);
        let value = all.pop();
        if all.is_empty() {
            return Ok(value);
        }
        Err(QueryError::new(name, "is given twice"))
    }

    fn take(&mut self, name: &str) -> Vec<String> {
        let mut found = Vec::new();
        self.pairs.retain_mut(|(other, value)| {
            let is_it = other == name;
            if is_it {
                found.push(std::mem::take(value));
            }
            !is_it
        });
        found
    }

    /// Returns an integer within a range.
    ///
    /// # Errors
    /// The value is not an integer, or outside the range.
    pub fn integer(&mut self, name: &str, range: (i64, i64)) -> Result<Option<i64>, QueryError> {
        let (low, high) = range;
        #[cfg(test)]
        asked::note(name, asked::Kind::Integer(low, high));
        let Some(text) = self.take_one(name)? else {
            return Ok(None);
        };
        let number = text.parse().ok().filter(|n| (low..=high).contains(n));
        let wrong = || QueryError::new(name, format!("is no whole number from {low} to {high}"));
        number.map(Some).ok_or_else(wrong)
    }

    /// Returns a flag: `0` or `1`; also `false` and `true`.
    ///
    /// # Errors
    /// Anything else.
    pub fn flag(&mut self, name: &str) -> Result<Option<bool>, QueryError> {
        #[cfg(test)]
        asked::note(name, asked::Kind::Flag);
        match self.take_one(name)?.as_deref() {
            None => Ok(None),
            Some("1" | "true") => Ok(Some(true)),
            Some("0" | "false") => Ok(Some(false)),
            Some(_) => Err(QueryError::new(name, "is neither 0 nor 1")),
        }
    }

    /// Checks that there are no other parameters.
    ///
    /// # Errors
    /// The first name that was not asked for.
    pub fn finish(self) -> Result<(), QueryError> {
        match self.pairs.first() {
            None => Ok(()),
            Some((name, _)) => Err(QueryError::new(name, "is no parameter of this address")),
        }
    }
}

fn broken(name: &str) -> QueryError {
    QueryError::new(
        name,
        "holds a % without two hexadecimal digits, or is no UTF-8",
    )
}

/// Decodes `%XX` escapes. `None` if a `%` has no two digits after it, or if the result is not UTF-8.
pub fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let high = char::from(rest.next()?).to_digit(16)?;
            let low = char::from(rest.next()?).to_digit(16)?;
            bytes.push((high * 16 + low) as u8);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

/// Encodes a text as a part of a query; [`decode`] restores it.
#[must_use]
pub fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// The number of a message: the run of the node and how many updates came before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventId {
    /// Tells the runs of a node apart.
    pub run: u32,
    /// Updates of all keys since its start.
    pub updates: u64,
}

impl EventId {
    /// Reads the number that a reader sends back in `Last-Event-ID`. `None` if it does not have this form.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let (run, updates) = text.split_once('-')?;
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if run.len() != 8 || !is_number(run) || !is_number(updates) {
            return None;
        }
        Some(Self {
            run: u32::from_str_radix(run, 16).ok()?,
            updates: updates.parse().ok()?,
        })
    }
}

impl std::fmt::Display for EventId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:08x}-{}", self.run, self.updates)
    }
}

/// What the queries of this thread were asked for, which the description of the API is compared with.
#[cfg(test)]
pub(super) mod asked {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    /// How a parameter is read.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(in crate::http) enum Kind {
        Text,
        /// It may be given more than once.
        Texts,
        /// Within this range.
        Integer(i64, i64),
        Flag,
    }

    thread_local! {
        static ASKED: RefCell<BTreeMap<String, Kind>> = RefCell::default();
    }

    pub(super) fn note(name: &str, kind: Kind) {
        ASKED.with_borrow_mut(|asked| asked.insert(name.to_owned(), kind));
    }

    /// Returns what was asked for since the last call.
    pub(in crate::http) fn take() -> BTreeMap<String, Kind> {
        ASKED.take()
    }
}

#[cfg(test)]
#[path = "../../../../fuzz/src/http.rs"]
mod fuzz_entry;

#[cfg(test)]
#[path = "../../../../fuzz/src/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corpus_of_the_fuzz_target_holds() {
        replay::replay("http_query", fuzz_entry::http_query);
    }

    #[test]
    fn a_query_is_read_name_by_name() {
        let mut query = Query::parse("key=a%2Fb+c&key=d&points=20&live=1&").unwrap();
        assert_eq!(query.all("key"), ["a/b+c", "d"]);
        assert_eq!(query.integer("points", (1, 100)), Ok(Some(20)));
        assert_eq!(query.integer("points", (1, 100)), Ok(None));
        assert_eq!(query.flag("live"), Ok(Some(true)));
        query.finish().unwrap();
    }

    #[test]
    fn an_unknown_or_wrong_parameter_is_refused_by_its_name() {
        type Ask = fn(&mut Query) -> Result<(), QueryError>;
        let name = |text: &str, ask: Ask| {
            let mut query = Query::parse(text)?;
            ask(&mut query)?;
            query.finish()
        };
        let cases: [(&str, &str, Ask); 8] = [
            ("limt=3", "limt", |_| Ok(())),
            ("a=1&a=2", "a", |query| query.text("a").map(drop)),
            ("a=%zz", "a", |_| Ok(())),
            ("a=%f", "a", |_| Ok(())),
            ("a=%ff", "a", |_| Ok(())),
            ("%=1", "query", |_| Ok(())),
            ("n=11", "n", |query| query.integer("n", (0, 10)).map(drop)),
            ("f=2", "f", |query| query.flag("f").map(drop)),
        ];
        for (text, expected, ask) in cases {
            assert_eq!(name(text, ask).unwrap_err().name, expected, "{text}");
        }
        let many = "a=1&".repeat(PAIRS_MAX + 1);
        assert_eq!(Query::parse(&many).unwrap_err().name, "query");
    }

    #[test]
    fn a_message_number_comes_back_and_nothing_else_is_one() {
        let id = EventId {
            run: 0x0a,
            updates: u64::MAX,
        };
        assert_eq!(EventId::parse(id.to_string().as_bytes()), Some(id));
        for other in [
            "",
            "-",
            "0000000a",
            "a-1",
            "0000000a-",
            "0000000a-+1",
            "+000000a-1",
            "0000000a-1 ",
        ] {
            assert_eq!(EventId::parse(other.as_bytes()), None, "{other}");
        }
        assert_eq!(EventId::parse(b"\xff"), None);
    }
}
