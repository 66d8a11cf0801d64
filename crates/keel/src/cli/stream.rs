//! The commands on programs that run from the network.

use super::size;
use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;
use stream::predict::paper::{SEG_MAX_MAX, SEG_MAX_MIN};
use stream::publish::VERSION_MIN_MAX;

/// The least memory of a server.
const MEMORY_BYTES_MIN: u64 = 1 << 20;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel stream pack /opt/plant plant.store\n  \
    keel stream serve plant.store --listen 127.0.0.1:7007 --insecure\n  \
    keel stream mount 127.0.0.1:7007 /mnt/plant --insecure\n  \
    /mnt/plant/bin/plant\n\n\
    docs/stream.md is a guide, from the first key to devices without a network.")]
pub(crate) struct StreamArgs {
    #[command(subcommand)]
    pub(crate) command: StreamCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum StreamCommand {
    /// Make a key to sign manifests with
    Key(StreamKeyArgs),
    /// Publish a directory tree; unchanged content is shared with what was published before
    Pack(StreamPackArgs),
    /// List published versions and files
    Ls(StreamLsArgs),
    /// Read everything in a store, and report what is damaged
    Check(StreamCheckArgs),
    /// Drop old versions
    Prune(StreamPruneArgs),
    /// Manage certificates of servers and devices
    Identity(StreamIdentityArgs),
    /// Serve a store to devices
    Serve(StreamServeArgs),
    /// List or forget what was learned
    Actions(StreamActionsArgs),
    /// Mount a published tree as a directory, and run programs from it
    Mount(StreamMountArgs),
    /// Fetch a task, or the whole tree, into the cache of this device before its first run
    Pin(StreamPinArgs),
    /// Print figures of a mount
    Status(StreamStatusArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel stream key plant.key\n  \
    keel stream pack /opt/plant plant.store --key plant.key\n\n\
    The key itself stays where trees are published; devices get the public half (--publisher). Without this\n\
    command, the first `keel stream pack` makes a key for the store.")]
pub(crate) struct StreamKeyArgs {
    /// File to create; the public half is written beside it, with .pub after its name
    pub(crate) file: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel stream pack /opt/plant plant.store\n  \
    keel stream pack /srv/board-root board.store --key plant.key --level 12\n\n\
    The command makes a new version if anything has changed; a running server serves it to mounts from then on.\n\
    Only changed content takes space. A power cut at any moment leaves the new version or those before. Sockets,\n\
    FIFOs and devices are left out.")]
pub(crate) struct StreamPackArgs {
    /// Directory to publish
    pub(crate) tree: PathBuf,
    /// Store to publish into; created if absent
    pub(crate) store: PathBuf,
    /// Key to sign with [default: the key of the store, made at the first publication]
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// Level of compression, from 1 to 19
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(i32).range(1..=19))]
    pub(crate) level: i32,
    /// Include other file systems that are mounted in the tree
    #[arg(long)]
    pub(crate) all_file_systems: bool,
    /// Minimum number of the version; for a store that replaces a lost one, as devices refuse to go back
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=VERSION_MIN_MAX))]
    pub(crate) version_min: u64,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel stream ls plant.store                    the versions\n  \
    keel stream ls plant.store bin -l\n  \
    keel stream ls plant.store bin --of 3 --json")]
