#![cfg_attr(fuzzing, no_main)]

#[path = "../src/node_keys.rs"]
mod entry;
#[path = "../../crates/node/src/key_mark.rs"]
mod mark;

fuzz::fuzz_target!(entry::node_keys);
