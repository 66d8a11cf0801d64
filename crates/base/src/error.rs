//! The error-code table: every room has its own error enum, and each of its variants has one [`Code`].
//!
//! A code maps once, here. It maps to an errno (FUSE, preload library), an exit status, an HTTP status (`egress`), a C
//! value and a name (JSON, logs, metrics). No other place decides such a mapping.

use std::fmt;

/// What kind of failure this is, as far as a caller outside the room can act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Code {
    /// A device or the operating system failed; trying again may help, the data is not known to be damaged.
    Io,
    /// Stored or received bytes are damaged: a checksum or a structure does not hold.
    Corrupt,
    /// No room: device, table, queue or quota.
    Full,
    /// The deadline has passed, or could not be met.
    Late,
    /// What the caller holds is out of date: a value past its validity, a handle of an earlier life.
    Stale,
    /// Another user or process holds it now; trying again later may help.
    Busy,
    /// The request itself makes no sense: a bad argument, name, range or configuration.
    Invalid,
    /// The request makes sense but is not permitted.
    Denied,
    /// The other side has ended and will not come back: a closed store, a finished task.
    Gone,
    /// The request is understood but not offered, here or in this version.
    Unsupported,
    /// It does not exist.
    NotFound,
    /// It exists already.
    Exists,
    /// It was discarded on purpose to reduce load, as configured: nothing has failed, nothing is kept.
    Shed,
}

impl Code {
    /// Every code, in the order of their C values.
    pub const ALL: [Self; 13] = [
        Self::Io,
        Self::Corrupt,
        Self::Full,
        Self::Late,
        Self::Stale,
        Self::Busy,
        Self::Invalid,
        Self::Denied,
        Self::Gone,
        Self::Unsupported,
        Self::NotFound,
        Self::Exists,
        Self::Shed,
    ];

    /// The errno of this platform, positive.
    #[must_use]
    pub const fn errno(self) -> i32 {
        match self {
            Self::Io => libc::EIO,
            // What ext4 and XFS return for damaged structures; EIO would hide that a retry is useless.
            Self::Corrupt => libc::EUCLEAN,
            Self::Full => libc::ENOSPC,
            Self::Late => libc::ETIMEDOUT,
            Self::Stale => libc::ESTALE,
            Self::Busy => libc::EBUSY,
            Self::Invalid => libc::EINVAL,
            Self::Denied => libc::EACCES,
            Self::Gone => libc::ENXIO,
            Self::Unsupported => libc::EOPNOTSUPP,
            Self::NotFound => libc::ENOENT,
            Self::Exists => libc::EEXIST,
            Self::Shed => libc::ECANCELED,
        }
    }

    /// The exit status of a command that failed with this code: 2 for wrong usage, otherwise 1.
    #[must_use]
    pub const fn exit_status(self) -> u8 {
        match self {
            Self::Invalid => 2,
            _ => 1,
        }
    }

    /// The HTTP status of a response that reports this code.
    #[must_use]
    pub const fn http_status(self) -> u16 {
        match self {
            Self::Io | Self::Corrupt => 500,
            Self::Full => 507,
            Self::Late => 504,
            Self::Stale => 412,
            Self::Busy | Self::Shed => 503,
            Self::Invalid => 400,
            Self::Denied => 403,
            Self::Gone => 410,
            Self::Unsupported => 501,
            Self::NotFound => 404,
            Self::Exists => 409,
        }
    }

    /// The value in the C interface: negative, never reused, never renumbered. Success is 0 there.
    #[must_use]
    pub const fn c_value(self) -> i32 {
        match self {
            Self::Io => -1,
            Self::Corrupt => -2,
            Self::Full => -3,
            Self::Late => -4,
            Self::Stale => -5,
            Self::Busy => -6,
            Self::Invalid => -7,
            Self::Denied => -8,
            Self::Gone => -9,
            Self::Unsupported => -10,
            Self::NotFound => -11,
            Self::Exists => -12,
            Self::Shed => -13,
        }
    }

