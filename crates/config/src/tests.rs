use super::*;

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, "keel.toml", Path::new("")).map_err(|error| error.to_string())
}

fn error(text: &str) -> String {
    parse(text).expect_err(text)
}

/// Returns the example with every setting enabled. Disabled settings have no space behind their `#`.
fn everything_on() -> String {
    let on = |line: &str| match line.strip_prefix('#') {
        Some(rest) if !rest.is_empty() && !rest.starts_with(' ') => rest.to_owned(),
        _ => line.to_owned(),
    };
    example().lines().map(|line| on(line) + "\n").collect()
}

#[test]
fn the_example_as_it_stands_is_the_default() {
    let example = parse(example()).unwrap();
    assert_eq!(example, parse("").unwrap());
    assert_eq!(example.mqtt, None);
    assert!(example.warnings().is_empty(), "{:?}", example.warnings());
}

#[test]
fn the_example_with_everything_on_says_the_defaults_too() {
    let all = everything_on();
    let config = parse(&all).unwrap();
    assert_eq!(config.mqtt.as_ref().unwrap().subscribe.len(), 7);
    assert_eq!(config.key.len(), 1);
    assert_eq!(config.upstream.len(), 2);
    // Removing the settings that have their default changes nothing.
    let mut needed = String::new();
    let mut is_needed = false;
    for line in all.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            is_needed |= comment.starts_with("Required") || comment.starts_with("No default");
            continue;
        }
        if line.is_empty() {
            is_needed = false;
        }
        if line.starts_with('[') || is_needed {
            needed.push_str(line);
            needed.push('\n');
            if line.contains(" = ") {
                is_needed = false;
            }
        }
    }
    assert!(needed.lines().count() < all.lines().count() / 4, "{needed}");
    assert!(!needed.contains("keys_max"), "{needed}");
    assert_eq!(parse(&needed), Ok(config), "{needed}");
}

#[test]
fn the_example_names_every_key_that_the_reader_asks_for() {
    let all = everything_on();
    let document = Document::new(&all);
    assert!(sections::config(&document, Path::new("")).is_some());
    let (problems, known) = document.finish();
    assert_eq!(problems, []);
    assert!(known.len() > 40, "{known:?}");
    let mut named = Vec::new();
    let mut section = String::new();
    for line in all.lines().filter(|line| !line.starts_with('#')) {
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']).to_owned();
            named.push(section.clone());
        } else if let Some((key, _)) = line.split_once(" = ") {
            named.push(format!("{section}.{key}"));
        }
    }
    for key in known {
        assert!(named.contains(&key), "{key}");
    }
}

#[test]
fn a_misspelt_key_is_told_with_its_line_and_the_nearest_one() {
    assert_eq!(
        error("[store]\n\ncommit_intervall_ms = 5\n"),
        "keel.toml:3: unknown key store.commit_intervall_ms; did you mean commit_interval_ms?"
    );
    assert_eq!(
        error("[stroe]\n"),
        "keel.toml:1: unknown key stroe; did you mean store?"
    );
    assert_eq!(
        error("zzz = 1\n"),
        "keel.toml:1: unknown key zzz; remove it; `keel config example` shows every key"
    );
    // The misspelt key comes first, not its consequences.
    let text = "[mqtt]\nclient_id = \"x\"\nadress = \"h:1\"\n[[mqtt.subscribe]]\nfilter = \"#\"\n";
    assert_eq!(
        error(text),
        "keel.toml:3: unknown key mqtt.adress; did you mean address? (and 1 more problem; keel config check names all)"
    );
}

