//! The kind that a value gets, and what is read as a number, an integer, a truth value or a text.

use std::borrow::Cow;

use base::seeded_bug::SeededBug;
use db::Time;
use db::value::Value;

use super::Reason;

/// Below this size every whole number is a double.
const EXACT_BELOW: f64 = 9_007_199_254_740_992.0;

/// Digits of the greatest integer of 64 bits.
const U64_DIGITS: usize = 20;

/// What stands for true and for false where truth values are expected and the operator names no words.
const WORDS_TRUE: [&str; 3] = ["true", "on", "1"];
const WORDS_FALSE: [&str; 3] = ["false", "off", "0"];

/// The kind that values get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ValueKind {
    /// As they were sent: a number, a truth value, or a text. A text that the operator has named is a truth value. A
    /// payload without JSON is a number if it is one.
    #[default]
    Auto,
    /// Numbers, also out of texts: a double where it is exact, otherwise an integer of 64 bits.
    Number,
    /// Whole numbers, also out of texts: always an integer of 64 bits.
    Integer,
    /// Truth values, also out of the words for them.
    Boolean,
    /// Texts; numbers and truth values as they were written.
    Text,
}

/// How values are read. What does not fit is refused as [`Reason::PayloadInvalid`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValueRule {
    /// The kind that they get.
    pub kind: ValueKind,
    /// Texts that stand for true; the case of ASCII letters does not matter. If there are none,
    /// [`ValueKind::Boolean`] has `true`, `on` and `1`, but for those that stand for false.
    pub words_true: Vec<String>,
    /// The same for false, with `false`, `off` and `0`.
    pub words_false: Vec<String>,
    /// Whether texts have a comma where a number has a point; a point is refused then, because it may separate
    /// thousands.
    pub decimal_comma: bool,
    /// Units that may follow a number in a text.
    pub units: Vec<String>,
}

/// A value as it was sent.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Sent<'a> {
    /// A number of JSON, by its letters.
    Number(&'a str),
    Boolean(bool),
    Text(String),
}

impl Sent<'_> {
    /// Returns it as it was written, texts without their quotes.
    pub(super) fn as_text(&self) -> &str {
        match self {
            Self::Number(digits) => digits,
            Self::Boolean(true) => "true",
            Self::Boolean(false) => "false",
            Self::Text(text) => text,
        }
    }
}

/// A value with its kind.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum DecodedValue<'a> {
    Float(f64),
    Integer(i64),
    Unsigned(u64),
    Boolean(bool),
    Text(Cow<'a, str>),
}

impl DecodedValue<'_> {
    pub(crate) fn as_value(&self) -> Value<'_> {
        match self {
            Self::Float(value) => Value::Float(*value),
            Self::Integer(value) => Value::Integer(*value),
            Self::Unsigned(value) => Value::Unsigned(*value),
            Self::Boolean(value) => Value::Boolean(*value),
            Self::Text(text) => Value::Text(text),
        }
    }

    /// Returns the value without anything borrowed.
    pub(super) fn into_owned(self) -> DecodedValue<'static> {
        match self {
            Self::Float(value) => DecodedValue::Float(value),
            Self::Integer(value) => DecodedValue::Integer(value),
            Self::Unsigned(value) => DecodedValue::Unsigned(value),
            Self::Boolean(value) => DecodedValue::Boolean(value),
            Self::Text(text) => DecodedValue::Text(Cow::Owned(text.into_owned())),
        }
    }
}

/// The value and time of a payload that holds one reading.
pub(crate) struct Decoded {
    pub(crate) value: DecodedValue<'static>,
    pub(crate) time: Option<Time>,
}

/// Returns the text of a payload, without the byte order mark that some tools put in front.
pub(super) fn payload_text(payload: &[u8]) -> Result<&str, Reason> {
    let text = std::str::from_utf8(payload).map_err(|_| Reason::InvalidUtf8)?;
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text))
}

/// Parses a number as text, with nothing around it.
///
/// # Errors
/// [`Reason::NotFinite`] for NaN, infinities and numbers too great for a double; [`Reason::PayloadInvalid`].
pub(crate) fn finite(text: &str) -> Result<f64, Reason> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(value),
        Ok(_) => Err(Reason::NotFinite),
        Err(_) => Err(Reason::PayloadInvalid),
    }
}

