//! A session with a real broker over TLS: whom it trusts, what it says when it does not, and what passes.

use crate::mqtt_support::{Broker, Port, Publisher, Running, Store, installed, options, until};
use authority::{Authority, Folder, Issued, Purpose};
use base::clock::SystemClock;
use ingest::mqtt::{MqttOptions, Version};
use std::sync::Arc;
use tls::{Client, ClientOptions, Identity};

#[path = "../../tls/tests/authority.rs"]
mod authority;

/// A broker with a plain listener for publishers, and one with TLS.
struct Secured {
    broker: Broker,
    tls_port: u16,
    _held: Port,
}

/// `more` are lines of the listener with TLS.
fn secured(folder: &Folder, own: &Issued, more: &str) -> Secured {
    let (certificate, key) = own.write(folder, "broker");
    let held = Port::hold();
    // A file of authorities switches TLS on.
    let authorities = match more.contains("cafile") {
        true => String::new(),
        false => format!("cafile {}\n", certificate.display()),
    };
    let extra = format!(
        "listener {} 127.0.0.1\n{authorities}certfile {}\nkeyfile {}\n{more}",
        held.number,
        certificate.display(),
        key.display()
    );
    Secured {
        broker: Broker::start(&extra),
        tls_port: held.number,
        _held: held,
    }
}

fn trusts(folder: &Folder, authority: &Authority) -> ClientOptions {
    ClientOptions {
        ca_file: Some(folder.write("ca.pem", &authority.certificate)),
        ..ClientOptions::default()
    }
}

fn over_tls(port: u16, version: Version, given: ClientOptions) -> MqttOptions {
    let clock = Arc::new(SystemClock::new());
    MqttOptions {
        tls: Some(Client::new(given, clock)),
        ..options(port, version, "t/#")
    }
}

/// Waits until a session says these words, and returns the line. The session never comes about.
fn refusal(port: u16, given: ClientOptions, words: &[&str]) -> String {
    let session = Running::start(over_tls(port, Version::V5, given), &Store::new());
    let why = || session.state.last_error().unwrap_or_default();
    until(&format!("{words:?} are said"), || {
        let why = why();
        words.iter().all(|word| why.contains(word))
    });
    let why = why();
    assert!(!why.contains('\n'), "{why}");
    assert_eq!(session.figures().connects, 0, "{why}");
    session.abort();
    why
}

#[test]
fn messages_come_over_tls_and_are_acknowledged() {
    if !installed() {
        return;
    }
    let folder = Folder::new("mqtt");
    let authority = Authority::new("brokers");
    let own = authority.issue(&["127.0.0.1"], Purpose::Server);
    for (version, more) in [
        (Version::V311, "tls_version tlsv1.2\n"),
        (Version::V5, "tls_version tlsv1.3\n"),
    ] {
        let secured = secured(&folder, &own, more);
        let given = trusts(&folder, &authority);
        let options = over_tls(secured.tls_port, version, given);
        let store = Store::new();
        let session = Running::start(options, &store).subscribed(1);
        let mut publisher = Publisher::connect(secured.broker.port, "publisher");
        // More than the buffers of socket and library hold.
        let payloads: Vec<String> = (0..3_000)
            .map(|number| format!("{number} {}", "x".repeat(1_000)))
            .collect();
        publisher.publish("t/a", &payloads);
        until("all have come", || store.count("t/a") == payloads.len());
        assert_eq!(store.payloads("t/a"), payloads);
        assert_eq!(session.figures().acknowledged, 0);
        store.set_durable(u64::MAX);
        let figures = session.stop(60_000);
        assert_eq!(figures.acknowledged, payloads.len() as u64);
        assert_eq!((figures.in_flight, figures.losses), (0, 0));
    }
}

#[test]
fn a_broker_that_is_not_the_right_one_gets_no_password() {
    if !installed() {
        return;
    }
    let folder = Folder::new("mqtt-wrong");
    let authority = Authority::new("brokers");
    let stranger = Authority::new("strangers");
    let host = ["127.0.0.1"];
    let old = authority.issue_for(&host, Purpose::Server, (2000, 2001));
    let early = authority.issue_for(&host, Purpose::Server, (2099, 2100));
    let other = authority.issue(&["other.example"], Purpose::Server);
    for (own, wrong, remedy) in [
        (
            stranger.issue(&host, Purpose::Server),
            "not signed by an authority in",
            "ca_file",
        ),
        (old, "its certificate has expired", "renew"),
        (early, "its certificate is not valid yet", "clock"),
        (other, "not for 127.0.0.1", "server_name"),
    ] {
        let secured = secured(&folder, &own, "");
        let given = trusts(&folder, &authority);
        let why = refusal(secured.tls_port, given, &[wrong, remedy]);
        let address = format!("127.0.0.1:{}: ", secured.tls_port);
        assert!(why.starts_with(&address), "{why}");
        // The broker has got no CONNECT.
        let log = std::fs::read_to_string(secured.broker.file("log")).unwrap_or_default();
        assert!(!log.contains("as node"), "{log}");
    }
    // A port without TLS.
    let plain = Broker::start("");
    refusal(plain.port, trusts(&folder, &authority), &["TLS", "8883"]);
}

