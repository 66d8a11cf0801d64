//! The attributes that a `setattr` request changes.

use std::time::{Duration, SystemTime};

use fuser::TimeOrNow;

/// The attributes that a `setattr` request changes; `None` for each that stays.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub user: Option<u32>,
    /// Group.
    pub group: Option<u32>,
    /// Length in bytes.
    pub size: Option<u64>,
    /// Time of the last access.
    pub accessed: Option<TimeOrNow>,
    /// Time of the last change of the content.
    pub modified: Option<TimeOrNow>,
}

impl Change {
    /// Takes the parameters of the request, with times before 1970 corrected.
    #[must_use]
    pub fn new(
        mode: Option<u32>,
        user: Option<u32>,
        group: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
    ) -> Self {
        Self {
            mode,
            user,
            group,
            size,
            accessed: accessed.map(corrected),
            modified: modified.map(corrected),
        }
    }
}

/// Corrects a time before 1970: the library subtracts its nanoseconds, but they count forwards.
fn corrected(time: TimeOrNow) -> TimeOrNow {
    let TimeOrNow::SpecificTime(specific) = time else {
        return time;
    };
    match SystemTime::UNIX_EPOCH.duration_since(specific) {
        Ok(distance) if distance.subsec_nanos() > 0 => TimeOrNow::SpecificTime(
            SystemTime::UNIX_EPOCH - Duration::from_secs(distance.as_secs())
                + Duration::from_nanos(distance.subsec_nanos().into()),
        ),
        _ => time,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nanoseconds_before_1970_count_forwards() {
        let specific = TimeOrNow::SpecificTime;
        let epoch = SystemTime::UNIX_EPOCH;
        // The library makes this from -2 s and 500,000,000 ns, which is -1.5 s.
        let early = specific(epoch - Duration::new(2, 500_000_000));
        let change = Change::new(None, None, None, None, Some(early), None);
        let right = specific(epoch - Duration::new(1, 500_000_000));
        assert_eq!(change.accessed, Some(right));
        for same in [
            TimeOrNow::Now,
            specific(epoch),
            specific(epoch - Duration::from_secs(7)),
            specific(epoch + Duration::new(7, 1)),
        ] {
            let change = Change::new(None, None, None, None, None, Some(same));
            assert_eq!(change.modified, Some(same));
        }
    }
}
