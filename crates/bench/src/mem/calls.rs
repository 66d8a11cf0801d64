//! The tight loop: requests one after the other, without other work. It runs in its own process, which uses the system
//! under measurement like any program. The same loop can also call the library directly, or only copy the bytes.

use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use mem::{Attachment, Logging, ROOT_INODE};
use serde::{Deserialize, Serialize};

use super::case::Pattern;
use super::child::{Limits, output};
use super::systems::System;

/// Bytes between two readings of the clock, because one reading costs as much as a small request.
const BATCH_BYTES: usize = 256 << 10;
const BATCH_REQUESTS_MAX: usize = 256;

/// Request size of the warm-up pass over the file, in bytes.
const WARM_UP_BYTES: usize = 1 << 20;

/// How bytes are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    /// `pread` and `pwrite`, served by the measured system.
    Calls,
    /// Direct calls of the library.
    Library,
    /// A copy from or to the file's memory.
    Copy,
}

/// `keel-bench mem-calls`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Options {
    #[arg(long, value_enum)]
    by: By,
    /// Region whose file it is, for the library and for copies from it.
    #[arg(long)]
    region: Option<PathBuf>,
    /// The file; within a region its name in the root.
    #[arg(long)]
    file: PathBuf,
    #[arg(long)]
    file_bytes: u64,
    #[arg(long, value_enum)]
    pattern: Pattern,
    #[arg(long)]
    request_bytes: usize,
    #[arg(long)]
    runtime_ms: u64,
    /// How the library keeps overwrites whole.
    #[arg(long, value_enum, default_value_t = Keeping::BySize)]
    keeping: Keeping,
}

/// How the library keeps overwrites whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Keeping {
    BySize,
    Redo,
    Undo,
    CopyOnWrite,
    /// Only names, sizes and space are kept whole.
    Posix,
}

impl Keeping {
    fn name(self) -> &'static str {
        match self {
            Self::BySize => "by-size",
            Self::Redo => "redo",
            Self::Undo => "undo",
            Self::CopyOnWrite => "copy-on-write",
            Self::Posix => "posix",
        }
    }

    fn logging(self) -> Logging {
        match self {
            Self::BySize => Logging::BySize,
            Self::Redo => Logging::Redo,
            Self::Undo => Logging::Undo,
            Self::CopyOnWrite => Logging::CopyOnWrite,
            Self::Posix => Logging::None,
        }
    }
}

/// Ways to keep overwrites whole, and the names of their figures; the first one is the default for programs.
pub(crate) const LOGS: [(Keeping, &str); 5] = [
    (Keeping::BySize, "keel-library"),
    (Keeping::Redo, "keel-library-redo"),
    (Keeping::Undo, "keel-library-undo"),
    (Keeping::CopyOnWrite, "keel-library-copy-on-write"),
    (Keeping::Posix, "keel-library-posix"),
];

/// The result of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Timing {
    pub(crate) requests: u64,
    pub(crate) elapsed_ns: u64,
    /// Processor time of the loop; less than the elapsed time if other threads used the processor meanwhile.
    pub(crate) cpu_ns: u64,
}

impl Timing {
    pub(crate) fn ns_per_request(&self) -> f64 {
        self.elapsed_ns as f64 / self.requests.max(1) as f64
    }

    pub(crate) fn cpu_ns_per_request(&self) -> f64 {
        self.cpu_ns as f64 / self.requests.max(1) as f64
    }
}

/// One loop on a system.
pub(crate) struct Loop {
    pub(crate) by: By,
    pub(crate) keeping: Keeping,
    pub(crate) file: &'static str,
    pub(crate) pattern: Pattern,
    pub(crate) request_bytes: u32,
    pub(crate) file_bytes: u64,
    pub(crate) runtime: Duration,
}

