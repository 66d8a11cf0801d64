//! The grammar of line protocol: tables of what is accepted and refused, and properties over everything else.

use db::value::Value;
use ingest::intake::Reason;
use ingest::line::{FIELDS_MAX, FieldValue, Line, LineBuffer, Piece, parse, write_line};
use proptest::prelude::*;

/// Returns measurement, tags, fields with their kind, and time, as one text.
fn show(line: &Line<'_>) -> String {
    let mut text = String::new();
    line.measurement().push_to(&mut text);
    for (name, value) in line.tags() {
        let (name, value): (String, String) = (name.chars().collect(), value.chars().collect());
        text.push_str(&format!(" <{name}|{value}>"));
    }
    for (name, value) in line.fields() {
        let name: String = name.chars().collect();
        let value = match value {
            FieldValue::Float(value) => format!("{value:?}"),
            FieldValue::Integer(value) => format!("{value}i"),
            FieldValue::Unsigned(value) => format!("{value}u"),
            FieldValue::Boolean(value) => format!("{value}"),
            FieldValue::Text(quoted) => {
                let mut text = String::new();
                quoted.push_to(&mut text);
                format!("{text:?}")
            }
        };
        text.push_str(&format!(" [{name}|{value}]"));
    }
    if let Some(time) = line.time() {
        text.push_str(&format!(" @{time}"));
    }
    text
}

