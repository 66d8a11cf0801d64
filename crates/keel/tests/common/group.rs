//! A control group with a memory limit, in either version of the kernel's interface.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A group, until it is dropped; its processes must have ended by then.
pub struct Group {
    folder: PathBuf,
    is_unified: bool,
}

impl Group {
    /// Makes a group; prints the reason if that is not possible here.
    pub fn with(bytes: u64) -> Option<Self> {
        let group = Self::make(bytes);
        if let Err(error) = &group {
            println!("skipped: no group with a limit on memory can be made: {error}");
        }
        group.ok()
    }

    fn make(bytes: u64) -> std::io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let first = Path::new("/sys/fs/cgroup/memory");
        let is_unified = !first.is_dir();
        let parent = if is_unified {
            let parent = Path::new("/sys/fs/cgroup");
            std::fs::write(parent.join("cgroup.subtree_control"), "+memory")?;
            parent
        } else {
            first
        };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = parent.join(format!("keel-test-{}-{number}", std::process::id()));
        std::fs::create_dir(&folder)?;
        let group = Self { folder, is_unified };
        let limit = ["memory.limit_in_bytes", "memory.max"][usize::from(is_unified)];
        std::fs::write(group.folder.join(limit), bytes.to_string())?;
        Ok(group)
    }

    pub fn take(&self, process: u32) {
        std::fs::write(self.folder.join("cgroup.procs"), process.to_string()).unwrap();
    }

    /// Returns how often its processes reached the limit.
    pub fn limit_met(&self) -> u64 {
        let name = ["memory.failcnt", "memory.events"][usize::from(self.is_unified)];
        let text = std::fs::read_to_string(self.folder.join(name)).unwrap();
        let count = text.lines().find_map(|line| {
            line.strip_prefix("max ")
                .or(line.parse::<u64>().ok().map(|_| line))
        });
        count.unwrap().trim().parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that has just ended is still in the group for a moment.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        eprintln!("{} is left", self.folder.display());
    }
}
