#![no_main]

#[path = "../src/messages.rs"]
mod messages;

libfuzzer_sys::fuzz_target!(|data: &[u8]| messages::node_messages(data));
