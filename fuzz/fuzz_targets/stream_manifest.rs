#![cfg_attr(fuzzing, no_main)]

#[path = "../src/stream_manifest.rs"]
#[allow(dead_code)]
mod entry;

fuzz::fuzz_target!(entry::stream_manifest);
