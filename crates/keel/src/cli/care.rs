//! The commands for whoever looks after a node: config, backup, restore, doctor.

use super::{NodeArgs, size};
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Commands for whoever looks after a node.
#[derive(Debug, Subcommand)]
pub(crate) enum CareCommand {
    /// Copy the store of a running node into a file, while readings arrive
    Backup(BackupArgs),
    /// Make the store of a node from a backup; the node must not run
    Restore(RestoreArgs),
    /// Say what this machine permits a node, and what to change
    Doctor(DoctorArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel backup plant.backup\n  \
    keel backup /mnt/usb/plant-$(date +%F).backup --json\n  \
    keel flash check plant.backup && keel restore plant.backup\n\n\
    Everything that was acknowledged before the command was typed is in it, but for what retention deletes\n\
    meanwhile. The node goes on; a commit waits for one read of 64 KiB at most. FILE is a store, which\n\
    `keel flash check` checks, and is there when it is whole: an interrupted backup leaves no FILE. Only root and the\n\
    node's own user may make one. While no node runs, copy the image: cp --sparse=always.\n\n\
    Exit status: 0; 1 there is no backup; 3 there is one, and the node could not read all of its store: what it\n\
    could read is in it.\n\n\
    --json: file, size_bytes, files, bytes, readings_end (readings with numbers below this are in it),\n\
    segments_gone (deleted by retention meanwhile), bytes_unreadable, files_left_out.")]
pub(crate) struct BackupArgs {
    /// File to make
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Replace a file that is there, once the new one is whole
    #[arg(long)]
    pub(crate) force: bool,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel restore plant.backup -c /etc/keel/keel.toml\n  \
    keel restore plant.backup --image /dev/mmcblk0p3 --force\n  \
    keel restore plant.backup --image other.img --size 1G && keel flash check other.img\n\n\
    Makes store.image of the configuration, of the size that store.create_mebibytes says. Every byte is compared\n\
    before the new store is one. A store that a node holds is refused, --force or not; what is there is replaced with\n\
    --force alone, and a file only when the new one is whole.\n\n\
    --json: image, size_bytes, free_bytes, files, bytes.")]
pub(crate) struct RestoreArgs {
    /// Backup, or the image of another node
    #[arg(value_name = "BACKUP")]
    pub(crate) backup: PathBuf,
    /// Configuration of the node [default: ./keel.toml, else /etc/keel/keel.toml]
    #[arg(short, long, value_name = "FILE", conflicts_with = "image")]
    pub(crate) config: Option<PathBuf>,
    /// Image file or block device, whatever a configuration says
    #[arg(long, value_name = "IMAGE")]
    pub(crate) image: Option<PathBuf>,
    /// Size of the store: bytes, or with K, M, G [default: what the configuration says; with --image 256M]
    #[arg(long, value_parser = size)]
    pub(crate) size: Option<u64>,
    /// Replace what is there
    #[arg(long)]
    pub(crate) force: bool,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel doctor\n  \
    keel doctor --dir /mnt/card --json\n  \
    keel doctor --dir /mnt/card --report card.md       also runs the short benches, for some minutes\n\n\
    Each line says ok, limited or missing, and what to change. A node runs with every one of them missing; what it\n\
    does without is said. In --dir a file of 4 MiB is written, measured and removed. The page of --report (Markdown;\n\
    HTML where FILE ends in .html) names processor, kernel, card and figures, and no host, address, path or serial\n\
    number: it can be sent to others. Its benches need keel-bench beside keel or in PATH.\n\n\
    Exit status: 0 all is ok; 3 something is limited or missing; 1 it could not be found out.")]
pub(crate) struct DoctorArgs {
    /// Folder on the card to measure [default: that of the store in ./keel.toml or /etc/keel/keel.toml,
    /// else the current one]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Write a page to share, with the short benches
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel config example > keel.toml\n  \
    keel config check keel.toml")]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Say everything that is wrong with a configuration; exit status 1 if there is anything
    Check {
        /// Configuration
        #[arg(default_value = "keel.toml", value_name = "FILE")]
        file: PathBuf,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// Print a configuration that works as it is, with every key explained
    Example,
}
