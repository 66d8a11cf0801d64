//! The HTTP server of a real node: its responses, access control, and the metrics with their files.

use crate::common::http::{Events, HTTP, address, answer, connect, get, get_with, json, rest};
use crate::common::node::Node;
use crate::common::{TempDir, one_line, run, wait_until};
use egress::http::{Kind, METRICS, metric_names};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

fn start() -> (Node, String) {
    let node = Node::start(HTTP);
    let address = address(&node);
    (node, address)
}

fn line(node: &Node, text: &str) {
    use std::io::Read;
    let mut stream = UnixStream::connect(node.dir.file("line.sock")).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    stream.write_all(b"\n").unwrap();
    // The node answers `ok` once everything is on flash.
    let mut said = [0; 64];
    let count = stream.read(&mut said).unwrap();
    assert!(said[..count].starts_with(b"ok "), "{said:?}");
}

#[test]
fn values_agree_with_the_commands() {
    let (node, address) = start();
    node.ok(&["put", "hall/1/temperature", "21.5"]);
    node.ok(&["put", "hall/1/door", "ajar \"é\"\n"]);
    node.ok(&["put", "cellar #2", "true"]);
    let mut asked = node.json(&["get", "hall/1/temperature", "--json", "--via", "socket"]);
    let mut told = json(&address, "/api/v1/values/hall/1/temperature");
    for value in [&mut asked, &mut told] {
        let value = value.as_object_mut().unwrap();
        value.remove("via");
        value.remove("age_ms").unwrap();
    }
    assert_eq!(told, asked);
    assert_eq!(
        json(&address, "/api/v1/values/cellar%20%232")["value"],
        true
    );
    let keys = |path: &str, list: &str| -> Vec<String> {
        let found = json(&address, path);
        let found = found[list].as_array().unwrap();
        found
            .iter()
            .map(|one| one["key"].as_str().unwrap().to_owned())
            .collect()
    };
    let all = ["hall/1/temperature", "hall/1/door", "cellar #2"];
    assert_eq!(keys("/api/v1/values", "values"), all);
    assert_eq!(keys("/api/v1/keys?pattern=%23", "keys"), all);
    assert_eq!(
        keys("/api/v1/values?pattern=hall/+/door", "values"),
        all[1..2]
    );
    assert_eq!(keys("/api/v1/values?pattern=nothing", "values"), all[..0]);
    let values = json(&address, "/api/v1/values?pattern=hall/1/door");
    assert_eq!(values["values"][0]["value"], "ajar \"é\"\n");
}

