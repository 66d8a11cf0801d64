//! The bytes of one record, in the log and in a checkpoint.
//!
//! **Holds:** the framing `kind, length, body, checksum`, the bodies, the short times of readings.
//!
//! **Invariants:** decoding never panics and never trusts a length beyond its input; a record is accepted only when its
//! CRC32C fits. The checksum of a reading covers the *whole* sensor time, arrival time and boot id. The record carries
//! only their low bits: the rest comes from an earlier anchor, and a wrong anchor shows as a wrong checksum, never as
//! another time. Every checksum is sealed with the store's secret, so bytes that a client sent inside a value are no
//! record, wherever a reader begins.

use crc32c::crc32c_append;

use crate::options::{KEY_BYTES_MAX, VALUE_BYTES_LIMIT};

/// Version of log and checkpoint that this code writes.
pub const FORMAT_VERSION: u32 = 2;
/// Bytes of the longest body.
pub const BODY_BYTES_MAX: usize = VALUE_BYTES_LIMIT + 128;
/// Bytes of the longest record.
pub const RECORD_BYTES_MAX: usize = 1 + 2 + BODY_BYTES_MAX + CHECK_BYTES;
/// Bytes of the shortest reading: kind, length, id, times and checksum around an empty value.
pub const READING_BYTES_MIN: usize = 1 + 1 + 1 + 3 + 4 + CHECK_BYTES;
/// Bytes of the shortest record.
pub const RECORD_BYTES_MIN: usize = 1 + 1 + CHECK_BYTES;
/// Bytes of one anchor record.
pub const ANCHOR_BYTES: usize = 2 + 49 + CHECK_BYTES;
const CHECK_BYTES: usize = 4;

const READING: u8 = 0xa0; // 0xa0..=0xaf
const READING_TRUSTED: u8 = 1;
const READING_WIDE: u8 = 2;
const READING_NODE_TIME: u8 = 4;
const READING_RETAINED: u8 = 8;
const SEGMENT: u8 = 0xb1;
const ANCHOR: u8 = 0xb2;
const DICTIONARY: u8 = 0xb4;
const CHECKPOINT: u8 = 0xc1;
const OBJECT: u8 = 0xc2;
const TRAILER: u8 = 0xc4;

const SEGMENT_MAGIC: &[u8; 8] = b"EVKLOG\r\n";
const CHECKPOINT_MAGIC: &[u8; 8] = b"EVKCKPT\n";

/// Largest distance of a narrow sensor time from the anchors it may be read with: half the 24-bit window, in ms.
pub const SENSOR_WINDOW_MS: i64 = 1 << 23;
/// Largest distance of an arrival from the anchors it may be read with: half the 32-bit window, in µs.
pub const ARRIVAL_WINDOW_US: i64 = 1 << 31;

/// The content of an anchor: the whole times that the readings after it abbreviate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// Boot in which the following readings arrived.
    pub boot_id: [u8; 16],
    /// Arrival of the next reading on that boot's monotonic clock, µs.
    pub arrival_us: u64,
    /// Sensor time of the next reading, ms.
    pub sensor_ms: i64,
    /// Wall clock at `arrival_us`, ms since 1970: together they date that boot's arrivals. In version 0 this is the
    /// wall clock when the anchor was written, up to a commit interval later.
    pub wall_ms: i64,
    /// Whether that wall clock was trusted.
    pub wall_trusted: bool,
    /// Number of the next reading, counted over the whole log.
    pub lsn: u64,
}

/// One reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading<'a> {
    /// Object number.
    pub id: u32,
    /// Sensor time, ms.
    pub timestamp_ms: i64,
    /// Arrival on the monotonic clock, µs.
    pub arrival_us: u64,
    /// Whether the wall clock was trusted at arrival.
    pub wall_trusted: bool,
    /// Whether the node's wall clock gave the time, not the sensor.
    pub node_time: bool,
    /// Whether it was kept for an unknown time before it arrived.
    pub retained: bool,
    /// The value.
    pub value: &'a [u8],
}

