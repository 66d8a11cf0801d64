//! Times from senders: which are accepted, the text form of RFC 3339, and numbers without rounding.

use super::Reason;
use db::Time;

/// 2000-01-01: the clocks of sensors that were never set begin at 1970 or 1980.
pub const TIME_MS_MIN: i64 = 946_684_800_000;

/// 2200-01-01.
pub const TIME_MS_MAX: i64 = 7_258_118_400_000;

const SECOND_NS: i64 = 1_000_000_000;
const DAY_MS: i64 = 86_400_000;
/// Most digits of a number that an i64 can hold.
const I64_DIGITS_MAX: i64 = 19;

/// How far a sender's time may be from the node's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) future_ms_max: i64,
    pub(crate) past_ms_max: i64,
}

impl Window {
    pub(crate) fn new(future_seconds_max: u64, past_days_max: u64) -> Self {
        let ms = |count: u64, unit: i64| {
            i64::try_from(count)
                .unwrap_or(i64::MAX)
                .saturating_mul(unit)
        };
        Self {
            future_ms_max: ms(future_seconds_max, 1000),
            past_ms_max: ms(past_days_max, DAY_MS),
        }
    }

    /// Checks a time. `now_ms`: the node's clock, if it is trusted. It shows whole ms, so the time counts as whole ms,
    /// too: otherwise a time of the present ms could lie in the future.
    pub(crate) fn check(self, time: Time, now_ms: Option<i64>) -> Result<(), Reason> {
        let time_ms = time.ms();
        let is_plausible = (TIME_MS_MIN..TIME_MS_MAX).contains(&time_ms);
        let is_near = now_ms.is_none_or(|now_ms| {
            let ahead_ms = time_ms.saturating_sub(now_ms);
            ahead_ms <= self.future_ms_max && ahead_ms >= -self.past_ms_max
        });
        if is_plausible && is_near {
            Ok(())
        } else {
            Err(Reason::TimeAbsurd)
        }
    }
}