#[test]
fn well_formed_lines_are_parsed() {
    for (line, expected) in [
        ("m v=1", "m [v|1.0]"),
        ("m,t=a v=1 5", "m <t|a> [v|1.0] @5"),
        ("  m   v=1   -5  ", "m [v|1.0] @-5"),
        ("m,b=2,a=1 v=1", "m <b|2> <a|1> [v|1.0]"),
        (
            "m a=1,b=-2.5e-3,c=.5,d=5.",
            "m [a|1.0] [b|-0.0025] [c|0.5] [d|5.0]",
        ),
        ("m a=1i,b=-2i,c=3u", "m [a|1i] [b|-2i] [c|3u]"),
        (
            "m a=9223372036854775807i,b=-9223372036854775808i,c=18446744073709551615u",
            "m [a|9223372036854775807i] [b|-9223372036854775808i] [c|18446744073709551615u]",
        ),
        (
            "m a=t,b=T,c=true,d=True,e=TRUE",
            "m [a|true] [b|true] [c|true] [d|true] [e|true]",
        ),
        (
            "m a=f,b=F,c=false,d=False,e=FALSE",
            "m [a|false] [b|false] [c|false] [d|false] [e|false]",
        ),
        ("m a=\"x y,z=1\"", "m [a|\"x y,z=1\"]"),
        ("m a=\"\" 5", "m [a|\"\"] @5"),
        (r#"m a="q\"b\\c\d",b=1"#, r#"m [a|"q\"b\\c\\d"] [b|1.0]"#),
        (r"m\ 1\,x,t\ \==\,\ a v\ 1=1", "m 1,x <t =|, a> [v 1|1.0]"),
        (r"m\x,t=a\b v=1", r"m\x <t|a\b> [v|1.0]"),
        // A backslash before anything else stands for itself, also before another backslash.
        (r"m\\,t=a v=1", r"m\,t=a [v|1.0]"),
        (
            r"m\\x,t\\=b=a\\\,c v\\=1=1",
            r"m\\x <t\=b|a\\,c> [v\=1|1.0]",
        ),
        (
            r"share,path=\\nas\vol v=1",
            r"share <path|\\nas\vol> [v|1.0]",
        ),
        (r"cpu,regions=\\ east v=1", r"cpu <regions|\ east> [v|1.0]"),
        (r"cpu,regions=\ east v=1", r"cpu <regions| east> [v|1.0]"),
        (r#"m a="\\nas\vol\\""#, r#"m [a|"\\nas\\vol\\"]"#),
        ("m=x v=1", "m=x [v|1.0]"),
        ("\"m\" \"v\"=1", "\"m\" [\"v\"|1.0]"),
        ("温度,室=二 値=21.5", "温度 <室|二> [値|21.5]"),
        (
            "m v=1 9223372036854775807",
            "m [v|1.0] @9223372036854775807",
        ),
    ] {
        let parsed = parse(line).unwrap_or_else(|reason| panic!("{line}: {}", reason.name()));
        assert_eq!(show(&parsed), expected, "{line}");
    }
}

#[test]
fn malformed_lines_are_refused() {
    for line in [
        "",
        " ",
        "m",
        "m ",
        "m v",
        "m v=",
        "m =1",
        "m v=1,v=2",
        "m a=1,v=1,b=2,a=3",
        "m v\\ w=1,x=2,v\\ w=3",
        "m v=1,",
        "m v=1,,w=2",
        "m v=1 5 6",
        "m v=1 x",
        "m v=1 1.5",
        "m v=1 9223372036854775808",
        ", v=1",
        ",t=a v=1",
        "m, v=1",
        "m,t v=1",
        "m,t= v=1",
        "m,=a v=1",
        "m,t=a,, v=1",
        "m,t=a=b v=1",
        "m,t=a",
        "m v=x",
        "m v=1x",
        "m v=0x10",
        "m v=1 2i",
        "m v=1.5i",
        "m v=-1u",
        "m v=9223372036854775808i",
        "m v=i",
        "m v=tRUE",
        "m v=\"a",
        "m v=\"a\\\"",
        "m v=\"a\"b",
        "m v='a'",
        "m v=--1",
        "m\\ v=1",
        "m v\\=1",
        // No name and no value ends with a backslash.
        "m,t=a\\ v=1",
        "m,t=a\\\\ v=1",
        "m\\\\ v=1",
        "m v\\\\=1",
        "m,t\\\\=a v=1",
        "m\tv=1",
        "m v=１",
    ] {
        assert_eq!(parse(line).err(), Some(Reason::LineInvalid), "{line}");
    }
    for line in [
        "m v=NaN",
        "m v=-nan 5",
        "m v=inf",
        "m v=1,w=-Infinity",
        "m v=1e999",
        "m v=-1e400",
    ] {
        assert_eq!(parse(line).err(), Some(Reason::NotFinite), "{line}");
    }
}

#[test]
fn a_line_with_a_tag_twice_is_refused_as_invalid() {
    for line in [
        "m,t=a,t=b v=1",
        "m,t=a,t=a v=1",
        "m,t=a,s=b,t=a v=1",
        // An escape makes no other tag of it.
        "m,a\\ b=1,x=2,a\\ b=3 v=1",
    ] {
        let reason = parse(line).err();
        assert_eq!(reason.map(Reason::name), Some("line_invalid"), "{line}");
    }
    assert!(parse("m,t=a,s=a v=1").is_ok());
}

#[test]
fn a_field_that_is_there_twice_is_found_in_lines_of_any_length() {
    for count in [1, 2, 15, 16, 17, 18, FIELDS_MAX] {
        let mut fields: Vec<String> = (0..count).map(|n| format!("f{n}={n}")).collect();
        let text = format!("m {} 5", fields.join(","));
        let line = parse(&text).unwrap();
        assert_eq!((line.fields().count(), line.time()), (count, Some(5)));
        fields.push("f0=1".to_owned());
        let reason = match count {
            FIELDS_MAX => Reason::Oversized,
            _ => Reason::LineInvalid,
        };
        let text = format!("m {} 5", fields.join(","));
        assert_eq!(parse(&text).err(), Some(reason), "{count}");
    }
}

#[derive(Clone, Debug)]
enum Field {
    Float(f64),
    Integer(i64),
    Unsigned(u64),
    Boolean(bool),
    Text(String),
}

impl Field {
    fn value(&self) -> Value<'_> {
        match self {
            Self::Float(value) => Value::Float(*value),
            Self::Integer(value) => Value::Integer(*value),
            Self::Unsigned(value) => Value::Unsigned(*value),
            Self::Boolean(value) => Value::Boolean(*value),
            Self::Text(value) => Value::Text(value),
        }
    }
}

fn field() -> impl Strategy<Value = Field> {
    let finite = any::<f64>().prop_filter("a line has no NaN", |value| value.is_finite());
    prop_oneof![
        finite.prop_map(Field::Float),
        any::<i64>().prop_map(Field::Integer),
        any::<u64>().prop_map(Field::Unsigned),
        any::<bool>().prop_map(Field::Boolean),
        "[ -~é\\\\\",= \n\r]{0,12}".prop_map(Field::Text),
    ]
}

/// Names with everything that needs an escape. A leading space would count as white space before the line. A backslash
/// at the end has no form.
const NAME: &str = "[a-z,=\"#é]|[a-z\\\\,=\"#é][a-z\\\\,= \"#é]{0,8}[a-z,= \"#é]";

/// Lines without a quote, and so without a quoted text.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    const PIECES: [&[u8]; 8] = [
        b"\n",
        b"\r\n",
        b"\r",
        b"a",
        b"bc",
        b"0123456789",
        b"\n\n",
        b"\xff",
    ];
    prop::collection::vec(prop::sample::select(&PIECES[..]), 0..60)
        .prop_map(|pieces| pieces.concat())
}

