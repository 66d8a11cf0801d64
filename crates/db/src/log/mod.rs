//! The durable log and the checkpoint: their bytes, their writer and their reader. SPEC.md says every byte.

pub mod checkpoint;
pub mod codec;
pub(crate) mod counters;
pub(crate) mod entry;
pub(crate) mod owners;
pub mod reader;
pub mod scan;
pub mod seal;
pub(crate) mod summary;
pub mod times;
pub mod writer;

/// Name of a log segment.
#[must_use]
pub fn segment_name(number: u32) -> String {
    format!("log-{number:08}")
}

/// Name of a checkpoint.
#[must_use]
pub fn checkpoint_name(number: u32) -> String {
    format!("ckpt-{number:08}")
}

/// Returns the number in a name made with this prefix; `None` for any other name.
#[must_use]
pub fn number_in(name: &str, prefix: &str) -> Option<u32> {
    let digits = name.strip_prefix(prefix)?;
    let number: u32 = digits.parse().ok()?;
    (format!("{number:08}") == digits).then_some(number)
}

/// Prefix of segment names.
pub const SEGMENT_PREFIX: &str = "log-";
/// Prefix of checkpoint names.
pub const CHECKPOINT_PREFIX: &str = "ckpt-";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_names_have_numbers() {
        assert_eq!(number_in(&segment_name(42), SEGMENT_PREFIX), Some(42));
        assert_eq!(
            number_in(&checkpoint_name(u32::MAX), CHECKPOINT_PREFIX),
            Some(u32::MAX)
        );
        for foreign in [
            "log-42",
            "log-000000042",
            "log-+0000042",
            "log-0000004x",
            "ckpt-00000042",
            "log-",
            "",
        ] {
            assert_eq!(number_in(foreign, SEGMENT_PREFIX), None, "{foreign}");
        }
    }
}