/// An object's number, key and validity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dictionary<'a> {
    /// Object number.
    pub id: u32,
    /// Key.
    pub key: &'a str,
    /// Absolute validity interval, ms.
    pub avi_ms: u32,
    /// Whether readings update it.
    pub temporal: bool,
}

/// Head of a checkpoint: where the log continues it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointHead {
    /// Segment in which the log continues.
    pub segment: u32,
    /// Byte in that segment.
    pub offset: u64,
    /// Number of the reading that follows.
    pub lsn: u64,
    /// Number of object ids given when the checkpoint began.
    pub objects: u32,
}

/// One object of a checkpoint, with its latest value if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object<'a> {
    /// Number, key and validity; the key is empty for a number whose key was lost.
    pub entry: Dictionary<'a>,
    /// Latest value: sensor time, arrival in ns, boot tag, trusted, bytes.
    pub latest: Option<crate::table::SlotValue<'a>>,
}

/// A decoded record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// First record of a segment.
    Segment {
        /// Format version.
        version: u32,
        /// The segment's number.
        number: u32,
    },
    /// Whole times.
    Anchor(Anchor),
    /// An object's key.
    Dictionary(Dictionary<'a>),
    /// A reading.
    Reading(Reading<'a>),
    /// First record of a checkpoint.
    Checkpoint {
        /// Format version.
        version: u32,
        /// Where the log continues.
        head: CheckpointHead,
    },
    /// An object of a checkpoint.
    Object(Object<'a>),
    /// Last record of a checkpoint: it is complete.
    Trailer {
        /// Object records before it.
        objects: u32,
    },
}

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRecord {
    /// They may be the beginning of one; more are needed.
    Short,
    /// They are no record.
    Bad,
}

/// Makes a checksum this store's own: a sender who knows every rule but not the secret cannot make one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// Initial value of the checksum.
    seed: u32,
    /// XORed into the final checksum. Without it, a record with its checksum would always leave the same known state,
    /// from which a checksum for the bytes behind it could be made.
    mask: u32,
}

impl Seal {
    /// The seal of a store with this [`secret`](crate::SegmentStore::secret).
    #[must_use]
    pub fn of(secret: u64) -> Self {
        Self {
            seed: secret as u32,
            mask: (secret >> 32) as u32,
        }
    }

    /// The sealed checksum of these bytes.
    #[must_use]
    pub fn check(self, bytes: &[u8]) -> u32 {
        crc32c_append(self.seed, bytes) ^ self.mask
    }
}

/// The reference for abbreviated times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    seal: Seal,
    boot_check: u32,
    arrival_us: u64,
    sensor_ms: i64,
    /// Boot of the anchor.
    pub boot_id: [u8; 16],
}

impl Context {
    /// The context that an anchor sets.
    #[must_use]
    pub fn of(seal: Seal, anchor: &Anchor) -> Self {
        Self {
            seal,
            boot_check: crc32c_append(seal.seed, &anchor.boot_id),
            arrival_us: anchor.arrival_us,
            sensor_ms: anchor.sensor_ms,
            boot_id: anchor.boot_id,
        }
    }

    /// Returns the microseconds from the anchor's arrival to this one. Within [`ARRIVAL_WINDOW_US`] it is read back
    /// correctly.
    #[must_use]
    pub fn distance_us(&self, arrival_us: u64) -> i64 {
        arrival_us.wrapping_sub(self.arrival_us) as i64
    }

    /// Whether the short form of this sensor time is read back correctly.
    #[must_use]
    pub fn is_narrow(&self, timestamp_ms: i64) -> bool {
        timestamp_ms
            .checked_sub(self.sensor_ms)
            .is_some_and(|distance| (-SENSOR_WINDOW_MS..SENSOR_WINDOW_MS).contains(&distance))
    }

    fn widen_arrival(&self, low: u32) -> u64 {
        let distance = low.wrapping_sub(self.arrival_us as u32) as i32;
        self.arrival_us.wrapping_add_signed(i64::from(distance))
    }

