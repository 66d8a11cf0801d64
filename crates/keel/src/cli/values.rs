//! Values of arguments: sizes, permissions, identities and speeds, as they are typed.

/// A number of bytes, with an optional binary suffix.
pub(super) fn size(text: &str) -> Result<u64, String> {
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

pub(super) fn permission_bits(text: &str) -> Result<u16, String> {
    match u16::from_str_radix(text, 8) {
        Ok(bits) if bits <= 0o777 => Ok(bits),
        _ => Err("must be octal, from 0 to 777, such as 640".to_owned()),
    }
}

/// The number of a user or group; the largest stands for none.
pub(super) fn identity(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| *number != u32::MAX);
    number
        .ok_or_else(|| "must be a number such as 1000; `id NAME` prints those of a user".to_owned())
}
