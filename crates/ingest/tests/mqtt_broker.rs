//! A session with a real broker: what is acknowledged, what is sent again, and what never stops the stream.

use crate::mqtt_support;
use crate::mqtt_support::{
    Broker, Port, Publisher, Running, Store, installed, numbers, subscription, until,
};
use ingest::intake::{Outgoing, Reason};
use ingest::mqtt::{Ended, Pause, Qos, Version};

const BOTH: [Version; 2] = [Version::V311, Version::V5];

/// Publishes messages that arrive after all others have been handled: by then a premature acknowledgement would have
/// been sent.
fn fence(publisher: &mut Publisher, store: &Store) {
    for _ in 0..3 {
        let before = store.count("t/fence");
        publisher.publish_once("t/fence", "fence");
        until("the fence has come", || store.count("t/fence") > before);
    }
}

#[test]
fn only_durable_messages_are_acknowledged_and_all_others_come_again() {
    if !installed() {
        return;
    }
    for version in BOTH {
        let broker = Broker::start("");
        let mut publisher = Publisher::connect(broker.port, "publisher");
        let options = broker.options(version, "t/#");

        let store = Store::new();
        let session = Running::start(options.clone(), &store).subscribed(1);
        publisher.publish("t/a", &numbers(0..10));
        until("all have come", || store.count("t/a") == 10);
        fence(&mut publisher, &store);
        assert_eq!(session.figures().acknowledged, 0);
        assert_eq!(session.figures().in_flight, 10);
        session.abort();

        // Nothing was durable, so nothing was acknowledged, so everything is sent again, in order.
        let store = Store::new();
        let session = Running::start(options.clone(), &store).subscribed(1);
        until("all come again", || store.count("t/a") == 10);
        assert_eq!(store.payloads("t/a"), numbers(0..10));
        assert_eq!(session.figures().redelivered, 10);
        store.set_durable(6);
        until("the first six are acknowledged", || {
            session.figures().acknowledged == 6
        });
        fence(&mut publisher, &store);
        assert_eq!(session.figures().acknowledged, 6);
        session.abort();

        let store = Store::new();
        let session = Running::start(options.clone(), &store).subscribed(1);
        until("the others come again", || store.count("t/a") == 4);
        fence(&mut publisher, &store);
        assert_eq!(store.payloads("t/a"), numbers(6..10));
        store.set_durable(1_000);
        let figures = session.stop(60_000);
        assert_eq!((figures.acknowledged, figures.in_flight), (4, 0));

        let store = Store::new();
        let session = Running::start(options, &store).subscribed(1);
        fence(&mut publisher, &store);
        assert_eq!(store.count("t/a"), 0, "all were acknowledged");
        session.stop(0);
    }
}

/// MQTT 5 lets a broker send a message once for each matching filter.
#[test]
fn a_message_that_fits_several_filters_is_taken_once() {
    if !installed() {
        return;
    }
    for version in BOTH {
        // Newer brokers send copies over MQTT 3.1.1, too, where nothing tells them apart.
        let broker = Broker::start("allow_duplicate_messages false\n");
        let mut publisher = Publisher::connect(broker.port, "publisher");
        let mut options = broker.options(version, "t/+/state");
        let mut filters = vec!["t/#", "other/#"];
        if version == Version::V5 {
            filters.push("$share/group/t/#");
        }
        for filter in &filters {
            let another = subscription(filter, Qos::AtLeastOnce);
            options.subscriptions.push(another);
        }
        let store = Store::new();
        store.set_durable(1_000);
        let session = Running::start(options, &store).subscribed(filters.len() as u64 + 1);
        for topic in ["t/a/state", "t/b", "other/c"] {
            publisher.publish(topic, &numbers(0..20));
        }
        fence(&mut publisher, &store);
        for topic in ["t/a/state", "t/b", "other/c"] {
            assert_eq!(store.payloads(topic), numbers(0..20), "{version:?}");
        }
        let figures = session.stop(60_000);
        // For `t/#`, and for the shared group, of which this client is the only member.
        match version {
            Version::V5 => assert!(figures.copies >= 60, "{figures:?}"),
            Version::V311 => assert_eq!(figures.copies, 0),
        }
        assert_eq!(figures.in_flight, 0, "{figures:?}");
    }
}

