//! The region's memory: one mapping of one file, shared with processes that may change any of it at any time. So
//! nothing here is a Rust reference to bytes; words are atomic, and the C library copies bytes in and out.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, compiler_fence};
use std::time::Duration;

use crate::barrier::take_part_in_barriers;
#[cfg(test)]
use crate::crash::{Event, Recorder};
use crate::error::{Error, Result, system_error};
use crate::flush::{self, Flush};
use crate::layout::{PAGE_BYTES, SLOT_ALIGNMENT_BYTES};
use crate::stream;

/// Words of a cache line.
pub(crate) const WORDS_IN_LINE: usize = 8;
/// Bytes of a cache line, and of the words in the first line of an inode.
pub(crate) const LINE_BYTES: u64 = 64;

/// The mapping of a whole region.
pub(crate) struct Memory {
    base: NonNull<u8>,
    bytes: u64,
    flush: Flush,
    /// Whether the memory itself keeps its content without power: the file system maps it directly, without a page
    /// cache.
    is_persistent: bool,
    /// The number of stores until the writer under test dies.
    #[cfg(test)]
    pub(crate) stores_left: AtomicU64,
    /// Records stores and their order for the test under way.
    #[cfg(test)]
    pub(crate) recorder: Recorder,
}

// SAFETY: the mapping stays in place as long as this value lives. It is only accessed by atomic words and by copies,
// for which the protocols of this crate define when a process may write.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps `bytes` bytes of the file at a multiple of [`SLOT_ALIGNMENT_BYTES`].
    ///
    /// # Errors
    /// [`Error::System`].
    pub(crate) fn map(
        file: &File,
        path: &Path,
        bytes: u64,
        writable: bool,
        flush: Flush,
    ) -> Result<Self> {
        let failed = system_error(path, "cannot be mapped");
        let length = usize::try_from(bytes + SLOT_ALIGNMENT_BYTES).map_err(|_| Error::TooLarge)?;
        // Reserve address space that contains an aligned range; then map the file over that range.
        // SAFETY: a new private mapping at a place that the kernel chooses touches no memory that is in use.
        let reserved = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if reserved == libc::MAP_FAILED {
            return Err(failed(std::io::Error::last_os_error()));
        }
        let start = reserved as u64;
        let aligned = start.next_multiple_of(SLOT_ALIGNMENT_BYTES);
        let protection = if writable {
            libc::PROT_READ | libc::PROT_WRITE
        } else {
            libc::PROT_READ
        };
        let map = |sharing| {
            // SAFETY: the range lies within the reservation above, which no other code knows.
            unsafe {
                libc::mmap(
                    aligned as *mut libc::c_void,
                    bytes as usize,
                    protection,
                    sharing | libc::MAP_NORESERVE | libc::MAP_FIXED,
                    file.as_raw_fd(),
                    0,
                )
            }
        };
        // A mapping with `MAP_SYNC` is of persistent memory itself, and the file's page allocation is durable before a
        // page can be written. Other file systems refuse the flag.
        let mut mapped = libc::MAP_FAILED;
        if flush != Flush::None {
            mapped = map(libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC);
        }
        let is_persistent = mapped != libc::MAP_FAILED;
        if !is_persistent {
            mapped = map(libc::MAP_SHARED);
        }
        let error = std::io::Error::last_os_error();
        let is_mapped = mapped != libc::MAP_FAILED;
        let end = aligned + bytes;
        let rests = if is_mapped {
            [(start, aligned - start), (end, start + length as u64 - end)]
        } else {
            [(start, length as u64), (0, 0)]
        };
        for (at, rest) in rests.into_iter().filter(|(_, rest)| *rest > 0) {
            // SAFETY: parts of the reservation outside the file's mapping.
            unsafe { libc::munmap(at as *mut libc::c_void, rest as usize) };
        }
        take_part_in_barriers().map_err(system_error(
            path,
            "readers and writers need membarrier, of Linux 4.16",
        ))?;
        let base = NonNull::new(mapped.cast::<u8>()).filter(|_| is_mapped);
        Ok(Self {
            base: base.ok_or_else(|| failed(error))?,
            bytes,
            flush,
            is_persistent,
            #[cfg(test)]
            stores_left: AtomicU64::new(u64::MAX),
            #[cfg(test)]
            recorder: Recorder::default(),
        })
    }

    /// Whether this process has the file mapped here and nowhere else. `false` if the kernel does not say it.
    pub(crate) fn is_only_mapping(&self) -> bool {
        let start = self.base.as_ptr() as u64;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let places = || {
            maps.lines().filter_map(|line| {
                let mut fields = line.split_ascii_whitespace();
                let begin = fields.next()?.split('-').next()?;
                let begin = u64::from_str_radix(begin, 16).ok()?;
                // Device and inode.
                Some((begin, (fields.nth(2)?, fields.next()?)))
            })
        };
        let Some((_, file)) = places().find(|(begin, _)| *begin == start) else {
            return false;
        };
        let here = start..start + self.bytes;
        places().all(|(begin, other)| other != file || here.contains(&begin))
    }

    /// How stores are made durable.
    pub(crate) fn flush(&self) -> Flush {
        self.flush
    }

    /// Whether the memory itself keeps its content without power.
    pub(crate) fn is_persistent(&self) -> bool {
        self.is_persistent
    }

    /// Makes stores to these ranges, and all writes past the cache, durable before any later store. Does nothing in a
    /// region that does not write lines back.
    #[inline(always)]
    pub(crate) fn persist<const COUNT: usize>(&self, ranges: [(u64, u64); COUNT]) {
        if self.flush != Flush::None {
            self.persist_now(&ranges);
        }
    }

    #[cold]
    #[inline(never)]
    fn persist_now(&self, ranges: &[(u64, u64)]) {
        for (at, bytes) in ranges {
            self.write_back(*at, *bytes);
        }
        #[cfg(test)]
        self.recorder.record(|| Event::Fence);
        flush::fence();
    }

    /// Starts making stores to this range durable; the next [`persist`](Self::persist) waits for it.
    pub(crate) fn write_back(&self, at: u64, bytes: u64) {
        if self.flush == Flush::None || bytes == 0 {
            return;
        }
        self.check_range(at, bytes);
        #[cfg(test)]
        self.recorder.record(|| Event::WriteBack { at, bytes });
        // SAFETY: inside the mapping, by the check.
        unsafe { flush::write_back(self.base.as_ptr().add(at as usize), bytes as usize) };
    }

    /// The address of the bytes at `at` in this process.
    pub(crate) fn address(&self, at: u64, bytes: u64) -> *const u8 {
        self.check_range(at, bytes);
        self.base.as_ptr().wrapping_add(at as usize)
    }

    /// Locks pages in memory. They must exist until this call returns: the kernel would allocate missing ones.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn lock_pages(&self, at: u64, pages: u64) -> std::io::Result<()> {
        let bytes = pages * PAGE_BYTES;
        self.check_range(at, bytes);
        // SAFETY: inside the mapping, by the line above; locking changes no byte.
        let locked = unsafe {
            let start = self.base.as_ptr().add(at as usize).cast();
            libc::mlock(start, bytes as usize)
        };
        if locked == 0 {
            Ok(())
        } else {
            Err(std::io::Error::last_os_error())
        }
    }

    /// The size of its address space, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The word at `at`, a multiple of 8 within the region.
    #[inline(always)]
    fn word(&self, at: u64) -> &AtomicU64 {
        if !at.is_multiple_of(8) || at >= self.bytes {
            no_place(at, 8);
        }
        // SAFETY: inside the mapping and aligned, by the line above. All accesses to words are atomic.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at as usize).cast()) }
    }

    /// The address of a word, valid as long as this mapping.
    pub(crate) fn address_of(&self, at: u64) -> *const AtomicU64 {
        self.word(at)
    }

    /// The words from `at` on, a multiple of 64 within the region: a line of an inode or a lane, with one range check.
    #[inline(always)]
    pub(crate) fn line(&self, at: u64) -> &[AtomicU64; WORDS_IN_LINE] {
        if !at.is_multiple_of(64) || at >= self.bytes {
            no_place(at, 64);
        }
        // SAFETY: inside the mapping, whose length is a multiple of a page, and aligned, by the line above. All
        // accesses to words are atomic.
        unsafe { &*self.base.as_ptr().add(at as usize).cast() }
    }

    /// The words from `at` on, a multiple of 64 within the region.
    #[inline(always)]
    pub(crate) fn block(&self, at: u64) -> Block<'_> {
        if !at.is_multiple_of(64) || at > self.bytes - BLOCK_BYTES {
            no_place(at, BLOCK_BYTES);
        }
        Block {
            memory: self,
            at,
            // SAFETY: inside the mapping, which is longer than a block, and aligned, by the line above. All accesses to
            // words are atomic.
            words: unsafe { &*self.base.as_ptr().add(at as usize).cast() },
        }
    }

    #[inline]
    pub(crate) fn load(&self, at: u64) -> u64 {
        #[cfg(test)]
        crate::interleaving::others_may_go_first();
        self.word(at).load(Ordering::Acquire)
    }

    /// Stores a word. A writer makes all its stores, of words and bytes, in the order of the code: a dead writer leaves
    /// a prefix of them.
    #[inline]
    pub(crate) fn store(&self, at: u64, value: u64) {
        self.may_die_here();
        compiler_fence(Ordering::SeqCst);
        self.word(at).store(value, Ordering::Release);
        compiler_fence(Ordering::SeqCst);
        self.record_store(at, 8);
    }

    /// Replaces `old` by `new`. Returns the actual value if it is not `old`.
    #[inline]
    pub(crate) fn replace(&self, at: u64, old: u64, new: u64) -> std::result::Result<(), u64> {
        self.may_die_here();
        self.word(at)
            .compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
            .map(|_| self.record_store(at, 8))
    }

    /// Sleeps while the low half of the word at `at` is `value`, but no longer than `time`. It may return earlier.
    pub(crate) fn sleep_while(&self, at: u64, value: u32, time: Duration) {
        #[cfg(test)]
        if crate::interleaving::others_may_go_first() {
            // In an interleaving test the sleep is over when it is this process's turn.
            return;
        }
        let timeout = libc::timespec {
            tv_sec: time.as_secs() as libc::time_t,
            tv_nsec: time.subsec_nanos() as libc::c_long,
        };
        // SAFETY: a futex on a live word of the mapping, and a time that lives as long as the call.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.low_half(at),
                libc::FUTEX_WAIT,
                value,
                &raw const timeout,
            )
        };
    }

    /// Wakes all threads that sleep at the word.
    pub(crate) fn wake_sleepers(&self, at: u64) {
        // SAFETY: a futex on a live word of the mapping.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.low_half(at),
                libc::FUTEX_WAKE,
                i32::MAX,
            )
        };
    }

    fn low_half(&self, at: u64) -> *mut u32 {
        let half = if cfg!(target_endian = "little") { 0 } else { 1 };
        // The pointer is not dereferenced here; it is passed to the kernel.
        self.word(at).as_ptr().cast::<u32>().wrapping_add(half)
    }

    /// Copies from the region.
    #[inline]
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) {
        self.check_range(at, into.len() as u64);
        // SAFETY: inside the mapping, by the line above. Another process may be writing; the caller detects this by the
        // file's sequence number and then does not use the copy. The C library's copy is opaque to the compiler, which
        // assumes nothing of what it reads.
        unsafe {
            libc::memcpy(
                into.as_mut_ptr().cast(),
                self.base.as_ptr().add(at as usize).cast(),
                into.len(),
            )
        };
    }

    /// Copies into the region. `from` may lie in the region itself, if the caller has it lent.
    #[inline(always)]
    pub(crate) fn write(&self, at: u64, from: &[u8]) {
        self.check_range(at, from.len() as u64);
        each_part(from.len() as u64, |part| {
            self.may_die_here();
            let bytes = &from[part.start as usize..part.end as usize];
            compiler_fence(Ordering::SeqCst);
            // SAFETY: inside the mapping, by the check. The caller holds the lock for these bytes.
            unsafe {
                libc::memmove(
                    self.base.as_ptr().add((at + part.start) as usize).cast(),
                    bytes.as_ptr().cast(),
                    bytes.len(),
                )
            };
            compiler_fence(Ordering::SeqCst);
            self.record_store(at + part.start, part.end - part.start);
        });
    }

    /// Copies into the region past the cache, if the processor can. The copy is visible to all when this returns. Parts
    /// that went through the cache are being written back, if the region does that.
    pub(crate) fn write_past_cache(&self, at: u64, from: &[u8]) {
        self.check_range(at, from.len() as u64);
        each_part(from.len() as u64, |part| {
            self.may_die_here();
            let bytes = &from[part.start as usize..part.end as usize];
            let (at, length) = (at + part.start, part.end - part.start);
            // SAFETY: inside the mapping, by the check. The caller holds the lock for these bytes.
            unsafe { stream::copy(self.base.as_ptr().add(at as usize), bytes) };
            self.record_store_past_cache(at, length);
            if self.flush != Flush::None {
                let streamed = stream::streamed(at, length);
                self.write_back(at, streamed.start - at);
                self.write_back(streamed.end, at + length - streamed.end);
            }
        });
    }

    /// Copies 1, 2, 4 or 8 bytes into the region by one store. Returns `false` for another length or alignment; nothing
    /// has happened then.
    #[inline]
    pub(crate) fn write_at_once(&self, at: u64, from: &[u8]) -> bool {
        let length = from.len();
        if !length.is_power_of_two() || length > 8 || !at.is_multiple_of(length as u64) {
            return false;
        }
        self.check_range(at, length as u64);
        self.may_die_here();
        let mut word = [0; 8];
        word[..length].copy_from_slice(from);
        let low = u64::from_ne_bytes(word);
        // The bytes lie at the beginning of the word; in a big-endian number these are the high bytes.
        let value = if cfg!(target_endian = "little") {
            low
        } else {
            low >> (64 - 8 * length as u32)
        };
        compiler_fence(Ordering::SeqCst);
        // SAFETY: inside the mapping and aligned, by the checks. The caller holds the lock for these bytes, and
        // concurrent readers detect the store by the file's sequence number.
        unsafe {
            let place = self.base.as_ptr().add(at as usize);
            match length {
                1 => AtomicU8::from_ptr(place).store(value as u8, Ordering::Release),
                2 => AtomicU16::from_ptr(place.cast()).store(value as u16, Ordering::Release),
                4 => AtomicU32::from_ptr(place.cast()).store(value as u32, Ordering::Release),
                _ => AtomicU64::from_ptr(place.cast()).store(value, Ordering::Release),
            }
        }
        compiler_fence(Ordering::SeqCst);
        self.record_store(at, length as u64);
        true
    }

    /// Prefetches the cache lines of a range for reading. Does nothing if the range is not in the region.
    #[inline(always)]
    pub(crate) fn expect_read(&self, at: u64, bytes: u64) {
        if at.checked_add(bytes).is_some_and(|end| end <= self.bytes) {
            stream::expect_read(self.base.as_ptr().wrapping_add(at as usize), bytes as usize);
        }
    }

    /// Prefetches the cache lines of a range for writing. Does nothing if the range is not in the region.
    #[inline(always)]
    pub(crate) fn expect_write(&self, at: u64, bytes: u64) {
        if at.checked_add(bytes).is_some_and(|end| end <= self.bytes) {
            stream::expect_write(self.base.as_ptr().wrapping_add(at as usize), bytes as usize);
        }
    }

    /// Copies within the region; the ranges do not overlap.
    #[inline]
    pub(crate) fn copy(&self, from: u64, to: u64, bytes: u64) {
        self.check_range(from, bytes);
        self.check_range(to, bytes);
        assert!(from + bytes <= to || to + bytes <= from, "ranges overlap");
        each_part(bytes, |part| {
            self.may_die_here();
            let (from, to) = (from + part.start, to + part.start);
            compiler_fence(Ordering::SeqCst);
            // SAFETY: inside the mapping and disjoint, by the checks. The caller holds the locks for these bytes.
            unsafe {
                let base = self.base.as_ptr();
                libc::memcpy(
                    base.add(to as usize).cast(),
                    base.add(from as usize).cast(),
                    (part.end - part.start) as usize,
                )
            };
            compiler_fence(Ordering::SeqCst);
            self.record_store(to, part.end - part.start);
        });
    }

    /// Fills with zeros.
    pub(crate) fn clear(&self, at: u64, bytes: u64) {
        self.check_range(at, bytes);
        self.may_die_here();
        compiler_fence(Ordering::SeqCst);
        // SAFETY: inside the mapping, by the check. The caller holds the lock for these bytes.
        unsafe {
            libc::memset(
                self.base.as_ptr().add(at as usize).cast(),
                0,
                bytes as usize,
            )
        };
        compiler_fence(Ordering::SeqCst);
        self.record_store(at, bytes);
    }

    #[inline(always)]
    fn check_range(&self, at: u64, bytes: u64) {
        if bytes > self.bytes || at > self.bytes - bytes {
            no_place(at, bytes);
        }
    }

    /// In tests: the writer dies here once `stores_left` stores are done, and other processes may run first.
    #[cfg(test)]
    fn may_die_here(&self) {
        crate::interleaving::others_may_go_first();
        match self.stores_left.load(Ordering::Relaxed) {
            0 => std::panic::resume_unwind(Box::new(Killed)),
            u64::MAX => {}
            left => self.stores_left.store(left - 1, Ordering::Relaxed),
        }
    }

    #[cfg(not(test))]
    #[inline]
    fn may_die_here(&self) {}

    /// In tests: records the bytes that were just stored at a place.
    #[cfg(test)]
    fn record_store(&self, at: u64, bytes: u64) {
        self.recorder.record(|| {
            let mut stored = vec![0; bytes as usize];
            self.read(at, &mut stored);
            Event::Store {
                at,
                bytes: stored,
                past_cache: false,
            }
        });
    }

    #[cfg(not(test))]
    #[inline(always)]
    fn record_store(&self, _: u64, _: u64) {}

    /// In tests: as [`record_store`](Self::record_store), for a copy that went past the cache where it could.
    #[cfg(test)]
    fn record_store_past_cache(&self, at: u64, bytes: u64) {
        let streamed = stream::streamed(at, bytes);
        self.record_store(at, streamed.start - at);
        self.recorder.record(|| {
            let mut stored = vec![0; (streamed.end - streamed.start) as usize];
            self.read(streamed.start, &mut stored);
            Event::Store {
                at: streamed.start,
                bytes: stored,
                past_cache: true,
            }
        });
        self.record_store(streamed.end, at + bytes - streamed.end);
        if cfg!(target_arch = "x86_64") {
            self.recorder.record(|| Event::Fence);
        }
    }

    #[cfg(not(test))]
    #[inline(always)]
    fn record_store_past_cache(&self, _: u64, _: u64) {}
}

