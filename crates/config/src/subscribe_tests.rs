//! `[[mqtt.subscribe]]`: what is taken from messages, and problems with their line and the remedy.

use super::*;
use ingest::intake::{JsonTake, MemberRules, PayloadKind, SparkplugRule, ValueKind};

/// A configuration with one subscription; its heading is line 4.
fn text(keys: &str) -> String {
    format!(
        "[mqtt]\naddress = \"h:1\"\nclient_id = \"k\"\n[[mqtt.subscribe]]\nfilter = \"a/+\"\n{keys}\n"
    )
}

fn parse(keys: &str) -> Result<Config, String> {
    Config::parse(&text(keys), "keel.toml", Path::new("")).map_err(|error| error.to_string())
}

fn subscription(keys: &str) -> SubscribeConfig {
    let config = parse(keys).unwrap_or_else(|error| panic!("{keys}: {error}"));
    config.mqtt.unwrap().subscribe.remove(0)
}

fn rules(keys: &str) -> MemberRules {
    match subscription(keys).payload {
        PayloadKind::Json(json) => match json.take {
            JsonTake::Several(rules) => *rules,
            JsonTake::One(..) => panic!("{keys}: one value"),
        },
        other => panic!("{keys}: {other:?}"),
    }
}

#[test]
fn fields_have_the_kind_of_the_subscription_or_their_own() {
    let found = rules(
        "payload = \"json\"\njson_fields = [\"*\", \"!b\"]\ntype = \"auto\"\nwords_true = [\"ON\"]\n\
         [[mqtt.subscribe.field]]\npath = \"s\"\ntype = \"bool\"\nname = \"\"\n\
         [[mqtt.subscribe.field]]\npath = \"t.*\"\ntype = \"number\"\ndecimal_comma = true\nunit_ignored = [\"C\"]\n",
    );
    assert_eq!(
        (found.take.len(), found.leave.len(), found.own.len()),
        (1, 1, 2)
    );
    assert_eq!(found.value.kind, ValueKind::Auto);
    assert_eq!(found.own[0].value.kind, ValueKind::Boolean);
    assert_eq!(found.own[0].value.words_true, ["ON"]);
    assert_eq!(found.own[0].name.as_deref(), Some(""));
    assert_eq!(found.own[1].value.kind, ValueKind::Number);
    assert!(found.own[1].value.decimal_comma);
    assert_eq!(found.own[1].value.units, ["C"]);
    assert_eq!(found.own[1].name, None);
    // Tables for fields are enough.
    let only = rules("payload = \"json\"\n[[mqtt.subscribe.field]]\npath = \"s\"");
    assert_eq!((only.take.len(), only.own.len()), (0, 1));
    // Several paths can stand for no level.
    let field = "[[mqtt.subscribe.field]]\nname = \"\"\npath = ";
    let nameless = rules(&format!("payload = \"json\"\n{field}\"a\"\n{field}\"b\""));
    assert_eq!(nameless.own.len(), 2);
}

#[test]
fn lines_of_the_file_are_known_and_make_no_difference() {
    let keys = "payload = \"json\"\njson_fields = [\n\"a\",\n\"!b\", \"c\",\n]\n\
                [[mqtt.subscribe.field]]\npath = \"s\"";
    let found = subscription(keys);
    assert_eq!(found.lines.table, 4);
    assert_eq!(found.lines.take, [8, 9]);
    assert_eq!(found.lines.leave, [9]);
    assert_eq!(found.lines.own, [11]);
    let (old, moved) = (parse(keys).unwrap(), parse(&format!("\n\n{keys}")).unwrap());
    assert_eq!(old, moved);
    let changes = reload(&old, &moved);
    assert!(changes.applied.is_empty(), "{:?}", changes.applied);
}