#[test]
fn messages_of_the_consumer_come_to_other_clients_once() {
    if !installed() {
        return;
    }
    for version in BOTH {
        let broker = Broker::start("");
        let mut publisher = Publisher::connect(broker.port, "publisher");
        let (sender, receiver) = (Store::new(), Store::new());
        receiver.set_durable(1_000);
        let mut options = broker.options(version, "command/#");
        options.client_id = "receiver".to_owned();
        let receiving = Running::start(options, &receiver).subscribed(1);
        let sending = Running::start(broker.options(version, "t/#"), &sender).subscribed(1);
        let message = |text: &str| Outgoing {
            topic: "command/a".to_owned(),
            payload: text.as_bytes().to_vec(),
        };
        sender.set(|inner| inner.outgoing.extend([message("1"), message("2")]));
        publisher.publish("t/a", &numbers(0..1));
        until("both have come", || receiver.count("command/a") == 2);
        publisher.publish("command/a", &numbers(9..10));
        until("the last has come", || receiver.count("command/a") >= 3);
        assert_eq!(receiver.payloads("command/a"), ["1", "2", "9"]);
        assert_eq!(sending.figures().sent, 2);
        sending.stop(0);
        receiving.stop(0);
    }
}

#[test]
fn a_broker_that_ends_and_comes_back_loses_nothing_it_kept() {
    if !installed() {
        return;
    }
    for version in BOTH {
        let mut broker = Broker::start("");
        let store = Store::new();
        let mut publisher = Publisher::connect(broker.port, "publisher");
        let session = Running::start(broker.options(version, "t/#"), &store).subscribed(1);
        publisher.publish("t/a", &numbers(0..50));
        until("all have come", || store.count("t/a") == 50);
        store.set_durable(20);
        until("some are acknowledged", || {
            session.figures().acknowledged == 20
        });
        // Sent is not yet received: messages that the broker had not read when it was stopped would be sent again.
        fence(&mut publisher, &store);
        broker.down();
        until("the loss is seen", || !session.figures().connected);
        broker.up();
        let mut publisher = Publisher::connect(broker.port, "publisher");
        publisher.publish("t/b", &numbers(0..5));
        until("what came after the loss is there", || {
            store.count("t/b") == 5
        });
        // 30 were in flight. They were sent again, and nothing else was.
        let again = store.payloads("t/a").split_off(50);
        assert_eq!(again, numbers(20..50));
        store.set_durable(1_000);
        // The broker sends what it kept before it answers the SUBSCRIBE of the second connection.
        until("everything is acknowledged and subscribed", || {
            let figures = session.figures();
            figures.in_flight == 0 && figures.subscriptions_held == 1
        });
        let figures = session.stop(0);
        assert_eq!(figures.losses, 1);
        assert_eq!(figures.connects, 2);
        assert_eq!(figures.redelivered, 30);
        assert_eq!(figures.subscriptions_held, 1);
    }
}

#[test]
fn a_broker_that_is_absent_at_first_is_found_when_it_comes() {
    if !installed() {
        return;
    }
    let held = Port::hold();
    let port = held.number;
    let store = Store::new();
    let session = Running::start(mqtt_support::options(port, Version::V5, "t/#"), &store);
    until("the failure is shown", || {
        session.state.last_error().is_some()
    });
    let shown = session.state.last_error().unwrap();
    assert!(shown.contains("cannot connect"), "{shown}");
    let _broker = Broker::start_at(held, "");
    let session = session.subscribed(1);
    let mut publisher = Publisher::connect(port, "publisher");
    publisher.publish("t/a", &numbers(0..3));
    until("messages come", || store.count("t/a") == 3);
    assert_eq!(session.stop(0).losses, 0);
}

#[test]
fn bad_and_oversized_messages_are_refused_alone() {
    if !installed() {
        return;
    }
    for version in BOTH {
        let broker = Broker::start("");
        let store = Store::new();
        store.set(|inner| inner.refuse = Some("bad"));
        let mut options = broker.options(version, "t/#");
        options.packet_bytes_max = 1_000;
        let session = Running::start(options.clone(), &store).subscribed(1);
        let mut publisher = Publisher::connect(broker.port, "publisher");
        let large = vec![b'x'; 10 << 20];
        let just_fits = vec![b'y'; 1_000 - 2 - "t/a".len() - 2 - 1];
        let messages: [&[u8]; 7] = [
            b"0",
            &large,
            b"bad",
            &just_fits,
            &large[..1_001],
            b"bad",
            b"2",
        ];
        publisher.publish_bytes(messages.iter().map(|payload| ("t/a", *payload, false)));
        until("the last has come", || store.count("t/a") == 3);
        // Refused messages wait for their turn after the first, which is not durable yet.
        fence(&mut publisher, &store);
        assert_eq!(session.figures().acknowledged, 0);
        assert_eq!(session.figures().in_flight, 7);
        store.set_durable(1_000);
        until("all are acknowledged", || {
            session.figures().acknowledged == 7
        });
        let figures = session.stop(0);
        assert_eq!(figures.oversized, 2);
        assert_eq!((figures.connects, figures.losses), (1, 0));
        let refused = store.lock().refused.clone();
        assert_eq!(
            refused,
            [
                Reason::Oversized,
                Reason::PayloadInvalid,
                Reason::Oversized,
                Reason::PayloadInvalid
            ]
        );
        // None of them is sent again.
        let store = Store::new();
        let session = Running::start(options, &store).subscribed(1);
        fence(&mut publisher, &store);
        assert_eq!(store.count("t/a"), 0);
        assert_eq!(session.stop(0).oversized, 0);
    }
}

