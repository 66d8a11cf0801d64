//! A message each way at once: start a receive, start a send, wait for both with one call. The safe requests of the
//! crate `mpi` keep lists on the heap, which takes longer than the exchange at a few bytes.

use mpi::Rank;
use mpi::ffi;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{AsRaw, Equivalence};
use std::mem::MaybeUninit;
use std::os::raw::c_int;

/// Sends to and receives from one rank, with the same number of bytes each way.
pub(crate) fn exchange(
    all: &SimpleCommunicator,
    other: Rank,
    tag: c_int,
    sent: &[u8],
    received: &mut [u8],
) {
    let kind = u8::equivalent_datatype().as_raw();
    let mut requests = [MaybeUninit::<ffi::MPI_Request>::uninit(); 2];
    // SAFETY: both messages outlive the wait below, which returns when MPI no longer touches them; `received` is
    // borrowed mutably and so is apart from `sent`; lengths are those of the slices, which the plan keeps below 2^31.
    // Each call writes the request that it is given, so both are there to be waited for. An error does not return:
    // MPI ends all ranks.
    unsafe {
        ffi::MPI_Irecv(
            received.as_mut_ptr().cast(),
            received.len() as c_int,
            kind,
            other,
            tag,
            all.as_raw(),
            requests[0].as_mut_ptr(),
        );
        ffi::MPI_Isend(
            sent.as_ptr().cast(),
            sent.len() as c_int,
            kind,
            other,
            tag,
            all.as_raw(),
            requests[1].as_mut_ptr(),
        );
        ffi::MPI_Waitall(2, requests.as_mut_ptr().cast(), ffi::RSMPI_STATUSES_IGNORE);
    }
}