/// Runs a loop on a system, in its own process.
///
/// # Errors
/// One line with the reason.
pub(crate) fn measure(
    system: &System,
    measured: &Loop,
    limits: &Limits<'_>,
) -> Result<Timing, String> {
    let program = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let mut command = match measured.by {
        By::Calls => system.command(program.as_os_str()),
        By::Library | By::Copy => std::process::Command::new(&program),
    };
    command.arg("mem-calls");
    let file = match (&system.ours, measured.by) {
        (Some(ours), By::Library | By::Copy) => {
            command.arg("--region").arg(ours.attachment.region().path());
            PathBuf::from(measured.file)
        }
        _ => system.file(measured.file),
    };
    command.arg("--file").arg(file);
    let by = match measured.by {
        By::Calls => "calls",
        By::Library => "library",
        By::Copy => "copy",
    };
    command.args(["--by", by, "--pattern", measured.pattern.name()]);
    command.args(["--keeping", measured.keeping.name()]);
    command.args(["--request-bytes", &measured.request_bytes.to_string()]);
    command.args(["--file-bytes", &measured.file_bytes.to_string()]);
    command.args(["--runtime-ms", &measured.runtime.as_millis().to_string()]);
    let text = output(system.name, &mut command, limits)?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {text}: {error}", system.name))
}

/// Runs the loop in this process and prints the result to standard output.
///
/// # Errors
/// One line that names the file.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", options.file.display());
    let is_write = options.pattern.is_write();
    let timing = match (options.by, &options.region) {
        (By::Calls, _) => {
            let file = std::fs::OpenOptions::new()
                .read(!is_write)
                .write(is_write)
                .open(&options.file)
                .map_err(|error| failed(&error))?;
            let descriptor = file.as_raw_fd();
            if is_write {
                repeat(options, |offset, bytes| {
                    // SAFETY: an open descriptor, and bytes that may be read for the length of the call.
                    let done = unsafe {
                        libc::pwrite64(
                            descriptor,
                            bytes.as_ptr().cast(),
                            bytes.len(),
                            offset as i64,
                        )
                    };
                    done == bytes.len() as isize
                })
            } else {
                repeat(options, |offset, bytes| {
                    // SAFETY: an open descriptor, and bytes that are ours for the length of the call.
                    let done = unsafe {
                        libc::pread64(
                            descriptor,
                            bytes.as_mut_ptr().cast(),
                            bytes.len(),
                            offset as i64,
                        )
                    };
                    done == bytes.len() as isize
                })
            }
        }
        (By::Copy, None) => {
            let mapped = Mapped::new(&options.file, options.file_bytes, is_write)
                .map_err(|error| failed(&error))?;
            copy(options, mapped.start)
        }
        (_, None) => return Err(failed(&"the library has files of regions only")),
        (by, Some(region)) => {
            let attachment =
                Attachment::open(region, b"/mem-calls", true).map_err(|error| error.to_string())?;
            attachment.region().set_logging(options.keeping.logging());
            let attributes = attachment
                .look_up(ROOT_INODE, options.file.as_os_str().as_bytes())
                .map_err(|error| failed(&error))?;
            if by == By::Copy {
                let lent = attachment
                    .lend(&attributes, 0, options.file_bytes)
                    .map_err(|error| failed(&error))?;
                // The memory is shared, and this attachment may write to it.
                copy(options, lent.bytes().as_ptr().cast_mut().cast())
            } else {
                let flags = if is_write {
                    libc::O_WRONLY
                } else {
                    libc::O_RDONLY
                };
                let (_, opened) = attachment
                    .open_description(&attributes, flags)
                    .map_err(|error| failed(&error))?;
                if is_write {
                    repeat(options, |offset, bytes| {
                        let done = attachment.write_at(&opened, offset, bytes);
                        done.is_ok_and(|count| count == bytes.len())
                    })
                } else {
                    repeat(options, |offset, bytes| {
                        let done = attachment.read_at(&opened, offset, bytes);
                        done.is_ok_and(|count| count == bytes.len())
                    })
                }
            }
        }
    }
    .map_err(|error| failed(&error))?;
    println!(
        "{}",
        serde_json::to_string(&timing).map_err(|error| error.to_string())?
    );
    Ok(())
}

