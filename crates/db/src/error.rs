//! The one error type of this crate, and why a log stopped.

use base::error::Code;

/// Why the durable log takes no more records. All but [`Full`](Self::Full) end only with the next successful open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogFailure {
    /// The store or its device failed a call.
    Device,
    /// The store has no room for another append. Ends when room returns.
    Full,
    /// The store became full in the middle of an append: only the next start can sort out what is there.
    Torn,
    /// The database was closed or dropped before the record was on flash.
    Closed,
}

impl LogFailure {
    /// A short word for status output: `device`, `full`, `torn` or `closed`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Full => "full",
            Self::Torn => "torn",
            Self::Closed => "closed",
        }
    }
}

/// What can go wrong in the real-time database.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The queue between producers and the commit thread is full. Nothing was changed; try again later.
    #[error("the log queue is full (queue_bytes_max): the store does not keep up")]
    Busy,
    /// The log failed; the record is not on flash and no later one will be.
    #[error("the log stopped ({}): no reading is durable until the database is opened again", .0.name())]
    LogFailed(LogFailure),
    /// The store is full: no reading is taken until room returns.
    #[error(
        "the store is full: keep less (history_bytes_max), allow the oldest to be dropped, or use a larger store"
    )]
    Full,
    /// The database was closed.
    #[error("the database is closed")]
    Closed,
    /// A wait ended before the record was durable. It may still become durable.
    #[error("the reading was not durable within the given time")]
    Timeout,
    /// No object has this key or id.
    #[error("no such object")]
    UnknownObject,
    /// The object is declared but no reading has arrived.
    #[error("the object has no value yet")]
    NoValue,
    /// The writer of the value has stopped in the middle of it, or was killed there.
    #[error("its writer has stopped in the middle of it")]
    Stalled,
    /// The caller's buffer is shorter than the value.
    #[error("the value has {needed_bytes} bytes, the buffer {buffer_bytes}")]
    BufferTooSmall {
        /// Bytes of the value.
        needed_bytes: usize,
        /// Bytes of the caller's buffer.
        buffer_bytes: usize,
    },
    /// The key is empty or longer than [`crate::KEY_BYTES_MAX`].
    #[error("a key has 1 to {} bytes, this one {bytes}", crate::KEY_BYTES_MAX)]
    KeyInvalid {
        /// Bytes of the refused key.
        bytes: usize,
    },
    /// The value is longer than the table's `value_bytes_max`.
    #[error("the value has {bytes} bytes, value_bytes_max is {value_bytes_max}")]
    ValueTooLong {
        /// Bytes of the refused value.
        bytes: usize,
        /// The configured limit.
        value_bytes_max: usize,
    },
    /// A time that an i64 of ns does not hold: before 1677 or after 2262.
    #[error("the timestamp is out of range")]
    TimestampInvalid,
    /// Every slot of the table is taken.
    #[error("the table holds objects_max = {objects_max} objects already")]
    TableFull {
        /// The configured limit.
        objects_max: u32,
    },
    /// The keys that there are leave no room for another one of this length.
    #[error("the keys take all bytes that key_bytes_mean = {key_bytes_mean} gives them")]
    KeysFull {
        /// The configured mean.
        key_bytes_mean: u32,
    },
    /// The log or checkpoint holds an object that the configured table cannot hold.
    #[error(
        "the stored data needs {what} of at least {needed}, configured is {configured}: raise it"
    )]
    TableTooSmall {
        /// Name of the option to raise.
        what: &'static str,
        /// The least value that would do for what was read so far; what follows may need more.
        needed: u64,
        /// The configured value.
        configured: u64,
    },
    /// The deadline of readings that are stored together has passed. None of them was stored.
    #[error("the deadline has passed: nothing was stored")]
    TooLate,
    /// An instance of a firm task has put more than can be committed at once. What it put before is kept.
    #[error(
        "an instance of a firm task puts at most {puts_max} readings of {bytes_max} bytes in all"
    )]
    StagedFull {
        /// Readings that one instance can put.
        puts_max: u32,
        /// Most bytes of these readings, each counted as 24 bytes plus its value rounded up to 8.
        bytes_max: usize,
    },
    /// The alarm is invalid.
    #[error("{problem}")]
    AlarmInvalid {
        /// What is wrong with it.
        problem: &'static str,
    },
    /// An option lies outside its range.
    #[error("option {name} must lie between {low} and {high}, it is {value}")]
    OptionInvalid {
        /// Name of the option.
        name: &'static str,
        /// The refused value.
        value: u64,
        /// Least value allowed.
        low: u64,
        /// Greatest value allowed.
        high: u64,
    },
    /// A slot table in a given region does not have the expected shape.
    #[error("the region holds no slot table of this version: {reason}")]
    RegionInvalid {
        /// What does not fit.
        reason: &'static str,
    },
    /// A later version wrote the log. Nothing was changed.
    #[error(
        "the log has format version {found}, this program knows up to {}: use a newer program",
        crate::limits::FORMAT_VERSION
    )]
    Version {
        /// Version in the file.
        found: u32,
    },
    /// The store failed outside the log (opening, listing, scanning).
    #[error("the store failed: {0}")]
    Store(#[from] crate::store::StoreError),
    /// The operating system refused a thread.
    #[error("the thread {name} could not be started")]
    Thread {
        /// Name of the thread.
        name: &'static str,
    },
}

impl Error {
    /// The one code this error maps to; see [`base::error`].
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Busy => Code::Busy,
            Self::LogFailed(LogFailure::Full)
            | Self::Full
            | Self::TableFull { .. }
            | Self::KeysFull { .. } => Code::Full,
            Self::LogFailed(LogFailure::Closed) | Self::Closed => Code::Gone,
            Self::LogFailed(_) | Self::Thread { .. } => Code::Io,
            Self::Timeout | Self::Stalled | Self::TooLate => Code::Late,
            Self::UnknownObject | Self::NoValue => Code::NotFound,
            Self::BufferTooSmall { .. }
            | Self::KeyInvalid { .. }
            | Self::ValueTooLong { .. }
            | Self::TimestampInvalid
            | Self::StagedFull { .. }
            | Self::TableTooSmall { .. }
            | Self::AlarmInvalid { .. }
            | Self::OptionInvalid { .. } => Code::Invalid,
            Self::RegionInvalid { .. } => Code::Corrupt,
            Self::Version { .. } => Code::Unsupported,
            Self::Store(error) => error.code(),
        }
    }
}

impl From<LogFailure> for Error {
    /// Each failure has its own remedy: make room, open the database again, replace the card.
    fn from(failure: LogFailure) -> Self {
        match failure {
            LogFailure::Full => Self::Full,
            LogFailure::Closed => Self::Closed,
            other => Self::LogFailed(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_store_is_told_apart_from_a_broken_device() {
        assert_eq!(Error::from(LogFailure::Full), Error::Full);
        assert_eq!(
            Error::from(LogFailure::Device),
            Error::LogFailed(LogFailure::Device)
        );
        assert_eq!(Error::from(LogFailure::Full).code(), Code::Full);
        assert_eq!(Error::from(LogFailure::Closed).code(), Code::Gone);
    }

    #[test]
    fn the_text_about_a_key_has_both_lengths() {
        let text = Error::KeyInvalid { bytes: 256 }.to_string();
        assert_eq!(text, "a key has 1 to 255 bytes, this one 256");
    }
}
