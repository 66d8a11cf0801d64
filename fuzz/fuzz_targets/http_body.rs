#![cfg_attr(fuzzing, no_main)]

#[path = "../src/egress.rs"]
mod entry;

fuzz::fuzz_target!(entry::http_body);
