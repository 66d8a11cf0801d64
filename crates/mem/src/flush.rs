//! Writing cache lines back, for memory that keeps its content without power.
//!
//! Such memory keeps only what has reached it. A store reaches the cache first. A cache line reaches memory when the
//! processor evicts it, or when it is written back and a fence has waited for it. So code that needs one step to be
//! durable before the next writes back the lines of the first step, and then executes a fence.

use crate::error::{Error, Result};

/// How a region makes its changes survive a crash of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flush {
    /// No write-back: the region only survives the death of processes. Also right if the caches themselves survive a
    /// loss of power.
    #[default]
    None,
    /// Cache lines are written back, and fences wait for them. On memory that keeps its content without power, the
    /// changes of a call are durable when it returns.
    CacheLines,
}

impl Flush {
    /// Its name in commands and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::CacheLines => "cache-lines",
        }
    }

    /// Its number in the superblock.
    pub(crate) fn as_number(self) -> u32 {
        match self {
            Self::None => 0,
            Self::CacheLines => 1,
        }
    }

    pub(crate) fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::None),
            1 => Some(Self::CacheLines),
            _ => None,
        }
    }

    /// Checks that this processor supports it.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub(crate) fn require(self) -> Result<()> {
        if self == Self::None || processor::CAN_WRITE_BACK {
            Ok(())
        } else {
            Err(Error::Invalid {
                what: "this processor has no instruction for programs that writes cache lines back; make the region \
                       without (--flush none)",
            })
        }
    }
}

/// The name of the instruction that writes a line back on this processor.
#[must_use]
pub fn instruction_name() -> &'static str {
    processor::instruction_name()
}

/// Starts writing back the lines of a range; [`fence`] waits for them.
///
/// # Safety
/// The range is mapped.
pub(crate) unsafe fn write_back(at: *const u8, bytes: usize) {
    if bytes == 0 {
        return;
    }
    let line_bytes = processor::line_bytes();
    let first = at as usize / line_bytes * line_bytes;
    for line in (first..at as usize + bytes).step_by(line_bytes) {
        // SAFETY: a line of the range.
        unsafe { processor::write_back_line(at.wrapping_offset(line as isize - at as isize)) };
    }
}

/// Waits until the lines written back before it, and stores that bypass the cache, are durable. Later stores come after
/// it.
pub(crate) fn fence() {
    processor::fence();
}

#[cfg(target_arch = "x86_64")]
mod processor {
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count, _mm_sfence};
    use std::sync::atomic::{AtomicU8, Ordering};

    pub(super) const CAN_WRITE_BACK: bool = true;

    const UNKNOWN: u8 = 0;
    /// Writes back and keeps the line.
    const CLWB: u8 = 1;
    /// Writes back and drops the line.
    const CLFLUSHOPT: u8 = 2;
    /// As above, one line after the other; every processor of this kind has it.
    const CLFLUSH: u8 = 3;

    static INSTRUCTION: AtomicU8 = AtomicU8::new(UNKNOWN);

    fn instruction() -> u8 {
        match INSTRUCTION.load(Ordering::Relaxed) {
            UNKNOWN => {
                let found = detect();
                INSTRUCTION.store(found, Ordering::Relaxed);
                found
            }
            known => known,
        }
    }

    #[cold]
    fn detect() -> u8 {
        const LEAF: u32 = 7;
        if __cpuid(0).eax < LEAF {
            return CLFLUSH;
        }
        let features = __cpuid_count(LEAF, 0).ebx;
        match (features >> 24 & 1, features >> 23 & 1) {
            (1, _) => CLWB,
            (_, 1) => CLFLUSHOPT,
            _ => CLFLUSH,
        }
    }

    pub(super) fn instruction_name() -> &'static str {
        match instruction() {
            CLWB => "clwb",
            CLFLUSHOPT => "clflushopt",
            _ => "clflush",
        }
    }

    pub(super) fn line_bytes() -> usize {
        64
    }

    /// # Safety
    /// The address is mapped.
    #[inline(always)]
    pub(super) unsafe fn write_back_line(at: *const u8) {
        // Without `nomem`: earlier stores stay before it.
        match instruction() {
            // SAFETY: the caller's promise, and the processor reports that it knows the instruction. It changes no
            // byte.
            CLWB => unsafe { asm!("clwb [{}]", in(reg) at, options(nostack, preserves_flags)) },
            // SAFETY: as above.
            CLFLUSHOPT => unsafe {
                asm!("clflushopt [{}]", in(reg) at, options(nostack, preserves_flags));
            },
            // SAFETY: as above.
            _ => unsafe { asm!("clflush [{}]", in(reg) at, options(nostack, preserves_flags)) },
        }
    }

    pub(super) fn fence() {
        // SAFETY: every processor of this kind has it.
        unsafe { _mm_sfence() };
    }
}

