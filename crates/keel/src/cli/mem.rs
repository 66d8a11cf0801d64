//! The commands on regions.

use super::{permission_bits, size};
use clap::{Args, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// Name of a checkpoint, where nobody says another.
pub(crate) const CHECKPOINT_NAME: &str = "mem";

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel mem create /dev/hugepages/plant --size 1G\n  \
    keel mem run /dev/hugepages/plant --at /keel -- sh -c 'date > /keel/now; cat /keel/now'\n  \
    keel mem mount /dev/hugepages/plant /mnt/plant\n  \
    keel mem ls /dev/hugepages/plant -l\n\n\
    REGION is a file on hugetlbfs (fastest), tmpfs or, slower, any file system. Any user who may write to that file\n\
    may do anything to the region: share a region only between programs that trust each other. docs/mem.md says\n\
    more.")]
pub(crate) struct MemArgs {
    #[command(subcommand)]
    pub(crate) command: MemCommand,
}

/// How changes of a region become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MemFlush {
    /// No flush: files survive programs, but not a restart of the machine
    None,
    /// Each call writes back the cache lines that it changed, and waits for the writes
    CacheLines,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MemCommand {
    /// Create an empty region, and allocate all of its memory now
    #[command(after_help = "Examples:\n  \
        keel mem create /dev/hugepages/plant --size 1G\n  \
        keel mem create /dev/shm/plant --size 256M --files 10000 --mode 660\n\n\
        Huge pages are the fastest: `sysctl vm.nr_hugepages=N` reserves N pages of 2 MiB each, best right after the\n\
        boot. They are used on /dev/hugepages, or where `mount -t hugetlbfs none DIR` puts them. The next fastest\n\
        is tmpfs mounted with huge=always, then ordinary tmpfs, such as /dev/shm.")]
    Create {
        /// File to create; its folder determines the kind of memory
        region: PathBuf,
        /// Memory of the region, in bytes or with K, M, G or T, rounded down to whole 2 MiB
        #[arg(long, value_parser = size)]
        size: u64,
        /// Maximum number of files and directories, from 16 to 16777216 [default: one for each 32 KiB]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(16..=1 << 24))]
        files: Option<u64>,
        /// Number of threads that can write at the same time, in all programs together [default: one for each 4 MiB, 64
        /// to 1024]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=4096))]
        lanes: Option<u32>,
        /// Permission bits of the region, octal; they apply to everything in it
        #[arg(long, value_name = "BITS", default_value = "600", value_parser = permission_bits)]
        mode: u16,
        /// How a call becomes durable on memory that keeps its content without power [default: cache-lines on
        /// persistent memory (a DAX file system), else none]
        #[arg(long, value_enum, value_name = "HOW")]
        flush: Option<MemFlush>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Check whether all tables agree, and report what does not; exit status 1 if there is any
    #[command(after_help = "Examples:\n  \
        keel mem check /dev/hugepages/plant && echo whole\n  \
        keel mem check /dev/hugepages/plant --repair\n\n\
        Programs may continue, but wait when they change names or need memory. Unfinished work of a dead writer is\n\
        first completed or undone. --repair keeps every file and name that can be found in any way; it names what\n\
        it cannot keep, with exit status 1. It also repairs, where possible, a region that no other command can\n\
        open.")]
    Check {
        /// File of the region
        region: PathBuf,
        /// Repair what is found
        #[arg(long)]
        repair: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Save all files in a flash store, which survives a power cut
    #[command(after_help = "Examples:\n  \
        keel flash format plant.img --size 1G\n  \
        keel mem checkpoint /dev/hugepages/plant plant.img\n\n\
        Only changes since the last checkpoint are written. A power cut at any moment leaves the new checkpoint or\n\
        the one before. Programs continue meanwhile: all names are of one moment, and so is each file of up to\n\
        1 MiB; a larger file that is written meanwhile is so only in pieces of 16 KiB.")]
    Checkpoint {
        /// File of the region
        region: PathBuf,
        /// Flash store: an image file or a block device
        image: PathBuf,
        /// Name of the checkpoint, for stores that hold those of several regions
        #[arg(long, default_value = CHECKPOINT_NAME)]
        name: String,
        /// Read the existing checkpoint completely, and write damaged data again
        #[arg(long)]
        verify: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Create a region from its newest checkpoint
    #[command(after_help = "Examples:\n  \
        keel mem restore /dev/hugepages/plant plant.img\n  \
        keel mem restore /dev/hugepages/plant plant.img --size 1G    at boot\n\n\
        Unreadable data costs only its own content. With --size there is a region afterwards, whatever happened to\n\
        the checkpoint; the command reports what was restored and what was not. Exit status 3: there is a region,\n\
        but a part of its content is missing. The region gets the size of the saved one. For another size, first\n\
        create it with `keel mem create`, and restore into it while it is empty.")]
    Restore {
        /// File of the region; it must not exist yet, or the region must be empty
        region: PathBuf,
        /// Flash store: an image file or a block device
        image: PathBuf,
        /// Name of the checkpoint
        #[arg(long, default_value = CHECKPOINT_NAME)]
        name: String,
        /// Size of the empty region to create if no checkpoint can be read, in bytes or with K, M, G or T
        #[arg(long, value_parser = size)]
        size: Option<u64>,
        /// Permission bits of the region, octal
        #[arg(long, value_name = "BITS", default_value = "600", value_parser = permission_bits)]
        mode: u16,
        /// How a call becomes durable on memory that keeps its content without power [default: as `create`: cache-lines
        /// on persistent memory, else none, whatever the saved region used]
        #[arg(long, value_enum, value_name = "HOW")]
        flush: Option<MemFlush>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Run a program that accesses the region's files at a path, without the kernel in between
    Run(RunArgs),
    /// Mount the region as a directory, for any program
    #[command(after_help = "Examples:\n  \
        keel mem mount /dev/hugepages/plant /mnt/plant\n  \
        keel mem mount /dev/hugepages/plant /mnt/plant --read-only --allow-other\n\n\
        The mount runs until `umount DIR`, Ctrl-C or SIGTERM. It shows the same files as `keel mem run`, at the\n\
        same time, and is for programs that `keel mem run` cannot serve: static ones, Go, setuid. Every call goes\n\
        through the kernel twice, so it is slower. docs/semantics-mem-mount.md lists what programs can do there.")]
    Mount {
        /// File of the region
        region: PathBuf,
        /// Empty directory to mount the region on
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// Change nothing; do not even open the region for writing
        #[arg(long)]
        read_only: bool,
        /// Give other users access, according to the permission bits
        #[arg(long)]
        allow_other: bool,
    },
    /// List a directory of the region
    #[command(after_help = "Examples:\n  \
        keel mem ls /dev/hugepages/plant\n  \
        keel mem ls /dev/hugepages/plant logs -l\n  \
        keel mem ls /dev/hugepages/plant --json | jq -r '.[].name'\n\n\
        Damaged files come last, with ! and the reason (in --json: error), and make the exit status 1. Bytes of\n\
        names that are not UTF-8 are shown as \\xff; --json has such a name in name_hex, too.")]
    Ls {
        /// File of the region
        region: PathBuf,
        /// Directory or file in it
        #[arg(default_value = "/")]
        path: PathBuf,
        /// Also print type and permissions, number of names, owner, size and time
        #[arg(short, long)]
        long: bool,
        /// Print one JSON array
        #[arg(long, conflicts_with = "long")]
        json: bool,
    },
    /// Print figures of the region, or of one file
    #[command(after_help = "Examples:\n  \
        keel mem stat /dev/hugepages/plant\n  \
        keel mem stat /dev/hugepages/plant --checkpoint plant.img\n  \
        keel mem stat /dev/hugepages/plant logs/today --json")]
    Stat {
        /// File of the region
        region: PathBuf,
        /// File or directory in it
        path: Option<PathBuf>,
        /// Also print the age of its newest checkpoint in this flash store: what a power cut would take
        #[arg(long, value_name = "IMAGE", conflicts_with = "path")]
        checkpoint: Option<PathBuf>,
        /// Name of the checkpoint
        #[arg(long, default_value = CHECKPOINT_NAME, requires = "checkpoint")]
        name: String,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel mem run /dev/hugepages/plant --at /keel -- python3 collect.py /keel/readings\n  \
    keel mem run /dev/hugepages/plant --at /keel -- sh -c 'cp -r data /keel/; sqlite3 /keel/data/plant.db .dump'\n  \
    keel mem run /dev/hugepages/plant --at /keel --mode posix -- gzip -k /keel/log\n\n\
    The program and all programs that it starts find the region's files below --at; every other path is the\n\
    kernel's. The program must be linked dynamically with the C library of this system; for static programs, Go and\n\
    setuid use `keel mem mount`. Signals are forwarded. The exit status is that of the program: 128 plus the signal\n\
    number if a signal ended it, 127 if it was not found, 126 if it could not be started. Several `keel mem run`\n\
    may use a region at the same time, and save to the same IMAGE: they take turns. While another program has IMAGE\n\
    open, the program runs without checkpoints; the command reports this, and tries to save again every --every-s\n\
    seconds.")]
pub(crate) struct RunArgs {
    /// File of the region
    pub(crate) region: PathBuf,
    /// Path of the region in the program; it need not exist, and hides what is there
    #[arg(long, value_name = "PATH")]
    pub(crate) at: PathBuf,
    /// What a dead writer may leave
    #[arg(long, value_enum, default_value_t = Mode::Sync)]
    pub(crate) mode: Mode,
    /// Flash store to save all files in, every --every-s seconds, at the end, and at SIGTERM
    #[arg(long, value_name = "IMAGE")]
    pub(crate) checkpoint: Option<PathBuf>,
    /// Name of the checkpoint
    #[arg(long, default_value = CHECKPOINT_NAME, requires = "checkpoint")]
    pub(crate) name: String,
    /// Interval between two checkpoints, in s, from 1 to 86400: a power cut loses at most this
    #[arg(long, value_name = "N", default_value_t = 60, requires = "checkpoint",
        value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(crate) every_s: u32,
    /// Fail, instead of a warning, if the program does not use the region's library
    #[arg(long)]
    pub(crate) strict: bool,
    /// Program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// State of a write whose writer dies during it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Names, sizes and space are consistent; any part of the bytes of a write may be there
    Posix,
    /// A write of up to 16 KiB is there completely or not at all
    Sync,
}

impl Mode {
    /// As the library is told.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Posix => "posix",
            Self::Sync => "sync",
        }
    }
}