#[test]
fn a_port_with_tls_is_told_apart_from_a_broker_that_resets_the_connection() {
    if !installed() {
        return;
    }
    let folder = Folder::new("mqtt-plain");
    let own = Authority::new("brokers").issue(&["127.0.0.1"], Purpose::Server);
    let secured = secured(&folder, &own, "");
    let plain = options(secured.tls_port, Version::V5, "t/#");
    let session = Running::start(plain, &Store::new());
    until("the hint", || {
        let why = session.state.last_error().unwrap_or_default();
        why.contains("no answer to CONNECT: ") && why.ends_with("if it speaks TLS: tls = true")
    });
    session.abort();
}

#[test]
fn a_broker_that_never_finishes_the_handshake_is_not_called_unreachable() {
    let folder = Folder::new("mqtt-silent");
    // The kernel accepts for it.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let given = trusts(&folder, &Authority::new("brokers"));
    let options = MqttOptions {
        connect_ms_max: 1_500,
        ..over_tls(port, Version::V5, given)
    };
    let session = Running::start(options, &Store::new());
    until("the stage", || {
        let why = session.state.last_error().unwrap_or_default();
        why.contains(": connects, but does not finish the TLS handshake within 1.5 s; ")
    });
    session.abort();
}

#[test]
fn a_broker_that_asks_for_a_certificate_gets_it() {
    if !installed() {
        return;
    }
    let folder = Folder::new("mqtt-mutual");
    let (authority, clients) = (Authority::new("brokers"), Authority::new("nodes"));
    let asks = format!(
        "cafile {}\nrequire_certificate true\n",
        folder.write("clients.pem", &clients.certificate).display()
    );
    let own = authority.issue(&["127.0.0.1"], Purpose::Server);
    let secured = secured(&folder, &own, &asks);
    let given = trusts(&folder, &authority);
    refusal(secured.tls_port, given.clone(), &["certificate_file"]);
    // The files may come while the node tries.
    let given = ClientOptions {
        identity: Some(Identity {
            certificate_file: folder.file("node.pem"),
            key_file: folder.file("node.key"),
        }),
        ..given
    };
    let store = Store::new();
    let options = over_tls(secured.tls_port, Version::V5, given);
    let session = Running::start(options, &store);
    until("the missing file is told", || {
        let why = session.state.last_error().unwrap_or_default();
        why.contains("node.pem: is not there; ")
    });
    clients.issue(&[], Purpose::Client).write(&folder, "node");
    let session = session.subscribed(1);
    let mut publisher = Publisher::connect(secured.broker.port, "publisher");
    publisher.publish("t/a", &["1".to_owned()]);
    until("it has come", || store.count("t/a") == 1);
    session.stop(0);
}

#[test]
fn a_broker_with_another_authority_is_trusted_once_the_file_says_so() {
    if !installed() {
        return;
    }
    let folder = Folder::new("mqtt-reload");
    let (first, second) = (Authority::new("first"), Authority::new("second"));
    let own = first.issue(&["127.0.0.1"], Purpose::Server);
    let mut secured = secured(&folder, &own, "");
    let options = over_tls(secured.tls_port, Version::V5, trusts(&folder, &first));
    let store = Store::new();
    let session = Running::start(options, &store).subscribed(1);
    // A new authority beside the old one touches no connection.
    let both = format!("{}{}", first.certificate, second.certificate);
    folder.write("ca.pem", &both);
    secured.broker.down();
    let next = second.issue(&["127.0.0.1"], Purpose::Server);
    next.write(&folder, "broker");
    secured.broker.up();
    until("the session is back", || {
        let figures = session.figures();
        figures.connected && figures.connects == 2
    });
    let mut publisher = Publisher::connect(secured.broker.port, "publisher");
    publisher.publish("t/a", &["1".to_owned()]);
    until("it has come", || store.count("t/a") == 1);
    assert_eq!(session.figures().losses, 1);
    session.stop(0);
}
