//! Why a call of the client failed: a code, and one line that names the object, what is wrong with it and the remedy.

use crate::connection::ConnectionError;
use crate::protocol::Failure;
use base::error::Code;
use std::fmt;

/// A failed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    code: Code,
    thing: String,
    wrong: String,
    remedy: String,
}

impl Error {
    pub(crate) fn new(
        code: Code,
        thing: impl fmt::Display,
        wrong: impl fmt::Display,
        remedy: impl fmt::Display,
    ) -> Self {
        Self {
            code,
            thing: one_line(&thing),
            wrong: one_line(&wrong),
            remedy: one_line(&remedy),
        }
    }

    /// Returns the error code of this error; see [`base::error`].
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    /// Returns the object that it is about.
    #[must_use]
    pub fn thing(&self) -> &str {
        &self.thing
    }

    /// Returns what is wrong with it.
    #[must_use]
    pub fn wrong(&self) -> &str {
        &self.wrong
    }

    /// Returns the remedy; may be empty.
    #[must_use]
    pub fn remedy(&self) -> &str {
        &self.remedy
    }

    /// Builds the error for the node's answer.
    pub(crate) fn refused(failure: &Failure) -> Self {
        let code = Code::from_name(&failure.code).unwrap_or(Code::Io);
        Self::new(code, &failure.thing, &failure.wrong, &failure.remedy)
    }

    /// Builds the error for a failed connection to the node `shown`.
    pub(crate) fn connection(shown: impl fmt::Display, error: &ConnectionError) -> Self {
        if let ConnectionError::Refused(failure) = error {
            return Self::refused(failure);
        }
        let remedy = match error.code() {
            Code::Denied => "run as the node's user, or as a member of its group",
            Code::Invalid => "name the socket of a node",
            Code::Unsupported => "use a client of the node's version",
            Code::Late => "look at the node's process",
            _ => "look whether the node runs",
        };
        Self::new(error.code(), shown, error, remedy)
    }

    /// Builds the error for the database's error about a key.
    pub(crate) fn of_key(key: &str, error: &db::Error) -> Self {
        let remedy = match error {
            db::Error::NoValue => "wait for its first reading",
            db::Error::Stalled => "look whether the node runs",
            _ => "",
        };
        Self::new(error.code(), key, error, remedy)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.thing, self.wrong)?;
        if self.remedy.is_empty() {
            Ok(())
        } else {
            write!(formatter, "; {}", self.remedy)
        }
    }
}

impl std::error::Error for Error {}

/// Keys and texts have any origin: a line break in one must not split the error into two lines.
fn one_line(text: &impl fmt::Display) -> String {
    let escape = |letter: char| -> String {
        if letter.is_control() {
            letter.escape_default().to_string()
        } else {
            letter.to_string()
        }
    };
    text.to_string().chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_with_a_code() {
        let error = Error::new(Code::Full, "a\nb", "has\tno room", "mend it");
        assert_eq!(error.to_string(), "a\\nb: has\\tno room; mend it");
        assert_eq!(Error::new(Code::Io, "x", "y", "").to_string(), "x: y");
        let failure = Failure {
            code: "busy".to_owned(),
            thing: "node".to_owned(),
            wrong: "is full".to_owned(),
            remedy: "wait".to_owned(),
        };
        let error = Error::connection("x", &ConnectionError::Refused(failure));
        assert_eq!(error.code(), Code::Busy);
        assert_eq!(error.to_string(), "node: is full; wait");
        let error = Error::connection("keel.sock", &ConnectionError::Closed);
        assert_eq!(
            error.to_string(),
            "keel.sock: the node has closed the connection; look whether the node runs"
        );
    }
}
