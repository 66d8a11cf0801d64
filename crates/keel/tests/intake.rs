//! Keys of the greatest length through a whole node: each way in takes them, and each way out shows all of them.
//! `KEEL_SEEDED_BUG=key-cut-at-64` turns both tests red.

use crate::common::broker::{Broker, Publisher, Subscriber};
use crate::common::http::{address, get, json};
use crate::common::node::{Node, SMALL};
use crate::common::{TempDir, wait_until};
use crate::upstream::config;
use libkeel::{Owned, Value};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
const BYTES: usize = 255;

/// Returns a key of 255 bytes with this beginning and this end.
fn filled(begin: &str, end: char) -> String {
    format!("{begin}{}{end}", "k".repeat(BYTES - 1 - begin.len()))
}

/// Checks that each key has its value, over the socket and with every reading of its history.
fn all_are_there(node: &Node, keys: &[(String, String)]) {
    for (key, value) in keys {
        assert_eq!(key.len(), BYTES);
        assert_eq!(node.ok(&["get", key]), format!("{value}\n"), "{key}");
        let history = node.json_degraded(&["history", key, "--json"]);
        assert_eq!(
            history.as_array().map(Vec::len),
            Some(1),
            "{key}: {history}"
        );
    }
    let status = node.json_degraded(&["status", "--json"]);
    assert_eq!(status["keys"]["count"], keys.len());
    assert_eq!(status["keys"]["name_bytes"], 256 * keys.len());
}

#[test]
fn keys_of_255_bytes_are_taken_over_every_way() {
    let region = TempDir::new();
    let (declared, twin) = (filled("put/", 'd'), filled("put/", 't'));
    let by_line = filled("m/t=1/", 'l');
    let by_client = filled("client/", 'c');
    let mut node = Node::start(&format!(
        "{SMALL}key = \"{{measurement}}/{{pairs}}/{{field}}\"\n[http]\nlisten = \"127.0.0.1:0\"\n\
         [[key]]\npattern = \"{declared}\"\nvalidity_ms = 7000\n[region]\nfile = \"{}\"\ncreate_mebibytes = 32\n",
        region.file("region").display()
    ));
    // Commands, and lines; the key of the second one has a byte more.
    node.ok(&["put", &declared, "1"]);
    node.ok(&["put", &twin, "2"]);
    let told = node.fails(&["put", &format!("{twin}x"), "2"], 1);
    assert!(told.contains("is no key; use 1 to 255 bytes"), "{told}");
    let field = &by_line["m/t=1/".len()..];
    let stream = UnixStream::connect(node.dir.file("line.sock")).unwrap();
    let lines = format!("m,t=1 {field}=3\nm,t=1 {field}x=3\n\n");
    (&stream).write_all(lines.as_bytes()).unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    assert_eq!(answer, "ok 1 1\n");
    // A client, which reads from the region.
    let client = libkeel::Node::attach(node.socket()).unwrap();
    assert!(client.is_shared());
    let key = client.key(&by_client).unwrap();
    key.put(Value::Float(4.0), None)
        .unwrap()
        .wait(LONG)
        .unwrap();
    assert!(client.key(&format!("{by_client}x")).is_err());
    let keys: Vec<_> = [&declared, &twin, &by_line, &by_client]
        .iter()
        .zip(1..)
        .map(|(key, value)| ((*key).clone(), format!("{value}")))
        .collect();
    for (key, value) in &keys {
        let read = client.key(key).unwrap().read().unwrap().0;
        assert_eq!(read, Owned::Float(value.parse().unwrap()), "{key}");
    }
    all_are_there(&node, &keys);
    // Configuration and status.
    let shown = node.json_degraded(&["get", &declared, "--json"]);
    assert_eq!(shown["validity_ms"], 7000, "{shown}");
    let status = node.json_degraded(&["status", "--json"]);
    // The put of the command and the line with a byte more.
    assert_eq!(status["intake"]["refused"]["key_invalid"], 2);
    let last = status["intake"]["refused_last"]["key_invalid"].as_str();
    assert!(last.is_some_and(|text| text.contains("kkk")), "{last:?}");
    // Exports and watches.
    let csv = node.ok(&["export", "--format", "csv"]);
    let lines = node.ok(&["export", "--format", "line", &by_line]);
    assert!(lines.starts_with(&format!(
        "keel,key={} value=3 ",
        by_line.replace('=', "\\=")
    )));
    let server = address(&node);
    let served = json(&server, "/api/v1/keys?pattern=%23");
    for (key, value) in &keys {
        assert!(csv.contains(&format!("\n{key},")), "{csv}");
        let update = node.ok(&["watch", key, "--current", "--count", "1"]);
        assert!(update.contains(&format!("{key}  {value}")), "{update}");
        // Over HTTP, by path and by query.
        let shown = json(&server, &format!("/api/v1/values/{key}"));
        assert_eq!(shown["key"], **key);
        assert_eq!(shown["value"].as_f64(), value.parse().ok());
        let escaped = key.replace('/', "%2F").replace('=', "%3D");
        let path = format!("/api/v1/readings?key={escaped}&from_ms=0&to_ms=4000000000000&limit=9");
        let told = get(&server, &path);
        assert_eq!(
            (told.status, told.text().lines().count()),
            (200, 2),
            "{}",
            told.text()
        );
        let listed = served["keys"].as_array().unwrap();
        assert!(listed.iter().any(|one| one["key"] == **key), "{served}");
    }
    drop((client, key));
    // After a power cut, and after an end.
    node.kill();
    node.restart();
    all_are_there(&node, &keys);
    assert!(node.stop().success());
    node.restart();
    all_are_there(&node, &keys);
    assert!(node.stop().success());
}