/// Runs the loop with bare copies between the buffer and the memory that holds the file, from `start` on.
fn copy(options: &Options, start: *mut u8) -> Result<Timing, String> {
    let is_write = options.pattern.is_write();
    repeat(options, |offset, bytes| {
        let place = start.wrapping_add(offset as usize);
        // SAFETY: `repeat` stays within the file's bytes, which are all mapped. Other processes may change them at any
        // time, which is allowed for the C library's copy because it is opaque to the compiler.
        unsafe {
            if is_write {
                libc::memcpy(place.cast(), bytes.as_ptr().cast(), bytes.len());
            } else {
                libc::memcpy(bytes.as_mut_ptr().cast(), place.cast(), bytes.len());
            }
        }
        true
    })
}

/// A file's memory, mapped until this is dropped.
struct Mapped {
    start: *mut u8,
    bytes: usize,
}

impl Mapped {
    fn new(file: &std::path::Path, bytes: u64, is_write: bool) -> std::io::Result<Self> {
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(is_write)
            .open(file)?;
        let protection = if is_write {
            libc::PROT_READ | libc::PROT_WRITE
        } else {
            libc::PROT_READ
        };
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new mapping at a place that the kernel chooses touches no memory that is in use.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes as usize,
                protection,
                flags,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Self {
            start: start.cast(),
            bytes: bytes as usize,
        })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping made above, which is not used any more.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

/// Offsets of the requests, within the file and aligned to the request size.
struct Offsets {
    requests: u64,
    request_bytes: u64,
    next: u64,
    is_random: bool,
}

impl Offsets {
    fn new(pattern: Pattern, file_bytes: u64, request_bytes: u64) -> Self {
        Self {
            requests: (file_bytes / request_bytes).max(1),
            request_bytes,
            next: if pattern.is_random() {
                0x2545_f491_4f6c_dd1d
            } else {
                0
            },
            is_random: pattern.is_random(),
        }
    }

    /// Returns the next offset. A random one costs a few nanoseconds, equally for all systems.
    #[inline]
    fn next(&mut self) -> u64 {
        let request = if self.is_random {
            self.next ^= self.next << 13;
            self.next ^= self.next >> 7;
            self.next ^= self.next << 17;
            ((u128::from(self.next) * u128::from(self.requests)) >> 64) as u64
        } else {
            let now = self.next;
            self.next = if now + 1 == self.requests { 0 } else { now + 1 };
            now
        };
        request * self.request_bytes
    }
}

/// Makes requests for the measured time. `transfer` moves bytes at an offset and returns whether it moved all of them.
fn repeat(
    options: &Options,
    mut transfer: impl FnMut(u64, &mut [u8]) -> bool,
) -> Result<Timing, String> {
    let request_bytes = options.request_bytes;
    if request_bytes == 0 || request_bytes as u64 > options.file_bytes {
        return Err("a request must fit into the file".to_owned());
    }
    // Programs commonly align their buffers to a page.
    const ALIGNMENT: usize = 4096;
    let mut memory = vec![0x5a_u8; request_bytes.max(WARM_UP_BYTES) + ALIGNMENT];
    let start = memory.as_ptr().align_offset(ALIGNMENT);
    let buffer = &mut memory[start..];
    let lacking = || "a request was not served, or in part".to_owned();
    let warm_up_bytes = WARM_UP_BYTES.min(options.file_bytes as usize);
    for offset in (0..options.file_bytes).step_by(warm_up_bytes) {
        let left = (options.file_bytes - offset) as usize;
        if !transfer(offset, &mut buffer[..warm_up_bytes.min(left)]) {
            return Err(lacking());
        }
    }
    let buffer = &mut buffer[..request_bytes];
    let mut offsets = Offsets::new(options.pattern, options.file_bytes, request_bytes as u64);
    let batch = (BATCH_BYTES / request_bytes).clamp(1, BATCH_REQUESTS_MAX);
    let runtime = Duration::from_millis(options.runtime_ms);
    let mut requests = 0;
    let cpu_before_ns = cpu_ns();
    let started = Instant::now();
    loop {
        for _ in 0..batch {
            if !transfer(offsets.next(), buffer) {
                return Err(lacking());
            }
        }
        requests += batch as u64;
        let elapsed = started.elapsed();
        if elapsed >= runtime {
            return Ok(Timing {
                requests,
                elapsed_ns: elapsed.as_nanos() as u64,
                cpu_ns: cpu_ns() - cpu_before_ns,
            });
        }
    }
}

/// Returns the processor time of this thread in nanoseconds.
pub(crate) fn cpu_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a structure that lives as long as the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(pattern: Pattern, request_bytes: usize, file_bytes: u64) -> Options {
        Options {
            by: By::Copy,
            region: None,
            file: PathBuf::from("f"),
            file_bytes,
            pattern,
            request_bytes,
            runtime_ms: 0,
            keeping: Keeping::BySize,
        }
    }

