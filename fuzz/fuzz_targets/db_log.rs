#![cfg_attr(fuzzing, no_main)]

#[path = "../src/db_log.rs"]
mod entry;

fuzz::fuzz_target!(entry::db_log);
