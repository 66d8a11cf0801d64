//! The region's memory: one mapping of one file, shared with processes that may do anything to it at any time. So
//! nothing here is a Rust reference to bytes; words are atomic, bytes are copied in and out by the C library.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, compiler_fence};
use std::time::Duration;

#[cfg(test)]
use crate::crash::{Event, Recorder};
use crate::error::{Error, Result};
use crate::flush::{self, Flush};
use crate::layout::{PAGE_BYTES, SLOT_ALIGNMENT_BYTES};
use crate::notes::take_part_in_barriers;
use crate::stream;

/// Words of a cache line.
pub(crate) const WORDS_IN_LINE: usize = 8;
/// Bytes of those, and of what an inode has in its first one.
pub(crate) const LINE_BYTES: u64 = 64;

/// The mapping of a whole region.
pub(crate) struct Memory {
    base: NonNull<u8>,
    bytes: u64,
    flush: Flush,
    /// Whether the memory itself keeps its content without power: the file system maps it without copies.
    is_persistent: bool,
    /// Stores that the writer under test lives for.
    #[cfg(test)]
    pub(crate) stores_left: AtomicU64,
    /// What the test under way wants to know of stores and their order.
    #[cfg(test)]
    pub(crate) recorder: Recorder,
}

// SAFETY: the mapping stays where it is as long as this lives, and is only accessed by atomic words and by copies for
// which the protocols of this crate say who may write when.
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
        let failed = |source| Error::System {
            path: path.to_owned(),
            what: "cannot be mapped",
            source,
        };
        let length = usize::try_from(bytes + SLOT_ALIGNMENT_BYTES).map_err(|_| Error::TooLarge)?;
        // Address space for it with an aligned place inside; the file then goes over that place.
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
            // SAFETY: the range lies within what was reserved above, which nobody else knows.
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
        // A mapping of this kind is of persistent memory itself, and where its pages lie in the file is durable before
        // they can be written to. Other file systems refuse it.
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
        take_part_in_barriers().map_err(|source| Error::System {
            path: path.to_owned(),
            what: "readers and writers need membarrier, of Linux 4.16",
            source,
        })?;
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

    /// What makes stores durable.
    pub(crate) fn flush(&self) -> Flush {
        self.flush
    }

    /// Whether the memory itself keeps its content without power.
    pub(crate) fn is_persistent(&self) -> bool {
        self.is_persistent
    }

    /// Makes what was stored to these ranges durable, and all that was written past the cache, before anything that is
    /// stored from now on. Nothing happens in a region that is not made for that.
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

    /// Starts making what was stored to this range durable; the next [`persist`](Self::persist) waits for it.
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

    /// Where the bytes at `at` are in this process.
    pub(crate) fn address(&self, at: u64, bytes: u64) -> *const u8 {
        self.check_range(at, bytes);
        self.base.as_ptr().wrapping_add(at as usize)
    }

    /// Keeps pages in memory. They are there, and stay until this is done: others would be made.
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

    /// Address space that it takes.
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

    /// Where a word lies, for as long as this mapping does.
    pub(crate) fn address_of(&self, at: u64) -> *const AtomicU64 {
        self.word(at)
    }

    /// The words from `at` on, a multiple of 64 within the region: a line of an inode or a lane, looked up once.
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

    /// Stores a word. All stores of a writer, words and bytes, are made in the order in which the code has them: what
    /// a dead one leaves is a beginning of it.
    #[inline]
    pub(crate) fn store(&self, at: u64, value: u64) {
        self.may_die_here();
        compiler_fence(Ordering::SeqCst);
        self.word(at).store(value, Ordering::Release);
        compiler_fence(Ordering::SeqCst);
        self.record_store(at, 8);
    }

    /// Replaces `old` by `new`; what was there instead otherwise.
    #[inline]
    pub(crate) fn replace(&self, at: u64, old: u64, new: u64) -> std::result::Result<(), u64> {
        self.may_die_here();
        self.word(at)
            .compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
            .map(|_| self.record_store(at, 8))
    }

    /// Sleeps while the low half of the word at `at` is `value`, but no longer than `time`; maybe less.
    pub(crate) fn sleep_while(&self, at: u64, value: u32, time: Duration) {
        #[cfg(test)]
        if crate::interleaving::others_may_go_first() {
            // There the time is over whenever it is this one's turn.
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

    /// Wakes all who sleep at the word.
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
        // Not followed here: the kernel is given it.
        self.word(at).as_ptr().cast::<u32>().wrapping_add(half)
    }

    /// Copies from the region.
    #[inline]
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) {
        self.check_range(at, into.len() as u64);
        // SAFETY: inside the mapping, by the line above. Another process may be writing; the caller finds that out by
        // the file's sequence number and does not use what was copied then. The C library's copy is opaque to the
        // compiler, which assumes nothing of what it reads.
        unsafe {
            libc::memcpy(
                into.as_mut_ptr().cast(),
                self.base.as_ptr().add(at as usize).cast(),
                into.len(),
            )
        };
    }

    /// Copies into the region; also from a place in it, as the caller may have it lent.
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

    /// Copies into the region past the cache, where the processor can; complete for all when this returns. What went
    /// through the cache all the same is being written back, where that is wanted.
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

    /// Copies 1, 2, 4 or 8 bytes into the region by one store; `false`, and nothing happened, when their number or
    /// place is another.
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
        // The bytes lie at the beginning of the word, which are the high ones of a big-endian number.
        let value = if cfg!(target_endian = "little") {
            low
        } else {
            low >> (64 - 8 * length as u32)
        };
        compiler_fence(Ordering::SeqCst);
        // SAFETY: inside the mapping and aligned, by the checks; the caller holds the lock for these bytes, and all
        // who read them meanwhile find out by the file's sequence number.
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

    /// Asks for the cache lines of a place that will be read. Nothing happens where there is no memory.
    #[inline(always)]
    pub(crate) fn expect_read(&self, at: u64, bytes: u64) {
        if at.checked_add(bytes).is_some_and(|end| end <= self.bytes) {
            stream::expect_read(self.base.as_ptr().wrapping_add(at as usize), bytes as usize);
        }
    }

    /// Asks for the cache lines of a place that will be written. Nothing happens where there is no memory.
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
            // SAFETY: inside the mapping and apart, by the checks. The caller holds the locks for these bytes.
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

    /// In tests: the writer dies before its next store once as many as wanted are done, and others may go first.
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

    /// In tests: notes what stands at a place since just now.
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

    /// In tests: as [`record_store`](Self::record_store), of a copy that went past the cache where it could.
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
    /// Takes memory for the pages of this range of the file, which are zeros then; they are there already after
    /// success. [`sync_pages`](Self::sync_pages) makes it durable.
    ///
    /// # Errors
    /// What the kernel says: no memory, mostly.
    pub(crate) fn take_pages(&self, file: &File, at: u64, pages: u64) -> std::io::Result<()> {
        take_pages(file, at, pages)?;
        #[cfg(test)]
        self.recorder.record(|| Event::Take { at, pages });
        Ok(())
    }

    /// Gives the memory of the pages of this range back to the kernel.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn give_back_pages(&self, file: &File, at: u64, pages: u64) -> std::io::Result<()> {
        give_back_pages(file, at, pages)?;
        #[cfg(test)]
        self.recorder.record(|| Event::GiveBack { at, pages });
        Ok(())
    }

    /// Makes durable which pages there are, where the region is made for that.
    ///
    /// # Errors
    /// What the kernel says.
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

