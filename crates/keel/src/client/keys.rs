//! `keel keys`: lets other series have keys. Returns when that is on flash, or reports its failure.

use super::connection::Connection;
use super::endpoint::NodeArgs;
use super::error::strange;
use super::value::printable;
use crate::error::CliError;
use crate::output::Output;
use clap::{Args, Subcommand};
use libkeel::protocol::{KEYS_RELEASED_MAX, KeysRelease, KeysReleased, Kind};
use serde_json::json;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel keys release hall/2/temperature\n  \
    keel keys release hall/2/temperature hall/2/humidity --json")]
pub(crate) struct KeysArgs {
    #[command(subcommand)]
    command: KeysCommand,
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
    keys: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: NodeArgs,
}

pub(super) fn run(arguments: &KeysArgs) -> Result<u8, CliError> {
    match &arguments.command {
        KeysCommand::Release(arguments) => release(arguments),
    }
}

fn release(arguments: &KeysReleaseArgs) -> Result<u8, CliError> {
    let asked = KeysRelease {
        keys: arguments.keys.clone(),
    };
    let count = asked.keys.len();
    if count > KEYS_RELEASED_MAX {
        let wrong = format!("are more than the {KEYS_RELEASED_MAX} that one command releases");
        let remedy = "release them in several commands";
        return Err(CliError::usage(format!("{count} keys"), wrong, remedy));
    }
    let mut connection = Connection::open(&arguments.node)?;
    let answer: KeysReleased = connection.ask(Kind::KeysRelease, &asked, Kind::KeysReleased)?;
    if answer.owners.len() != count {
        let wrong = format!("{} keys of {count}", answer.owners.len());
        return Err(strange("node", wrong));
    }
    let released = asked.keys.iter().zip(&answer.owners);
    let mut output = Output::new();
    if arguments.json {
        let list = released.map(|(key, owners)| json!({"key": key, "owners": owners}));
        let list: Vec<serde_json::Value> = list.collect();
        output.json(&json!({"released": list}))?;
    } else {
        for (key, owners) in released {
            let said = match owners {
                0 => "no owner was kept for it",
                _ => "released; the next series to send gets it",
            };
            output.line(format_args!("{}: {said}", printable(key)))?;
        }
    }
    output.flush()?;
    Ok(0)
}