impl Memory {
    /// Allocates memory for the pages of this range of the file, filled with zeros. On success the pages exist.
    /// [`sync_pages`](Self::sync_pages) makes the allocation durable.
    ///
    /// # Errors
    /// The kernel's error: usually no memory.
    pub(crate) fn take_pages(&self, file: &File, at: u64, pages: u64) -> std::io::Result<()> {
        take_pages(file, at, pages)?;
        #[cfg(test)]
        self.recorder.record(|| Event::Take { at, pages });
        Ok(())
    }

    /// Frees the memory of the pages of this range to the kernel.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn give_back_pages(&self, file: &File, at: u64, pages: u64) -> std::io::Result<()> {
        give_back_pages(file, at, pages)?;
        #[cfg(test)]
        self.recorder.record(|| Event::GiveBack { at, pages });
        Ok(())
    }

    /// Makes the allocation of pages durable, if the region writes lines back.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn sync_pages(&self, file: &File) -> std::io::Result<()> {
        if self.flush == Flush::None {
            return Ok(());
        }
        file.sync_data()?;
        #[cfg(test)]
        self.recorder.record(|| Event::PagesSynced);
        Ok(())
    }
}

/// Whether a file lies in memory that keeps its content without power, and can be mapped with `MAP_SYNC`.
pub(crate) fn is_persistent(file: &File) -> bool {
    // SAFETY: a new mapping at a place that the kernel chooses; it is not touched.
    let mapped = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            PAGE_BYTES as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC | libc::MAP_NORESERVE,
            file.as_raw_fd(),
            0,
        )
    };
    if mapped == libc::MAP_FAILED {
        return false;
    }
    // SAFETY: the mapping made just now.
    unsafe { libc::munmap(mapped, PAGE_BYTES as usize) };
    true
}

