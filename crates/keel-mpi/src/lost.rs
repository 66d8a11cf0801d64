//! What a rank does when MPI reports an error, which is most often that another rank is gone. MPI's own default ends
//! all ranks at once, and whichever does so first is what the launcher hears of: a rank that only noticed a death may
//! come before the death. So a rank that was given an error waits a little before it ends all.

use mpi::ffi;
use std::os::raw::{c_char, c_int};
use std::time::Duration;

/// How long a launcher may take to notice that a process of its own has died.
const NOTICE_TIME: Duration = Duration::from_secs(5);

/// Text of an error at most, as MPI has it (`MPI_MAX_ERROR_STRING` is 256 to 512 in both libraries, with MPICH's notes
/// of every layer).
const TEXT_BYTES_MAX: usize = 4 << 10;

/// From here on an error of the ranks' communicator ends all of them only when the launcher had time to see the cause.
///
/// # Errors
/// MPI does not take it.
pub(crate) fn wait_for_the_cause() -> Result<(), String> {
    let mut handler = std::mem::MaybeUninit::<ffi::MPI_Errhandler>::uninit();
    // SAFETY: MPI's type is that of a function with further arguments, which only the library itself knows and which
    // are not looked at here. On every platform's C convention that Linux boards have, the first arguments of such a
    // call are passed as those of a function without further ones.
    let wait: unsafe extern "C" fn(*mut ffi::MPI_Comm, *mut c_int, ...) = unsafe {
        std::mem::transmute(wait as unsafe extern "C" fn(*mut ffi::MPI_Comm, *mut c_int))
    };
    // SAFETY: called between MPI's begin and end, by the thread that began it; the first call writes the handler, and
    // the second reads it where that went well.
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

/// Called by MPI, in the call that has failed.
unsafe extern "C" fn wait(all: *mut ffi::MPI_Comm, status: *mut c_int) {
    // SAFETY: MPI hands in both, and they live as long as this call.
    let (all, status) = unsafe { (*all, *status) };
    let mut text = [0_u8; TEXT_BYTES_MAX];
    let mut length: c_int = 0;
    // SAFETY: the text is longer than any that MPI writes, and the length is written by the call.
    let said =
        unsafe { ffi::MPI_Error_string(status, text.as_mut_ptr().cast::<c_char>(), &mut length) };
    let length = if said == 0 { length.max(0) as usize } else { 0 };
    let text = String::from_utf8_lossy(&text[..length.min(TEXT_BYTES_MAX)]).replace('\n', "; ");
    eprintln!("keel-mpi: another rank is gone, or MPI has failed: {text}");
    std::thread::sleep(NOTICE_TIME);
    // SAFETY: the communicator is the one that MPI has handed in. The call does not return.
    unsafe { ffi::MPI_Abort(all, crate::STATUS_FAILURE) };
}
