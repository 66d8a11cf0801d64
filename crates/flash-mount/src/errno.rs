//! What a program sees of an error of the store.

use flash::{Error, Part};
use fuser::Errno;

/// The errno of an error of the store. Where the table of `base::error` has no choice to make, it decides; a
/// mount knows more about some cases than the code says.
pub(crate) fn of(error: &Error) -> Errno {
    match error {
        // As Linux file systems do it: a file's bytes that fail their checksum are an I/O error, a damaged
        // structure is EUCLEAN, which the table has.
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