/// An error in this crate: every offset is checked where it is read.
#[cold]
#[inline(never)]
fn no_place(at: u64, bytes: u64) -> ! {
    panic!("the region has no {bytes} bytes at {at}")
}

/// Words in a block.
const WORDS_IN_BLOCK: usize = 2 * WORDS_IN_LINE;
const BLOCK_BYTES: u64 = WORDS_IN_BLOCK as u64 * 8;

/// The first two lines of an inode or a lane, with one range check: a call stores a dozen words there.
#[derive(Clone, Copy)]
pub(crate) struct Block<'m> {
    memory: &'m Memory,
    at: u64,
    words: &'m [AtomicU64; WORDS_IN_BLOCK],
}

impl Block<'_> {
    /// Its offset.
    #[inline(always)]
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// As [`Memory::load`], for a word at an offset from the first.
    #[inline(always)]
    pub(crate) fn load(&self, word: u64) -> u64 {
        #[cfg(test)]
        crate::interleaving::others_may_go_first();
        self.words[word as usize / 8].load(Ordering::Acquire)
    }

    /// As [`Memory::store`].
    #[inline(always)]
    pub(crate) fn store(&self, word: u64, value: u64) {
        self.memory.may_die_here();
        compiler_fence(Ordering::SeqCst);
        self.words[word as usize / 8].store(value, Ordering::Release);
        compiler_fence(Ordering::SeqCst);
        self.memory.record_store(self.at + word, 8);
    }
}