/// Whether a file lies in memory that keeps its content without power, and can be mapped as such.
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

/// An error of this crate: every offset is checked where it comes from.
#[cold]
#[inline(never)]
fn no_place(at: u64, bytes: u64) -> ! {
    panic!("the region has no {bytes} bytes at {at}")
}

/// Words in a block.
const WORDS_IN_BLOCK: usize = 2 * WORDS_IN_LINE;
const BLOCK_BYTES: u64 = WORDS_IN_BLOCK as u64 * 8;

/// The first two lines of an inode or a lane, looked up once: a call stores a dozen words there.
#[derive(Clone, Copy)]
pub(crate) struct Block<'m> {
    memory: &'m Memory,
    at: u64,
    words: &'m [AtomicU64; WORDS_IN_BLOCK],
}

impl Block<'_> {
    /// Where it is.
    #[inline(always)]
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// As [`Memory::load`], of a word by its distance from the first.
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

/// A copy as a whole; in tests in two parts, for a process may die in the middle of one.
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

/// What a killed writer's test unwinds with.
#[cfg(test)]
pub(crate) struct Killed;

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping made above, which nobody uses any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes as usize) };
    }
}

/// Copies from the region's file by a call to the kernel, which answers zeros where there is no memory.
///
/// # Errors
/// What the kernel says.
pub(crate) fn read_by_kernel(file: &File, at: u64, into: &mut [u8]) -> std::io::Result<()> {
    use std::os::unix::fs::FileExt;
    file.read_exact_at(into, at)
}

/// Takes memory for the pages of this range of the file, which are zeros then; they are there already after success.
///
/// # Errors
/// What the kernel says: no memory, mostly.
pub(crate) fn take_pages(file: &File, at: u64, pages: u64) -> std::io::Result<()> {
    fallocate(file, libc::FALLOC_FL_KEEP_SIZE, at, pages)
}

/// Gives the memory of the pages of this range back to the kernel.
///
/// # Errors
/// What the kernel says.
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
