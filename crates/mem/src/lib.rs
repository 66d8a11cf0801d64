//! An in-memory file system that processes share: a region of memory, mapped once, in which each file is contiguous.
//!
//! **Holds:** the region's layout, names, inodes, space, reading and writing, and the recovery of calls whose process
//! dies in the middle. After UMFS (Sha et al., "The Design and Implementation of an Efficient User-Space In-memory File
//! System").
//!
//! **Must not know:** readings, the network. It uses the flash store only as a place for a checkpoint.
//!
//! **Invariants:** a process may die at any point; the next process still finds each file and each table whole. A lock
//! of a dead holder delays other threads by a few milliseconds at most. All memory is taken at creation. Tables hold
//! offsets, never addresses, and each offset is checked before it is used.
//!
//! **Files:** `layout.rs` offsets of the tables, `superblock.rs` the fixed numbers, `memory.rs` the mapping,
//! `barrier.rs` memory barriers in all processes, `region.rs` a mapped region, `create.rs` creating and opening,
//! `run.rs` restarts of the machine and namespaces, `owner.rs` whether a process lives, `lane.rs` writers and recovery
//! of dead writers, `turns.rs` threads that share a lane, `words.rs` changes of tables, `space.rs` pages, pieces and
//! slots, `inode.rs` and `names.rs` the tables, `node.rs` which file is meant, `read.rs` and `bytes.rs` reading and
//! writing, `logging.rs` ways to log a write, `patience.rs` how long a reader waits, `room.rs` the memory of a file,
//! `notes.rs` notes of active readers, `position.rs` and `own_positions.rs` positions of descriptions, `stream.rs`
//! special stores, `flush.rs` cache lines written back, `writer.rs` the calls on names, `error.rs` errors, `check/` the
//! consistency check, `checkpoint/` checkpoints that survive a loss of power; `crash/` tests of the states that a crash
//! of the machine may leave.

mod attach;
mod barrier;
mod bytes;
pub mod check;
pub mod checkpoint;
#[cfg(test)]
mod crash;
mod create;
mod error;
mod file_lock;
mod flush;
mod inode;
#[cfg(test)]
mod interleaving;
mod lane;
mod last;
mod layout;
mod lend;
mod logging;
mod memory;
mod names;
mod node;
mod notes;
mod open;
#[cfg(test)]
mod open_tests;
mod own_positions;
mod owner;
mod path;
mod patience;
mod position;
mod read;
mod region;
mod resident;
mod room;
mod run;
mod space;
mod stream;
mod stub;
mod superblock;
#[cfg(test)]
mod tests;
mod turns;
mod words;
mod writer;

pub use attach::{Attachment, Borrowed};
pub use bytes::At;
pub use error::{Error, Result};
pub use flush::{Flush, instruction_name};
pub use inode::{Attributes, NewInode};
pub use last::LastFile;
pub use layout::{Layout, NAME_BYTES_MAX, PAGE_BYTES, RegionOptions};
pub use lend::{Lent, Line, Moment};
pub use logging::Logging;
pub use names::Entry;
pub use node::{Meant, Node, ROOT_INODE};
pub use open::{Opened, Swept};
pub use path::{Credentials, Last, PathBuffer, Walked};
pub use region::{Backing, Region};
pub use stub::{LIVENESS_BASE, stubs_path};
pub use superblock::FORMAT_VERSION;
pub use writer::{Changes, Rename, Writer};

/// The current time, in nanoseconds since 1970, with the resolution of file times: a few milliseconds.
#[must_use]
pub fn now_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a structure that lives as long as the call.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &raw mut now) };
    (now.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.tv_nsec as u64)
}

/// Sleeps for less than a second. It uses the system call directly: the C library's function is a cancellation point,
/// and the thread must not be cancelled here.
pub(crate) fn nap(time: std::time::Duration) {
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: time.subsec_nanos() as libc::c_long,
    };
    // SAFETY: a structure that lives as long as the call; the remaining time is not requested.
    unsafe {
        libc::syscall(
            libc::SYS_nanosleep,
            &raw const time,
            std::ptr::null::<libc::timespec>(),
        )
    };
}
