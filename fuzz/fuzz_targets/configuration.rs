#![cfg_attr(fuzzing, no_main)]

#[path = "../src/configuration.rs"]
mod entry;

fuzz::fuzz_target!(entry::configuration);
