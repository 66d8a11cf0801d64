//! The hub: looks for changes while the stream has readers, encodes each update once, and hands it to all readers.
//!
//! **Method.** Each object has a counter of its puts. In each period (250 ms by default) the hub compares these counts
//! with those that it has seen. It reads the values of the objects that differ, and writes them into one message. Every
//! reader of all keys gets this message as it is. For a reader of some keys the matching pieces are put together. Of
//! several puts in one period the latest value is shown; `replaced` counts the others.

use std::fmt::Write;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use db::{ObjectId, VALUE_BYTES_LIMIT};
use tokio::sync::Notify;
use tokio::sync::watch as latest;
use tokio::time::MissedTickBehavior;

use super::counters::{Counters, add, less};
use super::options::SLICE_OBJECTS;
use super::query::EventId;
use super::reader::{Inner, Reader};
use super::source::Source;
use super::status::Asker;
use super::values::write_value;

/// Size in bytes from which a message of values takes no more; one more value fits after them.
const MESSAGE_BYTES: usize = 64 << 10;
/// Interval after which an idle reader gets a keep-alive message, which tells whether it is still there.
const QUIET_MS_MAX: u32 = 10_000;
/// Interval of messages with the node's status, in ms.
const STATUS_MS: u32 = 1_000;
const SIGN_OF_LIFE: &[u8] = b": \n\n";

/// All readers of the stream.
pub(crate) struct Hub {
    readers: Mutex<Vec<Arc<Reader>>>,
    comes: Notify,
    run: u32,
    period_ms: u32,
    counters: Arc<Counters>,
}

/// Updates that have been encoded and not yet handed to readers.
#[derive(Default)]
struct Batch {
    values: Vec<u8>,
    /// Object, its byte range in `values`, its number of updates.
    parts: Vec<(u32, Range<usize>, u32)>,
    updates: u64,
}

