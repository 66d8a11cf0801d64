//! The content of one segment, in a few kilobytes: the times, the boots, the objects, and where its pieces begin.
//!
//! **Invariants:** a summary never rules out a reading that exists: what it cannot say exactly it says too widely.
//! Decoding trusts no length and no number of the file. SPEC.md, "Index of a segment", says every byte.

use std::collections::BTreeMap;

use crate::time::Time;

use super::codec::{Fields, Record};
use super::reader::Found;
use super::seal::Seal;

/// Version of the index file that this code writes: its times are in ns.
pub const INDEX_VERSION: u32 = 2;
/// Version of the index file whose times are in ms. It is read, so that the history of an earlier version is not read
/// again.
const INDEX_VERSION_MS: u32 = 1;
const MAGIC: &[u8; 8] = b"EVKINDEX";
/// Least bytes of log after which a new piece begins.
const PIECE_BYTES: u64 = 64 << 10;
/// Most pieces of one segment; beyond, they grow.
const PIECES_MAX: usize = 256;
/// Most boots that are distinguished in one segment; beyond, the segment is never ruled out.
const BOOTS_MAX: usize = 64;
/// Objects with this number or a higher one are not distinguished.
const IDS_MAX: u32 = 1 << 16;
/// Bytes of the longest index file.
pub const INDEX_BYTES_MAX: usize = 67 + BOOTS_MAX * 89 + PIECES_MAX * 25 + IDS_MAX as usize / 8;

/// Times from the earliest to the latest, both inclusive: bounds in ns ([`Time::bound_ns`]), or arrivals in µs. Empty
/// when `min > max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) min: i64,
    pub(crate) max: i64,
}

impl Span {
    pub(crate) const EMPTY: Self = Self {
        min: i64::MAX,
        max: i64::MIN,
    };
    /// All times.
    pub(crate) const ALL: Self = Self {
        min: -Time::NS_MAX,
        max: Time::NS_MAX,
    };

    pub(crate) fn add(&mut self, time: i64) {
        self.min = self.min.min(time);
        self.max = self.max.max(time);
    }

    pub(crate) fn join(&mut self, other: &Self) {
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Whether it can hold a time from `from` up to, but not including, `to`. The farthest bound stands for all times
    /// beyond it, so one that begins there may hold a time before an end there.
    pub(crate) fn meets(&self, from: Time, to: Time) -> bool {
        let (from, to) = (from.bound_ns(), to.bound_ns());
        let begins_before =
            self.min < to || self.min == to && to.unsigned_abs() == Time::NS_MAX.unsigned_abs();
        self.min <= self.max && begins_before && self.max >= from
    }
}

/// One moment at which the wall clock was trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Monotonic time of the boot, µs.
    pub(crate) arrival_us: u64,
    /// Wall clock at that time, ns since 1970.
    pub(crate) wall_ns: i64,
}

/// The part of one boot in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BootPart {
    pub(crate) boot_id: [u8; 16],
    /// First and last moment at which its wall clock was trusted.
    pub(crate) trusted: Option<(Sample, Sample)>,
    /// Latest arrival, µs.
    pub(crate) arrival_max_us: u64,
    /// Arrivals in µs of readings whose time may have to be corrected; empty when there is none.
    pub(crate) doubtful_arrival: Span,
    /// Their times as recorded.
    pub(crate) doubtful_recorded: Span,
}

/// A part of a segment that begins with an anchor and can be read alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) offset: u64,
    /// Times that need no correction.
    pub(crate) time: Span,
    /// Whether it contains other times.
    pub(crate) doubtful: bool,
}

/// The small part of a summary, kept in memory for each segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outline {
    pub(crate) log_bytes: u64,
    pub(crate) first_lsn: u64,
    pub(crate) readings: u64,
    /// Times that need no correction.
    pub(crate) time: Span,
    pub(crate) boots: Vec<BootPart>,
    /// The segment is never ruled out: damage hides a part of it, or it has more boots than are distinguished.
    pub(crate) unbounded: bool,
}