/// Returns the value of a member of a document.
///
/// # Errors
/// [`Reason::PayloadInvalid`] if it does not fit the rule, [`Reason::NotFinite`], [`Reason::NumberInexact`].
pub(super) fn of_member<'s>(
    sent: &'s Sent<'_>,
    rule: &ValueRule,
) -> Result<DecodedValue<'s>, Reason> {
    match (rule.kind, sent) {
        (ValueKind::Text, _) => Ok(DecodedValue::Text(Cow::Borrowed(sent.as_text()))),
        (ValueKind::Auto | ValueKind::Boolean, Sent::Boolean(value)) => {
            Ok(DecodedValue::Boolean(*value))
        }
        (ValueKind::Auto | ValueKind::Number, Sent::Number(digits)) => exact(digits),
        (ValueKind::Integer, Sent::Number(digits)) => integer(digits),
        (ValueKind::Number | ValueKind::Integer, Sent::Boolean(_)) => Err(Reason::PayloadInvalid),
        (ValueKind::Auto, Sent::Text(text)) => Ok(match rule.word(text) {
            Some(value) => DecodedValue::Boolean(value),
            None => DecodedValue::Text(Cow::Borrowed(text)),
        }),
        (_, Sent::Number(text)) => of_text(text, rule),
        (_, Sent::Text(text)) => of_text(text, rule),
    }
}

/// Returns the value of a payload that is one value as text.
///
/// # Errors
/// As [`of_member`].
pub(super) fn of_payload<'s>(text: &'s str, rule: &ValueRule) -> Result<DecodedValue<'s>, Reason> {
    if rule.kind != ValueKind::Auto {
        return of_text(text, rule);
    }
    let text = trimmed(text);
    if text.is_empty() {
        return Err(Reason::PayloadInvalid);
    }
    if let Some(value) = rule.word(text) {
        return Ok(DecodedValue::Boolean(value));
    }
    match exact(text) {
        Err(Reason::PayloadInvalid) => Ok(match text {
            "true" => DecodedValue::Boolean(true),
            "false" => DecodedValue::Boolean(false),
            _ => DecodedValue::Text(Cow::Borrowed(text)),
        }),
        number => number,
    }
}

/// Reads a text by any rule but [`ValueKind::Auto`].
fn of_text<'s>(text: &'s str, rule: &ValueRule) -> Result<DecodedValue<'s>, Reason> {
    match rule.kind {
        ValueKind::Text | ValueKind::Auto => Ok(DecodedValue::Text(Cow::Borrowed(text))),
        ValueKind::Number => rule.number(text, exact),
        ValueKind::Integer => rule.number(text, integer),
        ValueKind::Boolean => {
            let value = rule.word(text).ok_or(Reason::PayloadInvalid)?;
            Ok(DecodedValue::Boolean(value))
        }
    }
}

/// What turns the letters of a number into a value.
type Read = fn(&str) -> Result<DecodedValue<'static>, Reason>;

impl ValueRule {
    /// Returns the truth value that a text stands for.
    fn word(&self, text: &str) -> Option<bool> {
        let text = trimmed(text);
        let is_named = |words: &[String]| words.iter().any(|word| word.eq_ignore_ascii_case(text));
        let is_usual = |words: &[String], usual: &[&str]| {
            self.kind == ValueKind::Boolean
                && words.is_empty()
                && usual.iter().any(|word| word.eq_ignore_ascii_case(text))
        };
        let value = |is_true: bool, is_false: bool| match is_true {
            true => Some(true),
            false => is_false.then_some(false),
        };
        // The operator's words come first: a usual word for true may be one of theirs for false.
        value(is_named(&self.words_true), is_named(&self.words_false)).or_else(|| {
            let is_true = is_usual(&self.words_true, &WORDS_TRUE);
            value(is_true, is_usual(&self.words_false, &WORDS_FALSE))
        })
    }

    /// Reads a text as a number, with one of the units behind it or none.
    fn number(&self, text: &str, read: Read) -> Result<DecodedValue<'static>, Reason> {
        let text = trimmed(text);
        let whole = self.digits(text, read);
        if whole.is_ok() {
            return whole;
        }
        let mut bare = self.units.iter().filter_map(|unit| {
            let digits = text.strip_suffix(unit.as_str())?.trim_end();
            self.digits(digits, read).ok()
        });
        bare.next().map_or(whole, Ok)
    }

    fn digits(&self, text: &str, read: Read) -> Result<DecodedValue<'static>, Reason> {
        let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
        if let Some(digits) = hexadecimal {
            if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Err(Reason::PayloadInvalid);
            }
            let number = u64::from_str_radix(digits, 16).map_err(|_| Reason::NumberInexact)?;
            return read(&number.to_string());
        }
        match self.decimal_comma {
            false => read(text),
            true if text.contains('.') => Err(Reason::PayloadInvalid),
            true => read(&text.replacen(',', ".", 1)),
        }
    }
}