#[test]
fn a_store_that_takes_nothing_stops_the_reading_and_loses_nothing() {
    if !installed() {
        return;
    }
    for (version, full) in [(Version::V311, false), (Version::V5, true)] {
        let broker = Broker::start("");
        let store = Store::new();
        store.set(|inner| {
            inner.room = Some(3);
            inner.full = full;
        });
        let session = Running::start(broker.options(version, "t/#"), &store).subscribed(1);
        let mut publisher = Publisher::connect(broker.port, "publisher");
        let mut lines = numbers(0..2_000);
        // One message of many lines, which is taken in part.
        lines[2] = (0..100).map(|line| format!("line {line}\n")).collect();
        publisher.publish("t/a", &lines);
        until("the store was asked again", || store.lock().waits > 3);
        let figures = session.figures();
        let pause = if full { Pause::Full } else { Pause::Busy };
        assert_eq!(figures.pause, Some(pause));
        assert_eq!((figures.messages, store.count("t/a")), (2, 3));
        // Durable messages are acknowledged even while nothing is read.
        store.set_durable(2);
        until("two are acknowledged", || {
            session.figures().acknowledged == 2
        });
        store.set(|inner| inner.room = None);
        until("the rest is taken", || store.count("t/a") == 2_099);
        let mut wanted = numbers(0..2);
        wanted.extend((0..100).map(|line| format!("line {line}")));
        wanted.extend(numbers(3..2_000));
        assert_eq!(store.payloads("t/a"), wanted, "each once, in order");
        store.set_durable(10_000);
        let figures = session.stop(60_000);
        assert_eq!((figures.connects, figures.losses), (1, 0));
        assert_eq!((figures.acknowledged, figures.redelivered), (2_000, 0));
        assert_eq!(figures.pause, None);
        let paused = (figures.paused_busy_ms > 0, figures.paused_full_ms > 0);
        assert_eq!(paused, (!full, full));
    }
}

#[test]
fn a_flood_of_topics_is_bounded_by_the_window() {
    if !installed() {
        return;
    }
    for version in BOTH {
        let broker = Broker::start("");
        let store = Store::new();
        let mut options = broker.options(version, "t/#");
        options.inflight_max = 100;
        let session = Running::start(options, &store).subscribed(1);
        let mut publisher = Publisher::connect(broker.port, "publisher");
        let topics: Vec<String> = (0..20_000)
            .map(|number| format!("t/flood/{number}"))
            .collect();
        publisher.publish_bytes(
            topics
                .iter()
                .map(|topic| (topic.as_str(), &b"1"[..], false)),
        );
        until("the window is full", || session.figures().in_flight == 100);
        assert_eq!(store.lock().taken.len(), 100);
        let mut end = 0;
        until("all have come", || {
            let taken = store.lock().taken.len() as u64;
            assert!(taken <= end + 100, "{taken} taken with {end} durable");
            end = taken;
            store.set_durable(end);
            taken == 20_000
        });
        let figures = session.stop(60_000);
        assert_eq!(figures.acknowledged, 20_000);
        assert_eq!((figures.connects, figures.losses), (1, 0));
    }
}

