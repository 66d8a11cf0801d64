//! The parts of measuring on several boards that need no MPI: boards, the start of ranks, the plan, and the output of
//! the measuring program. Pure, except for power sensors: it starts no process and reads no file.
//!
//! **Files:** `hosts.rs` lists of boards, `launch.rs` the command line of each MPI's launcher, `plan.rs` what one start
//! measures, `event.rs` lines from the measuring program, `collected.rs` combines several starts into one row,
//! `pattern.rs` the content of messages, for detecting wrong ones, `watts.rs` power during each benchmark.

mod collected;
mod event;
mod hosts;
mod launch;
pub mod pattern;
mod plan;
mod watts;

pub use collected::{Collected, Settings};
pub use event::{Event, LINE_PREFIX, RankFacts, event_line, parse_event};
pub use hosts::{HostEntry, parse_hosts, ranks_of};
pub use launch::{Address, Launch, Library, is_interface_name};
pub use plan::{BYTES_MAX, CASES_MAX, Case, PLAN_BYTES_MAX, Plan, SIZES, Steps};
pub use watts::{ALL_BOARDS, PowerPlan, Watts, merge_power};
