#![cfg_attr(fuzzing, no_main)]

#[path = "../src/stream_actions.rs"]
mod entry;

fuzz::fuzz_target!(entry::stream_actions);
