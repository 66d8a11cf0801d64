//! Errors of a source as a whole. A bad line is not an error: it is counted, see [`crate::trace::Rejections`].

use base::error::Code;

/// Why a source cannot be used.
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
    /// A pattern of names is invalid.
    #[error("the pattern `{pattern}` does not fit: {reason}")]
    Pattern {
        /// Its beginning, escaped.
        pattern: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A template for keys is invalid.
    #[error("the key template `{template}` does not fit: {reason}")]
    Template {
        /// Its beginning, escaped.
        template: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A socket cannot be listened on.
    #[error("cannot listen on {address}: {reason}")]
    Listen {
        /// Address or path.
        address: String,
        /// What is wrong, and the remedy where there is one.
        reason: String,
        /// What kind of failure it is.
        code: Code,
    },
    /// A number lies outside its range.
    #[error("{name} must lie between {low} and {high}, it is {value}")]
    OptionRange {
        /// Its name.
        name: &'static str,
        /// The refused value.
        value: u64,
        /// Least value allowed.
        low: u64,
        /// Greatest value allowed.
        high: u64,
    },
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
            Self::Header { .. }
            | Self::Sensor { .. }
            | Self::Option(_)
            | Self::Pattern { .. }
            | Self::Template { .. }
            | Self::OptionRange { .. } => Code::Invalid,
            Self::Listen { code, .. } => *code,
            Self::TooLarge { .. } => Code::Full,
            Self::Database(error) => error.code(),
        }
    }
}
