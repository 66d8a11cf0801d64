//! A time of a wall clock, exact to 1 ns.

use std::cmp::Ordering;

const NS_PER_MS: i64 = 1_000_000;

/// A time of a wall clock since 1970, exact to 1 ns.
///
/// It is more than one number of ns: a record of the formats up to 2 holds any number of ms. Such a time must be read
/// back exactly. Queue, table, checkpoint and index count in ns. A time beyond an i64 of ns becomes
/// [`NS_MAX`](Self::NS_MAX) or its negative there. [`ms`](Self::ms) is the only conversion to whole ms.
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
    pub(crate) fn below_ms_ns(self) -> i64 {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_ns_and_in_ms_do_not_mix() {
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
}