impl Outline {
    /// Returns the number behind its last reading, if damage hides none of them.
    pub(crate) fn end_lsn(&self) -> u64 {
        self.first_lsn.saturating_add(self.readings)
    }
}

/// A whole summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) segment: u32,
    pub(crate) outline: Outline,
    pub(crate) pieces: Vec<Piece>,
    /// One bit for each object number, lowest first.
    ids: Vec<u8>,
    /// Objects beyond [`IDS_MAX`] are in it.
    ids_beyond: bool,
    boot: Option<usize>,
}

impl Summary {
    pub(crate) fn new(segment: u32) -> Self {
        Self {
            segment,
            outline: Outline {
                log_bytes: 0,
                first_lsn: 0,
                readings: 0,
                time: Span::EMPTY,
                boots: Vec::new(),
                unbounded: false,
            },
            pieces: Vec::new(),
            ids: Vec::new(),
            ids_beyond: false,
            boot: None,
        }
    }

    /// Adds the next record of the segment. `segment_bytes_max` sets the size of pieces.
    pub(crate) fn add(&mut self, found: &Found<'_>, segment_bytes_max: u64) {
        match &found.record {
            Record::Anchor(anchor) => {
                self.boot = self.boot_part(anchor.boot_id);
                if anchor.wall_trusted
                    && let Some(part) = self.boot.and_then(|at| self.outline.boots.get_mut(at))
                {
                    let sample = Sample {
                        arrival_us: anchor.arrival_us,
                        wall_ns: anchor.wall.bound_ns(),
                    };
                    let first = part.trusted.map_or(sample, |(first, _)| first);
                    part.trusted = Some((first, sample));
                }
                let piece_bytes = PIECE_BYTES.max(segment_bytes_max / (PIECES_MAX as u64 - 1));
                let due = self.pieces.last().is_none_or(|piece| {
                    found.offset - piece.offset.min(found.offset) >= piece_bytes
                });
                if due && self.pieces.len() < PIECES_MAX {
                    self.pieces.push(Piece {
                        offset: found.offset,
                        time: Span::EMPTY,
                        doubtful: false,
                    });
                }
            }
            Record::Reading(reading) => {
                if self.outline.readings == 0 {
                    self.outline.first_lsn = found.lsn;
                }
                self.outline.readings += 1;
                let time_ns = reading.time.bound_ns();
                if let Some(part) = self.boot.and_then(|at| self.outline.boots.get_mut(at)) {
                    part.arrival_max_us = part.arrival_max_us.max(reading.arrival_us);
                }
                let doubtful = reading.node_time && !reading.wall_trusted;
                if doubtful {
                    match self.boot.and_then(|at| self.outline.boots.get_mut(at)) {
                        Some(part) => {
                            part.doubtful_arrival
                                .add(i64::try_from(reading.arrival_us).unwrap_or(i64::MAX));
                            part.doubtful_recorded.add(time_ns);
                        }
                        None => self.outline.unbounded = true,
                    }
                } else {
                    self.outline.time.add(time_ns);
                }
                if let Some(piece) = self.pieces.last_mut() {
                    if doubtful {
                        piece.doubtful = true;
                    } else {
                        piece.time.add(time_ns);
                    }
                }
                self.add_id(reading.id);
            }
            _ => {}
        }
    }

    fn boot_part(&mut self, boot_id: [u8; 16]) -> Option<usize> {
        let boots = &mut self.outline.boots;
        if let Some(at) = boots.iter().position(|part| part.boot_id == boot_id) {
            return Some(at);
        }
        if boots.len() >= BOOTS_MAX {
            self.outline.unbounded = true;
            return None;
        }
        boots.push(BootPart {
            boot_id,
            trusted: None,
            arrival_max_us: 0,
            doubtful_arrival: Span::EMPTY,
            doubtful_recorded: Span::EMPTY,
        });
        Some(boots.len() - 1)
    }

