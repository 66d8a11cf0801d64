//! What no database exceeds under any options: sizes, and the version of its files.

/// Bytes of the longest key.
pub const KEY_BYTES_MAX: usize = 255;

/// The default of `key_bytes_mean`: keys of this length fit, however many there are. Longer ones need shorter ones
/// beside them, or a greater mean.
pub const KEY_BYTES_MEAN: u32 = 64;

/// The least `key_bytes_mean`: a shorter key takes as much.
pub const KEY_BYTES_MEAN_MIN: u32 = 16;

/// The greatest `key_bytes_mean`: keys of any length fit, however many there are.
pub const KEY_BYTES_MEAN_MAX: u32 = 256;

/// The greatest `value_bytes_max` that a table can be given; one record must fit the recovery buffer.
pub const VALUE_BYTES_LIMIT: usize = 8192;

/// The greatest `objects_max` that a table can be given.
pub const OBJECTS_LIMIT: u32 = 1 << 24;

/// Version of log and checkpoint that this code writes, and the latest one whose files it takes.
pub const FORMAT_VERSION: u32 = 3;
