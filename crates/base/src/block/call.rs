//! System calls that a signal may interrupt.

use std::io::{Error, ErrorKind};

/// Makes a raw system call until it is not interrupted by a signal.
pub(super) fn retry(mut call: impl FnMut() -> libc::c_int) -> Result<(), Error> {
    uninterrupted(|| {
        if call() == -1 {
            Err(Error::last_os_error())
        } else {
            Ok(())
        }
    })
}

/// Makes a call until it is not interrupted by a signal.
pub(super) fn uninterrupted<T>(mut call: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupted_calls_are_repeated_and_others_fail() {
        let mut calls = 0;
        let done = retry(|| {
            calls += 1;
            if calls < 3 {
                // SAFETY: the location of this thread's errno is always valid.
                unsafe { *libc::__errno_location() = libc::EINTR };
                return -1;
            }
            0
        });
        assert!(done.is_ok() && calls == 3);
        let failed = retry(|| {
            // SAFETY: as above.
            unsafe { *libc::__errno_location() = libc::EIO };
            -1
        });
        assert_eq!(failed.unwrap_err().raw_os_error(), Some(libc::EIO));
    }
}
