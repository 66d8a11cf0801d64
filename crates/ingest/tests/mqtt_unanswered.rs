//! A scripted broker that does not answer a subscription.

use crate::mqtt_support::fake::{BOTH, Fake};
use crate::mqtt_support::{Running, Store, options, until};
use ingest::mqtt::Version;

const TOLD: &str = "does not answer a subscription";

fn is_told(session: &Running) -> bool {
    let error = session.state.last_error();
    error.is_some_and(|text| text.contains(TOLD))
}

#[test]
fn a_broker_that_sends_messages_and_never_grants_is_reported_and_left() {
    // In parallel, because the wait takes time.
    std::thread::scope(|scope| {
        for version in BOTH {
            scope.spawn(move || never_grants(version));
        }
    });
}

fn never_grants(version: Version) {
    let fake = Fake::new(version);
    let mut options = options(fake.port(), version, "t");
    options.connect_ms_max = 500;
    let session = Running::start(options, &Store::new());
    let mut peer = fake.welcome(true);
    let message = peer.publish(0x30, 0, b"1");
    until("it is reported", || {
        peer.send(&message);
        session.figures().subscriptions_unanswered == 1
    });
    until("it is left", || {
        peer.send(&message);
        is_told(&session)
    });
    let _peer = fake.subscribed();
    let session = session.subscribed(1);
    assert_eq!(session.figures().subscriptions_unanswered, 0);
    session.stop(0);
}

#[test]
fn a_broker_that_never_grants_is_left_although_it_turns_pings_off() {
    let fake = Fake::new(Version::V5);
    let mut options = options(fake.port(), Version::V5, "t");
    options.connect_ms_max = 500;
    let session = Running::start(options, &Store::new());
    let mut silent = fake.accept();
    // Its keep-alive is 0.
    silent.send(&[0x20, 6, 0, 0, 3, 19, 0, 0]);
    until("it is left", || is_told(&session));
    let _peer = fake.subscribed();
    session.subscribed(1).stop(0);
}
