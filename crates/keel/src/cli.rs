//! The command line, defined once: help, defaults and limits come from here.

use crate::error::{CliError, STATUS_USAGE};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

mod boards;
mod care;
mod cluster;
mod export;
mod figures;
mod job;
mod mem;
#[cfg(test)]
mod pages;
mod qos;
#[cfg(test)]
mod reference;
mod stream;
mod values;

pub(crate) use boards::{
    BoardsArgs, ClusterArgs, ClusterCommand, ClusterMeasureArgs, ClusterReportArgs, Compat,
};
pub(crate) use care::{
    BackupArgs, CareCommand, ConfigArgs, ConfigCommand, DoctorArgs, RestoreArgs,
};
pub(crate) use cluster::{
    AdviseArgs, DataMayGo, PowerArgs, PowerCommand, PowerRecordArgs, PowerSourceArgs,
    PowerWatchArgs,
};
pub(crate) use export::{ExportArgs, ExportFormat, HistoryArgs};
pub(crate) use figures::{StatusArgs, TopArgs};
pub(crate) use job::{ClusterJobArgs, ClusterRankArgs, ClusterRunArgs, KernelArgs, ReadingsArgs};
pub(crate) use mem::{CHECKPOINT_NAME, MemArgs, MemCommand, MemFlush, RunArgs as MemRunArgs};
pub(crate) use qos::{QosArgs, QosCommand};
pub(crate) use stream::{
    StreamActionsArgs, StreamArgs, StreamCheckArgs, StreamCommand, StreamComplete,
    StreamIdentityCommand, StreamKeyArgs, StreamLinkArgs, StreamLsArgs, StreamMountArgs,
    StreamPackArgs, StreamPinArgs, StreamPredict, StreamProvide, StreamPruneArgs, StreamServeArgs,
    StreamStatusArgs,
};
use values::{identity, permission_bits, size, speed};

