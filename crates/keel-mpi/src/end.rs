//! How a rank ends: its exit status, and the time limit after which it ends itself.

use std::time::Duration;

/// Exit status of a rank that still ran at its time limit.
pub(crate) const STATUS_LATE: i32 = 4;

/// Exit status of a failure.
pub(crate) const STATUS_FAILURE: i32 = 1;

/// Time limit for MPI's own end, when everything is done.
pub(crate) const ORDERLY_END: Duration = Duration::from_secs(2);

/// Ends this process after `time`. A rank whose peers are gone waits forever in a call of MPI. On a board that cannot
/// be reached, no other process ends it.
pub(crate) fn end_after(time: Duration, status: i32) {
    let watch = move || {
        std::thread::sleep(time);
        if status == STATUS_LATE {
            eprintln!(
                "keel-mpi: still there after {} s, ends itself",
                time.as_secs()
            );
        }
        // Not the orderly end, which would wait for the blocked thread.
        std::process::exit(status);
    };
    if let Err(error) = std::thread::Builder::new()
        .name("watchdog".to_owned())
        .spawn(watch)
    {
        eprintln!("keel-mpi: has no watchdog: {error}");
    }
}
