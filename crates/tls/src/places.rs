//! How many handshakes run at once. A client that opens connections and says nothing must not shut others out. So the
//! handshake that has lasted longest gives up its place to a new one.

use std::collections::VecDeque;
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
    handshakes: VecDeque<(u64, Arc<Notify>)>,
    next: u64,
}

/// The place of one handshake, given up when it is dropped.
pub(crate) struct Place<'p> {
    places: &'p Places,
    number: u64,
    lost: Arc<Notify>,
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

    /// Takes a place, from the oldest handshake if there is no other.
    pub(crate) fn take(&self) -> Place<'_> {
        let mut taken = self.taken();
        if taken.handshakes.len() >= self.max
            && let Some((_, oldest)) = taken.handshakes.pop_front()
        {
            oldest.notify_one();
        }
        let number = taken.next;
        taken.next += 1;
        let lost = Arc::new(Notify::new());
        taken.handshakes.push_back((number, Arc::clone(&lost)));
        drop(taken);
        Place {
            places: self,
            number,
            lost,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.taken().handshakes.len()
    }
}

impl Place<'_> {
    /// Returns when another handshake has the place.
    pub(crate) async fn lost(&self) {
        self.lost.notified().await;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let number = self.number;
        let mut taken = self.places.taken();
        taken.handshakes.retain(|(other, _)| *other != number);
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
}
