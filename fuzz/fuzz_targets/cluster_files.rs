#![no_main]

#[path = "../src/cluster_files.rs"]
mod entry;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entry::cluster_files(data));
