//! `[[upstream]]`: readings of a node go to a broker and to an HTTP server. This also works when those are unavailable
//! for a time, answer wrongly, or the node is killed.

use crate::common::broker::{Broker, Subscriber, free_port};
use crate::common::http::{HTTP, address};
use crate::common::node::{Node, SMALL};
use crate::common::wait_until;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the configuration of a node with a trusted clock, followed by this text.
pub fn config(text: &str) -> String {
    format!("{SMALL}[time]\nwall_clock = \"trusted\"\n{text}")
}

/// Sends numbered readings by line protocol and waits until they are on flash.
fn send(node: &Node, numbers: std::ops::Range<u64>) {
    let line = |n: u64| format!("hall,sensor={} n={n}u\n", n % 3);
    let lines: Vec<String> = numbers.map(line).collect();
    send_lines(node, &lines);
}

/// The same for lines.
fn send_lines(node: &Node, lines: &[String]) {
    let mut stream = UnixStream::connect(node.dir.file("line.sock")).unwrap();
    let count = lines.len();
    stream
        .write_all(format!("{}\n", lines.concat()).as_bytes())
        .unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    assert_eq!(answer, format!("ok {count} 0\n"));
}

fn upstream(status: &Value) -> Value {
    status["upstream"][0].clone()
}

pub fn status(node: &Node) -> Value {
    node.json_degraded(&["status", "--json"])
}

fn wait_for_backlog(node: &Node, readings: u64) {
    wait_until("the backlog", || {
        upstream(&status(node))["backlog_readings"] == readings
    });
}

trait Numbers {
    /// Returns the numbers, and how often each arrived.
    fn numbers(&self) -> BTreeMap<u64, u32>;
}

impl Numbers for Subscriber {
    fn numbers(&self) -> BTreeMap<u64, u32> {
        let mut numbers = BTreeMap::new();
        for (_, payload) in self.all() {
            for number in numbers_of(&payload) {
                *numbers.entry(number).or_default() += 1;
            }
        }
        numbers
    }
}

fn numbers_of(json: &str) -> Vec<u64> {
    match serde_json::from_str(json).unwrap() {
        Value::Array(all) => all
            .iter()
            .map(|one| one["value"].as_u64().unwrap())
            .collect(),
        one => vec![one["value"].as_u64().unwrap()],
    }
}

fn mqtt(port: u16, more: &str) -> String {
    config(&format!(
        "[[upstream]]\nname = \"cloud\"\nkind = \"mqtt\"\naddress = \"127.0.0.1:{port}\"\n\
         client_id = \"keel-up\"\nbackoff_ms_min = 20\nbackoff_ms_max = 100\n{more}"
    ))
}

#[test]
fn readings_reach_a_broker_in_both_versions_and_forms() {
    let Some(broker) = Broker::start() else {
        return;
    };
    let subscriber = Subscriber::start(broker.port);
    let mut expected = 0;
    for version in ["5", "3.1.1"] {
        for (topic, batched) in [("up/{key}", false), ("{2}/all", false), ("all", true)] {
            let more = format!("version = \"{version}\"\ntopic = \"{topic}\"\n");
            let mut node = Node::start(&mqtt(broker.port, &more));
            let before = subscriber.all().len();
            send(&node, expected..expected + 300);
            expected += 300;
            wait_for_backlog(&node, 0);
            wait_until("all of them", || {
                subscriber.numbers().len() as u64 == expected
            });
            let all = subscriber.all();
            let new = &all[before..];
            assert_eq!(new.len() < 300, batched, "{}", new.len());
            let topics: BTreeSet<&str> = new.iter().map(|(topic, _)| topic.as_str()).collect();
            let wanted: &[&str] = match topic {
                "up/{key}" => &[
                    "up/hall/sensor=0/n",
                    "up/hall/sensor=1/n",
                    "up/hall/sensor=2/n",
                ],
                "all" => &["all"],
                _ => &["sensor=0/all", "sensor=1/all", "sensor=2/all"],
            };
            assert_eq!(topics, wanted.iter().copied().collect());
            let found = upstream(&status(&node));
            assert_eq!(found["acknowledged"], 300, "{found}");
            assert_eq!(found["sent_twice"], 0);
            assert_eq!(found["connected"], true);
            assert!(node.ok(&["status"]).starts_with("ok\n"));
            assert!(node.stop().success());
        }
    }
    assert!(subscriber.numbers().values().all(|times| *times == 1));
    // The readings of each key arrive in their order.
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    for (_, payload) in subscriber.all() {
        for number in numbers_of(&payload) {
            let before = last.insert(number % 3, number);
            assert!(before.is_none_or(|before| before < number));
        }
    }
}

