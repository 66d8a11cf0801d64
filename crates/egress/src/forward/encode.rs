//! How readings are written for an upstream: topics, numbers, JSON and line protocol, appended to buffers.

use super::figures::Refusal;
use super::options::{Format, TOPIC_BYTES_MAX, Target, TimeUnit, UpstreamOptions};
use db::Time;
use db::value::Value;
use std::io::Write as _;

/// Encodes readings for one upstream.
#[derive(Debug)]
pub(crate) struct Encoder {
    format: Format,
    is_batched: bool,
    time_unit: TimeUnit,
    topic: Option<String>,
    /// `measurement,tag=value,…,key=`, escaped.
    line_head: Vec<u8>,
}

impl Encoder {
    pub(crate) fn new(options: &UpstreamOptions) -> Self {
        let mut line_head = Vec::new();
        push_escaped(&mut line_head, &options.measurement, b", ");
        for (name, value) in &options.tags {
            line_head.push(b',');
            push_escaped(&mut line_head, name, TAG_SPECIAL);
            line_head.push(b'=');
            push_escaped(&mut line_head, value, TAG_SPECIAL);
        }
        line_head.extend_from_slice(b",key=");
        Self {
            format: options.format,
            is_batched: options.is_batched(),
            time_unit: options.time_unit,
            topic: match &options.target {
                Target::Mqtt { topic, .. } => Some(topic.clone()),
                Target::Http { .. } => None,
            },
            line_head,
        }
    }

    /// Builds the constant text before each reading of a key: topic and beginning of the payload. A zero byte separates
    /// them if there is a topic.
    pub(crate) fn prefix(&self, key: &str) -> Result<Vec<u8>, Refusal> {
        // Damage can lose a key's name.
        if key.is_empty() {
            return Err(Refusal::Topic);
        }
        let mut prefix = Vec::new();
        if let Some(template) = &self.topic {
            push_topic(&mut prefix, template, key)?;
            prefix.push(0);
        }
        match self.format {
            Format::Number => {}
            Format::Json => {
                prefix.extend_from_slice(b"{\"key\":");
                push_json_text(&mut prefix, key);
                prefix.extend_from_slice(b",\"time_ms\":");
            }
            Format::Line => {
                // A backslash at the end would escape the character that ends the key.
                if key.ends_with('\\') {
                    return Err(Refusal::Topic);
                }
                prefix.extend_from_slice(&self.line_head);
                push_escaped(&mut prefix, key, TAG_SPECIAL);
                prefix.push(b' ');
            }
        }
        Ok(prefix)
    }

    /// Appends one reading to a message or request. A refusal leaves the buffer as it was.
    pub(crate) fn push(
        &self,
        payload_prefix: &[u8],
        time: Time,
        value: &[u8],
        is_first: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        let begin = out.len();
        let written = self.write(payload_prefix, time, value, is_first, out);
        if written.is_err() {
            out.truncate(begin);
        }
        written
    }

    fn write(
        &self,
        payload_prefix: &[u8],
        time: Time,
        value: &[u8],
        is_first: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        let value = Value::decode(value).ok_or(Refusal::NoValue)?;
        let is_finite = !matches!(value, Value::Float(value) if !value.is_finite());
        if !is_finite {
            return Err(Refusal::NotFinite);
        }
        match self.format {
            Format::Number => push_plain(out, &value),
            Format::Json => {
                if self.is_batched {
                    out.push(if is_first { b'[' } else { b',' });
                }
                out.extend_from_slice(payload_prefix);
                match self.time_unit {
                    TimeUnit::Nanoseconds => push_time(out, time),
                    TimeUnit::Milliseconds => push_integer(out, time.ms()),
                }
                out.extend_from_slice(b",\"value\":");
                push_value(out, &value);
                out.push(b'}');
            }
            Format::Line => {
                out.extend_from_slice(payload_prefix);
                out.extend_from_slice(line_field(&value));
                match &value {
                    Value::Text(text) => {
                        if !has_line_form(text) {
                            return Err(Refusal::NoValue);
                        }
                        out.push(b'"');
                        for byte in text.bytes() {
                            if matches!(byte, b'"' | b'\\') {
                                out.push(b'\\');
                            }
                            out.push(byte);
                        }
                        out.push(b'"');
                    }
                    value => {
                        push_plain(out, value);
                        match value {
                            Value::Integer(_) => out.push(b'i'),
                            Value::Unsigned(value) if i64::try_from(*value).is_ok() => {
                                out.push(b'i')
                            }
                            Value::Unsigned(_) => out.push(b'u'),
                            _ => {}
                        }
                    }
                }
                out.push(b' ');
                let count = match self.time_unit {
                    TimeUnit::Nanoseconds => time.ns(),
                    TimeUnit::Milliseconds => time.ms(),
                };
                push_integer(out, count);
                out.push(b'\n');
            }
        }
        Ok(())
    }

