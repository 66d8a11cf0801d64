//! The committed corpus of the fuzz target `node_messages`, replayed.

#[path = "../../../fuzz/src/messages.rs"]
mod messages;
#[path = "../../../fuzz/src/replay.rs"]
mod replay;

#[test]
fn messages_from_anywhere_do_no_harm() {
    replay::replay("node_messages", messages::node_messages);
}
