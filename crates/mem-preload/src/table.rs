//! U-Info: the state of each descriptor, by its number.
//!
//! It is only a cache: each entry can be rebuilt from the descriptor. One word holds the kind, and a count that grows
//! at each change; it shows whether the other words belong to it.

use std::ffi::c_int;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};

use mem::{Node, Opened};

/// The number of descriptors in one part of the table.
const PART: usize = 1024;
const PARTS: usize = 1024;

const KIND_MASK: u64 = 3;
const UNKNOWN: u64 = 0;
const FOREIGN: u64 = 1;
const OURS: u64 = 2;
const ONE_CHANGE: u64 = 4;

/// The table's knowledge of a descriptor.
pub(crate) enum Known {
    /// Unknown; the value is the word that must still be there when the state is stored.
    Unknown(u64),
    /// The kernel's.
    Foreign,
    /// A file of the region.
    Ours(Opened),
}

struct Entry {
    kind: AtomicU64,
    inode: AtomicU64,
    generation: AtomicU64,
    description_flags: AtomicU64,
    /// Whether no other descriptor has the description, and the count of sharings since which this is so.
    exclusive_since: AtomicU64,
}

impl Entry {
    const fn empty() -> Self {
        Self {
            kind: AtomicU64::new(UNKNOWN),
            inode: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            description_flags: AtomicU64::new(0),
            exclusive_since: AtomicU64::new(0),
        }
    }
}

/// The first part; programs rarely have more descriptors.
static FIRST: [Entry; PART] = [const { Entry::empty() }; PART];
static MORE: [AtomicPtr<Entry>; PARTS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; PARTS];

/// The entry of a descriptor, if its part of the table exists or `makes` is set.
fn entry(fd: c_int, makes: bool) -> Option<&'static Entry> {
    let number = fd as usize;
    if number < PART {
        return Some(&FIRST[number]);
    }
    let slot = MORE.get(number / PART)?;
    let mut part = slot.load(Ordering::Acquire);
    if part.is_null() && makes {
        let bytes = PART * size_of::<Entry>();
        let made = crate::raw::memory(bytes).cast::<Entry>();
        if made.is_null() {
            return None;
        }
        let swapped = slot.compare_exchange(
            std::ptr::null_mut(),
            made,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        part = match swapped {
            Ok(_) => made,
            Err(other) => {
                crate::raw::give_back_memory(made.cast(), bytes);
                other
            }
        };
    }
    if part.is_null() {
        return None;
    }
    // SAFETY: a part has that many entries, zeros are valid ones, and it is never freed.
    Some(unsafe { &*part.add(number % PART) })
}

/// A word that changes with every change of a descriptor's state. 0 means unknown, and is also returned for descriptors
/// beyond the first part.
#[inline(always)]
pub(crate) fn word(fd: c_int) -> u64 {
    let entry = FIRST.get(fd as usize);
    entry.map_or(0, |entry| entry.kind.load(Ordering::Acquire))
}

/// Returns what the table knows of a descriptor.
pub(crate) fn look_up(fd: c_int) -> Known {
    let Some(entry) = entry(fd, false) else {
        return Known::Unknown(0);
    };
    let kind = entry.kind.load(Ordering::Acquire);
    match kind & KIND_MASK {
        FOREIGN => Known::Foreign,
        OURS => {
            let inode = entry.inode.load(Ordering::Relaxed);
            let generation = entry.generation.load(Ordering::Relaxed);
            let description_flags = entry.description_flags.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if entry.kind.load(Ordering::Relaxed) != kind {
                return Known::Unknown(0);
            }
            Known::Ours(Opened {
                description: (description_flags >> 32) as u32,
                node: Node { inode, generation },
                flags: description_flags as c_int,
            })
        }
        _ => Known::Unknown(kind),
    }
}

