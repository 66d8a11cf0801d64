//! Quality of service as files and words: what `keel qos identify` and `design` write and a node reads (`QOS.md`
//! specifies both), and the names of modes.

mod file;
mod state;

pub(crate) use file::{Gains, Identified, Limits, write};
pub(crate) use state::{
    IdentificationState, PeriodState, QosState, SHED_KEYS_MAX, ShedKey, TaskState, held_name,
};

use crate::config::MODES;
use db::qos::controller::Mode;

/// The name of a mode.
pub(crate) fn mode_name(mode: Mode) -> &'static str {
    let found = MODES.iter().find(|(_, other)| *other == mode);
    found.map_or("open", |(name, _)| name)
}
