//! What a run leaves that was killed, taken away by the next one. Networks with their limits and losses, and mounts,
//! are those of processes that end with the run; what stays is said by its name to be of a process that has ended: loop
//! devices of a folder, the folder, groups.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::groups::{ALL_GROUPS, DISK_GROUPS, MEMORY_GROUPS};
use crate::store::tool;

/// What names of folders and groups begin with; they end with the number of the process.
const PREFIX: &str = "keel-bench-";

/// The program, as the kernel knows it.
const PROGRAM: &str = "keel-bench";

/// A file in a folder of this bench, so that folders of others are left alone.
const MARK: &str = "of-stream";

/// How names of images of disks end.
pub(crate) const DISK_KIND: &str = "disk";

/// How often a folder is tried to be removed, and the time in between.
const TRIES: u32 = 20;
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Marks a folder as one that may be taken away once its process has ended.
///
/// # Errors
/// One line with the path.
pub(crate) fn mark(scratch: &Path) -> Result<(), String> {
    let path = scratch.join(MARK);
    fs::write(&path, b"").map_err(|error| format!("{}: {error}", path.display()))
}

/// Takes away what runs that were killed have left, of their folders in `dir` and everywhere of their groups; names it.
/// What cannot be taken away is left for the next one.
pub(crate) fn sweep(dir: &Path) -> Vec<String> {
    let mut gone = Vec::new();
    let folders: Vec<PathBuf> = folders(dir).collect();
    gone.extend(detach_all(&folders));
    for folder in folders {
        // A program of the run may be writing its last.
        let is_gone = (0..TRIES).any(|count| {
            std::thread::sleep(AGAIN_AFTER * u32::from(count > 0));
            fs::remove_dir_all(&folder).is_ok()
        });
        if is_gone {
            gone.push(folder.display().to_string());
        }
    }
    for parent in [DISK_GROUPS, MEMORY_GROUPS, ALL_GROUPS] {
        for group in entries(Path::new(parent)).filter(|group| is_dead(group)) {
            // The kernel keeps one that a process is in.
            if fs::remove_dir(&group).is_ok() {
                gone.push(group.display().to_string());
            }
        }
    }
    gone
}

fn folders(dir: &Path) -> impl Iterator<Item = PathBuf> {
    // An empty one is of a run that was killed before it could mark it.
    let is_ours = |folder: &PathBuf| {
        folder.join(MARK).is_file()
            || fs::read_dir(folder).is_ok_and(|mut all| all.next().is_none())
    };
    entries(dir)
        .filter(|folder| is_dead(folder))
        .filter(is_ours)
}

fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

/// Whether this is the folder or the group of a process that is no such program any more. Nothing is of this process
/// yet: what has its number is of an earlier one.
fn is_dead(path: &Path) -> bool {
    let number = path
        .file_name()
        .and_then(|name| name.to_str()?.strip_prefix(PREFIX)?.rsplit('-').next())
        .and_then(|number| number.parse::<u32>().ok());
    number.is_some_and(|number| {
        let name = fs::read_to_string(format!("/proc/{number}/comm")).unwrap_or_default();
        number == std::process::id() || name.trim_end() != PROGRAM
    })
}

/// Name of a file, so that the loop device over it is known where the folder is not: that of a mount that is gone.
pub(crate) fn named(what: &str) -> String {
    format!("{PREFIX}{what}-{}", std::process::id())
}

/// Loop devices over files that lie, or lay, in these folders, and over those that are [`named`].
fn detach_all(folders: &[PathBuf]) -> Vec<String> {
    let mut gone = Vec::new();
    for disk in entries(Path::new("/sys/block")) {
        let file = fs::read_to_string(disk.join("loop/backing_file")).unwrap_or_default();
        let file = Path::new(file.trim_end().trim_end_matches(" (deleted)"));
        let name = disk.file_name().unwrap_or_default();
        let is_left = folders.iter().any(|folder| file.starts_with(folder))
            || file.extension().is_some_and(|kind| kind == DISK_KIND)
                && is_dead(&file.with_extension(""));
        if is_left
            && tool(
                Command::new("losetup")
                    .arg("-d")
                    .arg(Path::new("/dev").join(name)),
            )
            .is_ok()
        {
            gone.push(format!("{}: {}", name.display(), file.display()));
        }
    }
    gone
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_marked_folders_of_dead_processes_go() {
        let parent =
            std::env::temp_dir().join(format!("keel-stream-leftovers-{}", std::process::id()));
        // The first process is none of ours; this one has not begun to leave anything.
        let [dead, own, other, foreign] = [
            format!("{PREFIX}1"),
            format!("{PREFIX}{}", std::process::id()),
            format!("{PREFIX}2x"),
            "keel-1".to_owned(),
        ]
        .map(|name| parent.join(name));
        for folder in [&dead, &own, &other, &foreign] {
            fs::create_dir_all(folder.join("perl")).unwrap();
            mark(folder).unwrap();
        }
        let unmarked = parent.join(format!("{PREFIX}perl-1"));
        fs::create_dir_all(unmarked.join("kept")).unwrap();
        let gone = sweep(&parent);
        assert_eq!(
            gone.iter()
                .filter(|path| path.contains("keel-stream-leftovers"))
                .count(),
            2,
            "{gone:?}"
        );
        for (folder, is_kept) in [
            (&dead, false),
            (&own, false),
            (&other, true),
            (&foreign, true),
            (&unmarked, true),
        ] {
            assert_eq!(folder.exists(), is_kept, "{}", folder.display());
        }
        fs::remove_dir_all(&parent).unwrap();
    }
}
