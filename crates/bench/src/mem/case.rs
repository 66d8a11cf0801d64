//! Access patterns, request sizes, and the names of the resulting cases.

use crate::figures::Metric;

/// Bytes transferred per second.
pub(crate) const THROUGHPUT: Metric = Metric::compared("throughput", "MiB/s");
/// Calls per second, one after the other.
pub(crate) const RATE: Metric = Metric::compared("operations", "1/s");
/// Time of one call.
pub(crate) const TIME: Metric = Metric::compared("time_per_operation", "ns");
/// Processor time of one call; if it is much less than the time of a call, other work ran meanwhile.
pub(crate) const CPU_TIME: Metric = Metric::shown("cpu_per_operation", "ns");
/// Page faults per operation.
pub(crate) const FAULTS: Metric = Metric::shown("page_faults", "1");
/// The throughput of several threads divided by that of one.
pub(crate) const OF_ONE_THREAD: Metric = Metric::shown("of_one_thread", "1");

/// Sizes of the requests, in bytes.
pub(crate) const REQUESTS_BYTES: [u32; 5] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 1 << 20];

/// In which order a file is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Pattern {
    SequentialRead,
    RandomRead,
    SequentialWrite,
    RandomWrite,
}

impl Pattern {
    pub(crate) const ALL: [Self; 4] = [
        Self::SequentialRead,
        Self::RandomRead,
        Self::SequentialWrite,
        Self::RandomWrite,
    ];

    pub(crate) fn is_write(self) -> bool {
        matches!(self, Self::SequentialWrite | Self::RandomWrite)
    }

    pub(crate) fn is_random(self) -> bool {
        matches!(self, Self::RandomRead | Self::RandomWrite)
    }

    /// Returns the name used on command lines.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::SequentialRead => "sequential-read",
            Self::RandomRead => "random-read",
            Self::SequentialWrite => "sequential-write",
            Self::RandomWrite => "random-write",
        }
    }

    /// Describes the pattern for a reader.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::SequentialRead => "sequential read",
            Self::RandomRead => "random read",
            Self::SequentialWrite => "sequential write",
            Self::RandomWrite => "random write",
        }
    }
}

/// How requests are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// By fio with one thread.
    Fio,
    /// By the tight loop.
    Tight,
    /// By the tight loop, on a small file that shares its page with others.
    Packed,
    /// By one thread of fio on a file of the size that each of several threads uses.
    OneThread,
    /// By two threads of fio, each on a file of its own.
    TwoThreads,
    /// By four, likewise.
    FourThreads,
}

impl Kind {
    /// The number of threads that make requests.
    pub(crate) fn threads(self) -> usize {
        match self {
            Self::Fio | Self::Tight | Self::Packed | Self::OneThread => 1,
            Self::TwoThreads => 2,
            Self::FourThreads => 4,
        }
    }
}

/// Names of the cases of one kind, by pattern and request size.
type Names = [[&'static str; 5]; 4];

macro_rules! names {
    ($kind:literal) => {
        [
            names!($kind, "sequential-read"),
            names!($kind, "random-read"),
            names!($kind, "sequential-write"),
            names!($kind, "random-write"),
        ]
    };
    ($kind:literal, $pattern:literal) => {
        [
            concat!($kind, "-", $pattern, "-1024"),
            concat!($kind, "-", $pattern, "-4096"),
            concat!($kind, "-", $pattern, "-16384"),
            concat!($kind, "-", $pattern, "-65536"),
            concat!($kind, "-", $pattern, "-1048576"),
        ]
    };
}

const FIO: Names = names!("fio");
const TIGHT: Names = names!("tight");
const PACKED: Names = names!("packed");
const ONE_THREAD: Names = names!("threads-1");
const TWO_THREADS: Names = names!("threads-2");
const FOUR_THREADS: Names = names!("threads-4");

/// One case: kind, pattern and request size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) kind: Kind,
    pub(crate) pattern: Pattern,
    /// One of [`REQUESTS_BYTES`].
    pub(crate) request_bytes: u32,
}

impl Case {
    /// Returns all cases of a kind with requests of these sizes.
    pub(crate) fn all(kind: Kind, requests_bytes: &[u32]) -> Vec<Self> {
        let of_pattern = |pattern| {
            requests_bytes.iter().map(move |bytes| Self {
                kind,
                pattern,
                request_bytes: *bytes,
            })
        };
        Pattern::ALL.into_iter().flat_map(of_pattern).collect()
    }

    /// Returns the name in reports.
    pub(crate) fn name(self) -> &'static str {
        let names = match self.kind {
            Kind::Fio => &FIO,
            Kind::Tight => &TIGHT,
            Kind::Packed => &PACKED,
            Kind::OneThread => &ONE_THREAD,
            Kind::TwoThreads => &TWO_THREADS,
            Kind::FourThreads => &FOUR_THREADS,
        };
        let size = REQUESTS_BYTES
            .iter()
            .position(|bytes| *bytes == self.request_bytes);
        names[self.pattern as usize][size.unwrap_or(0)]
    }
}

/// Cases that read by a program's calls and by a copy of the same bytes: request size and name.
pub(crate) const STACK: [(u32, &str); 11] = [
    (1 << 10, "stack-1024"),
    (2 << 10, "stack-2048"),
    (4 << 10, "stack-4096"),
    (8 << 10, "stack-8192"),
    (16 << 10, "stack-16384"),
    (32 << 10, "stack-32768"),
    (64 << 10, "stack-65536"),
    (128 << 10, "stack-131072"),
    (256 << 10, "stack-262144"),
    (512 << 10, "stack-524288"),
    (1 << 20, "stack-1048576"),
];

/// Formats a number of bytes in powers of 1,024.
pub(crate) fn bytes_text(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 30 && bytes.is_multiple_of(1 << 30) => {
            format!("{} GiB", bytes >> 30)
        }
        bytes if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => {
            format!("{} MiB", bytes >> 20)
        }
        bytes if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => {
            format!("{} KiB", bytes >> 10)
        }
        bytes => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn names_say_pattern_and_size_and_none_comes_twice() {
        let kinds = [
            Kind::Fio,
            Kind::Tight,
            Kind::Packed,
            Kind::OneThread,
            Kind::TwoThreads,
            Kind::FourThreads,
        ];
        let mut names = Vec::new();
        for kind in kinds {
            for case in Case::all(kind, &REQUESTS_BYTES) {
                let expected = format!("{}-{}", case.pattern.name(), case.request_bytes);
                assert!(case.name().ends_with(&expected), "{}", case.name());
                names.push(case.name());
            }
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 120);
    }

    #[test]
    fn cases_of_the_stack_say_their_size() {
        for (bytes, case) in STACK {
            assert_eq!(case, format!("stack-{bytes}"));
        }
    }

    #[test]
    fn the_command_line_knows_patterns_by_the_names_of_the_cases() {
        for pattern in Pattern::ALL {
            let shown = pattern.to_possible_value().unwrap();
            assert_eq!(shown.get_name(), pattern.name());
        }
    }

    #[test]
    fn bytes_are_written_in_the_largest_unit_that_fits() {
        for (bytes, expected) in [
            (512, "512 B"),
            (1 << 10, "1 KiB"),
            (64 << 10, "64 KiB"),
            (1 << 20, "1 MiB"),
            (4 << 30, "4 GiB"),
            ((1 << 20) + 1024, "1025 KiB"),
        ] {
            assert_eq!(bytes_text(bytes), expected);
        }
    }
}
