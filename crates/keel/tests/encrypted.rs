//! A node whose connections are encrypted, with certificates by file: a source, an upstream, alarms and the HTTP side.

use crate::common::broker::{Broker, Publisher, Subscriber};
use crate::common::http::get;
use crate::common::node::{Node, SMALL};
use crate::common::wait_until;
use authority::{Authority, Folder, Issued, Purpose};
use base::clock::SystemClock;
use front::Front;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tls::{Client, ClientOptions, Identity, ServerOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[path = "../../tls/tests/authority.rs"]
mod authority;
#[path = "../../tls/tests/front.rs"]
mod front;

fn identity(folder: &Folder, issued: &Issued, name: &str) -> Identity {
    let (certificate_file, key_file) = issued.write(folder, name);
    Identity {
        certificate_file,
        key_file,
    }
}

/// Returns the lines of a configuration that name a certificate and its key.
fn lines(identity: &Identity) -> String {
    format!(
        "certificate_file = \"{}\"\nkey_file = \"{}\"\n",
        identity.certificate_file.display(),
        identity.key_file.display()
    )
}

/// Asks over HTTPS. Returns the whole answer, or the reason why there is none.
fn https(address: &str, ca_file: &Path, path: &str) -> Result<String, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let options = ClientOptions {
        ca_file: Some(ca_file.to_owned()),
        ..ClientOptions::default()
    };
    let client = Client::new(options, Arc::new(SystemClock::new()));
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let connected = client.connect(stream, address).await;
        let mut stream = connected.map_err(|error| error.to_string())?;
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        let mut answer = Vec::new();
        // The end of the answer is the end of the connection, however it comes.
        stream.read_to_end(&mut answer).await.ok();
        Ok(String::from_utf8(answer).unwrap())
    })
}

/// Returns the address of a node's HTTP server, from its log.
fn address(node: &Node) -> String {
    let log = node.log();
    let found = log.split("serving https://").nth(1);
    let found = found.and_then(|rest| rest.split_whitespace().next());
    found.unwrap_or_else(|| panic!("{log}")).to_owned()
}

#[test]
fn a_reading_passes_a_node_over_encrypted_connections_alone() {
    let Some(broker) = Broker::start() else {
        return;
    };
    let folder = Folder::new("node");
    let (authority, nodes) = (Authority::new("servers"), Authority::new("nodes"));
    let ca_file = folder.write("ca.pem", &authority.certificate);
    let own = authority.issue(&["127.0.0.1"], Purpose::Server);
    // It asks for a certificate of the node.
    let options = ServerOptions {
        identity: identity(&folder, &own, "broker"),
        client_ca_file: Some(folder.write("nodes.pem", &nodes.certificate)),
    };
    let front = Front::start(options, SocketAddr::from(([127, 0, 0, 1], broker.port)));
    let client = identity(&folder, &nodes.issue(&[], Purpose::Client), "node");
    let link = |id: &str| {
        format!(
            "address = \"{}\"\nclient_id = \"{id}\"\ntls = true\nca_file = \"{}\"\n{}",
            front.address,
            ca_file.display(),
            lines(&client)
        )
    };
    let http = identity(&folder, &own, "http");
    let mut node = Node::start(&format!(
        "{SMALL}[time]\nwall_clock = \"trusted\"\n\
         [mqtt]\n{}[[mqtt.subscribe]]\nfilter = \"in/#\"\n\
         [[upstream]]\nname = \"up\"\nkind = \"mqtt\"\ntopic = \"up/{{key}}\"\nclock_wait_seconds_max = 0\n{}\
         [[broker]]\nname = \"b\"\n{}\
         [[alarm]]\nname = \"hot\"\npattern = \"in/#\"\nabove = 50\nbroker = \"b\"\n\
         [http]\nlisten = \"127.0.0.1:0\"\n{}",
        link("in"),
        link("up"),
        link("alarms"),
        lines(&http)
    ));
    let subscriber = Subscriber::start(broker.port);
    wait_until("the subscription at the broker", || {
        node.json_degraded(&["status", "--json"])["mqtt"]["subscriptions_held"] == 1
    });
    let mut publisher = Publisher::connect(broker.port, "sensor");
    publisher.publish("in/a", std::iter::once("99".to_owned()));
    publisher.settle(0);
    let came = |topic: &str| subscriber.all().iter().any(|(found, _)| found == topic);
    wait_until("the reading upstream", || came("up/in/a"));
    wait_until("the alarm", || came("keel/alarm/hot/in/a"));
    let address = address(&node);
    let answer = https(&address, &ca_file, "/api/v1/values/in/a").unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.contains("\"value\":99"), "{answer}");
    let refused = get(&address, "/api/v1/values/in/a");
    assert_eq!(refused.status, 421);
    assert!(refused.text().contains("https://"), "{}", refused.text());
    let status = node.json_degraded(&["status", "--json"]);
    assert_eq!(status["http"]["tls"], true);
    assert_eq!(status["http"]["refused"]["not_encrypted"], 1);
    assert!(node.stop().success());
    assert!(!node.log().contains("PRIVATE KEY"), "{}", node.log());
}

