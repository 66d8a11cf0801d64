//! Stores for which the processor has special instructions: past the cache, and announced beforehand.

/// Copies past the cache where the processor can. A large write that nobody reads at once would push out of the cache
/// what is needed, and would first fetch the lines that it fills. Others see it in the order of the stores before and
/// after.
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

/// Of a [`copy`] to `at`, a multiple of a line where that of the region is, what goes past the cache.
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

/// Lines that are asked for without a look at what is left.
const LINES_AT_ONCE: usize = 8;

/// Calls `line` for each line of a range, in as few instructions as can be: those of the next call wait behind them.
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

/// Asks for the lines of a range, for writing. Any address is right: none is touched.
#[inline(always)]
pub(crate) fn expect_write(at: *mut u8, bytes: usize) {
    each_line(at, bytes, |address| {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint that reads and writes nothing and cannot fault; a processor that does not know it does
        // nothing.
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

/// Asks for the lines of a range, for reading. Any address is right: none is touched.
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
        // SAFETY: the three parts are what the caller promises, and the middle one begins at a line. SSE2 is part of
        // every processor of this kind.
        unsafe {
            // Such stores are in no order with others: those before must be seen first, and those after last.
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