impl Hub {
    /// Creates a hub. `run` tells the runs of a node apart.
    pub(crate) fn new(run: u32, period_ms: u32, counters: Arc<Counters>) -> Self {
        Self {
            readers: Mutex::default(),
            comes: Notify::new(),
            run,
            period_ms,
            counters,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Reader>>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a reader.
    pub(crate) fn join(&self, reader: &Arc<Reader>) {
        self.lock().push(Arc::clone(reader));
        add(&self.counters.streams, 1);
        self.comes.notify_one();
    }

    /// Removes a reader.
    pub(crate) fn leave(&self, reader: &Arc<Reader>) {
        reader.close();
        let mut readers = self.lock();
        let before = readers.len();
        readers.retain(|other| !Arc::ptr_eq(other, reader));
        if readers.len() < before {
            less(&self.counters.streams);
        }
    }

    fn readers(&self) -> Vec<Arc<Reader>> {
        self.lock().clone()
    }

    /// Works until the node stops; then ends every stream.
    pub(crate) async fn work(
        &self,
        source: &dyn Source,
        asker: &Asker,
        mut stop: latest::Receiver<bool>,
    ) {
        let mut scan = Scan {
            hub: self,
            source,
            seen: Vec::new(),
            updates: 0,
            buffer: vec![0; VALUE_BYTES_LIMIT],
        };
        while !*stop.borrow() {
            if self.lock().is_empty() {
                tokio::select! {
                    () = self.comes.notified() => {}
                    _ = stop.wait_for(|stop| *stop) => break,
                }
                scan.begin().await;
            }
            tokio::select! {
                () = scan.while_read(asker) => {}
                _ = stop.wait_for(|stop| *stop) => break,
            }
        }
        for reader in self.readers() {
            reader.close();
        }
    }
}

/// The state that the hub has seen.
struct Scan<'h> {
    hub: &'h Hub,
    source: &'h dyn Source,
    /// Puts of each object when the hub last looked at it.
    seen: Vec<u32>,
    /// All updates since the start that the hub has looked at.
    updates: u64,
    buffer: Vec<u8>,
}

impl Scan<'_> {
    /// Starts after a time without readers: updates of that time are counted, but not shown.
    async fn begin(&mut self) {
        let objects = self.source.objects();
        self.seen.resize(objects as usize, 0);
        for (object, seen) in self.seen.iter_mut().enumerate() {
            let puts = self.source.puts(ObjectId(object as u32));
            self.updates += u64::from(puts.wrapping_sub(*seen));
            *seen = puts;
            if object as u32 % SLICE_OBJECTS == SLICE_OBJECTS - 1 {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Looks for changes until there are no readers.
    async fn while_read(&mut self, asker: &Asker) {
        let period = Duration::from_millis(self.hub.period_ms.into());
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let status_ticks = STATUS_MS.div_ceil(self.hub.period_ms).max(1);
        let mut tick: u32 = 0;
        loop {
            ticks.tick().await;
            let readers = self.hub.readers();
            if readers.is_empty() {
                return;
            }
            // One number for both: an object that appears in between would be seen, and shown to no reader.
            let objects = self.source.objects();
            for reader in &readers {
                self.meet(reader, objects).await;
            }
            self.changes(&readers, objects).await;
            if tick.is_multiple_of(status_ticks)
                && readers.iter().any(|reader| reader.wanted.status)
            {
                self.status(&readers, asker).await;
            }
            for reader in &readers {
                self.catch_up(reader);
                self.sign_of_life(reader);
            }
            tick = tick.wrapping_add(1);
        }
    }

    /// Greets a new reader, and finds the objects that match.
    async fn meet(&self, reader: &Arc<Reader>, objects: u32) {
        loop {
            {
                let mut inner = reader.lock();
                if !inner.is_greeted {
                    inner.is_greeted = true;
                    let hello = self.hello(reader);
                    self.push(&mut inner, hello);
                }
                // Values of objects created later are shown as updates.
                let first = *inner.objects_first.get_or_insert(objects);
                let slice_end = objects.min(inner.met.saturating_add(SLICE_OBJECTS));
                for object in inner.met..slice_end {
                    let key = self.source.key(ObjectId(object));
                    let fits = match &reader.wanted.pattern {
                        None => true,
                        Some(pattern) => self.source.matches(pattern, key.as_str()),
                    };
                    if !fits {
                        continue;
                    }
                    inner.fits.add(object);
                    if object < first && reader.wanted.current {
                        inner.marked.add(object);
                        inner.first.add(object);
                    }
                }
                inner.met = slice_end;
                if slice_end >= objects {
                    return;
                }
            }
            tokio::task::yield_now().await;
        }
    }

    fn hello(&self, reader: &Reader) -> Bytes {
        let id = self.id();
        let missed = match reader.wanted.seen {
            Some(seen) if seen.run == id.run => id.updates.saturating_sub(seen.updates).to_string(),
            _ => "null".to_owned(),
        };
        let period_ms = self.hub.period_ms;
        let text = format!(
            "event: hello\nid: {id}\ndata: {{\"version\":1,\"period_ms\":{period_ms},\"missed\":{missed}}}\n\n"
        );
        text.into()
    }

    fn id(&self) -> EventId {
        EventId {
            run: self.hub.run,
            updates: self.updates,
        }
    }

    /// Finds what has changed, and hands it to the readers.
    async fn changes(&mut self, readers: &[Arc<Reader>], objects: u32) {
        self.seen.resize(objects as usize, 0);
        let mut batch = Batch::default();
        for object in 0..objects {
            let puts = self.source.puts(ObjectId(object));
            let Some(seen) = self.seen.get_mut(object as usize) else {
                break;
            };
            let new = puts.wrapping_sub(std::mem::replace(seen, puts));
            if new > 0 {
                self.updates += u64::from(new);
                self.add(&mut batch, object, new);
            }
            if batch.values.len() >= MESSAGE_BYTES {
                self.hand_out(readers, std::mem::take(&mut batch));
            }
            if object % SLICE_OBJECTS == SLICE_OBJECTS - 1 {
                tokio::task::yield_now().await;
            }
        }
        if !batch.parts.is_empty() {
            self.hand_out(readers, batch);
        }
    }

    /// Encodes an update.
    fn add(&mut self, batch: &mut Batch, object: u32, new: u32) {
        let before = batch.values.len();
        if before > 0 {
            batch.values.push(b',');
        }
        let begin = batch.values.len();
        if self.write(&mut batch.values, object) {
            let part = begin..batch.values.len();
            batch.parts.push((object, part, new));
            batch.updates += u64::from(new);
            add(&self.hub.counters.updates_encoded, 1);
        } else {
            batch.values.truncate(before);
        }
    }

    /// Writes `"key":[value,time_ms]`; with a third element for a whole number above 2^53 in magnitude, its digits as a
    /// text. Returns `false` if the object has no value.
    fn write(&mut self, out: &mut Vec<u8>, object: u32) -> bool {
        let id = ObjectId(object);
        let Ok(got) = self.source.get(id, &mut self.buffer) else {
            return false;
        };
        let key = self.source.key(id);
        if serde_json::to_writer(&mut *out, key.as_str()).is_err() {
            return false;
        }
        out.extend_from_slice(b":[");
        let digits = write_value(out, self.buffer.get(..got.value_bytes).unwrap_or_default());
        out.push(b',');
        serde_json::to_writer(&mut *out, &got.time.ms()).ok();
        if let Some(digits) = digits {
            out.extend_from_slice(format!(",\"{digits}\"").as_bytes());
        }
        out.push(b']');
        true
    }

    /// Builds the message around some values.
    fn message(&self, replaced: u64, values: &[u8]) -> Bytes {
        let mut out = Vec::with_capacity(values.len() + 128);
        let mut head = String::new();
        let (id, now_ms) = (self.id(), self.source.wall_ms());
        // Writing to a string does not fail.
        let _ = write!(
            head,
            "event: values\nid: {id}\ndata: {{\"now_ms\":{now_ms},\"replaced\":{replaced},\"values\":{{"
        );
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(values);
        out.extend_from_slice(b"}}\n\n");
        out.into()
    }

    fn hand_out(&self, readers: &[Arc<Reader>], batch: Batch) {
        let replaced = batch.updates - batch.parts.len() as u64;
        let whole = self.message(replaced, &batch.values);
        for reader in readers {
            let mut inner = reader.lock();
            if reader.wanted.pattern.is_none() {
                // A reader that has yet to catch up gets these values then.
                if inner.marked.is_empty() && reader.has_room(&inner, whole.len()) {
                    self.push(&mut inner, whole.clone());
                } else {
                    self.miss(&mut inner, &batch, |_| true);
                }
                continue;
            }
            let mut values = Vec::new();
            let mut replaced: u64 = 0;
            for (object, part, new) in &batch.parts {
                if inner.fits.has(*object) {
                    if !values.is_empty() {
                        values.push(b',');
                    }
                    let part = batch.values.get(part.clone()).unwrap_or_default();
                    values.extend_from_slice(part);
                    replaced += u64::from(*new) - 1;
                }
            }
            if values.is_empty() {
                continue;
            }
            if inner.marked.is_empty() && reader.has_room(&inner, values.len() + 128) {
                let message = self.message(replaced, &values);
                self.push(&mut inner, message);
            } else {
                let Inner { fits, .. } = &mut *inner;
                let fits = std::mem::take(fits);
                self.miss(&mut inner, &batch, |object| fits.has(object));
                inner.fits = fits;
            }
        }
    }

    /// Records the updates that a reader does not get now. If a key is already marked, the previous update is replaced
    /// unseen.
    fn miss(&self, inner: &mut Inner, batch: &Batch, fits: impl Fn(u32) -> bool) {
        let mut missed: u64 = 0;
        for (object, _, new) in batch.parts.iter().filter(|part| fits(part.0)) {
            // A value from the beginning of the stream is no update.
            let is_replaced = inner.marked.has(*object) && !inner.first.remove(*object);
            missed += u64::from(new - u32::from(!is_replaced));
            inner.marked.add(*object);
        }
        inner.missed += missed;
        add(&self.hub.counters.updates_dropped, missed);
    }

    /// Gives a reader the latest values of the marked keys, as far as there is room.
    fn catch_up(&mut self, reader: &Arc<Reader>) {
        loop {
            let mut inner = reader.lock();
            if inner.marked.is_empty() {
                return;
            }
            if !reader.is_taking(&inner) {
                return;
            }
            let mut values = Vec::new();
            let mut sent: u64 = 0;
            let bytes_max = MESSAGE_BYTES.min(reader.piece_bytes());
            while values.len() < bytes_max {
                let Some(object) = inner.marked.take() else {
                    break;
                };
                inner.first.remove(object);
                let before = values.len();
                if before > 0 {
                    values.push(b',');
                }
                if self.write(&mut values, object) {
                    sent += 1;
                } else {
                    values.truncate(before);
                }
            }
            let missed = std::mem::take(&mut inner.missed);
            if missed > 0 {
                let text = format!("event: missed\ndata: {{\"updates\":{missed}}}\n\n");
                self.push(&mut inner, text.into());
            }
            if sent > 0 {
                let message = self.message(0, &values);
                self.push(&mut inner, message);
            }
        }
    }

    /// Sends the node's status, encoded once for all readers that want it. A reader without room for it gets the next
    /// one.
    async fn status(&self, readers: &[Arc<Reader>], asker: &Asker) {
        let Some(status) = asker.status().await else {
            return;
        };
        let mut out = Vec::with_capacity(status.bytes.len() + 32);
        out.extend_from_slice(b"event: status\ndata: ");
        out.extend_from_slice(&status.bytes);
        out.extend_from_slice(b"\n\n");
        let message = Bytes::from(out);
        for reader in readers.iter().filter(|reader| reader.wanted.status) {
            let mut inner = reader.lock();
            if reader.has_room(&inner, message.len()) {
                self.push(&mut inner, message.clone());
            }
        }
    }

    fn sign_of_life(&self, reader: &Arc<Reader>) {
        let mut inner = reader.lock();
        inner.quiet_ticks += 1;
        let is_quiet = inner.quiet_ticks.saturating_mul(self.hub.period_ms) >= QUIET_MS_MAX;
        if is_quiet && reader.has_room(&inner, SIGN_OF_LIFE.len()) {
            self.push(&mut inner, Bytes::from_static(SIGN_OF_LIFE));
        }
    }

    fn push(&self, inner: &mut Inner, message: Bytes) {
        add(&self.hub.counters.stream_messages, 1);
        add(&self.hub.counters.stream_bytes, message.len() as u64);
        inner.push(message);
    }
}

#[cfg(test)]
#[path = "hub_tests.rs"]
mod tests;