    /// Ends a message or request.
    pub(crate) fn finish(&self, out: &mut Vec<u8>) {
        if self.format == Format::Json && self.is_batched {
            out.push(b']');
        }
    }
}

/// Returns the field name of a line, with its `=`. Databases fix the type of a field with the first value of a
/// measurement, and then refuse other types. So each type has its own field. An unsigned number that fits is written as
/// a signed one, since not every database has unsigned fields.
fn line_field(value: &Value<'_>) -> &'static [u8] {
    match value {
        Value::Integer(_) => b"integer=",
        Value::Unsigned(value) if i64::try_from(*value).is_ok() => b"integer=",
        Value::Unsigned(_) => b"unsigned=",
        Value::Boolean(_) => b"boolean=",
        Value::Text(_) => b"text=",
        _ => b"value=",
    }
}

/// Returns whether a text can be a value of a line. Line breaks stand for themselves within the quotes. But the last
/// line of a text may look like the beginning of another line with a text (`name field=`). Then a receiver such as a
/// node takes the closing quote for the opening one of a later line, and refuses everything behind it.
#[must_use]
pub fn has_line_form(text: &str) -> bool {
    text.rsplit_once('\n')
        .is_none_or(|(_, last)| !(last.ends_with('=') && last.contains(' ')))
}

/// Splits a prefix into its topic and the rest.
pub(crate) fn split_prefix(prefix: &[u8], has_topic: bool) -> (&[u8], &[u8]) {
    if !has_topic {
        return (&[], prefix);
    }
    match prefix.iter().position(|byte| *byte == 0) {
        Some(end) => (&prefix[..end], &prefix[end + 1..]),
        None => (&[], prefix),
    }
}

pub(crate) fn push_topic(out: &mut Vec<u8>, template: &str, key: &str) -> Result<(), Refusal> {
    // A key may contain characters that a topic may not.
    if template.contains('{') && key.contains(['+', '#', '\0']) {
        return Err(Refusal::Topic);
    }
    let mut rest = template;
    while let Some((before, from)) = rest.split_once('{') {
        out.extend_from_slice(before.as_bytes());
        let Some((name, after)) = from.split_once('}') else {
            return Err(Refusal::Topic);
        };
        let found = match name.parse::<usize>() {
            Ok(level) => key.split('/').nth(level.wrapping_sub(1)),
            Err(_) => Some(key),
        };
        out.extend_from_slice(found.ok_or(Refusal::Topic)?.as_bytes());
        rest = after;
    }
    out.extend_from_slice(rest.as_bytes());
    match (1..=TOPIC_BYTES_MAX).contains(&out.len()) {
        true => Ok(()),
        false => Err(Refusal::Topic),
    }
}

pub(crate) fn push_plain(out: &mut Vec<u8>, value: &Value<'_>) {
    match value {
        Value::Integer(value) => push_integer(out, *value),
        Value::Float(value) => push_float(out, *value),
        // Writing to memory does not fail.
        value => drop(write!(out, "{value}")),
    }
}

/// Writes the value of a member `value`, which is finite. A whole number above 2^53 in magnitude is followed by the
/// member `value_text` with its digits, because most readers of JSON keep numbers as doubles.
pub(crate) fn push_value(out: &mut Vec<u8>, value: &Value<'_>) {
    match value {
        Value::Text(text) => push_json_text(out, text),
        value => push_plain(out, value),
    }
    if let Some(digits) = value.beyond_doubles() {
        // Writing to memory does not fail.
        drop(write!(out, ",\"value_text\":\"{digits}\""));
    }
}

/// Writes a double as [`Value`] shows it: the shortest text that parses back to this double. The standard library's
/// formatter takes several times as long.
fn push_float(out: &mut Vec<u8>, value: f64) {
    let size = value.abs();
    let is_whole =
        value.fract() == 0.0 && size < 1e15 && (value != 0.0 || value.is_sign_positive());
    if is_whole {
        push_integer(out, value as i64);
    } else if (1e-4..1e15).contains(&size) {
        out.extend_from_slice(zmij::Buffer::new().format_finite(value).as_bytes());
    } else {
        // Writing to memory does not fail.
        drop(write!(out, "{}", Value::Float(value)));
    }
}

/// Writes the value of a member `time_ms`; behind it, if the time is no whole ms, the member `time_ns`. Its value is a
/// text, because most readers of JSON keep numbers as doubles, which hold no ns of today exactly.
pub(crate) fn push_time(out: &mut Vec<u8>, time: Time) {
    push_integer(out, time.ms());
    if let Some(ns) = time.ns_beside_ms() {
        out.extend_from_slice(b",\"time_ns\":\"");
        push_integer(out, ns);
        out.push(b'"');
    }
}

pub(crate) fn push_integer(out: &mut Vec<u8>, value: i64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = value.unsigned_abs();
    // Two digits at a time: half as many divisions wait for each other.
    while rest >= 10 {
        let pair = (rest % 100) as u8;
        at -= 2;
        digits[at] = b'0' + pair / 10;
        digits[at + 1] = b'0' + pair % 10;
        rest /= 100;
    }
    if rest > 0 || at == digits.len() {
        at -= 1;
        digits[at] = b'0' + rest as u8;
    }
    if value < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[at..]);
}

