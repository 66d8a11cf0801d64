//! How a command fails: one line on standard error that names the thing, what is wrong and the remedy.

use base::error::Code;
use std::fmt;

/// A failed command.
#[derive(Debug)]
pub(crate) struct CliError {
    /// The file, option or part that the failure is about.
    thing: String,
    /// What is wrong with it.
    wrong: String,
    /// What to do about it.
    remedy: String,
    status: u8,
    /// Another program has the thing now: trying again later may help.
    is_busy: bool,
}

/// Exit status of wrong usage, as clap uses it too.
pub(crate) const STATUS_USAGE: u8 = 2;

/// Exit status of a failure.
pub(crate) const STATUS_FAILURE: u8 = 1;

impl CliError {
    /// A failure (exit status 1).
    pub(crate) fn failure(
        thing: impl fmt::Display,
        wrong: impl fmt::Display,
        remedy: impl fmt::Display,
    ) -> Self {
        Self::new(STATUS_FAILURE, thing, wrong, remedy)
    }

    /// Wrong usage (exit status 2).
    pub(crate) fn usage(
        thing: impl fmt::Display,
        wrong: impl fmt::Display,
        remedy: impl fmt::Display,
    ) -> Self {
        Self::new(STATUS_USAGE, thing, wrong, remedy)
    }

    /// A failure whose exit status is that of its code.
    pub(crate) fn coded(
        code: Code,
        thing: impl fmt::Display,
        wrong: impl fmt::Display,
        remedy: impl fmt::Display,
    ) -> Self {
        Self::new(code.exit_status(), thing, wrong, remedy)
    }

    fn new(
        status: u8,
        thing: impl fmt::Display,
        wrong: impl fmt::Display,
        remedy: impl fmt::Display,
    ) -> Self {
        let thing = one_line(&thing);
        Self {
            thing: match thing.is_empty() {
                true => "(empty)".to_owned(),
                false => thing,
            },
            wrong: one_line(&wrong),
            remedy: one_line(&remedy),
            status,
            is_busy: false,
        }
    }

    /// The same failure with another exit status, which the command's help explains.
    pub(crate) fn with_status(mut self, status: u8) -> Self {
        self.status = status;
        self
    }

    /// The exit status of the program.
    pub(crate) fn status(&self) -> u8 {
        self.status
    }

    /// The same failure, of a thing that another program has now.
    pub(crate) fn of_a_busy_thing(mut self) -> Self {
        self.is_busy = true;
        self
    }

    /// Whether another program has the thing now: trying again later may help.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// The same failure with something more to know about it.
    pub(crate) fn with_note(mut self, note: impl fmt::Display) -> Self {
        self.wrong = format!("{}; {}", self.wrong, one_line(&note));
        self
    }

    /// The same failure where something else is to be done about it.
    pub(crate) fn with_remedy(mut self, remedy: impl fmt::Display) -> Self {
        self.remedy = one_line(&remedy);
        self
    }

    /// An input or output of the operating system failed.
    pub(crate) fn io(thing: impl fmt::Display, error: &std::io::Error) -> Self {
        if let Some(told) = crate::descriptors::too_few(error) {
            return told;
        }
        let remedy = match error.raw_os_error() {
            Some(libc::EISDIR) => "name a file",
            Some(libc::ENOTDIR | libc::ENAMETOOLONG | libc::ELOOP) => "check the path",
            Some(libc::EADDRINUSE) => {
                "give another address or port, or end the program that has this one"
            }
            Some(libc::EADDRNOTAVAIL) => "give an address of this machine",
            Some(libc::EROFS) => "choose a place that can be written",
            Some(libc::EFBIG) => {
                "the file system or a limit of this user allows no file of this size"
            }
            _ => Self::io_remedy(Code::from_io(error)),
        };
        Self::failure(thing, describe(error), remedy)
    }

    fn io_remedy(code: Code) -> &'static str {
        match code {
            Code::NotFound => "check the path",
            Code::Denied => "check the permissions, or run as a user who may",
            Code::Full => "free some space",
            Code::Exists => "choose another path",
            Code::Busy => "close what uses it, then try again",
            _ => "try again, and check the disk if it stays",
        }
    }
}

/// The text of an error of the operating system without its number.
pub(crate) fn describe(error: &std::io::Error) -> String {
    let text = error.to_string();
    let end = text.find(" (os error").unwrap_or(text.len());
    let mut letters = text[..end].chars();
    // "No such file" reads better in the middle of a line as "no such file".
    letters
        .next()
        .map(|first| first.to_lowercase().chain(letters).collect())
        .unwrap_or_default()
}

/// Names and texts come from anywhere: a line break in one must not make two lines, nor an escape sequence
/// reach a terminal.
pub(crate) fn one_line(text: &impl fmt::Display) -> String {
    let escape = |letter: char| -> String {
        if letter.is_control() {
            letter.escape_default().to_string()
        } else {
            letter.to_string()
        }
    };
    text.to_string().chars().map(escape).collect()
}

impl fmt::Display for CliError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.thing, self.wrong)?;
        if self.remedy.is_empty() {
            Ok(())
        } else {
            write!(formatter, "; {}", self.remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_whatever_it_names() {
        let error = CliError::failure("a\nb", "is\r\nbroken", "mend it");
        assert_eq!(error.to_string(), "a\\nb: is\\r\\nbroken; mend it");
        assert_eq!(error.status(), 1);
        assert_eq!(CliError::usage("x", "y", "").to_string(), "x: y");
    }

    #[test]
    fn the_operating_system_is_quoted_without_numbers() {
        let error = CliError::io("x.img", &std::io::Error::from_raw_os_error(2));
        assert_eq!(
            error.to_string(),
            "x.img: no such file or directory; check the path"
        );
    }
}
