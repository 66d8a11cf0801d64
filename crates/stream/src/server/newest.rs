//! Selects the version for a device that requests the newest one, and logs if that is not the newest one in the store.

use super::State;
use crate::store::{Newest, Passed};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

/// What was logged last: the versions that are skipped, and the version that is served.
#[derive(Default)]
pub(super) struct Said(Mutex<(Vec<Passed>, u64)>);

impl Said {
    /// Returns the line to log now; `None` if nothing has changed.
    fn news(&self, store: &Path, served: u64, passed: &[Passed]) -> Option<String> {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if said.0 == passed && (said.1 == served || passed.is_empty()) {
            return None;
        }
        *said = (passed.to_vec(), served);
        let Some(newest) = passed.first() else {
            return Some(format!(
                "the newest version is sound again: version {served} is served"
            ));
        };
        let others = match passed.len() {
            1 => String::new(),
            count => format!(", and {} more between", count - 1),
        };
        Some(format!(
            "version {} cannot be served{others}: {}; version {served} is served instead, which devices refuse that \
             have had a newer one; `keel stream check {}` says what to do",
            newest.version,
            newest.text,
            store.display()
        ))
    }
}

impl State {
    /// Returns the newest version that can be served. Counts newer, damaged versions and logs each change once.
    pub(super) fn newest(&self) -> Newest {
        let newest = self.store.newest_sound();
        let count = newest.passed.len() as u64;
        if let Ok(published) = &newest.sound {
            let store = &self.settings.store;
            if let Some(line) = self
                .newest_said
                .news(store, published.version, &newest.passed)
            {
                self.say(&line);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_passed_over_is_said_when_it_changes() {
        let said = Said::default();
        let store = Path::new("/s");
        let passed = |version: u64| Passed {
            version,
            text: format!("/s/manifests/{version}: damaged: it is too short"),
        };
        assert_eq!(said.news(store, 3, &[]), None);
        assert_eq!(
            said.news(store, 2, &[passed(3)]).unwrap(),
            "version 3 cannot be served: /s/manifests/3: damaged: it is too short; version 2 is served instead, which \
             devices refuse that have had a newer one; `keel stream check /s` says what to do"
        );
        assert_eq!(said.news(store, 2, &[passed(3)]), None);
        let line = said.news(store, 1, &[passed(3), passed(2)]).unwrap();
        assert!(line.starts_with("version 3 cannot be served, and 1 more between: "));
        assert_eq!(said.news(store, 1, &[passed(3), passed(2)]), None);
        assert_eq!(
            said.news(store, 4, &[]).unwrap(),
            "the newest version is sound again: version 4 is served"
        );
        // A newer version alone is not logged.
        assert_eq!(said.news(store, 5, &[]), None);
    }
}