pub(crate) struct StreamLsArgs {
    /// Store
    pub(crate) store: PathBuf,
    /// Directory or file in the store; without it, list the versions
    pub(crate) path: Option<PathBuf>,
    /// Number of the version [default: the newest]
    #[arg(long = "of", value_name = "VERSION")]
    pub(crate) version_wanted: Option<u64>,
    /// Also print permission bits, owner, size and time
    #[arg(short = 'l')]
    pub(crate) long: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel stream check plant.store && echo whole\n\n\
    The command reads and decompresses everything; a server may continue. Exit status 1 if anything is damaged;\n\
    each finding names files that need it.")]
pub(crate) struct StreamCheckArgs {
    /// Store
    pub(crate) store: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel stream prune plant.store --keep 3\n\n\
    Mounts of a dropped version read on while their server runs. After its restart they get errors for blocks\n    \
    that they do not have.")]
pub(crate) struct StreamPruneArgs {
    /// Store
    pub(crate) store: PathBuf,
    /// Number of newest versions to keep
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) keep: u64,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples, in this order for a new installation:\n  \
    keel stream identity authority plant-authority\n  \
    keel stream identity server plant-authority server --name plant.example\n  \
    keel stream identity device plant-authority hall-7 --name hall-7\n  \
    keel stream identity list plant-authority\n\n\
    Then `keel stream serve --identity server`, and `keel stream mount --identity hall-7` with the folder copied to\n\
    the device.")]
pub(crate) struct StreamIdentityArgs {
    #[command(subcommand)]
    pub(crate) command: StreamIdentityCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum StreamIdentityCommand {
    /// Make an authority, which signs the certificates of one installation
    #[command(after_help = "Examples:\n  \
        keel stream identity authority plant-authority\n\n\
        Keep its folder where no device is: the owner of ca.key can admit any device.")]
    Authority {
        /// Folder to create
        authority: PathBuf,
    },
    /// Make the certificate of a server
    #[command(after_help = "Examples:\n  \
        keel stream identity server plant-authority server --name plant.example --name 192.168.1.7\n\n\
        Copy the folder to the server, and also the authority's file devices whenever it changes.")]
    Server {
        /// Folder of the authority
        authority: PathBuf,
        /// Folder to create
        out: PathBuf,
        /// Host name or address by which devices reach the server; may be repeated
        #[arg(long = "name", required = true)]
        names: Vec<String>,
    },
    /// Make the certificate of a device, and add it to the authority's list
    #[command(after_help = "Examples:\n  \
        keel stream identity device plant-authority hall-7 --name hall-7 --tenant hall\n\n\
        Copy the folder to the device. Servers that read this list admit the device at once.")]
    Device {
        /// Folder of the authority
        authority: PathBuf,
        /// Folder to create
        out: PathBuf,
        /// Name of the device
        #[arg(long)]
        name: String,
        /// Tenant of the device; its runs change only what the server prefetches for the same tenant
        #[arg(long, default_value = "default")]
        tenant: String,
    },
    /// List devices
    #[command(after_help = "Examples:\n  \
        keel stream identity list plant-authority\n\n\
        The command prints one line for each device: name, tenant, fingerprint of the certificate.")]
    List {
        /// Folder of the authority
        authority: PathBuf,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Remove a device from the list; servers refuse it from its next connection on
    #[command(after_help = "Examples:\n  \
        keel stream identity revoke plant-authority hall-7\n\n\
        Existing connections of the device stay until they end.")]
    Revoke {
        /// Folder of the authority
        authority: PathBuf,
        /// Name of the device
        name: String,
    },
}

/// Where a server listens.
fn address(text: &str) -> Result<SocketAddr, String> {
    let example = "write an address and a port, such as 0.0.0.0:7007, or 127.0.0.1:7007 for this machine alone";
    text.parse().map_err(|_| example.to_owned())
}

/// Memory for content: less than some segments would be as good as none, and is a slip of the pen.
fn memory(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes @ MEMORY_BYTES_MIN.. => Ok(bytes),
        _ => Err("give 1M or more".to_owned()),
    }
}

/// What a mount with a cache fetches when it is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StreamComplete {
    /// Nothing
    None,
    /// Blocks beside those that a task has read, which another start of the task may read
    Near,
    /// The whole of each file that a task has read
    Files,
}

/// How a server predicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StreamPredict {
    /// One action for a task across all files, sent at once
    Task,
    /// As in the paper: actions of an executable, sent segment by segment
    Paper,
    /// Nothing
    None,
}

/// What a server loads into memory before a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StreamProvide {
    /// Nothing
    None,
    /// When a task begins, its program and the files that its known actions name, read ahead by the kernel; with
    /// --predict paper all files with actions
    Madvise,
    /// At the start, segments whose blocks are scattered over their file, and first segments
    Variance,
    /// The same as variance, and the next three segments of what is being sent
    Async,
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("trust").required(true).args(["identity", "insecure"])))]
#[command(after_help = "Examples:\n  \
    keel stream serve plant.store --listen 127.0.0.1:7007 --insecure\n  \
    keel stream serve plant.store --listen 0.0.0.0:7007 --identity server --metrics 127.0.0.1:9107\n\n\
    The server runs until Ctrl-C or SIGTERM, and then saves what it has learned in the store. It detects new\n\
    versions, and changes of the list of devices, without a restart. `keel stream identity` makes the folder of\n\
    --identity.")]
