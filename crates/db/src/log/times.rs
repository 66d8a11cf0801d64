//! The times of readings: whole ones, and the bits of them that a record keeps.
//!
//! **Holds:** a time exact to 1 ns, the forms of a record's time field, and the context of an anchor, which makes short
//! times whole.
//!
//! **Invariants:** a short time is read against one anchor and nothing else, so a lost record costs no other record its
//! time. No unit is guessed: the kind of a record says it.

use std::cmp::Ordering;

use crc32c::crc32c_append;

use super::codec::{
    Anchor, READING, READING_NODE_TIME, READING_NS, READING_US, READING_WIDE, Seal,
};

/// Largest distance of an arrival from the anchors it may be read with: half the 32-bit window, in µs.
pub const ARRIVAL_WINDOW_US: i64 = 1 << 31;

const NS_PER_MS: i64 = 1_000_000;
const NS_PER_US: i64 = 1_000;

/// A time of a wall clock since 1970, exact to 1 ns.
///
/// It is not one number of ns, because a record of the formats up to 2 holds any number of ms, and must be read back
/// exactly. Queue, table, checkpoint and index count in ns, where such a time becomes [`NS_MAX`](Self::NS_MAX) or its
/// negative. [`ms`](Self::ms) is the only way to what counts in whole ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time {
    /// [`NS_MAX`](Self::NS_MAX) or its negative for a time that no ns can count.
    ns: i64,
    /// The ms of such a time; 0 for any other.
    far_ms: i64,
}

impl Time {
    /// Times beyond what an i64 of ns can count become this one or its negative. Neither is the least or the greatest
    /// number, which mark an empty slot and an open end.
    pub const NS_MAX: i64 = i64::MAX - 1;

    /// The time this many ms after 1970.
    #[must_use]
    pub const fn from_ms(ms: i64) -> Self {
        match ms.checked_mul(NS_PER_MS) {
            Some(ns) => Self::from_ns(ns),
            None => Self {
                ns: ms.signum() * Self::NS_MAX,
                far_ms: ms,
            },
        }
    }

    /// The time this many ns after 1970.
    #[must_use]
    pub const fn from_ns(ns: i64) -> Self {
        Self { ns, far_ms: 0 }
    }

    /// The border to what counts in ms: the whole ms, rounded down. The order of times is kept; what is below 1 ms is
    /// lost behind it.
    #[must_use]
    pub const fn ms(self) -> i64 {
        match self.far_ms {
            0 => self.ns.div_euclid(NS_PER_MS),
            ms => ms,
        }
    }

    /// The ns since 1970. A time in ms beyond an i64 of ns becomes [`NS_MAX`](Self::NS_MAX) or its negative.
    #[must_use]
    pub const fn ns(self) -> i64 {
        self.ns
    }

    /// The ns since 1970, if the whole ms do not show this time exactly. `None` for whole ms, and for a time that no ns
    /// can count.
    #[must_use]
    pub fn ns_beside_ms(self) -> Option<i64> {
        (self.is_countable() && self.below_ms_ns() != 0).then_some(self.ns)
    }

    /// What it has beyond whole ms.
    fn below_ms_ns(self) -> i64 {
        match self.far_ms {
            0 => self.ns.rem_euclid(NS_PER_MS),
            _ => 0,
        }
    }

    /// Whether [`ns`](Self::ns) is this time and not the farthest one that stands for it. A reading with another time
    /// is refused.
    #[must_use]
    pub fn is_countable(self) -> bool {
        self.ns().unsigned_abs() < Self::NS_MAX.unsigned_abs()
    }

    /// The ns from `earlier` to this time; the greatest or least number if there are more.
    #[must_use]
    pub fn since_ns(self, earlier: Self) -> i64 {
        self.ns().saturating_sub(earlier.ns())
    }

    /// The ns for a bound of times: none lies beyond [`NS_MAX`](Self::NS_MAX), so that the order of times is the order
    /// of their bounds.
    pub(crate) fn bound_ns(self) -> i64 {
        self.ns().clamp(-Self::NS_MAX, Self::NS_MAX)
    }
}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Time {
    fn cmp(&self, other: &Self) -> Ordering {
        // The least and the greatest number of ns lie between the farthest bounds and the times beyond.
        let place = |time: &Self| (time.bound_ns(), time.far_ms, time.ns);
        place(self).cmp(&place(other))
    }
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
    /// The form for a time: of those in the greatest unit that the time is whole in, the shortest that reads back
    /// right. `node_time`: the node's clock gave the time, for which two of the forms have no kind.
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
    fn units_do_not_mix() {
        // 1 ns is below the first ms, on either side of 1970.
        assert_eq!((Time::from_ns(1).ms(), Time::from_ns(1).ns()), (0, 1));
        assert_eq!((Time::from_ns(-1).ms(), Time::from_ns(-1).ns()), (-1, -1));
        assert_eq!(Time::from_ns(1_000_000), Time::from_ms(1));
        assert_eq!(Time::from_ns(1_000_000).ns_beside_ms(), None);
        assert_eq!(Time::from_ns(-1).ns_beside_ms(), Some(-1));
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
            assert_eq!(Time::from_ms(ms).ns_beside_ms(), None);
        }
    }

    #[test]
    fn times_beyond_the_range_of_ns_are_known_and_keep_their_order() {
        let beyond = i64::MAX / NS_PER_MS + 1;
        let ascending = [
            Time::from_ms(i64::MIN),
            Time::from_ms(-beyond),
            Time::from_ns(-Time::NS_MAX),
            Time::from_ns(1 - Time::NS_MAX),
            Time::from_ns(-1),
            Time::from_ns(0),
            Time::from_ns(Time::NS_MAX - 1),
            Time::from_ns(Time::NS_MAX),
            Time::from_ms(beyond),
            Time::from_ms(i64::MAX),
        ];
        for pair in ascending.windows(2) {
            assert!(pair[0] < pair[1], "{pair:?}");
            assert!(pair[0].bound_ns() <= pair[1].bound_ns(), "{pair:?}");
        }
        let countable = ascending.map(Time::is_countable);
        let [first, last] = [3, 6];
        for (at, is_countable) in countable.into_iter().enumerate() {
            assert_eq!(is_countable, (first..=last).contains(&at), "{at}");
        }
        for ns in [i64::MIN, i64::MAX] {
            assert!(!Time::from_ns(ns).is_countable());
            assert_eq!(Time::from_ns(ns).bound_ns(), ns.signum() * Time::NS_MAX);
        }
        assert_eq!(Time::from_ns(5).since_ns(Time::from_ns(-7)), 12);
        assert_eq!(ascending[9].since_ns(ascending[0]), i64::MAX);
        assert_eq!(ascending[0].since_ns(ascending[9]), i64::MIN);
    }

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