fn trimmed(text: &str) -> &str {
    text.trim_matches(|character: char| character.is_ascii_whitespace())
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Reads a number. A whole number that is written without point and exponent is a double if the double is exact, and
/// otherwise an integer. It may be a counter or an identity, in which each digit counts.
///
/// # Errors
/// [`Reason::NumberInexact`] for a whole number that is neither; otherwise as [`finite`].
pub(super) fn exact(text: &str) -> Result<DecodedValue<'static>, Reason> {
    let value = finite(text)?;
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    // The digits of a double are written out in full.
    let is_exact = value.abs() < EXACT_BELOW
        || !is_digits(digits)
        || format!("{:.0}", value.abs()) == digits.trim_start_matches('0');
    if is_exact {
        Ok(DecodedValue::Float(value))
    } else {
        whole(text).ok_or(Reason::NumberInexact)
    }
}

/// Returns a whole number that is written without point and exponent, if it has 64 bits.
fn whole(text: &str) -> Option<DecodedValue<'static>> {
    if SeededBug::IntegerThroughDouble.is_on() {
        let value: f64 = text.parse().ok()?;
        return (value.fract() == 0.0).then_some(DecodedValue::Integer(value as i64));
    }
    if let Ok(value) = text.parse() {
        Some(DecodedValue::Integer(value))
    } else {
        text.parse().ok().map(DecodedValue::Unsigned)
    }
}