#[test]
fn keys_of_several_values_say_which() {
    for (keys, key) in [
        (
            "payload = \"json\"\njson_fields = [\"*\"]",
            "{topic}/{path}",
        ),
        (
            "payload = \"json\"\njson_fields = [\"v\"]\nkey = \"{1}\"",
            "{1}",
        ),
        (
            "payload = \"json\"\njson_fields = [\"v\", \"!v.x\"]\nkey = \"{1}\"",
            "{1}",
        ),
        ("payload = \"json\"\njson_field = \"v\"", "{topic}"),
        ("payload = \"value\"", "{topic}"),
    ] {
        assert_eq!(subscription(keys).key, key, "{keys}");
    }
    for keys in [
        "json_fields = [\"*\"]",
        "json_fields = [\"a*\"]",
        "json_fields = [\"a\", \"b\"]",
        "json_fields = [\"a\"]\n[[mqtt.subscribe.field]]\npath = \"b\"",
    ] {
        let error = parse(&format!("key = \"{{topic}}\"\npayload = \"json\"\n{keys}")).unwrap_err();
        let expected = "keel.toml:6: mqtt.subscribe.key lacks {path}; add it, so that each value of a message has a \
                        key of its own";
        assert_eq!(error, expected, "{keys}");
    }
}

#[test]
fn impossible_settings_are_refused_with_their_line() {
    let json = |keys: &str| format!("payload = \"json\"\n{keys}");
    let field = |keys: &str| json(&format!("[[mqtt.subscribe.field]]\n{keys}"));
    for (keys, expected) in [
        (
            "type = \"bool\"".to_owned(),
            "6: mqtt.subscribe.type is for payload = \"value\" or \"json\" only; set payload, or remove the line",
        ),
        (
            "json_fields = [\"*\"]".to_owned(),
            "6: mqtt.subscribe.json_fields is for payload = \"json\" only; set payload, or remove the line",
        ),
        (
            "payload = \"value\"\njson_time_unit = \"s\"".to_owned(),
            "7: mqtt.subscribe.json_time_unit is for payload = \"json\" only; set payload, or remove the line",
        ),
        (
            "payload = \"value\"\ntype = \"int\"".to_owned(),
            "7: mqtt.subscribe.type is \"int\"; give \"auto\" or \"number\" or \"integer\" or \"bool\" or \"text\"",
        ),
        (
            "payload = \"value\"\nwords_true = [\"on\"]\nwords_false = [\"ON\"]".to_owned(),
            "7: mqtt.subscribe.words_true has \"on\", and so has words_false; remove it from one of them",
        ),
        (
            "payload = \"value\"\ntype = \"number\"\nwords_true = [\"on\"]".to_owned(),
            "8: mqtt.subscribe.words_true has no effect with this type; set type = \"bool\" or \"auto\", or remove the \
             line",
        ),
        (
            "payload = \"value\"\nunit_ignored = [\"C\"]".to_owned(),
            "7: mqtt.subscribe.unit_ignored has no effect with this type; set type = \"number\" or \"integer\", or \
             remove the line",
        ),
        (
            "payload = \"value\"\ntype = \"number\"\nunit_ignored = [\"\"]".to_owned(),
            "8: mqtt.subscribe.unit_ignored holds an empty text; remove it",
        ),
        (
            json("json_field = \"a\"\njson_fields = [\"b\"]"),
            "7: mqtt.subscribe.json_field stands beside keys for several values; name all values in json_fields, and \
             remove json_field",
        ),
        (
            json("json_fields = [\"!a\"]"),
            "7: mqtt.subscribe.json_fields takes nothing; name the members that hold values; \"*\" stands for all",
        ),
        (
            json("json_fields = [\n\"a\",\n\"a..b\"]"),
            "9: mqtt.subscribe.json_fields holds \"a..b\"; a part of the path is empty",
        ),
        (
            json("json_fields = [\"a*b*\"]"),
            "7: mqtt.subscribe.json_fields holds \"a*b*\"; a part holds more than one `*`",
        ),
        (
            json("json_fields = [\"*\"]\njson_array = \"r\""),
            "8: mqtt.subscribe.json_array has readings without times of their own; name the time of an element in \
             json_array_time",
        ),
        (
            json("json_fields = [\"*\"]\njson_array_time = \"t\""),
            "8: mqtt.subscribe.json_array_time lacks its array; name the array in json_array; \"\" if the document is \
             the array",
        ),
        (
            json("json_fields = [\"*\"]\nkey = \"{field}\""),
            "8: mqtt.subscribe.key is \"{field}\"; only {topic}, {1} to {9} and {path} make sense here",
        ),
        (
            json("json_field = \"v\"\nkey = \"{path}\""),
            "8: mqtt.subscribe.key is \"{path}\"; {path} is for json_fields only",
        ),
        (
            field("name = \"x\""),
            "7: mqtt.subscribe.field.path is missing; name the member, such as \"battery.percent\"",
        ),
        (
            field("path = \"a\"\n[[mqtt.subscribe.field]]\npath = \"a\""),
            "10: mqtt.subscribe.field.path is there twice; remove one of them",
        ),
        (
            field("path = \"a.*\"\nname = \"x\""),
            "9: mqtt.subscribe.field.name is for a path without `*`; name one member, or remove the line",
        ),
        (
            field("path = \"a\"\nname = \"x//y\""),
            "9: mqtt.subscribe.field.name is \"x//y\"; give levels of a key, such as \"battery\"",
        ),
        (
            field("path = \"a\"\nname = \"+\""),
            "9: mqtt.subscribe.field.name is \"+\"; give levels of a key, such as \"battery\"",
        ),
        (
            field("path = \"a\"\ntyp = \"bool\""),
            "9: unknown key mqtt.subscribe.field.typ; did you mean type?",
        ),
    ] {
        let error = parse(&keys).expect_err(&keys);
        let first = error.split(" (and ").next().unwrap();
        assert_eq!(first, format!("keel.toml:{expected}"), "{keys}");
    }
}

