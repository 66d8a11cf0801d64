//! Stores and prefetches with special instructions: stores past the cache, and prefetches for reading and writing.

/// Copies past the cache, if the processor can. A large write that no reader needs at once would evict useful lines
/// from the cache, and would first fetch the lines that it overwrites. Other processors see the copy in order with the
/// stores before and after it.
///
/// # Safety
/// `to` is valid for writes of as many bytes as `from` has, and does not overlap it.
pub(crate) unsafe fn copy(to: *mut u8, from: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise.
    unsafe {
        x86::copy(to, from);
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's promise.
    unsafe {
        libc::memcpy(to.cast(), from.as_ptr().cast(), from.len());
    }
}

/// The part of a [`copy`] to `at` that goes past the cache. `at` is a multiple of a line if the address is one.
pub(crate) fn streamed(at: u64, bytes: u64) -> std::ops::Range<u64> {
    if cfg!(not(target_arch = "x86_64")) {
        return at..at;
    }
    let line = LINE_BYTES as u64;
    let start = at.next_multiple_of(line).min(at + bytes);
    start..start + (at + bytes - start) / line * line
}

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// The number of lines prefetched without a check of the remaining length.
const LINES_AT_ONCE: usize = 8;

/// Calls `line` for each line of a range, with as few instructions as possible: the next call's instructions wait
/// behind them.
#[inline(always)]
fn each_line(at: *const u8, bytes: usize, line: impl Fn(*const u8)) {
    let (mut at, mut left) = (at, bytes);
    while left >= LINES_AT_ONCE * LINE_BYTES {
        for number in 0..LINES_AT_ONCE {
            line(at.wrapping_add(number * LINE_BYTES));
        }
        at = at.wrapping_add(LINES_AT_ONCE * LINE_BYTES);
        left -= LINES_AT_ONCE * LINE_BYTES;
    }
    for start in (0..left).step_by(LINE_BYTES) {
        line(at.wrapping_add(start));
    }
}

/// Prefetches the lines of a range for writing. Any address is valid, because none is accessed.
#[inline(always)]
pub(crate) fn expect_write(at: *mut u8, bytes: usize) {
    each_line(at, bytes, |address| {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint that reads and writes nothing and cannot fault; a processor that does not know it ignores it.
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        unsafe {
            std::arch::asm!("prfm pstl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = address;
    });
}

/// Prefetches the lines of a range for reading. Any address is valid, because none is accessed.
#[inline(always)]
pub(crate) fn expect_read(at: *const u8, bytes: usize) {
    each_line(at, bytes, |address| {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint that cannot fault.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = address;
    });
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    use super::LINE_BYTES;

    /// # Safety
    /// As for [`copy`](super::copy).
    pub(super) unsafe fn copy(to: *mut u8, from: &[u8]) {
        let head = to.align_offset(LINE_BYTES).min(from.len());
        let (before, rest) = from.split_at(head);
        let (whole, after) = rest.split_at(rest.len() / LINE_BYTES * LINE_BYTES);
        // SAFETY: the three parts are covered by the caller's promise, and the middle one begins at a line. SSE2 is
        // part of every processor of this kind.
        unsafe {
            // Such stores are not ordered with others: earlier stores must be visible first, and later ones last.
            _mm_sfence();
            libc::memcpy(to.cast(), before.as_ptr().cast(), head);
            let target = to.add(head);
            for part in (0..whole.len()).step_by(size_of::<__m128i>()) {
                let bytes = _mm_loadu_si128(whole.as_ptr().add(part).cast());
                _mm_stream_si128(target.add(part).cast(), bytes);
            }
            libc::memcpy(
                target.add(whole.len()).cast(),
                after.as_ptr().cast(),
                after.len(),
            );
            _mm_sfence();
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_copy_past_the_cache_is_the_same_bytes() {
        let from: Vec<u8> = (0..1000u32).map(|place| (place * 7) as u8).collect();
        for start in 0..70 {
            for length in [0, 1, 63, 64, 65, 127, 128, 200, 900] {
                let mut to = vec![0xee; 1100];
                // SAFETY: 70 and 900 bytes are less than there are.
                unsafe { super::copy(to.as_mut_ptr().add(start), &from[start..start + length]) };
                assert_eq!(to[start..start + length], from[start..start + length]);
                let untouched = to[..start].iter().chain(&to[start + length..]);
                assert!(untouched.into_iter().all(|byte| *byte == 0xee));
            }
        }
    }
}