/// Names and examples stand in the help because people copy them.
#[derive(Debug, Parser)]
#[command(
    name = "keel",
    version,
    about = "The predictable data path of a Linux edge device: from a sensor's reading to flash.",
    propagate_version = true,
    after_help = "Examples:\n  \
        keel demo                              the bundled fire trace, live in this terminal\n  \
        keel demo --kill --headless            the same, killing the writer again and again\n  \
        keel config example > keel.toml        a configuration to begin with\n  \
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
    /// Replay a burning building through the database onto flash, and prove that nothing was lost
    Demo(DemoArgs),
    /// Run the node: sources of readings, the database, and a socket for the commands below
    Run(RunArgs),
    #[command(flatten)]
    Client(ClientCommand),
    #[command(flatten)]
    Care(CareCommand),
    /// Check a configuration, or print an example
    Config(ConfigArgs),
    /// Work on a flash store in an image file or on a block device
    Flash(FlashArgs),
    /// Work on a region: files in memory that programs share
    Mem(MemArgs),
    /// Hold deadlines under load: model, gains, modes
    Qos(QosArgs),
    /// Run programs from the network, with only the blocks that they need
    Stream(StreamArgs),
    /// Measure several boards, compare what was measured, run jobs on them
    Cluster(ClusterArgs),
    /// Watch or record what this machine uses, with where each value comes from
    Power(PowerArgs),
    /// Say where to run a job: on one board, several boards, the data centre
    Advise(AdviseArgs),
    /// Measure: `keel bench flash`, `mem`, `db`, `node`, `qos`, `stream`, `cluster`; runs the program keel-bench
    #[command(
        disable_help_flag = true,
        disable_version_flag = true,
        after_help = "Examples:\n  keel bench flash --json bench.json\n  keel bench db --quick --only get"
    )]
    Bench {
        /// What to measure, and the options of keel-bench
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
    keel demo                                 300 s of trace at 10x: half a minute, live\n  \
    keel demo --seconds 60 --speed 20         a short look\n  \
    keel demo --headless --json > demo.json   figures for a program\n  \
    keel demo --kill                          SIGKILL the writer at random moments\n  \
    keel demo --full --speed 20               every part of a node, a power cut, and what was kept of each promise\n  \
    keel demo --dir /mnt/card                 on the flash that you want to trust\n\n\
    The store is 256 MiB. Without --dir it lies in a temporary directory (TMPDIR, else /var/tmp) and is\n\
    removed. Press q to stop the live view. Exit status 1 if an acknowledged reading is missing or altered.\n\n\
    Keys of --json, counts of the whole run unless said otherwise:\n  \
    readings_offered, _acknowledged           offered to the database; known to the parent to be on flash\n  \
    readings_missing, _altered, _unexpected   in the reopened store: lost, changed, never offered\n  \
    readings_offered_again                    offers repeated to a restarted writer\n  \
    table_stale, tables_compared              sensors older than acknowledged, in so many recovered tables\n  \
    task_instances, deadline_misses           of the analysis task: ended; ended late\n  \
    releases_missed                           its releases that no instance of their own followed\n  \
    tardiness_mean                            response time / deadline, mean over instances\n  \
    fresh_mean                                share of objects that are fresh, mean over reports\n  \
    append_latency_us                         flash append to durable return: p50, p99, p999, max, count\n  \
    put_durable_us                            first try of a put to its completed ticket, the same\n  \
    task_response_us                          release to end of an instance, the same\n  \
    device_writes, _flushes, _blocks_written  from the first reading to the closed store\n  \
    setup_device_writes, _flushes             before it: format, recovery, declarations\n  \
    device_direct                             whether the device bypasses the page cache\n  \
    seconds, trace_seconds, trace_passes      time taken; trace replayed; times it was begun\n  \
    speed, stopped_early, image, seed         as asked for, or null\n  \
    kills, kills_with_open_tickets            SIGKILLs; those with a reading put and not acknowledged\n  \
    kills_during_recovery                     those before the writer was ready\n  \
    kills_after_acknowledgement               those at most 5 ms after an acknowledgement arrived\n  \
    recoveries, recovery_ms_mean, _max        restarts that found a store, and how long they took\n  \
    downtime_seconds, reopen_ms               without a writer; of the comparison at the end\n  \
    log_segments                              files of the log at the end\n  \
    log_damaged, log_readings_missing         by the log's own checksums and numbers, at the end\n  \
    records_damaged                           the same, seen by restarted writers\n  \
    failures                                  why the exit status is 1; empty if it is 0")]
pub(crate) struct DemoArgs {
    /// Seconds of the trace to replay, from 1 to 14400
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=14_400))]
    pub(crate) seconds: u64,
    /// How many times faster than the clock, from 0.1 to 1000
    #[arg(long, value_name = "X", default_value_t = 10.0, value_parser = speed)]
    pub(crate) speed: f64,
    /// Keep the store in this directory (made if absent), as demo.img
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Plain lines instead of the live view
    #[arg(long)]
    pub(crate) headless: bool,
    /// One JSON object on standard output at the end, nothing else
    #[arg(long)]
    pub(crate) json: bool,
    /// Kill the writer with SIGKILL at random moments, at least ten times, and restart it
    #[arg(long)]
    pub(crate) kill: bool,
    /// All of it: a node with programs from a mount, a region, a job and an upstream, and a power cut in the middle
    #[arg(long, conflicts_with_all = ["kill", "headless"])]
    pub(crate) full: bool,
    /// Seed of the random moments; default: a new one, printed
    #[arg(long, value_name = "N", requires = "kill")]
    pub(crate) seed: Option<u64>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel config example > keel.toml && keel run -c keel.toml\n  \
    keel config check keel.toml && kill -HUP $(cat keel-data/store.img.lock)\n\n\
    Stays in the foreground and says on standard error, one line each, what happens; `ready` means that it\n\
    serves. The first start makes the store. SIGTERM or SIGINT ends it: what has come in is made durable and\n\
    acknowledged. SIGHUP reads the configuration again; what is wrong in it changes nothing.")]
pub(crate) struct RunArgs {
    /// Configuration
    #[arg(short, long, value_name = "FILE", default_value = "keel.toml")]
    pub(crate) config: PathBuf,
    /// What is not flushed is lost with the process, as with a power cut; for `keel demo --full`
    #[arg(long, hide = true)]
    pub(crate) volatile_device: bool,
}