    /// The code of a C value; `None` for success and for values that this version does not know.
    #[must_use]
    pub const fn from_c_value(value: i32) -> Option<Self> {
        match value {
            -13..=-1 => Some(Self::ALL[(-1 - value) as usize]),
            _ => None,
        }
    }

    /// The name in JSON, logs and metrics, in kebab case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Io => "io",
            Self::Corrupt => "corrupt",
            Self::Full => "full",
            Self::Late => "late",
            Self::Stale => "stale",
            Self::Busy => "busy",
            Self::Invalid => "invalid",
            Self::Denied => "denied",
            Self::Gone => "gone",
            Self::Unsupported => "unsupported",
            Self::NotFound => "not-found",
            Self::Exists => "exists",
            Self::Shed => "shed",
        }
    }

    /// The code of a name as [`name`](Self::name) gives it.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.name() == name)
    }

    /// Returns the code that best describes an error of the operating system.
    #[must_use]
    pub fn from_io(error: &std::io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENOENT) => Self::NotFound,
            Some(libc::EEXIST) => Self::Exists,
            Some(libc::EACCES | libc::EPERM | libc::EROFS) => Self::Denied,
            Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => Self::Full,
            Some(libc::EBUSY | libc::ETXTBSY | libc::EWOULDBLOCK) => Self::Busy,
            Some(libc::EINVAL | libc::EISDIR | libc::ENOTDIR | libc::ENAMETOOLONG) => Self::Invalid,
            Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY) => Self::Unsupported,
            Some(libc::ETIMEDOUT) => Self::Late,
            Some(libc::ESTALE) => Self::Stale,
            Some(libc::EUCLEAN | libc::EBADMSG) => Self::Corrupt,
            Some(libc::ENXIO | libc::ENODEV) => Self::Gone,
            Some(libc::ECANCELED) => Self::Shed,
            _ => Self::Io,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// Returns the text of an error of the operating system without its number.
#[must_use]
pub fn io_text(error: &std::io::Error) -> String {
    let mut text = error.to_string();
    if let Some(end) = text.find(" (os error") {
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_code_has_its_own_errno_c_value_and_name() {
        let errnos: HashSet<i32> = Code::ALL.iter().map(|code| code.errno()).collect();
        let values: HashSet<i32> = Code::ALL.iter().map(|code| code.c_value()).collect();
        let names: HashSet<&str> = Code::ALL.iter().map(|code| code.name()).collect();
        assert_eq!(errnos.len(), Code::ALL.len());
        assert_eq!(values.len(), Code::ALL.len());
        assert_eq!(names.len(), Code::ALL.len());
    }

    #[test]
    fn c_values_and_names_convert_back_to_their_codes() {
        for code in Code::ALL {
            assert_eq!(Code::from_c_value(code.c_value()), Some(code));
            assert_eq!(Code::from_name(code.name()), Some(code));
            assert!(code.c_value() < 0);
        }
        for value in [0, 1, -14, i32::MIN, i32::MAX] {
            assert_eq!(Code::from_c_value(value), None);
        }
        assert_eq!(Code::from_name("Io"), None);
    }

    #[test]
    fn names_are_kebab_case_and_statuses_are_errors() {
        for code in Code::ALL {
            assert!(
                code.name()
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte == b'-'),
                "{code}"
            );
            assert!((400..600).contains(&code.http_status()), "{code}");
            assert_eq!(code.exit_status() == 2, code == Code::Invalid);
            assert!(code.exit_status() == 1 || code.exit_status() == 2);
        }
    }

    #[test]
    fn errno_of_a_code_leads_back_to_it() {
        for code in Code::ALL {
            assert_eq!(
                Code::from_io(&std::io::Error::from_raw_os_error(code.errno())),
                code
            );
        }
        assert_eq!(Code::from_io(&std::io::Error::other("made up")), Code::Io);
    }
}