pub(crate) struct StreamServeArgs {
    /// Store
    pub(crate) store: PathBuf,
    /// Address to listen on, such as 0.0.0.0:7007; port 0: any free port
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub(crate) listen: SocketAddr,
    /// Folder with the server's certificate
    #[arg(long, value_name = "DIR")]
    pub(crate) identity: Option<PathBuf>,
    /// The authority's list of devices [default: file devices in the folder of --identity]
    #[arg(
        long,
        value_name = "FILE",
        requires = "identity",
        conflicts_with = "insecure"
    )]
    pub(crate) devices: Option<PathBuf>,
    /// Use no TLS and no certificates: only on a loopback address
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Method of prediction
    #[arg(long, value_enum, default_value = "task")]
    pub(crate) predict: StreamPredict,
    /// Number of blocks of a segment with --predict paper, from 4 to 1024. Above 32, actions are matched at three
    /// places instead of two [default: 32]
    #[arg(long, value_name = "N",
        value_parser = clap::value_parser!(u32).range(i64::from(SEG_MAX_MIN)..=i64::from(SEG_MAX_MAX)))]
    pub(crate) seg_max: Option<u32>,
    /// What to load into memory before a request
    #[arg(long, value_enum, default_value = "async")]
    pub(crate) provide: StreamProvide,
    /// Do not compress learned actions ahead at the start: for comparisons, since a start then waits for the disk
    #[arg(long, hide = true)]
    pub(crate) no_preparation: bool,
    /// Memory for content, in bytes or with K, M or G; at least 1M
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = memory)]
    pub(crate) memory: u64,
    /// Address of the metrics for Prometheus, such as 127.0.0.1:9107
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub(crate) metrics: Option<SocketAddr>,
    /// Maximum number of devices at the same time, from 1 to 65536
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) clients_max: u32,
    /// Maximum number of mounts and other programs at the same time with one device's certificate
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) clients_max_per_device: u32,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel stream actions plant.store\n  \
    keel stream actions plant.store bin/plant --tenant hall --json\n  \
    keel stream actions plant.store bin/plant --forget\n\n\
    TASK is the path in the tree of the program that was run. BLOCKS is the number of blocks of 4 KiB that are sent\n\
    ahead at its start.")]
