//! The committed corpus of the fuzz target `node_messages`, replayed.

#[path = "../../../fuzz/src/messages.rs"]
mod messages;
#[path = "../../../fuzz/src/replay.rs"]
mod replay;

#[test]
fn the_corpus_of_node_messages_holds() {
    replay::replay("node_messages", messages::node_messages);
}
