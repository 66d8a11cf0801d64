//! The command line, defined once: help, defaults and limits come from here.

use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

mod boards;
mod care;
mod cluster;
mod export;
mod figures;
mod job;
mod keys;
mod mem;
#[cfg(test)]
mod pages;
mod parse;
mod qos;
#[cfg(test)]
mod reference;
mod stream;
mod values;

pub(crate) use boards::{
    BoardsArgs, ClusterArgs, ClusterCommand, ClusterMeasureArgs, ClusterReportArgs, Compat,
};
pub(crate) use care::{
    BackupArgs, CareCommand, ConfigArgs, ConfigCommand, DoctorArgs, RestoreArgs, TryArgs,
};
pub(crate) use cluster::{
    AdviseArgs, DataMayGo, PowerArgs, PowerCommand, PowerRecordArgs, PowerSourceArgs,
    PowerWatchArgs,
};
pub(crate) use export::{ExportArgs, ExportFormat, HistoryArgs};
pub(crate) use figures::{StatusArgs, TopArgs};
pub(crate) use job::{ClusterJobArgs, ClusterRankArgs, ClusterRunArgs, KernelArgs, ReadingsArgs};
pub(crate) use keys::{KeysArgs, KeysCommand, KeysReleaseArgs};
pub(crate) use mem::{CHECKPOINT_NAME, MemArgs, MemCommand, MemFlush, RunArgs as MemRunArgs};
pub(crate) use parse::{first_paragraph, parse};
pub(crate) use qos::{QosArgs, QosCommand};
pub(crate) use stream::{
    StreamActionsArgs, StreamArgs, StreamCheckArgs, StreamCommand, StreamComplete,
    StreamIdentityCommand, StreamKeyArgs, StreamLinkArgs, StreamLsArgs, StreamMountArgs,
    StreamPackArgs, StreamPinArgs, StreamPredict, StreamProvide, StreamPruneArgs, StreamServeArgs,
    StreamStatusArgs,
};
use values::{identity, permission_bits, size};

