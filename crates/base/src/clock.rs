//! Time as an interface. Monotonic time orders and measures; wall-clock time is a label that may be wrong.
//!
//! [`SystemClock`] is the machine's; [`crate::sim::SimClock`] is set by a test.

use std::io::Read;
use std::sync::Arc;

/// A source of time.
pub trait Clock: Send + Sync {
    /// Nanoseconds since an arbitrary start, never decreasing within one boot.
    fn monotonic_ns(&self) -> u64;
    /// Milliseconds since 1970-01-01 UTC, as this machine believes.
    fn wall_ms(&self) -> i64;
    /// The same moment in nanoseconds; the farthest number for a time that it cannot hold.
    fn wall_ns(&self) -> i64 {
        self.wall_ms().saturating_mul(1_000_000)
    }
    /// Whether the wall clock has been set from a trusted source since boot.
    fn wall_is_trusted(&self) -> bool;
    /// Identity of this boot: monotonic times of different boots do not compare.
    fn boot_id(&self) -> [u8; 16];
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn monotonic_ns(&self) -> u64 {
        (**self).monotonic_ns()
    }
    fn wall_ms(&self) -> i64 {
        (**self).wall_ms()
    }
    fn wall_ns(&self) -> i64 {
        (**self).wall_ns()
    }
    fn wall_is_trusted(&self) -> bool {
        (**self).wall_is_trusted()
    }
    fn boot_id(&self) -> [u8; 16] {
        (**self).boot_id()
    }
}

/// The kernel's identity of this boot, a UUID in text.
const BOOT_ID_PATH: &str = "/proc/sys/kernel/random/boot_id";

/// The clock of this machine.
///
/// Monotonic time is `CLOCK_BOOTTIME`, which also runs while the machine is suspended, because the age of a reading
/// must grow meanwhile. With `CLOCK_MONOTONIC` a reading would be fresh that was taken before a night's suspend. Both
/// are read without a system call on the common architectures.
///
/// A thread that waits on a condition variable waits in `CLOCK_MONOTONIC` time; only a suspend makes the two differ.
#[derive(Clone, Debug)]
pub struct SystemClock {
    boot_id: [u8; 16],
}

impl SystemClock {
    /// Reads the boot's identity once.
    ///
    /// If the kernel does not tell it (no `/proc`), a substitute is made from the wall-clock second at which the
    /// machine started. It is the same for every process of a boot while the wall clock is not set. It is marked by
    /// eight leading zero bytes, which a real identity (a version 4 UUID) never has.
    #[must_use]
    pub fn new() -> Self {
        let boot_id = read_boot_id().unwrap_or_else(|| {
            let up_ns = i128::from(read_clock_ns(libc::CLOCK_BOOTTIME));
            let started_s =
                (i128::from(read_clock_ns(libc::CLOCK_REALTIME)) - up_ns) / 1_000_000_000;
            stand_in_boot_id(started_s as u64)
        });
        Self { boot_id }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn monotonic_ns(&self) -> u64 {
        read_clock_ns(libc::CLOCK_BOOTTIME)
    }

    fn wall_ms(&self) -> i64 {
        (read_clock_ns(libc::CLOCK_REALTIME) / 1_000_000) as i64
    }

    fn wall_ns(&self) -> i64 {
        i64::try_from(read_clock_ns(libc::CLOCK_REALTIME)).unwrap_or(i64::MAX)
    }

    /// The kernel's own judgement. It sets `STA_UNSYNC` at boot; a time daemon (chrony, ntpd, systemd-timesyncd, a GPS
    /// or PTP follower) clears it. Without corrections the estimated error grows. The kernel sets the flag again when
    /// the error passes 16 s. So a clock set by hand, or from a battery-backed chip alone, is not trusted. One system
    /// call: not for a real-time path.
    fn wall_is_trusted(&self) -> bool {
        // SAFETY: `timex` is plain data for which all zero is a valid value; `modes` 0 makes it a pure query.
        let mut query: libc::timex = unsafe { std::mem::zeroed() };
        // SAFETY: `query` is a valid, exclusively borrowed `timex` for the length of the call.
        let state = unsafe { libc::adjtimex(&raw mut query) };
        state != -1 && query.status & libc::STA_UNSYNC == 0
    }

    fn boot_id(&self) -> [u8; 16] {
        self.boot_id
    }
}

/// Returns the nanoseconds of a kernel clock; 0 before its start and, never seen, if the kernel lacks the clock.
fn read_clock_ns(id: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid, exclusively borrowed `timespec` for the length of the call.
    if unsafe { libc::clock_gettime(id, &raw mut time) } != 0 {
        return 0;
    }
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}

fn read_boot_id() -> Option<[u8; 16]> {
    let mut text = [0; 64];
    let length = std::fs::File::open(BOOT_ID_PATH)
        .and_then(|mut file| file.read(&mut text))
        .ok()?;
    parse_uuid(&text[..length])
}

fn stand_in_boot_id(started_s: u64) -> [u8; 16] {
    let mut id = [0; 16];
    id[8..].copy_from_slice(&started_s.to_be_bytes());
    id
}

/// Sixteen bytes from 32 hexadecimal digits with any dashes and a final line end.
fn parse_uuid(text: &[u8]) -> Option<[u8; 16]> {
    let mut id = [0; 16];
    let mut digits = 0;
    for &byte in text.trim_ascii() {
        if byte == b'-' {
            continue;
        }
        let digit = (byte as char).to_digit(16)? as u8;
        *id.get_mut(digits / 2)? |= if digits % 2 == 0 { digit << 4 } else { digit };
        digits += 1;
    }
    (digits == 32).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_time_runs_forward() {
        let clock = SystemClock::new();
        let mut last = clock.monotonic_ns();
        assert!(last > 0);
        for _ in 0..1000 {
            let now = clock.monotonic_ns();
            assert!(now >= last);
            last = now;
        }
        // 2020-01-01: later than any default a machine boots with and earlier than any real run.
        assert!(clock.wall_ms() > 1_577_836_800_000 || !clock.wall_is_trusted());
        assert!(clock.wall_ns() / 1_000_000 > 1_577_836_800_000 || !clock.wall_is_trusted());
    }

    #[test]
    fn boot_identity_is_one_per_boot() {
        assert_eq!(
            SystemClock::new().boot_id(),
            SystemClock::default().boot_id()
        );
        assert_ne!(SystemClock::new().boot_id(), [0; 16]);
    }

    #[test]
    fn uuid_text_is_read_strictly() {
        let id = parse_uuid(b"00112233-4455-6677-8899-aabbccddeeff\n");
        assert_eq!(
            id,
            Some([
                0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd,
                0xee, 0xff
            ])
        );
        for bad in [
            "",
            "0011",
            "00112233-4455-6677-8899-aabbccddeef",
            "00112233-4455-6677-8899-aabbccddeeffa",
        ] {
            assert_eq!(parse_uuid(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(parse_uuid(b"g0112233-4455-6677-8899-aabbccddeeff"), None);
        assert_eq!(stand_in_boot_id(1)[..8], [0; 8]);
    }

    #[test]
    fn a_shared_clock_is_a_clock() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        assert!(Clock::monotonic_ns(&clock) > 0);
        // Not by way of whole milliseconds.
        let sim = crate::sim::SimClock::new(1);
        sim.advance_ns(1);
        let shared: Arc<dyn Clock> = Arc::new(sim);
        assert_eq!(Clock::wall_ns(&shared), 1);
        assert_eq!(Clock::boot_id(&clock), clock.as_ref().boot_id());
    }
}