/// A copy as a whole; in tests in two parts, because a process may die in the middle of it.
#[inline(always)]
fn each_part(bytes: u64, mut copy: impl FnMut(std::ops::Range<u64>)) {
    let middle = if cfg!(test) { bytes / 2 } else { 0 };
    if middle > 0 {
        copy(0..middle);
    }
    if bytes > middle {
        copy(middle..bytes);
    }
}

/// The panic payload of a killed writer in tests.
#[cfg(test)]
pub(crate) struct Killed;

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping made above, which no code uses any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes as usize) };
    }
}

/// Copies from the region's file by a system call, which returns zeros where there is no memory.
///
/// # Errors
/// The kernel's error.
pub(crate) fn read_by_kernel(file: &File, at: u64, into: &mut [u8]) -> std::io::Result<()> {
    use std::os::unix::fs::FileExt;
    file.read_exact_at(into, at)
}

/// Allocates memory for the pages of this range of the file, filled with zeros. On success the pages exist.
///
/// # Errors
/// The kernel's error: usually no memory.
pub(crate) fn take_pages(file: &File, at: u64, pages: u64) -> std::io::Result<()> {
    fallocate(file, libc::FALLOC_FL_KEEP_SIZE, at, pages)
}

/// Frees the memory of the pages of this range to the kernel.
///
/// # Errors
/// The kernel's error.
pub(crate) fn give_back_pages(file: &File, at: u64, pages: u64) -> std::io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    fallocate(file, mode, at, pages)
}

fn fallocate(file: &File, mode: libc::c_int, at: u64, pages: u64) -> std::io::Result<()> {
    let (at, bytes) = (at as libc::off64_t, (pages * PAGE_BYTES) as libc::off64_t);
    loop {
        // SAFETY: plain integers and a descriptor that is open.
        if unsafe { libc::fallocate64(file.as_raw_fd(), mode, at, bytes) } == 0 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINTR) {
            return Err(error);
        }
    }
}
