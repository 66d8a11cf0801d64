#![cfg_attr(fuzzing, no_main)]

#[path = "../src/db_table.rs"]
mod entry;

fuzz::fuzz_target!(entry::db_table);
