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
    docs/stream.md says how, from the first key to devices without a network.")]
pub(crate) struct StreamArgs {
    #[command(subcommand)]
    pub(crate) command: StreamCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum StreamCommand {
    /// Make a key that manifests are signed with
    Key(StreamKeyArgs),
    /// Publish a directory tree: what has not changed is shared with what was published before
    Pack(StreamPackArgs),
    /// List what is published
    Ls(StreamLsArgs),
    /// Read all that a store holds and name what is damaged
    Check(StreamCheckArgs),
    /// Drop old versions
    Prune(StreamPruneArgs),
    /// Certificates of servers and devices
    Identity(StreamIdentityArgs),
    /// Serve a store to devices
    Serve(StreamServeArgs),
    /// What was learned: list or forget it
    Actions(StreamActionsArgs),
    /// Show a published tree as a directory, and run programs from it
    Mount(StreamMountArgs),
    /// Fetch a task, or all, into the cache of this device ahead of its first run
    Pin(StreamPinArgs),
    /// Figures of a mount
    Status(StreamStatusArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel stream key plant.key\n  \
    keel stream pack /opt/plant plant.store --key plant.key\n\n\
    The key itself stays where trees are published; devices are given the public half (--publisher). Without this\n\
    command a store makes a key of its own at the first `keel stream pack`.")]
pub(crate) struct StreamKeyArgs {
    /// File to make; the public half goes beside it, with .pub behind its name
    pub(crate) file: PathBuf,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel stream pack /opt/plant plant.store\n  \
    keel stream pack /srv/board-root board.store --key plant.key --level 12\n\n\
    Makes a new version if anything has changed; a server that runs serves it to mounts from then on. Only changed\n\
    content takes room. A power cut at any moment leaves the new version or those before. Sockets, FIFOs and\n\
    devices are left out.")]
pub(crate) struct StreamPackArgs {
    /// Directory to publish
    pub(crate) tree: PathBuf,
    /// Store to publish it in; made if absent
    pub(crate) store: PathBuf,
    /// Key to sign with [default: that of the store, made at the first time]
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// Level of compression, 1 to 19
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(i32).range(1..=19))]
    pub(crate) level: i32,
    /// Also what other file systems hold that are mounted in the tree
    #[arg(long)]
    pub(crate) all_file_systems: bool,
    /// Number of the version, at least; for a store in place of a lost one, as devices refuse to go back
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=VERSION_MIN_MAX))]
    pub(crate) version_min: u64,
    /// One JSON object
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
    /// Directory or file in it; without one, the versions
    pub(crate) path: Option<PathBuf>,
    /// Version [default: the newest]
    #[arg(long = "of", value_name = "VERSION")]
    pub(crate) version_wanted: Option<u64>,
    /// Also permission bits, owner, size and time
    #[arg(short = 'l')]
    pub(crate) long: bool,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel stream check plant.store && echo whole\n\n\
    Reads and decompresses all; a server may go on. Exit status 1 if anything is damaged; each finding names files\n\
    that need it.")]