#[test]
fn history_is_down_sampled_and_every_reading_can_be_had() {
    let (node, address) = start();
    let begin: i64 = 1_772_368_200_000;
    let mut lines = String::new();
    for second in 0..1000 {
        let value = if second == 333 { 99.0 } else { 20.0 };
        let ns = (begin + second * 1000) * 1_000_000;
        lines.push_str(&format!("hall,s=1 t={value} {ns}\nhall,s=2 t=1 {ns}\n"));
    }
    line(&node, &lines);
    let range = format!("from_ms={begin}&to_ms={}", begin + 1_000_000);
    let points = json(
        &address,
        &format!("/api/v1/history?key=hall/s=1/t&key=hall/s=2/t&{range}&points=10"),
    );
    assert_eq!(
        (&points["complete"], &points["points"]),
        (&json!(true), &json!(10))
    );
    let [one, other] = &points["series"].as_array().unwrap()[..] else {
        panic!("{points}");
    };
    assert_eq!(
        one["count"],
        json!([100, 100, 100, 100, 100, 100, 100, 100, 100, 100])
    );
    assert_eq!(one["time_ms"][3], begin + 300_000);
    // A peak of one reading in a thousand is visible.
    assert_eq!(
        (&one["max"][3], &one["min"][3]),
        (&json!(99.0), &json!(20.0))
    );
    assert_eq!(one["mean"][3], 20.79);
    assert_eq!(one["max"][4], 20.0);
    assert_eq!(
        (&other["key"], &other["max"][0]),
        (&json!("hall/s=2/t"), &json!(1.0))
    );

    let told = get(
        &address,
        &format!("/api/v1/readings?key=hall/s%3D1/t&{range}&limit=100000"),
    );
    let mut rows: Vec<Value> = told
        .text()
        .lines()
        .map(|row| serde_json::from_str(row).unwrap())
        .collect();
    let end = rows.pop().unwrap();
    assert_eq!(
        (&end["end"], &end["sent"], &end["complete"]),
        (&json!(true), &json!(1000), &json!(true))
    );
    let asked = node.json(&["history", "hall/s=1/t", "--json"]);
    let pairs = |rows: &[Value]| -> Vec<(Value, Value, Value)> {
        let field = |row: &Value, name: &str| row[name].clone();
        rows.iter()
            .map(|row| {
                (
                    field(row, "time_ns"),
                    field(row, "value"),
                    field(row, "lsn"),
                )
            })
            .collect()
    };
    assert_eq!(pairs(&rows), pairs(asked.as_array().unwrap()));

    let part = get(
        &address,
        &format!("/api/v1/readings?key=hall/s=1/t&{range}&limit=2&format=csv"),
    );
    let rows: Vec<&str> = part.text().lines().collect();
    assert_eq!(rows[0], "time_ms,value,type,lsn,time_ns");
    assert_eq!(rows[1], format!("{begin},20.0,float,0,{begin}000000"));
    assert!(
        rows[3].starts_with("# {\"end\":true,\"sent\":2,\"complete\":false"),
        "{rows:?}"
    );
    assert_eq!(part.headers["content-type"], "text/csv; charset=utf-8");
}

#[test]
fn a_question_for_much_history_is_cut_and_says_so() {
    let config = format!("{HTTP}history_mebibytes_max = 1\n");
    let node = Node::start(&config);
    let address = address(&node);
    let long = "x".repeat(50);
    let mut lines = String::new();
    for at in 0..30_000 {
        lines.push_str(&format!("a v=\"{long}{at}\"\n"));
    }
    line(&node, &lines);
    line(&node, "b v=1\n");
    for path in ["/api/v1/history?key=a/v&key=b/v", "/api/v1/history?key=a/v"] {
        let found = json(&address, path);
        assert_eq!(found["complete"], false, "{found}");
        assert!(found["bytes_read"].as_u64().unwrap() >= 1 << 20);
    }
    let told = get(&address, "/api/v1/readings?key=a/v&limit=1000000");
    let end: Value = serde_json::from_str(told.text().lines().last().unwrap()).unwrap();
    assert_eq!(
        (&end["end"], &end["complete"]),
        (&json!(true), &json!(false))
    );
    assert!(end["sent"].as_u64().unwrap() < 30_000);
}

#[test]
fn the_stream_shows_present_and_new_values_until_the_node_ends() {
    let (mut node, address) = start();
    node.ok(&["put", "hall/1/t", "1"]);
    node.ok(&["put", "yard/t", "2"]);
    let mut all = Events::begin(&address, "/api/v1/stream?status=1", "");
    let (event, id, hello) = all.next().unwrap();
    assert_eq!(
        (event.as_str(), &hello["version"], &hello["missed"]),
        ("hello", &json!(1), &Value::Null)
    );
    let first = all.until("the first values", |event, _| event == "values");
    assert_eq!(first["values"]["hall/1/t"][0], 1.0);
    let mut hall = Events::begin(&address, "/api/v1/stream?pattern=hall/%23&current=0", "");
    hall.until("the greeting", |event, _| event == "hello");
    node.ok(&["put", "hall/2/t", "3"]);
    let new = |data: &Value| data["values"]["hall/2/t"][0] == 3.0;
    all.until("the new key", |_, data| new(data));
    let only = hall.until("the new key", |event, _| event == "values");
    assert!(
        new(&only) && only["values"].as_object().unwrap().len() == 1,
        "{only}"
    );
    let status = all.until("the status", |event, _| event == "status");
    assert_eq!(status["http"]["streams"], 2);
    // A reader that reconnects receives the values that it has missed.
    let header = format!("last-event-id: {id}\r\n");
    let mut back = Events::begin(&address, "/api/v1/stream", &header);
    let hello = back.until("the greeting", |event, _| event == "hello");
    assert_eq!(hello["missed"], 1);
    node.signal(libc::SIGTERM);
    while all.next().is_some() {}
    while hall.next().is_some() {}
    assert!(node.ended().success());
}

