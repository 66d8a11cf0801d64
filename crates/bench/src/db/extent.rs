//! How much a run of the data path's bench measures.

use super::hog;
use crate::mem::memory;

/// How much a run measures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) rounds: u32,
    /// Divisor of the number of objects of each case.
    pub(crate) objects_divisor: u32,
    pub(crate) gets: u32,
    pub(crate) puts: u32,
    pub(crate) durable_puts: u32,
    pub(crate) writers_ms: u64,
    pub(crate) instances: u32,
    pub(crate) instance_gets: u32,
    pub(crate) memory_bytes_max: u64,
    pub(crate) hog_bytes: usize,
}

impl Extent {
    /// Returns the extent of a quick run, or of a whole one with `rounds` rounds.
    pub(crate) fn of(is_quick: bool, rounds: u32) -> Self {
        // No case fits into unknown memory.
        let available_bytes = memory::available_bytes().unwrap_or(0);
        if is_quick {
            Self {
                rounds: 1,
                objects_divisor: 100,
                gets: 2_000,
                puts: 2_000,
                durable_puts: 20,
                writers_ms: 100,
                instances: 5,
                instance_gets: 500,
                memory_bytes_max: available_bytes / 2,
                hog_bytes: 1 << 20,
            }
        } else {
            Self {
                rounds,
                objects_divisor: 1,
                gets: 100_000,
                puts: 100_000,
                durable_puts: 300,
                writers_ms: 1_000,
                instances: 40,
                instance_gets: 4_000,
                memory_bytes_max: available_bytes / 4 * 3,
                hog_bytes: hog::BYTES,
            }
        }
    }
}
