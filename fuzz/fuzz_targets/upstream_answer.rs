#![no_main]

#[path = "../src/egress.rs"]
mod entry;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entry::upstream_answer(data));
