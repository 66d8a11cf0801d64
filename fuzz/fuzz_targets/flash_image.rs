#![no_main]

#[path = "../src/flash/mod.rs"]
#[allow(dead_code)]
mod entry;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entry::flash_image(data));
