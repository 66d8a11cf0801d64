//! The limits of a mount.

/// The maximum number of files that a mount can hold open at one time.
pub const OPEN_FILES_MAX: usize = 1024;

/// Maximum number of bytes that the kernel reads or writes in one request.
pub const REQUEST_BYTES_MAX: u32 = 128 * 1024;
