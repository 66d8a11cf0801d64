//! Readings of a key, read in slices on blocking threads and sent slice by slice. A slow client delays neither a commit
//! nor another reader, and costs the memory of one slice. A reader queues again for each slice.

use super::answer::{failure, framed, twice};
use super::database::Db;
use super::get::object;
use super::state::Node;
use super::wire::{Fault, Wire};
use base::error::Code;
use db::{HistoryCursor, HistoryQuery, Time};
use libkeel::protocol::{
    End, History, Kind, LIST_BYTES, Nanoseconds, Reading, Shown, readings_frame,
};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Sends the requested readings, then the end message.
pub(crate) async fn run(node: &Node, wire: &mut Wire, asked: &History) -> Result<(), Fault> {
    let id = match object(node, &asked.key) {
        Ok(id) => id,
        Err(failure) => return wire.fail(&failure).await,
    };
    let (from, to) = match asked.range() {
        Ok(range) => range,
        Err(wrong) => return wire.fail(&twice(wrong)).await,
    };
    let query = HistoryQuery {
        id: Some(id),
        from: from.unwrap_or(Time::from_ms(i64::MIN)),
        to: to.unwrap_or(Time::from_ms(i64::MAX)),
    };
    let mut read = Read {
        query,
        cursor: HistoryCursor::default(),
        left: asked.limit.unwrap_or(u64::MAX),
        sent: 0,
        frames: Vec::new(),
        list: Vec::new(),
    };
    let mut stop = node.stop.clone();
    loop {
        let turn = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => {
                let failure = failure(Code::Gone, &asked.key, "the node stops", "");
                return wire.fail(&failure).await;
            }
            () = wire.left() => return Err(Fault::Gone),
            turn = node.history_reads.acquire() => turn,
        };
        let Ok(turn) = turn else {
            return Err(Fault::Gone);
        };
        let db = Arc::clone(&node.db);
        let slice = tokio::task::spawn_blocking(move || {
            let more = read.slice(&db);
            (read, more)
        });
        // The blocking thread has already reported its panic.
        let Ok((back, more)) = slice.await else {
            return Err(Fault::Gone);
        };
        // Release the turn before sending: this client may take any time to receive its slice.
        drop(turn);
        read = back;
        let more = match more {
            Ok(more) => more,
            Err(error) => {
                let failure = failure(error.code(), &asked.key, error, "see `keel status`");
                return wire.fail(&failure).await;
            }
        };
        wire.send(&read.frames).await?;
        read.frames.clear();
        if !more {
            break;
        }
    }
    let frame = framed(Kind::End, &read.end()).unwrap_or_default();
    wire.send(&frame).await
}

struct Read {
    query: HistoryQuery,
    cursor: HistoryCursor,
    /// Readings that may still be sent.
    left: u64,
    sent: u64,
    frames: Vec<u8>,
    list: Vec<u8>,
}

impl Read {
    /// Reads one slice into frames. Returns whether there is more.
    fn slice(&mut self, db: &Db) -> Result<bool, db::Error> {
        if self.left == 0 {
            return Ok(false);
        }
        let (frames, list) = (&mut self.frames, &mut self.list);
        let (left, sent) = (&mut self.left, &mut self.sent);
        let more = db.history(&self.query, &mut self.cursor, &mut |entry| {
            let (value, kind) = Shown::of(entry.value);
            let recorded = entry.time_corrected.then_some(entry.recorded);
            let reading = Reading {
                time_ms: entry.time.ms(),
                time_ns: Nanoseconds::beside_ms(entry.time),
                value,
                value_text: value.digits(),
                kind,
                recorded_ms: recorded.map(Time::ms),
                recorded_ns: recorded.and_then(Nanoseconds::beside_ms),
                node_time: entry.node_time,
                clock_trusted: entry.wall_trusted,
                lsn: entry.lsn,
            };
            if !list.is_empty() {
                list.push(b',');
            }
            // Writing plain structures to memory never fails.
            serde_json::to_writer(&mut *list, &reading).ok();
            *sent += 1;
            *left -= 1;
            if list.len() >= LIST_BYTES {
                close(list, frames);
            }
            if *left == 0 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        if !self.list.is_empty() {
            close(&mut self.list, &mut self.frames);
        }
        Ok(more && self.left > 0)
    }

    fn end(&self) -> End {
        let report = self.cursor.report();
        End {
            sent: self.sent,
            missed: 0,
            segments_total: report.segments_total,
            segments_read: report.segments_read,
            segments_skipped: report.segments_skipped,
            segments_gone: report.segments_gone,
            bytes_read: report.bytes_read,
            records_damaged: report.damage.places_unreadable(),
            readings_missing: report.damage.readings_missing,
        }
    }
}

fn close(list: &mut Vec<u8>, frames: &mut Vec<u8>) {
    frames.append(&mut readings_frame(list));
    list.clear();
}
