//! How a command fails: one line on standard error with the object, the problem and the remedy.

use crate::limit;
use base::error::Code;
use std::fmt;

/// A failed command.
#[derive(Debug)]
pub struct CliError {
    /// The file, option or part that failed.
    thing: String,
    /// The problem.
    wrong: String,
    /// The remedy.
    remedy: String,
    status: u8,
    /// Whether another program is using the object, so that a later retry may help.
    is_busy: bool,
}

/// Exit status of wrong usage, the same as clap's.
pub const STATUS_USAGE: u8 = 2;

/// Exit status of a failure.
pub const STATUS_FAILURE: u8 = 1;

impl CliError {
    /// Creates a failure (exit status 1).
    #[must_use]
    pub fn failure(
        thing: impl fmt::Display,
        wrong: impl fmt::Display,
        remedy: impl fmt::Display,
    ) -> Self {
        Self::new(STATUS_FAILURE, thing, wrong, remedy)
    }

    /// Creates a failure of wrong usage (exit status 2).
    #[must_use]
    pub fn usage(
        thing: impl fmt::Display,
        wrong: impl fmt::Display,
        remedy: impl fmt::Display,
    ) -> Self {
        Self::new(STATUS_USAGE, thing, wrong, remedy)
    }

    /// Creates a failure with the exit status of its code.
    #[must_use]
    pub fn coded(
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

    /// Returns the failure with another exit status, which the command's help explains.
    #[must_use]
    pub fn with_status(mut self, status: u8) -> Self {
        self.status = status;
        self
    }

    /// Returns the exit status of the program.
    #[must_use]
    pub fn status(&self) -> u8 {
        self.status
    }

    /// Marks the object as in use by another program.
    #[must_use]
    pub fn of_a_busy_thing(mut self) -> Self {
        self.is_busy = true;
        self
    }

    /// Returns whether another program is using the object, so that a later retry may help.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Returns the failure with an additional note.
    #[must_use]
    pub fn with_note(mut self, note: impl fmt::Display) -> Self {
        self.wrong = format!("{}; {}", self.wrong, one_line(&note));
        self
    }

    /// Returns the failure with another remedy.
    #[must_use]
    pub fn with_remedy(mut self, remedy: impl fmt::Display) -> Self {
        self.remedy = one_line(&remedy);
        self
    }

    /// Returns the failure with the user that lacks a permission, if that is what is wrong.
    #[must_use]
    pub fn for_user(mut self, user: impl fmt::Display) -> Self {
        const DENIED: &str = "ermission denied";
        if let Some(at) = self.wrong.find(DENIED) {
            let user = format!(" for the user {}", one_line(&user));
            self.wrong.insert_str(at + DENIED.len(), &user);
        }
        self
    }

    /// Creates a failure of an input or output of the operating system.
    #[must_use]
    pub fn io(thing: impl fmt::Display, error: &std::io::Error) -> Self {
        if let Some(told) = too_few(error) {
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
            Code::Denied => "check the permissions, or run as a user with access",
            Code::Full => "free some space",
            Code::Exists => "choose another path",
            Code::Busy => "close what uses it, then try again",
            _ => "try again, and check the disk if it stays",
        }
    }
}

/// Returns the failure to report if this error means that there are too few descriptors; `None` if it means something
/// else.
#[must_use]
pub fn too_few(error: &std::io::Error) -> Option<CliError> {
    match error.raw_os_error()? {
        libc::EMFILE => {
            let allowed = limit::open_files().map_or(0, |limit| limit.rlim_cur);
            Some(CliError::failure(
                "open files",
                format_args!(
                    "a limit (`ulimit -n`) allows this program {allowed}, which are too few"
                ),
                "raise it with `ulimit -n 1024`, or with LimitNOFILE= where systemd starts it",
            ))
        }
        libc::ENFILE => Some(CliError::failure(
            "open files",
            "all programs together have as many as the machine allows (fs.file-max)",
            "end programs that hold many, or allow more with `sysctl fs.file-max=`",
        )),
        _ => None,
    }
}

/// Like [`too_few`], for an error that is caused by an error of the operating system.
#[must_use]
pub fn too_few_behind(error: &(dyn std::error::Error + 'static)) -> Option<CliError> {
    std::iter::successors(Some(error), |error| (*error).source())
        .filter_map(|error| error.downcast_ref::<std::io::Error>())
        .find_map(too_few)
}

/// Returns the text of an error of the operating system without its number.
#[must_use]
pub fn describe(error: &std::io::Error) -> String {
    let text = base::error::io_text(error);
    let mut letters = text.chars();
    // Lower case fits better within a line: "no such file" instead of "No such file".
    letters
        .next()
        .map(|first| first.to_lowercase().chain(letters).collect())
        .unwrap_or_default()
}

/// Returns a text as one line. Names and texts are untrusted: a line break must not make two lines, nor an escape
/// sequence reach a terminal.
#[must_use]
pub fn one_line(text: &impl fmt::Display) -> String {
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
    fn a_missing_permission_names_the_user_that_lacks_it() {
        let denied = CliError::io("x.img", &std::io::Error::from_raw_os_error(libc::EACCES));
        let told = denied.for_user("keel").to_string();
        assert!(
            told.starts_with("x.img: permission denied for the user keel; "),
            "{told}"
        );
        let other = CliError::failure("x.img", "is broken", "mend it");
        assert_eq!(
            other.for_user("keel").to_string(),
            "x.img: is broken; mend it"
        );
    }

    #[test]
    fn an_error_is_one_line_with_any_name() {
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
