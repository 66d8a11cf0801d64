//! The few bytes on the medium that tests look at or damage, by their places in SPEC.md.

use base::sim::SimDevice;

fn field(device: &SimDevice, block: u64, offset: usize, bytes: usize) -> u64 {
    let block = device.peek(block);
    let mut raw = [0; 8];
    raw[..bytes].copy_from_slice(&block[offset..offset + bytes]);
    u64::from_le_bytes(raw)
}

/// Number of the record that begins at `block`, if one does.
fn record_number(device: &SimDevice, block: u64) -> Option<u64> {
    let is_root = device.peek(block).starts_with(b"KEELROOT");
    is_root.then(|| field(device, block, 16, 8))
}

/// First block of the record with the highest number (SPEC.md, "Record").
pub fn newest_record(device: &SimDevice) -> u64 {
    let places = [4, field(device, 0, 76, 4)];
    let newest = places
        .into_iter()
        .max_by_key(|place| record_number(device, *place))
        .unwrap();
    // The record after it may stand in the cluster that it announces.
    let announced = field(device, newest, 28, 4);
    let next = record_number(device, newest).map(|number| number + 1);
    if announced != 0 && record_number(device, announced) == next {
        announced
    } else {
        newest
    }
}

/// Number of spilled lists and of pieces in the newest root (SPEC.md, "Root").
pub fn free_list(device: &SimDevice) -> (u64, u64) {
    let newest = newest_record(device);
    (field(device, newest, 72, 4), field(device, newest, 76, 2))
}
