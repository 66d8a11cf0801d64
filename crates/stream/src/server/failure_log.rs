//! Reports problems of the store without flooding the log: devices request the same damaged block again and again.

use crate::provide::ProvideError;
use crate::store::StoreError;
use crate::sync::locked;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The maximum number of files that are tracked separately. Problems of all further files are reported as one.
const FILES_MAX: usize = 64;

/// The time for which the same file is not reported again.
const QUIET_MS: u64 = 60_000;

/// Why blocks cannot be sent.
#[derive(Debug)]
pub(super) struct StoreFailure {
    /// The file of the store; `None` if it is no particular one.
    file: Option<PathBuf>,
    text: String,
    is_damage: bool,
}

impl From<StoreError> for StoreFailure {
    fn from(error: StoreError) -> Self {
        let text = error.to_string();
        let is_damage = matches!(error, StoreError::Damaged { .. });
        let file = match error {
            StoreError::Damaged { path, .. } | StoreError::System { path, .. } => Some(path),
            _ => None,
        };
        Self {
            file,
            text,
            is_damage,
        }
    }
}

impl From<ProvideError> for StoreFailure {
    fn from(error: ProvideError) -> Self {
        match error {
            ProvideError::Store(error) => error.into(),
            other => other.to_string().into(),
        }
    }
}

impl From<String> for StoreFailure {
    fn from(text: String) -> Self {
        Self {
            file: None,
            text,
            is_damage: false,
        }
    }
}

impl From<&str> for StoreFailure {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

/// The last report about a file.
struct Said {
    at_ms: u64,
    /// The number of reports suppressed since.
    unsaid: u64,
}

/// The last reports, by file.
#[derive(Default)]
pub(super) struct FailureLog(Mutex<HashMap<Option<PathBuf>, Said>>);

impl FailureLog {
    /// Returns the line to log now; `None` while the file is in its quiet time.
    pub(super) fn line(&self, store: &Path, failure: &StoreFailure, now_ms: u64) -> Option<String> {
        let mut said = locked(&self.0);
        let is_full = said.len() >= FILES_MAX && !said.contains_key(&failure.file);
        let file = failure.file.clone().filter(|_| !is_full);
        if let Some(said) = said.get_mut(&file) {
            said.unsaid += 1;
            return None;
        }
        let unsaid = 0;
        let at_ms = now_ms;
        said.insert(file, Said { at_ms, unsaid });
        let text = &failure.text;
        Some(match failure.is_damage {
            true => format!(
                "{text}; see all damage with `keel stream check {}`",
                store.display()
            ),
            false => text.clone(),
        })
    }

    /// Ends quiet times that are over. Returns lines about files with suppressed reports.
    pub(super) fn tick(&self, now_ms: u64) -> Vec<String> {
        let mut said = locked(&self.0);
        let over = said.extract_if(|_, said| now_ms.saturating_sub(said.at_ms) >= QUIET_MS);
        over.filter(|(_, said)| said.unsaid > 0)
            .map(|(file, said)| {
                let file = file
                    .as_deref()
                    .map_or("the store".into(), Path::to_string_lossy);
                format!("{file}: {} times more within a minute", said.unsaid)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_file_is_logged_once_in_a_minute_and_counted() {
        let log = FailureLog::default();
        let store = Path::new("/s");
        let damage = |file: u32, at: u32| -> StoreFailure {
            let path = PathBuf::from(format!("/s/packs/{file}.pack"));
            StoreError::damaged(&path, format!("the segment at {at}")).into()
        };
        let line = log.line(store, &damage(1, 8), 5).unwrap();
        assert_eq!(
            line,
            "/s/packs/1.pack: damaged: the segment at 8; see all damage with `keel stream check /s`"
        );
        for at in 0..1000 {
            assert_eq!(log.line(store, &damage(1, at), 6), None);
        }
        assert!(log.line(store, &damage(2, 8), 6).is_some());
        assert!(log.tick(5 + QUIET_MS - 1).is_empty());
        let told = log.tick(5 + QUIET_MS);
        assert_eq!(told, ["/s/packs/1.pack: 1000 times more within a minute"]);
        assert!(log.line(store, &damage(1, 8), 5 + QUIET_MS).is_some());
        // Even with many damaged files, lines and memory stay bounded.
        let mut lines = 0;
        for file in 0..10_000 {
            lines += usize::from(log.line(store, &damage(file, 8), 6 + QUIET_MS).is_some());
        }
        assert!(lines <= FILES_MAX + 1, "{lines}");
        assert!(log.0.lock().unwrap().len() <= FILES_MAX + 1);
    }
}