#[test]
fn keys_of_255_bytes_go_from_a_broker_to_upstreams_and_alarms() {
    let Some(broker) = Broker::start() else {
        return;
    };
    let (hot, cold) = (filled("in/", 'h'), filled("in/", 'c'));
    let port = broker.port;
    let mut node = Node::start(&config(&format!(
        "[mqtt]\naddress = \"127.0.0.1:{port}\"\nclient_id = \"keel-in\"\n\
         [[mqtt.subscribe]]\nfilter = \"in/#\"\npayload = \"number\"\n\
         [[upstream]]\nname = \"cloud\"\nkind = \"mqtt\"\naddress = \"127.0.0.1:{port}\"\n\
         client_id = \"keel-up\"\ntopic = \"up/{{key}}\"\n\
         [[broker]]\nname = \"local\"\naddress = \"127.0.0.1:{port}\"\nclient_id = \"keel-alarms\"\n\
         [[alarm]]\nname = \"hot\"\npattern = \"{hot}\"\nabove = 60\nclear = 55\nbroker = \"local\"\n\
         deadline_ms = 600000\n"
    )));
    wait_until("the subscription", || {
        let status = node.json_degraded(&["status", "--json"]);
        status["mqtt"]["subscriptions_held"] == 1
    });
    let subscriber = Subscriber::start(port);
    let mut publisher = Publisher::connect(port, "sensor");
    for (topic, value) in [(&hot, "70"), (&format!("{hot}x"), "80"), (&cold, "90")] {
        publisher.publish(topic, std::iter::once(value.to_owned()));
    }
    publisher.settle(0);
    let told = |topic: &str| {
        let all = subscriber.all().into_iter();
        let payloads = all.filter(|(found, _)| found == topic);
        payloads.map(|(_, payload)| payload).collect::<Vec<_>>()
    };
    for (key, value) in [(&hot, 70.0), (&cold, 90.0)] {
        let topic = format!("up/{key}");
        wait_until("the upstream", || !told(&topic).is_empty());
        let said: serde_json::Value = serde_json::from_str(&told(&topic)[0]).unwrap();
        assert_eq!(said["key"], **key);
        assert_eq!(said["value"].as_f64(), Some(value));
    }
    let topic = format!("keel/alarm/hot/{hot}");
    wait_until("the alarm", || !told(&topic).is_empty());
    let said: serde_json::Value = serde_json::from_str(&told(&topic)[0]).unwrap();
    assert_eq!(
        (&said["key"], &said["state"]),
        (&hot.as_str().into(), &"raised".into())
    );
    let status = node.json_degraded(&["status", "--json"]);
    assert_eq!(status["keys"]["count"], 2);
    assert_eq!(status["intake"]["refused"]["key_invalid"], 1);
    assert!(node.stop().success());
}
