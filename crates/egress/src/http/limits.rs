//! Limits of what clients use at the same time: requests per second, streams, and queries of history.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::options::{HISTORY_READS_MAX, HISTORY_WAITING_MAX};

/// Rate limit of requests: a token bucket that refills steadily and holds the requests of one second.
pub(crate) struct Pace {
    per_second: f64,
    state: Mutex<(f64, Instant)>,
}

impl Pace {
    pub(crate) fn new(per_second: u32, now: Instant) -> Self {
        let per_second = f64::from(per_second);
        Self {
            per_second,
            state: Mutex::new((per_second, now)),
        }
    }

    pub(super) fn admit(&self, now: Instant) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, since) = *state;
        let passed: Duration = now.duration_since(since);
        let left = (left + passed.as_secs_f64() * self.per_second).min(self.per_second);
        let is_admitted = left >= 1.0;
        *state = (if is_admitted { left - 1.0 } else { left }, now);
        is_admitted
    }
}

/// Limits how many queries read history, and how many wait.
pub(crate) struct HistoryPermits {
    pub(super) reads: Arc<Semaphore>,
    pub(super) waiting: Arc<Semaphore>,
}

impl Default for HistoryPermits {
    fn default() -> Self {
        Self {
            reads: Arc::new(Semaphore::new(HISTORY_READS_MAX)),
            waiting: Arc::new(Semaphore::new(HISTORY_WAITING_MAX)),
        }
    }
}

impl HistoryPermits {
    /// Reserves a place among the queries that read or wait.
    pub(super) fn place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.waiting).try_acquire_owned().ok()
    }
}

/// Number of streams of each client address.
#[derive(Debug, Default)]
pub(crate) struct Places(Mutex<HashMap<IpAddr, u32>>);

impl Places {
    pub(super) fn take(
        self: &Arc<Self>,
        client: IpAddr,
        all_max: u32,
        each_max: u32,
    ) -> Option<Place> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: u32 = counts.values().sum();
        let count = counts.entry(client).or_default();
        if all >= all_max || *count >= each_max {
            if *count == 0 {
                counts.remove(&client);
            }
            return None;
        }
        *count += 1;
        Some(Place {
            places: Arc::clone(self),
            client,
        })
    }
}

/// A place for one stream, released when it is dropped.
pub(super) struct Place {
    places: Arc<Places>,
    client: IpAddr,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.places.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_limited_in_all_and_for_each_address() {
        let places = Arc::new(Places::default());
        let [one, other]: [IpAddr; 2] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
        let take = |client| places.take(client, 3, 2);
        let (first, _second) = (take(one).unwrap(), take(one).unwrap());
        assert!(take(one).is_none());
        let _third = take(other).unwrap();
        assert!(take(other).is_none());
        drop(first);
        assert!(take(other).is_some());
        assert!(take(one).is_some());
    }

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn requests_of_one_second_pass_at_once_and_then_as_many_as_a_second_has() {
        let pace = Pace::new(10, Instant::now());
        let admitted = |count: u32| (0..count).filter(|_| pace.admit(Instant::now())).count();
        assert_eq!(admitted(20), 10);
        tokio::time::advance(Duration::from_millis(500)).await;
        assert_eq!(admitted(20), 5);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(admitted(20), 10);
    }
}
