//! The errno that a program gets for an error of the store.

use flash::{Error, Part};
use fuser::Errno;

/// Returns the errno for an error of the store. The table of `base::error` decides unless it offers a choice; in some
/// cases a mount knows more than the code says.
pub(crate) fn of(error: &Error) -> Errno {
    match error {
        // As in Linux file systems: a checksum error in a file's data is an I/O error, a damaged structure is EUCLEAN,
        // which the table gives.
        Error::Damaged {
            part: Part::Data, ..
        }
        | Error::Device(_)
        | Error::Failed => Errno::EIO,
        Error::ReadOnly => Errno::EROFS,
        Error::TooLarge => Errno::EFBIG,
        Error::TooManyOpenFiles => Errno::ENFILE,
        Error::StaleHandle => Errno::ESTALE,
        other => Errno::from_i32(other.code().errno()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::block::DeviceError;

    #[test]
    fn errors_have_the_errno_that_programs_know() {
        let damaged = |part| Error::Damaged {
            part,
            block: 7,
            offset: None,
        };
        for (error, expected) in [
            (Error::NotFound, libc::ENOENT),
            (Error::Exists, libc::EEXIST),
            (Error::Full, libc::ENOSPC),
            (Error::NameTableFull, libc::ENOSPC),
            (Error::NameInvalid { reason: "empty" }, libc::EINVAL),
            (damaged(Part::Data), libc::EIO),
            (damaged(Part::Table), libc::EUCLEAN),
            (Error::Device(DeviceError::PowerLost), libc::EIO),
            (Error::Failed, libc::EIO),
            (Error::ReadOnly, libc::EROFS),
            (Error::TooLarge, libc::EFBIG),
            (Error::TooManyOpenFiles, libc::ENFILE),
            (Error::StaleHandle, libc::ESTALE),
        ] {
            assert_eq!(of(&error).code(), expected, "{error}");
        }
    }
}
