//! The few bytes on the medium that tests read or damage, by their places in SPEC.md.

use base::sim::SimDevice;

fn field(device: &SimDevice, block: u64, offset: usize, bytes: usize) -> u64 {
    let block = device.peek(block);
    let mut raw = [0; 8];
    raw[..bytes].copy_from_slice(&block[offset..offset + bytes]);
    u64::from_le_bytes(raw)
}

/// Returns the number of the record that begins at `block`, if there is one.
fn record_number(device: &SimDevice, block: u64) -> Option<u64> {
    let is_root = device.peek(block).starts_with(b"KEELROOT");
    is_root.then(|| field(device, block, 16, 8))
}

/// Returns the first block of the record with the highest number (SPEC.md, "Record").
pub fn newest_record(device: &SimDevice) -> u64 {
    let places = [4, field(device, 0, 76, 4)];
    let newest = places
        .into_iter()
        .max_by_key(|place| record_number(device, *place))
        .unwrap();
    // The next record may be in the cluster that it announces.
    let announced = field(device, newest, 28, 4);
    let next = record_number(device, newest).map(|number| number + 1);
    if announced != 0 && record_number(device, announced) == next {
        announced
    } else {
        newest
    }
}

/// Returns the number of spilled lists and of pieces in the newest root (SPEC.md, "Root").
pub fn free_list(device: &SimDevice) -> (u64, u64) {
    let newest = newest_record(device);
    (field(device, newest, 72, 4), field(device, newest, 76, 2))
}

/// Returns the checksum of the spilled list in a cluster, if there is one (SPEC.md, "Spilled list").
pub fn list_in(device: &SimDevice, cluster: u64) -> Option<u64> {
    let place = cluster + 2;
    let is_list = device.peek(place).starts_with(b"EKTR") && field(device, place, 8, 4) == cluster;
    is_list.then(|| field(device, place, 4, 4))
}

/// The kind of a record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordKind {
    /// Whether it spills a list.
    pub spilled: bool,
    /// For each of its images, whether it is a block of the name table; otherwise it is a data block.
    pub tables: Vec<bool>,
}

impl RecordKind {
    /// Returns the kind of the record that begins at `first`.
    pub fn of(device: &SimDevice, first: u64) -> Self {
        let data_first = field(device, 0, 72, 4);
        let images = field(device, first, 25, 1);
        Self {
            spilled: field(device, first, 27, 1) == 1,
            tables: (0..images)
                .map(|image| field(device, first, 80 + 8 * image as usize, 4) < data_first)
                .collect(),
        }
    }

    /// Returns the number of blocks of the record.
    pub fn blocks(&self) -> u64 {
        if self.spilled {
            4
        } else {
            self.tables.len() as u64 + 2
        }
    }
}

/// Returns the two places for records, and the clusters that the records in them announce.
pub fn record_areas(device: &SimDevice) -> Vec<std::ops::Range<u64>> {
    let places = [4, field(device, 0, 76, 4)];
    let mut clusters: Vec<u64> = places
        .iter()
        .filter(|place| record_number(device, **place).is_some())
        .map(|place| field(device, *place, 28, 4))
        .filter(|cluster| *cluster != 0)
        .collect();
    clusters.sort_unstable();
    clusters.dedup();
    let places = places.into_iter().map(|place| place..place + 5);
    places
        .chain(clusters.into_iter().map(|cluster| cluster..cluster + 4))
        .collect()
}