#[test]
fn messages_of_sparkplug_have_keys_of_their_own() {
    let sparkplug = |keys: &str| {
        let text = text(&format!("payload = \"sparkplug\"\n{keys}"));
        let text = text.replace("a/+", "spBv1.0/plant/#");
        Config::parse(&text, "keel.toml", Path::new("")).map_err(|error| error.to_string())
    };
    let config = sparkplug("").unwrap();
    let warnings = config.warnings().join("; ");
    assert!(!warnings.contains("mqtt.subscribe"), "{warnings}");
    let found = config.mqtt.unwrap().subscribe.remove(0);
    assert_eq!(found.key, "{group}/{edge}/{place}/{metric}");
    let of = |rebirth| PayloadKind::Sparkplug(SparkplugRule { rebirth });
    assert_eq!(found.payload, of(false));
    let config = sparkplug("sparkplug_rebirth = true\nkey = \"p/{device}/{metric}\"").unwrap();
    let found = config.mqtt.unwrap().subscribe.remove(0);
    assert_eq!(
        (found.payload, found.key),
        (of(true), "p/{device}/{metric}".to_owned())
    );
    for (keys, wrong) in [
        ("key = \"{topic}/{metric}\"", "only {group}, {edge}"),
        ("key = \"{group}/{edge}\"", "lacks {metric}"),
        (
            "type = \"number\"",
            "is for payload = \"value\" or \"json\" only",
        ),
        ("json_fields = [\"*\"]", "is for payload = \"json\" only"),
    ] {
        let error = sparkplug(keys).unwrap_err();
        assert!(error.contains(wrong), "{keys}: {error}");
    }
    for (keys, wrong) in [
        (
            "sparkplug_rebirth = true",
            "is for payload = \"sparkplug\" only",
        ),
        ("key = \"{metric}\"", "are for payload = \"sparkplug\" only"),
        (
            "payload = \"sparkplug\"",
            "topics of Sparkplug B begin with spBv1.0",
        ),
    ] {
        let error = parse(keys).unwrap_err();
        assert!(error.contains(wrong), "{keys}: {error}");
    }
    let shared = text("payload = \"sparkplug\"").replace("a/+", "$share/g/spBv1.0/#");
    let error = Config::parse(&shared, "keel.toml", Path::new("")).unwrap_err();
    assert!(
        error.to_string().contains("leave out $share/GROUP/"),
        "{error}"
    );
}
