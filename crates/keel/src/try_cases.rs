//! The cases of `crates/ingest/MQTT.md`: a node makes of each message what the page says.

use super::*;

const PAGE: &str = include_str!("../../ingest/MQTT.md");

/// Symbols of the page for characters that are invisible there.
const SYMBOLS: [(&str, &str); 5] = [
    ("␊", "\n"),
    ("␍", "\r"),
    ("[BOM]", "\u{feff}"),
    ("[ZWSP]", "\u{200b}"),
    ("␠", " "),
];

struct Case {
    /// Lines of `[[mqtt.subscribe]]`.
    settings: String,
    /// As on the page, like what follows.
    message: &'static str,
    node: Vec<&'static str>,
}

/// Returns the texts in code of a line.
fn in_code(line: &'static str) -> Vec<&'static str> {
    let parts: Vec<&str> = line.split('`').collect();
    assert!(parts.len() % 2 == 1, "{line}");
    parts.into_iter().skip(1).step_by(2).collect()
}

/// Returns the cases of all tables of the page, and checks the form of their rows.
fn cases() -> Vec<Case> {
    let (_, section) = PAGE.split_once("\n## Cases\n").expect("the page has cases");
    let mut cases = Vec::new();
    let mut settings = String::new();
    for line in section.lines() {
        if line.starts_with("With ") {
            settings = in_code(line).join("\n");
        }
        let Some(row) = line.strip_prefix('|') else {
            assert!(!line.contains('|'), "{line}");
            continue;
        };
        if ["|---|---|", "| message | the node |"].contains(&line) {
            continue;
        }
        let cells = row
            .strip_suffix('|')
            .and_then(|row| row.trim().split_once(" | "));
        let (message, node) = cells.unwrap_or_else(|| panic!("{line}"));
        let message = in_code(message);
        let found = in_code(node);
        assert_eq!(
            (message.len(), found.is_empty()),
            (1, node == "nothing"),
            "{line}"
        );
        assert!(!settings.is_empty(), "{line}");
        cases.push(Case {
            settings: settings.clone(),
            message: message[0],
            node: found,
        });
    }
    cases
}

fn text(event: &Event, reading: &Reading) -> String {
    let value = match Value::decode(&reading.value) {
        Some(value @ Value::Integer(_)) => format!("{value}i"),
        Some(value @ Value::Unsigned(_)) => format!("{value}u"),
        Some(Value::Text(text)) => format!("\"{text}\""),
        Some(value) => value.to_string(),
        None => panic!("{:?}", reading.value),
    };
    let time = reading.time.map(|time| format!(" @{}", time.ns()));
    let key = event.key.as_deref().unwrap();
    format!("{key}={value}{}", time.unwrap_or_default())
}

/// Returns the readings, then the reasons of refusals, as the page writes them.
fn done(case: &Case) -> Vec<String> {
    let file = format!(
        "[time]\npast_days_max = 36500\n[mqtt]\naddress = \"h:1\"\nclient_id = \"k\"\n\
         [[mqtt.subscribe]]\nfilter = \"s/+\"\n{}\n",
        case.settings
    );
    let config = Config::parse(&file, "keel.toml", Path::new(""));
    let config = config.unwrap_or_else(|error| panic!("{}: {error}", case.settings));
    let recorder = Arc::new(Recorder {
        rules: settings::key_rules(&config),
        clock: SystemClock::new(),
        seen: Mutex::default(),
    });
    let options = settings::intake(&config).unwrap();
    let mut intake = Intake::new(options, Arc::clone(&recorder));
    let mut message = case.message.to_owned();
    for (symbol, character) in SYMBOLS {
        message = message.replace(symbol, character);
    }
    intake.mqtt(b"s/a", message.as_bytes());
    let seen = recorder.seen();
    let readings = seen.events.iter().filter_map(|event| {
        let reading = event.outcome.as_ref().ok()?;
        Some(text(event, reading))
    });
    let refused = seen.events.iter().filter_map(|event| {
        let refusal = event.outcome.as_ref().err()?;
        Some(refusal.reason.name().to_owned())
    });
    let mut done: Vec<String> = readings.chain(refused).collect();
    for text in &mut done {
        for (symbol, character) in SYMBOLS.iter().filter(|(_, character)| *character != " ") {
            *text = text.replace(character, symbol);
        }
    }
    done
}

/// Any other rule for a payload, such as `trim` without its condition in `of_payload`, makes it red.
#[test]
fn a_node_handles_each_message_of_the_page_as_stated() {
    let cases = cases();
    assert!(cases.len() > 190, "{} cases", cases.len());
    let wrong: Vec<String> = cases
        .iter()
        .map(|case| (case, done(case)))
        .filter(|(case, done)| case.node != *done)
        .map(|(case, done)| {
            let Case {
                settings, message, ..
            } = case;
            format!("{settings}: `{message}`: {done:?}, not {:?}", case.node)
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
