//! Processor settings that a node changed and could not restore, because it was killed or the processors were missing.
//! They are found by the file in which they are saved, independently of the current configuration. It lies beside the
//! store or the socket, under any name that ends with `.speed`. Or the last process that drove these processors noted
//! where it lies.

use super::speed;
use crate::log;
use actuator::{Lock, LockError, Saved, SavedError, SystemFiles, advice};
use config::Config;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The suffix of the file's name.
const SUFFIX: &str = "speed";

/// Retry interval.
pub(super) const RETRY: Duration = Duration::from_secs(5);

/// The most names of a folder that are checked, and the most files that are read.
const NAMES_MAX: usize = 16_384;
const FILES_MAX: usize = 64;

/// Folders above the file that are tried as the folder in which an older node was started.
const ABOVE_MAX: usize = 4;

/// Where settings are saved.
#[derive(Debug)]
pub(super) struct Places {
    /// The file of this node, as a full path.
    pub(super) saved: PathBuf,
    folders: Vec<PathBuf>,
}

impl Places {
    /// Returns the places. The file is named after the store, which no other node has: a socket may be renamed.
    pub(super) fn of(config: &Config) -> Self {
        let socket = folder(&config.node.socket);
        let image = &config.store.image;
        let beside_store = folder(image);
        // A store on a raw device has no folder of its own. Files in shared memory live as long as the settings, so
        // they are fine.
        let is_device = beside_store.starts_with("/dev") && !beside_store.starts_with("/dev/shm");
        let own = if is_device { &socket } else { &beside_store };
        let mut name = image.file_name().unwrap_or_default().to_owned();
        name.push(".");
        name.push(SUFFIX);
        let saved = own.join(name);
        let folders = if *own == socket {
            vec![socket]
        } else {
            vec![own.clone(), socket]
        };
        Self { saved, folders }
    }

    /// Returns every file that may contain settings. They are of this node, of a node with another socket or store, or
    /// of the last process that drove the processors of `root`.
    fn files(&self, root: &Path) -> Vec<PathBuf> {
        let mut found = vec![self.saved.clone()];
        for folder in &self.folders {
            let names = std::fs::read_dir(folder).into_iter().flatten();
            let names = names.take(NAMES_MAX).filter_map(Result::ok);
            found.extend(
                names
                    .map(|name| name.path())
                    .filter(|path| path.extension().is_some_and(|suffix| suffix == SUFFIX))
                    .filter(|path| Saved::looks_like_one(path)),
            );
        }
        found.extend(Lock::noted(root));
        let mut seen = HashSet::new();
        found.retain(|path| {
            let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
            let name = path.file_name();
            folder
                .zip(name)
                .is_some_and(|(folder, name)| seen.insert(folder.join(name)))
        });
        found.truncate(FILES_MAX);
        found
    }
}

/// Returns the folder of a file with links resolved, as far as it exists.
fn folder(path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let folder = whole.parent().unwrap_or(Path::new("/"));
    folder
        .canonicalize()
        .unwrap_or_else(|_| folder.to_path_buf())
}

/// A file whose settings are not restored.
#[derive(Clone, Debug, PartialEq)]
struct UnrestoredFile {
    path: PathBuf,
    why: String,
    /// Whether the current settings may differ from the original ones.
    is_unsure: bool,
}

/// All files whose settings are not restored.
#[derive(Debug)]
pub(super) struct Unrestored {
    places: Places,
    list: Vec<UnrestoredFile>,
    tried_at: Instant,
}

impl Unrestored {
    pub(super) fn new(places: Places) -> Self {
        Self {
            places,
            list: Vec::new(),
            tried_at: Instant::now(),
        }
    }

    pub(super) fn saved_path(&self) -> &Path {
        &self.places.saved
    }

