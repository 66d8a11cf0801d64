//! A mount in a group with less memory than the size of its program.

use crate::common::TempDir;
use crate::stream_common::{
    Mount, Server, cannot_mount, is_whole, longer, publish, runs_well, tree_of, wait_learned,
};
use std::path::{Path, PathBuf};

/// Memory of the group in MiB, unless `KEEL_STREAM_MEMORY_MEBIBYTES` is set; the program's table is 50 % larger.
const MEBIBYTES: u64 = 32;

/// A control group with a memory limit, in either version of the kernel's interface.
struct Group {
    folder: PathBuf,
    is_unified: bool,
}

impl Group {
    fn with(bytes: u64) -> std::io::Result<Self> {
        let first = Path::new("/sys/fs/cgroup/memory");
        let is_unified = !first.is_dir();
        let parent = if is_unified {
            let parent = Path::new("/sys/fs/cgroup");
            std::fs::write(parent.join("cgroup.subtree_control"), "+memory")?;
            parent
        } else {
            first
        };
        let folder = parent.join(format!("keel-test-{}", std::process::id()));
        std::fs::create_dir(&folder)?;
        let group = Self { folder, is_unified };
        let limit = ["memory.limit_in_bytes", "memory.max"][usize::from(is_unified)];
        std::fs::write(group.folder.join(limit), bytes.to_string())?;
        Ok(group)
    }

    fn take(&self, process: u32) {
        std::fs::write(self.folder.join("cgroup.procs"), process.to_string()).unwrap();
    }

    /// Returns how often its processes reached the limit.
    fn limit_met(&self) -> u64 {
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

#[test]
fn a_mount_with_less_memory_than_its_program_has_bytes_serves_it_whole() {
    if cannot_mount() {
        return;
    }
    let mebibytes = longer("KEEL_STREAM_MEMORY_MEBIBYTES", MEBIBYTES);
    let group = match Group::with(mebibytes << 20) {
        Ok(group) => group,
        Err(error) => {
            println!("skipped: no group with a limit on memory can be made: {error}");
            return;
        }
    };
    let dir = TempDir::new();
    let blocks = (mebibytes as usize) * 384;
    tree_of(&dir, blocks);
    let store = publish(&dir);
    let server = Server::start(&store, &[]);
    let all = format!("0-{}", blocks - 1);
    // The second run prefetches what the first one requested.
    for number in 0..2 {
        let mut mount = Mount::start(&dir, &format!("at{number}"), server.address, &[]);
        group.take(mount.id());
        runs_well(&dir, &mount, &[&all]);
        is_whole(&dir, &mount);
        assert_eq!(mount.count("reads_failed"), 0);
        if number == 1 {
            let pushed = mount.count("pushed");
            assert!(pushed as usize > blocks / 2, "{pushed} of {blocks}");
            assert!(group.limit_met() > 0, "the limit was never met");
        }
        assert_eq!(mount.end(libc::SIGTERM), Some(0));
        drop(mount);
        wait_learned(&store, 1);
    }
}
