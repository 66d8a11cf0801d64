//! What the death of a machine may leave of a region whose memory keeps its content, and what becomes of it.
//!
//! **Holds:** a record of stores, write-backs and fences; a model of memory that says of each word what may stand there
//! at any moment; the states that follow from it, each brought into a real region, on which the real recovery runs.
//!
//! **The model:** a store of a word of 8 bytes is whole or not there. It may reach memory at once or never, whatever
//! becomes of others, also those of its own line, but for one thing: of several stores of a word, the later ones do not
//! come without the earlier ones. It has reached memory for certain when its line was written back after it and a fence
//! came after that, or when it went past the cache and a fence came after it; each call is made by another processor,
//! whose fences wait for nothing of the one before. Which pages a file has changes in the
//! order of the calls; for certain only when the file was synchronised.
//!
//! **Files:** `states.rs` the model, `tests.rs` the calls and what must hold, `scene.rs` the region that they are made
//! on and the one in which the states are looked at.

mod scene;
mod states;
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Something that was done to a region's memory.
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
    /// Nothing behind it comes before it.
    Fence,
    /// Memory was taken for pages; it is all zeros.
    Take { at: u64, pages: u64 },
    /// Memory of pages was given back.
    GiveBack { at: u64, pages: u64 },
    /// Which pages there are is durable.
    PagesSynced,
}

/// Writes down what is done to a region's memory, while it is wanted.
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

    /// What was done since the last call.
    fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.events.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
