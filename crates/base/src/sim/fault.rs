//! What may go wrong on a simulated device, how often, and how long things take.

/// Random faults, each with its probability per request in parts per million. All zero by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// A write is acknowledged and never happens.
    pub write_lost_ppm: u32,
    /// A write is acknowledged and lands, whole, somewhere else on the device; its own place keeps the old
    /// content.
    pub write_misdirected_ppm: u32,
    /// A write is acknowledged and stored with one bit flipped.
    pub write_rot_ppm: u32,
    /// A write fails with an input/output error, having stored nothing, everything or some of its sectors.
    pub write_error_ppm: u32,
    /// A read finds one bit of what it reads decayed; the bit stays flipped on the medium.
    pub read_rot_ppm: u32,
    /// A read fails with an input/output error; the next one may succeed.
    pub read_error_ppm: u32,
    /// A flush fails with an input/output error. Each unflushed write has then reached the medium wholly, in part or
    /// not at all, as after a power cut. The device goes on with that content.
    pub flush_error_ppm: u32,
    /// A read, write or flush takes `stall_ns` longer (see [`LatencyModel`] for the clock).
    pub stall_ppm: u32,
    /// Length of one stall in nanoseconds.
    pub stall_ns: u64,
}

/// Faults that a simulated device has committed so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounters {
    /// Writes acknowledged and dropped.
    pub writes_lost: u64,
    /// Writes acknowledged and put elsewhere.
    pub writes_misdirected: u64,
    /// Writes acknowledged and stored with a flipped bit.
    pub writes_rotten: u64,
    /// Writes failed, among them those that a full device refused.
    pub write_errors: u64,
    /// Reads that found a decayed bit.
    pub reads_rotten: u64,
    /// Reads failed.
    pub read_errors: u64,
    /// Flushes failed.
    pub flush_errors: u64,
    /// Flushes acknowledged and not done, because the test set that.
    pub flushes_ignored: u64,
    /// Stalls.
    pub stalls: u64,
}

/// How long requests take on the simulated clock, in nanoseconds. All zero by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyModel {
    /// Every read request.
    pub read_ns: u64,
    /// Every block read, beside `read_ns`.
    pub read_block_ns: u64,
    /// Every write request.
    pub write_ns: u64,
    /// Every block written, beside `write_ns`.
    pub write_block_ns: u64,
    /// Every flush.
    pub flush_ns: u64,
}