fn store(entry: &Entry, kind: u64, opened: Option<&Opened>) {
    let Some(opened) = opened else {
        entry
            .kind
            .store(((kind | KIND_MASK) + 1) | FOREIGN, Ordering::Release);
        return;
    };
    let changing = (kind & !KIND_MASK) + ONE_CHANGE;
    entry.exclusive_since.store(0, Ordering::Relaxed);
    entry.kind.store(changing, Ordering::Relaxed);
    fence(Ordering::Release);
    entry.inode.store(opened.node.inode, Ordering::Relaxed);
    entry
        .generation
        .store(opened.node.generation, Ordering::Relaxed);
    let description_flags = u64::from(opened.description) << 32 | u64::from(opened.flags as u32);
    entry
        .description_flags
        .store(description_flags, Ordering::Relaxed);
    entry
        .kind
        .store((changing + ONE_CHANGE) | OURS, Ordering::Release);
}

/// Records that a descriptor is a file of the region.
pub(crate) fn set_ours(fd: c_int, opened: &Opened) {
    if let Some(entry) = entry(fd, true) {
        // If the kernel has the position, the descriptor is needed to find it.
        let opened = opened.for_descriptor(fd);
        store(entry, entry.kind.load(Ordering::Relaxed), Some(&opened));
    }
}

/// Stores what was found out about a descriptor, unless its state has changed since `before` was read.
pub(crate) fn learn(fd: c_int, before: u64, opened: Option<&Opened>) {
    let Some(entry) = entry(fd, true) else {
        return;
    };
    let taken = (before & !KIND_MASK) + ONE_CHANGE;
    let ours = before & KIND_MASK == UNKNOWN
        && entry
            .kind
            .compare_exchange(before, taken, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
    if ours {
        store(entry, taken, opened);
    }
}

/// Forgets a descriptor, before its number can be reused.
pub(crate) fn forget(fd: c_int) {
    if let Some(entry) = entry(fd, false) {
        // Also for an unknown state: a thread that is finding it out must not store a stale result.
        let kind = entry.kind.load(Ordering::Relaxed);
        entry
            .kind
            .store((kind & !KIND_MASK) + ONE_CHANGE, Ordering::Release);
    }
}

/// Forgets all descriptors of a range.
pub(crate) fn forget_range(first: u32, last: u32) {
    let end = (last as usize).min(PART * PARTS - 1);
    let mut number = first as usize;
    while number <= end {
        if number >= PART && MORE[number / PART].load(Ordering::Acquire).is_null() {
            number = (number / PART + 1) * PART;
            continue;
        }
        forget(number as c_int);
        number += 1;
    }
}

/// Calls `each` for all descriptors of a range that are known to be ours.
pub(crate) fn for_each_ours(first: u32, last: u32, mut each: impl FnMut(c_int, &Opened)) {
    let end = (last as usize).min(PART * PARTS - 1);
    let mut number = first as usize;
    while number <= end {
        if number >= PART && MORE[number / PART].load(Ordering::Acquire).is_null() {
            number = (number / PART + 1) * PART;
            continue;
        }
        if let Known::Ours(opened) = look_up(number as c_int) {
            each(number as c_int, &opened);
        }
        number += 1;
    }
}

/// Records that no other descriptor has the same description. It is valid while `sharings` does not change.
pub(crate) fn set_exclusive(fd: c_int, sharings: u32) {
    if let Some(entry) = entry(fd, true) {
        entry
            .exclusive_since
            .store(u64::from(sharings) << 1 | 1, Ordering::Relaxed);
    }
}

/// Called when the descriptor has been duplicated or passed on.
pub(crate) fn clear_exclusive(fd: c_int) {
    if let Some(entry) = entry(fd, false) {
        entry.exclusive_since.store(0, Ordering::Relaxed);
    }
}

/// The count in [`set_exclusive`] since which a descriptor is the only one of its description.
pub(crate) fn exclusive_since(fd: c_int) -> Option<u32> {
    let since = entry(fd, false)?.exclusive_since.load(Ordering::Relaxed);
    (since & 1 == 1).then_some((since >> 1) as u32)
}

/// Copies the state of one descriptor to another.
pub(crate) fn copy(from: c_int, to: c_int) {
    match look_up(from) {
        Known::Ours(opened) => {
            set_ours(to, &opened);
            clear_exclusive(from);
        }
        Known::Foreign => {
            forget(to);
            if let Some(entry) = entry(to, true) {
                store(entry, entry.kind.load(Ordering::Relaxed), None);
            }
        }
        Known::Unknown(_) => forget(to),
    }
}
