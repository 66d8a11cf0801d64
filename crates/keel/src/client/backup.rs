//! `keel backup`: backs up the store of a running node to a file.

use super::connection::Connection;
use super::endpoint::NodeArgs;
use super::error::{failed, strange};
use crate::error::CliError;
use crate::flash_cmd::backup::{Draft, Shape};
use crate::output::Output;
use crate::signals;
use base::error::Code;
use clap::Args;
use command::progress::{Progress, bytes_text};
use libkeel::protocol::{self, BackupBegun, BackupEnd, BackupFile, Failure, Kind};
use serde_json::json;
use std::path::PathBuf;

/// Exit status of a backup that lacks unreadable parts of the store.
const STATUS_IN_PARTS: u8 = 3;

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
    file: PathBuf,
    /// Replace an existing file, once the new one is complete
    #[arg(long)]
    force: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: NodeArgs,
}

/// Makes a backup.
pub(crate) fn run(arguments: &BackupArgs) -> Result<u8, CliError> {
    node::stores::explain_file_limit();
    let to = &Draft::target(&arguments.file, arguments.force)?;
    let mut connection = Connection::open(&arguments.node)?;
    connection.send(Kind::Backup, &protocol::Backup {})?;
    let progress = Progress::start(format!("backing up to {}", to.display()));
    let mut draft: Option<Draft> = None;
    let end: BackupEnd = loop {
        let answer = connection.answer()?;
        match (answer.kind, &mut draft) {
            (Kind::BackupBegun, _) => {
                let begun: BackupBegun = answer.read()?;
                let shape = shape(&begun).ok_or_else(|| strange(answer.shown, "no key"))?;
                // The files received so far are void; remove their draft first.
                drop(draft.take());
                draft = Some(Draft::begin(to, &shape)?);
                // A signal between two drafts is only noted, so check it here.
                if signals::stop_requested() {
                    let remedy = "nothing was made; begin again";
                    return Err(CliError::failure(to.display(), "interrupted", remedy));
                }
            }
            (Kind::BackupFile, Some(draft)) => {
                let file: BackupFile = answer.read()?;
                if file.gone {
                    draft.forget(&file.name)?;
                } else {
                    draft.file(&file.name)?;
                }
            }
            (Kind::BackupPiece, Some(draft)) => {
                draft.piece(answer.bytes())?;
                progress.add(answer.bytes().len());
            }
            (Kind::BackupEnd, Some(_)) => break answer.read()?,
            (other, _) => return Err(strange(answer.shown, format!("{other:?}"))),
        }
    };
    let Some(draft) = draft else {
        let failure = Failure {
            code: Code::Unsupported.name().to_owned(),
            thing: "node".to_owned(),
            wrong: "sent nothing".to_owned(),
            remedy: String::new(),
        };
        return Err(failed(&failure, Some(Kind::Backup)));
    };
    let made = draft.finish(end.files, &progress)?;
    drop(progress);
    let is_in_parts = end.bytes_unreadable > 0 || end.files_left_out > 0;
    let mut output = Output::new();
    if arguments.json {
        output.json(&json!({
            "file": to.display().to_string(),
            "size_bytes": made.size_bytes,
            "files": end.files,
            "bytes": end.bytes,
            "readings_end": end.durable_end,
            "segments_gone": end.segments_gone,
            "bytes_unreadable": end.bytes_unreadable,
            "files_left_out": end.files_left_out,
        }))?;
    } else {
        let gone = match end.segments_gone {
            0 => String::new(),
            gone => format!("; retention deleted {gone} segments meanwhile"),
        };
        output.line(format_args!(
            "{}: the readings up to number {}, {} in {} files{gone}",
            to.display(),
            end.durable_end,
            bytes_text(end.bytes),
            end.files
        ))?;
    }
    output.flush()?;
    if is_in_parts {
        eprintln!(
            "keel: {}: the node could not read {} of its store, and left {} files out; look at it with `keel status`",
            to.display(),
            bytes_text(end.bytes_unreadable),
            end.files_left_out
        );
        return Ok(STATUS_IN_PARTS);
    }
    Ok(0)
}

fn shape(begun: &BackupBegun) -> Option<Shape> {
    let digits = begun.hash_key.as_bytes();
    let mut hash_key = [0; 16];
    if digits.len() != 2 * hash_key.len() || !digits.is_ascii() {
        return None;
    }
    for (byte, pair) in hash_key.iter_mut().zip(begun.hash_key.as_bytes().chunks(2)) {
        let pair = std::str::from_utf8(pair).ok()?;
        *byte = u8::from_str_radix(pair, 16).ok()?;
    }
    Some(Shape {
        hash_key,
        name_bytes_max: begun.name_bytes_max,
        files_max: begun.files_max,
        bytes_max: begun.bytes_max,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_32_digits() {
        let begun = |hash_key: &str| BackupBegun {
            hash_key: hash_key.to_owned(),
            name_bytes_max: 64,
            files_max: 1,
            bytes_max: 1,
            durable_end: 0,
        };
        let key = shape(&begun("000102030405060708090a0b0c0d0e0f"))
            .unwrap()
            .hash_key;
        assert_eq!(key, std::array::from_fn(|index| index as u8));
        for wrong in [
            "",
            "00",
            "000102030405060708090a0b0c0d0e0g",
            "ä00102030405060708090a0b0c0d0e0f",
        ] {
            assert!(shape(&begun(wrong)).is_none(), "{wrong}");
        }
    }
}
