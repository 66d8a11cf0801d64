//! The bytes of one record, in the log and in a checkpoint.
//!
//! **Holds:** the framing `kind, length, body, checksum`, and the bodies. Every kind of every format is decoded,
//! wherever it stands; the encoders are those of the present format.
//!
//! **Invariants:** decoding never panics and never trusts a length beyond its input. A record is accepted only when its
//! CRC32C fits. The checksum of a reading covers the *whole* sensor time, arrival time and boot id. The record carries
//! only their low bits, and the rest comes from an earlier anchor. A wrong anchor shows as a wrong checksum, never as
//! another time. Every checksum is sealed with the store's secret, so bytes that a client sent inside a value are no
//! record, wherever a reader begins.

use crc32c::crc32c_append;

use super::seal::Seal;
use super::times::{Anchor, Context, Form, READING_NODE_TIME};
use crate::limits::{KEY_BYTES_MAX, VALUE_BYTES_LIMIT};
use crate::time::Time;

pub use crate::limits::FORMAT_VERSION;

/// Bytes of the longest body: 8,320 in the formats up to 2.
pub const BODY_BYTES_MAX: usize = VALUE_BYTES_LIMIT + 1200;
/// Bytes of the longest record.
pub const RECORD_BYTES_MAX: usize = 1 + 2 + BODY_BYTES_MAX + CHECK_BYTES;
/// Bytes of the shortest reading: kind, length, id, times and checksum around an empty value.
pub const READING_BYTES_MIN: usize = 1 + 1 + 1 + 3 + 4 + CHECK_BYTES;
/// Bytes of one anchor record.
pub const ANCHOR_BYTES: usize = 2 + 49 + CHECK_BYTES;
/// Most bytes of a key in a record: an object's has one byte for its length.
const KEY_BYTES_LIMIT: usize = 255;
/// Most bytes of the text of a series.
pub const SERIES_BYTES_MAX: usize = 1024;
/// Most bytes of an owner beside its series: kind, length, id, template and checksum.
pub(crate) const OWNER_BYTES_BESIDES: usize = 1 + 2 + 5 + 4 + CHECK_BYTES;
const CHECK_BYTES: usize = 4;

const _: () = assert!(KEY_BYTES_MAX <= KEY_BYTES_LIMIT);

// The kinds of readings, and their bits for the form of the time: `times.rs`.
const READING_TRUSTED: u8 = 1;
const READING_RETAINED: u8 = 8;
const SEGMENT: u8 = 0xb1;
const ANCHOR: u8 = 0xb2;
const ANCHOR_NS: u8 = 0xb3;
const DICTIONARY: u8 = 0xb4;
const OWNER: u8 = 0xb5;
const CHECKPOINT: u8 = 0xc1;
const OBJECT: u8 = 0xc2;
const OBJECT_NS: u8 = 0xc3;
const TRAILER: u8 = 0xc4;

/// Bit of an anchor's flags: its wall clock was trusted.
const IS_TRUSTED: u8 = 1;
/// Bit of the flags of an anchor and of a trailer of format 3: the store began with an earlier format.
const IS_OLDER_STORE: u8 = 2;

const SEGMENT_MAGIC: &[u8; 8] = b"EVKLOG\r\n";
const CHECKPOINT_MAGIC: &[u8; 8] = b"EVKCKPT\n";

/// One reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading<'a> {
    /// Object number.
    pub id: u32,
    /// Its time.
    pub time: Time,
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

/// The series that has the key of an object, where no key of its template can be read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner<'a> {
    /// Object number.
    pub id: u32,
    /// CRC32C of the template's text.
    pub template: u32,
    /// The series: opaque here.
    pub series: &'a str,
}

impl Owner<'_> {
    /// Returns the number of a template with this text.
    #[must_use]
    pub fn template_of(text: &str) -> u32 {
        crc32c_append(0, text.as_bytes())
    }
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
    /// Latest value.
    pub latest: Option<Latest<'a>>,
}

