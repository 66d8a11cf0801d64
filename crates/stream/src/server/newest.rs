//! Which version a device gets that asks for the newest one, and what is said when that is not the newest one.

use super::State;
use crate::store::{Newest, Passed};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

/// What was said last: which versions are passed over, and which one is served.
#[derive(Default)]
pub(super) struct Said(Mutex<(Vec<Passed>, u64)>);

impl Said {
    /// The line to say now; None: nothing has changed.
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
    /// The newest version that can be served; what is wrong with newer ones is counted, and said once.
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
        // A folder that cannot be read says nothing of the versions in it.
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
        // A later one is no news of this kind.
        assert_eq!(said.news(store, 5, &[]), None);
    }
}
