//! What measuring on several boards needs apart from MPI itself: which boards, how ranks are started on them, what is
//! measured, and what the measuring program says while it does. Pure, apart from sensors of power: it starts nothing
//! and reads no file.
//!
//! **Files:** `hosts.rs` lists of boards, `launch.rs` the command line of each MPI's launcher, `plan.rs` what is
//! measured in one start, `event.rs` lines from the measuring program, `collected.rs` several starts become one row,
//! `pattern.rs` what messages hold, so that wrong ones are noticed, `watts.rs` power during each benchmark.

mod collected;
mod event;
mod hosts;
mod launch;
pub mod pattern;
mod plan;
mod watts;

pub use collected::{Collected, Settings, Wanted};
pub use event::{Event, LINE_PREFIX, RankFacts, event_line, parse_event};
pub use hosts::{HostEntry, parse_hosts, ranks_of};
pub use launch::{Address, Launch, Library};
pub use plan::{BYTES_MAX, CASES_MAX, Case, PLAN_BYTES_MAX, Plan, SIZES, Steps};
pub use watts::{ALL_BOARDS, PowerPlan, Watts, merge_power};
