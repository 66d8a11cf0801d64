//! Time as an interface. Monotonic time orders and measures; wall-clock time is a label that may be wrong.

/// A source of time.
pub trait Clock: Send + Sync {
    /// Nanoseconds since an arbitrary start, never decreasing within one boot.
    fn monotonic_ns(&self) -> u64;
    /// Milliseconds since 1970-01-01 UTC, as this machine believes.
    fn wall_ms(&self) -> i64;
    /// Whether the wall clock has been set from a trusted source since boot.
    fn wall_is_trusted(&self) -> bool;
    /// Identity of this boot: monotonic times of different boots do not compare.
    fn boot_id(&self) -> [u8; 16];
}
