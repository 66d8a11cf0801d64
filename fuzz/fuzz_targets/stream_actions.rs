#![no_main]

#[path = "../src/stream_actions.rs"]
mod entry;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entry::stream_actions(data));