pub(crate) struct StreamCheckArgs {
    /// Store
    pub(crate) store: PathBuf,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel stream prune plant.store --keep 3\n\n\
    Mounts of a dropped version get errors for what they do not have yet.")]
pub(crate) struct StreamPruneArgs {
    /// Store
    pub(crate) store: PathBuf,
    /// Newest versions to keep
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) keep: u64,
    /// One JSON object
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
        Its folder stays where no device is: who has ca.key lets in whom he likes.")]
    Authority {
        /// Folder to make
        authority: PathBuf,
    },
    /// Make the certificate of a server
    #[command(after_help = "Examples:\n  \
        keel stream identity server plant-authority server --name plant.example --name 192.168.1.7\n\n\
        Copy the folder to the server, and the file devices of the authority with it whenever it changes.")]
    Server {
        /// Folder of the authority
        authority: PathBuf,
        /// Folder to make
        out: PathBuf,
        /// Host name or address that devices reach it by; may be said several times
        #[arg(long = "name", required = true)]
        names: Vec<String>,
    },
    /// Make the certificate of a device, and enter it into the authority's list
    #[command(after_help = "Examples:\n  \
        keel stream identity device plant-authority hall-7 --name hall-7 --tenant hall\n\n\
        Copy the folder to the device. Servers that read this list let the device in at once.")]
    Device {
        /// Folder of the authority
        authority: PathBuf,
        /// Folder to make
        out: PathBuf,
        /// Name of the device
        #[arg(long)]
        name: String,
        /// Whose device it is: what devices of one tenant do moves what is prefetched to that tenant only
        #[arg(long, default_value = "default")]
        tenant: String,
    },
    /// List devices
    #[command(after_help = "Examples:\n  \
        keel stream identity list plant-authority\n\n\
        One line for each: name, tenant, fingerprint of the certificate.")]
    List {
        /// Folder of the authority
        authority: PathBuf,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// Strike a device off the list; servers refuse it from its next connection on
    #[command(after_help = "Examples:\n  \
        keel stream identity revoke plant-authority hall-7\n\n\
        Connections that the device has stay until they end.")]
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

/// What a mount with a cache fetches when nothing else is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StreamComplete {
    /// Nothing
    None,
    /// What lies beside what a task has read, which another start of it may read
    Near,
    /// All of each file that a task has read
    Files,
}

/// How a server predicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StreamPredict {
    /// One action for a task across all files, sent whole
    Task,
    /// As in the paper: actions of an executable, segment by segment
    Paper,
    /// Nothing
    None,
}

/// What a server has in memory before it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StreamProvide {
    /// Nothing
    None,
    /// Files of a task, read ahead by the kernel
    Madvise,
    /// Segments of high variance and first ones
    Variance,
    /// The same, and the next three segments of what is being sent
    Async,
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("trust").required(true).args(["identity", "insecure"])))]
#[command(after_help = "Examples:\n  \
    keel stream serve plant.store --listen 127.0.0.1:7007 --insecure\n  \
    keel stream serve plant.store --listen 0.0.0.0:7007 --identity server --metrics 127.0.0.1:9107\n\n\
    Runs until Ctrl-C or SIGTERM, and then keeps what was learned in the store. New versions, and changes of the\n\
    list of devices, are seen without a restart. `keel stream identity` makes the folder of --identity.")]
pub(crate) struct StreamServeArgs {
    /// Store
    pub(crate) store: PathBuf,
    /// Address to listen on, such as 0.0.0.0:7007; port 0: any
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub(crate) listen: SocketAddr,
    /// Folder with the server's certificate
    #[arg(long, value_name = "DIR")]
    pub(crate) identity: Option<PathBuf>,
    /// The authority's list of devices [default: devices in the folder of --identity]
    #[arg(
        long,
        value_name = "FILE",
        requires = "identity",
        conflicts_with = "insecure"
    )]
    pub(crate) devices: Option<PathBuf>,
    /// No TLS and no certificates: only on a loopback address
    #[arg(long)]
    pub(crate) insecure: bool,
    /// How to predict
    #[arg(long, value_enum, default_value = "task")]
    pub(crate) predict: StreamPredict,
    /// Blocks of a segment with --predict paper, from 4 to 1024; above 32 actions are matched at three places instead
    /// of two [default: 32]
    #[arg(long, value_name = "N",
        value_parser = clap::value_parser!(u32).range(i64::from(SEG_MAX_MIN)..=i64::from(SEG_MAX_MAX)))]
    pub(crate) seg_max: Option<u32>,
    /// What to have in memory before it is asked for
    #[arg(long, value_enum, default_value = "async")]
    pub(crate) provide: StreamProvide,
    /// Memory for content, in bytes or with K, M or G; 1M at least
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = memory)]
    pub(crate) memory: u64,
    /// Address of the metrics for Prometheus, such as 127.0.0.1:9107
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub(crate) metrics: Option<SocketAddr>,
    /// Devices that are served at the same time
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) clients_max: u32,
    /// Mounts and other programs that are served at the same time with one device's certificate
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) clients_max_per_device: u32,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel stream actions plant.store\n  \
    keel stream actions plant.store bin/plant --tenant hall --json\n  \
    keel stream actions plant.store bin/plant --forget\n\n\
    TASK is the path in the tree of the program that was run. BLOCKS are of 4 KiB: what is sent ahead at its start.")]
