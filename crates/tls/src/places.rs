//! How many handshakes run at once. A client that opens connections and says nothing must not shut others out. So a
//! handshake gives up its place to a new one: the oldest whose client has sent nothing, or else the oldest.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The places.
pub(crate) struct Places {
    max: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    /// The oldest first.
    handshakes: VecDeque<Handshake>,
    next: u64,
}

struct Handshake {
    number: u64,
    state: Arc<State>,
}

/// What a handshake and the list of all know of it.
#[derive(Default)]
struct State {
    /// Whether its client has sent anything.
    has_begun: AtomicBool,
    lost: Notify,
}

/// The place of one handshake, given up when it is dropped.
pub(crate) struct Place<'p> {
    places: &'p Places,
    number: u64,
    state: Arc<State>,
}

impl Places {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            max,
            taken: Mutex::default(),
        }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        // Every update leaves the list whole.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place, from another handshake if there is no other.
    pub(crate) fn take(&self) -> Place<'_> {
        let mut taken = self.taken();
        if taken.handshakes.len() >= self.max {
            let is_silent = |one: &Handshake| !one.state.has_begun.load(Ordering::Relaxed);
            let loser = taken.handshakes.iter().position(is_silent).unwrap_or(0);
            if let Some(loser) = taken.handshakes.remove(loser) {
                loser.state.lost.notify_one();
            }
        }
        let number = taken.next;
        taken.next += 1;
        let state = Arc::new(State::default());
        taken.handshakes.push_back(Handshake {
            number,
            state: Arc::clone(&state),
        });
        drop(taken);
        Place {
            places: self,
            number,
            state,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.taken().handshakes.len()
    }
}

impl Place<'_> {
    /// Records that the client has sent something.
    pub(crate) fn begin(&self) {
        self.state.has_begun.store(true, Ordering::Relaxed);
    }

    /// Returns when another handshake has the place.
    pub(crate) async fn lost(&self) {
        self.state.lost.notified().await;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let number = self.number;
        let mut taken = self.places.taken();
        taken.handshakes.retain(|other| other.number != number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_oldest_handshake_gives_up_its_place() {
        let places = Places::new(2);
        let (first, second) = (places.take(), places.take());
        let third = places.take();
        first.lost().await;
        assert_eq!(places.count(), 2);
        // It has no place any more that it could give up.
        drop(first);
        assert_eq!(places.count(), 2);
        drop(third);
        assert_eq!(places.count(), 1);
        let _fourth = places.take();
        assert_eq!(places.count(), 2);
        let waits = tokio::time::timeout(std::time::Duration::from_millis(20), second.lost());
        assert!(waits.await.is_err(), "there was room");
    }

    #[tokio::test]
    async fn a_handshake_whose_client_has_sent_nothing_goes_before_an_older_one_that_has_begun() {
        let places = Places::new(2);
        let (begun, silent) = (places.take(), places.take());
        begun.begin();
        let next = places.take();
        silent.lost().await;
        next.begin();
        let _last = places.take();
        // All have begun, so the oldest goes.
        begun.lost().await;
        assert_eq!(places.count(), 2);
    }
}