/// Which node a command talks to.
#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    /// Socket of the node [default: the one that the configuration names]
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
    /// Store a reading; returns when it is on flash
    Put(PutArgs),
    /// Print changes as they come
    Watch(WatchArgs),
    /// Print the readings of a key, in the order of arrival
    History(HistoryArgs),
    /// Print the readings of many keys, from a node or a store
    Export(ExportArgs),
    /// Say whether the node does what it must
    Status(StatusArgs),
    /// Watch the node's figures in this terminal
    Top(TopArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel get room/1/temperature\n  \
    keel get room/1/temperature --long\n  \
    keel get room/1/temperature --json --node /run/keel/keel.sock\n  \
    keel get room/1/temperature --region /dev/shm/keel --via region\n\n\
    Where the node keeps its values in a region (`[region]` of the configuration), they are read there, without\n\
    asking it; where it does not, has ended, or does not let this user read, its socket is asked. --json says which\n\
    way it was (via: region or socket), and so does --long.\n\n\
    Exit status 1 when there is no such key, or it has no value yet.")]
pub(crate) struct GetArgs {
    /// Key
    pub(crate) key: String,
    /// Also its time, age and freshness
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) long: bool,
    /// One JSON object: key, value, type, time_ms, age_ms, fresh, validity_ms, temporal, node_time, clock_trusted,
    /// this_boot, via
    #[arg(long)]
    pub(crate) json: bool,
    /// Which way to the value
    #[arg(long, value_enum, default_value_t = Via::Auto)]
    pub(crate) via: Via,
    /// Region of the node [default: the one that a file beside its socket names]
    #[arg(long, value_name = "REGION")]
    pub(crate) region: Option<PathBuf>,
    /// File of the values in that region
    #[arg(long, value_name = "NAME", default_value = crate::config::REGION_TABLE, requires = "region")]
    pub(crate) table: String,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
}

/// The way to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Via {
    /// The region if it can be, else the socket
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
    What looks like a number is stored as one (64-bit floating point), true and false as truth values, all\n\
    else as text. Without --time the node's clock gives the time. --time +5m is five minutes from now; how far\n\
    ahead a time may lie, and how far back, [time] of the configuration says.\n\n\
    Exit status 1 when the node refuses the reading, 2 when the command line itself is wrong, 3 when the node has\n\
    thrown it away, as shed = \"drop\" of its [[key]] says while fewer updates are admitted: it is not stored.")]
