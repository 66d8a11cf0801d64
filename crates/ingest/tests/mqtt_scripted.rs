//! A session with a scripted broker, which sends everything that a good broker never sends.

use crate::mqtt_support::fake::{BOTH, Fake};
use crate::mqtt_support::{Running, Store, keep_alive_runs, options, subscription, until};
use ingest::intake::Reason;
use ingest::mqtt::{Qos, Version};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::io::{Read, Write};
use std::time::Duration;

#[test]
fn a_packet_that_breaks_the_protocol_is_counted_and_the_session_comes_back() {
    for version in BOTH {
        let wrong: [&[u8]; 9] = [
            &[0x36, 5, 0, 1, b't', 0, 1],
            &[0x32, 5, 0, 1, b't', 0, 0],
            &[0x30, 1, 0],
            &[0x30, 0xff, 0xff, 0xff, 0xff],
            &[0x10, 0],
            &[0x40, 2, 0, 1],
            &[0x90, 3, 0x12, 0x34, 1],
            &[0xb0, 2, 0x12, 0x34],
            &[0x20, 2, 0, 0],
        ];
        let fake = Fake::new(version);
        let store = Store::new();
        let session = Running::start(options(fake.port(), version, "t"), &store);
        for bytes in wrong {
            let mut peer = fake.subscribed();
            peer.send(bytes);
            let mut last = None;
            while let Some(packet) = peer.packet() {
                last = Some(packet);
            }
            if version == Version::V5 {
                assert_eq!(last, Some((0xe0, vec![0x81])), "told as much");
            }
        }
        let mut peer = fake.subscribed();
        let message = peer.publish(0x30, 0, b"1");
        peer.send(&message);
        until("messages come", || store.count("t") == 1);
        let figures = session.stop(0);
        assert_eq!(figures.packets_invalid, 9);
        assert_eq!((figures.connects, figures.losses), (10, 9));
        assert_eq!(store.lock().refused, [Reason::PacketInvalid; 9]);
    }
}

/// Returns the name of the subscription in the next SUBSCRIBE, which is four bytes long.
fn name_in(subscribe: &[u8]) -> Option<&[u8]> {
    match subscribe[2] {
        0 => None,
        bytes => {
            assert_eq!(subscribe[3], 0x0b, "a subscription identifier");
            Some(&subscribe[4..3 + usize::from(bytes)])
        }
    }
}

#[test]
fn the_first_copy_of_a_message_is_taken_and_the_others_are_acknowledged_with_it() {
    let fake = Fake::new(Version::V5);
    let store = Store::new();
    let mut options = options(fake.port(), Version::V5, "a/+");
    let all = subscription("a/#", Qos::AtLeastOnce);
    options.subscriptions.push(all);
    let session = Running::start(options, &store);
    let mut peer = fake.welcome(true);
    // Some waiting messages arrive before the answers to SUBSCRIBE, and for filters of an earlier run.
    let unknown = &[7_u8][..];
    peer.publish_for(1, b'0', &[unknown]);
    let names = [0, 1].map(|_| peer.grant(&[1]));
    let [first, second] = [&names[0], &names[1]].map(|body| name_in(body).unwrap());
    peer.publish_for(2, b'1', &[second]);
    peer.publish_for(3, b'1', &[first]);
    peer.publish_for(4, b'2', &[first, second]);
    peer.publish_for(5, b'3', &[second]);
    peer.publish_for(6, b'3', &[second]);
    peer.publish_for(7, b'4', &[]);
    peer.publish_for(8, b'4', &[]);
    until("the last", || session.figures().messages == 8);
    assert_eq!(store.payloads("a/b"), ["0", "1", "2", "3", "3", "4", "4"]);
    assert_eq!(session.figures().copies, 1);
    // The copy is acknowledged when the message that was taken is durable.
    store.set_durable(1);
    assert_eq!(peer.packet().unwrap().1[1], 1);
    // It is counted behind the write, which the peer may see first.
    until("the count", || session.figures().acknowledged == 1);
    store.set_durable(100);
    let mut acknowledged: Vec<u8> = (0..7).map(|_| peer.packet().unwrap().1[1]).collect();
    acknowledged.sort_unstable();
    assert_eq!(acknowledged, [2, 3, 4, 5, 6, 7, 8]);
    session.stop(0);
}