    fn widen_sensor(&self, low: u32) -> i64 {
        let distance = (low.wrapping_sub(self.sensor_ms as u32) << 8) as i32 >> 8;
        self.sensor_ms.wrapping_add(i64::from(distance))
    }

    fn seal_at(&self, timestamp_ms: i64, arrival_us: u64) -> Seal {
        let mut times = [0; 16];
        times[..8].copy_from_slice(&timestamp_ms.to_le_bytes());
        times[8..].copy_from_slice(&arrival_us.to_le_bytes());
        Seal {
            seed: crc32c_append(self.boot_check, &times),
            mask: self.seal.mask,
        }
    }
}

/// Appends one framed record; `body` writes the body. The caller keeps bodies within [`BODY_BYTES_MAX`].
fn frame(
    out: &mut Vec<u8>,
    kind: u8,
    seal: Seal,
    body_bytes: usize,
    body: impl FnOnce(&mut Vec<u8>),
) {
    debug_assert!(body_bytes <= BODY_BYTES_MAX);
    let start = out.len();
    out.push(kind);
    put_varint(out, body_bytes as u64);
    let body_start = out.len();
    body(out);
    debug_assert_eq!(out.len() - body_start, body_bytes);
    let check = crc32c_append(seal.seed, &out[start..]) ^ seal.mask;
    out.extend_from_slice(&check.to_le_bytes());
}

/// Appends a segment's head.
pub fn put_segment(out: &mut Vec<u8>, seal: Seal, number: u32) {
    frame(out, SEGMENT, seal, 16, |out| {
        out.extend_from_slice(SEGMENT_MAGIC);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&number.to_le_bytes());
    });
}

/// Appends an anchor.
pub fn put_anchor(out: &mut Vec<u8>, seal: Seal, anchor: &Anchor) {
    frame(out, ANCHOR, seal, 49, |out| {
        out.extend_from_slice(&anchor.boot_id);
        out.extend_from_slice(&anchor.arrival_us.to_le_bytes());
        out.extend_from_slice(&anchor.sensor_ms.to_le_bytes());
        out.extend_from_slice(&anchor.wall_ms.to_le_bytes());
        out.extend_from_slice(&anchor.lsn.to_le_bytes());
        out.push(u8::from(anchor.wall_trusted));
    });
}

/// Appends a dictionary record.
pub fn put_dictionary(out: &mut Vec<u8>, seal: Seal, entry: &Dictionary<'_>) {
    let bytes = varint_bytes(u64::from(entry.id))
        + 1
        + varint_bytes(u64::from(entry.avi_ms))
        + entry.key.len();
    frame(out, DICTIONARY, seal, bytes, |out| {
        put_varint(out, u64::from(entry.id));
        out.push(u8::from(entry.temporal));
        put_varint(out, u64::from(entry.avi_ms));
        out.extend_from_slice(entry.key.as_bytes());
    });
}

/// Appends a reading; short if `narrow`, which the caller has checked against every anchor that may apply.
pub fn put_reading(out: &mut Vec<u8>, reading: &Reading<'_>, context: &Context, narrow: bool) {
    let flag = |is_set, bit| if is_set { bit } else { 0 };
    let kind = READING
        | flag(reading.wall_trusted, READING_TRUSTED)
        | flag(!narrow, READING_WIDE)
        | flag(reading.node_time, READING_NODE_TIME)
        | flag(reading.retained, READING_RETAINED);
    let time_bytes = if narrow { 3 } else { 8 };
    let bytes = varint_bytes(u64::from(reading.id)) + time_bytes + 4 + reading.value.len();
    let seal = context.seal_at(reading.timestamp_ms, reading.arrival_us);
    frame(out, kind, seal, bytes, |out| {
        put_varint(out, u64::from(reading.id));
        out.extend_from_slice(&reading.timestamp_ms.to_le_bytes()[..time_bytes]);
        out.extend_from_slice(&(reading.arrival_us as u32).to_le_bytes());
        out.extend_from_slice(reading.value);
    });
}