#[test]
fn status_health_description_and_metrics_are_there() {
    let (node, address) = start();
    node.ok(&["put", "a", "1"]);
    let told = json(&address, "/api/v1/status");
    let asked = node.json_degraded(&["status", "--json"]);
    let names = |value: &Value| -> BTreeSet<String> {
        value.as_object().unwrap().keys().cloned().collect()
    };
    assert_eq!(names(&told), names(&asked));
    assert_eq!(told["log"]["readings_durable"], 1);
    let flash = &told["flash"];
    let (done, bound) = (
        flash["operations"].as_u64().unwrap(),
        flash["operations_bound"].as_u64().unwrap(),
    );
    assert!(done > 0 && done <= bound, "{flash}");

    let health = get(&address, "/healthz");
    assert_eq!(health.status, 200);
    assert_eq!(health.text().trim(), told["state"].as_str().unwrap());
    assert_eq!(json(&address, "/openapi.json")["openapi"], "3.1.0");
    let metrics = get(&address, "/metrics");
    assert!(
        metrics.headers["content-type"].starts_with("application/openmetrics-text; version=1.0.0")
    );
    assert!(metrics.text().contains("\nkeel_readings_durable_total 1\n"));
    assert!(metrics.text().ends_with("# EOF\n"));

    let page = get(&address, "/");
    assert_eq!(page.status, 200);
    assert_eq!(page.headers["content-type"], "text/html; charset=utf-8");
    assert_eq!(page.headers["x-content-type-options"], "nosniff");
    assert_eq!(
        page.text().contains("was built without the live page"),
        !egress::http::has_page()
    );
}

#[test]
fn a_request_that_cannot_be_answered_gets_a_remedy() {
    let (node, address) = start();
    node.ok(&["put", "a", "1"]);
    for (path, status, thing) in [
        ("/nothing", 404, "address"),
        ("/page/nothing", 404, "nothing"),
        ("/api/v1/values/b", 404, "b"),
        ("/api/v1/values?limt=1", 400, "limt"),
        ("/api/v1/values?pattern=%23/a", 400, "pattern"),
        ("/api/v1/status?x", 400, "x"),
        ("/api/v1/history", 400, "key"),
        ("/api/v1/history?key=b", 404, "b"),
        ("/api/v1/history?key=a&key=a", 400, "a"),
        ("/api/v1/history?key=a&points=0", 400, "points"),
        ("/api/v1/history?key=a&from_ms=5&to_ms=5", 400, "from_ms"),
        ("/api/v1/history?key=a&from_ms=5&last_ms=5", 400, "last_ms"),
        (
            "/api/v1/history?key=a&last_ms=99999999999999999999",
            400,
            "last_ms",
        ),
        ("/api/v1/history?key=%ff", 400, "key"),
        ("/api/v1/readings?key=a&format=xml", 400, "format"),
        ("/api/v1/readings?key=a&limit=1000001", 400, "limit"),
        ("/api/v1/stream?status=2", 400, "status"),
    ] {
        let answer = get(&address, path);
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
        let error = answer.json();
        assert_eq!(error["thing"], thing, "{path}");
        assert!(
            error["wrong"]
                .as_str()
                .is_some_and(|wrong| !wrong.is_empty()),
            "{error}"
        );
    }
    // The widest range of times that can be expressed.
    let (low, high) = (i64::MIN, i64::MAX);
    json(
        &address,
        &format!("/api/v1/history?key=a&from_ms={low}&to_ms={high}&points=5000"),
    );
    for (request, status) in [
        (
            "POST /api/v1/values HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n",
            405,
        ),
        (
            "PUT /api/v1/values/a HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-length: 1\r\n\r\n1",
            413,
        ),
        (
            "GET /healthz HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n",
            403,
        ),
        (
            "HEAD /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
            200,
        ),
    ] {
        let mut stream = connect(&address);
        stream.write_all(request.as_bytes()).unwrap();
        assert_eq!(answer(&mut stream).status, status, "{request}");
    }
    let refused = &json(&address, "/api/v1/status")["http"]["refused"];
    assert_eq!((&refused["body"], &refused["host"]), (&json!(1), &json!(1)));
}

