//! Names, permissions and times of files as people and programs read them.

use crate::flash_cmd::shown_name;

/// Returns a name for people: bytes that are no UTF-8 are shown as `\xff`. A backslash in a name is doubled, so no two
/// names look the same.
pub(crate) fn shown(name: &[u8]) -> String {
    let mut text = String::new();
    for chunk in name.utf8_chunks() {
        text.push_str(&shown_name(chunk.valid()));
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// Returns the bytes of a name that is no UTF-8, for programs; `None` for other names.
pub(crate) fn hex(name: &[u8]) -> Option<String> {
    let is_text = std::str::from_utf8(name).is_ok();
    (!is_text).then(|| name.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns the mode as `ls -l` shows it: `drwxr-xr-x`.
pub(crate) fn mode_text(mode: u32) -> String {
    let kind = match mode & libc::S_IFMT {
        libc::S_IFDIR => 'd',
        libc::S_IFLNK => 'l',
        _ => '-',
    };
    let mut text = String::from(kind);
    for (shift, special, letter) in [
        (6, libc::S_ISUID, 's'),
        (3, libc::S_ISGID, 's'),
        (0, libc::S_ISVTX, 't'),
    ] {
        let bits = mode >> shift;
        text.push(if bits & 4 == 0 { '-' } else { 'r' });
        text.push(if bits & 2 == 0 { '-' } else { 'w' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

pub(super) fn milliseconds(time_ns: u64) -> i64 {
    (time_ns as i64).div_euclid(1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_no_text_are_told_apart() {
        assert_eq!(shown(b"plain"), "plain");
        assert_eq!(shown(b"\xff"), r"\xff");
        assert_eq!(shown(b"\\xff"), r"\\xff");
        assert_eq!(shown("\u{fffd}".as_bytes()), "\u{fffd}");
        assert_eq!(shown(b"a\xc3b\nc"), r"a\xc3b\nc");
        assert_eq!(hex(b"a\xc3"), Some("61c3".into()));
        assert_eq!(hex("\u{fffd}".as_bytes()), None);
    }

    #[test]
    fn permissions_read_as_ls_shows_them() {
        for (mode, expected) in [
            (0o040_755, "drwxr-xr-x"),
            (0o100_640, "-rw-r-----"),
            (0o120_777, "lrwxrwxrwx"),
            (0o104_755, "-rwsr-xr-x"),
            (0o102_644, "-rw-r-Sr--"),
            (0o041_777, "drwxrwxrwt"),
            (0o041_776, "drwxrwxrwT"),
        ] {
            assert_eq!(mode_text(mode), expected);
        }
        assert_eq!(milliseconds(-1_i64 as u64), -1);
    }
}