pub(crate) struct StreamActionsArgs {
    /// Store
    pub(crate) store: PathBuf,
    /// Path of a task's program in the tree [default: all]
    pub(crate) task: Option<PathBuf>,
    /// Whose [default: all]
    #[arg(long)]
    pub(crate) tenant: Option<String>,
    /// Forget what was learned of the task; stop the server first
    #[arg(long, requires = "task")]
    pub(crate) forget: bool,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// What a device's end of a connection needs.
#[derive(Clone, Debug, Args)]
#[command(group(ArgGroup::new("trust").required(true).args(["identity", "insecure"])))]
pub(crate) struct StreamLinkArgs {
    /// Folder with this device's certificate
    #[arg(long, value_name = "DIR")]
    pub(crate) identity: Option<PathBuf>,
    /// No TLS and no certificates: only to a loopback address
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Public key of who publishes, or the file that holds it [default: the key that the first manifest was signed
    /// with, from then on]
    #[arg(long, value_name = "KEY")]
    pub(crate) publisher: Option<String>,
    /// Directory, or image of a flash store, that keeps what has come
    #[arg(long, value_name = "PLACE")]
    pub(crate) cache: Option<PathBuf>,
    /// Bytes that the cache may take
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size, requires = "cache")]
    pub(crate) cache_size: u64,
    /// Folder for the highest version seen and the key of the publisher, beside the cache, which notes them too
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel stream mount 127.0.0.1:7007 /mnt/plant --insecure\n  \
    keel stream mount plant.example:7007 /mnt/plant --identity device --publisher plant.key.pub\n  \
    keel stream mount plant.example:7007 /mnt/plant --identity device --cache /var/cache/plant --complete=files\n\n\
    Runs until `umount DIR`, Ctrl-C or SIGTERM. With --cache what has run once runs again without a network. What\n\
    programs can do there stands in docs/semantics-stream.md.")]
pub(crate) struct StreamMountArgs {
    /// Server, such as plant.example:7007
    pub(crate) server: String,
    /// Empty directory to show the tree in
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    #[command(flatten)]
    pub(crate) link: StreamLinkArgs,
    /// Blocks of 4 KiB that wait in memory until they are read, at most; 0: none are pooled
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(0..=4096))]
    pub(crate) pool_pages: u32,
    /// Connections to the server: a number to 16, or `each` for one for each processor
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) connections: String,
    /// Seconds after which whoever waits for a block gets an error
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) deadline_s: u64,
    /// What is fetched into the cache when nothing else is to be done; without a value `files`
    #[arg(long, value_name = "WHAT", value_enum, num_args = 0..=1, require_equals = true)]
    #[arg(
        default_value = "near",
        default_missing_value = "files",
        requires = "cache"
    )]
    pub(crate) complete: StreamComplete,
    /// Let other users in
    #[arg(long)]
    pub(crate) allow_other: bool,
    /// Show only this part of the tree, with all that is in it; may be said several times [default: the whole tree]
    #[arg(long = "only", value_name = "PATH")]
    pub(crate) redirect: Vec<PathBuf>,
    /// KiB that the kernel reads ahead; for comparisons
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
    What a task needs is what was learned of it; of a task that has never run it is the program alone. A cache has\n\
    one user at a time: unmount first. Exit status 1: not all of it is in the cache.")]
pub(crate) struct StreamPinArgs {
    /// Server
    pub(crate) server: String,
    /// Path of the task's program in the tree
    pub(crate) task: Option<PathBuf>,
    /// The whole tree
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) link: StreamLinkArgs,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel stream status /mnt/plant\n  \
    keel stream status /mnt/plant --json | jq .starts\n\n\
    docs/stream.md says what each figure means.")]
pub(crate) struct StreamStatusArgs {
    /// Directory of the mount
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
