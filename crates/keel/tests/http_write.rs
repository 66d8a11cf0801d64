//! Readings that clients of InfluxDB write over HTTP, to a real node.

use crate::common::http::{Answer, HTTP, address, answer, connect, get, get_with, json, post};
use crate::common::node::Node;
use crate::common::{TempDir, run};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use std::io::Write;

/// A configuration under which any user of this machine may write.
fn writable() -> String {
    format!("{HTTP}write = true\nwrite_kibibytes_max = 16\n")
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Posts a body as Go does that does not know its size: in chunks, and the client keeps the connection until the end.
fn post_chunks(address: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
    let mut stream = connect(address);
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\n{headers}transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    for chunk in body.chunks(1000) {
        let begin = format!("{:x}\r\n", chunk.len());
        stream.write_all(begin.as_bytes()).unwrap();
        stream.write_all(chunk).unwrap();
        stream.write_all(b"\r\n").unwrap();
    }
    stream.write_all(b"0\r\n\r\n").unwrap();
    answer(&mut stream)
}

fn status(address: &str) -> Value {
    json(address, "/api/v1/status")
}

#[test]
fn telegraf_writes_with_its_own_output_and_durable_lines_survive_a_kill() {
    let config = HTTP.replace(
        "[http]",
        "key = \"{measurement}/{tag:host}/{field}\"\n[http]",
    );
    let mut node = Node::prepare(&format!("{config}token_file = \"tokens\"\nwrite = true\n"));
    let tokens = "phone 0123456789abcdef\ntelegraf fedcba9876543210 write\n";
    std::fs::write(node.dir.file("tokens"), tokens).unwrap();
    node.restart();
    // As `outputs.influxdb_v2` of Telegraf 1.37 sends.
    let begin: i64 = 1_780_272_000_000;
    let mut lines = String::new();
    for second in 0..500 {
        let ns = (begin + second * 1000) * 1_000_000;
        lines.push_str(&format!(
            "cpu,cpu=cpu-total,host=gw-14 usage_idle={}.5,usage_user=1.5 {ns}\n\
             disk,device=sda1,fstype=ext4,host=gw-14,path=/ used={second}i,inodes_free=7u {ns}\n",
            second % 100
        ));
    }
    let headers = "user-agent: Telegraf/1.37.2 Go/1.25.5\r\nauthorization: Token fedcba9876543210\r\n\
                   content-encoding: gzip\r\ncontent-type: text/plain; charset=utf-8\r\n";
    let path = "/api/v2/write?bucket=site&org=plant";
    let answer = post_chunks(&address(&node), path, headers, &packed(lines.as_bytes()));
    assert_eq!(answer.status, 204, "{}", answer.text());
    assert!(answer.body.is_empty());
    node.kill();
    node.restart();
    for (key, value) in [
        ("cpu/gw-14/usage_idle", json!(99.5)),
        ("cpu/gw-14/usage_user", json!(1.5)),
        ("disk/gw-14/used", json!(499)),
        ("disk/gw-14/inodes_free", json!(7)),
    ] {
        let found = node.json_degraded(&["get", key, "--json", "--via", "socket"]);
        assert_eq!(found["value"], value, "{key}: {found}");
        assert_eq!(found["time_ms"], begin + 499_000, "{key}: {found}");
    }
    let history = node.json(&["history", "disk/gw-14/used", "--json"]);
    let used: Vec<i64> = history
        .as_array()
        .unwrap()
        .iter()
        .map(|reading| reading["value"].as_i64().unwrap())
        .collect();
    assert_eq!(used, (0..500).collect::<Vec<i64>>());
}

/// A time of the agents' readings.
const AGENT_TIME_NS: &str = "1780272000123456789";

/// Starts a node that takes readings only with the token `fedcba9876543210` of `agent`.
fn for_an_agent() -> Node {
    let mut node = Node::prepare(&format!("{HTTP}token_file = \"tokens\"\nwrite = true\n"));
    std::fs::write(node.dir.file("tokens"), "agent fedcba9876543210 write\n").unwrap();
    node.restart();
    node
}

/// Checks the latest values of keys, and that all have the agents' time.
fn has_of_agent(node: &Node, values: &[(&str, Value)]) {
    for (key, value) in values {
        let found = node.json_degraded(&["get", key, "--json", "--via", "socket"]);
        let is_it = match value.as_f64() {
            Some(number) => found["value"].as_f64() == Some(number),
            None => found["value"] == *value,
        };
        assert!(is_it, "{key}: {found}");
        assert_eq!(found["time_ns"], AGENT_TIME_NS, "{key}: {found}");
    }
}

#[test]
fn vector_writes_with_its_own_sinks() {
    let node = for_an_agent();
    let address = address(&node);
    // As Vector 0.44 sends (`src/sinks/influxdb`), with `org`, `bucket` and `token`. First it asks for the health.
    assert_eq!(get(&address, "/health").status, 200);
    let headers = "content-type: text/plain\r\nauthorization: Token fedcba9876543210\r\n\
                   user-agent: Vector/0.44.0\r\naccept-encoding: identity\r\n";
    let path = "/api/v2/write?org=my+org&bucket=site%2F7&precision=ns";
    let t = AGENT_TIME_NS;
    // `influxdb_metrics`: a counter, a gauge, an aggregated histogram and a distribution. The last line has no end.
    let metrics = format!(
        "host.cpu_seconds_total,collector=cpu,cpu=0,host=gw-14,metric_type=counter,mode=idle value=12.25 {t}\n\
         host.load1,collector=load,host=gw\\ 15,metric_type=gauge value=2 {t}\n\
         ns.requests,metric_type=histogram bucket_2.1=2u,bucket_inf=6u,sum=12.5,count=6u {t}\n\
         ns.waits,metric_type=distribution quantile_0.95=3,min=1,max=3,avg=1.875 {t}"
    );
    let answer = post(&address, path, headers, metrics.as_bytes());
    assert_eq!(answer.status, 204, "{}", answer.text());
    // `influxdb_logs`: each line has its end. A message may hold line feeds, quotes and backslashes.
    let logs = format!(
        "vector-logs,host=gw-14,metric_type=logs,source_type=file \
         message=\"first\nsays \\\"C:\\\\temp\\\"\",bytes=482i,ok=true,seconds=0.5 {t}\n"
    );
    let answer = post(&address, path, headers, logs.as_bytes());
    assert_eq!(answer.status, 204, "{}", answer.text());
    let cpu = "host.cpu_seconds_total/collector=cpu/cpu=0/host=gw-14/metric_type=counter/mode=idle";
    let log = "vector-logs/host=gw-14/metric_type=logs/source_type=file";
    has_of_agent(
        &node,
        &[
            (format!("{cpu}/value").as_str(), json!(12.25)),
            (
                "host.load1/collector=load/host=gw 15/metric_type=gauge/value",
                json!(2),
            ),
            ("ns.requests/metric_type=histogram/bucket_inf", json!(6)),
            ("ns.requests/metric_type=histogram/sum", json!(12.5)),
            ("ns.waits/metric_type=distribution/quantile_0.95", json!(3)),
            (
                format!("{log}/message").as_str(),
                json!("first\nsays \"C:\\temp\""),
            ),
            (format!("{log}/bytes").as_str(), json!(482)),
            (format!("{log}/ok").as_str(), json!(true)),
            (format!("{log}/seconds").as_str(), json!(0.5)),
        ],
    );
}

#[test]
fn vector_with_settings_of_influxdb_1_writes_where_there_are_no_tokens() {
    let node = Node::start(&writable());
    let address = address(&node);
    // As Vector 0.44 sends with `database`, `consistency` and `retention_policy_name`. Its token is empty.
    assert_eq!(get(&address, "/ping").status, 204);
    let headers = "content-type: text/plain\r\nauthorization: Token \r\n";
    let body = format!("ns.total,metric_type=counter value=1.5,count=6i {AGENT_TIME_NS}");
    let path = "/write?consistency=any&db=vector-database&rp=autogen&precision=ns";
    let answer = post(&address, path, headers, body.as_bytes());
    assert_eq!(answer.status, 204, "{}", answer.text());
    has_of_agent(
        &node,
        &[
            ("ns.total/metric_type=counter/value", json!(1.5)),
            ("ns.total/metric_type=counter/count", json!(6)),
        ],
    );
    // Its `username` and `password` come in the address. They are refused there, because addresses end up in logs.
    let path = "/write?db=vector-database&p=fedcba9876543210&u=agent&precision=ns";
    let answer = post(&address, path, headers, body.as_bytes());
    assert_eq!((answer.status, &answer.json()["thing"]), (400, &json!("p")));
    assert!(!answer.text().contains("fedcba9876543210"));
}

#[test]
fn fluent_bit_writes_with_its_own_output() {
    let node = for_an_agent();
    let address = address(&node);
    let t = AGENT_TIME_NS;
    // As Fluent Bit 5.0 sends (`plugins/out_influxdb`) with `org`, `bucket`, `http_token`, `sequence_tag off` and
    // `tag_keys host`. It escapes a text as JSON does, and then as line protocol does. The last line has no end.
    let headers = "User-Agent: Fluent-Bit\r\nAuthorization: Token fedcba9876543210\r\n";
    let path = "/api/v2/write?org=any&bucket=any&precision=ns";
    let body = format!(
        "cpu.local cpu_p=1.250000,cpu0.p_user=2.000000,pid=7 {t}\n\
         app.log,host=hall\\ 1 log=\"says \\\\\\\"no\\\\\\\"\",lines=3,ok=TRUE {t}"
    );
    let answer = post(&address, path, headers, body.as_bytes());
    assert_eq!(answer.status, 204, "{}", answer.text());
    // With `database`, `http_user`, `http_passwd` and `add_integer_suffix`; each record has a number as a tag.
    let headers = "User-Agent: Fluent-Bit\r\n\
                   Authorization: Basic YWdlbnQ6ZmVkY2JhOTg3NjU0MzIxMA==\r\n";
    let body = format!("mem,_seq=0 used=-5i,free=7i {t}\nmem,_seq=1 used=6i,swap=FALSE {t}");
    let answer = post(
        &address,
        "/write?db=fluentbit&precision=n",
        headers,
        body.as_bytes(),
    );
    assert_eq!(answer.status, 204, "{}", answer.text());
    has_of_agent(
        &node,
        &[
            ("cpu.local/cpu_p", json!(1.25)),
            ("cpu.local/cpu0.p_user", json!(2)),
            ("cpu.local/pid", json!(7)),
            ("app.log/host=hall 1/log", json!("says \\\"no\\\"")),
            ("app.log/host=hall 1/lines", json!(3)),
            ("app.log/host=hall 1/ok", json!(true)),
            ("mem/_seq=0/used", json!(-5)),
            ("mem/_seq=0/free", json!(7)),
            ("mem/_seq=1/used", json!(6)),
            ("mem/_seq=1/swap", json!(false)),
        ],
    );
}

#[test]
fn refused_lines_come_back_with_their_reasons_and_the_others_are_kept() {
    let node = Node::start(&writable());
    let address = address(&node);
    let body = b"good v=1\nbad\n# a comment\ngood v=2,#=3\ngood v=4 5";
    let answer = post(&address, "/write?db=any", "", body);
    assert_eq!(answer.status, 400);
    let told = answer.json();
    assert_eq!(
        (&told["code"], &told["thing"], &told["accepted"]),
        (&json!("invalid"), &json!("body"), &json!(2))
    );
    assert_eq!(
        (&told["refused"], &told["shed"], &told["text_open_line"]),
        (&json!(3), &json!(0), &Value::Null)
    );
    assert_eq!(
        told["lines"],
        json!([
            {"line": 2, "reasons": ["line_invalid"], "text": "bad"},
            {"line": 4, "reasons": ["key_invalid"], "text": "good v=2,#=3"},
            {"line": 5, "reasons": ["time_absurd"], "text": "good v=4 5"},
        ])
    );
    let message = told["message"].as_str().unwrap();
    assert!(message.ends_with(": line 2, line_invalid"), "{message}");
    assert_eq!(told["error"], format!("partial write: {message}"));
    let history = node.json(&["history", "good/v", "--json"]);
    let values: Vec<f64> = history
        .as_array()
        .unwrap()
        .iter()
        .map(|reading| reading["value"].as_f64().unwrap())
        .collect();
    assert_eq!(values, [1.0, 2.0]);
    // Counted as those of the line port are.
    let status = status(&address);
    let refused = &status["intake"]["refused"];
    assert_eq!(
        (
            &refused["line_invalid"],
            &refused["key_invalid"],
            &refused["time_absurd"]
        ),
        (&json!(1), &json!(1), &json!(1))
    );
    assert_eq!(status["intake"]["refused_last"]["line_invalid"], "bad");
    let http = &status["http"];
    assert_eq!(
        (
            &http["writes"],
            &http["write_readings"],
            &http["write_refused"]
        ),
        (&json!(1), &json!(2), &json!(3))
    );
    assert_eq!(http["write_bytes"], body.len());
    assert_eq!(http["writes_active"], 0);
    let metrics = get(&address, "/metrics");
    for line in [
        "\nkeel_http_writes_total 1\n",
        "\nkeel_http_write_readings_total 2\n",
        "\nkeel_http_write_refused_total 3\n",
        "\nkeel_input_refused_total{reason=\"line_invalid\"} 1\n",
    ] {
        assert!(metrics.text().contains(line), "{line}");
    }
}

#[test]
fn a_text_without_an_end_is_named_and_earlier_lines_are_kept() {
    let node = Node::start(&writable());
    let body = b"good v=1\nopen t=\"one\ngood v=2\n";
    let answer = post(&address(&node), "/api/v2/write", "", body);
    assert_eq!(answer.status, 400, "{}", answer.text());
    let told = answer.json();
    assert_eq!(
        (&told["accepted"], &told["text_open_line"]),
        (&json!(1), &json!(2))
    );
    let remedy = told["remedy"].as_str().unwrap();
    assert!(remedy.contains("end the text of line 2"), "{remedy}");
}

#[test]
fn a_gzip_bomb_is_refused_and_nothing_of_it_is_taken() {
    let node = Node::start(&writable());
    let address = address(&node);
    let gzip = "content-encoding: gzip\r\n";
    let bomb = packed("a v=1\n".repeat(6_000_000).as_bytes());
    let small = packed("a v=1\n".repeat(20_000).as_bytes());
    assert!(small.len() < 16 << 10 && bomb.len() > 16 << 10);
    let plain = vec![b'\n'; 100 << 10];
    for (headers, body) in [(gzip, &small), (gzip, &bomb), ("", &plain)] {
        for send in [post, post_chunks] {
            let answer = send(&address, "/api/v2/write", headers, body);
            assert_eq!(answer.status, 413, "{}", answer.text());
            assert_eq!(answer.json()["thing"], "body");
        }
    }
    // What is no gzip, or is cut, is not taken either.
    let lines = packed(b"a v=1\n");
    for body in [&b"a v=1\n"[..], &lines[..lines.len() - 1]] {
        let answer = post(&address, "/api/v2/write", gzip, body);
        assert_eq!(answer.status, 400, "{}", answer.text());
    }
    let status = status(&address);
    assert_eq!(status["log"]["readings_taken"], 0);
    let refused = &status["http"]["refused"];
    assert_eq!(
        (&refused["body_large"], &refused["body_broken"]),
        (&json!(6), &json!(2))
    );
    let answer = post(&address, "/api/v2/write", gzip, &lines);
    assert_eq!(answer.status, 204, "{}", answer.text());
}

#[test]
fn times_are_in_the_unit_that_the_address_names() {
    let node = Node::start(&writable());
    let address = address(&node);
    let ms: i64 = 1_780_272_000_000;
    for (at, (path, time)) in [
        ("/write?", ms * 1_000_000),
        ("/write?precision=n", ms * 1_000_000),
        ("/write?precision=u", ms * 1000),
        ("/write?precision=ms", ms),
        ("/write?precision=s", ms / 1000),
        ("/write?precision=m", ms / 60_000),
        ("/write?precision=h", ms / 3_600_000),
        ("/api/v2/write?precision=ns", ms * 1_000_000),
        ("/api/v2/write?precision=us", ms * 1000),
        ("/api/v2/write?precision=ms", ms),
        ("/api/v2/write?precision=s", ms / 1000),
    ]
    .into_iter()
    .enumerate()
    {
        let answer = post(
            &address,
            path,
            "",
            format!("unit v{at}=1 {time}").as_bytes(),
        );
        assert_eq!(answer.status, 204, "{path}: {}", answer.text());
        let found = json(&address, &format!("/api/v1/values/unit/v{at}"));
        assert_eq!(found["time_ms"], ms, "{path}");
    }
    let answer = post(&address, "/write?precision=d", "", b"unit v=1 5");
    assert_eq!(
        (answer.status, &answer.json()["thing"]),
        (400, &json!("precision"))
    );
}

/// `got.time.ms() * 1_000_000` in `http/values.rs`, or `entry.time.ms()` in the last column of `http/history.rs`, makes
/// it red.
#[test]
fn times_in_ns_order_readings_and_are_shown_to_the_nanosecond() {
    let mut node = Node::start(&writable());
    let address = address(&node);
    let ms: i64 = 1_780_272_000_123;
    // The last one is not the latest.
    let body = format!("air co2=1.5 {ms}000001\nair co2=2.5 {ms}999999\nair co2=3.5 {ms}500000\n");
    let answer = post(&address, "/write", "", body.as_bytes());
    assert_eq!(answer.status, 204, "{}", answer.text());
    let by_http = json(&address, "/api/v1/values/air/co2");
    let by_socket = node.json_degraded(&["get", "air/co2", "--json", "--via", "socket"]);
    for found in [by_http, by_socket] {
        assert_eq!(
            (&found["value"], &found["time_ms"], &found["time_ns"]),
            (&json!(2.5), &json!(ms), &json!(format!("{ms}999999"))),
            "{found}"
        );
    }
    // The bounds of a range are whole ms.
    for (from, count) in [(ms - 1, 0), (ms, 3), (ms + 1, 0)] {
        let path = format!(
            "/api/v1/readings?key=air/co2&from_ms={from}&to_ms={}&format=csv",
            from + 1
        );
        let answer = get(&address, &path);
        let rows = answer.text().lines().skip(1);
        let rows: Vec<&str> = rows.filter(|row| !row.starts_with('#')).collect();
        assert_eq!(rows.len(), count, "{rows:?}");
        for (row, end) in rows.iter().zip(["000001", "999999", "500000"]) {
            let (begin, end) = (format!("{ms},"), format!(",{ms}{end}"));
            assert!(row.starts_with(&begin) && row.ends_with(&end), "{row}");
        }
    }
    let history = node.json(&["history", "air/co2", "--json"]);
    let history = history.as_array().unwrap();
    assert_eq!(history.len(), 3, "{history:?}");
    assert!(history.iter().all(|reading| reading["time_ms"] == ms));
    let lines: String = [(1.5, "000001"), (2.5, "999999"), (3.5, "500000")]
        .map(|(value, end)| format!("keel,key=air/co2 value={value} {ms}{end}\n"))
        .concat();
    let export = ["export", "--format", "line", "air/co2"];
    assert_eq!(node.ok(&export), lines);
    assert!(node.stop().success());
    let of_image = [&export[..], &["--image", "keel-data/store.img"][..]].concat();
    assert_eq!(node.ok(&of_image), lines);
}

#[test]
fn only_a_token_with_the_right_to_write_writes() {
    let mut node = Node::prepare(&format!("{HTTP}token_file = \"tokens\"\nwrite = true\n"));
    let tokens =
        "phone 0123456789abcde0\nagent 0123456789abcde1 write\nboth 0123456789abcde2 read,write\n";
    std::fs::write(node.dir.file("tokens"), tokens).unwrap();
    node.restart();
    let address = address(&node);
    // `agent:0123456789abcde1`, as a client of InfluxDB 1 sends user and password.
    let basic = "Basic YWdlbnQ6MDEyMzQ1Njc4OWFiY2RlMQ==";
    for (given, writes, reads) in [
        ("", 401, 401),
        ("authorization: Token 0123456789abcdex\r\n", 401, 401),
        ("authorization: Token 0123456789abcde0\r\n", 403, 200),
        ("authorization: Bearer 0123456789abcde1\r\n", 204, 403),
        (&format!("authorization: {basic}\r\n"), 204, 403),
        ("authorization: Token 0123456789abcde2\r\n", 204, 200),
    ] {
        for path in ["/write", "/api/v2/write"] {
            let answer = post(&address, path, given, b"a v=1");
            assert_eq!(answer.status, writes, "{path} {given}");
            if writes != 204 {
                let told = answer.json();
                assert!(
                    told["message"]
                        .as_str()
                        .is_some_and(|text| text.contains("token")),
                    "{told}"
                );
                assert_eq!(told["error"], told["message"]);
            }
        }
        let answer = get_with(&address, "/api/v1/values", given);
        assert_eq!(answer.status, reads, "{given}");
    }
    // A browser that has kept a password sends it along with what a page of another site sends.
    let of_page = format!("authorization: {basic}\r\norigin: http://evil.example\r\n");
    let answer = post(&address, "/write", &of_page, b"a v=1");
    assert_eq!(
        (answer.status, &answer.json()["thing"]),
        (403, &json!("Origin"))
    );
    let header = "authorization: Bearer 0123456789abcde2\r\n";
    let status = get_with(&address, "/api/v1/status", header).json();
    assert_eq!(status["http"]["refused"]["right"], 4);
    assert_eq!(status["log"]["readings_taken"], 6);
    // What clients ask for before they write needs no token.
    assert_eq!(get(&address, "/health").json()["status"], "pass");
    let ping = get(&address, "/ping?wait_for_leader=1s");
    assert_eq!(ping.status, 204);
    assert!(!ping.headers["x-influxdb-version"].is_empty());
}

#[test]
fn writes_are_refused_where_they_are_off_and_from_pages_in_a_browser() {
    let node = Node::start(HTTP);
    let closed = address(&node);
    let answer = post(&closed, "/write", "", b"a v=1");
    assert_eq!(
        (answer.status, &answer.json()["thing"]),
        (403, &json!("writing"))
    );
    assert_eq!(status(&closed)["http"]["refused"]["write_off"], 1);
    let node = Node::start(&writable());
    let open = address(&node);
    // A page of another site can send this without asking first, and cannot leave its origin out.
    let headers = "origin: http://evil.example\r\ncontent-type: text/plain\r\n";
    let answer = post(&open, "/write", headers, b"a v=1");
    assert_eq!(
        (answer.status, &answer.json()["thing"]),
        (403, &json!("Origin"))
    );
    assert_eq!(get(&open, "/write").status, 405);
    let status = status(&open);
    assert_eq!(status["http"]["refused"]["origin"], 1);
    assert_eq!(status["log"]["readings_taken"], 0);
}

#[test]
fn a_configuration_whose_tokens_and_switch_contradict_each_other_is_warned_of() {
    let dir = TempDir::new();
    let file = dir.file("keel.toml");
    let said = |tokens: &str, write: bool| {
        std::fs::write(dir.file("tokens"), tokens).unwrap();
        let text = format!("[http]\ntoken_file = \"tokens\"\nwrite = {write}\n");
        std::fs::write(&file, text).unwrap();
        let output = run(&["config", "check", file.to_str().unwrap()]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let text = said("phone 0123456789abcdef\n", true);
    assert!(
        text.contains("no token of") && text.contains("right to write"),
        "{text}"
    );
    let text = said("agent 0123456789abcdef write\n", false);
    assert!(text.contains("http.write is false"), "{text}");
    let text = said("agent 0123456789abcdef write\n", true);
    assert!(!text.contains("http.write is"), "{text}");
    let slow = "[store]\ncommit_interval_ms = 2001\n[http]\nwrite = true\n";
    std::fs::write(&file, slow).unwrap();
    let output = run(&["config", "check", file.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("http.write is true and store.commit_interval_ms is 2001"),
        "{text}"
    );
}