/// A value that is repeated after its filter was replaced is no copy of the earlier message.
#[test]
fn a_message_for_a_subscription_that_took_another_ones_place_is_no_copy() {
    let fake = Fake::new(Version::V5);
    let store = Store::new();
    store.set_durable(100);
    let mut options = options(fake.port(), Version::V5, "a/+");
    let all = subscription("a/#", Qos::AtLeastOnce);
    options.subscriptions.push(all);
    let session = Running::start(options.clone(), &store);
    let mut peer = fake.welcome(true);
    let names = [0, 1].map(|_| peer.grant(&[1]));
    let first = name_in(&names[0]).unwrap();
    let session = session.subscribed(2);
    peer.publish_for(1, b'1', &[first]);
    until("the first", || store.count("a/b") == 1);
    assert_eq!(peer.packet().unwrap().0, 0x40);
    options.subscriptions[0] = subscription("+/b", Qos::AtLeastOnce);
    session.controller.reload(options).unwrap();
    let (kind, body) = peer.packet().unwrap();
    assert_eq!(kind, 0xa2, "an UNSUBSCRIBE");
    peer.send(&[0xb0, 4, body[0], body[1], 0, 0]);
    let new = peer.grant(&[1]);
    peer.publish_for(2, b'1', &[name_in(&new).unwrap()]);
    until("the second", || session.figures().messages == 2);
    assert_eq!((store.count("a/b"), session.figures().copies), (2, 0));
    session.stop(0);
}

#[test]
fn subscriptions_have_names_where_filters_overlap_and_the_broker_can_tell() {
    for (filters, is_offered, is_named) in [
        (["a/+", "b/#"], true, false),
        (["a/+", "+/b"], true, true),
        (["a/+", "+/b"], false, false),
        (["a/b/#", "a/b"], true, true),
        (["a", "a/b"], true, false),
    ] {
        let fake = Fake::new(Version::V5);
        let store = Store::new();
        let mut options = options(fake.port(), Version::V5, filters[0]);
        let other = subscription(filters[1], Qos::AtLeastOnce);
        options.subscriptions.push(other);
        let session = Running::start(options, &store);
        let mut peer = fake.accept();
        match is_offered {
            true => peer.send(&[0x20, 3, 0, 0, 0]),
            false => peer.send(&[0x20, 5, 0, 0, 2, 0x29, 0]),
        }
        let body = match is_named {
            true => peer.grant(&[1]),
            false => peer.grant(&[1, 1]),
        };
        assert_eq!(name_in(&body).is_some(), is_named, "{filters:?}");
        if is_named {
            let other = peer.grant(&[1]);
            assert_ne!(name_in(&other), name_in(&body));
        }
        session.stop(0);
    }
}

#[test]
fn no_bytes_end_a_session_for_good() {
    for version in BOTH {
        let fake = Fake::new(version);
        let store = Store::new();
        let mut options = options(fake.port(), version, "t");
        options.reconnect_ms_max = 5;
        let session = Running::start(options, &store);
        let mut runner = TestRunner::new(Config {
            cases: 100,
            failure_persistence: None,
            ..Config::default()
        });
        let bytes = (any::<bool>(), prop::collection::vec(any::<u8>(), 0..200));
        let sent = runner.run(&bytes, |(consents, bytes)| {
            let mut peer = if consents {
                fake.welcome(true)
            } else {
                fake.accept()
            };
            peer.send(&bytes);
            Ok(())
        });
        sent.unwrap();
        let mut peer = fake.welcome(false);
        let message = peer.publish(0x30, 0, b"the end");
        peer.send(&message);
        until("messages come", || {
            store
                .lock()
                .taken
                .iter()
                .any(|(_, payload)| payload == b"the end")
        });
        session.stop(0);
    }
}

