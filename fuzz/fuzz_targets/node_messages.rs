#![cfg_attr(fuzzing, no_main)]

#[path = "../src/messages.rs"]
mod messages;

fuzz::fuzz_target!(messages::node_messages);
