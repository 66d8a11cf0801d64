//! Handles an error that MPI reports, usually because another rank is gone. MPI's own default ends all ranks at once,
//! and the launcher learns only of the first rank that does so. A rank that only noticed a death may report before the
//! launcher sees the death itself. So a rank with an error waits before it ends all ranks.

use crate::end::STATUS_FAILURE;
use mpi::ffi;
use std::os::raw::{c_char, c_int};
use std::time::Duration;

/// The time that a launcher may take to notice that one of its own processes has died.
const NOTICE_TIME: Duration = Duration::from_secs(5);

/// Maximum length of an error text of MPI, in bytes (`MPI_MAX_ERROR_STRING` is 256 to 512 in both libraries, with
/// MPICH's notes of every layer).
const TEXT_BYTES_MAX: usize = 4 << 10;

/// Installs the handler: an error of the ranks' communicator ends all ranks only after the launcher had time to see the
/// cause.
///
/// # Errors
/// MPI refuses the handler.
pub(crate) fn install() -> Result<(), String> {
    let mut handler = std::mem::MaybeUninit::<ffi::MPI_Errhandler>::uninit();
    // SAFETY: MPI's type is a function with further arguments, which only the library itself knows and which this
    // function does not read. In every C calling convention of Linux boards, the first arguments of such a call are
    // passed like those of a function without further arguments.
    let wait: unsafe extern "C" fn(*mut ffi::MPI_Comm, *mut c_int, ...) = unsafe {
        std::mem::transmute(wait as unsafe extern "C" fn(*mut ffi::MPI_Comm, *mut c_int))
    };
    // SAFETY: called between MPI's begin and end, by the thread that began it. The first call writes the handler, and
    // the second reads it only if the first succeeded.
    let done = unsafe {
        match ffi::MPI_Comm_create_errhandler(Some(wait), handler.as_mut_ptr()) {
            0 => ffi::MPI_Comm_set_errhandler(ffi::RSMPI_COMM_WORLD, handler.assume_init()),
            status => status,
        }
    };
    if done == 0 {
        Ok(())
    } else {
        Err(format!("MPI takes no handler of errors (status {done})"))
    }
}

/// Called by MPI, inside the call that has failed.
unsafe extern "C" fn wait(all: *mut ffi::MPI_Comm, status: *mut c_int) {
    // SAFETY: MPI passes both pointers, and they are valid during this call.
    let (all, status) = unsafe { (*all, *status) };
    let mut text = [0_u8; TEXT_BYTES_MAX];
    let mut length: c_int = 0;
    // SAFETY: the buffer is longer than any text that MPI writes, and the call writes the length.
    let said =
        unsafe { ffi::MPI_Error_string(status, text.as_mut_ptr().cast::<c_char>(), &mut length) };
    let length = if said == 0 { length.max(0) as usize } else { 0 };
    let text = String::from_utf8_lossy(&text[..length.min(TEXT_BYTES_MAX)]).replace('\n', "; ");
    eprintln!("keel-mpi: another rank is gone, or MPI has failed: {text}");
    std::thread::sleep(NOTICE_TIME);
    // SAFETY: the communicator is the one that MPI has passed. The call does not return.
    unsafe { ffi::MPI_Abort(all, STATUS_FAILURE) };
}