    fn add_id(&mut self, id: u32) {
        if id >= IDS_MAX {
            self.ids_beyond = true;
            return;
        }
        let byte = id as usize / 8;
        if self.ids.len() <= byte {
            self.ids.resize(byte + 1, 0);
        }
        self.ids[byte] |= 1 << (id % 8);
    }

    /// Whether the object may have readings in the segment.
    pub(crate) fn may_hold(&self, id: u32) -> bool {
        if id >= IDS_MAX {
            return self.ids_beyond;
        }
        self.ids
            .get(id as usize / 8)
            .is_some_and(|byte| byte & (1 << (id % 8)) != 0)
    }

    /// Returns the bytes of the segment in which readings with times from `from` up to `to` can lie; `None` if there
    /// are none. Includes one more piece in front, whose anchor can stand in for a damaged one.
    pub(crate) fn range(&self, from: Time, to: Time) -> Option<(u64, u64)> {
        let meets = |piece: &Piece| piece.doubtful || piece.time.meets(from, to);
        let first = self.pieces.iter().position(meets)?;
        let last = self.pieces.iter().rposition(meets)?;
        // Before the first piece there are only names; readings there would come from a damaged segment.
        let begin = match first {
            0 | 1 => 0,
            later => self.pieces.get(later - 1).map_or(0, |piece| piece.offset),
        };
        let end = self
            .pieces
            .get(last + 1)
            .map_or(u64::MAX, |piece| piece.offset);
        Some((begin, end))
    }

    /// The bytes of the index file.
    pub(crate) fn encode(&self, seal: Seal) -> Vec<u8> {
        let outline = &self.outline;
        let mut out = Vec::with_capacity(
            256 + outline.boots.len() * 89 + self.pieces.len() * 25 + self.ids.len(),
        );
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&INDEX_VERSION.to_le_bytes());
        out.extend_from_slice(&self.segment.to_le_bytes());
        out.extend_from_slice(&outline.log_bytes.to_le_bytes());
        out.extend_from_slice(&outline.first_lsn.to_le_bytes());
        out.extend_from_slice(&outline.readings.to_le_bytes());
        out.push(u8::from(outline.unbounded) | u8::from(self.ids_beyond) << 1);
        put_span(&mut out, &outline.time);
        out.extend_from_slice(&(outline.boots.len() as u16).to_le_bytes());
        for part in &outline.boots {
            out.extend_from_slice(&part.boot_id);
            out.push(u8::from(part.trusted.is_some()));
            let none = Sample {
                arrival_us: 0,
                wall_ns: 0,
            };
            let (first, last) = part.trusted.unwrap_or((none, none));
            for sample in [first, last] {
                out.extend_from_slice(&sample.arrival_us.to_le_bytes());
                out.extend_from_slice(&sample.wall_ns.to_le_bytes());
            }
            out.extend_from_slice(&part.arrival_max_us.to_le_bytes());
            put_span(&mut out, &part.doubtful_arrival);
            put_span(&mut out, &part.doubtful_recorded);
        }
        out.extend_from_slice(&(self.pieces.len() as u16).to_le_bytes());
        for piece in &self.pieces {
            out.extend_from_slice(&piece.offset.to_le_bytes());
            put_span(&mut out, &piece.time);
            out.push(u8::from(piece.doubtful));
        }
        out.extend_from_slice(&(self.ids.len() as u16).to_le_bytes());
        out.extend_from_slice(&self.ids);
        let check = seal.check(&out);
        out.extend_from_slice(&check.to_le_bytes());
        out
    }

    /// Reads an index file. `None` if it is incomplete, of another version, or another segment's.
    pub(crate) fn decode(bytes: &[u8], segment: u32, seal: Seal) -> Option<Self> {
        let (body, check) = bytes.split_last_chunk::<4>()?;
        if seal.check(body) != u32::from_le_bytes(*check) {
            return None;
        }
        let mut fields = Fields(body);
        if &fields.array::<8>()? != MAGIC {
            return None;
        }
        let is_ns = match u32::from_le_bytes(fields.array()?) {
            INDEX_VERSION => true,
            INDEX_VERSION_MS => false,
            _ => return None,
        };
        if u32::from_le_bytes(fields.array()?) != segment {
            return None;
        }
        let mut summary = Self::new(segment);
        let outline = &mut summary.outline;
        outline.log_bytes = fields.u64()?;
        outline.first_lsn = fields.u64()?;
        outline.readings = fields.u64()?;
        let [flags] = fields.array()?;
        outline.unbounded = flags & 1 != 0;
        summary.ids_beyond = flags & 2 != 0;
        outline.time = fields.times(is_ns)?;
        let boots = usize::from(u16::from_le_bytes(fields.array()?));
        if boots > BOOTS_MAX {
            return None;
        }
        for _ in 0..boots {
            let boot_id = fields.array()?;
            let [trusted] = fields.array()?;
            let (first, last) = (fields.sample(is_ns)?, fields.sample(is_ns)?);
            outline.boots.push(BootPart {
                boot_id,
                trusted: (trusted & 1 != 0).then_some((first, last)),
                arrival_max_us: fields.u64()?,
                doubtful_arrival: fields.span()?,
                doubtful_recorded: fields.times(is_ns)?,
            });
        }
        let pieces = usize::from(u16::from_le_bytes(fields.array()?));
        if pieces > PIECES_MAX {
            return None;
        }
        for _ in 0..pieces {
            let (offset, time) = (fields.u64()?, fields.times(is_ns)?);
            let [flags] = fields.array()?;
            summary.pieces.push(Piece {
                offset,
                time,
                doubtful: flags & 1 != 0,
            });
        }
        let ids = usize::from(u16::from_le_bytes(fields.array()?));
        summary.ids = fields.bytes(ids)?.to_vec();
        fields.0.is_empty().then_some(summary)
    }
}

