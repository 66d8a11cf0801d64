#![no_main]

#[path = "../src/stream/cache.rs"]
mod entry;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entry::stream_cache(data));
