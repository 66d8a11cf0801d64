//! An edge node of Sparkplug, a broker and a whole node.

use crate::common::broker::{Broker, Publisher};
use crate::common::node::{Node, SMALL};
use crate::common::wait_until;

/// The number 3 of a session, the metric `Count` with the alias 1, type Int32 and the value 21, message 0.
const BIRTH: &str =
    "\x12\x0b\x0a\x05bdSeq\x20\x08\x58\x03\x12\x0d\x0a\x05Count\x10\x01\x20\x03\x50\x15\x18\x00";
/// The alias 1 with the value 22, message 1.
const DATA: &str = "\x12\x04\x10\x01\x50\x16\x18\x01";
/// The number of the session.
const DEATH: &str = "\x12\x0b\x0a\x05bdSeq\x20\x08\x58\x03";

#[test]
fn an_edge_node_is_followed_from_its_birth_to_its_death() {
    let Some(broker) = Broker::start() else {
        return;
    };
    let mut node = Node::start(&format!(
        "{SMALL}[mqtt]\naddress = \"127.0.0.1:{}\"\nclient_id = \"keel-edge\"\n\
         [[mqtt.subscribe]]\nfilter = \"spBv1.0/#\"\npayload = \"sparkplug\"\nsparkplug_rebirth = true\n",
        broker.port
    ));
    let status = |node: &Node| node.json_degraded(&["status", "--json"]);
    wait_until("the subscription", || {
        status(&node)["mqtt"]["subscriptions_held"] == 1
    });
    let mut publisher = Publisher::connect(broker.port, "edge");
    let mut send = |kind: &str, payload: &str| {
        let topic = format!("spBv1.0/plant/{kind}/line1");
        publisher.publish(&topic, std::iter::once(payload.to_owned()));
        publisher.settle(0);
    };
    // No birth has defined the alias, and the edge node is asked.
    send("NDATA", DATA);
    wait_until("the question", || {
        status(&node)["sparkplug"][0]["rebirths_asked"] == 1
    });
    let unborn = status(&node);
    assert_eq!(unborn["sparkplug"][0]["state"], "unborn");
    assert_eq!(unborn["intake"]["refused"]["sparkplug_unknown_alias"], 1);
    let codes = unborn["reasons"].as_array().unwrap().iter();
    let codes: Vec<&str> = codes
        .map(|reason| reason["code"].as_str().unwrap())
        .collect();
    assert!(codes.contains(&"sparkplug_birth_missing"), "{codes:?}");

    let get = |node: &Node, key: &str| {
        let output = node.run(&["get", key]);
        String::from_utf8(output.stdout).unwrap()
    };
    send("NBIRTH", BIRTH);
    wait_until("the birth", || {
        get(&node, "plant/line1/node/Count") == "21\n"
    });
    assert_eq!(get(&node, "plant/line1/state/node"), "true\n");
    send("NDATA", DATA);
    wait_until("the data", || {
        get(&node, "plant/line1/node/Count") == "22\n"
    });
    let born = status(&node);
    let edge = &born["sparkplug"][0];
    assert_eq!(
        (&edge["name"], &edge["state"]),
        (&"plant/line1".into(), &"alive".into())
    );
    assert_eq!(
        (&edge["lacks_birth"], &edge["gaps"]),
        (&false.into(), &0.into())
    );

    send("NDEATH", DEATH);
    let mut text = String::new();
    wait_until("the death", || {
        text = String::from_utf8(node.run(&["status"]).stdout).unwrap();
        text.contains("sparkplug_dead")
    });
    assert!(text.contains("\nsparkplug plant/line1 DEAD: "), "{text}");
    assert_eq!(get(&node, "plant/line1/state/node"), "false\n");
    assert_eq!(get(&node, "plant/line1/node/Count"), "22\n");
    assert!(node.stop().success());
}
