//! The commands for whoever looks after a node: config, backup, restore, doctor.

use super::{NodeArgs, size};
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Commands for the operator of a node.
#[derive(Debug, Subcommand)]
pub(crate) enum CareCommand {
    /// Copy the store of a running node into a file, while readings arrive
    Backup(BackupArgs),
    /// Create the store of a node from a backup; the node must not run
    Restore(RestoreArgs),
    /// Report what this machine permits a node to do, and what to change
    Doctor(DoctorArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel backup plant.backup\n  \
    keel backup /mnt/usb/plant-$(date +%F).backup --json\n  \
    keel flash check plant.backup && keel restore plant.backup\n\n\
    The backup contains everything that was acknowledged before the command started, except what retention deletes\n\
    meanwhile. The node continues; a commit waits for one read of 64 KiB at most. FILE is a store, which\n\
    `keel flash check` checks. It appears only when it is complete: an interrupted backup leaves no FILE. Only root\n\
    and the node's own user may make a backup. If no node runs, copy the image: cp --sparse=always.\n\n\
    Exit status: 0 success; 1 there is no backup; 3 there is a backup, but the node could not read all of its\n\
    store: the backup contains what the node could read.\n\n\
    --json: file, size_bytes, files, bytes, readings_end (readings with numbers below this are in it),\n\
    segments_gone (deleted by retention meanwhile), bytes_unreadable, files_left_out.")]
pub(crate) struct BackupArgs {
    /// File to create
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Replace an existing file, once the new one is complete
    #[arg(long)]
    pub(crate) force: bool,
    /// Print one JSON object
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
    The command creates store.image of the configuration, with the size store.create_mebibytes. Every byte is\n\
    compared before the new store becomes valid. A store that a node has open is refused, even with --force.\n\
    Existing content is replaced only with --force, and a file only when the new one is complete.\n\n\
    --json: image, size_bytes, free_bytes, files, bytes.")]
pub(crate) struct RestoreArgs {
    /// Backup, or the image of another node
    #[arg(value_name = "BACKUP")]
    pub(crate) backup: PathBuf,
    /// Configuration of the node [default: ./keel.toml, else /etc/keel/keel.toml]
    #[arg(short, long, value_name = "FILE", conflicts_with = "image")]
    pub(crate) config: Option<PathBuf>,
    /// Image file or block device, instead of the configured one
    #[arg(long, value_name = "IMAGE")]
    pub(crate) image: Option<PathBuf>,
    /// Size of the store, in bytes or with K, M or G [default: from the configuration; with --image 256M]
    #[arg(long, value_parser = size)]
    pub(crate) size: Option<u64>,
    /// Replace existing content
    #[arg(long)]
    pub(crate) force: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel doctor\n  \
    keel doctor --dir /mnt/card --json\n  \
    keel doctor --dir /mnt/card --report card.md       also runs the short benches: some minutes\n  \
    keel doctor --dir /mnt/card --report card.html --meter watts.csv\n\n\
    Each line reports ok, limited or missing, and what to change. A node runs even if all of them are missing; the\n\
    line says what the node then does without. The command writes, measures and removes a file of 4 MiB in --dir.\n\
    The page of --report (Markdown; HTML if FILE ends in .html) names processor, kernel, card and figures, but no\n\
    host, address, path or serial number: you can send it to others. It has the processor's frequencies and the power\n\
    at rest and during each bench, and how long each was measured. Its benches need keel-bench beside keel or in\n\
    PATH.\n\n\
    Exit status: 0 all is ok; 3 something is limited or missing; 1 the state could not be determined.")]
pub(crate) struct DoctorArgs {
    /// Folder on the card to measure [default: folder of the store in ./keel.toml or /etc/keel/keel.toml, else the
    /// current folder]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Run the short benches, and write a page to share
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// CSV file that the program of a power meter keeps writing, as for `keel power`
    #[arg(long, value_name = "FILE")]
    pub(crate) meter: Option<PathBuf>,
    /// Read the power chip of a Raspberry Pi 5 with vcgencmd
    #[arg(long)]
    pub(crate) pmic: bool,
    /// Folder to use instead of / for frequencies, sensors of power, and the descriptions of board and card
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub(crate) root: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel config example > keel.toml\n  \
    keel config check keel.toml\n  \
    keel config try sensors/hall/2 21.5")]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Report everything that is wrong with a configuration; exit status 1 if anything is wrong
    Check {
        /// Configuration file
        #[arg(default_value = "keel.toml", value_name = "FILE")]
        file: PathBuf,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Print a working configuration that explains every key
    Example,
    /// Show what a node would make of an MQTT message, without a node
    Try(TryArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel config try sensors/hall/2 21.5\n  \
    keel config try zigbee2mqtt/kitchen '{\"temperature\": 21.5}' -c /etc/keel/keel.toml\n  \
    mosquitto_sub -N -t tele/lamp/SENSOR -C 1 | keel config try tele/lamp/SENSOR - --json\n  \
    keel config try --before spBv1.0/plant/NBIRTH/line1 birth.bin spBv1.0/plant/NDATA/line1 - < data.bin\n\n\
    The command prints each reading with its key, its value and its kind, and what is refused or left out, each with\n\
    the line of the configuration that decides. It changes nothing, and needs neither a broker nor a store. Times are\n\
    compared with the clock of this machine, as if it were trusted. Other keys are not known, so keys.keys_max and\n\
    keys of other series refuse nothing here.\n\n\
    Exit status 1 if the node would refuse the whole message.\n\n\
    --json: file, topic, filter and line (of the subscription; null if none fits), readings (key, value, type,\n\
    time_ms, time_ns, path, line), refusals (reason, what, path, key, line), left_out (path, why, line).")]
pub(crate) struct TryArgs {
    /// Topic of the message
    pub(crate) topic: String,
    /// Payload of the message; - reads the standard input
    #[arg(allow_hyphen_values = true)]
    pub(crate) payload: String,
    /// Configuration file
    #[arg(short, long, default_value = "keel.toml", value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Topic, and file with the payload, of a message that came before, such as a birth of Sparkplug
    #[arg(long, num_args = 2, value_names = ["TOPIC", "FILE"])]
    pub(crate) before: Vec<String>,
    /// As if the broker had kept the message since before the subscription
    #[arg(long)]
    pub(crate) retained: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
