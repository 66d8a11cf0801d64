//! The tests of `flash` from outside, as one program: each file beside this one is a module of it.

mod bounds;
mod common;
mod crafted;
mod crafted_counters;
mod crafted_names;
mod crafted_sectors;
mod crafted_structures;
mod crafted_worn;
mod crash;
mod cycles;
mod damage;
mod forge;
mod fuzz_corpus;
mod goals;
mod golden;
mod grow;
mod model;
mod names;
mod recovery;
mod recovery_rot;
mod recovery_unreadable;
mod repair;
mod repair_attribution;
mod repair_full_table;
mod repair_records;
mod soak;
