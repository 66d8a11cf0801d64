//! What waits for the log: readings and declarations in the bytes of the put queue.

use crate::time::Time;

const HEADER_BYTES: usize = 24;

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    Reading,
    /// The object's key or validity changed: its dictionary record must be written.
    Declared,
}

/// One waiting entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    pub(crate) kind: EntryKind,
    pub(crate) id: u32,
    /// One that ns can count.
    pub(crate) time: Time,
    pub(crate) arrival_ns: u64,
    pub(crate) wall_trusted: bool,
    /// Whether the node's clock gave the time.
    pub(crate) node_time: bool,
    /// Whether it was kept for an unknown time before it arrived.
    pub(crate) retained: bool,
    pub(crate) value: &'a [u8],
}

impl Entry<'_> {
    /// Bytes that the entry takes in the queue.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        HEADER_BYTES + self.value.len().next_multiple_of(8)
    }
}

/// Appends an entry to a buffer that has room for it.
#[inline]
pub(crate) fn encode(buffer: &mut Vec<u8>, entry: &Entry<'_>) {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&entry.id.to_le_bytes());
    header[4..6].copy_from_slice(&(entry.value.len() as u16).to_le_bytes());
    header[6] = u8::from(entry.kind == EntryKind::Declared);
    header[7] = u8::from(entry.wall_trusted)
        | u8::from(entry.node_time) << 1
        | u8::from(entry.retained) << 2;
    header[8..16].copy_from_slice(&entry.time.ns().to_le_bytes());
    header[16..].copy_from_slice(&entry.arrival_ns.to_le_bytes());
    buffer.extend_from_slice(&header);
    buffer.extend_from_slice(entry.value);
    buffer.resize(buffer.len().next_multiple_of(8), 0);
}

/// Walks over the entries of a swapped-out buffer.
#[derive(Clone, Debug)]
pub(crate) struct Entries<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Entries<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        let (header, rest) = self.0.split_first_chunk::<HEADER_BYTES>()?;
        let [i0, i1, i2, i3, l0, l1, kind, flags, times @ ..] = *header;
        let value_bytes = usize::from(u16::from_le_bytes([l0, l1]));
        let (time, arrival) = times.split_first_chunk::<8>()?;
        let value = rest.get(..value_bytes)?;
        self.0 = rest.get(value_bytes.next_multiple_of(8)..)?;
        Some(Entry {
            kind: if kind == 0 {
                EntryKind::Reading
            } else {
                EntryKind::Declared
            },
            id: u32::from_le_bytes([i0, i1, i2, i3]),
            time: Time::from_ns(i64::from_le_bytes(*time)),
            arrival_ns: u64::from_le_bytes(*arrival.first_chunk::<8>()?),
            wall_trusted: flags & 1 != 0,
            node_time: flags & 2 != 0,
            retained: flags & 4 != 0,
            value,
        })
    }
}