/// Reads a whole number, `21`, `21.0` or `2.1e1`, by its digits.
///
/// # Errors
/// [`Reason::NumberInexact`] if it does not fit an integer of 64 bits, [`Reason::PayloadInvalid`] if it is none;
/// otherwise as [`finite`].
pub(super) fn integer(text: &str) -> Result<DecodedValue<'static>, Reason> {
    if let Some(value) = whole(text) {
        return Ok(value);
    }
    finite(text)?;
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let exponent: i64 = exponent.parse().map_err(|_| Reason::PayloadInvalid)?;
    let (before, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if !is_digits(before.strip_prefix(['+', '-']).unwrap_or(before)) {
        return Err(Reason::PayloadInvalid);
    }
    let digits = [before, fraction].concat();
    let counting = digits.trim_end_matches('0');
    if !counting.ends_with(|last: char| last.is_ascii_digit()) {
        return Ok(DecodedValue::Integer(0));
    }
    // How many zeros follow the digits that count.
    let zeros = digits.len() - counting.len();
    let zeros = exponent.saturating_add_unsigned(zeros as u64);
    let zeros = zeros.saturating_sub_unsigned(fraction.len() as u64);
    let zeros = usize::try_from(zeros).map_err(|_| Reason::PayloadInvalid)?;
    if zeros > U64_DIGITS {
        return Err(Reason::NumberInexact);
    }
    whole(&format!("{counting}{}", "0".repeat(zeros))).ok_or(Reason::NumberInexact)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(kind: ValueKind) -> ValueRule {
        ValueRule {
            kind,
            ..ValueRule::default()
        }
    }

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn text(text: &str) -> DecodedValue<'_> {
        DecodedValue::Text(Cow::Borrowed(text))
    }

    #[test]
    fn whole_numbers_are_exact() {
        use DecodedValue::{Float, Integer, Unsigned};
        for (digits, expected) in [
            ("21", Ok(Float(21.0))),
            ("-0", Ok(Float(-0.0))),
            ("9007199254740991", Ok(Float(9_007_199_254_740_991.0))),
            ("9007199254740992", Ok(Float(9_007_199_254_740_992.0))),
            ("9007199254740993", Ok(Integer(9_007_199_254_740_993))),
            ("-9007199254740993", Ok(Integer(-9_007_199_254_740_993))),
            ("9007199254740994", Ok(Float(9_007_199_254_740_994.0))),
            ("9223372036854775807", Ok(Integer(i64::MAX))),
            ("-9223372036854775808", Ok(Float(i64::MIN as f64))),
            ("9223372036854775809", Ok(Unsigned((1 << 63) + 1))),
            ("18446744073709551615", Ok(Unsigned(u64::MAX))),
            (
                "18446744073709551616",
                Ok(Float(18_446_744_073_709_551_616.0)),
            ),
            ("18446744073709551617", Err(Reason::NumberInexact)),
            ("-9223372036854775809", Err(Reason::NumberInexact)),
            ("009007199254740994", Ok(Float(9_007_199_254_740_994.0))),
            // With a point or an exponent it is the number of a measurement.
            ("9007199254740993.0", Ok(Float(9_007_199_254_740_992.0))),
            ("1e23", Ok(Float(1e23))),
            ("1e400", Err(Reason::NotFinite)),
            ("nan", Err(Reason::NotFinite)),
            ("", Err(Reason::PayloadInvalid)),
        ] {
            assert_eq!(exact(digits), expected, "{digits}");
        }
    }

    #[test]
    fn an_integer_is_whole_and_has_64_bits() {
        use DecodedValue::{Integer, Unsigned};
        for (digits, expected) in [
            ("21", Ok(Integer(21))),
            ("-21.00", Ok(Integer(-21))),
            ("9007199254740992", Ok(Integer(9_007_199_254_740_992))),
            ("18446744073709551615", Ok(Unsigned(u64::MAX))),
            ("18446744073709551616", Err(Reason::NumberInexact)),
            ("-9223372036854775809", Err(Reason::NumberInexact)),
            ("21.5", Err(Reason::PayloadInvalid)),
            ("0.99999999999999999999", Err(Reason::PayloadInvalid)),
            ("1e3", Ok(Integer(1000))),
            ("2E+1", Ok(Integer(20))),
            ("-2.10e1", Ok(Integer(-21))),
            ("1200e-2", Ok(Integer(12))),
            ("9007199254740.993e3", Ok(Integer(9_007_199_254_740_993))),
            ("18446744073709551.615e+3", Ok(Unsigned(u64::MAX))),
            ("-0.0e5", Ok(Integer(0))),
            ("0e-99999999999", Ok(Integer(0))),
            ("1e19", Ok(Unsigned(10_000_000_000_000_000_000))),
            ("1e20", Err(Reason::NumberInexact)),
            ("-1e19", Err(Reason::NumberInexact)),
            ("1e300", Err(Reason::NumberInexact)),
            ("12e-1", Err(Reason::PayloadInvalid)),
            ("1e-99999999999", Err(Reason::PayloadInvalid)),
            ("1e-99999999999999999999", Err(Reason::PayloadInvalid)),
            ("e3", Err(Reason::PayloadInvalid)),
            ("1e400", Err(Reason::NotFinite)),
            (".0", Err(Reason::PayloadInvalid)),
        ] {
            assert_eq!(integer(digits), expected, "{digits}");
        }
    }

    #[test]
    fn texts_become_the_kind_that_is_asked_for() {
        use DecodedValue::{Boolean, Float, Integer};
        let comma = ValueRule {
            decimal_comma: true,
            ..rule(ValueKind::Number)
        };
        let unit = ValueRule {
            units: words(&["C", "°C", "%"]),
            ..rule(ValueKind::Number)
        };
        let door = ValueRule {
            words_true: words(&["open", "geöffnet"]),
            words_false: words(&["closed"]),
            ..rule(ValueKind::Boolean)
        };
        let (number, integer) = (rule(ValueKind::Number), rule(ValueKind::Integer));
        let (boolean, kept) = (rule(ValueKind::Boolean), rule(ValueKind::Text));
        let refused = Err(Reason::PayloadInvalid);
        for (sent, rule, expected) in [
            ("21.5", &number, Ok(Float(21.5))),
            (" 21.5\n", &number, Ok(Float(21.5))),
            ("0x1F", &number, Ok(Float(31.0))),
            ("0x1F", &integer, Ok(Integer(31))),
            (
                "0x20000000000001",
                &number,
                Ok(Integer(9_007_199_254_740_993)),
            ),
            ("0x10000000000000000", &number, Err(Reason::NumberInexact)),
            ("0x", &number, refused.clone()),
            ("0x+1", &number, refused.clone()),
            ("21,5", &number, refused.clone()),
            ("21,5", &comma, Ok(Float(21.5))),
            ("21", &comma, Ok(Float(21.0))),
            ("1.234", &comma, refused.clone()),
            ("1,234,5", &comma, refused.clone()),
            ("21.5 °C", &number, refused.clone()),
            ("21.5 °C", &unit, Ok(Float(21.5))),
            ("21.5\u{a0}°C", &unit, Ok(Float(21.5))),
            ("-3C", &unit, Ok(Float(-3.0))),
            ("50%", &unit, Ok(Float(50.0))),
            ("50", &unit, Ok(Float(50.0))),
            // A kilowatt is no watt.
            ("1.2 k%", &unit, refused.clone()),
            ("%", &unit, refused.clone()),
            ("ON", &number, refused.clone()),
            ("inf", &number, Err(Reason::NotFinite)),
            ("ON", &boolean, Ok(Boolean(true))),
            ("off", &boolean, Ok(Boolean(false))),
            ("1", &boolean, Ok(Boolean(true))),
            ("open", &boolean, refused.clone()),
            ("OPEN", &door, Ok(Boolean(true))),
            ("geöffnet", &door, Ok(Boolean(true))),
            ("closed\r\n", &door, Ok(Boolean(false))),
            ("true", &door, refused),
            (" 0x1F ", &kept, Ok(text(" 0x1F "))),
            ("", &kept, Ok(text(""))),
        ] {
            assert_eq!(of_payload(sent, rule), expected, "{sent:?}");
            let member = Sent::Text(sent.to_owned());
            assert_eq!(of_member(&member, rule), expected, "{sent:?}");
        }
    }

    #[test]
    fn a_word_that_one_list_names_is_not_a_usual_word_of_the_other() {
        let inverted = [
            (words(&["0"]), vec![], "0", true),
            (vec![], words(&["1"]), "1", false),
            (words(&["off"]), words(&["on"]), "ON", false),
        ];
        for (words_true, words_false, sent, expected) in inverted {
            let rule = ValueRule {
                words_true,
                words_false,
                ..rule(ValueKind::Boolean)
            };
            let found = of_payload(sent, &rule);
            assert_eq!(found, Ok(DecodedValue::Boolean(expected)), "{sent}");
        }
        let one = ValueRule {
            words_false: words(&["1"]),
            ..rule(ValueKind::Boolean)
        };
        // The other usual words of true stay; those of false are replaced.
        assert_eq!(of_payload("on", &one), Ok(DecodedValue::Boolean(true)));
        assert_eq!(of_payload("0", &one), Err(Reason::PayloadInvalid));
    }

    #[test]
    fn without_a_kind_a_value_keeps_its_type() {
        use DecodedValue::{Boolean, Float, Integer};
        let auto = ValueRule {
            words_true: words(&["ON"]),
            words_false: words(&["OFF"]),
            ..ValueRule::default()
        };
        for (sent, expected) in [
            ("21.5", Ok(Float(21.5))),
            ("9007199254740993", Ok(Integer(9_007_199_254_740_993))),
            ("true", Ok(Boolean(true))),
            ("False", Ok(text("False"))),
            ("off", Ok(Boolean(false))),
            ("open\n", Ok(text("open"))),
            ("21.5 °C", Ok(text("21.5 °C"))),
            ("0x1F", Ok(text("0x1F"))),
            ("nan", Err(Reason::NotFinite)),
            (" ", Err(Reason::PayloadInvalid)),
        ] {
            assert_eq!(of_payload(sent, &auto), expected, "{sent:?}");
        }
        for (sent, expected) in [
            (Sent::Number("1"), Float(1.0)),
            (Sent::Boolean(true), Boolean(true)),
            (Sent::Text("on".to_owned()), Boolean(true)),
            (Sent::Text("21.5".to_owned()), text("21.5")),
        ] {
            assert_eq!(of_member(&sent, &auto), Ok(expected), "{sent:?}");
        }
        let numbers = [rule(ValueKind::Number), rule(ValueKind::Integer)];
        for rule in numbers {
            let refused = of_member(&Sent::Boolean(true), &rule);
            assert_eq!(refused, Err(Reason::PayloadInvalid));
        }
        let one = of_member(&Sent::Number("1"), &rule(ValueKind::Boolean));
        assert_eq!(one, Ok(Boolean(true)));
        let written = of_member(&Sent::Number("1e0"), &rule(ValueKind::Text));
        assert_eq!(written, Ok(text("1e0")));
    }
}