#[test]
fn changed_subscriptions_are_applied_on_the_same_connection() {
    if !installed() {
        return;
    }
    for version in BOTH {
        let broker = Broker::start("");
        let store = Store::new();
        store.set_durable(1_000);
        let mut options = broker.options(version, "t/a");
        options
            .subscriptions
            .push(subscription("t/b", Qos::AtMostOnce));
        let session = Running::start(options.clone(), &store).subscribed(2);
        let mut publisher = Publisher::connect(broker.port, "publisher");

        options.subscriptions = vec![subscription("t/b", Qos::AtMostOnce)];
        let many = (0..20).map(|number| subscription(&format!("t/c/{number}"), Qos::AtLeastOnce));
        options.subscriptions.extend(many);
        session.controller.reload(options.clone()).unwrap();
        let session = session.subscribed(21);
        for topic in ["t/a", "t/b", "t/c/19"] {
            publisher.publish(topic, &numbers(0..1));
        }
        until("a new topic comes", || store.count("t/c/19") == 1);
        until("an old one too", || store.count("t/b") == 1);
        assert_eq!(store.count("t/a"), 0, "unsubscribed");
        assert_eq!(session.figures().connects, 1);

        // Only another CONNECT can set another keep-alive; the broker keeps the subscriptions.
        options.keep_alive_seconds += 1;
        session.controller.reload(options.clone()).unwrap();
        until("another connection", || session.figures().connects == 2);
        let session = session.subscribed(21);
        publisher.publish("t/c/0", &numbers(0..1));
        until("messages come", || store.count("t/c/0") == 1);

        // Another client id is another session.
        options.client_id = "another".into();
        session.controller.reload(options).unwrap();
        until("another connection", || session.figures().connects == 3);
        let session = session.subscribed(21);
        publisher.publish("t/c/1", &numbers(0..1));
        until("messages come", || store.count("t/c/1") == 1);
        assert_eq!(session.stop(1_000).losses, 0);
    }
}

#[test]
fn a_wrong_password_and_a_forbidden_topic_are_reported() {
    if !installed() {
        return;
    }
    for version in BOTH {
        // With MQTT 3.1.1 this broker grants a subscription even if it will not serve it; only MQTT 5 can report that.
        let mut broker = Broker::start("");
        let passwords = broker.file("passwords");
        let made = std::process::Command::new("mosquitto_passwd")
            .arg("-b")
            .arg("-c")
            .arg(&passwords)
            .args(["node", "secret"])
            .status();
        if !made.is_ok_and(|status| status.success()) {
            println!("skipped: mosquitto_passwd is not installed");
            return;
        }
        broker.secure(&passwords);
        let store = Store::new();
        let mut options = broker.options(version, "t/#");
        options.username = Some("node".into());
        options.password = Some("wrong".into());
        let session = Running::start(options.clone(), &store);
        until("the refusal is shown", || {
            session
                .state
                .last_error()
                .is_some_and(|text| text.contains("refuses"))
        });
        let text = session.state.last_error().unwrap();
        assert!(
            text.contains("not authorized") && !text.contains("wrong"),
            "{text}"
        );
        assert_eq!(session.figures().connects, 0);
        options.password = Some("secret".into());
        session.controller.reload(options).unwrap();
        session.subscribed(1).stop(0);
    }
}

#[test]
fn kept_messages_come_with_a_new_subscription() {
    if !installed() {
        return;
    }
    for version in BOTH {
        let broker = Broker::start("");
        let mut publisher = Publisher::connect(broker.port, "publisher");
        publisher.publish_bytes([("t/kept", &b"7"[..], true)].into_iter());
        let store = Store::new();
        store.set_durable(1_000);
        let session = Running::start(broker.options(version, "t/#"), &store).subscribed(1);
        until("it comes", || store.payloads("t/kept") == ["7"]);
        fence(&mut publisher, &store);
        assert_eq!(session.stop(1_000).retained, 1);
        // Once more with 3.1.1, which cannot tell the broker that the subscription is an old one.
        let session = Running::start(broker.options(version, "t/#"), &store).subscribed(1);
        fence(&mut publisher, &store);
        let again = u64::from(version == Version::V311);
        assert_eq!(session.stop(1_000).retained, again);
    }
}

#[test]
fn a_log_that_fails_for_good_ends_the_session_without_an_acknowledgement() {
    if !installed() {
        return;
    }
    let broker = Broker::start("");
    let options = broker.options(Version::V5, "t/#");
    let store = Store::new();
    let session = Running::start(options.clone(), &store).subscribed(1);
    let mut publisher = Publisher::connect(broker.port, "publisher");
    publisher.publish("t/a", &numbers(0..10));
    until("all have come", || store.count("t/a") == 10);
    store.set(|inner| inner.failed = true);
    let state = session.state.clone();
    assert_eq!(session.join(), Some(Ended::LogFailed));
    let figures = state.figures();
    assert!(figures.failed && !figures.connected);
    assert_eq!(figures.acknowledged, 0);
    let store = Store::new();
    let session = Running::start(options, &store).subscribed(1);
    until("all come again", || store.count("t/a") == 10);
    session.stop(0);
}