fn put_span(out: &mut Vec<u8>, span: &Span) {
    out.extend_from_slice(&span.min.to_le_bytes());
    out.extend_from_slice(&span.max.to_le_bytes());
}

impl Fields<'_> {
    fn span(&mut self) -> Option<Span> {
        Some(Span {
            min: self.i64()?,
            max: self.i64()?,
        })
    }

    /// A span of times. The empty one stays empty.
    fn times(&mut self, is_ns: bool) -> Option<Span> {
        let span = self.span()?;
        if span.min > span.max {
            return Some(span);
        }
        Some(Span {
            min: bound_ns(span.min, is_ns),
            max: bound_ns(span.max, is_ns),
        })
    }

    fn sample(&mut self, is_ns: bool) -> Option<Sample> {
        let (arrival_us, wall) = (self.u64()?, self.i64()?);
        Some(Sample {
            arrival_us,
            wall_ns: bound_ns(wall, is_ns),
        })
    }
}

/// The bound of a time of an index file.
fn bound_ns(time: i64, is_ns: bool) -> i64 {
    let time = if is_ns {
        Time::from_ns(time)
    } else {
        Time::from_ms(time)
    };
    time.bound_ns()
}

/// The trusted moments of each boot's wall clock: they correct times.
#[derive(Clone, Debug, Default)]
pub(crate) struct Boots(BTreeMap<[u8; 16], Vec<Sample>>);

impl Boots {
    /// Notes a trusted moment.
    pub(crate) fn add(&mut self, boot_id: [u8; 16], sample: Sample) {
        self.0.entry(boot_id).or_default().push(sample);
    }

    /// Adds the trusted moments that a segment knows.
    pub(crate) fn add_outline(&mut self, outline: &Outline) {
        for part in &outline.boots {
            if let Some((first, last)) = part.trusted {
                self.add(part.boot_id, first);
                if last != first {
                    self.add(part.boot_id, last);
                }
            }
        }
    }

