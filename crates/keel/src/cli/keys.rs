//! `keel keys`: which series have keys.

use super::NodeArgs;
use clap::{Args, Subcommand};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel keys release hall/2/temperature\n  \
    keel keys release hall/2/temperature hall/2/humidity --json")]
pub(crate) struct KeysArgs {
    #[command(subcommand)]
    pub(crate) command: KeysCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// Let other series have keys, such as those of sensors that replace others
    Release(KeysReleaseArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel keys release hall/2/temperature\n  \
    keel keys release hall/2/temperature hall/2/humidity --json\n\n\
    The first series of a key has it, and readings of other series are refused (`key_shared`). After this command,\n\
    each key belongs to the series that sends next, for each template of the configuration. So switch off the old\n\
    sensor before. The history of the keys stays as it is, and goes on with the readings of the new series.\n\n\
    The command returns when the change is on flash. If one of the keys does not exist, nothing is changed. Keys of\n\
    which the series can be read back, such as those of {measurement}/{pairs}/{field}, have no owner to release.\n\n\
    --json: released, a list of key and owners (by how many templates a series had the key; 0 if none was kept).")]
pub(crate) struct KeysReleaseArgs {
    /// Keys
    #[arg(value_name = "KEY", required = true)]
    pub(crate) keys: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
}
