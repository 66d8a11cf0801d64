//! The tests of `db` from outside, as one program: each file beside this one is a module of it.

mod admission;
mod alarms;
mod common;
mod crash_flash;
mod database;
mod follow;
mod full;
mod full_model;
mod fuzz_corpus;
mod given_memory;
mod golden;
mod history;
mod history_damage;
mod history_index;
mod log_damage;
mod outside_bytes;
mod owners;
mod pace;
mod retention;
mod room;
mod snapshot;
mod stepped;
mod tasks;
mod together;
