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
    REGION is a file on hugetlbfs (fastest), tmpfs or, slower, any file system. Everybody who may write to that file\n\
    may do anything to the region: give one to programs that trust each other. docs/mem.md says more.")]
pub(crate) struct MemArgs {
    #[command(subcommand)]
    pub(crate) command: MemCommand,
}

/// What makes changes of a region durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MemFlush {
    /// Nothing: files outlive programs, not the machine
    None,
    /// Each call writes back the cache lines that it has changed, and waits for them
    CacheLines,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MemCommand {
    /// Make an empty region, and take all of its memory now
    #[command(after_help = "Examples:\n  \
        keel mem create /dev/hugepages/plant --size 1G\n  \
        keel mem create /dev/shm/plant --size 256M --files 10000 --mode 660\n\n\
        Huge pages are the fastest: `sysctl vm.nr_hugepages=N` sets aside N of 2 MiB each, best right after the boot;\n\
        they are used on /dev/hugepages, or where `mount -t hugetlbfs none DIR` puts them. Next comes tmpfs that is\n\
        mounted with huge=always, then tmpfs as it is, such as /dev/shm.")]
    Create {
        /// File to make; its folder decides what the region's memory is
        region: PathBuf,
        /// Memory that the region takes, in bytes or with K, M, G or T, rounded down to whole 2 MiB
        #[arg(long, value_parser = size)]
        size: u64,
        /// Files and directories that it can hold, from 16 to 16777216 [default: one for each 32 KiB]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(16..=1 << 24))]
        files: Option<u64>,
        /// Threads that can write at the same time, in all programs together [default: one for each 4 MiB, 64 to 1024]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=4096))]
        lanes: Option<u32>,
        /// Permission bits of the region, octal; they count for all that is in it
        #[arg(long, value_name = "BITS", default_value = "600", value_parser = permission_bits)]
        mode: u16,
        /// What makes a call durable where memory keeps its content without power [default: cache-lines on persistent
        /// memory (a DAX file system), else none]
        #[arg(long, value_enum, value_name = "HOW")]
        flush: Option<MemFlush>,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// Look whether all tables agree and name what does not; exit status 1 if there is any
    #[command(after_help = "Examples:\n  \
        keel mem check /dev/hugepages/plant && echo whole\n  \
        keel mem check /dev/hugepages/plant --repair\n\n\
        Programs may go on, but wait when they change names or need memory. What a dead writer was doing is finished\n\
        or undone first. --repair keeps every file and name that can be found by any way; what it cannot keep it\n\
        names, with exit status 1. It also mends a region that no other command can open, where that can be done.")]
    Check {
        /// File of the region
        region: PathBuf,
        /// Mend what is found
        #[arg(long)]
        repair: bool,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// Save all files in a flash store, which outlives the power
    #[command(after_help = "Examples:\n  \
        keel flash format plant.img --size 1G\n  \
        keel mem checkpoint /dev/hugepages/plant plant.img\n\n\
        Only what has changed since the last one is written. A power cut at any moment leaves the new checkpoint or\n\
        the one before. Programs go on meanwhile: names are those of one moment, and so is each file of up to 1 MiB;\n\
        a larger one that is written meanwhile is so in pieces of 16 KiB.")]
    Checkpoint {
        /// File of the region
        region: PathBuf,
        /// Flash store: an image file or a block device
        image: PathBuf,
        /// Name of the checkpoint, for stores that hold those of several regions
        #[arg(long, default_value = CHECKPOINT_NAME)]
        name: String,
        /// Read all that is there already, and write anew what is damaged
        #[arg(long)]
        verify: bool,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// Make a region from its newest checkpoint
    #[command(after_help = "Examples:\n  \
        keel mem restore /dev/hugepages/plant plant.img\n  \
        keel mem restore /dev/hugepages/plant plant.img --size 1G    when the machine boots\n\n\
        What cannot be read costs what it holds, and nothing else. With --size there is a region afterwards\n\
        whatever happened to the checkpoint; what was restored, and what was not, is said. Exit status 3: there is a\n\
        region, but not all that was in it. The region gets the size of the one that was saved. For another size,\n\
        make it first with `keel mem create`, and restore into that, while it is empty.")]
    Restore {
        /// File of the region, which does not exist yet, or is empty
        region: PathBuf,
        /// Flash store: an image file or a block device
        image: PathBuf,
        /// Name of the checkpoint
        #[arg(long, default_value = CHECKPOINT_NAME)]
        name: String,
        /// Make an empty region of this size where no checkpoint can be read
        #[arg(long, value_parser = size)]
        size: Option<u64>,
        /// Permission bits of the region, octal
        #[arg(long, value_name = "BITS", default_value = "600", value_parser = permission_bits)]
        mode: u16,
        /// What makes a call durable where memory keeps its content without power [default: as `create`: cache-lines on
        /// persistent memory, else none, whatever the region did that was saved]
        #[arg(long, value_enum, value_name = "HOW")]
        flush: Option<MemFlush>,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// Run a program that finds the region's files at a path, without the kernel in between
    Run(RunArgs),
    /// Use the region as a directory, from any program
    #[command(after_help = "Examples:\n  \
        keel mem mount /dev/hugepages/plant /mnt/plant\n  \
        keel mem mount /dev/hugepages/plant /mnt/plant --read-only --allow-other\n\n\
        Runs until `umount DIR`, Ctrl-C or SIGTERM. It shows the same files as `keel mem run`, at the same time, and\n\
        is for programs that this cannot serve: static ones, Go, setuid. Every call goes through the kernel twice,\n\
        so it is slower. What programs can do there stands in docs/semantics-mem-mount.md.")]
    Mount {
        /// File of the region
        region: PathBuf,
        /// Empty directory to show it in
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// Change nothing; the region is not even opened for writing
        #[arg(long)]
        read_only: bool,
        /// Let other users in, as the permission bits say
        #[arg(long)]
        allow_other: bool,
    },
    /// List a directory of the region
    #[command(after_help = "Examples:\n  \
        keel mem ls /dev/hugepages/plant\n  \
        keel mem ls /dev/hugepages/plant logs -l\n  \
        keel mem ls /dev/hugepages/plant --json | jq -r '.[].name'\n\n\
        What is damaged comes last, with ! and the reason (in --json: error), and makes the exit status 1. Bytes of\n\
        names that are no UTF-8 are shown as \\xff; --json has such a name in name_hex, too.")]
    Ls {
        /// File of the region
        region: PathBuf,
        /// Directory or file in it
        #[arg(default_value = "/")]
        path: PathBuf,
        /// Also type and permissions, names, owner, size and time
        #[arg(short, long)]
        long: bool,
        /// One JSON array
        #[arg(long, conflicts_with = "long")]
        json: bool,
    },
    /// Figures of the region, or of one file
    #[command(after_help = "Examples:\n  \
        keel mem stat /dev/hugepages/plant\n  \
        keel mem stat /dev/hugepages/plant --checkpoint plant.img\n  \
        keel mem stat /dev/hugepages/plant logs/today --json")]
    Stat {
        /// File of the region
        region: PathBuf,
        /// File or directory in it
        path: Option<PathBuf>,
        /// Also how old its newest checkpoint in this flash store is: what a power cut would take
        #[arg(long, value_name = "IMAGE", conflicts_with = "path")]
        checkpoint: Option<PathBuf>,
        /// Name of the checkpoint
        #[arg(long, default_value = CHECKPOINT_NAME, requires = "checkpoint")]
        name: String,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel mem run /dev/hugepages/plant --at /keel -- python3 collect.py /keel/readings\n  \
    keel mem run /dev/hugepages/plant --at /keel -- sh -c 'cp -r data /keel/; sqlite3 /keel/data/plant.db .dump'\n  \
    keel mem run /dev/hugepages/plant --at /keel --mode posix -- gzip -k /keel/log\n\n\
    The program, and all that it starts, finds the region's files below --at; every other path is the kernel's. It\n\
    must be linked dynamically with the C library of this system: for static programs, Go and setuid there is\n\
    `keel mem mount`. Signals are passed on. The exit status is that of the program: 128 and the number of the\n\
    signal if one ended it, 127 if it was not found, 126 if it could not be started. Several `keel mem run` may use\n\
    a region at the same time, and save to the same IMAGE: they take turns. While another program has IMAGE open,\n\
    the program runs without checkpoints, which is said, and saving is tried again every --every-s seconds.")]
pub(crate) struct RunArgs {
    /// File of the region
    pub(crate) region: PathBuf,
    /// Path that the program finds the region at; nothing needs to be there, and what is there it does not see
    #[arg(long, value_name = "PATH")]
    pub(crate) at: PathBuf,
    /// What the death of a writer may leave
    #[arg(long, value_enum, default_value_t = Mode::Sync)]
    pub(crate) mode: Mode,
    /// Save all files in this flash store now and then, at the end, and at SIGTERM
    #[arg(long, value_name = "IMAGE")]
    pub(crate) checkpoint: Option<PathBuf>,
    /// Name of the checkpoint
    #[arg(long, default_value = CHECKPOINT_NAME, requires = "checkpoint")]
    pub(crate) name: String,
    /// Seconds between two checkpoints: what a power cut takes at most
    #[arg(long, value_name = "N", default_value_t = 60, requires = "checkpoint",
        value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(crate) every_s: u32,
    /// Fail if the program does not use the region's library, instead of a warning
    #[arg(long)]
    pub(crate) strict: bool,
    /// Program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// What a write is when its writer dies in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Names, sizes and space are whole; of the bytes of a write any part may be there
    Posix,
    /// A write of up to 16 KiB is there or not, as a whole
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
