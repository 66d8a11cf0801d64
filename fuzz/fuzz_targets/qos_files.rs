#![cfg_attr(fuzzing, no_main)]
// The program's modules are included directly; only these files' own parts are used here.
#![allow(dead_code, unused_imports)]

#[path = "../../crates/keel/src/config/mod.rs"]
mod config;
#[path = "../src/qos_files.rs"]
mod entry;
#[path = "../../crates/keel/src/kernel.rs"]
mod kernel;
#[path = "../../crates/keel/src/persistence.rs"]
mod persistence;
#[path = "../../crates/keel/src/progress.rs"]
mod progress;
#[path = "../../crates/keel/src/qos/mod.rs"]
mod qos;
#[path = "../../crates/keel/src/replacement.rs"]
mod replacement;

use command::{error, output};

fuzz::fuzz_target!(entry::qos_files);