    /// Returns why the current settings must not be taken for the original ones.
    pub(super) fn unsure(&self) -> Option<&str> {
        let unsure = self.list.iter().find(|file| file.is_unsure);
        unsure.map(|file| file.why.as_str())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the time until the next retry.
    pub(super) fn due_in(&self) -> Duration {
        RETRY.saturating_sub(self.tried_at.elapsed())
    }

    /// Returns one line for each file, without files that were removed meanwhile.
    pub(super) fn lines(&mut self) -> Vec<String> {
        self.list
            .retain(|file| file.path.symlink_metadata().is_ok());
        self.list.iter().map(|file| file.why.clone()).collect()
    }

    /// Restores what can be restored and logs the result once. Meanwhile nothing in this process may drive the
    /// processors of `root` or of any other machine.
    pub(super) fn restore(&mut self, root: &Path) {
        let before = std::mem::take(&mut self.list);
        let mut count = 0;
        for (group, why) in speed::remove_groups(&SystemFiles, root) {
            let why = format!(
                "{why}; move its threads to the group above (their numbers into tasks there), then remove it"
            );
            self.list.push(UnrestoredFile {
                path: group,
                why,
                is_unsure: false,
            });
        }
        for path in self.places.files(root) {
            match restore_file(&path) {
                Ok(settings) => count += settings,
                Err(file) => self.list.extend(file),
            }
        }
        for file in self.list.iter().filter(|file| !before.contains(file)) {
            log::event("warning", &file.why);
        }
        if count > 0 {
            log::event(
                "speed",
                format!("{count} settings of the processors that a node had changed were put back"),
            );
        }
        self.tried_at = Instant::now();
    }
}

/// Returns how many settings were restored. The error says why not; it is `None` if the process that saved them is
/// running.
fn restore_file(path: &Path) -> Result<usize, Option<UnrestoredFile>> {
    let unrestored = |why: String, is_unsure| {
        Some(UnrestoredFile {
            path: path.to_owned(),
            why,
            is_unsure,
        })
    };
    let failed = |error: SavedError| unrestored(error.to_string(), true);
    let above = path.ancestors().skip(1).take(ABOVE_MAX);
    let bases: Vec<_> = std::env::current_dir()
        .into_iter()
        .chain(above.map(Path::to_path_buf))
        .collect();
    let Some(saved) = Saved::load(path, &bases).map_err(failed)? else {
        return Ok(0);
    };
    let root = saved.root().to_owned();
    if root.canonicalize().is_ok_and(|now| now != root) {
        let why = format!("{} is a link now, which is not followed", root.display());
        return Err(unrestored(advice(path, &saved.unset(&why)), true));
    }
    // If the lock fails for any reason other than a holder, restore without it.
    let _lock = match Lock::take(&root, path) {
        Err(LockError::Held {
            process,
            saved: theirs,
            ..
        }) => {
            let is_theirs = theirs.iter().any(|their| their == path);
            if is_theirs || process == Some(std::process::id()) {
                return Err(None);
            }
            let setter = process.map_or("another process".to_owned(), |process| {
                format!("process {process}")
            });
            let why = format!("{setter} sets the speed of these processors now");
            return Err(unrestored(advice(path, &saved.unset(&why)), true));
        }
        Ok(lock) => Some(lock),
        Err(LockError::File { .. }) => None,
    };
    if saved.is_of_another_start(&SystemFiles) {
        Saved::default().keep_or_remove(path).map_err(failed)?;
        log::event(
            "speed",
            format!(
                "{}: the machine was restarted since, which reset its processors; the file is removed",
                path.display()
            ),
        );
        return Ok(0);
    }
    let unset = saved.put_back(&SystemFiles);
    let count = saved.len() - unset.len();
    let rest = saved.only(&unset);
    if (unset.is_empty() || count > 0)
        && let Err(error) = rest.keep_or_remove(path)
    {
        return Err(failed(error));
    }
    if unset.is_empty() {
        return Ok(count);
    }
    let is_unsure = unset.iter().any(|unset| !unset.is_gone);
    Err(unrestored(advice(path, &unset), is_unsure))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_golden_files_are_read_and_the_newer_one_is_written_so() {
        let third = include_bytes!("../../tests/golden/qos-settings-3");
        let second = include_bytes!("../../tests/golden/qos-settings-2");
        let first = include_bytes!("../../tests/golden/qos-settings-1");
        let saved = Saved::parse(third, &[]).unwrap();
        assert_eq!(saved.text().unwrap().as_bytes(), third);
        assert_eq!(saved.root(), Path::new("/host"));
        assert_eq!(saved.len(), 4);
        let saved = Saved::parse(second, &[]).unwrap();
        assert_eq!(saved.len(), 4);
        assert_eq!(Saved::parse(first, &[]), Ok(saved));
    }

    #[test]
    fn settings_are_saved_beside_the_store_with_any_socket_name() {
        let places = |text: &str| {
            let config = Config::parse(text, "test", Path::new("/nowhere")).unwrap();
            Places::of(&config)
        };
        for socket in ["a.sock", "elsewhere/b.sock"] {
            let text = format!("[node]\nsocket = \"{socket}\"\n[store]\nimage = \"data/s.img\"\n");
            let found = places(&text);
            assert_eq!(found.saved, Path::new("/nowhere/data/s.img.speed"));
            assert_eq!(found.folders.len(), 2);
        }
        let text = "[node]\nsocket = \"run/a.sock\"\n[store]\nimage = \"/dev/mmcblk0p3\"\n";
        let saved = places(text).saved;
        assert_eq!(saved, Path::new("/nowhere/run/mmcblk0p3.speed"));
    }
}
