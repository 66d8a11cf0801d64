//! A broker ends at random moments while it carries readings to a node, and comes back. Ended by SIGTERM, it keeps what
//! it has accepted. Ended by SIGKILL, it goes back to what it saved last: it forgets newer messages, and may send older
//! ones again. The publisher then begins again behind the node's last reading.

use crate::common::broker::{Broker, Publisher};
use crate::common::load::{self, BURST, Load, MQTT, Record, Rounds, Sent, WINDOW, payloads};
use crate::common::node::Node;
use crate::common::wait_until;

#[test]
fn a_broker_that_is_killed_and_restarted_costs_no_reading() {
    let Some(mut broker) = Broker::start() else {
        return;
    };
    let port = broker.port;
    let mut node = Node::start(&load::config("create_mebibytes = 64\n", Some(port)));
    let others = Load::start(&node);
    let mut connects = load::wait_subscribed(&node, 0);
    // The key exists from here on.
    let mut publisher = Publisher::connect(port, "publisher");
    publisher.publish(MQTT, payloads(1..=1));
    publisher.settle(0);
    let mut record = Record {
        offered: 1,
        acknowledged: 1,
        ..Record::default()
    };
    wait_until("the first message", || {
        node.run(&["get", MQTT]).status.success()
    });
    let (mut saved, mut forgotten) = (0, 0);
    let mut rounds = Rounds::of(4);
    while rounds.more() {
        let mut publisher = Publisher::connect(port, "publisher");
        let before = record.acknowledged;
        for _ in 0..=rounds.random.below(8) {
            let first = before + publisher.acknowledged + publisher.in_flight + 1;
            let last = first + BURST - 1;
            publisher.publish(MQTT, payloads(first..=last));
            record.offered = record.offered.max(last);
            publisher.settle(WINDOW);
        }
        record.acknowledged = before + publisher.acknowledged;
        rounds.pause(60);
        let forgets = rounds.random.below(2) == 0;
        broker.end(if forgets {
            libc::SIGKILL
        } else {
            libc::SIGTERM
        });
        rounds.pause(300);
        broker.begin();
        connects = load::wait_subscribed(&node, connects);
        if forgets {
            forgotten += 1;
            let held = load::held(&node, &Sent::published(record));
            record.acknowledged = held.into_iter().max().unwrap();
        } else {
            saved += 1;
        }
    }
    let mut publisher = Publisher::connect(port, "publisher");
    // The node may have all of them already, and behind them older ones that a killed broker has sent again. So a new
    // one is what must come last.
    record.offered += 1;
    publisher.publish(MQTT, payloads(record.acknowledged + 1..=record.offered));
    publisher.settle(0);
    record.acknowledged = record.offered;
    let mut sent = others.end();
    sent.push(Sent::published(record));
    load::wait_published(&node, &sent);
    drop(broker);
    let counted = load::counted(&node);
    let held = load::judge(&mut node, &sent, "keel-data/store.img", 0);
    assert_eq!(held, counted);
    println!("{saved} ends with what was accepted, {forgotten} without");
}
