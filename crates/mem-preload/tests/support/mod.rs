//! A region, a plain directory beside it, and programs that run in both.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The path at which programs see the region.
pub const AT: &str = "/keel";

/// The library of this build: cargo puts it beside the tests.
pub fn library() -> PathBuf {
    let mut folder = std::env::current_exe().expect("a path of its own");
    for _ in 0..2 {
        folder.pop();
        let found = folder.join("libkeelmem.so");
        if found.exists() {
            return found;
        }
    }
    panic!("libkeelmem.so is not in {}", folder.display());
}

/// Whether a program is installed; prints a message if not.
pub fn is_installed(program: &str) -> bool {
    let found = std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|folder| folder.join(program).exists())
    });
    if !found {
        println!("skipped: {program} is not installed");
    }
    found
}

/// A name that no other test uses.
fn new_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("keelmem-preload-{}-{number}", std::process::id())
}

/// A mounted file system of huge pages, unmounted at the end.
struct HugePages(PathBuf);

impl HugePages {
    /// `None` if this machine has too few huge pages; prints a message then.
    fn mount(capacity_bytes: u64) -> Option<Self> {
        let free = std::fs::read_to_string("/proc/meminfo")
            .unwrap_or_default()
            .lines()
            .find_map(|line| {
                line.strip_prefix("HugePages_Free:")?
                    .trim()
                    .parse::<u64>()
                    .ok()
            })
            .unwrap_or(0);
        // The region's tables need space, too.
        if free * mem::PAGE_BYTES < capacity_bytes * 2 {
            println!("skipped: {free} huge pages are free, too few for a region");
            return None;
        }
        let folder = std::env::temp_dir().join(new_name());
        std::fs::create_dir(&folder).expect("a directory");
        let mounted = Self(folder);
        let done = Command::new("mount")
            .args(["-t", "hugetlbfs", "none"])
            .arg(&mounted.0)
            .output();
        if !done.is_ok_and(|done| done.status.success()) {
            println!("skipped: hugetlbfs cannot be mounted here");
            return None;
        }
        Some(mounted)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        Command::new("umount").arg(&self.0).output().ok();
        std::fs::remove_dir(&self.0).ok();
    }
}

/// A region and a plain directory, both removed at the end.
pub struct Both {
    region: PathBuf,
    pub plain: PathBuf,
    huge_pages: Option<HugePages>,
}

impl Both {
    /// A region in memory with small pages.
    pub fn new(capacity_bytes: u64) -> Self {
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() {
            memory.to_owned()
        } else {
            std::env::temp_dir()
        };
        Self::make(&folder, capacity_bytes, None)
    }

    /// A region on huge pages; `None` if there are none.
    pub fn on_huge_pages(capacity_bytes: u64) -> Option<Self> {
        let mounted = HugePages::mount(capacity_bytes)?;
        let folder = mounted.0.clone();
        Some(Self::make(&folder, capacity_bytes, Some(mounted)))
    }

    fn make(folder: &Path, capacity_bytes: u64, huge_pages: Option<HugePages>) -> Self {
        let name = new_name();
        let region = folder.join(&name);
        let options = mem::RegionOptions {
            capacity_bytes,
            files_max: None,
            lanes: 64,
        };
        // SAFETY: they only return numbers.
        let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
        let root = mem::NewInode {
            mode: libc::S_IFDIR | 0o755,
            user,
            group,
            now_ns: mem::now_ns(),
        };
        mem::Region::create(&region, &options, &root).expect("a region");
        let plain = std::env::temp_dir().join(name);
        std::fs::create_dir(&plain).expect("a directory");
        Self {
            region,
            plain,
            huge_pages,
        }
    }

    pub fn region(&self) -> &Path {
        &self.region
    }

    /// A command that uses the region through the library.
    pub fn served(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env("LD_PRELOAD", library())
            .env("KEEL_MEM_REGION", &self.region)
            .env("KEEL_MEM_AT", AT)
            .env_remove("KEEL_MEM_HANDSHAKE");
        command
    }

    /// Runs a shell script in the region and in the plain directory. Returns the output of both, with the directory's
    /// name replaced.
    pub fn run(&self, shell: &str, script: &str) -> (String, String) {
        let here = self.plain.display().to_string();
        let served = told(prepared(self.served(shell), script, AT), AT);
        let plain = told(prepared(Command::new(shell), script, &here), &here);
        (served, plain)
    }

    /// As [`run`](Self::run), and asserts that both outputs are the same.
    pub fn compare(&self, shell: &str, script: &str) {
        let (served, plain) = self.run(shell, script);
        assert_eq!(
            served, plain,
            "served on the left, plain on the right: {script}"
        );
    }
}

fn prepared(mut command: Command, script: &str, folder: &str) -> Command {
    command
        .args(["-c", script])
        .env("HERE", folder)
        .env("HOME", folder)
        .env("LC_ALL", "C")
        .env("TZ", "UTC")
        .stdin(Stdio::null());
    command
}

/// The output of a command and its exit status.
fn told(mut command: Command, folder: &str) -> String {
    let output = command.output().expect("the command runs");
    text_of(&output, folder)
}

pub fn text_of(output: &Output, folder: &str) -> String {
    let text = format!(
        "{}\n-- errors\n{}\n-- {}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
        output.status
    );
    text.replace(folder, "HERE")
}

impl Drop for Both {
    fn drop(&mut self) {
        let mut stubs = self.region.as_os_str().to_owned();
        stubs.push(".stubs");
        std::fs::remove_file(&self.region).ok();
        std::fs::remove_dir_all(stubs).ok();
        std::fs::remove_dir_all(&self.plain).ok();
        // Drop this last: the region lies on it.
        drop(self.huge_pages.take());
    }
}
