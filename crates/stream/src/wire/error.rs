//! The error of decoding.

use base::error::Code;

/// Why a payload is not a message. The connection is then closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The frame has another version of the protocol.
    #[error("a message of version {0} of the protocol")]
    Version(u16),
    /// There is no such message in this direction and version.
    #[error("no message of kind {0:#06x}")]
    Kind(u16),
    /// The payload ends within the message.
    #[error("a message that ends too early")]
    Short,
    /// The payload goes on behind the message.
    #[error("a message with bytes behind its end")]
    Trailing,
    /// A number is not in its shortest form, or is too large for its meaning.
    #[error("a number that is none")]
    Number,
    /// A limit is exceeded.
    #[error("too many: {0}")]
    Limit(&'static str),
    /// A value has no meaning.
    #[error("{0}")]
    Value(&'static str),
}

impl DecodeError {
    /// Returns the error code that this error maps to; see [`base::error`].
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Version(_) | Self::Kind(_) => Code::Unsupported,
            Self::Limit(_) => Code::Invalid,
            Self::Short | Self::Trailing | Self::Number | Self::Value(_) => Code::Corrupt,
        }
    }
}