#[test]
fn an_answer_of_the_broker_other_than_consent_is_reported() {
    let cases: [(Version, &[u8], &str); 9] = [
        (Version::V311, &[0x20, 2, 0, 4], "bad user name password"),
        (Version::V311, &[0x20, 2, 0, 5], "not authorized"),
        (Version::V311, &[0x20, 2, 0, 99], "cannot be read"),
        (Version::V311, &[0xd0, 0], "something else than CONNACK"),
        (Version::V311, &[], "closed the connection"),
        (Version::V5, &[0x20, 2, 0, 1], "does not speak MQTT 5"),
        (Version::V5, &[0x20, 3, 0, 0x87, 0], "not authorized"),
        (
            Version::V5,
            &[0x20, 7, 0, 0x87, 4, 31, 0, 1, b'!'],
            "the broker refuses: !",
        ),
        (
            Version::V5,
            &[0x20, 9, 0, 0, 5, 31, 0, 9, b'!', 0, 0],
            "cannot be read",
        ),
    ];
    for (version, answer, text) in cases {
        let fake = Fake::new(version);
        let session = Running::start(options(fake.port(), version, "t"), &Store::new());
        let mut peer = fake.accept();
        peer.send(answer);
        drop(peer);
        until(text, || {
            session
                .state
                .last_error()
                .is_some_and(|error| error.contains(text))
        });
        // It retries.
        let _peer = fake.subscribed();
        session.subscribed(1).stop(0);
    }
}

#[test]
fn a_refused_or_lowered_subscription_is_reported_and_the_others_are_kept() {
    for version in BOTH {
        let refusal = if version == Version::V5 { 0x87 } else { 0x80 };
        let fake = Fake::new(version);
        let mut options = options(fake.port(), version, "t");
        options
            .subscriptions
            .push(subscription("secret", Qos::AtLeastOnce));
        let session = Running::start(options.clone(), &Store::new());
        let mut peer = fake.welcome(false);
        peer.grant(&[1, refusal]);
        let session = session.subscribed(1);
        until("it is reported", || {
            session.figures().subscriptions_refused == 1
        });
        let text = session.state.last_error().unwrap();
        assert!(text.contains("refuses the subscription `secret`"), "{text}");
        // New options are a reason to request again.
        options
            .subscriptions
            .push(subscription("more", Qos::AtLeastOnce));
        session.controller.reload(options.clone()).unwrap();
        peer.grant(&[0, 1]);
        let session = session.subscribed(3);
        assert_eq!(session.figures().subscriptions_refused, 1);
        let text = session.state.last_error().unwrap();
        assert!(text.contains("`secret` with QoS 0 only"), "{text}");
        // What was requested with QoS 0 is granted as requested.
        options.subscriptions[1].qos = Qos::AtMostOnce;
        session.controller.reload(options).unwrap();
        peer.grant(&[0]);
        until("nothing is lacking", || {
            session.figures().subscriptions_refused == 0
        });
        session.stop(0);
    }
}

#[test]
fn a_refused_subscription_that_is_no_longer_wanted_is_not_reported_any_more() {
    for version in BOTH {
        let refusal = if version == Version::V5 { 0x87 } else { 0x80 };
        let fake = Fake::new(version);
        let one = options(fake.port(), version, "t");
        let mut two = one.clone();
        two.subscriptions
            .push(subscription("secret", Qos::AtLeastOnce));
        let session = Running::start(two.clone(), &Store::new());
        let mut peer = fake.welcome(false);
        peer.grant(&[1, refusal]);
        until("it is reported", || {
            session.figures().subscriptions_refused == 1
        });
        // The broker holds what is wanted: it is asked for nothing, so no answer of it follows.
        session.controller.reload(one.clone()).unwrap();
        until("nothing is lacking", || {
            session.figures().subscriptions_refused == 0
        });
        let session = session.subscribed(1);
        // The same while the broker is away, also for one that was granted with less than it asks for.
        two.subscriptions
            .push(subscription("lowered", Qos::AtLeastOnce));
        session.controller.reload(two).unwrap();
        peer.grant(&[refusal, 0]);
        until("both are reported", || {
            session.figures().subscriptions_refused == 2
        });
        drop(peer);
        until("the connection is lost", || !session.figures().connected);
        session.controller.reload(one).unwrap();
        until("nothing is lacking", || {
            session.figures().subscriptions_refused == 0
        });
        session.stop(0);
    }
}