#[cfg(target_arch = "aarch64")]
mod processor {
    use std::arch::asm;
    use std::sync::atomic::{AtomicU8, Ordering};

    pub(super) const CAN_WRITE_BACK: bool = true;

    const UNKNOWN: u8 = 0;
    /// To the point of persistence, from ARMv8.2 on.
    const CVAP: u8 = 1;
    /// To the point of coherency, where all observers of memory agree.
    const CVAC: u8 = 2;

    static INSTRUCTION: AtomicU8 = AtomicU8::new(UNKNOWN);

    fn instruction() -> u8 {
        match INSTRUCTION.load(Ordering::Relaxed) {
            UNKNOWN => {
                /// `HWCAP_DCPOP` of the kernel.
                const DCPOP: libc::c_ulong = 1 << 16;
                // SAFETY: a plain number.
                let has_dcpop = unsafe { libc::getauxval(libc::AT_HWCAP) } & DCPOP != 0;
                let found = if has_dcpop { CVAP } else { CVAC };
                INSTRUCTION.store(found, Ordering::Relaxed);
                found
            }
            known => known,
        }
    }

    pub(super) fn instruction_name() -> &'static str {
        if instruction() == CVAP {
            "dc cvap"
        } else {
            "dc cvac"
        }
    }

    pub(super) fn line_bytes() -> usize {
        let types: usize;
        // SAFETY: reads a register that programs may read, which describes the caches.
        unsafe {
            asm!("mrs {}, ctr_el0", out(reg) types, options(nomem, nostack, preserves_flags));
        }
        4 << (types >> 16 & 15)
    }

    /// # Safety
    /// The address is mapped.
    #[inline(always)]
    pub(super) unsafe fn write_back_line(at: *const u8) {
        if instruction() == CVAP {
            // SAFETY: the caller's promise, and the kernel says that the processor knows `dc cvap`. By its number, as
            // assemblers for older processors do not know its name.
            unsafe {
                asm!("sys #3, c7, c12, #1, {}", in(reg) at, options(nostack, preserves_flags))
            };
        } else {
            // SAFETY: the caller's promise; Linux lets programs do it.
            unsafe { asm!("dc cvac, {}", in(reg) at, options(nostack, preserves_flags)) };
        }
    }

    pub(super) fn fence() {
        // SAFETY: waits, and nothing else.
        unsafe { asm!("dsb sy", options(nostack, preserves_flags)) };
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod processor {
    pub(super) const CAN_WRITE_BACK: bool = false;

    pub(super) fn instruction_name() -> &'static str {
        "none"
    }

    pub(super) fn line_bytes() -> usize {
        64
    }

    /// # Safety
    /// None: it does nothing, and regions that need it are refused.
    pub(super) unsafe fn write_back_line(_: *const u8) {}

    pub(super) fn fence() {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_written_back_wherever_a_range_begins_and_ends() {
        // The test cannot see what is durable; it checks that no byte changes and nothing faults.
        let bytes: Vec<u8> = (0..1000_u32).map(|place| place as u8).collect();
        for start in 0..70 {
            for length in [0, 1, 63, 64, 65, 900] {
                // SAFETY: 70 and 900 bytes are less than there are.
                unsafe { write_back(bytes.as_ptr().add(start), length) };
            }
        }
        fence();
        assert!(
            bytes
                .iter()
                .zip(0..1000_u32)
                .all(|(byte, place)| *byte == place as u8)
        );
        assert!(
            [
                "clwb",
                "clflushopt",
                "clflush",
                "dc cvap",
                "dc cvac",
                "none"
            ]
            .contains(&instruction_name())
        );
    }

    #[test]
    fn a_flush_round_trips_through_its_number() {
        for flush in [Flush::None, Flush::CacheLines] {
            assert_eq!(Flush::from_number(flush.as_number()), Some(flush));
        }
        assert_eq!(Flush::from_number(2), None);
    }
}