/// Forwards connections from one port to another.
fn open_way(from: u16, to: u16) {
    let listener = TcpListener::bind(("127.0.0.1", from)).unwrap();
    std::thread::spawn(move || {
        for near in listener.incoming() {
            let near = near.unwrap();
            let far = TcpStream::connect(("127.0.0.1", to)).unwrap();
            for (mut reads, mut writes) in [
                (near.try_clone().unwrap(), far.try_clone().unwrap()),
                (far, near),
            ] {
                std::thread::spawn(move || std::io::copy(&mut reads, &mut writes));
            }
        }
    });
}

#[test]
fn a_node_that_starts_without_its_upstream_keeps_everything_for_it() {
    let port = free_port();
    let mut node = Node::start(&mqtt(port, "window_readings_max = 100\n"));
    send(&node, 0..500);
    wait_until("the complaint", || {
        status(&node)["reasons"]
            .as_array()
            .unwrap()
            .iter()
            .any(|reason| reason["code"] == "upstream_disconnected")
    });
    let found = upstream(&status(&node));
    assert_eq!(found["backlog_readings"], 500);
    assert!(
        found["last_error"]
            .as_str()
            .unwrap()
            .contains("cannot connect")
    );
    assert_eq!(node.run(&["status"]).status.code(), Some(3));
    // Killed and restarted, still without the upstream.
    node.kill();
    node.restart();
    send(&node, 500..800);
    // A broker keeps nothing for a client that has not subscribed yet, so connect it only after the subscription.
    let Some(broker) = Broker::start() else {
        return;
    };
    let subscriber = Subscriber::start(broker.port);
    open_way(port, broker.port);
    wait_for_backlog(&node, 0);
    wait_until("all of them", || subscriber.numbers().len() == 800);
    assert!(subscriber.numbers().values().all(|times| *times == 1));
    assert!(node.ok(&["status"]).starts_with("ok\n"));
    node.stop();
}

#[test]
fn a_killed_node_repeats_one_window_at_most() {
    let Some(broker) = Broker::start() else {
        return;
    };
    let subscriber = Subscriber::start(broker.port);
    let window = 200;
    let more = format!("window_readings_max = {window}\n");
    let mut node = Node::start(&mqtt(broker.port, &more));
    let mut sent = 0;
    for _ in 0..4 {
        send(&node, sent..sent + 2_000);
        sent += 2_000;
        // Kill the node while readings are in flight.
        let before = subscriber.all().len();
        wait_until("some more", || subscriber.all().len() > before + 50);
        node.kill();
        node.restart();
    }
    wait_for_backlog(&node, 0);
    wait_until("all of them", || subscriber.numbers().len() as u64 == sent);
    let twice: u32 = subscriber.numbers().values().map(|times| times - 1).sum();
    assert!(u64::from(twice) <= 4 * window, "{twice}");
    let counted = upstream(&status(&node))["sent_twice"].as_u64().unwrap();
    // After a crash the node counts a window of readings, from the first on that can have been sent.
    assert!(
        counted >= u64::from(twice),
        "{twice} came twice, and {counted} were counted"
    );
    node.stop();
    // After an orderly end nothing is sent again.
    node.restart();
    send(&node, sent..sent + 10);
    wait_until("the last ones", || {
        subscriber.numbers().len() as u64 == sent + 10
    });
    let again: u32 = subscriber.numbers().values().map(|times| times - 1).sum();
    assert_eq!(again, twice);
    node.stop();
}