/// Bytes that need a backslash in names and values of tags. In measurements `=` does not need one, and a backslash
/// before any other byte stands for itself.
const TAG_SPECIAL: &[u8] = b",= ";

fn push_escaped(out: &mut Vec<u8>, text: &str, special: &[u8]) {
    for byte in text.bytes() {
        if special.contains(&byte) {
            out.push(b'\\');
        }
        out.push(byte);
    }
}

pub(crate) fn push_json_text(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for character in text.chars() {
        match character {
            '"' | '\\' => {
                out.push(b'\\');
                out.push(character as u8);
            }
            control if u32::from(control) < 0x20 => {
                drop(write!(out, "\\u{:04x}", u32::from(control)));
            }
            other => {
                let mut buffer = [0; 4];
                out.extend_from_slice(other.encode_utf8(&mut buffer).as_bytes());
            }
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::options::MqttVersion;
    use proptest::prelude::*;

    fn encoder(topic: Option<&str>, format: Format) -> Encoder {
        encoder_in(TimeUnit::default(), topic, format)
    }

    fn encoder_in(time_unit: TimeUnit, topic: Option<&str>, format: Format) -> Encoder {
        let target = match topic {
            Some(topic) => Target::Mqtt {
                address: "h:1".into(),
                version: MqttVersion::V5,
                client_id: "c".into(),
                login: None,
                topic: topic.into(),
                keep_alive_seconds: 30,
                inflight_max: 10,
            },
            None => Target::Http {
                address: "h:1".into(),
                host: "h".into(),
                path: "/w".into(),
                authorization: None,
            },
        };
        Encoder::new(&UpstreamOptions {
            format,
            time_unit,
            measurement: "my node".into(),
            tags: vec![("site".into(), "a,b".into())],
            ..UpstreamOptions::new("u", target)
        })
    }

    /// Returns topic and message of these values of one key.
    fn message(
        encoder: &Encoder,
        key: &str,
        values: &[Value<'_>],
    ) -> Result<(String, String), Refusal> {
        let prefix = encoder.prefix(key)?;
        let (topic, rest) = split_prefix(&prefix, encoder.topic.is_some());
        let mut out = Vec::new();
        for value in values {
            let mut stored = [0; 64];
            let length = value.encode(&mut stored).expect("it fits");
            let is_first = out.is_empty();
            let time = Time::from_ms(-1_500);
            encoder.push(rest, time, &stored[..length], is_first, &mut out)?;
        }
        encoder.finish(&mut out);
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
        Ok((text(topic), text(&out)))
    }

    #[test]
    fn a_reading_has_the_form_that_is_wanted() {
        let one =
            |topic, format, value| message(&encoder(Some(topic), format), "a/b \"c\"", &[value]);
        let is = |topic: &str, text: &str| Ok((topic.to_owned(), text.to_owned()));
        assert_eq!(
            one("t/{key}", Format::Number, Value::Float(21.5)),
            is("t/a/b \"c\"", "21.5")
        );
        assert_eq!(
            one("{1}/x/{2}", Format::Json, Value::Text("q\"\\\u{1}ä")),
            is(
                "a/x/b \"c\"",
                "{\"key\":\"a/b \\\"c\\\"\",\"time_ms\":-1500,\"value\":\"q\\\"\\\\\\u0001ä\"}"
            )
        );
        let line =
            |value| message(&encoder(None, Format::Line), "a/b c", &[value]).map(|one| one.1);
        let escaped = encoder(None, Format::Line).prefix("a\\b=c,d");
        assert_eq!(
            escaped.as_deref(),
            Ok(&b"my\\ node,site=a\\,b,key=a\\b\\=c\\,d "[..])
        );
        let head = "my\\ node,site=a\\,b,key=a/b\\ c ";
        for (value, text) in [
            (Value::Float(-2.5e-9), "value=-2.5e-9"),
            (Value::Integer(i64::MIN), "integer=-9223372036854775808i"),
            (Value::Unsigned(7), "integer=7i"),
            (Value::Unsigned(u64::MAX), "unsigned=18446744073709551615u"),
            (Value::Boolean(true), "boolean=true"),
            (Value::Text("a \"b\" \\"), "text=\"a \\\"b\\\" \\\\\""),
            (Value::Text("a\r\nb\rc\nd="), "text=\"a\r\nb\rc\nd=\""),
            (Value::Text("a b="), "text=\"a b=\""),
        ] {
            assert_eq!(line(value), Ok(format!("{head}{text} -1500000000\n")));
        }
        let over_mqtt = message(&encoder(Some("t"), Format::Line), "k", &[Value::Integer(1)]);
        let line = over_mqtt.map(|(_, text)| text).unwrap();
        assert!(line.ends_with(",key=k integer=1i -1500000000\n"), "{line}");
    }

    /// `push_plain` instead of `push_value` for JSON makes it red.
    #[test]
    fn an_integer_has_its_digits_in_every_form() {
        for (value, number, text) in [
            (Value::Integer(1 << 53), "9007199254740992", None),
            (
                Value::Integer((1 << 53) + 1),
                "9007199254740993",
                Some("9007199254740993"),
            ),
            (
                Value::Integer(i64::MIN),
                "-9223372036854775808",
                Some("-9223372036854775808"),
            ),
            (
                Value::Unsigned(u64::MAX),
                "18446744073709551615",
                Some("18446744073709551615"),
            ),
            (
                Value::Float(i64::MIN as f64),
                "-9.223372036854776e18",
                Some("-9223372036854775808"),
            ),
            (Value::Float(1e300), "1e300", None),
        ] {
            let one = |format| {
                message(&encoder(Some("{key}"), format), "k", &[value])
                    .unwrap()
                    .1
            };
            assert_eq!(one(Format::Number), number);
            let beside = text.map_or(String::new(), |text| format!(",\"value_text\":\"{text}\""));
            let json = format!("{{\"key\":\"k\",\"time_ms\":-1500,\"value\":{number}{beside}}}");
            assert_eq!(one(Format::Json), json);
            assert!(
                one(Format::Line).contains(&format!("={number}")),
                "{value:?}"
            );
        }
    }

    /// `time.ms() * 1_000_000` instead of `time.ns()`, or `push_integer(out, time.ms())` alone in `push_time`, makes it
    /// red.
    #[test]
    fn a_time_has_the_unit_that_is_wanted() {
        let (ns, ms) = (TimeUnit::Nanoseconds, TimeUnit::Milliseconds);
        for (unit, time, line, json) in [
            (
                ns,
                Time::from_ns(1_700_000_000_123_456_789),
                "1700000000123456789",
                "1700000000123,\"time_ns\":\"1700000000123456789\"",
            ),
            (
                ms,
                Time::from_ns(1_700_000_000_123_999_999),
                "1700000000123",
                "1700000000123",
            ),
            (
                ns,
                Time::from_ms(1_700_000_000_123),
                "1700000000123000000",
                "1700000000123",
            ),
            (
                ms,
                Time::from_ms(1_700_000_000_123),
                "1700000000123",
                "1700000000123",
            ),
            (ns, Time::from_ns(-1), "-1", "-1,\"time_ns\":\"-1\""),
            (ms, Time::from_ns(-1), "-1", "-1"),
        ] {
            for (topic, format) in [
                (None, Format::Line),
                (Some("t"), Format::Line),
                (Some("t/{key}"), Format::Json),
            ] {
                let encoder = encoder_in(unit, topic, format);
                let mut out = Vec::new();
                let value = 0.5_f64.to_le_bytes();
                encoder.push(b"", time, &value, true, &mut out).unwrap();
                let expected = match format {
                    Format::Json => format!("{json},\"value\":0.5}}"),
                    _ => format!("value=0.5 {line}\n"),
                };
                assert_eq!(String::from_utf8(out).unwrap(), expected);
            }
        }
        assert_eq!((ns.name(), ms.name()), ("ns", "ms"));
    }

    proptest! {
        #[test]
        fn a_number_is_written_as_it_is_shown(
            bits in any::<u64>(), whole in -1_000_000_000_000_000_000_i64..1_000_000_000_000_000_000,
            decimals in 0_u32..20,
        ) {
            let rounded = whole as f64 / 10_f64.powi(decimals as i32);
            for value in [f64::from_bits(bits), whole as f64, rounded, -rounded, 1e15, -1e-4, 0.0, -0.0] {
                if value.is_finite() {
                    let mut out = Vec::new();
                    push_float(&mut out, value);
                    let (written, shown) = (String::from_utf8(out).unwrap(), Value::Float(value).to_string());
                    // If two texts are equally short and equally near, either is correct.
                    prop_assert_eq!(written.len(), shown.len(), "{} {}", written, shown);
                    prop_assert_eq!(written.parse::<f64>().unwrap().to_bits(), value.to_bits());
                }
            }
        }
    }

    #[test]
    fn an_integer_has_each_of_its_digits() {
        let powers = (0..=18).map(|power| 10_i64.pow(power));
        let near = powers.flat_map(|power| [power - 1, power, power + 1, 9 * (power / 10)]);
        let ends = [i64::MIN, i64::MIN + 1, i64::MAX - 1, i64::MAX];
        for value in near.flat_map(|value| [value, -value]).chain(ends) {
            let mut out = Vec::new();
            push_integer(&mut out, value);
            assert_eq!(String::from_utf8(out).unwrap(), value.to_string());
        }
    }

    #[test]
    fn several_readings_share_a_message() {
        let values = [Value::Integer(1), Value::Boolean(false)];
        let json = message(&encoder(Some("all"), Format::Json), "k", &values);
        assert_eq!(
            json.map(|(_, text)| text).as_deref(),
            Ok(
                "[{\"key\":\"k\",\"time_ms\":-1500,\"value\":1},{\"key\":\"k\",\"time_ms\":-1500,\"value\":false}]"
            )
        );
        let lines = message(&encoder(None, Format::Line), "k", &values);
        assert_eq!(lines.map(|(_, text)| text.lines().count()), Ok(2));
    }

    #[test]
    fn a_value_without_a_form_is_refused_by_its_reason() {
        let line = encoder(None, Format::Line);
        for (value, why) in [
            (Value::Float(f64::NAN), Refusal::NotFinite),
            (Value::Float(f64::NEG_INFINITY), Refusal::NotFinite),
            (Value::Text("two\nlines of="), Refusal::NoValue),
        ] {
            assert_eq!(message(&line, "k", &[value]), Err(why));
        }
        let mut out = b"before".to_vec();
        assert_eq!(
            line.push(b"p", Time::from_ms(0), b"?", false, &mut out),
            Err(Refusal::NoValue)
        );
        assert_eq!(out, b"before");
        for (key, fits) in [("a\\b", true), ("a\\", false), ("", false)] {
            assert_eq!(line.prefix(key).is_ok(), fits, "{key}");
        }
        let topic = |topic, key: &str| encoder(Some(topic), Format::Number).prefix(key).is_ok();
        assert!(topic("{key}", "a/b") && topic("x/{2}", "a/b") && topic("all", "a+b"));
        assert!(!topic("{key}", "a/+/b") && !topic("{key}", "a#"));
        assert!(!topic("{3}", "a/b") && !topic("{key}", &"k".repeat(2000)));
    }
}