/// Appends a checkpoint's head.
pub fn put_checkpoint(out: &mut Vec<u8>, seal: Seal, head: &CheckpointHead) {
    frame(out, CHECKPOINT, seal, 36, |out| {
        out.extend_from_slice(CHECKPOINT_MAGIC);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&head.segment.to_le_bytes());
        out.extend_from_slice(&head.offset.to_le_bytes());
        out.extend_from_slice(&head.lsn.to_le_bytes());
        out.extend_from_slice(&head.objects.to_le_bytes());
    });
}

/// Appends one object of a checkpoint.
pub fn put_object(out: &mut Vec<u8>, seal: Seal, object: &Object<'_>) {
    let entry = &object.entry;
    let fixed = varint_bytes(u64::from(entry.id))
        + 2
        + varint_bytes(u64::from(entry.avi_ms))
        + entry.key.len();
    let bytes = fixed + object.latest.map_or(0, |latest| 24 + latest.value.len());
    let trusted = object.latest.is_some_and(|latest| latest.wall_trusted);
    let node_time = object.latest.is_some_and(|latest| latest.node_time);
    let retained = object.latest.is_some_and(|latest| latest.retained);
    let flags = u8::from(entry.temporal)
        | u8::from(object.latest.is_some()) << 1
        | u8::from(trusted) << 2
        | u8::from(node_time) << 3
        | u8::from(retained) << 4;
    frame(out, OBJECT, seal, bytes, |out| {
        put_varint(out, u64::from(entry.id));
        out.push(flags);
        put_varint(out, u64::from(entry.avi_ms));
        out.push(entry.key.len() as u8);
        out.extend_from_slice(entry.key.as_bytes());
        if let Some(latest) = &object.latest {
            out.extend_from_slice(&latest.timestamp_ms.to_le_bytes());
            out.extend_from_slice(&latest.arrival_ns.to_le_bytes());
            out.extend_from_slice(&latest.boot_tag.to_le_bytes());
            out.extend_from_slice(latest.value);
        }
    });
}

/// Appends a checkpoint's last record.
pub fn put_trailer(out: &mut Vec<u8>, seal: Seal, objects: u32) {
    frame(out, TRAILER, seal, 4, |out| {
        out.extend_from_slice(&objects.to_le_bytes())
    });
}

/// Returns the bytes of the record that begins here, if its head is complete and its length is possible. Unchecked.
#[must_use]
pub fn claimed_bytes(input: &[u8]) -> Option<usize> {
    let (body_bytes, varint) = take_varint(input.get(1..)?)?;
    let body_bytes = usize::try_from(body_bytes)
        .ok()
        .filter(|bytes| *bytes <= BODY_BYTES_MAX)?;
    Some(1 + varint + body_bytes + CHECK_BYTES)
}

/// Decodes the record that begins at the first byte. Returns it with its length in bytes.
///
/// # Errors
/// [`NoRecord`].
pub fn decode<'a>(
    input: &'a [u8],
    seal: Seal,
    context: Option<&Context>,
) -> Result<(Record<'a>, usize), NoRecord> {
    let kind = *input.first().ok_or(NoRecord::Short)?;
    if !is_kind(kind) {
        return Err(NoRecord::Bad);
    }
    let Some(total) = claimed_bytes(input) else {
        return Err(if input.len() < 3 {
            NoRecord::Short
        } else {
            NoRecord::Bad
        });
    };
    if input.len() < total {
        return Err(NoRecord::Short);
    }
    let body_start = total - CHECK_BYTES - (claimed_body(input).ok_or(NoRecord::Bad)?);
    let (framed, check) = input[..total].split_at(total - CHECK_BYTES);
    let check = u32::from_le_bytes(check.try_into().map_err(|_| NoRecord::Bad)?);
    let mut body = Fields(&framed[body_start..]);
    let flags = READING_TRUSTED | READING_WIDE | READING_NODE_TIME | READING_RETAINED;
    if kind & !flags == READING {
        let context = context.ok_or(NoRecord::Bad)?;
        let reading = body.reading(kind, context).ok_or(NoRecord::Bad)?;
        let seal = context.seal_at(reading.timestamp_ms, reading.arrival_us);
        if crc32c_append(seal.seed, framed) ^ seal.mask != check {
            return Err(NoRecord::Bad);
        }
        return Ok((Record::Reading(reading), total));
    }
    if crc32c_append(seal.seed, framed) ^ seal.mask != check {
        return Err(NoRecord::Bad);
    }
    let record = body.other(kind).ok_or(NoRecord::Bad)?;
    Ok((record, total))
}