#[test]
fn ranges_and_types_are_told_with_the_remedy() {
    for (text, expected) in [
        (
            "[store]\ncommit_interval_ms = 0",
            "keel.toml:2: store.commit_interval_ms is 0; give a whole number from 1 to 60000",
        ),
        (
            "[store]\ncommit_interval_ms = \"5\"",
            "keel.toml:2: store.commit_interval_ms is text; give a whole number from 1 to 60000",
        ),
        (
            "store = 5",
            "keel.toml:1: store is a whole number; give a table: [store]",
        ),
        (
            "[store]\nfull_policy = \"stop\"",
            "keel.toml:2: store.full_policy is \"stop\"; give \"reject-new\" or \"drop-oldest\"",
        ),
        (
            "[store]\ncard_rated_write_terabytes = nan",
            "keel.toml:2: store.card_rated_write_terabytes is nan; give a number from 0 to 1000000",
        ),
        (
            "[keys]\nkey_bytes_mean = 15",
            "keel.toml:2: keys.key_bytes_mean is 15; give a whole number from 16 to 256",
        ),
        (
            "[keys]\nkey_bytes_mean = 257",
            "keel.toml:2: keys.key_bytes_mean is 257; give a whole number from 16 to 256",
        ),
        (
            "[keys]\nauto_create = 1",
            "keel.toml:2: keys.auto_create is a whole number; give true or false",
        ),
        (
            "[keys]\nkeys_max = 99999999999999999999999",
            "keel.toml:2: keys.keys_max is 99999999999999999999999; give a whole number from 1 to 100000",
        ),
        (
            "[line]\ntcp_listen = \"localhost:8094\"",
            "keel.toml:2: line.tcp_listen is \"localhost:8094\"; give address:port, such as \"127.0.0.1:8094\", \
             or \"\" for none",
        ),
        (
            "[line]\nkey = \"{topic}\"",
            "keel.toml:2: line.key is \"{topic}\"; only {measurement}, {tags}, {pairs}, {values}, {tag:NAME} and \
             {field} make sense here",
        ),
        (
            "[[key]]\npattern = \"a/#/b\"",
            "keel.toml:2: key.pattern is \"a/#/b\"; `#` must be the whole last level",
        ),
        (
            "[[key]]\npattern = \"a\\u0007\"",
            "keel.toml:2: key.pattern holds a control character; remove it",
        ),
        (
            "[[key]]\npattern = \"a\\u0085\"",
            "keel.toml:2: key.pattern holds a control character; remove it",
        ),
        (
            "[[key]]\npattern = \"hall/t\"\n[[key]]\npattern = \"hall/t\\u200b\"",
            "keel.toml:4: key.pattern is \"hall/t\u{200b}\"; it holds invisible characters",
        ),
        (
            // A level with other characters is a name, but no topic has it.
            "[[key]]\npattern = \"c++/#1\"\n[mqtt]\naddress = \"h:1\"\nclient_id = \"x\"\n\
             [[mqtt.subscribe]]\nfilter = \"c++\"",
            "keel.toml:7: mqtt.subscribe.filter is \"c++\"; `+` must be a whole level",
        ),
        (
            "[line]\nkey = \"\\ufeff{measurement}\"",
            "keel.toml:2: line.key is \"\u{feff}{measurement}\"; it holds invisible characters",
        ),
        (
            "[[key]]\nvalidity_ms = 5",
            "keel.toml:1: key.pattern is missing; name the keys that are meant, such as \"hall/+/temperature\"",
        ),
        (
            "[key]\npattern = \"a\"",
            "keel.toml:1: key is a table; give tables: [[key]]",
        ),
        (
            "[keys]\nkeys_max = 1\n[[key]]\npattern = \"a\"\n[[key]]\npattern = \"b\"\n[[key]]\npattern = \"#\"",
            "keel.toml:1: key declares 2 keys, keys.keys_max is 1; raise keys.keys_max",
        ),
        (
            "[node]\nsocket = \"\"",
            "keel.toml:2: node.socket is empty; give a text, or remove the line",
        ),
        (
            "[node]\nsocket = \"a\\u0007\"",
            "keel.toml:2: node.socket holds a control character; remove it",
        ),
    ] {
        assert_eq!(error(text), expected);
    }
}