/// A test server with configurable answers; keeps the lines that it accepted.
struct Server {
    port: u16,
    taken: Arc<Mutex<Vec<String>>>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// `answer` gets the number and the body of each request, and returns status and further headers.
    fn start(answer: impl Fn(u32, &str) -> String + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (taken, requests) = (Arc::default(), Arc::default());
        let server = Self {
            port,
            taken: Arc::clone(&taken),
            requests: Arc::clone(&requests),
        };
        let answer = Arc::new(answer);
        let count = Arc::new(Mutex::new(0));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (taken, requests) = (Arc::clone(&taken), Arc::clone(&requests));
                let (answer, count) = (Arc::clone(&answer), Arc::clone(&count));
                std::thread::spawn(move || {
                    let mut stream = stream.unwrap();
                    let mut reader = BufReader::new(stream.try_clone().unwrap());
                    while let Some((head, body)) = read_request(&mut reader) {
                        requests.lock().unwrap().push(head);
                        let number = {
                            let mut count = count.lock().unwrap();
                            *count += 1;
                            *count
                        };
                        let said = answer(number, &body);
                        // Web pages answer 200, so a 200 does not count as an acknowledgement.
                        if said.starts_with("HTTP/1.1 20") && !said.starts_with("HTTP/1.1 200") {
                            let lines = body.lines().map(str::to_owned);
                            taken.lock().unwrap().extend(lines);
                        }
                        if said.is_empty() || stream.write_all(said.as_bytes()).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        server
    }

    fn numbers(&self) -> BTreeMap<u64, u32> {
        let mut numbers = BTreeMap::new();
        for number in self.arrived() {
            *numbers.entry(number).or_default() += 1;
        }
        numbers
    }

    /// Returns the numbers in the order in which they arrived.
    fn arrived(&self) -> Vec<u64> {
        let number = |line: &String| -> u64 {
            let (_, rest) = line.split_once("integer=").unwrap();
            rest.split_once('i').unwrap().0.parse().unwrap()
        };
        self.taken.lock().unwrap().iter().map(number).collect()
    }
}

pub fn read_request(reader: &mut impl BufRead) -> Option<(String, String)> {
    let mut head = String::new();
    loop {
        let before = head.len();
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
        if &head[before..] == "\r\n" {
            break;
        }
    }
    let length = head.lines().find_map(|line| {
        line.to_ascii_lowercase()
            .strip_prefix("content-length: ")?
            .parse()
            .ok()
    })?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((head, String::from_utf8(body).unwrap()))
}

const TAKEN: &str = "HTTP/1.1 204 No Content\r\n\r\n";

fn refusal(status: &str, more: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n{more}\r\n{body}")
}

fn http(port: u16, more: &str) -> String {
    config(&format!(
        "[[upstream]]\nname = \"influx\"\nkind = \"http\"\n\
         url = \"http://127.0.0.1:{port}/api/v2/write?org=o&bucket=b\"\nlinger_ms = 20\n\
         authorization_file = \"token\"\ntags = \"site=north\"\n\
         backoff_ms_min = 20\nbackoff_ms_max = 100\n{more}"
    ))
}

fn start_with_token(config: &str) -> Node {
    let mut node = Node::prepare(config);
    std::fs::write(node.dir.file("token"), "Token abc\n").unwrap();
    node.restart();
    node
}

#[test]
fn readings_reach_an_http_server_as_lines() {
    let server = Server::start(|_, _| TAKEN.to_owned());
    let mut node = start_with_token(&http(server.port, ""));
    send(&node, 0..1000);
    wait_for_backlog(&node, 0);
    assert_eq!(server.numbers().len(), 1000);
    assert!(server.numbers().values().all(|times| *times == 1));
    let head = server.requests.lock().unwrap()[0].clone();
    assert!(
        head.starts_with("POST /api/v2/write?org=o&bucket=b&precision=ns HTTP/1.1\r\n"),
        "{head}"
    );
    let lower = head.to_ascii_lowercase();
    assert!(lower.contains("authorization: token abc"), "{head}");
    assert!(lower.contains(&format!("host: 127.0.0.1:{}", server.port)));
    let line = server.taken.lock().unwrap()[4].clone();
    assert!(
        line.starts_with("keel,site=north,key=hall/sensor\\=1/n integer=4i 1"),
        "{line}"
    );
    // The node itself accepts the lines that it writes.
    let mut stream = UnixStream::connect(node.dir.file("line.sock")).unwrap();
    stream.write_all(format!("{line}\n\n").as_bytes()).unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    assert!(
        answer.starts_with("ok 1") || answer.starts_with("ok 0 1"),
        "{answer}"
    );
    assert!(server.requests.lock().unwrap().len() < 200);
    // What a task makes of a reading goes the same way.
    node.ok(&["put", "hall/celsius", "20.25"]);
    let attached = libkeel::Node::attach(node.socket()).unwrap();
    let keys = ["hall/celsius", "hall/double"].map(|name| attached.key(name).unwrap());
    let period = Duration::from_millis(100);
    let spec = libkeel::TaskSpec::new("double", period, period);
    let mut task = attached.periodic_task(spec).unwrap();
    task.next_instance();
    let (celsius, _) = task.data(|| keys[0].float()).unwrap();
    let double = libkeel::Value::Float(celsius * 2.0);
    let ticket = task.put(&keys[1], double, None).unwrap();
    task.end_instance();
    ticket.wait(Duration::from_secs(60)).unwrap();
    for line in [
        "keel,site=north,key=hall/celsius value=20.25 1",
        "keel,site=north,key=hall/double value=40.5 1",
    ] {
        wait_until(line, || {
            let taken = server.taken.lock().unwrap();
            taken.iter().any(|taken| taken.starts_with(line))
        });
    }
    node.stop();
}

/// `TimeUnit::Milliseconds` as the default, or zeros behind `time.ms()` in the encoder, makes it red.
#[test]
fn two_nodes_keep_the_nanosecond() {
    let above = HTTP.replace("[http]", "key = \"{measurement}/{tag:key}\"\n[http]");
    let mut above = Node::start(&format!("{above}write = true\n"));
    let to = address(&above);
    let upstream = |name: &str, more: &str| {
        format!(
            "[[upstream]]\nname = \"{name}\"\nkind = \"http\"\nurl = \"http://{to}/write\"\n\
             measurement = \"{name}\"\nlinger_ms = 20\nbackoff_ms_min = 20\nbackoff_ms_max = 100\n{more}"
        )
    };
    let short = upstream("short", "time_unit = \"ms\"\n");
    let mut below = Node::start(&config(&(upstream("exact", "") + &short)));
    let times = [1_700_000_000_123_456_789_i64, 1_700_000_000_123_456_790];
    send_lines(&below, &times.map(|ns| format!("wave x=1.5 {ns}\n")));
    wait_until("both upstreams", || {
        let status = status(&below);
        let mut all = status["upstream"].as_array().unwrap().iter();
        all.all(|one| one["acknowledged"] == 2)
    });
    let found = |key: &str| -> Vec<Value> {
        let history = above.json(&["history", key, "--json"]);
        let readings = history.as_array().unwrap().iter();
        readings.map(|one| one["time_ns"].clone()).collect()
    };
    assert_eq!(found("exact/wave/x"), times.map(|ns| ns.to_string()));
    assert_eq!(found("short/wave/x"), ["1700000000123000000"; 2]);
    below.stop();
    above.stop();
}

/// Line breaks stand for themselves within the quotes, and the node itself takes the lines back.
#[test]
fn a_text_with_line_breaks_reaches_an_http_server_as_one_text() {
    let bodies = Arc::new(Mutex::new(String::new()));
    let got = Arc::clone(&bodies);
    let server = Server::start(move |_, body| {
        got.lock().unwrap().push_str(body);
        TAKEN.to_owned()
    });
    let mut node = start_with_token(&http(server.port, ""));
    let sent = "\"boiler\r\nv=\\\"1\\\" \\\\\n# end\"";
    let take = |lines: &str| {
        let mut stream = UnixStream::connect(node.dir.file("line.sock")).unwrap();
        stream.write_all(format!("{lines}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        answer
    };
    assert_eq!(take(&format!("log msg={sent}\n")), "ok 1 0\n");
    wait_for_backlog(&node, 0);
    let body = bodies.lock().unwrap().clone();
    let line = format!("keel,site=north,key=log/msg text={sent} 1");
    assert!(body.starts_with(&line), "{body}");
    assert_eq!(take(&body), "ok 1 0\n");
    let value = |key| node.json_degraded(&["get", key, "--json"])["value"].clone();
    assert_eq!(value("log/msg"), "boiler\r\nv=\"1\" \\\n# end");
    assert_eq!(value("keel/key=log~1msg/site=north/text"), value("log/msg"));
    node.stop();
}

#[test]
fn the_rules_of_the_file_leave_out_keys_surplus_readings_and_late_ones() {
    let rules = r#"
[[upstream.key]]
pattern = "hall/sensor=secret/#"
forward = false
[[upstream.key]]
pattern = "hall/sensor=often/#"
downsample_ms = 1000
[[upstream.key]]
pattern = "hall/sensor=urgent/#"
deadline_ms = 3600000
late = "skip"
[[upstream.key]]
pattern = "hall/#"
deadline_ms = 3600000
"#;
    let server = Server::start(|_, _| TAKEN.to_owned());
    let mut node = start_with_token(&http(server.port, rules));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    // A few seconds ago, at the beginning of an interval of `downsample_ms`, and two hours before.
    let fresh_ms = (now.as_secs() - 10) * 1000;
    let late_ms = fresh_ms - 7_200_000;
    let line = |sensor: &str, n: u64, ms: u64| format!("{sensor} n={n}u {ms}000000\n");
    let mut lines = vec![
        line("yard,sensor=any", 1, fresh_ms),
        line("hall,sensor=secret", 2, fresh_ms),
        line("hall,sensor=urgent", 3, late_ms),
        line("hall,sensor=urgent", 4, fresh_ms),
        line("hall,sensor=any", 5, late_ms),
        line("hall,sensor=any", 6, fresh_ms),
    ];
    lines.extend((0..30).map(|n| line("hall,sensor=often", 100 + n, fresh_ms + n * 100)));
    send_lines(&node, &lines);
    wait_for_backlog(&node, 0);
    let each_once = [4, 5, 6, 100, 110, 120].map(|n| (n, 1));
    assert_eq!(server.numbers(), BTreeMap::from(each_once));
    let found = upstream(&status(&node));
    assert_eq!(found["acknowledged"], 6, "{found}");
    assert_eq!(found["thinned"], 27, "{found}");
    assert_eq!(found["late_skipped"], 1, "{found}");
    assert_eq!(found["late_sent"], 1, "{found}");
    node.stop();
}

#[test]
fn new_readings_go_before_the_backlog_if_the_order_is_recent_first() {
    for (order, is_recent_first) in [("oldest-first", false), ("recent-first", true)] {
        let is_well = Arc::new(AtomicBool::new(false));
        let well = Arc::clone(&is_well);
        let server = Server::start(move |_, _| match well.load(Ordering::SeqCst) {
            true => TAKEN.to_owned(),
            false => refusal("503 Service Unavailable", "", "not yet"),
        });
        // A backlog that is not longer than the window goes first in any case, and so do readings on the way.
        let more = format!("order = \"{order}\"\nwindow_readings_max = 50\n");
        let mut node = start_with_token(&http(server.port, &more));
        send(&node, 0..300);
        // Each connection ends with its first answer, so the second one from now on begins with all of them on flash.
        let requests = || server.requests.lock().unwrap().len();
        let before = requests();
        wait_until("another connection", || requests() > before + 1);
        send(&node, 300..310);
        is_well.store(true, Ordering::SeqCst);
        wait_for_backlog(&node, 0);
        let arrived = server.arrived();
        assert_eq!(BTreeSet::from_iter(&arrived).len(), 310, "{arrived:?}");
        let last_recent = arrived.iter().rposition(|n| *n >= 300).unwrap();
        let is_behind = arrived[last_recent..].iter().any(|n| *n < 300);
        assert_eq!(is_behind, is_recent_first, "{order}: {arrived:?}");
        node.stop();
    }
}

/// Secrets are often mounted after the start of the node, and change while it runs.
#[test]
fn a_secret_is_read_when_it_is_needed() {
    let has_expired = Arc::new(AtomicBool::new(false));
    let expired = Arc::clone(&has_expired);
    let server = Server::start(move |_, _| match expired.swap(false, Ordering::SeqCst) {
        true => refusal("401 Unauthorized", "", "a token is needed"),
        false => TAKEN.to_owned(),
    });
    let mut node = Node::start(&http(server.port, ""));
    send(&node, 0..100);
    let complaint = || upstream(&status(&node))["last_error"].to_string();
    wait_until("the complaint", || complaint().contains("token: "));
    assert_eq!(upstream(&status(&node))["backlog_readings"], 100);
    assert_eq!(upstream(&status(&node))["connected"], false);
    let last_head = || {
        server
            .requests
            .lock()
            .unwrap()
            .last()
            .unwrap()
            .to_lowercase()
    };
    std::fs::write(node.dir.file("token"), "Token one\n").unwrap();
    wait_for_backlog(&node, 0);
    assert!(last_head().contains("authorization: token one\r\n"));
    std::fs::write(node.dir.file("token"), "Token two\n").unwrap();
    has_expired.store(true, Ordering::SeqCst);
    send(&node, 100..200);
    wait_for_backlog(&node, 0);
    assert!(last_head().contains("authorization: token two\r\n"));
    assert_eq!(server.numbers().len(), 200);
    assert!(node.ok(&["status"]).starts_with("ok\n"));
    node.stop();
}

#[test]
fn readings_reach_a_failing_upstream_later_except_refused_ones() {
    let server = Server::start(|number, body| match number {
        1 => refusal("503 Service Unavailable", "retry-after: 0\r\n", "not yet"),
        2 => refusal("401 Unauthorized", "", "a token is needed"),
        3 => "HTTP/1.1 what\r\n\r\n".to_owned(),
        4 => String::new(),
        5 => refusal("500 Internal Server Error", "connection: close\r\n", ""),
        _ if body.contains("integer=77i") => {
            refusal("400 Bad Request", "", "{\"message\": \"no 77\"}")
        }
        _ => TAKEN.to_owned(),
    });
    let mut node = start_with_token(&http(server.port, ""));
    send(&node, 0..200);
    wait_for_backlog(&node, 0);
    let numbers = server.numbers();
    assert_eq!(numbers.len(), 199);
    assert!(!numbers.contains_key(&77));
    let found = upstream(&status(&node));
    assert_eq!(found["acknowledged"], 199, "{found}");
    assert_eq!(found["refused"]["upstream"], 1);
    assert!(
        found["last_error"].as_str().unwrap().contains("no 77"),
        "{found}"
    );
    let codes = status(&node)["reasons"].to_string();
    assert!(codes.contains("upstream_refused"), "{codes}");
    node.stop();
}

/// An upstream's error about itself is not blamed on a reading, however often it occurs; nor is a closed connection,
/// for a limited time.
#[test]
fn an_upstream_at_fault_costs_no_reading() {
    for fault in [
        "500 Internal Server Error",
        "401 Unauthorized",
        "404 Not Found",
        "429 Too Many Requests",
        "",
    ] {
        let is_mended = Arc::new(Mutex::new(false));
        let mended = Arc::clone(&is_mended);
        let server = Server::start(move |_, _| match (*mended.lock().unwrap(), fault) {
            (true, _) => TAKEN.to_owned(),
            (false, "") => String::new(),
            (false, fault) => refusal(fault, "", "no"),
        });
        // Such errors drop no reading even if `give_up_seconds_min` is short.
        let patience = match fault {
            "" => "",
            _ => "give_up_seconds_min = 1\n",
        };
        let mut node = start_with_token(&http(server.port, patience));
        send(&node, 0..30);
        wait_until("many requests", || {
            server.requests.lock().unwrap().len() > 30
        });
        let found = upstream(&status(&node));
        assert_eq!(found["refused_total"], 0, "{fault}: {found}");
        assert_eq!(found["connected"], false, "{fault}: {found}");
        *is_mended.lock().unwrap() = true;
        wait_for_backlog(&node, 0);
        assert!(server.numbers().keys().copied().eq(0..30), "{fault}");
        assert_eq!(upstream(&status(&node))["refused_total"], 0, "{fault}");
        node.stop();
    }
}

/// Without an answer, the cause of the failure is unknown.
#[test]
fn a_reading_at_which_every_connection_ends_is_dropped_alone() {
    let server = Server::start(|_, body| match body.contains("integer=77i") {
        true => String::new(),
        false => TAKEN.to_owned(),
    });
    let mut node = start_with_token(&http(server.port, "give_up_seconds_min = 1\n"));
    send(&node, 0..200);
    wait_for_backlog(&node, 0);
    let numbers = server.numbers();
    assert!(
        numbers
            .keys()
            .copied()
            .eq((0..200).filter(|number| *number != 77))
    );
    assert_eq!(upstream(&status(&node))["refused"]["upstream"], 1);
    node.stop();
}

#[test]
fn a_login_page_in_between_acknowledges_no_reading() {
    let is_there = Arc::new(Mutex::new(false));
    let reached = Arc::clone(&is_there);
    let server = Server::start(move |_, _| match *reached.lock().unwrap() {
        false => refusal("200 OK", "", "<html>your credit is used up</html>"),
        true => TAKEN.to_owned(),
    });
    let mut node = start_with_token(&http(server.port, ""));
    send(&node, 0..50);
    wait_until("the page", || {
        upstream(&status(&node))["last_error"]
            .as_str()
            .is_some_and(|error| error.contains("credit"))
    });
    assert_eq!(upstream(&status(&node))["acknowledged"], 0);
    *is_there.lock().unwrap() = true;
    wait_for_backlog(&node, 0);
    assert!(server.numbers().keys().copied().eq(0..50));
    node.stop();
}

/// As from a reverse proxy in front of a server that takes too long for a large request.
#[test]
fn a_request_that_fails_for_its_length_is_sent_in_halves() {
    let server = Server::start(|_, body| match body.lines().count() > 20 {
        true => refusal("504 Gateway Timeout", "", ""),
        false => refusal("202 Accepted", "", "{\"status\": \"queued\"}"),
    });
    let mut node = start_with_token(&http(server.port, ""));
    send(&node, 0..150);
    wait_for_backlog(&node, 0);
    assert!(server.numbers().keys().copied().eq(0..150));
    assert_eq!(upstream(&status(&node))["refused_total"], 0);
    node.stop();
}

/// More refused readings in a row than an upstream may refuse: sending slows down, but does not stop.
#[test]
fn many_that_are_refused_in_a_row_do_not_block_the_others() {
    let is_bad = |line: &str| {
        let number = line.split_once("integer=").unwrap().1;
        (50..90).contains(&number.split_once('i').unwrap().0.parse::<u64>().unwrap())
    };
    let server = Server::start(move |_, body| match body.lines().any(is_bad) {
        true => refusal("400 Bad Request", "", "no"),
        false => TAKEN.to_owned(),
    });
    let mut node = start_with_token(&http(server.port, "give_up_seconds_min = 1\n"));
    send(&node, 0..200);
    wait_for_backlog(&node, 0);
    let good = (0..200).filter(|number| !(50..90).contains(number));
    assert!(server.numbers().keys().copied().eq(good));
    assert_eq!(upstream(&status(&node))["refused"]["upstream"], 40);
    node.stop();
}

#[test]
fn a_wrong_address_does_not_eat_the_backlog() {
    let is_mended = Arc::new(Mutex::new(false));
    let mended = Arc::clone(&is_mended);
    let server = Server::start(move |_, _| match *mended.lock().unwrap() {
        false => refusal("400 Bad Request", "", "no such bucket"),
        true => TAKEN.to_owned(),
    });
    let mut node = start_with_token(&http(server.port, ""));
    send(&node, 0..300);
    wait_until("the complaint", || {
        upstream(&status(&node))["last_error"]
            .as_str()
            .is_some_and(|error| error.contains("everything else"))
    });
    std::thread::sleep(Duration::from_millis(300));
    let refused = || upstream(&status(&node))["refused_total"].as_u64().unwrap();
    assert_eq!(refused(), 16);
    *is_mended.lock().unwrap() = true;
    wait_for_backlog(&node, 0);
    assert_eq!(server.numbers().len() as u64, 300 - refused());
    node.stop();
}
