//! Errors of a trace as a whole. A bad line of readings is not an error: it is counted, see [`crate::Rejections`].

use base::error::Code;

/// Why a trace cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The source could not be read or decompressed.
    #[error("{table}: cannot be read after line {line}: {source}")]
    Read {
        /// `sensors` or `readings`.
        table: &'static str,
        /// Lines read before the failure.
        line: u64,
        /// The reader's error.
        source: std::io::Error,
    },
    /// The first line is not the expected header.
    #[error("{table}: the first line must be `{expected}`")]
    Header {
        /// `sensors` or `readings`.
        table: &'static str,
        /// The header as it must stand.
        expected: &'static str,
    },
    /// A line of the sensor table is unusable. Sensors are configuration: one bad line makes the whole table unusable.
    #[error("sensors: line {line}: {reason}")]
    Sensor {
        /// Line number, from 1.
        line: u64,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The source is larger than its limit.
    #[error("{table}: more than {limit} {unit}")]
    TooLarge {
        /// `sensors` or `readings`.
        table: &'static str,
        /// The limit that was exceeded.
        limit: u64,
        /// What is counted.
        unit: &'static str,
    },
    /// A replay option is outside its range.
    #[error("replay: {0}")]
    Option(&'static str),
    /// The database refused.
    #[error(transparent)]
    Database(#[from] db::Error),
}

impl Error {
    /// Returns the error code of this error; see [`base::error`].
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Read { .. } => Code::Io,
            Self::Header { .. } | Self::Sensor { .. } | Self::Option(_) => Code::Invalid,
            Self::TooLarge { .. } => Code::Full,
            Self::Database(error) => error.code(),
        }
    }
}