/// The latest value of an object in a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latest<'a> {
    /// Its time.
    pub time: Time,
    /// Arrival on the monotonic clock, ns.
    pub arrival_ns: u64,
    /// Boot in which it arrived.
    pub boot_tag: u64,
    /// Whether the wall clock was trusted at arrival.
    pub wall_trusted: bool,
    /// Whether the node's wall clock gave the time.
    pub node_time: bool,
    /// Whether it was kept for an unknown time before it arrived.
    pub retained: bool,
    /// The value.
    pub value: &'a [u8],
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
    /// The series that an object's key belongs to.
    Owner(Owner<'a>),
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
        /// Whether the store began with a format before 3. A trailer of such a format says so by its length.
        is_older_store: bool,
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
    let flags = store_flags(anchor.is_older_store) | u8::from(anchor.wall_trusted);
    frame(out, ANCHOR_NS, seal, 49, |out| {
        out.extend_from_slice(&anchor.boot_id);
        out.extend_from_slice(&anchor.arrival_us.to_le_bytes());
        out.extend_from_slice(&anchor.sensor.ns().to_le_bytes());
        out.extend_from_slice(&anchor.wall.ns().to_le_bytes());
        out.extend_from_slice(&anchor.lsn.to_le_bytes());
        out.push(flags);
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

/// Appends the owner of an object's key.
pub fn put_owner(out: &mut Vec<u8>, seal: Seal, owner: &Owner<'_>) {
    let bytes = varint_bytes(u64::from(owner.id)) + 4 + owner.series.len();
    frame(out, OWNER, seal, bytes, |out| {
        put_varint(out, u64::from(owner.id));
        out.extend_from_slice(&owner.template.to_le_bytes());
        out.extend_from_slice(owner.series.as_bytes());
    });
}

/// Appends a reading. The caller has checked that its time reads back in this form with every anchor that may apply.
pub fn put_reading(out: &mut Vec<u8>, reading: &Reading<'_>, context: &Context, form: Form) {
    let flag = |is_set, bit| if is_set { bit } else { 0 };
    let kind = form.kind()
        | flag(reading.wall_trusted, READING_TRUSTED)
        | flag(reading.node_time, READING_NODE_TIME)
        | flag(reading.retained, READING_RETAINED);
    debug_assert_eq!(Form::of(kind), Some(form));
    let time_bytes = form.bytes();
    let bytes = varint_bytes(u64::from(reading.id)) + time_bytes + 4 + reading.value.len();
    let number = form.number(reading.time, reading.arrival_us);
    let seal = context.seal_at(form.sealed(reading.time), reading.arrival_us);
    frame(out, kind, seal, bytes, |out| {
        put_varint(out, u64::from(reading.id));
        out.extend_from_slice(&number.to_le_bytes()[..time_bytes]);
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
    frame(out, OBJECT_NS, seal, bytes, |out| {
        put_varint(out, u64::from(entry.id));
        out.push(flags);
        put_varint(out, u64::from(entry.avi_ms));
        out.push(entry.key.len() as u8);
        out.extend_from_slice(entry.key.as_bytes());
        if let Some(latest) = &object.latest {
            out.extend_from_slice(&latest.time.ns().to_le_bytes());
            out.extend_from_slice(&latest.arrival_ns.to_le_bytes());
            out.extend_from_slice(&latest.boot_tag.to_le_bytes());
            out.extend_from_slice(latest.value);
        }
    });
}

/// Appends a checkpoint's last record.
pub fn put_trailer(out: &mut Vec<u8>, seal: Seal, objects: u32, is_older_store: bool) {
    frame(out, TRAILER, seal, 5, |out| {
        out.extend_from_slice(&objects.to_le_bytes());
        out.push(store_flags(is_older_store));
    });
}

fn store_flags(is_older_store: bool) -> u8 {
    if is_older_store { IS_OLDER_STORE } else { 0 }
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
    if let Some(form) = Form::of(kind) {
        let context = context.ok_or(NoRecord::Bad)?;
        let (reading, seal) = body.reading(kind, form, context).ok_or(NoRecord::Bad)?;
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
    Form::of(kind).is_some()
        || matches!(
            kind,
            SEGMENT
                | ANCHOR
                | ANCHOR_NS
                | DICTIONARY
                | OWNER
                | CHECKPOINT
                | OBJECT
                | OBJECT_NS
                | TRAILER
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

    /// A number of up to eight bytes.
    fn low_bits(&mut self, bytes: usize) -> Option<u64> {
        let mut whole = [0; 8];
        whole.get_mut(..bytes)?.copy_from_slice(self.bytes(bytes)?);
        Some(u64::from_le_bytes(whole))
    }

    fn time(&mut self, is_ns: bool) -> Option<Time> {
        let time = self.i64()?;
        Some(if is_ns {
            Time::from_ns(time)
        } else {
            Time::from_ms(time)
        })
    }

    /// A reading and its seal.
    fn reading(&mut self, kind: u8, form: Form, context: &Context) -> Option<(Reading<'a>, Seal)> {
        let id = self.varint_u32()?;
        let low = self.low_bits(form.bytes())?;
        let arrival_us = context.widen_arrival(self.u32()?);
        let (time, sealed) = context.widen(form, low, arrival_us)?;
        let value = self.rest();
        (value.len() <= VALUE_BYTES_LIMIT).then_some(())?;
        let reading = Reading {
            id,
            time,
            arrival_us,
            wall_trusted: kind & READING_TRUSTED != 0,
            node_time: kind & READING_NODE_TIME != 0,
            retained: kind & READING_RETAINED != 0,
            value,
        };
        Some((reading, context.seal_at(sealed, arrival_us)))
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
            ANCHOR | ANCHOR_NS => Record::Anchor(self.anchor(kind == ANCHOR_NS)?),
            DICTIONARY => {
                let (id, temporal) = (self.varint_u32()?, self.byte()? & 1 != 0);
                let (avi_ms, key) = (self.varint_u32()?, std::str::from_utf8(self.rest()).ok()?);
                (1..=KEY_BYTES_LIMIT).contains(&key.len()).then_some(())?;
                Record::Dictionary(Dictionary {
                    id,
                    key,
                    avi_ms,
                    temporal,
                })
            }
            OWNER => {
                let (id, template) = (self.varint_u32()?, self.u32()?);
                let series = std::str::from_utf8(self.rest()).ok()?;
                (1..=SERIES_BYTES_MAX)
                    .contains(&series.len())
                    .then_some(())?;
                Record::Owner(Owner {
                    id,
                    template,
                    series,
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
            OBJECT | OBJECT_NS => Record::Object(self.object(kind == OBJECT_NS)?),
            TRAILER => {
                let objects = self.u32()?;
                let is_older_store = self.0.is_empty() || self.byte()? & IS_OLDER_STORE != 0;
                Record::Trailer {
                    objects,
                    is_older_store,
                }
            }
            _ => return None,
        };
        self.0.is_empty().then_some(record)
    }

    fn anchor(&mut self, is_ns: bool) -> Option<Anchor> {
        let (boot_id, arrival_us) = (self.array()?, self.u64()?);
        let (sensor, wall) = (self.time(is_ns)?, self.time(is_ns)?);
        let (lsn, flags) = (self.u64()?, self.byte()?);
        Some(Anchor {
            boot_id,
            arrival_us,
            sensor,
            wall,
            wall_trusted: flags & IS_TRUSTED != 0,
            is_older_store: !is_ns || flags & IS_OLDER_STORE != 0,
            lsn,
        })
    }

    fn object(&mut self, is_ns: bool) -> Option<Object<'a>> {
        let (id, flags, avi_ms) = (self.varint_u32()?, self.byte()?, self.varint_u32()?);
        let key_bytes = usize::from(self.byte()?);
        let key = std::str::from_utf8(self.bytes(key_bytes)?).ok()?;
        let mut latest = None;
        if flags & 2 != 0 {
            let (time, arrival_ns, boot_tag) = (self.time(is_ns)?, self.u64()?, self.u64()?);
            let (wall_trusted, value) = (flags & 4 != 0, self.rest());
            (value.len() <= VALUE_BYTES_LIMIT).then_some(())?;
            latest = Some(Latest {
                time,
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
pub(crate) mod others;
#[cfg(test)]
mod tests;
