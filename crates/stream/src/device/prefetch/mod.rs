//! The prefetch part: the buffer of received blocks that are not read yet, and what each task has read. It knows which
//! blocks to request with a missing one.
//!
//! **Must not know:** connections, the cache.
//!
//! **Files:** `monitor.rs` the lock and the waiting threads (`model.rs` tests it in random orders), `buffer.rs` the
//! buffer, `neighbours.rs` its compressed blocks, `tasks.rs` the running tasks, `readahead.rs` what to request with a
//! block (`replay.rs` compares it with the kernel in a model).

mod buffer;
#[cfg(test)]
mod model;
mod monitor;
mod neighbours;
mod readahead;
#[cfg(test)]
mod replay;
mod tasks;

mod sync {
    //! The locks of the part. They have their own module so that the model can replace them.
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
}

pub(super) use buffer::{Arrived, Kind, Message, RequestedBlock};
pub(super) use monitor::{Fault, Prefetch, RequestPlan, Runs, Source, Step};
pub(super) use readahead::blocks_of;
#[cfg(test)]
pub(super) use tasks::UnreportedStart;
pub(super) use tasks::{Report, Task, Tasks};
