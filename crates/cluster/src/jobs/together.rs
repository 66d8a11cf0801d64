//! For tests: a job on one rank, and on several ranks that are threads.

use super::communicator::{Alone, Communicator, Failure};
use super::star::star;
use super::watch::Watch;
use std::thread;
use std::time::Duration;

/// Returns the answer of rank 0 alone, and of rank 0 among `size`; only rank 0 may have one.
pub(crate) fn alone_and_together<T: Send>(
    size: usize,
    job: impl Fn(&mut dyn Communicator, &Watch) -> Result<Option<T>, Failure> + Sync,
) -> (T, T) {
    let alone = job(&mut Alone, &Watch::new()).expect("a job without other ranks");
    let ranks = star(size, Some(Duration::from_secs(30))).expect("sockets");
    let together = thread::scope(|scope| {
        let job = &job;
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|mut rank| scope.spawn(move || job(&mut rank, &Watch::new())))
            .collect();
        let ends = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"));
        let ends: Vec<Option<T>> = ends.map(|end| end.expect("all are there")).collect();
        ends
    });
    let mut together = together.into_iter();
    let first = together.next().flatten().expect("rank 0 has the answer");
    assert!(together.all(|other| other.is_none()));
    (alone.expect("rank 0 has the answer"), first)
}
