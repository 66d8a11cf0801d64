//! Values of arguments as they are typed: sizes, permissions, identities, names, times; and the first paragraph of an
//! error about arguments.

/// A number of bytes, with an optional binary suffix.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let wrong = || "must be a number of bytes such as 268435456, 256M or 4G".to_owned();
    let upper = text.trim().to_ascii_uppercase();
    let digits_end = upper
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(upper.len());
    let (digits, suffix) = upper.split_at(digits_end);
    let shift = match suffix {
        "" | "B" => 0,
        "K" | "KIB" => 10,
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        "T" | "TIB" => 40,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number
        .checked_mul(1 << shift)
        .filter(|bytes| *bytes <= i64::MAX as u64)
        .ok_or_else(|| "is too large".to_owned())
}

/// Permission bits, in octal.
pub(crate) fn permission_bits(text: &str) -> Result<u16, String> {
    match u16::from_str_radix(text, 8) {
        Ok(bits) if bits <= 0o777 => Ok(bits),
        _ => Err("must be octal, from 0 to 777, such as 640".to_owned()),
    }
}

/// The number of a user or group; the largest stands for none.
pub(crate) fn identity(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| *number != u32::MAX);
    number
        .ok_or_else(|| "must be a number such as 1000; `id NAME` prints those of a user".to_owned())
}

/// What a run is called: as result files take it.
pub(crate) fn label(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > 200 || text.chars().any(char::is_control) {
        return Err("must have 1 to 200 bytes and no control characters".to_owned());
    }
    Ok(text.to_owned())
}

/// A length of time that is one.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds.is_finite() => Ok(seconds),
        _ => Err("must be a number of seconds above 0, such as 30 or 0.5".to_owned()),
    }
}

/// What is wrong, out of an error of the parser: its first paragraph; the rest repeats the usage.
pub(crate) fn first_paragraph(text: &str) -> String {
    let lines = text
        .lines()
        .take_while(|line| !line.trim().is_empty())
        .map(str::trim);
    let wrong = lines.collect::<Vec<_>>().join(" ");
    wrong.strip_prefix("error: ").unwrap_or(&wrong).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_a_suffix() {
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("256M"), Ok(256 << 20));
        assert_eq!(size("1k"), Ok(1024));
        assert_eq!(size("2GiB"), Ok(2 << 30));
        assert_eq!(size("1T"), Ok(1 << 40));
        for bad in ["", "M", "1.5G", "-1", "1Q", "99999999T", "1 M"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