fn is_kind(kind: u8) -> bool {
    matches!(
        kind,
        READING..=0xaf | SEGMENT | ANCHOR | DICTIONARY | CHECKPOINT | OBJECT | TRAILER
    )
}

fn claimed_body(input: &[u8]) -> Option<usize> {
    take_varint(input.get(1..)?).map(|(bytes, _)| bytes as usize)
}

/// A body being decoded; every method returns `None` at its end.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }

    fn varint_u32(&mut self) -> Option<u32> {
        let (value, bytes) = take_varint(self.0)?;
        self.bytes(bytes)?;
        u32::try_from(value).ok()
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    fn reading(&mut self, kind: u8, context: &Context) -> Option<Reading<'a>> {
        let id = self.varint_u32()?;
        let timestamp_ms = if kind & READING_WIDE != 0 {
            self.i64()?
        } else {
            let [a, b, c] = self.array()?;
            context.widen_sensor(u32::from_le_bytes([a, b, c, 0]))
        };
        let arrival_us = context.widen_arrival(self.u32()?);
        let value = self.rest();
        let wall_trusted = kind & READING_TRUSTED != 0;
        (value.len() <= VALUE_BYTES_LIMIT).then_some(Reading {
            id,
            timestamp_ms,
            arrival_us,
            wall_trusted,
            node_time: kind & READING_NODE_TIME != 0,
            retained: kind & READING_RETAINED != 0,
            value,
        })
    }

    fn other(&mut self, kind: u8) -> Option<Record<'a>> {
        let record = match kind {
            SEGMENT => {
                (&self.array::<8>()? == SEGMENT_MAGIC).then_some(())?;
                Record::Segment {
                    version: self.u32()?,
                    number: self.u32()?,
                }
            }
            ANCHOR => Record::Anchor(Anchor {
                boot_id: self.array()?,
                arrival_us: self.u64()?,
                sensor_ms: self.i64()?,
                wall_ms: self.i64()?,
                lsn: self.u64()?,
                wall_trusted: self.byte()? & 1 != 0,
            }),
            DICTIONARY => {
                let (id, temporal) = (self.varint_u32()?, self.byte()? & 1 != 0);
                let (avi_ms, key) = (self.varint_u32()?, std::str::from_utf8(self.rest()).ok()?);
                (1..=KEY_BYTES_MAX).contains(&key.len()).then_some(())?;
                Record::Dictionary(Dictionary {
                    id,
                    key,
                    avi_ms,
                    temporal,
                })
            }
            CHECKPOINT => {
                (&self.array::<8>()? == CHECKPOINT_MAGIC).then_some(())?;
                let version = self.u32()?;
                let (segment, offset, lsn) = (self.u32()?, self.u64()?, self.u64()?);
                Record::Checkpoint {
                    version,
                    head: CheckpointHead {
                        segment,
                        offset,
                        lsn,
                        objects: self.u32()?,
                    },
                }
            }
            OBJECT => Record::Object(self.object()?),
            TRAILER => Record::Trailer {
                objects: self.u32()?,
            },
            _ => return None,
        };
        self.0.is_empty().then_some(record)
    }

    fn object(&mut self) -> Option<Object<'a>> {
        let (id, flags, avi_ms) = (self.varint_u32()?, self.byte()?, self.varint_u32()?);
        let key_bytes = usize::from(self.byte()?);
        let key = std::str::from_utf8(self.bytes(key_bytes)?)
            .ok()
            .filter(|key| key.len() <= KEY_BYTES_MAX)?;
        let mut latest = None;
        if flags & 2 != 0 {
            let (timestamp_ms, arrival_ns, boot_tag) = (self.i64()?, self.u64()?, self.u64()?);
            let (wall_trusted, value) = (flags & 4 != 0, self.rest());
            (value.len() <= VALUE_BYTES_LIMIT).then_some(())?;
            latest = Some(crate::table::SlotValue {
                timestamp_ms,
                arrival_ns,
                boot_tag,
                wall_trusted,
                node_time: flags & 8 != 0,
                retained: flags & 16 != 0,
                value,
            });
        }
        Some(Object {
            entry: Dictionary {
                id,
                key,
                avi_ms,
                temporal: flags & 1 != 0,
            },
            latest,
        })
    }
}

