//! Times in messages: whole ms as a number, and the ns as text beside it where ms do not show the time exactly.
//!
//! It is a text because most readers of JSON keep numbers as doubles, which hold no ns of today exactly. It is absent
//! for whole ms, so that a message of a reading in ms has the bytes that it always had.

use std::fmt;

use db::Time;
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use super::{History, Put, PutValue};

/// Ns since 1970: a decimal text in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nanoseconds(pub i64);

impl Nanoseconds {
    /// Returns the ns of a time; `None` if no i64 can count them.
    #[must_use]
    pub fn of(time: Time) -> Option<Self> {
        time.is_countable().then_some(Self(time.ns()))
    }

    /// Returns the ns of a time that is no whole ms; `None` if ms show it exactly, or if no i64 can count its ns.
    #[must_use]
    pub fn beside_ms(time: Time) -> Option<Self> {
        time.ns_beside_ms().map(Self)
    }

    /// Returns the time of an answer: that of the ns, if they are there.
    #[must_use]
    pub fn or_ms(ns: Option<Self>, ms: i64) -> Time {
        ns.map_or(Time::from_ms(ms), |ns| Time::from_ns(ns.0))
    }
}

impl fmt::Display for Nanoseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Serialize for Nanoseconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Nanoseconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Text)
    }
}

struct Text;

impl Visitor<'_> for Text {
    type Value = Nanoseconds;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text of whole ns since 1970, such as \"1700000000123456789\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Nanoseconds, E> {
        let ns = text.parse().map(Nanoseconds);
        // The text itself may be as long as a request.
        ns.map_err(|_| E::invalid_value(de::Unexpected::Other("another text"), &self))
    }
}

/// Returns the two fields of a request for a time: ms if they say it exactly, else ns. Nodes of earlier versions know
/// only ms.
fn fields(time: Option<Time>) -> (Option<i64>, Option<Nanoseconds>) {
    match time {
        None => (None, None),
        Some(time) if Time::from_ms(time.ms()) == time => (Some(time.ms()), None),
        Some(time) => (None, Some(Nanoseconds(time.ns()))),
    }
}

/// Returns the time that a request gives. Both fields at once are refused, even if they agree: of two that differ
/// neither could be taken.
fn given(ms: (Option<i64>, &str), ns: (Option<Nanoseconds>, &str)) -> Result<Option<Time>, String> {
    match (ms, ns) {
        ((Some(_), ms), (Some(_), ns)) => Err(format!("has {ms} and {ns}")),
        ((Some(ms), _), _) => Ok(Some(Time::from_ms(ms))),
        (_, (Some(ns), _)) => Ok(Some(Time::from_ns(ns.0))),
        _ => Ok(None),
    }
}

impl Put {
    /// Builds the request. `time`: the sensor's time.
    #[must_use]
    pub fn new(key: String, value: PutValue, time: Option<Time>) -> Self {
        let (time_ms, time_ns) = fields(time);
        let PutValue { json, kind } = value;
        Self {
            key,
            value: json,
            kind,
            time_ms,
            time_ns,
        }
    }

    /// Returns the sensor's time.
    ///
    /// # Errors
    /// What is wrong, if it is given twice.
    pub fn time(&self) -> Result<Option<Time>, String> {
        given((self.time_ms, "time_ms"), (self.time_ns, "time_ns"))
    }
}

impl History {
    /// Builds the request for the readings from `from` on, before `to`.
    #[must_use]
    pub fn new(key: String, from: Option<Time>, to: Option<Time>, limit: Option<u64>) -> Self {
        let ((from_ms, from_ns), (to_ms, to_ns)) = (fields(from), fields(to));
        Self {
            key,
            from_ms,
            to_ms,
            from_ns,
            to_ns,
            limit,
        }
    }

    /// Returns the earliest time wanted, and the first one no longer wanted.
    ///
    /// # Errors
    /// What is wrong, if one of them is given twice.
    pub fn range(&self) -> Result<(Option<Time>, Option<Time>), String> {
        let from = given((self.from_ms, "from_ms"), (self.from_ns, "from_ns"))?;
        let to = given((self.to_ms, "to_ms"), (self.to_ns, "to_ns"))?;
        Ok((from, to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A day in 2023, in ns.
    const NS: i64 = 1_700_000_000_123_456_789;

    #[test]
    fn ns_are_written_where_ms_do_not_show_the_time() {
        for (time, beside) in [
            (Time::from_ms(5), None),
            (Time::from_ns(NS), Some(NS)),
            (Time::from_ns(-1), Some(-1)),
            (Time::from_ns(0), None),
            (Time::from_ms(i64::MAX), None),
            (Time::from_ns(Time::NS_MAX - 1), Some(Time::NS_MAX - 1)),
        ] {
            let found = Nanoseconds::beside_ms(time);
            assert_eq!(found.map(|ns| ns.0), beside);
            assert_eq!(Nanoseconds::or_ms(found, time.ms()), time);
        }
        assert_eq!(Nanoseconds::of(Time::from_ms(i64::MIN)), None);
        assert_eq!(
            Nanoseconds::of(Time::from_ms(-1)),
            Some(Nanoseconds(-1_000_000))
        );
    }

    #[test]
    fn ns_are_a_text_of_a_whole_number() {
        for ns in [i64::MIN, -1, 0, NS, i64::MAX] {
            let text = serde_json::to_string(&Nanoseconds(ns)).unwrap();
            assert_eq!(text, format!("\"{ns}\""));
            assert_eq!(
                serde_json::from_str::<Nanoseconds>(&text).unwrap(),
                Nanoseconds(ns)
            );
        }
        for text in [
            "5",
            "5.0",
            "null",
            "\"\"",
            "\"5.0\"",
            "\" 5\"",
            "\"9223372036854775808\"",
        ] {
            let error = serde_json::from_str::<Nanoseconds>(text).unwrap_err();
            assert!(error.to_string().contains("a text of whole ns"), "{error}");
        }
    }

    #[test]
    fn a_request_gives_a_time_once() {
        let put = |time| {
            let value = PutValue::of(db::value::Value::Float(1.0));
            Put::new("a".to_owned(), value.unwrap(), time)
        };
        let old = put(Some(Time::from_ms(5)));
        assert_eq!((old.time_ms, old.time_ns), (Some(5), None));
        assert_eq!(old.time(), Ok(Some(Time::from_ms(5))));
        let mut exact = put(Some(Time::from_ns(NS)));
        assert_eq!(
            (exact.time_ms, exact.time_ns),
            (None, Some(Nanoseconds(NS)))
        );
        assert_eq!(exact.time(), Ok(Some(Time::from_ns(NS))));
        assert_eq!(put(None).time(), Ok(None));
        for ns in [i64::MIN, -1, 0, i64::MAX] {
            let time = Some(Time::from_ns(ns));
            assert_eq!(put(time).time(), Ok(time));
        }
        exact.time_ms = Some(NS / 1_000_000);
        assert_eq!(exact.time(), Err("has time_ms and time_ns".to_owned()));

        let (from, to) = (Some(Time::from_ns(NS)), Some(Time::from_ms(7)));
        let mut asked = History::new("a".to_owned(), from, to, None);
        assert_eq!((asked.from_ms, asked.to_ns), (None, None));
        assert_eq!(asked.range(), Ok((from, to)));
        asked.to_ns = Some(Nanoseconds(7));
        assert_eq!(asked.range(), Err("has to_ms and to_ns".to_owned()));
    }
}