#[test]
fn a_running_node_takes_a_new_certificate_and_keeps_the_old_one_while_it_is_half_written() {
    let folder = Folder::new("node-renewed");
    let (first, second) = (Authority::new("first"), Authority::new("second"));
    let trusts = |authority: &Authority, name: &str| folder.write(name, &authority.certificate);
    let (of_first, of_second) = (trusts(&first, "1.pem"), trusts(&second, "2.pem"));
    let own = identity(
        &folder,
        &first.issue(&["127.0.0.1"], Purpose::Server),
        "http",
    );
    let config = format!("{SMALL}[http]\nlisten = \"127.0.0.1:0\"\n{}", lines(&own));
    let mut node = Node::start(&config);
    let address = address(&node);
    let asks = |ca_file: &PathBuf| https(&address, ca_file, "/api/v1/keys");
    assert!(asks(&of_first).unwrap().starts_with("HTTP/1.1 200 "));
    let why = asks(&of_second).unwrap_err();
    assert!(why.contains("not signed by an authority in"), "{why}");
    let error = || node.json_degraded(&["status", "--json"])["http"]["certificate_error"].clone();
    let next = second.issue(&["127.0.0.1"], Purpose::Server);
    folder.write("http.pem", &next.certificate);
    assert!(asks(&of_first).unwrap().starts_with("HTTP/1.1 200 "));
    let told = error();
    let told = told.as_str().unwrap();
    assert!(told.contains("http.key: does not belong"), "{told}");
    let status = node.json_degraded(&["status", "--json"]);
    let reasons = status["reasons"].to_string();
    assert!(reasons.contains("http_certificate"), "{reasons}");
    folder.write("http.key", &next.key);
    assert!(asks(&of_second).unwrap().starts_with("HTTP/1.1 200 "));
    assert!(asks(&of_first).is_err());
    assert!(error().is_null());
    let log = node.log();
    assert!(log.contains("http: "), "{log}");
    assert!(log.contains("http.pem is read again"), "{log}");
    assert!(node.stop().success());
}

#[test]
fn a_certificate_that_is_missing_at_the_start_costs_no_reading() {
    let config = format!("{SMALL}[http]\ncertificate_file = \"h.pem\"\nkey_file = \"h.key\"\n");
    let mut node = Node::start(&config);
    node.ok(&["put", "a", "1"]);
    let log = node.log();
    let told = "nothing is served over HTTP: h.pem: is not there; name the right file";
    assert!(log.contains(told), "{log}");
    // A reload does not open the port, and says so as long as that is true.
    let folder = Folder::new("node-late");
    let issued = Authority::new("late").issue(&["127.0.0.1"], Purpose::Server);
    let own = identity(&folder, &issued, "late");
    std::fs::copy(&own.certificate_file, node.dir.file("h.pem")).unwrap();
    std::fs::copy(&own.key_file, node.dir.file("h.key")).unwrap();
    node.signal(libc::SIGHUP);
    wait_until("the reload", || {
        node.log()
            .contains(" reload: applied: nothing; needs a restart: http")
    });
    let status = node.json_degraded(&["status", "--json"]);
    let pending = &status["node"]["config_pending_restart"];
    assert_eq!(pending[0], "http", "{status}");
    assert!(node.stop().success());
}

#[test]
fn a_plain_connection_to_a_port_with_tls_and_a_handshake_without_end_are_told_apart() {
    let folder = Folder::new("node-plain");
    let authority = Authority::new("servers");
    let ca_file = folder.write("ca.pem", &authority.certificate);
    let own = authority.issue(&["127.0.0.1"], Purpose::Server);
    let options = ServerOptions {
        identity: identity(&folder, &own, "front"),
        client_ca_file: None,
    };
    // No client passes its handshake, so there is nothing behind it.
    let front = Front::start(options, SocketAddr::from(([127, 0, 0, 1], 1)));
    // The kernel accepts for it.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let quiet = silent.local_addr().unwrap();
    let secure = format!("tls = true\nca_file = \"{}\"\n", ca_file.display());
    let mut node = Node::start(&format!(
        "{SMALL}[time]\nwall_clock = \"trusted\"\n\
         [mqtt]\naddress = \"{address}\"\nclient_id = \"in\"\n[[mqtt.subscribe]]\nfilter = \"a\"\n\
         [[upstream]]\nname = \"plain\"\nkind = \"http\"\nurl = \"http://{address}/w\"\nlinger_ms = 20\n\
         clock_wait_seconds_max = 0\n\
         [[upstream]]\nname = \"slow\"\nkind = \"mqtt\"\naddress = \"{quiet}\"\nclient_id = \"up\"\n\
         answer_ms_max = 1500\n{secure}\
         [[broker]]\nname = \"b\"\naddress = \"{address}\"\nclient_id = \"out\"\n\
         [[alarm]]\nname = \"hot\"\npattern = \"oven\"\nabove = 1\nbroker = \"b\"\n",
        address = front.address
    ));
    node.ok(&["put", "oven", "7"]);
    let hint = "if it speaks TLS: tls = true";
    let expected = [
        ("/mqtt/last_error", hint),
        ("/upstream/0/last_error", "give a url with https://"),
        (
            "/upstream/1/last_error",
            "connects, but does not finish the TLS handshake within 1.5 s",
        ),
        ("/brokers/0/last_error", hint),
    ];
    for (place, words) in expected {
        wait_until(words, || {
            let status = node.json_degraded(&["status", "--json"]);
            let why = status.pointer(place).and_then(|why| why.as_str());
            why.is_some_and(|why| why.contains(words))
        });
    }
    // The log has the reasons, each address once.
    let logged = [
        " mqtt: ",
        " upstream: plain: ",
        " upstream: slow: ",
        " broker: b: ",
    ];
    for word in logged {
        wait_until(word, || node.log().contains(word));
    }
    let log = node.log();
    for address in [front.address, quiet] {
        let twice = format!("{address}: {address}");
        assert!(!log.contains(&twice), "{log}");
    }
    assert!(node.stop().success(), "{log}");
}
