//! Sends a backup: the store's files, read piece by piece on blocking threads between two rounds of the commit thread.
//! A slow client delays neither a commit nor retention. If a file is replaced meanwhile, the backup begins again.

use super::answer::{failure, framed};
use super::database::Db;
use super::state::Node;
use super::wire::{Fault, Wire};
use base::error::Code;
use db::{Snapshot, SnapshotFile, SnapshotRead};
use libkeel::protocol::{BackupBegun, BackupEnd, BackupFile, Failure, Kind, backup_piece_frame};
use std::fmt::Write;
use std::sync::Arc;

/// Bytes of a piece: whole blocks of the store. A commit waits for at most one piece.
const PIECE_BYTES: usize = 16 * flash::PAYLOAD_BYTES;

/// Attempts at a backup before the node reports that it writes too much.
const ATTEMPTS_MAX: u32 = 5;

/// How one attempt ended.
enum Ended {
    Whole,
    /// A file that a start needs was replaced.
    Replaced,
}

/// Sends a backup, then the end message.
pub(crate) async fn run(node: &Node, wire: &mut Wire) -> Result<(), Fault> {
    let Ok(_turn) = node.backups.try_acquire() else {
        let wrong = "another backup is being made";
        let failure = failure(Code::Busy, "backup", wrong, "try again when it has ended");
        return wire.fail(&failure).await;
    };
    for _ in 0..ATTEMPTS_MAX {
        let db = Arc::clone(&node.db);
        let Ok(taken) = tokio::task::spawn_blocking(move || begin(&db)).await else {
            return Err(Fault::Gone);
        };
        let ended = match taken {
            Ok((snapshot, begun)) => match framed(Kind::BackupBegun, &begun) {
                Ok(frame) => {
                    wire.send(&frame).await?;
                    send(node, wire, snapshot).await
                }
                Err(failure) => Err(Stop::Reply(failure)),
            },
            Err(error) => Err(Stop::from(error)),
        };
        match ended {
            Ok(Ended::Whole) => return Ok(()),
            Ok(Ended::Replaced) => {}
            Err(Stop::Fault(fault)) => return Err(fault),
            Err(Stop::Reply(failure)) => return wire.fail(&failure).await,
        }
    }
    let wrong = format!("the node replaced its checkpoint during each of {ATTEMPTS_MAX} attempts");
    let remedy = "write the backup to a faster disk, or try again when fewer readings arrive";
    wire.fail(&failure(Code::Busy, "backup", wrong, remedy))
        .await
}

/// Why a backup was not sent.
enum Stop {
    Fault(Fault),
    Reply(Failure),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<db::Error> for Stop {
    fn from(error: db::Error) -> Self {
        Self::Reply(failure(error.code(), "backup", error, "see `keel status`"))
    }
}

/// Returns a snapshot of the files of the backup, and the message that begins it.
fn begin(db: &Db) -> Result<(Snapshot, BackupBegun), db::Error> {
    let snapshot = db.snapshot()?;
    let layout = db.with_store(|store| store.layout().clone());
    let layout = layout.ok_or(db::Error::Closed)?;
    let mut hash_key = String::new();
    for byte in layout.hash_key {
        write!(hash_key, "{byte:02x}").ok();
    }
    let begun = BackupBegun {
        hash_key,
        name_bytes_max: layout.name_bytes_max,
        files_max: (snapshot.files.len() + snapshot.others.len()) as u64,
        bytes_max: snapshot.bytes_max,
        durable_end: snapshot.durable_end,
    };
    Ok((snapshot, begun))
}

fn named(name: &str, gone: bool) -> Result<Vec<u8>, Stop> {
    let file = BackupFile {
        name: name.to_owned(),
        gone,
    };
    framed(Kind::BackupFile, &file).map_err(Stop::Reply)
}

async fn send(node: &Node, wire: &mut Wire, snapshot: Snapshot) -> Result<Ended, Stop> {
    let mut end = BackupEnd {
        durable_end: snapshot.durable_end,
        files_left_out: snapshot.others_left_out,
        ..BackupEnd::default()
    };
    for (name, bytes) in &snapshot.others {
        let mut frames = named(name, false)?;
        frames.append(&mut backup_piece_frame(bytes));
        wire.send(&frames).await?;
        end.files += 1;
        end.bytes += bytes.len() as u64;
    }
    let mut left = snapshot.files.into_iter();
    while let Some(file) = left.next() {
        let (name, is_needed) = (file.name.clone(), file.is_needed);
        if send_file(node, wire, file, &mut end).await? {
            end.files += 1;
        } else if is_needed {
            return Ok(Ended::Replaced);
        } else {
            wire.send(&named(&name, true)?).await?;
            // The oldest segment is deleted first and read last: the remaining ones are gone, too.
            end.segments_gone = 1 + left.len() as u64;
            break;
        }
    }
    let frame = framed(Kind::BackupEnd, &end).map_err(Stop::Reply)?;
    wire.send(&frame).await?;
    Ok(Ended::Whole)
}

/// Sends one file. Returns `false` if the file no longer exists.
async fn send_file(
    node: &Node,
    wire: &mut Wire,
    file: SnapshotFile,
    end: &mut BackupEnd,
) -> Result<bool, Stop> {
    wire.send(&named(&file.name, false)?).await?;
    let file = Arc::new(file);
    let mut offset = 0;
    let mut stop = node.stop.clone();
    loop {
        if *stop.borrow_and_update() {
            let failure = failure(Code::Gone, "backup", "the node stops", "");
            return Err(Stop::Reply(failure));
        }
        let (db, of) = (Arc::clone(&node.db), Arc::clone(&file));
        let read = tokio::task::spawn_blocking(move || {
            let mut piece = vec![0; PIECE_BYTES];
            let read = db.read_snapshot(&of, offset, &mut piece);
            (piece, read)
        });
        // The blocking thread has already reported its panic.
        let (piece, read) = read.await.map_err(|_| Stop::Fault(Fault::Gone))?;
        match read? {
            SnapshotRead::Gone => return Ok(false),
            SnapshotRead::Bytes {
                bytes: 0,
                unreadable,
            } => {
                end.bytes_unreadable += unreadable as u64;
                return Ok(true);
            }
            SnapshotRead::Bytes { bytes, unreadable } => {
                wire.send(&backup_piece_frame(&piece[..bytes])).await?;
                offset += bytes as u64;
                end.bytes += bytes as u64;
                end.bytes_unreadable += unreadable as u64;
            }
        }
    }
}
