//! Times as people write them: RFC 3339, local dates, seconds or milliseconds since 1970, and times relative to now.

use db::Time;
use std::fmt::Write;

/// Numbers below this are seconds since 1970, others are milliseconds. As seconds it is the year 5138, as milliseconds
/// a day in 1973.
const SECONDS_BELOW: i64 = 100_000_000_000;

const DAY_MS: i64 = 86_400_000;

const NS_PER_MS: i64 = 1_000_000;
const NS_PER_SECOND: i64 = 1_000_000_000;

/// The forms of a time.
const FORMS: &str = "write a time such as 2026-03-01T12:30:00Z, 2026-03-01 (local), -15m, -7d, +5m, now, \
                     or seconds or milliseconds since 1970";

/// Returns a time in UTC: to the ms as [`format_ms`] if it is one, else with all its nine digits.
#[must_use]
pub fn format_time(time: Time) -> String {
    let mut text = format_ms(time.ms());
    if let Some(ns) = time.ns_beside_ms() {
        text.truncate(text.len() - 1);
        // Writing to a string never fails.
        let _ = write!(text, "{:06}Z", ns.rem_euclid(NS_PER_MS));
    }
    text
}

/// Returns a time in UTC: `2026-03-01T12:30:00.250Z`.
#[must_use]
pub fn format_ms(time_ms: i64) -> String {
    let (days, in_day_ms) = (time_ms.div_euclid(DAY_MS), time_ms.rem_euclid(DAY_MS));
    let (year, month, day) = civil(days);
    let (seconds, ms) = (in_day_ms / 1000, in_day_ms % 1000);
    let mut text = String::with_capacity(24);
    // Writing to a string never fails.
    let _ = write!(
        text,
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{ms:03}Z",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    );
    text
}

/// Returns the age of something in a suitable unit: `15 min`; `in 23 h` for a time in the future.
#[must_use]
pub fn age_text(age_ms: i64) -> String {
    const SECOND_MS: u64 = 1000;
    const MINUTE_MS: u64 = 60 * SECOND_MS;
    const HOUR_MS: u64 = 60 * MINUTE_MS;
    const DAY_MS: u64 = 24 * HOUR_MS;
    let ms = age_ms.unsigned_abs();
    // The next unit begins at two of it: a single one would hide too much of the remainder.
    let (amount, unit) = match ms {
        ..2_000 => (ms, "ms"),
        _ if ms < 2 * MINUTE_MS => (ms / SECOND_MS, "s"),
        _ if ms < 2 * HOUR_MS => (ms / MINUTE_MS, "min"),
        _ if ms < 2 * DAY_MS => (ms / HOUR_MS, "h"),
        _ => (ms / DAY_MS, "days"),
    };
    let ahead = if age_ms < 0 { "in " } else { "" };
    format!("{ahead}{amount} {unit}")
}

/// Returns year, month and day of a number of days since 1970, in the Gregorian calendar.
fn civil(days: i64) -> (i64, i64, i64) {
    // Years begin in March here, so that the leap day is the last day; an era has 400 years.
    let days = days + 719_468;
    let (era, in_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (in_era - in_era / 1460 + in_era / 36_524 - in_era / 146_096) / 365;
    let in_year = in_era - (365 * year + year / 4 - year / 100);
    let month = (5 * in_year + 2) / 153;
    let day = in_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

/// Returns the days since 1970 of a day in the Gregorian calendar.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, in_era) = (year.div_euclid(400), year.rem_euclid(400));
    let month = if month > 2 { month - 3 } else { month + 9 };
    let in_year = (153 * month + 2) / 5 + day - 1;
    era * 146_097 + in_era * 365 + in_era / 4 - in_era / 100 + in_year - 719_468
}

/// Parses a time, to the ns; relative times count from `now_ms`.
///
/// # Errors
/// The valid forms of a time.
pub fn parse(text: &str, now_ms: i64) -> Result<Time, String> {
    let text = text.trim();
    let found = if text == "now" {
        Some(Time::from_ms(now_ms))
    } else if let Some(rest) = text.strip_prefix(['-', '+']) {
        let moment_ms = relative(rest).and_then(|ms| {
            if text.starts_with('-') {
                now_ms.checked_sub(ms)
            } else {
                now_ms.checked_add(ms)
            }
        });
        moment_ms.map(Time::from_ms)
    } else if text
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.')
    {
        number(text)
    } else {
        calendar(text)
    };
    found.ok_or_else(|| FORMS.to_owned())
}

/// Parses `90s`, `1h30m`, `7d`; in ms.
fn relative(text: &str) -> Option<i64> {
    let mut rest = text;
    let mut total_ms: i64 = 0;
    loop {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit())?;
        let amount: i64 = rest[..digits].parse().ok()?;
        let tail = &rest[digits..];
        let letters = tail
            .find(|letter: char| !letter.is_ascii_alphabetic())
            .unwrap_or(tail.len());
        let unit_ms = match &tail[..letters] {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => DAY_MS,
            "w" => 7 * DAY_MS,
            _ => return None,
        };
        total_ms = total_ms.checked_add(amount.checked_mul(unit_ms)?)?;
        rest = &tail[letters..];
        if rest.is_empty() {
            return Some(total_ms);
        }
    }
}

/// Parses seconds, with an optional fraction, or milliseconds.
fn number(text: &str) -> Option<Time> {
    let (whole, fraction) = text
        .split_once('.')
        .map_or((text, None), |(whole, part)| (whole, Some(part)));
    let whole: i64 = whole.parse().ok()?;
    match fraction {
        None if whole >= SECONDS_BELOW => Some(Time::from_ms(whole)),
        None => time_of(whole, 0),
        Some(fraction) => time_of(whole, fraction_ns(fraction)?),
    }
}

/// Returns the time of these seconds and ns since 1970; without what is below 1 ms if no i64 counts the ns.
fn time_of(seconds: i64, ns: i64) -> Option<Time> {
    let exact_ns = seconds
        .checked_mul(NS_PER_SECOND)
        .and_then(|whole_ns| whole_ns.checked_add(ns));
    if let Some(ns) = exact_ns {
        return Some(Time::from_ns(ns));
    }
    let ms = seconds.checked_mul(1000)?.checked_add(ns / NS_PER_MS)?;
    Some(Time::from_ms(ms))
}

/// Returns the digits after a decimal point in billionths, truncated.
fn fraction_ns(digits: &str) -> Option<i64> {
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let padded: String = digits.chars().chain("00000000".chars()).take(9).collect();
    padded.parse().ok()
}

/// Parses `YYYY-MM-DD`, then optionally `T` or a space and `HH:MM[:SS[.fff]]`, then optionally `Z` or an offset.
fn calendar(text: &str) -> Option<Time> {
    let date = text.get(..10)?;
    let mut parts = date.split('-');
    let mut part = |digits: usize| -> Option<i64> {
        let part = parts.next()?;
        let fits = part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit());
        fits.then(|| part.parse().ok()).flatten()
    };
    let (year, month, day) = (part(4)?, part(2)?, part(2)?);
    let days = days_of(year, month, day);
    // A day that does not exist, such as 30 February, is converted back to another day.
    if civil(days) != (year, month, day) {
        return None;
    }
    let rest = &text[10..];
    let (clock, offset_s) = match rest.strip_prefix(['T', 't', ' ']) {
        None if rest.is_empty() => ("00:00", None),
        None => return None,
        Some(rest) => split_offset(rest)?,
    };
    let (clock, ns) = match clock.split_once('.') {
        Some((clock, fraction)) => (clock, fraction_ns(fraction)?),
        None => (clock, 0),
    };
    let mut parts = clock.split(':');
    let mut next = |limit: i64| -> Option<i64> { two_digits(parts.next()?, limit) };
    let (hour, minute) = (next(23)?, next(59)?);
    // 60 is a leap second.
    let second = match parts.next() {
        Some(part) => two_digits(part, 60)?,
        None if ns == 0 => 0,
        None => return None,
    };
    if parts.next().is_some() {
        return None;
    }
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second;
    let seconds = match offset_s {
        Some(offset_s) => seconds - offset_s,
        None => local_seconds(year, month, day, hour, minute, second)?,
    };
    time_of(seconds, ns)
}

