#![no_main]

#[path = "../src/stream_manifest.rs"]
#[allow(dead_code)]
mod entry;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entry::stream_manifest(data));
