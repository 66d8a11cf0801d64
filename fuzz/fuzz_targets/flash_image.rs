#![cfg_attr(fuzzing, no_main)]

#[path = "../src/flash/mod.rs"]
#[allow(dead_code)]
mod entry;

fuzz::fuzz_target!(entry::flash_image);