fn varint_bytes(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Decodes a varint and its length; `None` if it is cut short, longer than five bytes (no field needs more) or longer
/// than its value needs: a record has one encoding.
fn take_varint(input: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0;
    for (at, byte) in input.iter().take(5).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return (at == 0 || *byte != 0).then_some((value, at + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SEAL: Seal = Seal {
        seed: 0x1234_5678,
        mask: 0x9abc_def0,
    };

    fn anchor(arrival_us: u64, sensor_ms: i64) -> Anchor {
        Anchor {
            boot_id: [7; 16],
            arrival_us,
            sensor_ms,
            wall_ms: 99,
            wall_trusted: true,
            lsn: 12,
        }
    }

    #[test]
    fn a_reading_of_eight_bytes_takes_twenty_three() {
        let context = Context::of(SEAL, &anchor(5_000_000, 1_700_000_000_000));
        let reading = Reading {
            id: 1000,
            timestamp_ms: 1_700_000_000_250,
            arrival_us: 5_123_456,
            wall_trusted: true,
            node_time: true,
            retained: true,
            value: &21.5f64.to_le_bytes(),
        };
        let mut out = Vec::new();
        put_reading(&mut out, &reading, &context, true);
        assert_eq!(out.len(), 23);
        assert_eq!(
            decode(&out, SEAL, Some(&context)),
            Ok((Record::Reading(reading), 23))
        );
    }

    #[test]
    fn a_wrong_anchor_is_noticed_not_believed() {
        let right = Context::of(SEAL, &anchor(5_000_000, 1_700_000_000_000));
        let reading = Reading {
            id: 1,
            timestamp_ms: 1_700_000_000_250,
            arrival_us: 6_000_000,
            wall_trusted: false,
            node_time: false,
            retained: false,
            value: b"v",
        };
        let mut out = Vec::new();
        put_reading(&mut out, &reading, &right, true);
        let near = Context::of(
            SEAL,
            &anchor(1_000_000_000, 1_700_000_000_000 - SENSOR_WINDOW_MS + 1000),
        );
        assert_eq!(
            decode(&out, SEAL, Some(&near)).unwrap().0,
            Record::Reading(reading)
        );
        let far = Context::of(
            SEAL,
            &anchor(5_000_000, 1_700_000_000_000 + 3 * SENSOR_WINDOW_MS),
        );
        assert_eq!(decode(&out, SEAL, Some(&far)), Err(NoRecord::Bad));
        let other_boot = Context::of(
            SEAL,
            &Anchor {
                boot_id: [8; 16],
                ..anchor(5_000_000, 1_700_000_000_000)
            },
        );
        assert_eq!(decode(&out, SEAL, Some(&other_boot)), Err(NoRecord::Bad));
        assert_eq!(decode(&out, SEAL, None), Err(NoRecord::Bad));
    }

    #[test]
    fn another_stores_record_is_none() {
        let mut out = Vec::new();
        put_trailer(&mut out, SEAL, 7);
        let whole = Ok((Record::Trailer { objects: 7 }, out.len()));
        assert_eq!(decode(&out, SEAL, None), whole);
        for other in [
            Seal { seed: 0, ..SEAL },
            Seal { mask: 0, ..SEAL },
            Seal::of(0),
        ] {
            assert_eq!(decode(&out, other, None), Err(NoRecord::Bad));
        }
    }

    #[test]
    fn varints_have_the_length_they_claim() {
        for value in [0, 1, 127, 128, 16383, 16384, u64::from(u32::MAX)] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(out.len(), varint_bytes(value));
            assert_eq!(take_varint(&out), Some((value, out.len())));
            assert_eq!(take_varint(&out[..out.len() - 1]), None);
        }
        assert_eq!(take_varint(&[0x80, 0]), None);
        assert_eq!(take_varint(&[0xff, 0x80, 0]), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

        #[test]
        fn readings_round_trip(
            id: u32,
            base: i64,
            arrival: u64,
            timestamp_ms: i64,
            near in -SENSOR_WINDOW_MS..SENSOR_WINDOW_MS,
            later in 0u64..ARRIVAL_WINDOW_US as u64,
            use_near: bool,
            wall_trusted: bool,
            node_time: bool,
            retained: bool,
            value in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let context = Context::of(SEAL, &anchor(arrival, base));
            let timestamp_ms = if use_near { base.saturating_add(near) } else { timestamp_ms };
            let arrival_us = arrival.wrapping_add(later);
            prop_assert!(context.distance_us(arrival_us) < ARRIVAL_WINDOW_US);
            let reading =
                Reading { id, timestamp_ms, arrival_us, wall_trusted, node_time, retained, value: &value };
            let mut out = Vec::new();
            put_reading(&mut out, &reading, &context, context.is_narrow(timestamp_ms));
            prop_assert_eq!(decode(&out, SEAL, Some(&context)), Ok((Record::Reading(reading), out.len())));
            for cut in 0..out.len() {
                prop_assert_eq!(decode(&out[..cut], SEAL, Some(&context)), Err(NoRecord::Short));
            }
        }

        #[test]
        fn objects_and_dictionaries_round_trip(
            id: u32,
            key in "[a-zäöü/]{1,30}",
            avi_ms: u32,
            temporal: bool,
            times in proptest::option::of((any::<i64>(), any::<u64>(), any::<u64>(), any::<[bool; 3]>())),
            value in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let entry = Dictionary { id, key: &key, avi_ms, temporal };
            let latest = times.map(|(timestamp_ms, arrival_ns, boot_tag, flags)| {
                let [wall_trusted, node_time, retained] = flags;
                let value = &value[..];
                crate::table::SlotValue { timestamp_ms, arrival_ns, boot_tag, wall_trusted, node_time, retained, value }
            });
            let object = Object { entry, latest };
            let mut out = Vec::new();
            put_object(&mut out, SEAL, &object);
            prop_assert_eq!(decode(&out, SEAL, None), Ok((Record::Object(object), out.len())));
            out.clear();
            put_dictionary(&mut out, SEAL, &entry);
            prop_assert_eq!(decode(&out, SEAL, None), Ok((Record::Dictionary(entry), out.len())));
        }

        #[test]
        fn any_changed_byte_is_noticed(at in 0usize..40, flip in 1u8..=255) {
            let context = Context::of(SEAL, &anchor(1, 1));
            let (id, timestamp_ms, arrival_us) = (3, 500, 9);
            let (wall_trusted, node_time, retained, value) = (false, false, false, b"0123456789");
            let reading = Reading { id, timestamp_ms, arrival_us, wall_trusted, node_time, retained, value };
            let mut out = Vec::new();
            put_reading(&mut out, &reading, &context, true);
            let at = at % out.len();
            out[at] ^= flip;
            out.resize(RECORD_BYTES_MAX, 0);
            prop_assert_eq!(decode(&out, SEAL, Some(&context)), Err(NoRecord::Bad));
        }

        #[test]
        fn arbitrary_bytes_never_panic(input in proptest::collection::vec(any::<u8>(), 0..200)) {
            let context = Context::of(SEAL, &anchor(1, 1));
            let _ = decode(&input, SEAL, Some(&context));
            let _ = decode(&input, SEAL, None);
        }
    }
}
