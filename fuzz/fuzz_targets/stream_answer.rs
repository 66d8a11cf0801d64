#![cfg_attr(fuzzing, no_main)]

#[path = "../src/stream/mod.rs"]
#[allow(dead_code)]
mod entry;

fuzz::fuzz_target!(entry::stream_answer);