pub(crate) struct StreamActionsArgs {
    /// Store
    pub(crate) store: PathBuf,
    /// Path of a task's program in the tree [default: all tasks; --forget needs one]
    pub(crate) task: Option<PathBuf>,
    /// Tenant [default: all tenants]
    #[arg(long)]
    pub(crate) tenant: Option<String>,
    /// Forget what was learned about TASK, for --tenant or for all tenants; stop the server first
    #[arg(long, requires = "task")]
    pub(crate) forget: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of the device's end of a connection.
#[derive(Clone, Debug, Args)]
#[command(group(ArgGroup::new("trust").required(true).args(["identity", "insecure"])))]
pub(crate) struct StreamLinkArgs {
    /// Folder with this device's certificate
    #[arg(long, value_name = "DIR")]
    pub(crate) identity: Option<PathBuf>,
    /// Use no TLS and no certificates: only to a loopback address
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Public key of the publisher, or a file that contains it [default: the key of the first manifest's signature,
    /// from then on]
    #[arg(long, value_name = "KEY")]
    pub(crate) publisher: Option<String>,
    /// Directory, or image of a flash store, that keeps the received blocks
    #[arg(long, value_name = "PLACE")]
    pub(crate) cache: Option<PathBuf>,
    /// Maximum size of the cache, in bytes or with K, M, G or T
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size, requires = "cache")]
    pub(crate) cache_size: u64,
    /// Folder for the highest version seen and the publisher's key; the cache notes them as well
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel stream mount 127.0.0.1:7007 /mnt/plant --insecure\n  \
    keel stream mount plant.example:7007 /mnt/plant --identity device --publisher plant.key.pub\n  \
    keel stream mount plant.example:7007 /mnt/plant --identity device --cache /var/cache/plant --complete=files\n\n\
    The mount runs until `umount DIR`, Ctrl-C or SIGTERM. With --cache, a program that has run once runs again\n\
    without a network. docs/semantics-stream.md lists what programs can do there.")]
pub(crate) struct StreamMountArgs {
    /// Server, such as plant.example:7007
    pub(crate) server: String,
    /// Empty directory to mount the tree on
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    #[command(flatten)]
    pub(crate) link: StreamLinkArgs,
    /// Maximum number of blocks of 4 KiB that wait in memory until they are read; 0: none are pooled
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(0..=4096))]
    pub(crate) pool_pages: u32,
    /// Have a thread allocate free pages for --pool-pages more blocks ahead of their use, as the paper's Allocator
    /// does; without this option, used pages are taken again
    #[arg(long)]
    pub(crate) pool_filled: bool,
    /// Number of connections to the server: up to 16, or `each` for one for each processor
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) connections: String,
    /// Timeout after which a program that waits for a block gets an error, in s, from 1 to 3600
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) deadline_s: u64,
    /// What to fetch into the cache when the mount is idle; without a value `files`
    #[arg(long, value_name = "WHAT", value_enum, num_args = 0..=1, require_equals = true)]
    #[arg(
        default_value = "near",
        default_missing_value = "files",
        requires = "cache"
    )]
    pub(crate) complete: StreamComplete,
    /// Give other users access
    #[arg(long)]
    pub(crate) allow_other: bool,
    /// Show only this part of the tree, with everything in it; may be repeated [default: the whole tree]
    #[arg(long = "only", value_name = "PATH")]
    pub(crate) redirect: Vec<PathBuf>,
    /// Interval between two lines of JSON with figures of the mount's reads, for a supervisor, in s, from 1 to 3600
    #[arg(long = "figures", value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) figures_s: Option<u32>,
    /// Readahead of the kernel, in KiB; for comparisons
    #[arg(long, value_name = "KIB", default_value_t = 0, hide = true)]
    pub(crate) readahead_kb: u32,
}

#[derive(Debug, Args)]
#[command(
    override_usage = "keel stream pin <SERVER> <TASK|--all> --cache <PLACE> <--identity <DIR>|--insecure>"
)]
#[command(group(ArgGroup::new("what").required(true).args(["task", "all"])))]
#[command(after_help = "Examples:\n  \
    keel stream pin plant.example:7007 bin/plant --identity device --cache /var/cache/plant\n  \
    keel stream pin plant.example:7007 --all --identity device --cache /var/cache/plant --cache-size 2G\n\n\
    The command fetches what was learned about a task; of a task that has never run it fetches the program alone. A\n\
    cache has one user at a time: unmount first. Exit status 1: not all of it is in the cache.")]
pub(crate) struct StreamPinArgs {
    /// Server
    pub(crate) server: String,
    /// Path of the task's program in the tree
    pub(crate) task: Option<PathBuf>,
    /// Fetch the whole tree
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) link: StreamLinkArgs,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel stream status /mnt/plant\n  \
    keel stream status /mnt/plant --json | jq .starts\n\n\
    docs/stream.md explains each figure.")]
pub(crate) struct StreamStatusArgs {
    /// Directory of the mount
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