    /// Call after the last `add`.
    pub(crate) fn sort(&mut self) {
        for samples in self.0.values_mut() {
            samples.sort_unstable_by_key(|sample| sample.arrival_us);
        }
    }

    /// Returns what the wall clock would have shown at this arrival: by the first trusted moment after it, otherwise by
    /// the last one before. `None` if that boot's clock was never trusted, or if ns cannot count that time.
    pub(crate) fn wall_at(&self, boot_id: &[u8; 16], arrival_us: u64) -> Option<Time> {
        let samples = self.0.get(boot_id)?;
        let after = samples.partition_point(|sample| sample.arrival_us < arrival_us);
        let sample = samples.get(after).or(samples.last())?;
        dated(sample, i128::from(arrival_us))
    }

    /// Returns all times that readings of this segment can have.
    pub(crate) fn span_of(&self, outline: &Outline) -> Span {
        if outline.unbounded {
            return Span::ALL;
        }
        let mut span = outline.time;
        for part in &outline.boots {
            let arrival = part.doubtful_arrival;
            if arrival.min > arrival.max {
                continue;
            }
            let Some(samples) = self.0.get(&part.boot_id) else {
                span.join(&part.doubtful_recorded);
                continue;
            };
            // Corrected times depend on the sample chosen, and the clock may have been set between two samples. Those
            // that can be chosen: from the first after the earliest arrival to the first after the latest.
            let after = |arrival_us: i64| {
                samples.partition_point(|sample| {
                    i128::from(sample.arrival_us) < i128::from(arrival_us)
                })
            };
            let last = samples.len().saturating_sub(1);
            let (first, last) = (after(arrival.min).min(last), after(arrival.max).min(last));
            for sample in samples.get(first..=last).unwrap_or_default() {
                for end_us in [arrival.min, arrival.max] {
                    // The greatest arrival stands for all later ones.
                    let end = dated(sample, i128::from(end_us)).filter(|_| end_us < i64::MAX);
                    let Some(end) = end else {
                        // `wall_at` gives no time there, so some recorded times stand and others do not.
                        return Span::ALL;
                    };
                    span.add(end.ns());
                }
            }
        }
        span
    }
}

