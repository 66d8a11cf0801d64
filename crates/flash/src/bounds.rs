//! Placeholder until the counts are derived.

/// One row of the table of bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Block reads.
    pub reads: u64,
    /// Write requests.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
}

/// The table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {}
