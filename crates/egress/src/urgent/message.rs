//! Messages about alarms, and values of actuators, as bytes.

use crate::forward::encode::{push_json_text, push_plain, push_time, push_value};
use crate::forward::figures::Refusal;
use crate::forward::options::Format;
use db::value::Value;
use db::{AlarmCondition, AlarmTransition, Time};

/// `{"alarm":"hot","key":"hall/1/temperature","state":"raised","value":61.5,"above":60,"time_ms":1767225600000}`
pub(crate) fn alarm(
    name: &str,
    condition: &AlarmCondition,
    key: &str,
    transition: &AlarmTransition,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(160);
    out.extend_from_slice(b"{\"alarm\":");
    push_json_text(&mut out, name);
    out.extend_from_slice(b",\"key\":");
    push_json_text(&mut out, key);
    out.extend_from_slice(b",\"state\":");
    let state = if transition.raised {
        "raised"
    } else {
        "cleared"
    };
    push_json_text(&mut out, state);
    out.extend_from_slice(b",\"value\":");
    match transition.value.map(|value| value.value()) {
        Some(Value::Float(value)) if !value.is_finite() => out.extend_from_slice(b"null"),
        Some(value) => push_value(&mut out, &value),
        None => out.extend_from_slice(b"null"),
    }
    match condition {
        AlarmCondition::Above { threshold, .. } => {
            out.extend_from_slice(b",\"above\":");
            push_plain(&mut out, &Value::Float(*threshold));
        }
        AlarmCondition::Below { threshold, .. } => {
            out.extend_from_slice(b",\"below\":");
            push_plain(&mut out, &Value::Float(*threshold));
        }
        AlarmCondition::Stale { after_ms } => {
            out.extend_from_slice(b",\"stale_ms\":");
            push_plain(&mut out, &Value::Unsigned(*after_ms));
        }
    }
    out.extend_from_slice(b",\"time_ms\":");
    push_time(&mut out, transition.time);
    out.push(b'}');
    out
}

/// The value alone, or `{"key":"valve/1","time_ms":1767225600000,"value":0.5}`.
pub(crate) fn value(
    format: Format,
    key: &str,
    time: Time,
    stored: &[u8],
) -> Result<Vec<u8>, Refusal> {
    let value = Value::decode(stored).ok_or(Refusal::NoValue)?;
    if matches!(value, Value::Float(value) if !value.is_finite()) {
        return Err(Refusal::NotFinite);
    }
    let mut out = Vec::new();
    if format == Format::Number {
        push_plain(&mut out, &value);
        return Ok(out);
    }
    out.extend_from_slice(b"{\"key\":");
    push_json_text(&mut out, key);
    out.extend_from_slice(b",\"time_ms\":");
    push_time(&mut out, time);
    out.extend_from_slice(b",\"value\":");
    push_value(&mut out, &value);
    out.push(b'}');
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use db::{AlarmValue, ObjectId};

    #[test]
    fn messages_are_json_with_any_content() {
        let mut transition = AlarmTransition {
            rule: 0,
            object: ObjectId(0),
            raised: true,
            value: Some(AlarmValue::Float(61.5)),
            time: Time::from_ms(1_767_225_600_000),
            at_ns: 0,
        };
        let above = AlarmCondition::Above {
            threshold: 60.0,
            clear: 55.0,
            raise_after_ms: 0,
        };
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        assert_eq!(
            text(alarm("hot", &above, "hall/\"1\"", &transition)),
            "{\"alarm\":\"hot\",\"key\":\"hall/\\\"1\\\"\",\"state\":\"raised\",\"value\":61.5,\"above\":60,\
             \"time_ms\":1767225600000}"
        );
        transition.time = Time::from_ns(1_767_225_600_000_000_001);
        let exact = text(alarm("hot", &above, "k", &transition));
        let end = ",\"time_ms\":1767225600000,\"time_ns\":\"1767225600000000001\"}";
        assert!(exact.ends_with(end), "{exact}");
        transition.time = Time::from_ms(1);
        transition.value = Some(AlarmValue::Unsigned(u64::MAX));
        assert_eq!(
            text(alarm("full", &above, "k", &transition)),
            "{\"alarm\":\"full\",\"key\":\"k\",\"state\":\"raised\",\"value\":18446744073709551615,\
             \"value_text\":\"18446744073709551615\",\"above\":60,\"time_ms\":1}"
        );
        transition.raised = false;
        let extremes = [
            None,
            Some(AlarmValue::Float(f64::INFINITY)),
            Some(AlarmValue::Float(-1e300)),
            Some(AlarmValue::Unsigned(u64::MAX)),
            Some(AlarmValue::Boolean(true)),
        ];
        for value in extremes {
            transition.value = value;
            let below = AlarmCondition::Below {
                threshold: -1e-300,
                clear: 1e300,
                raise_after_ms: 0,
            };
            for condition in [below, AlarmCondition::Stale { after_ms: 5 }] {
                let said = text(alarm("a", &condition, "k", &transition));
                let parsed: serde_json::Value = serde_json::from_str(&said).expect(&said);
                assert_eq!(parsed["state"], "cleared");
            }
        }
    }

    #[test]
    fn values_equal_the_values_of_an_upstream() {
        let of = |format, stored: &[u8]| {
            let time = Time::from_ns(5_000_001);
            value(format, "valve/1", time, stored).map(|it| String::from_utf8(it).unwrap())
        };
        assert_eq!(
            of(Format::Number, &0.5_f64.to_le_bytes()).as_deref(),
            Ok("0.5")
        );
        assert_eq!(of(Format::Number, b"b\x01").as_deref(), Ok("true"));
        assert_eq!(
            of(Format::Json, b"topen").as_deref(),
            Ok("{\"key\":\"valve/1\",\"time_ms\":5,\"time_ns\":\"5000001\",\"value\":\"open\"}")
        );
        let large = [&b"i"[..], &i64::MIN.to_le_bytes()].concat();
        assert_eq!(
            of(Format::Json, &large).as_deref(),
            Ok(
                "{\"key\":\"valve/1\",\"time_ms\":5,\"time_ns\":\"5000001\",\"value\":-9223372036854775808,\
                \"value_text\":\"-9223372036854775808\"}"
            )
        );
        assert_eq!(
            of(Format::Number, &large).as_deref(),
            Ok("-9223372036854775808")
        );
        assert_eq!(
            of(Format::Json, &f64::NAN.to_le_bytes()),
            Err(Refusal::NotFinite)
        );
        assert_eq!(of(Format::Json, b"x"), Err(Refusal::NoValue));
    }
}
