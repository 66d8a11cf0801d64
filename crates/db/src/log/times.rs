//! The times of records: whole in an anchor, abbreviated in the readings after it.
//!
//! **Holds:** the anchor, the forms of a reading's time field with the kinds of records that say them, and the context
//! that an anchor sets, which makes short times whole.
//!
//! **Invariants:** a short time is read against one anchor and nothing else, so a lost record costs no other record its
//! time. No unit is guessed: the kind of a record says it.

use crc32c::crc32c_append;

use super::seal::Seal;
use crate::time::Time;

/// Largest distance of an arrival from the anchors it may be read with: half the 32-bit window, in µs.
pub const ARRIVAL_WINDOW_US: i64 = 1 << 31;

const NS_PER_US: i64 = 1_000;

/// Readings whose time is in ms: 0xa0..=0xaf, by the bits below and two of `codec.rs`.
const READING: u8 = 0xa0;
/// Readings whose time is in ns: 0x80..=0x8f, by the same bits.
const READING_NS: u8 = 0x80;
/// Readings whose time is in µs: neither wide nor from the node's clock.
const READING_US: u8 = 0x90;
const READING_WIDE: u8 = 2;
pub(super) const READING_NODE_TIME: u8 = 4;

/// The content of an anchor: the whole times that the readings after it abbreviate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// Boot in which the following readings arrived.
    pub boot_id: [u8; 16],
    /// Arrival of the next reading on that boot's monotonic clock, µs.
    pub arrival_us: u64,
    /// Sensor time of the next reading.
    pub sensor: Time,
    /// Wall clock at `arrival_us`: together they date that boot's arrivals. In version 0 this is the wall clock when
    /// the anchor was written, up to a commit interval later.
    pub wall: Time,
    /// Whether that wall clock was trusted.
    pub wall_trusted: bool,
    /// Whether the store began with a format before 3. An anchor of such a format says so by its kind.
    pub is_older_store: bool,
    /// Number of the next reading, counted over the whole log.
    pub lsn: u64,
}

/// The time field of a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Low 24 bits of ms.
    Ms,
    /// All 64 bits of ms.
    WholeMs,
    /// Low 32 bits of µs.
    Us,
    /// Low 48 bits of ns.
    Ns,
    /// All 64 bits of ns.
    WholeNs,
    /// Low 24 bits of the µs by which the node's wall clock was ahead of its monotonic clock at the arrival.
    Offset,
}

impl Form {
    /// The form for a time: the shortest one that reads back right, in the greatest unit that the time is whole in.
    /// `node_time`: the node's clock gave the time. The forms `Us` and `Ns` have no kind for such a time.
    pub(super) fn shortest(time: Time, node_time: bool, reads_back: impl Fn(Self) -> bool) -> Self {
        // One that keeps all bits need not be tried.
        let first = |short: &[Self], whole: Self| {
            let mut forms = short.iter().copied();
            forms.find(|form| reads_back(*form)).unwrap_or(whole)
        };
        match time.below_ms_ns() {
            0 => first(&[Self::Ms], Self::WholeMs),
            _ if node_time => first(&[Self::Offset], Self::WholeNs),
            below if below % NS_PER_US == 0 => first(&[Self::Us, Self::Ns], Self::WholeNs),
            _ => first(&[Self::Ns], Self::WholeNs),
        }
    }

    /// The kind of a reading in this form, without its flags.
    pub(super) fn kind(self) -> u8 {
        match self {
            Self::Ms => READING,
            Self::WholeMs => READING | READING_WIDE,
            Self::Us => READING_US,
            Self::Ns | Self::Offset => READING_NS,
            Self::WholeNs => READING_NS | READING_WIDE,
        }
    }

    /// The number of which the field keeps the low bits.
    pub(super) fn number(self, time: Time, arrival_us: u64) -> i64 {
        let us = || time.ns().div_euclid(NS_PER_US);
        match self {
            Self::Ms | Self::WholeMs => time.ms(),
            Self::Us => us(),
            Self::Ns | Self::WholeNs => time.ns(),
            Self::Offset => us().wrapping_sub(arrival_us as i64),
        }
    }

    /// The whole time as the checksum covers it.
    pub(super) fn sealed(self, time: Time) -> i64 {
        match self {
            Self::Ms | Self::WholeMs => time.ms(),
            _ => time.ns(),
        }
    }

    /// The form that a kind says; `None` for a kind that is no reading.
    pub(super) fn of(kind: u8) -> Option<Self> {
        let is_wide = kind & READING_WIDE != 0;
        match kind & 0xf0 {
            READING if is_wide => Some(Self::WholeMs),
            READING => Some(Self::Ms),
            READING_NS if is_wide => Some(Self::WholeNs),
            READING_NS if kind & READING_NODE_TIME != 0 => Some(Self::Offset),
            READING_NS => Some(Self::Ns),
            READING_US if kind & (READING_WIDE | READING_NODE_TIME) == 0 => Some(Self::Us),
            _ => None,
        }
    }

    /// Bytes of the field.
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::Ms | Self::Offset => 3,
            Self::Us => 4,
            Self::Ns => 6,
            Self::WholeMs | Self::WholeNs => 8,
        }
    }
}

