#![cfg_attr(fuzzing, no_main)]
// The program's modules are included directly; only the configuration's own parts are used here.
#![allow(dead_code, unused_imports)]

#[path = "../../crates/keel/src/config/mod.rs"]
mod config;
#[path = "../src/configuration.rs"]
mod entry;
#[path = "../../crates/keel/src/kernel.rs"]
mod kernel;
#[path = "../../crates/keel/src/persistence.rs"]
mod persistence;
#[path = "../../crates/keel/src/progress.rs"]
mod progress;

use command::{error, output};

fuzz::fuzz_target!(entry::configuration);