/// Stands for the end of a stream within a text that never ends.
const TEXT_OPEN: &[u8] = b"\n";

/// Returns the pieces of a stream that arrives in the given chunks, and what is left at its end.
fn split(
    stream: &[u8],
    chunks: &mut dyn Iterator<Item = usize>,
    line_bytes_max: usize,
) -> (Vec<Option<Vec<u8>>>, bool) {
    let mut buffer = LineBuffer::new(line_bytes_max);
    let mut pieces = Vec::new();
    let mut rest = stream;
    loop {
        while let Some(piece) = buffer.peek() {
            pieces.push(match piece {
                Piece::Line(line) => Some(line.to_vec()),
                Piece::Oversized(_) => None,
                Piece::TextOpen(_) => {
                    pieces.push(Some(TEXT_OPEN.to_vec()));
                    return (pieces, false);
                }
            });
            buffer.consume();
        }
        if rest.is_empty() {
            return (pieces, buffer.unfinished().is_empty());
        }
        let spare = buffer.spare();
        assert!(!spare.is_empty());
        let count = chunks
            .next()
            .unwrap_or(usize::MAX)
            .clamp(1, rest.len())
            .min(spare.len());
        spare[..count].copy_from_slice(&rest[..count]);
        buffer.filled(count);
        rest = &rest[count..];
    }
}

#[test]
fn a_long_line_is_skipped_alone() {
    let mut stream = b"short\n".to_vec();
    stream.extend_from_slice(&vec![b'x'; 10 << 20]);
    stream.extend_from_slice(b"\r\nafter\r\n");
    stream.extend_from_slice(&[b'y'; 100]);
    let (pieces, is_whole) = split(&stream, &mut std::iter::repeat(4096), 100);
    let expected = [Some(b"short".to_vec()), None, Some(b"after".to_vec())];
    assert_eq!(pieces, expected);
    assert!(!is_whole);
    // At the limit, with and without a carriage return.
    for (length, end, taken) in [
        (100, "\n", true),
        (100, "\r\n", true),
        (101, "\n", false),
        (101, "\r\n", false),
    ] {
        let stream = format!("{}{end}", "z".repeat(length));
        let (pieces, is_whole) = split(stream.as_bytes(), &mut std::iter::repeat(1), 100);
        assert_eq!(
            (pieces.len(), pieces[0].is_some(), is_whole),
            (1, taken, true),
            "{length}"
        );
    }
}

/// Returns the lines of a stream that is available as a whole, with no effective limit.
fn lines(stream: &str) -> Vec<String> {
    let (pieces, is_whole) = split(stream.as_bytes(), &mut std::iter::empty(), 1 << 16);
    assert!(is_whole, "{pieces:?}");
    let text = |piece: Option<Vec<u8>>| String::from_utf8(piece.unwrap()).unwrap();
    pieces.into_iter().map(text).collect()
}

#[test]
fn a_text_keeps_its_line_breaks() {
    for line in [
        "log msg=\"first\nboiler,unit=1 temperature=999\nlast\"",
        "log,app=x code=3i,msg=\"first\n\nthird\",v=1 1700000000000000000",
        "log msg=\"a \\\" quote\nand a backslash \\\\\",other=\"b\nc\"",
        "log msg=\"\r\n\"",
        // Refused, each for its own reason; the content of the text is still not a line.
        "log v=NaN,msg=\"first\nboiler temperature=999\nlast\"",
        "log,app= msg=\"first\nboiler temperature=999\nlast\"",
        "my log,app=x msg=\"first\nboiler temperature=999\nlast\"",
        "log v=1 msg=\"first\nboiler temperature=999\nlast\"",
        // The same, from a sender that has lost its measurement.
        " msg=\"first\nboiler temperature=999\nlast\"",
        "\t msg=\"first\nboiler temperature=999\nlast\"",
        " ,app=x msg=\"first\nboiler temperature=999\nlast\"",
        "  code=3i,msg=\"first\nboiler temperature=999\nlast\"",
        "log v=1\\,msg=\"first\nboiler temperature=999\nlast\"",
        // The author of a tag has ended it with a backslash, which the sender has escaped or not.
        "log,app=x\\ msg=\"first\nboiler temperature=999\nlast\"",
        "log,app=x\\\\ msg=\"first\nboiler temperature=999\nlast\"",
        "log,app=x\\ code=3i,msg=\"first\nboiler temperature=999\nlast\"",
        "log,host=a\\,app=x\\\\ msg=\"first\nboiler temperature=999\nlast\"",
        // Such a line can be right, as well.
        "log,app=x\\\\ y msg=\"first\nboiler temperature=999\nlast\"",
    ] {
        assert_eq!(lines(&format!("{line}\nm v=1\n")), [line, "m v=1"]);
        assert_eq!(lines(&format!("{line}\r\nm v=1\r\n")), [line, "m v=1"]);
    }
}

