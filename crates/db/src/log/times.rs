//! The times of readings: whole ones, and the bits of them that a record keeps.
//!
//! **Holds:** a time exact to 1 ns, the forms of a record's time field, and the context of an anchor, which makes short
//! times whole.
//!
//! **Invariants:** a short time is read against one anchor and nothing else, so a lost record costs no other record its
//! time. No unit is guessed: the kind of a record says it.

use crc32c::crc32c_append;

use super::codec::{
    Anchor, READING, READING_NODE_TIME, READING_NS, READING_US, READING_WIDE, Seal,
};

/// Largest distance of a narrow sensor time from the anchors it may be read with: half the 24-bit window, in ms.
pub const SENSOR_WINDOW_MS: i64 = 1 << 23;
/// Largest distance of an arrival from the anchors it may be read with: half the 32-bit window, in µs.
pub const ARRIVAL_WINDOW_US: i64 = 1 << 31;

const NS_PER_MS: i64 = 1_000_000;
const NS_PER_US: i64 = 1_000;

/// A time of a wall clock since 1970, exact to 1 ns.
///
/// It is not one number of ns, because a record of the formats up to 2 holds any number of ms, and must be read back
/// exactly. Everything outside of the log's records counts in whole ms so far; [`ms`](Self::ms) is the only way there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    ms: i64,
    /// Below 1,000,000.
    below_ms_ns: u32,
}

impl Time {
    /// Times beyond what an i64 of ns can count become this one or its negative. Neither is the least or the greatest
    /// number, which mark an empty slot and an open end.
    pub const NS_MAX: i64 = i64::MAX - 1;

    /// The time this many ms after 1970.
    #[must_use]
    pub const fn from_ms(ms: i64) -> Self {
        Self { ms, below_ms_ns: 0 }
    }

    /// The time this many ns after 1970.
    #[must_use]
    pub const fn from_ns(ns: i64) -> Self {
        Self {
            ms: ns.div_euclid(NS_PER_MS),
            below_ms_ns: ns.rem_euclid(NS_PER_MS) as u32,
        }
    }

    /// The border to what counts in ms: the whole ms, rounded down. The order of times is kept; what is below 1 ms is
    /// lost behind it.
    #[must_use]
    pub const fn ms(self) -> i64 {
        self.ms
    }

    /// The ns since 1970. A time in ms beyond an i64 of ns becomes [`NS_MAX`](Self::NS_MAX) or its negative.
    #[must_use]
    pub fn ns(self) -> i64 {
        let ns = i128::from(self.ms) * i128::from(NS_PER_MS) + i128::from(self.below_ms_ns);
        i64::try_from(ns).unwrap_or(if ns < 0 { -Self::NS_MAX } else { Self::NS_MAX })
    }
}

/// The time field of a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
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

    /// Whether the short form of this sensor time is read back correctly.
    #[must_use]
    pub fn is_narrow(&self, timestamp_ms: i64) -> bool {
        timestamp_ms
            .checked_sub(self.sensor.ms())
            .is_some_and(|distance| (-SENSOR_WINDOW_MS..SENSOR_WINDOW_MS).contains(&distance))
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
    fn units_do_not_mix() {
        // 1 ns is below the first ms, on either side of 1970.
        assert_eq!((Time::from_ns(1).ms(), Time::from_ns(1).ns()), (0, 1));
        assert_eq!((Time::from_ns(-1).ms(), Time::from_ns(-1).ns()), (-1, -1));
        assert_eq!(Time::from_ns(1_000_000), Time::from_ms(1));
        assert!(Time::from_ms(1) < Time::from_ns(1_000_001));
        assert!(Time::from_ns(1_999_999) < Time::from_ms(2));
        for ns in [i64::MIN, -Time::NS_MAX, -1, 0, 1, Time::NS_MAX, i64::MAX] {
            assert_eq!(Time::from_ns(ns).ns(), ns);
        }
        // Times of old records that ns cannot count stay exact in ms, and are the farthest in ns.
        for ms in [
            i64::MIN,
            i64::MIN / NS_PER_MS - 2,
            i64::MAX / NS_PER_MS + 1,
            i64::MAX,
        ] {
            assert_eq!(Time::from_ms(ms).ms(), ms);
            assert_eq!(Time::from_ms(ms).ns(), ms.signum() * Time::NS_MAX);
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
