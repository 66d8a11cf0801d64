//! Settings of the connection with the kernel. The kernel may refuse each of them.

use fuser::{InitFlags, KernelConfig};

/// Sets the maximum size of a write request, in bytes, or the nearest possible one.
pub fn set_max_write(config: &mut KernelConfig, bytes: u32) {
    if let Err(nearest) = config.set_max_write(bytes) {
        config.set_max_write(nearest).ok();
    }
}

/// Sets the maximum read-ahead, in bytes, or the nearest possible one.
pub fn set_max_readahead(config: &mut KernelConfig, bytes: u32) {
    if let Err(nearest) = config.set_max_readahead(bytes) {
        config.set_max_readahead(nearest).ok();
    }
}

/// Requests those of the capabilities that the kernel has.
pub fn add_capabilities(config: &mut KernelConfig, wanted: &[InitFlags]) {
    for capability in wanted {
        config.add_capabilities(*capability).ok();
    }
}
