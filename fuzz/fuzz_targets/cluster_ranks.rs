#![cfg_attr(fuzzing, no_main)]

#[path = "../src/cluster_ranks.rs"]
mod entry;

fuzz::fuzz_target!(entry::cluster_ranks);