#[test]
fn a_quote_elsewhere_begins_no_text() {
    for line in [
        "say\"so v=1",
        "m,name=\"a v=1",
        "m,na\"me=a v=1",
        "m na\"me=1",
        "m na\\=\"me=1",
        "m v=1\"",
        "# a \"comment\" with m v=\"",
        " # v=\"",
        "  m,name=\"a v=1",
        "\tm,na\"me=a v=1",
        " m\\=\"a v=1",
        " m na\"me=1",
        "m,t=a\\ b,u=\"c v=1",
        "m,t=a\\\\ b,u=\"c v=1",
        "m,t=a\\ \\=\"c v=1",
        "m,t\\ u=\"c v=1",
        "m\\ n,t=\"c v=1",
        "m=\\ n=\"c v=1",
        "m",
        "\"",
        "=\"",
    ] {
        assert_eq!(lines(&format!("{line}\nm v=1\n")), [line, "m v=1"]);
    }
}

#[test]
fn a_text_that_was_cut_off_ends_the_trusted_part() {
    // The next quote does not end the text. The author of a text chooses with its length whether its sender cuts it,
    // and with the next text what stands behind that quote.
    for stream in [
        "log msg=\"first\nboiler,unit=61 temperature=999\nyyylog msg=\"good\"\nm v=2\n",
        "la msg=\"cut off\nlb msg=\"x\nboiler,unit=15 temperature=9\ny\"\n",
        "la msg=\"cut off\nlb msg=\",a=1\nboiler,unit=15 temperature=9\ny\"\n",
        "la msg=\"cut off\nlb,app=x code=3i,msg=\" 5\nboiler,unit=15 temperature=9\ny\"\n",
        "la msg=\"cut off\nlb msg=\"\nboiler,unit=15 temperature=9\ny\"\n",
        "m path=\"C:\\\"\nm v=1\nm path=\"C:\\\"\nm v=2\nm msg=\"x\"\n",
    ] {
        for chunk in [1, 3, usize::MAX] {
            let found = split(stream.as_bytes(), &mut std::iter::repeat(chunk), 1 << 16);
            assert_eq!(found, (vec![Some(TEXT_OPEN.to_vec())], false), "{stream:?}");
        }
        assert_eq!(ingest::line::first_line_bytes(stream.as_bytes()), None);
    }
    // An equals sign alone does not make the end of a text the beginning of a line: base64 ends with some.
    let key = "m key=\"MIIB\nAA==\",v=1";
    assert_eq!(lines(&format!("{key}\nm v=2\n")), [key, "m v=2"]);
}

