//! An in-memory file system that processes share: a region of memory, mapped once, in which each file is contiguous.
//!
//! **Holds:** the region's layout, names, inodes, space, reading and writing, and what becomes of a call whose process
//! dies in it. After UMFS (Sha et al., "The Design and Implementation of an Efficient User-Space In-memory File
//! System").
//!
//! **Must not know:** readings, the network; of the flash store only a place for a checkpoint.
//!
//! **Invariants:** whoever dies anywhere, the next one finds each file and each table whole. No lock outlives its
//! holder by more than a few milliseconds of another's waiting. All memory is taken at creation. Offsets, never
//! addresses, and none is believed before it is checked.
//!
//! **Files:** `layout.rs` where what lies, `memory.rs` the mapping, `region.rs` making and opening, `lane.rs` who
//! writes and what becomes of the dead, `turns.rs` threads that share a lane, `words.rs` changes of tables, `space.rs`
//! pages, pieces and slots, `inode.rs` and `names.rs` the tables, `read.rs` and `bytes.rs` reading and writing,
//! `room.rs` the memory of a file, `notes.rs` who reads, `position.rs` where descriptions stand, `stream.rs` special
//! stores, `flush.rs` cache lines written back, `writer.rs` the calls on names, `error.rs` errors, `check/` what must
//! agree, `checkpoint/` what survives the power; `crash/` what a machine's death may leave, in tests.

mod attach;
mod bytes;
pub mod check;
pub mod checkpoint;
#[cfg(test)]
mod crash;
mod error;
mod flush;
mod inode;
#[cfg(test)]
mod interleaving;
mod lane;
mod last;
mod layout;
mod lend;
mod memory;
mod names;
mod notes;
mod open;
#[cfg(test)]
mod open_tests;
mod path;
mod position;
mod read;
mod region;
mod resident;
mod room;
mod space;
mod stream;
mod stub;
#[cfg(test)]
mod tests;
mod turns;
mod words;
mod writer;

pub use attach::{Attachment, Borrowed};
pub use bytes::{At, Logging};
pub use error::{Error, Result};
pub use flush::{Flush, instruction_name};
pub use inode::{Attributes, NewInode, Node, ROOT_INODE};
pub use last::LastFile;
pub use layout::{Layout, NAME_BYTES_MAX, PAGE_BYTES, RegionOptions};
pub use lend::{Lent, Line, Moment};
pub use names::Entry;
pub use open::{Opened, Swept};
pub use path::{Credentials, Last, PathBuffer, Walked};
pub use region::{Backing, FORMAT_VERSION, Region, stubs_path};
pub use stub::LIVENESS_BASE;
pub use writer::{Changes, Rename, Writer};

/// Now, in nanoseconds since 1970, as exact as the times of files are: to a few milliseconds.
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

/// Sleeps for less than a second. By a call of its own: the C library's is a place where a thread may be cancelled,
/// which must not happen here.
pub(crate) fn nap(time: std::time::Duration) {
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: time.subsec_nanos() as libc::c_long,
    };
    // SAFETY: a structure that lives as long as the call; what is left is not asked for.
    unsafe {
        libc::syscall(
            libc::SYS_nanosleep,
            &raw const time,
            std::ptr::null::<libc::timespec>(),
        )
    };
}