#[test]
fn subscriptions_are_renewed_once_on_each_connection() {
    for version in BOTH {
        let fake = Fake::new(version);
        let store = Store::new();
        store.set_durable(1_000);
        let mut options = options(fake.port(), version, "t");
        let session = Running::start(options.clone(), &store);
        // The first time it is unknown what the broker's session is subscribed to.
        let mut peer = fake.welcome(true);
        peer.grant(&[1]);
        let session = session.subscribed(1);
        drop(peer);
        // Later, the broker may have gone back to an older save of the session, without the subscription.
        let mut peer = fake.welcome(true);
        let asked = peer.grant(&[1]);
        let only_if_new = u8::from(version == Version::V5) << 4;
        assert_eq!(asked.last(), Some(&(only_if_new | 1)), "retained messages");
        let message = peer.publish(0x32, 7, b"1");
        peer.send(&message);
        assert_eq!(peer.packet(), Some((0x40, vec![0, 7])), "no SUBSCRIBE");
        drop(peer);
        let mut peer = fake.subscribed();
        until("renewed", || session.figures().subscriptions_held == 1);
        // Changed while the broker is away: applied when it is back.
        drop(peer);
        peer = fake.accept();
        options.subscriptions = vec![subscription("other", Qos::AtLeastOnce)];
        session.controller.reload(options).unwrap();
        drop(peer);
        let mut peer = fake.welcome(true);
        let (first, body) = peer.packet().unwrap();
        assert_eq!(first, 0xa2, "an UNSUBSCRIBE");
        match version {
            Version::V311 => peer.send(&[0xb0, 2, body[0], body[1]]),
            Version::V5 => peer.send(&[0xb0, 4, body[0], body[1], 0, 0]),
        }
        peer.grant(&[1]);
        session.subscribed(1).stop(0);
    }
}

#[test]
fn a_broker_without_answers_is_left() {
    // In parallel, because waiting for the silence takes time.
    std::thread::scope(|scope| {
        for version in BOTH {
            scope.spawn(move || without_answers(version));
        }
    });
}

fn without_answers(version: Version) {
    let fake = Fake::new(version);
    let mut options = options(fake.port(), version, "t");
    options.keep_alive_seconds = 1;
    let session = Running::start(options, &Store::new());
    let mut peer = fake.subscribed();
    assert_eq!(peer.packet(), Some((0xc0, vec![])), "a ping");
    until("the silence is noticed", || {
        session
            .state
            .last_error()
            .is_some_and(|text| text.contains("does not answer pings"))
    });
    let mut peer = fake.subscribed();
    for _ in 0..2 {
        assert_eq!(peer.packet(), Some((0xc0, vec![])), "a ping");
        peer.send(&[0xd0, 0]);
    }
    assert_eq!(session.stop(0).losses, 1);
}

#[test]
fn pings_go_out_while_nothing_is_read() {
    std::thread::scope(|scope| {
        for version in BOTH {
            scope.spawn(move || pings_while_paused(version));
        }
    });
}

fn pings_while_paused(version: Version) {
    let fake = Fake::new(version);
    let store = Store::new();
    store.set(|inner| inner.room = Some(0));
    let mut options = options(fake.port(), version, "t");
    options.keep_alive_seconds = 1;
    let session = Running::start(options, &store);
    let mut peer = fake.subscribed();
    let message = peer.publish(0x32, 7, b"1");
    peer.send(&message);
    until("the session pauses", || session.figures().pause.is_some());
    // Their answers, if any, could not be read: that is no reason to disconnect.
    for _ in 0..3 {
        assert_eq!(peer.packet(), Some((0xc0, vec![])), "a ping");
    }
    store.set(|inner| inner.room = None);
    until("the message is taken", || store.count("t") == 1);
    store.set_durable(1);
    assert_eq!(peer.packet(), Some((0x40, vec![0, 7])));
    assert_eq!(session.stop(0).losses, 0);
}

#[test]
fn a_broker_that_never_consents_or_never_grants_is_left() {
    for version in BOTH {
        let fake = Fake::new(version);
        let mut options = options(fake.port(), version, "t");
        options.connect_ms_max = 200;
        options.keep_alive_seconds = 1;
        let session = Running::start(options, &Store::new());
        let _silent = fake.accept();
        until("the silence is noticed", || {
            session
                .state
                .last_error()
                .is_some_and(|text| text.contains("does not answer within 0.2 s"))
        });
        let _silent_too = fake.welcome(false);
        until("the silence is noticed", || {
            session
                .state
                .last_error()
                .is_some_and(|text| text.contains("does not answer a subscription"))
        });
        let _peer = fake.subscribed();
        session.subscribed(1).stop(0);
    }
}

