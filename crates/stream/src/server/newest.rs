//! What to log when the served version is not the newest one in the store.

use crate::store::Passed;
use crate::sync::locked;
use std::path::Path;
use std::sync::Mutex;

/// What was logged last: the versions that are skipped, and the version that is served.
#[derive(Default)]
pub(super) struct Said(Mutex<(Vec<Passed>, u64)>);

impl Said {
    /// Returns the line to log now; `None` if nothing has changed.
    pub(super) fn news(&self, store: &Path, served: u64, passed: &[Passed]) -> Option<String> {
        let mut said = locked(&self.0);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skipped_version_is_logged_once_for_each_change() {
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
