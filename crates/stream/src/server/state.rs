//! The state that all connections of a server share.

use super::admission::Admission;
use super::bundles::{Bundles, Improver};
use super::counters::Counters;
use super::failure_log::{FailureLog, StoreFailure};
use super::newest::Said;
use super::settings::Settings;
use super::tenant::Tenants;
use crate::provide::Provider;
use crate::store::{Newest, Store};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// State shared by all connections.
pub(super) struct State {
    pub(super) settings: Arc<Settings>,
    pub(super) store: Arc<Store>,
    pub(super) provider: Arc<Provider>,
    pub(super) bundles: Arc<Bundles>,
    pub(super) improver: Arc<Improver>,
    pub(super) tenants: Tenants,
    pub(super) admission: Admission,
    pub(super) counters: Arc<Counters>,
    pub(super) failures: FailureLog,
    pub(super) newest_said: Said,
    pub(super) started: Instant,
}

impl State {
    /// Returns the time since the start, in milliseconds.
    pub(super) fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Logs a problem of the store, at most once a minute for each file.
    pub(super) fn log_failure(&self, failure: &StoreFailure) {
        let store = &self.settings.store;
        if let Some(line) = self.failures.line(store, failure, self.now_ms()) {
            self.settings.log(&line);
        }
    }

    /// Tells the operator when the list of devices becomes unusable, or usable again.
    pub(super) async fn look_at_devices(&self) {
        let Some(identity) = &self.settings.identity else {
            return;
        };
        let devices = Arc::clone(&identity.devices);
        let news = tokio::task::spawn_blocking(move || devices.news()).await;
        if let Ok(Some(news)) = news {
            self.settings.log(&news);
        }
    }

    /// Returns the newest version that can be served. Counts newer, damaged versions and logs each change once.
    pub(super) fn newest(&self) -> Newest {
        let newest = self.store.newest_sound();
        let count = newest.passed.len() as u64;
        if let Ok(published) = &newest.sound {
            let store = &self.settings.store;
            let news = self
                .newest_said
                .news(store, published.version, &newest.passed);
            if let Some(line) = news {
                self.settings.log(&line);
            }
        }
        // If the folder cannot be read, nothing is known about the versions in it.
        if newest.sound.is_ok() || count > 0 {
            self.counters
                .versions_damaged
                .store(count, Ordering::Relaxed);
        }
        newest
    }
}