#[test]
fn the_brokers_own_keep_alive_counts() {
    let fake = Fake::new(Version::V5);
    let mut options = options(fake.port(), Version::V5, "t");
    options.keep_alive_seconds = 60_000;
    let session = Running::start(options, &Store::new());
    let mut peer = fake.accept();
    peer.send(&[0x20, 6, 0, 0, 3, 19, 0, 1]);
    peer.grant(&[1]);
    assert_eq!(peer.packet(), Some((0xc0, vec![])), "a ping");
    // A broker may turn pings off, so the system probes, too.
    until("the timer of TCP", || keep_alive_runs(&peer.stream));
    session.stop(0);
}

#[test]
fn a_broker_that_takes_leave_is_quoted() {
    let fake = Fake::new(Version::V5);
    let session = Running::start(options(fake.port(), Version::V5, "t"), &Store::new());
    for (bytes, text) in [
        (&[0xe0, 1, 0x8e][..], "session taken over"),
        (&[0xe0, 0], "normal disconnection"),
        (&[0xe0, 2, 0xff, 0], "reason 255"),
    ] {
        let mut peer = fake.subscribed();
        peer.send(bytes);
        until(text, || {
            session
                .state
                .last_error()
                .is_some_and(|error| error.contains(text))
        });
    }
    let _peer = fake.subscribed();
    let figures = session.subscribed(1).stop(0);
    assert_eq!((figures.losses, figures.packets_invalid), (3, 0));
}

#[test]
fn packets_that_come_byte_by_byte_are_packets() {
    for version in BOTH {
        let fake = Fake::new(version);
        let store = Store::new();
        store.set_durable(1_000);
        let session = Running::start(options(fake.port(), version, "t"), &store);
        let mut peer = fake.subscribed();
        for id in 1..=3 {
            for byte in peer.publish(0x32, id, b"21.5") {
                peer.send(&[byte]);
                std::thread::yield_now();
            }
            assert_eq!(peer.packet(), Some((0x40, id.to_be_bytes().to_vec())));
        }
        assert_eq!(store.payloads("t"), ["21.5"; 3]);
        session.stop(0);
    }
}

#[test]
fn a_lower_limit_does_not_take_back_a_message_that_was_taken_in_part() {
    for version in BOTH {
        let fake = Fake::new(version);
        let store = Store::new();
        store.set(|inner| inner.room = Some(1));
        let mut options = options(fake.port(), version, "t");
        let session = Running::start(options.clone(), &store);
        let mut peer = fake.subscribed();
        let rest = "b".repeat(200);
        let mut body = vec![0, 1, b't', 0, 7];
        if version == Version::V5 {
            body.push(0);
        }
        body.extend_from_slice(format!("a\n{rest}").as_bytes());
        let length = u8::try_from(body.len() - 128).unwrap() | 0x80;
        peer.send(&[&[0x32, length, 1][..], &body].concat());
        until("the message waits", || store.lock().waits > 0);
        options.packet_bytes_max = 128;
        options
            .subscriptions
            .push(subscription("u", Qos::AtLeastOnce));
        session.controller.reload(options).unwrap();
        // The new subscription shows that the session has received the options.
        peer.grant(&[1]);
        let waits = store.lock().waits;
        until("it is offered again or given up", || {
            let inner = store.lock();
            inner.waits > waits || !inner.refused.is_empty()
        });
        store.set(|inner| inner.room = None);
        until("its rest is taken", || store.count("t") == 2);
        assert_eq!(store.lock().refused, []);
        assert_eq!(store.payloads("t"), ["a".to_owned(), rest]);
        store.set_durable(1);
        // The limit applies to the next one, which only waits for its turn.
        peer.send(&[&[0x32, length, 1][..], &body].concat());
        until("the next is refused", || {
            store.lock().refused == [Reason::Oversized]
        });
        assert_eq!(session.figures().acknowledged, 0);
        store.set_durable(2);
        until("both are acknowledged", || {
            session.figures().acknowledged == 2
        });
        session.stop(0);
    }
}

#[test]
fn a_broker_that_has_a_name_is_found_without_the_blocking_threads() {
    let fake = Fake::new(Version::V5);
    let mut options = options(fake.port(), Version::V5, "t");
    options.address = format!("localhost:{}", fake.port());
    let session = Running::start(options, &Store::new());
    let _peer = fake.subscribed();
    session.subscribed(1).stop(0);
}