#[test]
fn a_token_is_asked_for_where_there_are_tokens() {
    let mut node = Node::prepare(&format!("{HTTP}token_file = \"tokens\"\n"));
    std::fs::write(node.dir.file("tokens"), "phone 0123456789abcdef\n").unwrap();
    node.restart();
    let address = address(&node);
    node.ok(&["put", "a", "1"]);
    for path in [
        "/api/v1/values",
        "/api/v1/status",
        "/metrics",
        "/api/v1/stream",
        "/api/v1/history?key=a",
    ] {
        for header in [
            "",
            "authorization: Bearer 0123456789abcdeF\r\n",
            "authorization: Basic eDp5\r\n",
        ] {
            let refused = get_with(&address, path, header);
            assert_eq!(refused.status, 401, "{path}");
            assert!(refused.headers["www-authenticate"].starts_with("Bearer"));
        }
    }
    for public in ["/", "/healthz", "/openapi.json"] {
        assert_eq!(get(&address, public).status, 200, "{public}");
    }
    let header = "authorization: Bearer 0123456789abcdef\r\n";
    let status = get_with(&address, "/api/v1/status", header).json();
    assert_eq!(status["http"]["refused"]["token"], 15);
    // With a token any host name is accepted: a foreign web page lacks the token.
    let mut stream = connect(&address);
    let request =
        format!("GET /metrics HTTP/1.1\r\nhost: keel.example\r\n{header}connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    assert_eq!(answer(&mut stream).status, 200);
    assert!(!node.log().contains("0123456789abcdef"));
}

#[test]
fn a_configuration_that_opens_the_node_to_others_is_refused_or_warned_of() {
    let dir = TempDir::new();
    let file = dir.file("keel.toml");
    let path = file.to_str().unwrap();
    let check = |text: &str| {
        std::fs::write(&file, text).unwrap();
        run(&["config", "check", path])
    };
    let refused = check("[http]\nlisten = \"0.0.0.0:8095\"\n");
    assert_eq!(refused.status.code(), Some(1));
    let said = one_line(&refused.stderr);
    assert!(
        said.contains("keel.toml:2: http.listen") && said.contains("token_file"),
        "{said}"
    );
    // On a public address, reads may be anonymous, writes may not.
    let refused = check("[http]\nlisten = \"0.0.0.0:8095\"\nanonymous = true\nwrite = true\n");
    assert_eq!(refused.status.code(), Some(1));
    let said = one_line(&refused.stderr);
    assert!(
        said.contains("keel.toml:2: http.listen") && said.contains("token_file"),
        "{said}"
    );
    let said = |text: &str| {
        let output = check(text);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let open = said("[http]\nlisten = \"0.0.0.0:8095\"\nanonymous = true\n");
    assert!(
        open.contains("warning: http.listen is 0.0.0.0:8095: every client"),
        "{open}"
    );
    let missing = said("[http]\ntoken_file = \"none\"\n");
    assert!(missing.contains("warning: http.token_file"), "{missing}");
    std::fs::write(dir.file("tokens"), "a short\n").unwrap();
    let short = said("[http]\ntoken_file = \"tokens\"\n");
    assert!(
        short.contains("tokens:1") && short.contains("16 letters"),
        "{short}"
    );
    std::fs::write(dir.file("tokens"), "a 0123456789abcdef\n").unwrap();
    let mode = |mode| {
        std::fs::set_permissions(dir.file("tokens"), std::fs::Permissions::from_mode(mode)).unwrap()
    };
    mode(0o644);
    let readable = said("[http]\ntoken_file = \"tokens\"\n");
    assert!(readable.contains("chmod 600"), "{readable}");
    mode(0o600);
    let good = said("[http]\ntoken_file = \"tokens\"\n");
    assert!(!good.contains("warning"), "{good}");
    assert!(
        good.contains("http://127.0.0.1:8095, with a token of"),
        "{good}"
    );
}

#[test]
fn a_strange_host_name_is_refused_also_with_anonymous_reading() {
    let node = Node::start(&format!("{HTTP}anonymous = true\n"));
    let address = address(&node);
    for (host, status) in [("evil.example", 403), ("127.0.0.1", 200)] {
        let mut stream = connect(&address);
        let request = format!("GET /healthz HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        assert_eq!(answer(&mut stream).status, status, "{host}");
    }
}

#[test]
fn tokens_that_cannot_be_read_cost_the_http_side_alone() {
    let node = Node::start(&format!("{HTTP}token_file = \"none\"\n"));
    node.ok(&["put", "a", "1"]);
    let status = node.json_degraded(&["status", "--json"]);
    let why = status["http_unusable"].as_str().unwrap();
    assert!(
        why.contains("http.token_file") && why.contains("none"),
        "{why}"
    );
    assert!(
        status["reasons"].to_string().contains("http_unusable"),
        "{status}"
    );
}

#[test]
fn an_address_that_is_taken_is_named_and_nothing_starts() {
    let (_node, address) = start();
    let mut second = Node::prepare(&HTTP.replace("127.0.0.1:0", &address));
    second.spawn();
    assert_eq!(second.ended().code(), Some(1));
    let log = second.log();
    assert!(log.contains(&format!("http.listen {address}")), "{log}");
}

/// Returns all names in a file that look like one of ours.
fn names_in(text: &str) -> BTreeSet<String> {
    text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
        .filter(|word| word.starts_with("keel_"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_metric_that_dashboard_and_alerts_name_exists() {
    let there: BTreeSet<String> = METRICS.iter().flat_map(metric_names).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let mut used = BTreeSet::new();
    for file in ["grafana/evenkeel.json", "prometheus/evenkeel.rules.yml"] {
        let text = std::fs::read_to_string(root.join(file)).unwrap();
        let names = names_in(&text);
        assert!(names.len() >= 10, "{file}");
        for name in &names {
            assert!(
                there.contains(name),
                "{file} names {name}, which there is not"
            );
        }
        used.extend(names);
    }
    // The dashboards and alerts must use the metrics of losses.
    for name in [
        "keel_readings_dropped_total",
        "keel_refused_full_total",
        "keel_state",
    ] {
        assert!(used.contains(name), "{name}");
    }
}

#[test]
fn the_dashboard_has_a_panel_for_each_part_of_a_node() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let dashboard = std::fs::read_to_string(root.join("grafana/evenkeel.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let (mut numbers, mut places) = (BTreeSet::new(), BTreeSet::new());
    let mut shown = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(numbers.insert(panel["id"].as_u64()), "{panel}");
        let place = &panel["gridPos"];
        let corner = (place["x"].as_u64(), place["y"].as_u64());
        assert!(places.insert(corner), "two panels at one place: {panel}");
        for target in panel["targets"].as_array().unwrap() {
            let names = names_in(target["expr"].as_str().unwrap());
            assert!(!names.is_empty(), "{panel}");
            shown.extend(names);
        }
    }
    for name in [
        "keel_upstream_connected",
        "keel_upstream_lost_readings_total",
        "keel_upstream_missing_readings_total",
        "keel_upstream_refused_readings_total",
        "keel_alarm_active",
        "keel_alarms_undelivered",
        "keel_mount_mounted",
        "keel_mount_reads_failed_total",
        "keel_program_state",
        "keel_job_failed_runs_total",
        "keel_power_watts",
        "keel_region_loss_window_seconds",
    ] {
        assert!(shown.contains(name), "no panel shows {name}");
    }
}

/// A node with one of each part that has metrics with its name. Neither upstream nor broker exist.
const PARTS: &str = r#"
[[upstream]]
name = "cloud"
kind = "http"
url = "http://127.0.0.1:1/write"
[[broker]]
name = "local"
address = "127.0.0.1:1"
client_id = "keel-metrics"
[[alarm]]
name = "hot"
pattern = "hall/+"
above = 60.0
broker = "local"
[[task]]
name = "pump"
command = ["sleep", "1000"]
[[job]]
name = "knock"
kernel = "vibration"
key = "hall/1"
out = "knock.json"
window = 64
"#;

/// Starts such a node. Returns its address and its metrics, once program and alarm are there.
fn parts() -> (Node, String, String) {
    let node = Node::start(&format!("{HTTP}{PARTS}"));
    let address = address(&node);
    node.ok(&["put", "hall/1", "70"]);
    let mut text = String::new();
    wait_until("program, alarm and backlog in the metrics", || {
        get(&address, "/metrics").text().clone_into(&mut text);
        [
            "keel_program_state{program=\"pump\",keel_program_state=\"running\"} 1\n",
            "keel_alarm_active{alarm=\"hot\"} 1\n",
            "keel_upstream_backlog_readings{upstream=\"cloud\"} 1\n",
        ]
        .iter()
        .all(|line| text.contains(line))
    });
    (node, address, text)
}

#[test]
fn each_part_of_the_status_has_its_metrics() {
    let (mut node, address, text) = parts();
    let status = json(&address, "/api/v1/status");
    let mut samples = 0;
    for metric in METRICS {
        let (Kind::CounterOf(label, by, member)
        | Kind::GaugeOf(label, by, member)
        | Kind::StatesOf(label, by, member, _)) = metric.kind
        else {
            continue;
        };
        let path = metric.path;
        if !["upstream", "brokers", "alarms", "tasks", "jobs"].contains(&path) {
            continue;
        }
        let objects = status[path].as_array().unwrap();
        assert_eq!(objects.len(), 1, "{path}");
        let object = objects[0].as_object().unwrap();
        let value = object
            .get(member)
            .unwrap_or_else(|| panic!("no {member} in {path}"));
        let sample = &metric_names(metric)[0];
        let sample = format!("\n{sample}{{{label}={}", object[by]);
        // Only a value that is known must have a sample.
        assert!(value.is_null() || text.contains(&sample), "{sample}");
        samples += u32::from(!value.is_null());
    }
    assert!(samples > 25, "{samples}");
    assert!(text.contains("keel_upstream_connected{upstream=\"cloud\"} 0\n"));
    assert!(text.contains("keel_upstream_lost_readings_total{upstream=\"cloud\"} 0\n"));
    assert!(text.contains("keel_broker_connected{broker=\"local\"} 0\n"));
    // So that the program ends with it.
    node.stop();
}

/// Returns what promtool says; it must succeed.
fn promtool(arguments: &[&str], folder: &Path, input: &str) -> String {
    let mut child = Command::new("promtool")
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "promtool {arguments:?}: {said}");
    said.into_owned()
}

/// Returns the metrics in the older text format, the only one that `promtool check metrics` reads. In it, names have
/// their endings in each line, and two types are missing.
fn in_text_format(open_metrics: &str) -> String {
    let mut out = String::new();
    let mut ending = "";
    for line in open_metrics.lines().filter(|line| *line != "# EOF") {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        let line = match words[..] {
            ["#", "TYPE", name, kind] => {
                let kind = match kind {
                    "info" | "stateset" => "gauge",
                    other => other,
                };
                ending = match words[3] {
                    "counter" => "_total",
                    "info" => "_info",
                    _ => "",
                };
                format!("# TYPE {name}{ending} {kind}")
            }
            ["#", "HELP", name, help] => format!("# HELP {name}{ending} {help}"),
            _ => line.to_owned(),
        };
        out.push_str(&line);
        out.push('\n');
    }
    out
}

#[test]
fn prometheus_itself_reads_the_metrics_and_the_alert_rules() {
    if Command::new("promtool").arg("--version").output().is_err() {
        println!("skipped: promtool is not installed (Debian: prometheus)");
        return;
    }
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/prometheus");
    let said = promtool(&["check", "rules", "evenkeel.rules.yml"], &packaging, "");
    assert!(said.contains("SUCCESS"), "{said}");
    let said = promtool(
        &["test", "rules", "evenkeel.rules.test.yml"],
        &packaging,
        "",
    );
    assert!(said.contains("SUCCESS"), "{said}");

    let (mut node, _, text) = parts();
    let dir = TempDir::new();
    promtool(&["check", "metrics"], dir.path(), &in_text_format(&text));
    // The parser of OpenMetrics is behind the import of samples, which must have times.
    let with_time = |line: &str| match line.starts_with('#') {
        true => format!("{line}\n"),
        false => format!("{line} 1772368200\n"),
    };
    let timed: String = text.lines().map(with_time).collect();
    std::fs::write(dir.file("metrics.txt"), timed).unwrap();
    let import = [
        "tsdb",
        "create-blocks-from",
        "openmetrics",
        "metrics.txt",
        "blocks",
    ];
    promtool(&import, dir.path(), "");
    node.stop();
}

#[test]
fn the_text_of_the_metrics_is_well_formed() {
    let (node, address) = start();
    node.ok(&["put", "a", "1"]);
    line(&node, "x bad\n");
    let text = get(&address, "/metrics");
    let mut kinds = std::collections::BTreeMap::new();
    let mut last = String::new();
    let mut samples = 0;
    for line in text.text().lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(
                kinds.insert(name.to_owned(), kind.to_owned()).is_none(),
                "{name} twice"
            );
            name.clone_into(&mut last);
        } else if !line.starts_with('#') {
            let (series, value) = line.rsplit_once(' ').unwrap();
            value.parse::<f64>().unwrap();
            let name = series.split('{').next().unwrap();
            let ending = name
                .strip_prefix(last.as_str())
                .unwrap_or_else(|| panic!("{line} under {last}"));
            let expected: &[&str] = match kinds[&last].as_str() {
                "counter" => &["_total"],
                "info" => &["_info"],
                "summary" => &["", "_count"],
                _ => &[""],
            };
            assert!(expected.contains(&ending), "{line}");
            samples += 1;
        }
    }
    assert!(samples > 60, "{samples}");
    // Each metric of the table is present, or its feature is not configured on this node.
    for metric in METRICS {
        let absent = [
            "mqtt",
            "region",
            "upstream",
            "qos.last",
            "qos.tardiness_target",
            "wear.gigabytes_per_day",
            "wear.card_years_left",
        ];
        let is_absent = absent.iter().any(|one| metric.path.starts_with(one));
        assert!(
            is_absent || kinds.contains_key(metric.name),
            "{}",
            metric.name
        );
    }
    let mut stream = connect(&address);
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    assert!(
        !rest(&mut stream).is_empty(),
        "an old client is answered, too"
    );
}
