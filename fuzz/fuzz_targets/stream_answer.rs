#![no_main]

#[path = "../src/stream/mod.rs"]
#[allow(dead_code)]
mod entry;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entry::stream_answer(data));
