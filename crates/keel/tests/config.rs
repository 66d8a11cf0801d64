//! `keel config` as a process.

use crate::common::{TempDir, fails, keel, ok, ok_json, run, run_with_input};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

fn example() -> String {
    String::from_utf8(ok(&["config", "example"])).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn the_example_is_accepted_as_it_stands() {
    let dir = TempDir::new();
    let file = dir.file("keel.toml");
    std::fs::write(&file, example()).unwrap();
    let answer = String::from_utf8(ok(&["config", "check", text(&file)])).unwrap();
    let first = answer.lines().next();
    assert_eq!(first, Some(format!("{}: ok", file.display()).as_str()));
    assert!(!answer.contains("warning"), "{answer}");
    let json = ok_json(&["config", "check", text(&file), "--json"]);
    assert_eq!(
        (&json["ok"], &json["problems"]),
        (&Value::from(true), &Value::from(Vec::<u8>::new()))
    );
    // The default is the file in the current directory.
    let here = keel()
        .args(["config", "check"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(here.stdout.starts_with(b"keel.toml: ok\n"), "{here:?}");
}

#[test]
fn a_mistake_is_one_line_and_exit_status_1() {
    let dir = TempDir::new();
    let file = dir.file("keel.toml");
    let wrong = example().replace("commit_interval_ms", "commit_intervall_ms");
    let line = 1 + wrong
        .lines()
        .position(|line| line.starts_with("commit_intervall_ms"))
        .unwrap();
    std::fs::write(&file, &wrong).unwrap();
    assert_eq!(
        fails(&["config", "check", text(&file)], 1),
        format!(
            "keel: {}:{line}: unknown key store.commit_intervall_ms; did you mean commit_interval_ms?",
            file.display()
        )
    );
    // The node rejects it with the same error and creates nothing.
    assert_eq!(
        fails(&["run", "-c", text(&file)], 1),
        fails(&["config", "check", text(&file)], 1)
    );
    assert_eq!(dir.entries(), std::slice::from_ref(&file));
    let output = run(&["config", "check", text(&file), "--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stderr.is_empty(), "{output:?}");
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["ok"], false);
    assert_eq!(json["problems"][0]["line"], line);
    assert_eq!(
        json["problems"][0]["remedy"],
        "did you mean commit_interval_ms?"
    );
}

#[test]
fn a_check_names_every_problem_in_a_line_of_its_own() {
    let dir = TempDir::new();
    let file = dir.file("keel.toml");
    std::fs::write(
        &file,
        "[store]\nimages = \"a\"\n[keys]\nkeys_max = 0\n[mqtt]\n",
    )
    .unwrap();
    let output = run(&["config", "check", text(&file)]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines.len() >= 3, "{said}");
    for (place, what) in [(2, "store.images"), (4, "keys.keys_max"), (5, "mqtt.")] {
        let begin = format!("keel: {}:{place}: ", file.display());
        let names = |line: &&&str| line.starts_with(&begin) && line.contains(what);
        assert!(lines.iter().any(|line| names(&line)), "{what}: {said}");
    }
    // A start reports the first error, and how to find the others.
    let line = fails(&["run", "-c", text(&file)], 1);
    assert!(line.ends_with("; keel config check names all)"), "{line}");
}

#[test]
fn a_file_that_is_no_configuration_is_refused_of_any_kind() {
    let dir = TempDir::new();
    let file = dir.file("keel.toml");
    let check = |bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        let error = fails(&["config", "check", text(&file)], 1);
        error.replace(text(&file), "FILE")
    };
    assert_eq!(
        check(&vec![b'#'; (1 << 20) + 1]),
        "keel: FILE: is larger than 1048576 bytes; name the right file"
    );
    assert_eq!(
        check(b"[node]\n# \xff\n"),
        "keel: FILE:2: is not UTF-8; save it as UTF-8"
    );
    assert!(check(b"\0\x01\x02").starts_with("keel: FILE:1: is not TOML: "));
    assert!(check(b"a\r\n[[[[").starts_with("keel: FILE:1: is not TOML: "));
    let at = |path: &Path| fails(&["config", "check", text(path)], 1);
    assert!(at(dir.path()).ends_with("is no regular file; name a file"));
    assert!(at(Path::new("/dev/zero")).ends_with("is no regular file; name a file"));
    assert!(at(&dir.file("none")).ends_with("no such file or directory; check the path"));
}

#[test]
fn a_surprising_setting_gets_a_warning() {
    let dir = TempDir::new();
    let (file, password) = (dir.file("keel.toml"), dir.file("password"));
    std::fs::write(&password, "secret\n").unwrap();
    let all = "[store]\nhistory_mebibytes_max = 1000\n[line]\ntcp_listen = \"0.0.0.0:8094\"\n[mqtt]\n\
               address = \"h:1\"\nclient_id = \"k\"\nusername = \"u\"\npassword_file = \"password\"\n\
               [[mqtt.subscribe]]\nfilter = \"#\"\n";
    std::fs::write(&file, all).unwrap();
    let warnings = |mode: u32| {
        std::fs::set_permissions(&password, std::fs::Permissions::from_mode(mode)).unwrap();
        let answer = String::from_utf8(ok(&["config", "check", text(&file)])).unwrap();
        assert!(!answer.contains("secret"), "{answer}");
        let lines = answer.lines().filter(|line| line.starts_with("warning: "));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let open = warnings(0o644);
    assert_eq!(open.len(), 3, "{open:?}");
    assert!(
        open[2].ends_with(&format!("chmod 600 {}", password.display())),
        "{open:?}"
    );
    assert_eq!(warnings(0o600), open[..2]);
    assert_eq!(warnings(0o640), open[..2]);
}

#[test]
fn a_store_too_small_for_its_table_is_refused_before_it_is_made() {
    let dir = TempDir::new();
    let file = dir.file("keel.toml");
    let config = |mebibytes: u32| {
        let text = example()
            .replace("keys_max = 4096", "keys_max = 100000")
            .replace("\nvalue_bytes_max = 64", "\nvalue_bytes_max = 1000")
            .replace(
                "\ncreate_mebibytes = 256",
                &format!("\ncreate_mebibytes = {mebibytes}"),
            );
        std::fs::write(&file, text).unwrap();
    };
    config(128);
    let line = fails(&["config", "check", text(&file)], 1);
    for part in [
        "106.1 MiB",
        "128.0 MiB",
        "create_mebibytes",
        "keys.keys_max",
    ] {
        assert!(line.contains(part), "{line}");
    }
    // The node reports the same and creates nothing.
    assert_eq!(fails(&["run", "-c", text(&file)], 1), line);
    assert_eq!(dir.entries(), std::slice::from_ref(&file));
    let output = run(&["config", "check", text(&file), "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["ok"], false);
    let wrong = json["problems"][0]["wrong"].as_str().unwrap();
    assert!(wrong.contains("106.1 MiB"), "{wrong}");
    // A size that may still fit is accepted with a warning; one that certainly fits, without.
    config(256);
    let answer = String::from_utf8(ok(&["config", "check", text(&file)])).unwrap();
    assert!(
        answer.contains("warning: ") && answer.contains("more than a quarter"),
        "{answer}"
    );
    config(512);
    let answer = String::from_utf8(ok(&["config", "check", text(&file)])).unwrap();
    assert!(!answer.contains("warning"), "{answer}");
}

/// A file with two subscriptions: numbers, and several values of JSON.
fn tried(dir: &TempDir) -> std::path::PathBuf {
    let file = dir.file("keel.toml");
    let config = "[keys]\nauto_create = false\n[[key]]\npattern = \"n/#\"\n[[key]]\npattern = \"j/a/#\"\n\
                  [mqtt]\naddress = \"h:1\"\nclient_id = \"k\"\npacket_bytes_max = 1024\n\
                  [[mqtt.subscribe]]\nfilter = \"n/+\"\nretained = \"skip\"\n\
                  [[mqtt.subscribe]]\nfilter = \"j/+\"\npayload = \"json\"\njson_time_field = \"t\"\n\
                  json_fields = [\n  \"*\",\n  \"!x\",\n]\n\
                  [[mqtt.subscribe.field]]\npath = \"state\"\nname = \"on\"\ntype = \"bool\"\n\
                  [time]\npast_days_max = 36500\n";
    std::fs::write(&file, config).unwrap();
    file
}

#[test]
fn a_message_is_tried_without_a_node_and_the_line_that_decides_is_named() {
    let dir = TempDir::new();
    let file = tried(&dir);
    let payload = r#"{"state": "ON", "count": 9007199254740993, "x": {"y": 1}, "bad": 1e400,
        "t": "2024-06-01T11:00:00Z"}"#;
    let json = ok_json(&["config", "try", "j/a", payload, "--json", "-c", text(&file)]);
    assert_eq!(
        (&json["filter"], &json["line"]),
        (&"j/+".into(), &14.into())
    );
    let (time_ms, time_ns) = (1_717_239_600_000_i64, "1717239600000000000");
    assert_eq!(
        json["readings"],
        serde_json::json!([
            {"key": "j/a/count", "value": 9_007_199_254_740_993_i64, "value_text": "9007199254740993",
             "type": "integer", "time_ms": time_ms, "time_ns": time_ns, "path": "count", "line": 19},
            {"key": "j/a/on", "value": true, "type": "boolean", "time_ms": time_ms, "time_ns": time_ns,
             "path": "state", "line": 22},
        ])
    );
    assert_eq!(
        json["refusals"],
        serde_json::json!([
            {"reason": "not_finite", "what": "j/a bad: 1e400", "path": "bad", "key": null, "line": 19},
        ])
    );
    assert_eq!(
        json["left_out"],
        serde_json::json!([
            {"path": "t", "why": "time", "line": null},
            {"path": "x/y", "why": "left", "line": 20},
        ])
    );
    // Nothing is created, and no store is needed.
    assert_eq!(dir.entries(), std::slice::from_ref(&file));
}

#[test]
fn a_message_that_a_node_would_refuse_is_exit_status_1() {
    let dir = TempDir::new();
    let file = tried(&dir);
    let tried = |arguments: &[&str], input: &[u8]| {
        let all = [&["config", "try"][..], arguments, &["-c", text(&file)]].concat();
        let output = run_with_input(&all, input);
        let (out, error) = (output.stdout, output.stderr);
        let texts = (
            String::from_utf8(out).unwrap(),
            String::from_utf8(error).unwrap(),
        );
        (output.status.code(), texts.0, texts.1)
    };
    let begin = format!("{}:11: n/+\n", file.display());
    // A payload may begin with a hyphen, or come from the standard input.
    let (status, out, _) = tried(&["n/a", "-5"], b"");
    assert_eq!(
        (status, out),
        (Some(0), format!("{begin}  n/a = -5 (float), line 11\n"))
    );
    let (status, out, _) = tried(&["n/a", "-"], b"21.5\n");
    assert_eq!(
        (status, out),
        (Some(0), format!("{begin}  n/a = 21.5 (float), line 11\n"))
    );
    let (status, out, error) = tried(&["n/a", "warm\x1b"], b"");
    let refused = "  refused, payload_invalid: n/a: warm\\u{1b}, line 11\n";
    assert_eq!((status, out), (Some(1), format!("{begin}{refused}")));
    assert!(
        error.starts_with("keel: n/a: a node refuses the message as payload_invalid"),
        "{error}"
    );
    let (status, out, _) = tried(
        &[
            "j/b",
            "{\"v\": 1, \"t\": \"2024-06-01T11:00:00Z\"}",
            "--json",
        ],
        b"",
    );
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (status, json["refusals"][0]["key"].as_str()),
        (Some(1), Some("j/b/v"))
    );
    assert_eq!(json["refusals"][0]["reason"], "key_unknown");
    let (status, out, error) = tried(&["other", "1"], b"");
    assert_eq!(
        (status, out.as_str()),
        (Some(1), "  refused, topic_unmatched: other: 1\n")
    );
    assert!(error.contains("add a [[mqtt.subscribe]]"), "{error}");
    // A retained message that is skipped gives no reading, and is not refused.
    let (status, out, _) = tried(&["n/a", "1", "--retained"], b"");
    assert_eq!((status, out), (Some(0), format!("{begin}  no reading\n")));
    // The limit is for the whole message, with its topic and its header.
    for (bytes, wrong) in [
        (1016, "a node refuses the message as not_finite"),
        (1017, "is larger than mqtt.packet_bytes_max, 1024 bytes"),
    ] {
        let (status, _, error) = tried(&["n/a", "-"], &vec![b'1'; bytes]);
        assert_eq!(status, Some(1));
        assert!(error.contains(wrong), "{error}");
    }
    std::fs::write(&file, "").unwrap();
    let (status, _, error) = tried(&["n/a", "1"], b"");
    assert_eq!(status, Some(1));
    assert!(error.contains("has no [mqtt]"), "{error}");
}

#[test]
fn a_message_that_came_before_is_taken_from_its_file() {
    let dir = TempDir::new();
    let file = dir.file("keel.toml");
    let config = "[mqtt]\naddress = \"127.0.0.1:1\"\nclient_id = \"k\"\n\
                  [[mqtt.subscribe]]\nfilter = \"spBv1.0/#\"\npayload = \"sparkplug\"\n";
    std::fs::write(&file, config).unwrap();
    // A birth names a metric `T` with the alias 1 and the type double: 21.5. Data with the alias: 20.5.
    let birth = b"\x12\x10\x0a\x01T\x10\x01\x20\x0a\x69\0\0\0\0\0\x80\x35\x40\x18\x00";
    let data = b"\x12\x0b\x10\x01\x69\0\0\0\0\0\x80\x34\x40\x18\x01";
    let before = dir.file("birth.bin");
    std::fs::write(&before, birth).unwrap();
    let tried = |before: &[&str]| {
        let message = ["spBv1.0/g/NDATA/e", "-", "-c", text(&file)];
        let all = [&["config", "try"][..], before, &message].concat();
        let output = run_with_input(&all, data);
        let texts = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code(), texts)
    };
    let topic = "spBv1.0/g/NBIRTH/e";
    let (status, [out, _]) = tried(&["--before", topic, text(&before)]);
    let shown = format!(
        "{}:4: spBv1.0/#\n  g/e/node/T = 20.5 (float), line 4\n",
        file.display()
    );
    assert_eq!((status, out), (Some(0), shown));
    let (status, [out, error]) = tried(&[]);
    assert_eq!(status, Some(1));
    assert!(out.contains("refused, sparkplug_unknown_alias: "), "{out}");
    assert!(
        error.contains("a node refuses the message as sparkplug_unknown_alias"),
        "{error}"
    );
    let (status, [_, error]) = tried(&["--before", topic, "nothing.bin"]);
    assert_eq!(status, Some(1));
    assert!(error.starts_with("keel: nothing.bin: "), "{error}");
}