/// Returns what the wall clock of a sample would have shown at an arrival; `None` if ns cannot count that time.
fn dated(sample: &Sample, arrival_us: i128) -> Option<Time> {
    let since_us = arrival_us - i128::from(sample.arrival_us);
    let wall_ns = i64::try_from(i128::from(sample.wall_ns) + since_us * 1000).ok()?;
    Some(Time::from_ns(wall_ns)).filter(|time| time.is_countable())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEAL: u64 = 0x0123_4567_89ab_cdef;

    fn span(min: i64, max: i64) -> Span {
        Span { min, max }
    }

    /// A summary whose times are these numbers, in any unit.
    fn summary(times: [Span; 3], wall: [i64; 2]) -> Summary {
        let [time, recorded, piece] = times;
        let [first, last] = wall.map(|wall_ns| Sample {
            arrival_us: 7,
            wall_ns,
        });
        let mut summary = Summary::new(3);
        summary.outline.log_bytes = 5000;
        summary.outline.time = time;
        summary.outline.boots.push(BootPart {
            boot_id: [4; 16],
            trusted: Some((first, last)),
            arrival_max_us: 99,
            doubtful_arrival: span(8_000_000, 9_000_000),
            doubtful_recorded: recorded,
        });
        summary.pieces.push(Piece {
            offset: 22,
            time: piece,
            doubtful: true,
        });
        summary.add_id(9);
        summary
    }

    /// The file of a summary, as of another version.
    fn file(summary: &Summary, version: u32) -> Vec<u8> {
        let mut bytes = summary.encode(Seal::of(SEAL));
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        let end = bytes.len() - 4;
        let check = Seal::of(SEAL).check(&bytes[..end]);
        bytes[end..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    #[test]
    fn an_index_of_either_version_is_read() {
        let in_ns = summary(
            [
                span(2_000_000, 3_000_000),
                span(-1_000_000, Time::NS_MAX),
                Span::EMPTY,
            ],
            [-1_000_000, 5_000_000],
        );
        let in_ms = summary([span(2, 3), span(-1, i64::MAX), Span::EMPTY], [-1, 5]);
        let decode = |bytes: &[u8]| Summary::decode(bytes, 3, Seal::of(SEAL));
        assert_eq!(decode(&in_ns.encode(Seal::of(SEAL))), Some(in_ns.clone()));
        assert_eq!(decode(&file(&in_ns, 2)), Some(in_ns.clone()));
        assert_eq!(decode(&file(&in_ms, 1)), Some(in_ns.clone()));
        for version in [0, 3, u32::MAX] {
            assert_eq!(decode(&file(&in_ns, version)), None);
        }
        let all = summary([span(i64::MIN, i64::MAX); 3], [i64::MIN, i64::MAX]);
        for version in [1, 2] {
            let decoded = decode(&file(&all, version)).expect("an index");
            let found = (decoded.outline.time, decoded.pieces[0].time);
            assert_eq!(found, (Span::ALL, Span::ALL));
        }
    }

    #[test]
    fn the_farthest_bounds_hold_all_times_beyond_them() {
        let (ms, ns, far) = (Time::from_ms, Time::from_ns, Time::NS_MAX);
        let (first, last) = (ms(i64::MIN), ms(i64::MAX));
        let after = span(far, far);
        assert!(after.meets(first, last) && after.meets(ms(i64::MAX - 1), last));
        assert!(after.meets(ns(far), last) && !after.meets(first, ns(far - 1)));
        let before = span(-far, -far);
        assert!(before.meets(first, last) && before.meets(first, ms(i64::MIN + 1)));
        assert!(!before.meets(ns(1 - far), last));
        // Any other end is not included.
        let one = span(5, 5);
        assert!(one.meets(ns(5), ns(6)) && one.meets(first, last));
        assert!(!one.meets(first, ns(5)) && !one.meets(ns(6), last));
        assert!(!Span::EMPTY.meets(first, last));
    }

    #[test]
    fn corrected_times_are_exact_and_the_span_holds_them() {
        let boot_id = [4; 16];
        let mut boots = Boots::default();
        let sample = Sample {
            arrival_us: 10,
            wall_ns: 1_000_000_123,
        };
        boots.add(boot_id, sample);
        boots.sort();
        let dated = |arrival_us| boots.wall_at(&boot_id, arrival_us).map(Time::ns);
        assert_eq!(
            [dated(7), dated(12)],
            [Some(999_997_123), Some(1_000_002_123)]
        );
        // No ns count this far: the recorded time stands, and the span holds all times.
        assert_eq!(dated(u64::MAX), None);
        let far_us = i64::MAX / 1000;
        assert_eq!(dated(far_us as u64), None);
        let mut found = summary([Span::EMPTY; 3], [0, 0]);
        found.outline.boots[0].doubtful_recorded = span(-9, -9);
        found.outline.boots[0].doubtful_arrival = span(7, 12);
        assert_eq!(
            boots.span_of(&found.outline),
            span(999_997_123, 1_000_002_123)
        );
        for arrival in [span(7, far_us), span(7, i64::MAX), span(far_us, far_us)] {
            found.outline.boots[0].doubtful_arrival = arrival;
            assert_eq!(boots.span_of(&found.outline), Span::ALL);
        }
        // An arrival beyond an i64 counts as the greatest one: the sample may lie beyond it, too.
        for arrival_us in [i64::MAX as u64, u64::MAX] {
            let mut boots = Boots::default();
            boots.add(
                boot_id,
                Sample {
                    arrival_us,
                    ..sample
                },
            );
            assert!(boots.wall_at(&boot_id, arrival_us).is_some());
            found.outline.boots[0].doubtful_arrival = span(i64::MAX, i64::MAX);
            assert_eq!(boots.span_of(&found.outline), Span::ALL);
        }
    }
}