    #[test]
    fn requests_stay_within_the_file_and_reach_all_of_it() {
        for pattern in Pattern::ALL {
            let mut offsets = Offsets::new(pattern, 10 * 1024 + 5, 1024);
            let mut reached = [0; 10];
            for _ in 0..1000 {
                let offset = offsets.next();
                assert_eq!(offset % 1024, 0);
                reached[(offset / 1024) as usize] += 1;
            }
            assert!(reached.iter().all(|times| *times > 50), "{reached:?}");
        }
        let mut offsets = Offsets::new(Pattern::SequentialRead, 2048, 1024);
        let four = [0; 4].map(|_| offsets.next());
        assert_eq!(four, [0, 1024, 0, 1024]);
    }

    #[test]
    fn a_loop_goes_through_the_file_once_and_counts_later_requests() {
        let file_bytes = 3 << 20;
        let mut seen = Vec::new();
        let options = options(Pattern::SequentialRead, 64 << 10, file_bytes);
        let timing = repeat(&options, |offset, bytes| {
            seen.push((offset, bytes.len()));
            true
        });
        assert_eq!(timing.unwrap().requests, 4);
        let megabyte = 1_usize << 20;
        assert_eq!(
            seen[..3],
            [(0, megabyte), (1 << 20, megabyte), (2 << 20, megabyte)]
        );
        assert_eq!(seen[3..5], [(0, 64 << 10), (64 << 10, 64 << 10)]);
    }

    #[test]
    fn a_request_that_is_not_served_ends_the_loop() {
        let mut left = 5;
        let ended = repeat(&options(Pattern::RandomRead, 4096, 1 << 20), |_, _| {
            left -= 1;
            left > 0
        });
        assert!(ended.unwrap_err().contains("not served"));
        assert!(repeat(&options(Pattern::RandomRead, 0, 1 << 20), |_, _| true).is_err());
        assert!(repeat(&options(Pattern::RandomRead, 4096, 4095), |_, _| true).is_err());
    }

    #[test]
    fn the_command_line_knows_ways_to_keep_bytes_by_their_names() {
        for keeping in Keeping::value_variants() {
            let shown = keeping.to_possible_value().unwrap();
            assert_eq!(shown.get_name(), keeping.name());
        }
    }

    #[test]
    fn time_is_shared_by_the_requests() {
        let timing = Timing {
            requests: 4,
            elapsed_ns: 10,
            cpu_ns: 8,
        };
        assert_eq!(timing.ns_per_request(), 2.5);
        assert_eq!(timing.cpu_ns_per_request(), 2.0);
        let text = serde_json::to_string(&timing).unwrap();
        assert_eq!(serde_json::from_str::<Timing>(&text).unwrap(), timing);
    }
}
