#![no_main]

#[path = "../src/mem/mod.rs"]
#[allow(dead_code)]
mod entry;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entry::mem_checkpoint(data));