/// Returns the time that a text in RFC 3339 form, with its zone, says: `2026-03-01T12:00:00.5+01:00`. A space may
/// replace the `T`; digits below a nanosecond are ignored.
#[must_use]
pub fn rfc3339(text: &str) -> Option<Time> {
    let bytes = text.as_bytes();
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = bytes.get(from..to)?;
        digits.iter().try_fold(0, |sum, digit| {
            digit
                .is_ascii_digit()
                .then(|| sum * 10 + i64::from(digit - b'0'))
        })
    };
    let is_at = |at: usize, wanted: &[u8]| bytes.get(at).is_some_and(|byte| wanted.contains(byte));
    let has_marks =
        is_at(4, b"-") && is_at(7, b"-") && is_at(10, b"Tt ") && is_at(13, b":") && is_at(16, b":");
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days_of_month = match month {
        2 => 28 + i64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    // Second 60 is a leap second; in every count without leap seconds it is the same instant as second 0 of the next
    // minute.
    if !has_marks || day < 1 || day > days_of_month || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let mut at = 19;
    let mut ns = 0;
    if is_at(at, b".") {
        let digits = bytes[at + 1..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        if digits == 0 {
            return None;
        }
        for place in 0..9 {
            let digit = if place < digits {
                number(at + 1 + place, at + 2 + place)?
            } else {
                0
            };
            ns = ns * 10 + digit;
        }
        at += 1 + digits;
    }
    let offset_minutes = match bytes.get(at)? {
        b'Z' | b'z' if bytes.len() == at + 1 => 0,
        sign @ (b'+' | b'-') if bytes.len() == at + 6 && is_at(at + 3, b":") => {
            let (hours, minutes) = (number(at + 1, at + 3)?, number(at + 4, at + 6)?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            (hours * 60 + minutes) * if *sign == b'-' { -1 } else { 1 }
        }
        _ => return None,
    };
    let seconds = ((days_since_1970(year, month, day) * 24 + hour) * 60 + minute - offset_minutes)
        * 60
        + second;
    let whole_ns = seconds.checked_mul(SECOND_NS);
    Some(
        match whole_ns.and_then(|whole_ns| whole_ns.checked_add(ns)) {
            Some(ns) => Time::from_ns(ns),
            // No i64 of ns reaches so far. Such a time is refused.
            None => Time::from_ms(seconds * 1000 + ns / 1_000_000),
        },
    )
}

/// Returns the days of the Gregorian calendar since 1970, counted in years that begin in March, so that the leap day is
/// their last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    year * 365 + leap_days + day_of_year - 719_468
}

/// Returns a number of JSON times this power of ten, rounded down; `None` if no i64 holds it.
pub(super) fn times_ten_to(digits: &str, power: i64) -> Option<i64> {
    let (mantissa, exponent) = digits.split_once(['e', 'E']).unwrap_or((digits, "0"));
    let exponent: i64 = exponent.parse().ok()?;
    let (sign, mantissa) = match mantissa.strip_prefix('-') {
        Some(mantissa) => ("-", mantissa),
        None => ("", mantissa),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = [whole, fraction].concat();
    // The digits that count, of which those behind the point move in front of it.
    let all = all.trim_start_matches('0');
    let power = power
        .saturating_add(exponent)
        .saturating_sub_unsigned(fraction.len() as u64);
    let length = all.len() as i64;
    if all.is_empty() {
        return Some(0);
    }
    if length.saturating_add(power) > I64_DIGITS_MAX {
        return None;
    }
    let kept = usize::try_from(length.saturating_add(power.min(0))).unwrap_or(0);
    let zeros = usize::try_from(power).unwrap_or(0);
    let (whole, rest) = all.split_at(kept);
    let count: i64 = format!("{sign}0{whole}{:0<zeros$}", "").parse().ok()?;
    let is_above = !sign.is_empty() && rest.bytes().any(|digit| digit != b'0');
    count.checked_sub(i64::from(is_above))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_give_their_instant() {
        let ms = Time::from_ms;
        for (text, time) in [
            ("1970-01-01T00:00:00Z", ms(0)),
            ("2000-01-01T00:00:00Z", ms(TIME_MS_MIN)),
            ("2200-01-01T00:00:00Z", ms(TIME_MS_MAX)),
            ("9999-12-31T23:59:59.5Z", ms(253_402_300_799_500)),
            ("0000-01-01T00:00:00Z", ms(-62_167_219_200_000)),
            ("2000-03-01T00:00:00Z", ms(951_868_800_000)),
            ("2024-02-29T23:59:59.999Z", ms(1_709_251_199_999)),
            ("2026-03-01 12:00:00.5+01:00", ms(1_772_362_800_500)),
            (
                "2026-03-01t12:00:00.123456789-00:30",
                Time::from_ns(1_772_368_200_123_456_789),
            ),
            // A tenth digit is ignored, and a digit has its place.
            (
                "2026-03-01T12:30:00.1234567899Z",
                Time::from_ns(1_772_368_200_123_456_789),
            ),
            (
                "2026-03-01T12:30:00.000001Z",
                Time::from_ns(1_772_368_200_000_001_000),
            ),
            ("1969-12-31T23:59:59.999999999Z", Time::from_ns(-1)),
            ("2016-12-31T23:59:60z", ms(1_483_228_800_000)),
        ] {
            assert_eq!(rfc3339(text), Some(time), "{text}");
        }
        for text in [
            "",
            "2026-03-01",
            "2026-03-01T12:00:00",
            "2026-02-29T12:00:00Z",
            "2026-13-01T12:00:00Z",
            "2026-00-01T12:00:00Z",
            "2026-03-00T12:00:00Z",
            "2026-03-01T24:00:00Z",
            "2026-03-01T12:60:00Z",
            "2026-03-01T12:00:61Z",
            "2026-03-01T12:00:00.Z",
            "2026-03-01T12:00:00Zx",
            "2026-03-01T12:00:00+0100",
            "2026-03-01T12:00:00+24:00",
            "2026-03-01T12:00:00+1:000",
            "2026/03/01T12:00:00Z",
            "+026-03-01T12:00:00Z",
            "２026-03-01T12:00:00Z",
        ] {
            assert_eq!(rfc3339(text), None, "{text}");
        }
    }

    #[test]
    fn only_near_and_plausible_times_are_believed() {
        let window = Window::new(60, 2);
        let (now_ms, day_ms) = (1_800_000_000_000, 86_400_000);
        for (time_ms, now, believed) in [
            (now_ms, Some(now_ms), true),
            (now_ms + 60_000, Some(now_ms), true),
            (now_ms + 60_001, Some(now_ms), false),
            (now_ms - 2 * day_ms, Some(now_ms), true),
            (now_ms - 2 * day_ms - 1, Some(now_ms), false),
            (now_ms + 60_001, None, true),
            (TIME_MS_MIN, None, true),
            (TIME_MS_MIN - 1, None, false),
            (TIME_MS_MAX, None, false),
            (i64::MIN, Some(now_ms), false),
            (i64::MAX, Some(now_ms), false),
            (now_ms, Some(i64::MIN), false),
        ] {
            let time = Time::from_ms(time_ms);
            assert_eq!(window.check(time, now).is_ok(), believed, "{time_ms}");
        }
        let boundless = Window::new(u64::MAX, u64::MAX);
        let first = Time::from_ms(TIME_MS_MIN);
        assert!(boundless.check(first, Some(now_ms)).is_ok());
        // A clock that shows whole ms does not say that a time of this ms lies in the future.
        let present = Window::new(0, 2);
        let now_ns = now_ms * 1_000_000;
        let checked = [0, 999_999, 1_000_000]
            .map(|more| present.check(Time::from_ns(now_ns + more), Some(now_ms)));
        assert_eq!(checked, [Ok(()), Ok(()), Err(Reason::TimeAbsurd)]);
    }
}
