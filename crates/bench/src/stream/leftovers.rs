//! Removes what killed runs leave behind; the next run does this. Networks with their limits and losses, and mounts,
//! belong to processes that end with the run. Names show that the rest belongs to a process that has ended: loop
//! devices of a folder, the folder, groups.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::store::tool;

/// Prefix of the names of folders and groups; they end with the process ID.
const PREFIX: &str = "keel-bench-";

/// The program's name in the kernel.
const PROGRAM: &str = "keel-bench";

/// A file that marks a folder of this bench, so that foreign folders are left alone.
const MARK: &str = "of-stream";

/// Folders of control groups in either version of the kernel's interface; the first existing one is used.
pub(crate) const DISK_GROUPS: &str = "/sys/fs/cgroup/blkio";
pub(crate) const MEMORY_GROUPS: &str = "/sys/fs/cgroup/memory";
pub(crate) const ALL_GROUPS: &str = "/sys/fs/cgroup";

/// Suffix of the names of disk images.
pub(crate) const DISK_KIND: &str = "disk";

/// Maximum number of attempts to remove a folder, and the time in between.
const TRIES: u32 = 20;
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Marks a folder as removable once its process has ended.
///
/// # Errors
/// One line with the path.
pub(crate) fn mark(scratch: &Path) -> Result<(), String> {
    let path = scratch.join(MARK);
    fs::write(&path, b"").map_err(|error| format!("{}: {error}", path.display()))
}

/// Removes the remains of killed runs: their folders in `dir`, and all their groups. Returns the names of what was
/// removed. What cannot be removed is left for the next run.
pub(crate) fn sweep(dir: &Path) -> Vec<String> {
    let mut gone = Vec::new();
    let folders: Vec<PathBuf> = folders(dir).collect();
    gone.extend(detach_all(&folders));
    for folder in folders {
        // A program of the run may still be writing.
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
            // The kernel keeps a group that contains a process.
            if fs::remove_dir(&group).is_ok() {
                gone.push(group.display().to_string());
            }
        }
    }
    gone
}

fn folders(dir: &Path) -> impl Iterator<Item = PathBuf> {
    // An empty folder is from a run that was killed before it could mark it.
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

/// Whether this is the folder or the group of a process that is no longer such a program. This process has created
/// nothing yet: a name with its process ID is from an earlier process.
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

/// Returns a file name by which the loop device over it is recognised without its folder. The folder may be unknown
/// because it was in a mount that is gone.
pub(crate) fn named(what: &str) -> String {
    format!("{PREFIX}{what}-{}", std::process::id())
}

/// Detaches loop devices over files that lie, or lay, in these folders, and over those that are [`named`].
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
        // Process 1 is not ours; this process has not created anything yet.
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
