//! How changes of a region become durable: as an option, and as people read it.

use clap::ValueEnum;
use mem::{Flush, Region};

/// How changes of a region become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MemFlush {
    /// No flush: files survive programs, but not a restart of the machine
    None,
    /// Each call writes back the cache lines that it changed, and waits for the writes
    CacheLines,
}

impl MemFlush {
    /// Returns the setting as a region takes it.
    pub(super) fn setting(self) -> Flush {
        match self {
            Self::None => Flush::None,
            Self::CacheLines => Flush::CacheLines,
        }
    }
}

/// Returns how changes of a region are made durable, and whether that is possible.
pub(super) fn flush_text(region: &Region) -> Option<String> {
    let instruction = mem::instruction_name();
    match (region.flush(), region.is_persistent()) {
        (Flush::None, _) => None,
        (Flush::CacheLines, true) => Some(format!(
            "cache-lines ({instruction}): what a call has done outlives a loss of power"
        )),
        (Flush::CacheLines, false) => Some(format!(
            "cache-lines ({instruction}), but this is not persistent memory: it outlives a loss of power no better"
        )),
    }
}