/// The reference for abbreviated times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    seal: Seal,
    boot_check: u32,
    arrival_us: u64,
    sensor: Time,
    wall: Time,
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
            sensor: anchor.sensor,
            wall: anchor.wall,
            boot_id: anchor.boot_id,
        }
    }

    /// Returns the microseconds from the anchor's arrival to this one. Within [`ARRIVAL_WINDOW_US`] it is read back
    /// correctly.
    #[must_use]
    pub fn distance_us(&self, arrival_us: u64) -> i64 {
        arrival_us.wrapping_sub(self.arrival_us) as i64
    }

    /// Whether this time is read back correctly in a form.
    #[must_use]
    pub fn reads_back(&self, form: Form, time: Time, arrival_us: u64) -> bool {
        let low = form.number(time, arrival_us) as u64 & (u64::MAX >> (64 - 8 * form.bytes()));
        let read = self.widen(form, low, arrival_us);
        read.is_some_and(|(read, _)| read == time)
    }

    /// Returns the whole arrival, in µs, that a record keeps the low bits of.
    pub(super) fn widen_arrival(&self, low: u32) -> u64 {
        nearest(self.arrival_us as i64, u64::from(low), 32) as u64
    }

    /// Returns the whole time, and the number of ms or ns that the checksum covers. `None` for a time in µs or ns that
    /// no i64 of ns can hold: no writer makes such a record.
    pub(super) fn widen(&self, form: Form, low: u64, arrival_us: u64) -> Option<(Time, i64)> {
        let in_ms = |ms| Some((Time::from_ms(ms), ms));
        let ns = match form {
            Form::Ms => return in_ms(nearest(self.sensor.ms(), low, 24)),
            Form::WholeMs => return in_ms(low as i64),
            Form::Us => {
                let us = nearest(self.sensor.ns().div_euclid(NS_PER_US), low, 32);
                us.checked_mul(NS_PER_US)?
            }
            Form::Ns => nearest(self.sensor.ns(), low, 48),
            Form::WholeNs => low as i64,
            Form::Offset => {
                let wall_us = self.wall.ns().div_euclid(NS_PER_US);
                let offset_us = nearest(wall_us.wrapping_sub(self.arrival_us as i64), low, 24);
                let us = i128::from(arrival_us) + i128::from(offset_us);
                i64::try_from(us * i128::from(NS_PER_US)).ok()?
            }
        };
        Some((Time::from_ns(ns), ns))
    }

    /// The seal of a reading: it covers the whole times, of which `time` is in the unit of the record.
    pub(super) fn seal_at(&self, time: i64, arrival_us: u64) -> Seal {
        let mut times = [0; 16];
        times[..8].copy_from_slice(&time.to_le_bytes());
        times[8..].copy_from_slice(&arrival_us.to_le_bytes());
        Seal {
            seed: crc32c_append(self.boot_check, &times),
            mask: self.seal.mask,
        }
    }
}

/// Returns the number nearest to `base` that has these low bits, modulo 2^64.
fn nearest(base: i64, low: u64, bits: u32) -> i64 {
    let others = 64 - bits;
    let distance = (low.wrapping_sub(base as u64) << others) as i64 >> others;
    base.wrapping_add(distance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_takes_the_shortest_form_of_its_unit() {
        let anchor = Anchor {
            boot_id: [7; 16],
            arrival_us: 5_000_000,
            sensor: Time::from_ns(1_700_000_000_000_000_000),
            wall: Time::from_ns(1_700_000_000_000_000_000),
            wall_trusted: true,
            is_older_store: false,
            lsn: 0,
        };
        let context = Context::of(Seal::of(1), &anchor);
        let (minute, hour) = (60_000_000_000, 3_600_000_000_000);
        for (later_ns, node_time, form) in [
            (0, false, Form::Ms),
            (2 * hour, false, Form::Ms),
            (3 * hour, false, Form::WholeMs),
            (3 * hour, true, Form::WholeMs),
            (1_000, false, Form::Us),
            (-35 * minute - 1_000, false, Form::Us),
            (36 * minute + 1_000, false, Form::Ns),
            (39 * hour + 1_000, false, Form::Ns),
            (40 * hour + 1_000, false, Form::WholeNs),
            (1, false, Form::Ns),
            (-39 * hour - 1, false, Form::Ns),
            (-40 * hour - 1, false, Form::WholeNs),
            // An offset of the clocks in µs has no ns.
            (1_000, true, Form::Offset),
            (9_000_001_000, true, Form::WholeNs),
            (1, true, Form::WholeNs),
        ] {
            let time = Time::from_ns(anchor.sensor.ns() + later_ns);
            let found = Form::shortest(time, node_time, |form| {
                context.reads_back(form, time, 5_000_000)
            });
            assert_eq!(found, form, "{later_ns} {node_time}");
        }
    }

    #[test]
    fn the_nearest_number_lies_on_either_side() {
        for base in [i64::MIN, -1, 0, 0x1234_5678_9abc_def0, i64::MAX] {
            for bits in [24u32, 32, 48] {
                let half = 1i64 << (bits - 1);
                for distance in [-half, -1, 0, 1, half - 1] {
                    let number = base.wrapping_add(distance);
                    let low = number as u64 & ((1u64 << bits) - 1);
                    assert_eq!(nearest(base, low, bits), number, "{base} {bits} {distance}");
                }
            }
        }
    }
}
