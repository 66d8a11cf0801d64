#![cfg_attr(fuzzing, no_main)]
// The program's modules are included directly; only the configuration's own parts are used here.
#![allow(dead_code, unused_imports)]

#[path = "../../crates/keel/src/config/mod.rs"]
mod config;
#[path = "../../crates/keel/src/descriptors.rs"]
mod descriptors;
#[path = "../src/configuration.rs"]
mod entry;
#[path = "../../crates/keel/src/error.rs"]
mod error;
#[path = "../../crates/keel/src/kernel.rs"]
mod kernel;
#[path = "../../crates/keel/src/lasting.rs"]
mod lasting;
#[path = "../../crates/keel/src/output.rs"]
mod output;
#[path = "../../crates/keel/src/progress.rs"]
mod progress;

fuzz::fuzz_target!(entry::configuration);