/// Names and examples are in the help because users copy them.
#[derive(Debug, Parser)]
#[command(
    name = "keel",
    version,
    about = "The predictable data path of a Linux edge device: from a sensor's reading to flash.",
    propagate_version = true,
    after_help = "Examples:\n  \
        keel demo                              the bundled fire trace, live in this terminal\n  \
        keel demo --kill --headless            the same, and kill the writer repeatedly\n  \
        keel config example > keel.toml        an example configuration\n  \
        keel run -c keel.toml                  the node; then, in the same directory:\n  \
        keel put room/1/temperature 21.5       stored when it returns\n  \
        keel get room/1/temperature\n  \
        keel status\n  \
        keel flash format store.img --size 64M\n  \
        keel flash put store.img notes.txt < notes.txt\n\n\
        Exit status: 0 success, 1 failure, 2 wrong usage. A command that has others says so in its help."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Replay the trace of a building fire through the database onto flash; check that nothing was lost
    Demo(DemoArgs),
    /// Run the node: sources of readings, the database, and a socket for the commands below
    Run(RunArgs),
    #[command(flatten)]
    Client(ClientCommand),
    #[command(flatten)]
    Care(CareCommand),
    /// Check a configuration, or print an example
    Config(ConfigArgs),
    /// Manage a flash store in an image file or on a block device
    Flash(FlashArgs),
    /// Manage a region: files in memory that programs share
    Mem(MemArgs),
    /// Hold deadlines under load: identify a model, design gains, choose a mode
    Qos(QosArgs),
    /// Publish programs, and run them from the network with only the blocks that they need
    Stream(StreamArgs),
    /// Measure several boards, compare the results, run jobs on the boards
    Cluster(ClusterArgs),
    /// Watch or record the power that this machine uses, with the source of each value
    Power(PowerArgs),
    /// Advise where to run a job: on one board, on several boards or in the data centre
    Advise(AdviseArgs),
    /// Run a benchmark of the program keel-bench: flash, mem, db, node, qos, stream or cluster
    #[command(
        disable_help_flag = true,
        disable_version_flag = true,
        after_help = "Examples:\n  keel bench flash --json bench.json\n  keel bench db --quick --only get"
    )]
    Bench {
        /// Benchmark to run, and the options of keel-bench
        #[arg(
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "ARGUMENTS"
        )]
        arguments: Vec<OsString>,
    },
    /// The writer of `keel demo`; started by it
    #[command(hide = true)]
    DemoWriter {
        /// Device image
        #[arg(long)]
        image: PathBuf,
        /// Remove this directory if the parent dies
        #[arg(long)]
        orphan_dir: Option<PathBuf>,
    },
    /// The analysis of `keel demo --full`; started by its node
    #[command(hide = true)]
    DemoAnalysis {
        /// Folder of the results
        results: PathBuf,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel demo                                 300 s of trace at 10x: half a minute, live view\n  \
    keel demo --seconds 60 --speed 20         a short run\n  \
    keel demo --headless --json > demo.json   figures for a program\n  \
    keel demo --kill                          SIGKILL the writer at random moments\n  \
    keel demo --full --speed 20               every part of a node, a power cut, and a check of each promise\n  \
    keel demo --dir /mnt/card                 on the flash that you want to test\n\n\
    The store takes 256 MiB. Without --dir it is in a temporary directory (TMPDIR, else /var/tmp) and is removed at\n\
    the end. Press q to stop the live view. Exit status 1 if an acknowledged reading is missing or altered.\n\n\
    --full says of each promise whether it was kept, and why (exit status 1: one was not). What this machine does\n\
    not permit is `not shown`, and no failure: programs from the network need FUSE, and files in memory need\n\
    libkeelmem.so, where `keel mem run` looks for it, too. The package evenkeel has it beside keel, in ../lib/keel;\n\
    `cargo build --release -p keel -p mem-preload` builds both. There is none for armhf.\n\n\
    Keys of --json, counts of the whole run unless said otherwise:\n  \
    readings_offered, _acknowledged           offered to the database; known to the parent to be on flash\n  \
    readings_missing, _altered, _unexpected   in the reopened store: lost, changed, never offered\n  \
    readings_offered_again                    offers repeated to a restarted writer\n  \
    table_stale, tables_compared              sensors without their newest acknowledged value; recovered tables\n  \
    task_instances, deadline_misses           instances of the analysis task that ended; that ended late\n  \
    releases_missed                           releases of the task without an instance of their own\n  \
    tardiness_mean                            response time / deadline, mean over instances\n  \
    fresh_mean                                share of objects that are fresh, mean over reports\n  \
    append_latency_us                         flash append to durable return: p50, p99, p999, max, count\n  \
    put_durable_us                            first try of a put to its completed ticket: as above\n  \
    task_response_us                          release to end of an instance: as above\n  \
    device_writes, _flushes, _blocks_written  from the first reading to the closed store\n  \
    setup_device_writes, _flushes             before the first reading: format, recovery, declarations\n  \
    device_direct                             whether the device bypasses the page cache\n  \
    seconds, trace_seconds, trace_passes      time taken; trace time replayed; passes through the trace\n  \
    speed, stopped_early, image, seed         as asked for, or null\n  \
    kills, kills_with_open_tickets            SIGKILLs; those with a reading put but not acknowledged\n  \
    kills_during_recovery                     those before the writer was ready\n  \
    kills_after_acknowledgement               those at most 5 ms after an acknowledgement arrived\n  \
    recoveries, recovery_ms_mean, _max        restarts that found a store, and how long they took\n  \
    downtime_seconds, reopen_ms               time without a writer; time of the comparison at the end\n  \
    log_segments                              files of the log at the end\n  \
    log_damaged, log_readings_missing         according to the log's checksums and numbers, at the end\n  \
    records_damaged                           damaged log records that restarted writers found\n  \
    failures                                  reasons for exit status 1; empty if it is 0")]
pub(crate) struct DemoArgs {
    #[command(flatten)]
    pub(crate) demo: demo::Args,
    /// Run a full node (programs from a mount, region, job, upstream), with a power cut in the middle
    #[arg(long, conflicts_with_all = ["kill", "headless"])]
    pub(crate) full: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel config example > keel.toml && keel run -c keel.toml\n  \
    keel config check keel.toml && kill -HUP $(cat keel-data/store.img.lock)\n\n\
    The node stays in the foreground and reports each event as one line on standard error; `ready` means that it\n\
    serves. The first start creates the store. SIGTERM or SIGINT stops the node: it makes the readings that it has\n\
    received durable, and acknowledges them. SIGHUP reads the configuration again; if the configuration has a\n\
    mistake, nothing changes.")]
pub(crate) struct RunArgs {
    /// Configuration file
    #[arg(short, long, value_name = "FILE", default_value = "keel.toml")]
    pub(crate) config: PathBuf,
    /// Lose unflushed data when the process ends, as in a power cut; for `keel demo --full`
    #[arg(long, hide = true)]
    pub(crate) volatile_device: bool,
}

/// The node that a command connects to.
#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    /// Socket of the node [default: the socket that the configuration names]
    #[arg(long, value_name = "PATH", conflicts_with = "config")]
    pub(crate) node: Option<PathBuf>,
    /// Configuration of the node [default: ./keel.toml, else /etc/keel/keel.toml]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// Commands that talk to a running node.
#[derive(Debug, Subcommand)]
pub(crate) enum ClientCommand {
    /// Print the latest value of a key
    Get(GetArgs),
    /// Store a reading, and return when it is on flash
    Put(PutArgs),
    /// Print changes as they arrive
    Watch(WatchArgs),
    /// Print the readings of a key, in order of arrival
    History(HistoryArgs),
    /// Print the readings of many keys, from a node or a store
    Export(ExportArgs),
    /// Let other series have keys
    Keys(KeysArgs),
    /// Report the state of the node: ok, degraded or failed
    Status(StatusArgs),
    /// Show the node's figures in this terminal, updated every second
    Top(TopArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel get room/1/temperature\n  \
    keel get room/1/temperature --long\n  \
    keel get room/1/temperature --json --node /run/keel/keel.sock\n  \
    keel get room/1/temperature --region /dev/shm/keel --via region\n\n\
    If the node keeps its values in a region (`[region]` of the configuration), the command reads the region\n\
    without a request to the node. If there is no region, the node has ended, or this user may not read the region,\n\
    the command asks the socket. --json (via: region or socket) and --long report which one was used.\n\n\
    Exit status 1 if the key does not exist, or has no value yet.")]
pub(crate) struct GetArgs {
    /// Key
    pub(crate) key: String,
    /// Also print its time, age and freshness
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) long: bool,
    /// Print one JSON object: key, value, type, time_ms (rounded down), time_ns (exact, as text), age_ms, fresh,
    /// validity_ms, temporal, node_time, clock_trusted, this_boot, via; also retained, if a broker had kept it
    #[arg(long)]
    pub(crate) json: bool,
    /// Where to read the value
    #[arg(long, value_enum, default_value_t = Via::Auto)]
    pub(crate) via: Via,
    /// Region of the node [default: the region that a file beside the node's socket names]
    #[arg(long, value_name = "REGION")]
    pub(crate) region: Option<PathBuf>,
    /// Name of the file with the values in that region
    #[arg(long, value_name = "NAME", default_value = crate::config::REGION_TABLE, requires = "region")]
    pub(crate) table: String,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
}

/// Where a value is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Via {
    /// The region if possible, else the socket
    Auto,
    /// The node's region
    Region,
    /// The node's socket
    Socket,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel put room/1/temperature 21.5\n  \
    keel put door/1 open\n  \
    keel put room/1/temperature 20.9 --time 2026-03-01T12:30:00Z\n  \
    keel put tide/forecast 3.1 --time +5m\n  \
    keel put batch/7 --text 0042\n\n\
    A value that looks like a number is stored as a number (64-bit floating point), true and false as truth values,\n\
    any other value as text. A whole number above 2^53 is stored as an integer, so that no digit of it is lost; a\n\
    node of an earlier version refuses it. --integer stores any whole number as an integer.\n\
    Without --time the node's clock gives the time. --time +5m is five minutes from now. A time is kept to the\n\
    nanosecond. [time] of the configuration limits how far it may lie in the future and in the past.\n\n\
    Exit status 1 if the node refuses the reading, 2 if the command line itself is wrong, 3 if the node has dropped\n\
    the reading without storing it, as shed = \"drop\" of its [[key]] demands while fewer updates are admitted.")]
pub(crate) struct PutArgs {
    /// Key
    pub(crate) key: String,
    /// Value; a text that begins with - needs --text
    #[arg(allow_hyphen_values = true)]
    pub(crate) value: String,
    /// Time of the measurement: RFC 3339, a local date and time, -15m, +5m, seconds or milliseconds since 1970
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    pub(crate) time: Option<String>,
    /// Store the value as text, even if it looks like a number or a truth value
    #[arg(long)]
    pub(crate) text: bool,
    /// Store the value as an integer of 64 bits
    #[arg(long, conflicts_with = "text")]
    pub(crate) integer: bool,
    /// Print one JSON object: key, lsn (number in the log; null if dropped), shed (whether it was dropped), time and
    /// time_ns (as given, or null)
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel watch 'room/+/temperature'\n  \
    keel watch '#' --current --count 10\n  \
    keel watch room/1/temperature --json | jq .value\n\n\
    The node checks for changes 20 times a second. If a key changes several times between two checks, the command\n\
    prints the latest change and counts the others on standard error. The history contains all of them.")]
pub(crate) struct WatchArgs {
    /// Key or pattern: + stands for one level, # for the rest
    pub(crate) pattern: String,
    /// Also print the current values at the start
    #[arg(long)]
    pub(crate) current: bool,
    /// Number of changes after which to end
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Print one JSON object per line, with the fields of `keel get --json`
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel flash format store.img --size 256M\n  \
    keel flash put store.img config.toml config.toml\n  \
    keel flash ls store.img\n  \
    keel flash get store.img config.toml > copy.toml\n  \
    keel flash check store.img && echo whole\n\n\
    IMAGE is a file or a block device. ls, get, stat, check (without --repair), bounds and dump never write to it.\n\
    While one program has a store open for writing, no other program can write, check or copy it. The other\n\
    commands show the store as a power cut at that moment would leave it.")]
pub(crate) struct FlashArgs {
    #[command(subcommand)]
    pub(crate) command: FlashCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FlashCommand {
    /// Create an empty store
    #[command(after_help = "Examples:\n  \
        keel flash format store.img --size 256M\n  \
        keel flash format /dev/mmcblk0p3 --files 100000 --force\n\n\
        Without --force the command overwrites neither a store nor a file or device that contains anything. It\n\
        always refuses a file or device that is in use or mounted.\n\
        The smallest store is 304K with --files 1; the default --files needs 5760K. An image that cannot become a\n\
        store is refused before anything is changed.")]
    Format {
        /// File or block device
        image: PathBuf,
        /// Size of the image file, in bytes or with K, M, G or T, rounded down to whole 4 KiB [default: 256M for a new
        /// file, else its current size]
        #[arg(long, value_parser = size)]
        size: Option<u64>,
        /// Number of files to size the name table for, at most 4294967295. Not a limit: more files may fit, until the
        /// table has no room for a name
        #[arg(long, value_name = "N", default_value_t = 4096,
            value_parser = clap::value_parser!(u64).range(1..=u64::from(u32::MAX)))]
        files: u64,
        /// Maximum length of a file name, in bytes
        #[arg(long, value_name = "N", default_value_t = 255, value_parser = clap::value_parser!(u16).range(1..=255))]
        name_bytes: u16,
        /// Overwrite existing content
        #[arg(long)]
        force: bool,
        /// Do not write the whole image file now; later, the disk may be full or slower when the store needs it
        #[arg(long)]
        sparse: bool,
        #[arg(long, help = "Print one JSON object")]
        json: bool,
    },
    /// List the files, in no particular order
    #[command(after_help = "Examples:\n  \
        keel flash ls store.img\n  \
        keel flash ls store.img --json | jq -r '.[].name'")]
    Ls {
        /// File or block device
        image: PathBuf,
        /// Print one JSON array
        #[arg(long)]
        json: bool,
    },
    /// Store a whole file atomically, and replace a file of the same name
    #[command(after_help = "Examples:\n  \
            keel flash put store.img notes.txt ./notes.txt\n  \
            date | keel flash put store.img today\n\n\
            Until the input ends, the store is locked: no other program can change it.")]
    Put {
        /// File or block device
        image: PathBuf,
        /// Name of the file in the store
        name: OsString,
        /// Source of the bytes; - is standard input
        #[arg(default_value = "-", value_name = "FILE")]
        from: PathBuf,
    },
    /// Write a file of the store to standard output or to a file
    #[command(after_help = "Examples:\n  \
            keel flash get store.img notes.txt > notes.txt\n  \
            keel flash get store.img notes.txt notes.txt --salvage\n\n\
            OUT is replaced only by a complete file. If the file is damaged, OUT stays as it was, unless --salvage\n\
            is given. --salvage is refused while another program writes to the store. Standard output gets\n\
            everything before the damage.")]
    Get {
        /// File or block device
        image: PathBuf,
        /// Name of the file in the store
        name: OsString,
        /// Destination of the bytes; - is standard output
        #[arg(default_value = "-", value_name = "OUT")]
        to: PathBuf,
        /// Continue after damage, with zeros for unreadable data; exit status 1 if there was damage
        #[arg(long)]
        salvage: bool,
    },
    /// Append to a file of the store; create it if absent
    #[command(
        after_help = "Example:\n  date | keel flash append store.img log.txt\n\n\
        Each piece is durable before the next is read. Until the input ends, the store is locked: no other program\n\
        can change it."
    )]
    Append {
        /// File or block device
        image: PathBuf,
        /// Name of the file in the store
        name: OsString,
        /// Source of the bytes; - is standard input
        #[arg(default_value = "-", value_name = "FILE")]
        from: PathBuf,
    },
    /// Delete a file of the store
    #[command(after_help = "Example:\n  keel flash rm store.img notes.txt")]
    Rm {
        /// File or block device
        image: PathBuf,
        /// Name of the file in the store
        name: OsString,
    },
    /// Rename a file of the store atomically, and replace a file that already has the new name
    #[command(after_help = "Example:\n  keel flash mv store.img new.conf active.conf")]
    Mv {
        /// File or block device
        image: PathBuf,
        /// Name of the file in the store
        old: OsString,
        /// New name
        new: OsString,
    },
    /// Set the length of a file of the store: cut it off, or extend it with zeros
    #[command(after_help = "Examples:\n  \
        keel flash truncate store.img log.txt 0\n  \
        keel flash truncate store.img table.bin 64K")]
    Truncate {
        /// File or block device
        image: PathBuf,
        /// Name of the file in the store
        name: OsString,
        /// New length, in bytes or with K, M, G or T
        #[arg(value_parser = size)]
        size: u64,
    },
    /// Copy all files of a store into a new store, optionally of another size, and compare them
    #[command(after_help = "Examples:\n  \
        keel flash copy store.img larger.img --size 1G --files 100000\n  \
        keel flash copy store.img /dev/mmcblk0p3\n\n\
        The copy has its own identity. DST becomes a store only when every byte in it has been compared with SRC;\n\
        every command refuses what an interrupted copy leaves. No program may write to SRC meanwhile.")]
    Copy {
        /// Store to copy: file or block device
        #[arg(value_name = "SRC")]
        from: PathBuf,
        /// Destination of the new store: file or block device
        #[arg(value_name = "DST")]
        to: PathBuf,
        /// Size of the new image file, in bytes or with K, M, G or T [default: size of SRC]
        #[arg(long, value_parser = size)]
        size: Option<u64>,
        /// Number of files to size the name table for [default: as SRC]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=u64::from(u32::MAX)))]
        files: Option<u64>,
        /// Maximum length of a file name, in bytes [default: as SRC]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=255))]
        name_bytes: Option<u16>,
        /// Overwrite existing content of DST
        #[arg(long)]
        force: bool,
        /// Do not write the whole image file now
        #[arg(long)]
        sparse: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Grow a store to the new size of its image or device
    #[command(after_help = "Examples:\n  \
        keel flash grow store.img --size 1G\n  \
        keel flash grow /dev/mmcblk0p3\n\n\
        The command takes no longer for a full store than for an empty one. An interruption leaves the old or the\n\
        new size. If the file is already longer than its store, omit --size: the store then uses the whole file.\n\
        The name table does not change: for more files, or for a smaller store, use `keel flash copy`.")]
    Grow {
        /// File or block device
        image: PathBuf,
        /// New size of the image file, in bytes or with K, M, G or T [default: its current size]
        #[arg(long, value_parser = size)]
        size: Option<u64>,
        /// Do not write the added part of the image file now
        #[arg(long)]
        sparse: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Print figures of the store, or of one file
    #[command(after_help = "Examples:\n  \
        keel flash stat store.img\n  \
        keel flash stat store.img notes.txt --json")]
    Stat {
        /// File or block device
        image: PathBuf,
        /// Name of the file in the store
        name: Option<OsString>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Read every block and report all damage; exit status 1 if there is any
    #[command(after_help = "Examples:\n  \
        keel flash check store.img && echo whole\n  \
        keel flash check store.img --repair\n\n\
        --repair repairs what it can without inventing data: it uses second copies, and rebuilds the name table and\n\
        the list of free blocks from the blocks of the files. A file whose name is lost gets the name\n\
        lost-NUMBER-NAME. A damaged block of a file stays damaged: save the rest of the file with\n\
        `keel flash get --salvage`. If nothing is wrong, nothing is written. Exit status 1 if any data is lost or\n\
        something is still wrong. Copy the image first if you can.")]
    Check {
        /// File or block device
        image: PathBuf,
        /// Repair what can be repaired
        #[arg(long)]
        repair: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Print the maximum number of device operations that each call can need
    #[command(after_help = "Example:\n  keel flash bounds store.img")]
    Bounds {
        /// File or block device
        image: PathBuf,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Mount the store as a directory, for any program
    #[command(after_help = "Examples:\n  \
            keel flash mount store.img /mnt/plant\n  \
            keel flash mount /dev/mmcblk0p3 /mnt/plant --allow-other --uid 1000 --mode 640\n\n\
            The mount runs until `umount DIR`, Ctrl-C or SIGTERM. Any user can mount if the package fuse3 is\n\
            installed; root needs no package. docs/semantics-flash.md lists what programs can do there, and the\n\
            error for what they cannot do: one directory, no links, data durable after fsync.")]
    Mount(MountArgs),
    /// Print the layout of the store: superblock, commit records, name table
    #[command(after_help = "Example:\n  keel flash dump store.img --json")]
    Dump {
        /// File or block device
        image: PathBuf,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct MountArgs {
    /// File or block device
    pub(crate) image: PathBuf,
    /// Empty directory to mount the store on
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Change nothing, not even what recovery would repair
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Give other users access, according to the permission bits
    #[arg(long)]
    pub(crate) allow_other: bool,
    /// Make every write durable before it returns, as with O_SYNC
    #[arg(long)]
    pub(crate) sync: bool,
    /// Maximum delay until a write without fsync is durable, in s, from 1 to 3600
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub(crate) sync_seconds: u16,
    /// Maximum number of open files; their memory is allocated at the start
    #[arg(long, value_name = "N", default_value_t = 256,
        value_parser = clap::value_parser!(u16).range(1..=flash_mount::OPEN_FILES_MAX as i64))]
    pub(crate) open_files: u16,
    /// Permission bits of every file, octal
    #[arg(long, value_name = "BITS", default_value = "644", value_parser = permission_bits)]
    pub(crate) mode: u16,
    /// Owner of every file (user ID) [default: the user that mounts]
    #[arg(long, value_name = "N", value_parser = identity)]
    pub(crate) uid: Option<u32>,
    /// Group of every file (group ID) [default: the group of the user that mounts]
    #[arg(long, value_name = "N", value_parser = identity)]
    pub(crate) gid: Option<u32>,
}

#[cfg(test)]
mod tests;
