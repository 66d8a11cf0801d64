//! Writes lines that [`parse`](super::parse()) reads back.

use std::fmt::Write as _;

use db::value::Value;

use super::parse::ESCAPED;

/// Appends one line without its end. The line protocol cannot represent some texts and numbers. Names must not be
/// empty, and the measurement must not begin with `#`. No name and no tag's value may contain line breaks or end with a
/// backslash. No float may be NaN or infinite. No text with line breaks may end in `name field=`: readers refuse it.
pub fn write_line(
    text: &mut String,
    measurement: &str,
    tags: &[(&str, &str)],
    fields: &[(&str, Value<'_>)],
    time: Option<i64>,
) {
    push_escaped(text, measurement);
    for (name, value) in tags {
        text.push(',');
        push_escaped(text, name);
        text.push('=');
        push_escaped(text, value);
    }
    for (index, (name, value)) in fields.iter().enumerate() {
        text.push(if index == 0 { ' ' } else { ',' });
        push_escaped(text, name);
        text.push('=');
        match value {
            Value::Text(value) => {
                text.push('"');
                push_with_backslashes(text, value, &['"', '\\']);
                text.push('"');
            }
            // Writing to a String never fails.
            Value::Integer(value) => drop(write!(text, "{value}i")),
            Value::Unsigned(value) => drop(write!(text, "{value}u")),
            Value::Float(_) | Value::Boolean(_) => drop(write!(text, "{value}")),
        }
    }
    if let Some(time) = time {
        let _ = write!(text, " {time}");
    }
}

fn push_escaped(text: &mut String, name: &str) {
    push_with_backslashes(text, name, ESCAPED);
}

fn push_with_backslashes(text: &mut String, value: &str, special: &[char]) {
    for found in value.chars() {
        if special.contains(&found) {
            text.push('\\');
        }
        text.push(found);
    }
}
