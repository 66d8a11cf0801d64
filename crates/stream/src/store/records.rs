//! The records that were read last, up to a limit of bytes.

use super::index::{Record, record_bytes};
use crate::block::ContentId;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Memory of all that are kept. One record that is longer is kept alone.
const BYTES_MAX: usize = 16 << 20;

/// What an entry takes beside its hashes and places.
const ENTRY_BYTES: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct Records {
    kept: HashMap<ContentId, (u64, Arc<Record>)>,
    /// By when they were used last.
    order: BTreeMap<u64, ContentId>,
    now: u64,
    bytes: usize,
}

impl Records {
    pub(crate) fn get(&mut self, content: &ContentId) -> Option<Arc<Record>> {
        let (used, record) = self.kept.get_mut(content)?;
        self.order.remove(used);
        self.now += 1;
        *used = self.now;
        self.order.insert(self.now, *content);
        Some(Arc::clone(record))
    }

    pub(crate) fn put(&mut self, content: ContentId, record: &Arc<Record>) {
        if self.get(&content).is_some() {
            return;
        }
        self.now += 1;
        self.bytes += bytes_of(record);
        self.kept.insert(content, (self.now, Arc::clone(record)));
        self.order.insert(self.now, content);
        while self.bytes > BYTES_MAX && self.kept.len() > 1 {
            let Some((_, oldest)) = self.order.pop_first() else {
                break;
            };
            if let Some((_, record)) = self.kept.remove(&oldest) {
                self.bytes -= bytes_of(&record);
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

fn bytes_of(record: &Record) -> usize {
    record_bytes(record.list.0.len() as u32) + ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{BlockHash, HashList};

    #[test]
    fn the_records_used_last_are_kept() {
        let mut records = Records::default();
        let blocks = BYTES_MAX / 32 / 4;
        let record = Arc::new(Record {
            list: Arc::new(HashList(vec![BlockHash([0; 32]); blocks].into())),
            segments: Box::default(),
        });
        let content = |number| ContentId([number; 32]);
        for number in 0..3 {
            records.put(content(number), &record);
        }
        assert!(records.get(&content(0)).is_some());
        records.put(content(3), &record);
        let kept = [0, 1, 2, 3].map(|number| records.get(&content(number)).is_some());
        assert_eq!(kept, [true, false, true, true]);
        assert!(records.bytes <= BYTES_MAX);
    }
}
