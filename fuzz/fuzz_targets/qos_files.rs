#![cfg_attr(fuzzing, no_main)]

#[path = "../src/qos_files.rs"]
mod entry;

fuzz::fuzz_target!(entry::qos_files);
