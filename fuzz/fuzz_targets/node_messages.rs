#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::messages::node_messages(data));
