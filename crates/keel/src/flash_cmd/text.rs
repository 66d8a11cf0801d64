//! Names, paths and identities as people write and read them.

use crate::error::CliError;
use std::ffi::OsStr;
use std::path::Path;

/// Returns a name as text. Names in a store are UTF-8; the store checks all other rules.
pub(super) fn name_text(name: &OsStr) -> Result<&str, CliError> {
    name.to_str().ok_or_else(|| {
        CliError::usage(
            name.display(),
            "the name is not UTF-8",
            "choose another name",
        )
    })
}

/// Returns a name for people: characters that could control the terminal are escaped, and so is the backslash.
pub(crate) fn shown_name(name: &str) -> String {
    let quotes = ['\'', '"'];
    // Quotes are harmless, but Rust would escape them.
    let escaped = |piece: &str| {
        let text = piece.trim_end_matches(quotes);
        format!("{}{}", text.escape_debug(), &piece[text.len()..])
    };
    name.split_inclusive(quotes).map(escaped).collect()
}

/// Returns a path for people, in the same way.
pub(super) fn shown_path(path: &Path) -> String {
    shown_name(&path.display().to_string())
}

/// Returns whether the path stands for standard input or output.
pub(super) fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Returns the usual text form of an identity.
pub(super) fn uuid_text(uuid: [u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ]
    .join("-")
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_identity_has_the_usual_text() {
        let text = super::uuid_text(*b"0123456789abcdef");
        assert_eq!(text, "30313233-3435-3637-3839-616263646566");
    }
}