fn two_digits(text: &str, limit: i64) -> Option<i64> {
    let fits = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = fits.then(|| text.parse().ok()).flatten()?;
    (number <= limit).then_some(number)
}

/// Splits off the offset from UTC in seconds, if there is one.
fn split_offset(text: &str) -> Option<(&str, Option<i64>)> {
    if let Some(clock) = text.strip_suffix(['Z', 'z']) {
        return Some((clock, Some(0)));
    }
    let Some(sign_at) = text.find(['+', '-']) else {
        return Some((text, None));
    };
    let (clock, offset) = text.split_at(sign_at);
    let (hours, minutes) = offset[1..].split_once(':')?;
    let seconds = two_digits(hours, 23)? * 3600 + two_digits(minutes, 59)? * 60;
    let seconds = if offset.starts_with('-') {
        -seconds
    } else {
        seconds
    };
    Some((clock, Some(seconds)))
}

/// Returns the seconds since 1970 of a moment in this machine's time zone.
fn local_seconds(
    year: i64,
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
) -> Option<i64> {
    // SAFETY: `tm` is plain data (and a pointer that may be null) for which all zero is a valid value.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    parts.tm_year = i32::try_from(year - 1900).ok()?;
    parts.tm_mon = i32::try_from(month - 1).ok()?;
    parts.tm_mday = i32::try_from(day).ok()?;
    parts.tm_hour = i32::try_from(hour).ok()?;
    parts.tm_min = i32::try_from(minute).ok()?;
    parts.tm_sec = i32::try_from(second).ok()?;
    // The system determines whether daylight saving time applies.
    parts.tm_isdst = -1;
    // SAFETY: `parts` is valid and exclusively borrowed for the length of the call.
    let seconds = unsafe { libc::mktime(&raw mut parts) };
    // -1 is also the last second of 1969, which is not a realistic input.
    #[allow(clippy::useless_conversion)] // 32 bits on some systems
    (seconds != -1).then(|| i64::from(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: i64 = 1_772_368_200_250; // 2026-03-01T12:30:00.250Z

    #[test]
    fn times_are_written_in_utc() {
        assert_eq!(format_ms(NOW_MS), "2026-03-01T12:30:00.250Z");
        assert_eq!(format_ms(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(format_ms(-1), "1969-12-31T23:59:59.999Z");
        assert_eq!(format_ms(951_782_400_000), "2000-02-29T00:00:00.000Z");
        // Any time that a sensor sends can be shown.
        for extreme in [i64::MIN, i64::MAX] {
            assert!(format_ms(extreme).ends_with('Z'));
        }
    }

    #[test]
    fn a_time_that_is_no_whole_ms_has_nine_digits() {
        for (ns, text) in [
            (1_772_368_200_250_000_000, "2026-03-01T12:30:00.250Z"),
            (1_772_368_200_250_000_001, "2026-03-01T12:30:00.250000001Z"),
            (-1, "1969-12-31T23:59:59.999999999Z"),
            (1_772_368_200_000_120_000, "2026-03-01T12:30:00.000120000Z"),
        ] {
            assert_eq!(format_time(Time::from_ns(ns)), text);
            assert_eq!(parse(text, 0), Ok(Time::from_ns(ns)));
        }
        // Old records may have such times.
        for ms in [i64::MIN, i64::MAX] {
            assert_eq!(format_time(Time::from_ms(ms)), format_ms(ms));
        }
    }

    #[test]
    fn ages_have_units() {
        for (ms, expected) in [
            (0, "0 ms"),
            (1_999, "1999 ms"),
            (2_000, "2 s"),
            (119_999, "119 s"),
            (15 * 60_000 + 400, "15 min"),
            (7_199_999, "119 min"),
            (7_200_000, "2 h"),
            (5 * DAY_MS, "5 days"),
            (-40, "in 40 ms"),
            (1 - DAY_MS, "in 23 h"),
            (i64::MIN, "in 106751991167 days"),
        ] {
            assert_eq!(age_text(ms), expected);
        }
    }

    #[test]
    fn every_day_converts_back_to_its_number() {
        for days in (-800_000..2_000_000).step_by(17) {
            let (year, month, day) = civil(days);
            assert_eq!(days_of(year, month, day), days);
        }
    }

    #[test]
    fn absolute_times_are_read() {
        for (text, expected) in [
            ("2026-03-01T12:30:00.250Z", NOW_MS),
            ("2026-03-01t12:30:00.25z", NOW_MS),
            ("2026-03-01 12:30:00.2500000009Z", NOW_MS),
            ("2026-03-01T14:30:00.250+02:00", NOW_MS),
            ("2026-03-01T05:00:00.250-07:30", NOW_MS),
            ("2026-03-01T12:30Z", NOW_MS - 250),
            ("1772368200", NOW_MS - 250),
            ("1772368200.25", NOW_MS),
            ("1772368200250", NOW_MS),
            ("0", 0),
        ] {
            assert_eq!(parse(text, 5), Ok(Time::from_ms(expected)), "{text}");
        }
        let ns = 1_772_368_200_250_900_000;
        for text in ["2026-03-01 12:30:00.2509Z", "1772368200.2509000009"] {
            assert_eq!(parse(text, 5), Ok(Time::from_ns(ns)), "{text}");
        }
        // Beyond what ns can count.
        assert_eq!(
            parse("9999-12-31T23:59:59.9999Z", 5),
            Ok(Time::from_ms(253_402_300_799_999))
        );
    }

    #[test]
    fn times_relative_to_now_are_read() {
        for (text, ms) in [
            ("now", 0),
            ("-1h", -3_600_000),
            ("-15m", -900_000),
            ("-7d", -7 * DAY_MS),
            ("-1h30m", -5_400_000),
            ("-250ms", -250),
            ("-2w", -14 * DAY_MS),
            ("+10s", 10_000),
        ] {
            let expected = Time::from_ms(NOW_MS + ms);
            assert_eq!(parse(text, NOW_MS), Ok(expected), "{text}");
        }
    }

    #[test]
    fn a_local_time_lies_within_a_day_of_utc() {
        for text in ["2026-03-01", "2026-03-01T00:00", "2026-03-01 00:00:00"] {
            let found = parse(text, 0).unwrap().ms();
            let utc = NOW_MS - 250 - 45_000_000;
            assert!((found - utc).abs() <= DAY_MS, "{text}: {found}");
        }
    }

    #[test]
    fn texts_of_other_forms_are_no_times() {
        for text in [
            "",
            "-",
            "-1",
            "-1y",
            "-h",
            "--1h",
            "yesterday",
            "2026-02-30",
            "2026-13-01",
            "2026-3-1",
            "2026-03-01T",
            "2026-03-01T24:00Z",
            "2026-03-01T12Z",
            "2026-03-01T12:30:00+2",
            "1.2.3",
            "1.",
            ".5",
            "99999999999999999999",
            "-99999999999999999d",
            "2026-03-01T12:30.5Z",
            "2026-03-01x",
            "2026-03-01T12:30:00:00Z",
            "２０２６-03-01",
        ] {
            assert!(parse(text, NOW_MS).is_err(), "{text}");
        }
    }
}