#[test]
fn a_text_with_line_breaks_is_not_followed_beyond_the_limit() {
    let fits = format!("m v=\"{}\n{}\"\nm v=1\n", "a".repeat(40), "b".repeat(50));
    let (pieces, _) = split(fits.as_bytes(), &mut std::iter::empty(), 100);
    assert_eq!(pieces.len(), 2);
    let long = format!("m v=\"{}\n{}\"\nm v=1\n", "a".repeat(40), "b".repeat(60));
    let without = format!("m v=\"{}\"\nm v=1\n", "a".repeat(200));
    let late = format!("m a=\"{}\",v=\"b\nc\"\nm v=1\n", "a".repeat(200));
    for chunk in [1, 7, 101, usize::MAX] {
        let split = |stream: &str| split(stream.as_bytes(), &mut std::iter::repeat(chunk), 100).0;
        assert_eq!(split(&long), [Some(TEXT_OPEN.to_vec())]);
        // Without a line break in its text a long line affects itself only.
        assert_eq!(split(&without), [None, Some(b"m v=1".to_vec())]);
        assert_eq!(split(&late).last().unwrap(), &Some(TEXT_OPEN.to_vec()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_the_line_parser_panic(text in "[a-z0-9,= \\\\\"\\n#é.+-]{0,60}", any in ".{0,40}") {
        for text in [&text, &any] {
            if let Ok(line) = parse(text) {
                prop_assert!(line.fields().count() >= 1);
                let _ = show(&line);
            }
        }
    }

    #[test]
    fn a_written_line_parses_back(
        measurement in NAME,
        tags in prop::collection::btree_map(NAME, NAME, 0..4),
        mut fields in prop::collection::vec((NAME, field()), 1..4),
        time in any::<Option<i64>>(),
    ) {
        // A field that is there twice is refused.
        let mut names = std::collections::BTreeSet::new();
        fields.retain(|(name, _)| names.insert(name.clone()));
        let tags: Vec<(&str, &str)> = tags.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let fields: Vec<(&str, Value<'_>)> =
            fields.iter().map(|(name, field)| (name.as_str(), field.value())).collect();
        let mut text = String::new();
        write_line(&mut text, &measurement, &tags, &fields, time);
        let line = match parse(&text) {
            Ok(line) => line,
            Err(reason) => return Err(TestCaseError::fail(format!("{text}: {}", reason.name()))),
        };
        prop_assert_eq!(&line.measurement().chars().collect::<String>(), &measurement);
        let parsed: Vec<(String, String)> =
            line.tags().map(|(name, value)| (name.chars().collect(), value.chars().collect())).collect();
        let parsed: Vec<(&str, &str)> = parsed.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        prop_assert_eq!(parsed, tags);
        prop_assert_eq!(line.fields().count(), fields.len());
        for ((name, value), (wanted_name, wanted)) in line.fields().zip(&fields) {
            prop_assert_eq!(&name.chars().collect::<String>(), wanted_name);
            let mut text = String::new();
            let value = match value {
                FieldValue::Float(value) => Value::Float(value),
                FieldValue::Integer(value) => Value::Integer(value),
                FieldValue::Unsigned(value) => Value::Unsigned(value),
                FieldValue::Boolean(value) => Value::Boolean(value),
                FieldValue::Text(quoted) => {
                    quoted.push_to(&mut text);
                    Value::Text(&text)
                }
            };
            prop_assert_eq!(&value, wanted);
        }
        prop_assert_eq!(line.time(), time);
        // A stream returns a line with any texts whole, with two exceptions. The end of a text looks like the beginning
        // of a line with a text. Or a `#` in front makes the line a comment.
        let is_cut = |(_, value): &(&str, Value<'_>)| match value {
            Value::Text(text) => text
                .rsplit_once('\n')
                .is_some_and(|(_, last)| last.contains(' ') && last.ends_with('=')),
            _ => false,
        };
        if !measurement.starts_with('#') && !fields.iter().any(is_cut) {
            prop_assert_eq!(lines(&format!("{text}\nm v=1\n")), [text, "m v=1".to_owned()]);
        }
    }

    #[test]
    fn a_stream_with_texts_gives_the_same_lines_however_it_is_cut(
        pieces in prop::collection::vec(
            prop::sample::select(&["\n", "\r\n", " v=\"", "\"", "\\", ",", "=", "a", "bcd", " ", "#"][..]),
            0..60,
        ),
        chunks in prop::collection::vec(1..20_usize, 0..40),
        line_bytes_max in 1..30_usize,
    ) {
        let stream = pieces.concat();
        let whole = split(stream.as_bytes(), &mut std::iter::empty(), line_bytes_max);
        prop_assert_eq!(&split(stream.as_bytes(), &mut chunks.into_iter(), line_bytes_max), &whole);
        prop_assert_eq!(&split(stream.as_bytes(), &mut std::iter::repeat(1), line_bytes_max), &whole);
    }

    #[test]
    fn a_stream_gives_the_same_lines_however_it_is_cut(
        stream in stream(),
        chunks in prop::collection::vec(1..20_usize, 0..40),
        line_bytes_max in 1..30_usize,
    ) {
        let whole = split(&stream, &mut std::iter::empty(), line_bytes_max);
        prop_assert_eq!(&split(&stream, &mut chunks.into_iter(), line_bytes_max), &whole);
        prop_assert_eq!(&split(&stream, &mut std::iter::repeat(1), line_bytes_max), &whole);
        let mut expected: Vec<&[u8]> = stream.split(|byte| *byte == b'\n').collect();
        expected.pop();
        let expected: Vec<Option<Vec<u8>>> = expected
            .into_iter()
            .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
            .map(|line| (line.len() <= line_bytes_max).then(|| line.to_vec()))
            .collect();
        let found = &whole.0;
        prop_assert!(found.len() >= expected.len() && found.len() <= expected.len() + 1);
        prop_assert_eq!(&found[..expected.len()], &expected[..]);
        // One more can only be the beginning of a line that is already known to be too long.
        prop_assert!(found[expected.len()..].iter().all(Option::is_none));
    }
}
