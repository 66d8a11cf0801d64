#![cfg_attr(fuzzing, no_main)]

#[path = "../src/mem/mod.rs"]
#[allow(dead_code)]
mod entry;

fuzz::fuzz_target!(entry::mem_region);
