//! The documented configuration that `keel config example` prints.

/// Returns a `keel.toml` that works unedited and names every key with its default.
#[must_use]
pub fn example() -> &'static str {
    include_str!("example.toml")
}
