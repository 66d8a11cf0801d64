//! Tests of what a crash of the machine may leave of a region whose memory keeps its content, and of the recovery.
//!
//! **Holds:** a record of stores, write-backs and fences; a model of memory that gives the possible values of each word
//! at any moment; the states that follow from it. Each state is loaded into a real region, on which the real recovery
//! runs.
//!
//! **The model:** a store of a word of 8 bytes is atomic. It may reach memory at once or never, independent of other
//! stores, also in its own line. There is one exception: of several stores to a word, a later one does not reach memory
//! without the earlier ones. A store has certainly reached memory after a write-back of its line and a later fence, or,
//! past the cache, after a fence. Each call runs on another processor, whose fences do not wait for write-backs of the
//! previous one. The set of a file's pages changes in the order of the calls, and is certain only after the file was
//! synchronised.
//!
//! **Files:** `states.rs` the model, `tests.rs` the calls and the conditions to check, `scene.rs` the region for the
//! calls and the region in which the states are checked.

mod scene;
mod states;
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// An operation on a region's memory.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// Bytes were stored.
    Store {
        at: u64,
        bytes: Vec<u8>,
        past_cache: bool,
    },
    /// The lines of a range were written back.
    WriteBack { at: u64, bytes: u64 },
    /// Later events do not take effect before it.
    Fence,
    /// Memory was allocated for pages; it is all zeros.
    Take { at: u64, pages: u64 },
    /// Memory of pages was freed.
    GiveBack { at: u64, pages: u64 },
    /// The set of pages is durable.
    PagesSynced,
}

/// Records the operations on a region's memory, while it is on.
#[derive(Default)]
pub(crate) struct Recorder {
    is_on: AtomicBool,
    events: Mutex<Vec<Event>>,
}

impl Recorder {
    pub(crate) fn record(&self, event: impl FnOnce() -> Event) {
        if self.is_on.load(Ordering::Relaxed) {
            let event = event();
            let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
            events.push(event);
        }
    }

    fn start(&self) {
        self.is_on.store(true, Ordering::Relaxed);
    }

    fn stop(&self) {
        self.is_on.store(false, Ordering::Relaxed);
    }

    /// The operations since the last call.
    fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.events.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
