//! Changes of latest values, sent to a client as they occur.
//!
//! **Method.** Puts are counted per object on their way in, at one addition each ([`super::changes`]). While a client
//! watches, its task compares these counts [`SCANS_PER_SECOND`] times per second with the counts that it saw last. It
//! reads the values of the objects that differ, so there is no cost without a watcher. Some values are not shown but
//! counted as missed: a value replaced within one scan period, or while the client does not read. So is a reading that
//! is older than the value in its slot.
//!
//! **Limits.** A scan works in slices of [`SLICE_OBJECTS`] and sends each frame before it fills the next. So a watch of
//! every key of a large node delays no other client. A client that does not read costs one frame of memory.

use super::answer::{failure, framed};
use super::get::with_latest;
use super::state::Node;
use super::wire::{Fault, Wire};
use base::error::Code;
use db::{ObjectId, VALUE_BYTES_LIMIT};
use libkeel::protocol::{End, Kind, LIST_BYTES, Watch, updates_frame};
use std::time::Duration;
use tokio::sync::watch as latest;

/// Scans of the counts per second.
const SCANS_PER_SECOND: u64 = 20;

/// Objects scanned before other tasks get their turn.
const SLICE_OBJECTS: u32 = 2048;

/// Clients that watch at once.
const WATCHERS_MAX: u32 = 16;

/// Counts a watcher while this exists.
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

/// What a watcher knows about an object.
struct WatchedKey {
    id: ObjectId,
    /// The count of puts when its value was last read.
    puts: u32,
    /// Arrival of the value that was sent last.
    arrival_ns: Option<u64>,
}

/// Sends changes until the client sends something or disconnects, or the node stops.
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
        at: 0,
        list: Vec::new(),
        missed: 0,
        end: End::default(),
        bytes: vec![0; VALUE_BYTES_LIMIT],
    };
    let mut stop = node.stop.clone();
    // Objects that exist now; objects created during this loop count as new.
    let objects = node.db.objects();
    while watcher.meet(node, objects, true) {
        tokio::task::yield_now().await;
    }
    let mut ticks = tokio::time::interval(Duration::from_millis(1000 / SCANS_PER_SECOND));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // The first answer says that from now on no change is missed, even if it contains no value.
    let mut is_answered = false;
    while !is_over(wire, &mut stop, ticks.tick()).await {
        let objects = node.db.objects();
        while watcher.meet(node, objects, false) {
            tokio::task::yield_now().await;
        }
        loop {
            let is_whole = watcher.look(node);
            if let Some(frame) = watcher.frame(is_whole, !is_answered) {
                wire.send(&frame).await?;
                is_answered = true;
            }
            if is_whole || is_over(wire, &mut stop, tokio::task::yield_now()).await {
                break;
            }
        }
    }
    let frame = framed(Kind::End, &watcher.end).unwrap_or_default();
    wire.send(&frame).await
}

/// Returns whether the watch ends before `pause` does.
async fn is_over(
    wire: &mut Wire,
    stop: &mut latest::Receiver<bool>,
    pause: impl Future<Output = impl Sized>,
) -> bool {
    tokio::select! {
        biased;
        () = wire.stirs() => true,
        _ = stop.wait_for(|stop| *stop) => true,
        _ = pause => false,
    }
}

struct Watcher<'a> {
    asked: &'a Watch,
    /// Number of objects included so far: new ones are appended.
    objects: u32,
    seen: Vec<WatchedKey>,
    /// The position in `seen` where the scan continues.
    at: usize,
    /// Updates that wait for their frame, as JSON, and the number of changes missed since the last frame.
    list: Vec<u8>,
    missed: u64,
    end: End,
    bytes: Vec<u8>,
}

impl Watcher<'_> {
    /// Includes one slice of the first `objects`. Returns whether there are more. `is_begin`: the objects exist at the
    /// begin of the watch, so their values are sent only if the client has asked for that.
    fn meet(&mut self, node: &Node, objects: u32, is_begin: bool) -> bool {
        let slice_end = objects.min(self.objects.saturating_add(SLICE_OBJECTS));
        for number in self.objects..slice_end {
            let id = ObjectId(number);
            if !ingest::pattern::matches(&self.asked.pattern, node.db.key(id).as_str()) {
                continue;
            }
            let mut seen = WatchedKey {
                id,
                puts: 0,
                arrival_ns: None,
            };
            if is_begin {
                seen.puts = node.target.changes().get(number);
                if let Ok(got) = node.db.get(id, &mut self.bytes) {
                    if self.asked.current {
                        // Store the count less one, so that the first scan sends the value.
                        seen.puts = seen.puts.wrapping_sub(1);
                    } else {
                        seen.arrival_ns = Some(got.arrival_ns);
                    }
                }
            }
            self.seen.push(seen);
        }
        self.objects = slice_end.max(self.objects);
        self.objects < objects
    }

    /// Continues the scan until a frame is full or a slice is over. Returns whether every object has been checked.
    fn look(&mut self, node: &Node) -> bool {
        let slice_end = self
            .seen
            .len()
            .min(self.at.saturating_add(SLICE_OBJECTS as usize));
        while self.at < slice_end && self.list.len() < LIST_BYTES {
            let Some(seen) = self.seen.get_mut(self.at) else {
                break;
            };
            self.at += 1;
            let puts = node.target.changes().get(seen.id.0);
            let new = puts.wrapping_sub(seen.puts);
            if new == 0 {
                continue;
            }
            seen.puts = puts;
            let key = node.db.key(seen.id);
            let last = seen.arrival_ns;
            let got = node.db.get(seen.id, &mut self.bytes);
            let arrival_ns = got.ok().map(|got| got.arrival_ns);
            if arrival_ns.is_none() || arrival_ns == last {
                // The reading is older than the value in the slot: it is stored, but was never the latest value.
                self.missed += u64::from(new);
                continue;
            }
            seen.arrival_ns = arrival_ns;
            self.missed += u64::from(new - 1);
            let list = &mut self.list;
            let before = list.len();
            let written = with_latest(node, seen.id, key.as_str(), &mut self.bytes, |latest| {
                if before > 0 {
                    list.push(b',');
                }
                serde_json::to_writer(&mut *list, latest).is_ok()
            });
            if matches!(written, Ok(true)) {
                self.end.sent += 1;
            } else {
                list.truncate(before);
            }
        }
        let is_whole = self.at >= self.seen.len();
        if is_whole {
            self.at = 0;
        }
        is_whole
    }

    /// Returns the frame if it is full, or if the scan is complete and found something or must answer.
    fn frame(&mut self, is_whole: bool, must_answer: bool) -> Option<Vec<u8>> {
        let has_some = !self.list.is_empty() || self.missed > 0 || must_answer;
        if self.list.len() < LIST_BYTES && !(is_whole && has_some) {
            return None;
        }
        let frame = updates_frame(&self.list, self.missed);
        self.list.clear();
        self.end.missed += std::mem::take(&mut self.missed);
        Some(frame)
    }
}