#[test]
fn qos_2_is_served_although_it_is_never_asked_for() {
    for version in BOTH {
        let fake = Fake::new(version);
        let store = Store::new();
        let session = Running::start(options(fake.port(), version, "t"), &store);
        let mut peer = fake.subscribed();
        let messages = [peer.publish(0x34, 1, b"1"), peer.publish(0x32, 2, b"2")].concat();
        peer.send(&messages);
        until("both have come", || store.count("t") == 2);
        store.set_durable(2);
        assert_eq!(peer.packet(), Some((0x50, vec![0, 1])), "PUBREC");
        assert_eq!(peer.packet(), Some((0x40, vec![0, 2])), "PUBACK");
        peer.send(&[0x62, 2, 0, 1]);
        assert_eq!(peer.packet(), Some((0x70, vec![0, 1])), "PUBCOMP");
        session.stop(0);
    }
}

#[test]
fn a_message_of_qos_2_that_is_sent_again_is_recorded_once() {
    for version in BOTH {
        let fake = Fake::new(version);
        let store = Store::new();
        let session = Running::start(options(fake.port(), version, "t"), &store);
        let mut peer = fake.subscribed();
        let message = peer.publish(0x34, 7, b"1");
        peer.send(&message);
        until("it has come", || store.count("t") == 1);
        // No PUBREC was received: the connection is lost, and the session still exists.
        drop(peer);
        let mut peer = fake.welcome(true);
        peer.grant(&[1]);
        let again = peer.publish(0x3c, 7, b"1");
        peer.send(&again);
        store.set_durable(1);
        assert_eq!(peer.packet(), Some((0x50, vec![0, 7])), "PUBREC");
        assert_eq!(store.count("t"), 1);
        peer.send(&[0x62, 2, 0, 7]);
        assert_eq!(peer.packet(), Some((0x70, vec![0, 7])), "PUBCOMP");
        // Released: the same number is another message.
        let other = peer.publish(0x34, 7, b"2");
        peer.send(&other);
        until("the other one has come", || store.count("t") == 2);
        drop(peer);
        // A broker without the session sends nothing again: every message is new.
        let mut peer = fake.welcome(false);
        while peer.packet().is_some_and(|packet| packet.0 != 0x82) {}
        let new = peer.publish(0x34, 7, b"3");
        peer.send(&new);
        until("the new one has come", || store.count("t") == 3);
        session.stop(0);
    }
}

/// A broker that keeps sending requests without reading the answers is no longer read, so that the answers do not pile
/// up.
#[test]
fn unread_answers_do_not_pile_up() {
    const PUBRELS: [u8; 4] = [0x62, 2, 0, 7];
    let fake = Fake::new(Version::V311);
    let store = Store::new();
    let session = Running::start(options(fake.port(), Version::V311, "t"), &store);
    let mut peer = fake.subscribed();
    peer.stream
        .set_write_timeout(Some(Duration::from_secs(2)))
        .unwrap();
    let chunk = PUBRELS.repeat(16 << 10);
    let mut sent = 0;
    while let Ok(count) = peer.stream.write(&chunk[sent % 4..]) {
        sent += count;
        // Far more than the buffers of both ends and the session's own.
        assert!(sent < 256 << 20, "the session reads without end");
    }
    // Once they are read, all of them are there.
    let mut answers = 0;
    let mut waste = vec![0; 64 << 10];
    while answers < sent / 4 * 4 {
        answers += peer.stream.read(&mut waste).unwrap();
    }
    assert_eq!(answers, sent / 4 * 4);
    session.stop(0);
}

#[test]
fn stopping_waits_for_readings_in_flight_but_not_for_ever() {
    for version in BOTH {
        let fake = Fake::new(version);
        let store = Store::new();
        let session = Running::start(options(fake.port(), version, "t"), &store);
        let mut peer = fake.subscribed();
        for id in 1..=2 {
            let message = peer.publish(0x32, id, b"1");
            peer.send(&message);
        }
        until("both have come", || store.count("t") == 2);
        store.set_durable(1);
        assert_eq!(peer.packet(), Some((0x40, vec![0, 1])));
        let state = session.state.clone();
        let stopping = std::thread::spawn(move || session.stop(200));
        // The second never becomes durable: the session disconnects without its acknowledgement.
        assert_eq!(peer.packet(), Some((0xe0, vec![])));
        assert_eq!(peer.packet(), None);
        assert_eq!(stopping.join().unwrap().acknowledged, 1);
        assert!(!state.figures().connected);
    }
}
