//! The few bytes on the medium that tests look at or damage, by their places in SPEC.md.

use base::sim::SimDevice;

fn field(device: &SimDevice, block: u64, offset: usize, bytes: usize) -> u64 {
    let block = device.peek(block);
    let mut raw = [0; 8];
    raw[..bytes].copy_from_slice(&block[offset..offset + bytes]);
    u64::from_le_bytes(raw)
}

/// First block of the record with the highest number (SPEC.md, "Record").
pub fn newest_record(device: &SimDevice) -> u64 {
    let places = [4, field(device, 0, 76, 4)];
    places
        .into_iter()
        .max_by_key(|place| field(device, *place, 16, 8))
        .unwrap()
}

/// Number of spilled lists and of pieces in the newest root (SPEC.md, "Root").
pub fn free_list(device: &SimDevice) -> (u64, u64) {
    let newest = newest_record(device);
    (field(device, newest, 76, 4), field(device, newest, 80, 2))
}
