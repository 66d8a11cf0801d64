#![cfg_attr(fuzzing, no_main)]

#[path = "../src/stream/cache.rs"]
mod entry;

fuzz::fuzz_target!(entry::stream_cache);