#[test]
fn a_text_that_is_no_toml_is_refused_with_its_line() {
    for (text, line) in [
        ("[node\n", 1),
        ("\n\nx ==", 3),
        ("[store]\n[store]\n", 2),
        ("[store]\nimage = \"a\"\nimage = \"b\"\n", 3),
        ("[store]\nimage = \"a\n", 2),
    ] {
        let error = error(text);
        let start = format!("keel.toml:{line}: is not TOML: ");
        assert!(error.starts_with(&start), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn settings_of_the_broker_are_checked() {
    let mqtt = |rest: &str| {
        format!(
            "[mqtt]\naddress = \"h:1883\"\nclient_id = \"k\"\n{rest}\n[[mqtt.subscribe]]\nfilter = \"a/#\"\n"
        )
    };
    let config = parse(&mqtt("")).unwrap();
    let broker = config.mqtt.unwrap();
    assert_eq!((broker.host.as_str(), broker.port), ("h", 1883));
    assert_eq!(broker.subscribe[0].key, "{topic}");
    assert_eq!(broker.subscribe[0].qos, 1);
    for (rest, expected) in [
        (
            "password_file = \"p\"",
            "keel.toml:4: mqtt.password_file lacks a user; give username as well",
        ),
        (
            "reconnect_ms_min = 50000",
            "keel.toml:1: mqtt.reconnect_ms_max is 30000; give at least reconnect_ms_min, which is 50000",
        ),
        (
            "[[mqtt.subscribe]]\nfilter = \"a/#\"",
            "keel.toml:6: mqtt.subscribe has the same filter twice; remove one of them",
        ),
        (
            "[[mqtt.subscribe]]\nfilter = \"b\"\npayload = \"json\"",
            "keel.toml:4: mqtt.subscribe.json_field is missing; name the member that holds the value; \"\" if the \
             document is the value",
        ),
        (
            "[[mqtt.subscribe]]\nfilter = \"b\"\njson_field = \"x\"",
            "keel.toml:6: mqtt.subscribe.json_field is for payload = \"json\" only; set payload, or remove the line",
        ),
        (
            "[[mqtt.subscribe]]\nfilter = \"b\"\nkey = \"{field}\"",
            "keel.toml:6: mqtt.subscribe.key is \"{field}\"; only {topic} and {1} to {9} make sense here",
        ),
    ] {
        assert_eq!(error(&mqtt(rest)), expected);
    }
    for bad in [
        "$share/g",
        "$share/g/",
        "$share//a",
        "$share/+/a",
        "$share/",
    ] {
        let text = mqtt("").replace("a/#", bad);
        let expected = format!(
            "keel.toml:6: mqtt.subscribe.filter is \"{bad}\"; a shared subscription is $share/GROUP/FILTER, such as \
             \"$share/keel/sensors/#\""
        );
        assert_eq!(error(&text), expected);
    }
    for good in [
        "$share/g/a/#",
        "$share/g/+",
        "$share/g//a",
        "$shared/a",
        "$SYS/#",
    ] {
        parse(&mqtt("").replace("a/#", good)).unwrap();
    }
    let line = parse(&mqtt(
        "[[mqtt.subscribe]]\nfilter = \"l\"\npayload = \"line\"",
    ))
    .unwrap();
    assert_eq!(
        line.mqtt.unwrap().subscribe[0].key,
        "{measurement}/{tags}/{field}"
    );
    let none = "[mqtt]\naddress = \"h:1883\"\nclient_id = \"k\"\n";
    assert_eq!(
        error(none),
        "keel.toml:1: mqtt.subscribe is missing; add [[mqtt.subscribe]] with a filter, or remove [mqtt]"
    );
    for bad in [
        "h",
        "h:0",
        "h:99999",
        "mqtt://h:1883",
        ":1883",
        "::1:1883",
        "[::1:1",
        "u@h:1",
    ] {
        let text = mqtt("").replace("h:1883", bad);
        let expected = format!(
            "keel.toml:2: mqtt.address is \"{bad}\"; give host:port, such as \"192.168.1.10:1883\""
        );
        assert_eq!(error(&text), expected);
    }
    let text = mqtt("").replace("h:1883", "[::1]:1883");
    let config = parse(&text).unwrap();
    assert!(
        config
            .sources_sentence()
            .contains("MQTT 5 from [::1]:1883 as k")
    );
    assert_eq!(config.mqtt.unwrap().host, "::1");
}

#[test]
fn a_pattern_for_one_key_is_a_key_that_can_be_made() {
    // A key of the greatest length in bytes; and a pattern, which may match keys that are shorter than the pattern.
    for pattern in [
        "x".repeat(255),
        "é".repeat(127),
        format!("{}/+/#", "x".repeat(252)),
    ] {
        parse(&format!("[[key]]\npattern = \"{pattern}\"")).unwrap();
    }
    let text = format!("\n[[key]]\npattern = \"{}\"", "é".repeat(128));
    let expected = "keel.toml:3: key.pattern is a key of 256 bytes; give at most 255, or a pattern";
    assert_eq!(error(&text), expected);
}

#[test]
fn relative_paths_start_at_the_file() {
    let text = "[store]\nimage = \"/dev/null\"\n[line]\nunix_socket = \"\"\n";
    let config = Config::parse(text, "x", Path::new("/etc/keel")).unwrap();
    assert_eq!(config.store.image, Path::new("/dev/null"));
    assert_eq!(
        config.node.socket,
        Path::new("/etc/keel/keel-data/keel.sock")
    );
    assert_eq!(config.line.unix_socket, None);
    let here = parse("").unwrap();
    assert_eq!(here.node.socket, Path::new("keel-data/keel.sock"));
    let deep = format!("/{}", "d".repeat(100));
    let error = Config::parse("", "x", Path::new(&deep))
        .unwrap_err()
        .to_string();
    assert!(error.contains("node.socket has 121 bytes"), "{error}");
}

#[test]
fn history_ends_before_the_store_is_full_unless_told_otherwise() {
    let capacity = 256 << 20;
    let retention = parse("").unwrap().retention(capacity);
    assert_eq!(retention.history_bytes_max, capacity / 10 * 9);
    assert_eq!(retention.history_age_ms_max, 0);
    // In a small store the checkpoints of 4,096 keys need more than a tenth.
    let small = parse("").unwrap().retention(16 << 20).history_bytes_max;
    assert!((9 << 20..12 << 20).contains(&small), "{small}");
    let tight = parse("[keys]\nkeys_max = 100000")
        .unwrap()
        .retention(16 << 20);
    assert_eq!(tight.history_bytes_max, 4 << 20);
    let text =
        "[store]\nhistory_mebibytes_max = 5\nhistory_days_max = 2\nfull_policy = \"drop-oldest\"";
    assert_eq!(
        parse(text).unwrap().retention(capacity),
        db::Retention {
            history_bytes_max: 5 << 20,
            history_age_ms_max: 2 * 86_400_000,
            backlog_bytes_max: parse("").unwrap().retention(capacity).history_bytes_max,
            full_policy: db::FullPolicy::DropOldest,
        }
    );
}

#[test]
fn surprising_settings_give_a_warning() {
    for (text, expected) in [
        (
            "[store]\nhistory_mebibytes_max = 256",
            "new readings are refused",
        ),
        ("[line]\ntcp_listen = \"0.0.0.0:8094\"", "no authentication"),
        ("[line]\ntcp_listen = \"\"\nunix_socket = \"\"", "no source"),
        (
            "[keys]\nauto_create = false",
            "every reading will be refused",
        ),
        (
            "[keys]\nkeys_max = 100000\n[store]\ncreate_mebibytes = 64",
            "takes up to 16.8 MiB, and the store has 64.0 MiB. That is more than a quarter",
        ),
        (
            "[keys]\nkeys_max = 100000\n[store]\ncreate_mebibytes = 32",
            "more than half of it",
        ),
        (
            "[keys]\nkeys_max = 100000\nkey_bytes_mean = 16\n[store]\ncreate_mebibytes = 64",
            "a checkpoint of 100000 keys (keys.keys_max) with values of 64 bytes (keys.value_bytes_max) takes up to \
             16.8 MiB",
        ),
        (
            "[keys]\nkeys_max = 100000\nkey_bytes_mean = 256\n[store]\ncreate_mebibytes = 128",
            "a checkpoint of 100000 keys (keys.keys_max) with names of 256 bytes (keys.key_bytes_mean) and values of \
             64 bytes (keys.value_bytes_max) takes up to 35.1 MiB, and the store has 128.0 MiB. That is more than a \
             quarter",
        ),
        (
            "[[key]]\npattern = \"hall#\"",
            "key.pattern is \"hall#\": + and # are wildcards only as whole levels",
        ),
    ] {
        let warnings = parse(text).unwrap().warnings();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains(expected), "{warnings:?}");
    }
    let quiet = "[store]\nhistory_mebibytes_max = 255\n[line]\ntcp_listen = \"[::1]:8094\"";
    assert!(parse(quiet).unwrap().warnings().is_empty());
}

#[test]
fn a_store_without_room_for_its_table_is_not_made() {
    let made = |keys_max: u32, mebibytes: u32| {
        let text = format!(
            "[keys]\nkeys_max = {keys_max}\n[store]\ncreate_mebibytes = {mebibytes}\n\
             image = \"/nowhere/at/all.img\""
        );
        let refused = parse(&text).unwrap().refuse_no_room();
        refused.map_err(|error| error.to_string())
    };
    // 176 bytes per key, plus 4,096.
    assert_eq!(made(95_301, 32), Ok(()));
    let error = made(95_302, 32).unwrap_err();
    for part in ["32.0 MiB", "95302 keys", "16.0 MiB", "create_mebibytes"] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(made(95_302, 33), Ok(()));
    // An existing store causes a warning and is used: its content can be read.
    let there = "[keys]\nkeys_max = 100000\n[store]\ncreate_mebibytes = 16\nimage = \"Cargo.toml\"";
    assert!(parse(there).unwrap().refuse_no_room().is_ok());
}

#[test]
fn a_reload_applies_the_changeable_keys_and_lists_the_others() {
    let old = parse("").unwrap();
    let same = reload(&old, &old);
    assert!(same.applied.is_empty() && same.needs_restart.is_empty());
    assert_eq!(same.effective, old);
    let text = "[store]\nhistory_days_max = 3\nimage = \"other.img\"\n[keys]\nauto_create = false\nkeys_max = 5\n\
                [[key]]\npattern = \"a\"\n[line]\nprecision = \"s\"\nidle_seconds_max = 1\n[time]\npast_days_max = 1\n\
                [mqtt]\naddress = \"h:1\"\nclient_id = \"k\"\n[[mqtt.subscribe]]\nfilter = \"#\"\n";
    let new = parse(text).unwrap();
    let changes = reload(&old, &new);
    assert_eq!(
        changes.applied,
        [
            "store.history_days_max",
            "keys.auto_create",
            "key",
            "time.past_days_max",
            "line.precision"
        ]
    );
    assert_eq!(
        changes.needs_restart,
        [
            "store.image",
            "keys.keys_max",
            "mqtt",
            "line.idle_seconds_max"
        ]
    );
    assert_eq!(changes.effective.store.image, old.store.image);
    assert_eq!(changes.effective.store.history_days_max, 3);
    assert_eq!(changes.effective.mqtt, None);
    let changes = reload(&new, &parse(&text.replace("h:1", "h:2")).unwrap());
    assert_eq!(changes.applied, ["mqtt"]);
    assert!(changes.needs_restart.is_empty());
}

#[test]
fn settings_marked_in_the_example_need_a_restart_and_no_others_do() {
    // One other value for each key at the top of the example; the comment above it says [restart] or not.
    let mut marked = false;
    let mut section = String::new();
    let mut seen = 0;
    for line in example().lines() {
        if line.is_empty() {
            marked = false;
        } else if let Some(comment) = line.strip_prefix("# ") {
            marked |= comment.contains("[restart]");
        } else if line.starts_with('[') {
            section = line.to_owned();
        } else if let Some((key, value)) = line.split_once(" = ").filter(|_| !line.starts_with('#'))
        {
            let other = match (key, value) {
                ("full_policy", _) => "\"drop-oldest\"".to_owned(),
                ("tcp_listen", _) => "\"127.0.0.1:1\"".to_owned(),
                ("precision", _) => "\"s\"".to_owned(),
                ("wall_clock", _) => "\"trusted\"".to_owned(),
                ("actuator", _) => "\"auto\"".to_owned(),
                ("quality_of_data", _) => "\"fresh\"".to_owned(),
                ("system_calls" | "paths", _) => "\"listed\"".to_owned(),
                ("mode", _) => "\"qod-only\"\ngains = \"g\"".to_owned(),
                (_, "true") => "false".to_owned(),
                ("card_rated_write_terabytes", _) => "7.5".to_owned(),
                ("samples_missing_max", _) => "7".to_owned(),
                ("key_bytes_mean", _) => "40".to_owned(),
                ("sampling_period_ms", _) => "770".to_owned(),
                (_, number) if number.parse::<u64>().is_ok() => "77".to_owned(),
                _ => "\"another\"".to_owned(),
            };
            let other = if key == "line_bytes_max" {
                "777".to_owned()
            } else {
                other
            };
            let new = parse(&format!("{section}\n{key} = {other}\n")).unwrap();
            let changes = reload(&parse("").unwrap(), &new);
            let name = format!("{}.{key}", section.trim_matches(['[', ']']));
            let mut found = (changes.applied, changes.needs_restart);
            // A mode requires gains.
            found.0.retain(|name| *name != "qos.gains");
            let expected = if marked {
                (vec![], vec![&*name])
            } else {
                (vec![&*name], vec![])
            };
            assert_eq!(found, expected);
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen}");
}

#[test]
fn no_text_makes_the_reader_panic() {
    let example = everything_on();
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move |limit: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % limit as u64) as usize
    };
    let scraps = [
        "=",
        "[",
        "]",
        "\"",
        "\n",
        "[[key]]\n",
        "{",
        "}",
        "-1",
        "é",
        "\0",
        "1e999",
        "'''",
        ".",
        "#",
    ];
    for _ in 0..2_000 {
        let mut text: Vec<char> = example.chars().collect();
        for _ in 0..=next(3) {
            let at = next(text.len());
            if next(2) == 0 {
                let end = (at + next(30)).min(text.len());
                text.drain(at..end);
            } else {
                text.splice(at..at, scraps[next(scraps.len())].chars());
            }
        }
        let text: String = text.into_iter().collect();
        if let Err(error) = parse(&text) {
            assert!(
                error.starts_with("keel.toml:") && !error.contains('\n'),
                "{error}"
            );
        }
    }
    let deep = format!("x = {}", "[".repeat(100_000));
    assert!(error(&deep).starts_with("keel.toml:1: "));
}

#[test]
fn a_region_is_parsed_and_its_mistakes_are_reported() {
    let region = |more: &str| format!("[region]\nfile = \"r\"\n{more}");
    let config = Config::parse(&region(""), "keel.toml", Path::new("/etc/keel")).unwrap();
    let found = config.region.unwrap();
    assert_eq!(found.file, Path::new("/etc/keel/r"));
    assert_eq!(
        (found.table.as_str(), found.checkpoint_image),
        ("keel-latest", None)
    );
    for (text, wrong) in [
        (
            "[region]\n".to_owned(),
            "keel.toml:1: region.file is missing",
        ),
        (
            region("table = \"a/b\"\n"),
            "keel.toml:3: region.table is \"a/b\"",
        ),
        (
            region("table = \"..\"\n"),
            "keel.toml:3: region.table is \"..\"",
        ),
        (
            region("checkpoint_image = \"keel-data/store.img\"\n"),
            "keel.toml:3: region.checkpoint_image is store.image; name another",
        ),
        (
            region("checkpoint_image = \"./r\"\n"),
            "keel.toml:3: region.checkpoint_image is region.file; name another",
        ),
        (
            "[region]\nfile = \"./keel-data//store.img\"\n".to_owned(),
            "keel.toml:2: region.file is store.image; name another",
        ),
        (
            region("checkpoint_interval_seconds = 0\n"),
            "keel.toml:3: region.checkpoint_interval_seconds",
        ),
        (
            region("create_mebibytes = 8\n"),
            "keel.toml:3: region.create_mebibytes",
        ),
        (region("size = 8\n"), "keel.toml:3: unknown key region.size"),
    ] {
        assert!(error(&text).starts_with(wrong), "{}", error(&text));
    }
    let (old, new) = (parse("").unwrap(), parse(&region("")).unwrap());
    let changes = reload(&old, &new);
    assert_eq!(changes.needs_restart, ["region"]);
    assert_eq!(changes.effective, old);
}

#[test]
fn modes_that_cannot_be_are_refused() {
    let of = |keys: &str| parse(&format!("[qos]\n{keys}\n"));
    assert!(
        of("mode = \"qod-only\"")
            .unwrap_err()
            .contains("needs gains")
    );
    let refused = of("mode = \"mimo\"\ngains = \"g.toml\"").unwrap_err();
    assert!(
        refused.contains("something that sets the speed"),
        "{refused}"
    );
    let all = "mode = \"mimo\"\ngains = \"g.toml\"\nactuator = \"auto\"\ntardiness_target = 0.7";
    let found = of(all).unwrap().qos;
    assert_eq!((found.tardiness, found.data_ratio), (Some(0.7), None));
    assert_eq!(found.gains, Some("g.toml".into()));
    assert!(of("tardiness_target = 0.0").is_err());
}

#[test]
fn keys_that_need_root_are_refused_with_another_user() {
    let user = "[node]\nuser = \"keel\"\n";
    assert_eq!(parse(user).unwrap().node.user.as_deref(), Some("keel"));
    assert_eq!(parse("[node]\nuser = \"\"\n").unwrap().node.user, None);
    let actuator = "[qos]\nactuator = \"auto\"\n";
    let mount = "[[mount]]\nname = \"plant\"\nserver = \"h:1\"\ndirectory = \"d\"\n";
    for (other, name) in [(actuator, "qos.actuator"), (mount, "[[mount]]")] {
        let refused = error(&format!("{user}{other}"));
        let wrong = format!("node.user is keel, and {name} needs root");
        assert!(refused.contains(&wrong), "{refused}");
    }
}

#[test]
fn a_node_that_starts_programs_is_not_confined() {
    let alarm = "[[alarm]]\nname = \"a\"\npattern = \"#\"\nabove = 1\ncommand = [\"true\"]\n";
    let task = "[[task]]\nname = \"a\"\ncommand = [\"true\"]\n";
    for (other, name) in [(alarm, "alarm.command"), (task, "[[task]]")] {
        for key in ["system_calls", "paths"] {
            let confined = format!("[node]\n{key} = \"listed\"\n");
            assert!(parse(&confined).is_ok());
            let refused = error(&format!("{confined}{other}"));
            let wrong = format!("node.{key} cannot be with {name}");
            assert!(refused.contains(&wrong), "{refused}");
        }
    }
}

#[test]
fn a_reload_keeps_a_section_that_names_a_file_outside_the_listed_folders() {
    let with_password = |file: &str| {
        let text = format!(
            "[mqtt]\naddress = \"h:1\"\nclient_id = \"k\"\nusername = \"u\"\npassword_file = \"{file}\"\n\
             [[mqtt.subscribe]]\nfilter = \"#\"\n"
        );
        parse(&text).unwrap()
    };
    let old = with_password("in/old");
    let is_listed = |path: &Path| path.starts_with("in");
    let mut changes = reload(&old, &with_password("out/new"));
    changes.keep_unlisted(&old, is_listed);
    assert_eq!(changes.needs_restart, ["mqtt.password_file"]);
    assert!(changes.applied.is_empty(), "{:?}", changes.applied);
    assert_eq!(changes.effective, old);
    let mut changes = reload(&old, &with_password("in/new"));
    changes.keep_unlisted(&old, is_listed);
    assert_eq!(changes.applied, ["mqtt"]);
    assert!(changes.needs_restart.is_empty());
}

#[test]
fn both_keys_that_confine_a_node_are_refused_at_once() {
    let task = "[[task]]\nname = \"a\"\ncommand = [\"true\"]\n";
    let text = format!("[node]\nsystem_calls = \"listed\"\npaths = \"listed\"\n{task}");
    let problems = Config::parse_all(&text, Path::new("")).unwrap_err();
    let told: Vec<&str> = problems.iter().map(|one| one.wrong.as_str()).collect();
    let begins = |key: &str| told.iter().any(|wrong| wrong.starts_with(key));
    assert!(
        told.len() == 2 && begins("node.system_calls cannot") && begins("node.paths cannot"),
        "{told:?}"
    );
}

#[test]
fn a_byte_order_mark_before_a_file_of_tokens_or_a_password_is_left_out() {
    let name = format!("keel-marked-{}", std::process::id());
    let file = std::env::temp_dir().join(name);
    let path = file.display();
    let text = format!(
        "[http]\ntoken_file = \"{path}\"\n[mqtt]\naddress = \"h:1\"\nclient_id = \"k\"\nusername = \"u\"\n\
         password_file = \"{path}\"\n[[mqtt.subscribe]]\nfilter = \"#\"\n"
    );
    let config = parse(&text).unwrap();
    let line = "phone 0123456789abcdef";
    std::fs::write(&file, format!("\u{feff}{line}\n")).unwrap();
    let (tokens, password) = (
        config.http.unwrap().tokens(),
        config.mqtt.unwrap().password(),
    );
    std::fs::remove_file(&file).unwrap();
    assert_eq!(tokens.unwrap(), egress::http::Tokens::parse(line).unwrap());
    assert_eq!(password.unwrap().as_deref(), Some(line));
}
