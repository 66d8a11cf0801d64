//! Changes of latest values, sent to a client as they come.
//!
//! **Method.** Puts are counted per object on their way in, one addition each ([`super::changes`]). While a client
//! watches, its task compares these counts [`SCANS_PER_SECOND`] times a second with those that it has seen, and
//! reads the values of the objects that differ. So nobody pays when nobody watches; a value that is replaced within
//! one scan's period, or while the client does not take what was sent, is not shown but counted as missed, and so is
//! a reading that is older than the value in its slot.

use super::Node;
use super::protocol::{End, Kind, LIST_BYTES, Watch, updates_frame};
use super::session::{failure, framed, with_latest};
use super::wire::{Fault, Wire};
use base::error::Code;
use db::{ObjectId, VALUE_BYTES_LIMIT};
use std::time::Duration;

/// Looks at the counts in a second.
const SCANS_PER_SECOND: u64 = 20;

/// Clients that watch at once.
const WATCHERS_MAX: u32 = 16;

/// Counts a watcher for as long as it lives.
struct Place<'n>(&'n Node);

impl<'n> Place<'n> {
    fn take(node: &'n Node) -> Option<Self> {
        let watchers = node.counters.watchers.get();
        (watchers < WATCHERS_MAX).then(|| {
            node.counters.watchers.set(watchers + 1);
            Self(node)
        })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let watchers = &self.0.counters.watchers;
        watchers.set(watchers.get().saturating_sub(1));
    }
}

/// What a watcher knows of an object that it watches.
struct Seen {
    id: ObjectId,
    /// Puts, as counted when its value was read last.
    puts: u32,
    /// Arrival of the value that was sent last.
    arrival_ns: Option<u64>,
}

/// Sends changes until the client sends something or goes, or the node stops.
pub(crate) async fn run(node: &Node, wire: &mut Wire, asked: &Watch) -> Result<(), Fault> {
    if let Err(error) = ingest::pattern::check(&asked.pattern) {
        let remedy = "write a key, + for one level, or # for the rest";
        let failure = failure(Code::Invalid, &asked.pattern, error, remedy);
        return wire.fail(&failure).await;
    }
    let Some(_place) = Place::take(node) else {
        let wrong = format!("{WATCHERS_MAX} clients watch already");
        let failure = failure(Code::Busy, &asked.pattern, wrong, "end one of them");
        return wire.fail(&failure).await;
    };
    let mut watcher = Watcher {
        asked,
        objects: 0,
        seen: Vec::new(),
        end: End::default(),
        bytes: vec![0; VALUE_BYTES_LIMIT],
    };
    watcher.begin(node);
    // The first answer says that from now on nothing is overlooked, even if it shows nothing.
    let first = watcher.scan(node, true);
    wire.send(&first).await?;
    let mut stop = node.stop.clone();
    let mut ticks = tokio::time::interval(Duration::from_millis(1000 / SCANS_PER_SECOND));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = wire.stirs() => break,
            _ = stop.wait_for(|stop| *stop) => break,
            _ = ticks.tick() => {}
        }
        watcher.meet(node);
        let frames = watcher.scan(node, false);
        if !frames.is_empty() {
            wire.send(&frames).await?;
        }
    }
    let frame = framed(Kind::End, &watcher.end).unwrap_or_default();
    wire.send(&frame).await
}

struct Watcher<'a> {
    asked: &'a Watch,
    /// Objects looked at so far: new ones come behind.
    objects: u32,
    seen: Vec<Seen>,
    end: End,
    bytes: Vec<u8>,
}

impl Watcher<'_> {
    /// Takes up the objects there are: what they hold is shown if the client has asked for that.
    fn begin(&mut self, node: &Node) {
        self.meet(node);
        for seen in &mut self.seen {
            seen.puts = node.target.changes().get(seen.id.0);
            let Ok(got) = node.db.get(seen.id, &mut self.bytes) else {
                continue;
            };
            if self.asked.current {
                // One behind: the first scan shows its value.
                seen.puts = seen.puts.wrapping_sub(1);
            } else {
                seen.arrival_ns = Some(got.arrival_ns);
            }
        }
    }

    /// Takes up objects that have been made since.
    fn meet(&mut self, node: &Node) {
        let objects = node.db.objects();
        for number in self.objects..objects {
            let id = ObjectId(number);
            if ingest::pattern::matches(&self.asked.pattern, node.db.key(id).as_str()) {
                self.seen.push(Seen {
                    id,
                    puts: 0,
                    arrival_ns: None,
                });
            }
        }
        self.objects = objects;
    }

    /// Frames with what has changed; none without a change, unless `always`.
    fn scan(&mut self, node: &Node, always: bool) -> Vec<u8> {
        let mut frames = Vec::new();
        let mut list = Vec::new();
        let mut missed = 0;
        for seen in &mut self.seen {
            let puts = node.target.changes().get(seen.id.0);
            let new = puts.wrapping_sub(seen.puts);
            if new == 0 {
                continue;
            }
            seen.puts = puts;
            let key = node.db.key(seen.id);
            let last = seen.arrival_ns;
            let arrival_ns = node
                .db
                .get(seen.id, &mut self.bytes)
                .ok()
                .map(|got| got.arrival_ns);
            if arrival_ns.is_none() || arrival_ns == last {
                // Older than what the slot holds: stored, but never the latest value.
                missed += u64::from(new);
                continue;
            }
            seen.arrival_ns = arrival_ns;
            missed += u64::from(new - 1);
            let before = list.len();
            let written = with_latest(node, seen.id, key.as_str(), &mut self.bytes, |latest| {
                if before > 0 {
                    list.push(b',');
                }
                serde_json::to_writer(&mut list, latest).is_ok()
            });
            if !matches!(written, Ok(true)) {
                list.truncate(before);
                continue;
            }
            self.end.sent += 1;
            if list.len() >= LIST_BYTES {
                frames.append(&mut close(&mut list, &mut missed, &mut self.end));
            }
        }
        if !list.is_empty() || missed > 0 || (always && frames.is_empty()) {
            frames.append(&mut close(&mut list, &mut missed, &mut self.end));
        }
        frames
    }
}

/// The frame of the list so far, and of the changes missed since the one before.
fn close(list: &mut Vec<u8>, missed: &mut u64, end: &mut End) -> Vec<u8> {
    let frame = updates_frame(list, *missed);
    list.clear();
    end.missed += std::mem::take(missed);
    frame
}
