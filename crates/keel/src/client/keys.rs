//! `keel keys`: lets other series have keys. Returns when that is on flash, or reports its failure.

use super::{Connection, printable, strange};
use crate::cli::{KeysArgs, KeysCommand, KeysReleaseArgs};
use crate::error::CliError;
use crate::output::Output;
use libkeel::protocol::{KEYS_RELEASED_MAX, KeysRelease, KeysReleased, Kind};
use serde_json::json;

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