pub(crate) struct PutArgs {
    /// Key
    pub(crate) key: String,
    /// Value; a text that begins with - takes --text
    #[arg(allow_hyphen_values = true)]
    pub(crate) value: String,
    /// When it was measured: RFC 3339, a local date and time, -15m, +5m, seconds or milliseconds since
    /// 1970
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    pub(crate) time: Option<String>,
    /// Store the value as text whatever it looks like
    #[arg(long)]
    pub(crate) text: bool,
    /// One JSON object: key, its number in the log (lsn; null if it was thrown away), shed: whether it was, time as
    /// given or null
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
    The node looks 20 times a second. Of several changes of one key between two looks the latest is shown;\n\
    the others are counted on standard error. All of them are in the history.")]
pub(crate) struct WatchArgs {
    /// Key; + stands for one level, # for the rest
    pub(crate) pattern: String,
    /// Also the values that there are at the beginning
    #[arg(long)]
    pub(crate) current: bool,
    /// End after so many changes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// One JSON object per line, with the fields of `keel get --json`
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
    IMAGE is a file or a block device. ls, get, stat, check (without --repair), bounds and dump\n\
    never write to it.\n\
    While one program has a store open for writing, every other one that wants to write, check or copy it is\n\
    refused; the other commands show it as a power cut at that moment would leave it.")]
pub(crate) struct FlashArgs {
    #[command(subcommand)]
    pub(crate) command: FlashCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FlashCommand {
    /// Make an empty store
    #[command(after_help = "Examples:\n  \
        keel flash format store.img --size 256M\n  \
        keel flash format /dev/mmcblk0p3 --files 100000 --force\n\n\
        Without --force nothing is overwritten: neither a store nor a file or device that holds anything. A file\n\
        or device that is in use or mounted is refused in any case.\n\
        The smallest store is 304K with --files 1; the default --files needs 5760K. What cannot become a\n\
        store is refused before anything is changed.")]
    Format {
        /// File or block device
        image: PathBuf,
        /// Size of the image file, in bytes or with K, M, G or T, rounded down to whole 4 KiB
        /// [default: 256M for a new file, else its own]
        #[arg(long, value_parser = size)]
        size: Option<u64>,
        /// Number of files to size the name table for, at most 4294967295; not a limit: more may fit,
        /// until the table has no room for a name
        #[arg(long, value_name = "N", default_value_t = 4096,
            value_parser = clap::value_parser!(u64).range(1..=u64::from(u32::MAX)))]
        files: u64,
        /// Longest file name in bytes
        #[arg(long, value_name = "N", default_value_t = 255, value_parser = clap::value_parser!(u16).range(1..=255))]
        name_bytes: u16,
        /// Overwrite what is there
        #[arg(long)]
        force: bool,
        /// Do not write the whole image file now; then the disk may be full, and slower, when the store needs it
        #[arg(long)]
        sparse: bool,
        #[arg(long, help = "One JSON object")]
        json: bool,
    },
    /// List the files, in no particular order
    #[command(after_help = "Examples:\n  \
        keel flash ls store.img\n  \
        keel flash ls store.img --json | jq -r '.[].name'")]
    Ls {
        /// File or block device
        image: PathBuf,
        /// One JSON array
        #[arg(long)]
        json: bool,
    },
    /// Store a whole file atomically, replacing one of that name
    #[command(after_help = "Examples:\n  \
            keel flash put store.img notes.txt ./notes.txt\n  \
            date | keel flash put store.img today\n\n\
            Until the input ends, no other program can change the store: it is locked.")]
    Put {
        /// File or block device
        image: PathBuf,
        /// Name in the store
        name: OsString,
        /// Where the bytes come from; - is standard input
        #[arg(default_value = "-", value_name = "FILE")]
        from: PathBuf,
    },
    /// Write a file of the store to standard output or to a file
    #[command(after_help = "Examples:\n  \
            keel flash get store.img notes.txt > notes.txt\n  \
            keel flash get store.img notes.txt notes.txt --salvage\n\n\
            OUT is replaced only by a whole file: on damage it stays as it was, unless --salvage is given, which is\n\
            refused while another program writes to the store. Standard output gets everything that lies before\n\
            the damage.")]
    Get {
        /// File or block device
        image: PathBuf,
        /// Name in the store
        name: OsString,
        /// Where the bytes go; - is standard output
        #[arg(default_value = "-", value_name = "OUT")]
        to: PathBuf,
        /// Go on behind damage, with zeros for what cannot be read; exit status 1 if there was any
        #[arg(long)]
        salvage: bool,
    },
    /// Append to a file of the store; makes it if absent
    #[command(
        after_help = "Example:\n  date | keel flash append store.img log.txt\n\n\
        Each piece is durable before the next is read. Until the input ends, no other program can change\n\
        the store: it is locked."
    )]
    Append {
        /// File or block device
        image: PathBuf,
        /// Name in the store
        name: OsString,
        /// Where the bytes come from; - is standard input
        #[arg(default_value = "-", value_name = "FILE")]
        from: PathBuf,
    },
    /// Delete a file of the store
    #[command(after_help = "Example:\n  keel flash rm store.img notes.txt")]
    Rm {
        /// File or block device
        image: PathBuf,
        /// Name in the store
        name: OsString,
    },
    /// Rename a file of the store; one that has the new name already is replaced. Atomic
    #[command(after_help = "Example:\n  keel flash mv store.img new.conf active.conf")]
    Mv {
        /// File or block device
        image: PathBuf,
        /// Name in the store
        old: OsString,
        /// New name
        new: OsString,
    },
    /// Cut a file of the store off at a length, or fill it up with zeros to it
    #[command(after_help = "Examples:\n  \
        keel flash truncate store.img log.txt 0\n  \
        keel flash truncate store.img table.bin 64K")]
    Truncate {
        /// File or block device
        image: PathBuf,
        /// Name in the store
        name: OsString,
        /// New length, in bytes or with K, M, G or T
        #[arg(value_parser = size)]
        size: u64,
    },
    /// Copy all files of a store into a new one, of another size perhaps, and compare them
    #[command(after_help = "Examples:\n  \
        keel flash copy store.img larger.img --size 1G --files 100000\n  \
        keel flash copy store.img /dev/mmcblk0p3\n\n\
        The copy has an identity of its own. DST is no store until every byte in it has been compared with SRC;\n\
        what an interrupted copy leaves is refused by every command. Nobody may write to SRC meanwhile.")]
    Copy {
        /// Store to copy: file or block device
        #[arg(value_name = "SRC")]
        from: PathBuf,
        /// Where the new store goes: file or block device
        #[arg(value_name = "DST")]
        to: PathBuf,
        /// Size of the new image file, in bytes or with K, M, G or T [default: that of SRC]
        #[arg(long, value_parser = size)]
        size: Option<u64>,
        /// Number of files to size the name table for [default: as SRC]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=u64::from(u32::MAX)))]
        files: Option<u64>,
        /// Longest file name in bytes [default: as SRC]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=255))]
        name_bytes: Option<u16>,
        /// Overwrite what is at DST
        #[arg(long)]
        force: bool,
        /// Do not write the whole image file now
        #[arg(long)]
        sparse: bool,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// Make a store use an image or device that has become larger
    #[command(after_help = "Examples:\n  \
        keel flash grow store.img --size 1G\n  \
        keel flash grow /dev/mmcblk0p3\n\n\
        Takes no longer for a full store than for an empty one; an interruption leaves the old or the new size. Where\n\
        the file is longer than its store already, leave --size away: the store then uses the whole file.\n\
        The table of names stays as it is: for more files, or for a smaller store, use `keel flash copy`.")]
    Grow {
        /// File or block device
        image: PathBuf,
        /// New size of the image file, in bytes or with K, M, G or T [default: the one that it has]
        #[arg(long, value_parser = size)]
        size: Option<u64>,
        /// Do not write the added part of the image file now
        #[arg(long)]
        sparse: bool,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// Figures of the store, or of one file
    #[command(after_help = "Examples:\n  \
        keel flash stat store.img\n  \
        keel flash stat store.img notes.txt --json")]
    Stat {
        /// File or block device
        image: PathBuf,
        /// Name in the store
        name: Option<OsString>,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// Read every block and name all damage; exit status 1 if there is any
    #[command(after_help = "Examples:\n  \
        keel flash check store.img && echo whole\n  \
        keel flash check store.img --repair\n\n\
        --repair mends what can be mended without inventing data: from second copies, and the table of names and the\n\
        list of free blocks from the blocks of the files. A file whose name is lost comes back as\n\
        lost-NUMBER-NAME. A damaged block of a file stays damaged: save the rest of the file with\n\
        `keel flash get --salvage`. Where nothing is wrong, nothing is written. Exit status 1 if any data is lost\n\
        or something is still wrong. Copy the image first if you can.")]
    Check {
        /// File or block device
        image: PathBuf,
        /// Mend what can be mended
        #[arg(long)]
        repair: bool,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// The most device operations that each call can need
    #[command(after_help = "Example:\n  keel flash bounds store.img")]
    Bounds {
        /// File or block device
        image: PathBuf,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// Use the store as a directory, from any program
    #[command(after_help = "Examples:\n  \
            keel flash mount store.img /mnt/plant\n  \
            keel flash mount /dev/mmcblk0p3 /mnt/plant --allow-other --uid 1000 --mode 640\n\n\
            Runs until `umount DIR`, Ctrl-C or SIGTERM. Every user may mount where the package fuse3 is\n\
            installed; root needs nothing. What programs can do there, and the error for what they cannot,\n\
            stands in docs/semantics-flash.md: one directory, no links, data durable after fsync.")]
    Mount(MountArgs),
    /// What lies where: superblock, commit records, name table
    #[command(after_help = "Example:\n  keel flash dump store.img --json")]
    Dump {
        /// File or block device
        image: PathBuf,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct MountArgs {
    /// File or block device
    pub(crate) image: PathBuf,
    /// Empty directory to show the store in
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Change nothing, not even what recovery would mend
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Let other users in, as the permission bits say
    #[arg(long)]
    pub(crate) allow_other: bool,
    /// Every write is durable before it returns, as with O_SYNC
    #[arg(long)]
    pub(crate) sync: bool,
    /// Make durable what was written without fsync at least so often
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub(crate) sync_seconds: u16,
    /// Files that may be open at one time; their memory is taken at the start
    #[arg(long, value_name = "N", default_value_t = 256,
        value_parser = clap::value_parser!(u16).range(1..=flash_mount::OPEN_FILES_MAX as i64))]
    pub(crate) open_files: u16,
    /// Permission bits of every file, octal
    #[arg(long, value_name = "BITS", default_value = "644", value_parser = permission_bits)]
    pub(crate) mode: u16,
    /// Owner of every file [default: who mounts]
    #[arg(long, value_name = "N", value_parser = identity)]
    pub(crate) uid: Option<u32>,
    /// Group of every file [default: that of who mounts]
    #[arg(long, value_name = "N", value_parser = identity)]
    pub(crate) gid: Option<u32>,
}

/// Parses the arguments of this process; `Err` is the exit status after help, version or one line of error.
pub(crate) fn parse() -> Result<Cli, u8> {
    let error = match Cli::try_parse() {
        Ok(cli) => return Ok(cli),
        Err(error) => error,
    };
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A closed pipe (`keel --help | head -1`) is no failure.
            error.print().ok();
            Err(0)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            error.print().ok();
            Err(STATUS_USAGE)
        }
        _ => {
            let wrong = plain(&first_paragraph(&error.render().to_string()));
            let remedy = remedy(&error, &subcommand(std::env::args_os().skip(1)));
            eprintln!("keel: {}", CliError::usage("command line", wrong, remedy));
            Err(STATUS_USAGE)
        }
    }
}

/// What is wrong, out of an error of the parser: its first paragraph; the rest repeats the usage.
pub(crate) fn first_paragraph(text: &str) -> String {
    let lines = text
        .lines()
        .take_while(|line| !line.trim().is_empty())
        .map(str::trim);
    let wrong = lines.collect::<Vec<_>>().join(" ");
    wrong.strip_prefix("error: ").unwrap_or(&wrong).to_owned()
}

/// What the parser says of numbers, in words of people.
fn plain(wrong: &str) -> String {
    [
        ("invalid digit found in string", "must be a whole number"),
        (
            "cannot parse integer from empty string",
            "must be a whole number",
        ),
        (
            "number too large to fit in target type",
            "is too large a number",
        ),
    ]
    .iter()
    .fold(wrong.to_owned(), |text, (said, meant)| {
        text.replace(said, meant)
    })
}

/// What to do about an error of the parser, which keeps what may have been meant apart from what is wrong.
fn remedy(error: &clap::Error, command: &str) -> String {
    let meant = |kind| match error.get(kind) {
        Some(ContextValue::String(meant)) => vec![meant.clone()],
        Some(ContextValue::Strings(meant)) => meant.clone(),
        _ => Vec::new(),
    };
    let see = format!("see `{command} --help`");
    let is_hidden = |name: &String| {
        let program = Cli::command();
        let found = program.find_subcommand(name);
        found.is_some_and(|found| found.is_hide_set())
    };
    let mut subcommands = meant(ContextKind::SuggestedSubcommand);
    subcommands.retain(|name| !is_hidden(name));
    // The likeliest comes last.
    if let Some(name) = subcommands.pop() {
        return format!("did you mean `{command} {name}`? If not, {see}");
    }
    let mut others = meant(ContextKind::SuggestedArg);
    others.extend(meant(ContextKind::SuggestedValue));
    match others.pop() {
        Some(name) => format!("did you mean `{name}`? If not, {see}"),
        None => see,
    }
}

/// The command that the arguments name, as far as they name one: `keel flash put`.
fn subcommand(arguments: impl Iterator<Item = OsString>) -> String {
    let program = Cli::command();
    let mut command = &program;
    let mut path = command.get_name().to_owned();
    for argument in arguments {
        match command.find_subcommand(&argument) {
            Some(found) if !found.is_hide_set() => command = found,
            _ => break,
        }
        path.push(' ');
        path.push_str(command.get_name());
    }
    path
}

#[cfg(test)]
mod tests;
