//! The systems under measurement, each with its files: our system over huge pages and over tmpfs, and the peers. A
//! system that the machine does not support is named and left out.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use mem::{Attachment, NewInode, ROOT_INODE, Region, RegionOptions, now_ns};

use super::memory::{HugePages, MemoryDisk, Mount};
use crate::store::tool;

/// Our system, as programs see it.
pub(crate) const KEEL: &str = "keel";
/// Our system over tmpfs, if [`KEEL`] is over huge pages.
pub(crate) const KEEL_TMPFS: &str = "keel-tmpfs";
/// The peers.
pub(crate) const TMPFS: &str = "tmpfs";
pub(crate) const TMPFS_HUGE: &str = "tmpfs-huge";
/// ext4 whose file was laid out by writes of 4 KiB: the paper's peer.
pub(crate) const EXT4_SMALL: &str = "ext4-4k-folios";
/// ext4 whose file was laid out by writes of 1 MiB.
pub(crate) const EXT4_LARGE: &str = "ext4-large-folios";
/// Both kinds of ext4, each with the bytes of the writes that lay out its files.
pub(crate) const EXT4_WRITES: [(&str, usize); 2] = [(EXT4_SMALL, 4 << 10), (EXT4_LARGE, 1 << 20)];
/// All file systems that are compared with ours.
pub(crate) const PEERS: [&str; 4] = [TMPFS, TMPFS_HUGE, EXT4_SMALL, EXT4_LARGE];

/// A bare copy from the memory of our region.
pub(crate) const MEMCPY: &str = "memcpy";
/// A bare copy from the memory of tmpfs.
pub(crate) const MEMCPY_TMPFS: &str = "memcpy-of-tmpfs";

/// The file that one thread uses.
pub(crate) const DATA: &str = "data";
/// The files that several threads use, one each.
pub(crate) const OF_THREADS: [&str; 4] = ["thread-0", "thread-1", "thread-2", "thread-3"];

/// A file of our system that shares its page with others, and its size in bytes.
pub(crate) const PACKED: (&str, u64) = ("packed", 64 << 10);

/// The library that is preloaded into programs.
const LIBRARY: &str = "libkeelmem.so";

/// Minimum bytes of a region in addition to its files.
pub(crate) const REGION_TABLES_BYTES: u64 = 64 << 20;
/// Bytes of an ext4 in addition to its files: its journal and tables.
const EXT4_TABLES_BYTES: u64 = 192 << 20;

/// Files that every system has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Files {
    pub(crate) data_bytes: u64,
    pub(crate) thread_bytes: u64,
    pub(crate) threads: usize,
}

impl Files {
    /// Names and sizes.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let bytes = self.thread_bytes;
        let of_threads = OF_THREADS.into_iter().take(self.threads);
        std::iter::once((DATA, self.data_bytes)).chain(of_threads.map(move |name| (name, bytes)))
    }

    /// The total size of all files in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.all().map(|(_, bytes)| bytes).sum()
    }

    /// Memory that all systems with these files need: both of ours, both tmpfs, and ext4 twice, each with a disk and a
    /// cache.
    pub(crate) fn memory_bytes(&self) -> u64 {
        8 * self.bytes() + 2 * (REGION_TABLES_BYTES + EXT4_TABLES_BYTES)
    }
}

/// A region of our system and the way programs access it.
pub(crate) struct Ours {
    pub(crate) attachment: Attachment,
    /// `None` if the library was not built.
    library: Option<PathBuf>,
}

/// A system with its files in place.
pub(crate) struct System {
    pub(crate) name: &'static str,
    /// The folder as the programs under measurement see it.
    folder: PathBuf,
    /// Declared before the mounts, so that nothing is mapped or open any more when they are dropped.
    pub(crate) ours: Option<Ours>,
    waits_in_caches: bool,
    _mounts: Vec<Mount>,
    _disk: Option<MemoryDisk>,
    _pages: Option<HugePages>,
}

impl System {
    /// Returns a file's path as programs under measurement see it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Whether programs can use it; our system requires the preloaded library.
    pub(crate) fn serves_programs(&self) -> bool {
        self.ours.as_ref().is_none_or(|ours| ours.library.is_some())
    }

    /// Returns a command for a program that sees this system.
    pub(crate) fn command(&self, program: &OsStr) -> Command {
        let mut command = Command::new(program);
        if let Some(ours) = &self.ours
            && let Some(library) = &ours.library
        {
            command
                .env("LD_PRELOAD", library)
                .env("KEEL_MEM_REGION", ours.attachment.region().path())
                .env("KEEL_MEM_AT", OsStr::from_bytes(ours.attachment.at()));
        }
        command
    }

    /// Writes back cached data, so that this does not disturb the next measurement.
    ///
    /// # Errors
    /// One line that names the folder.
    pub(crate) fn settle(&self) -> Result<(), String> {
        if self.waits_in_caches {
            crate::scratch::write_back(&self.folder)
        } else {
            Ok(())
        }
    }

    /// Creates our system in a new region in the folder of a mounted file system.
    fn ours(name: &'static str, mount: Mount, capacity_bytes: u64) -> Result<Self, String> {
        let path = mount.folder().join("region");
        let options = RegionOptions {
            capacity_bytes: capacity_bytes.next_multiple_of(mem::PAGE_BYTES),
            files_max: Some(64),
            lanes: 64,
        };
        let root = NewInode {
            mode: libc::S_IFDIR | 0o755,
            ..new_file()
        };
        // This path does not exist: without the library a program finds no file there.
        let at = mount.folder().join("as-seen-by-programs");
        let failed = |error: mem::Error| format!("{name}: {error}");
        drop(Region::create(&path, &options, &root).map_err(failed)?);
        let attachment =
            Attachment::open(&path, at.as_os_str().as_bytes(), true).map_err(failed)?;
        Ok(Self {
            name,
            folder: at,
            ours: Some(Ours {
                attachment,
                library: library(),
            }),
            waits_in_caches: false,
            _mounts: vec![mount],
            _disk: None,
            _pages: None,
        })
    }

    /// Creates our system over huge pages that are added to the machine for it.
    ///
    /// # Errors
    /// One line that says why there are none.
    pub(crate) fn over_huge_pages(scratch: &Path, bytes: u64) -> Result<Self, String> {
        let capacity_bytes = bytes + REGION_TABLES_BYTES;
        let pages = HugePages::add(capacity_bytes + 2 * mem::PAGE_BYTES)?;
        let mount = Mount::new("hugetlbfs", "pagesize=2M", &scratch.join("hugetlbfs"))?;
        let mut system = Self::ours(KEEL, mount, capacity_bytes)?;
        system._pages = Some(pages);
        Ok(system)
    }

    /// Creates our system over tmpfs, with huge pages if the kernel provides some.
    ///
    /// # Errors
    /// One line that names what failed.
    pub(crate) fn over_tmpfs(
        name: &'static str,
        scratch: &Path,
        bytes: u64,
    ) -> Result<Self, String> {
        let capacity_bytes = bytes + REGION_TABLES_BYTES;
        let size = capacity_bytes + (16 << 20);
        let folder = scratch.join("region-tmpfs");
        let mount = tmpfs(&folder, size, true)?;
        Self::ours(name, mount, capacity_bytes)
    }

    /// Mounts tmpfs itself as a system.
    ///
    /// # Errors
    /// One line that names what failed.
    pub(crate) fn tmpfs(scratch: &Path, bytes: u64, huge: bool) -> Result<Self, String> {
        let name = if huge { TMPFS_HUGE } else { TMPFS };
        let mount = tmpfs(&scratch.join(name), bytes + (16 << 20), huge)?;
        Ok(Self {
            name,
            folder: mount.folder().to_owned(),
            ours: None,
            waits_in_caches: false,
            _mounts: vec![mount],
            _disk: None,
            _pages: None,
        })
    }

    /// Creates an ext4 on a loop device over tmpfs.
    ///
    /// # Errors
    /// One line that names what failed.
    pub(crate) fn ext4(name: &'static str, scratch: &Path, bytes: u64) -> Result<Self, String> {
        let disk_bytes = bytes + bytes / 16 + EXT4_TABLES_BYTES;
        let disk = MemoryDisk::new(&scratch.join(format!("{name}-disk")), disk_bytes)?;
        let mut mkfs = Command::new("mkfs.ext4");
        // The kernel must have nothing left to initialise in the background during a measurement.
        let options = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        mkfs.args(["-q", "-F", "-b", "4096", "-N", "1024", "-E", options]);
        tool(mkfs.arg(disk.device()))?;
        let mount = Mount::of(disk.device(), &[], &scratch.join(name))?;
        Ok(Self {
            name,
            folder: mount.folder().to_owned(),
            ours: None,
            waits_in_caches: true,
            _mounts: vec![mount],
            _disk: Some(disk),
            _pages: None,
        })
    }

    /// Creates a file and writes all of it, `write_bytes` bytes at once.
    ///
    /// # Errors
    /// One line that names the system.
    pub(crate) fn fill(&self, name: &str, bytes: u64, write_bytes: usize) -> Result<(), String> {
        let failed = |error: String| format!("{}: {name}: {error}", self.name);
        // Each block has different bytes, so that no system benefits from equal blocks.
        let pattern: Vec<u8> = (0..write_bytes as u64 / 8)
            .flat_map(|word| (word.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes())
            .collect();
        let mut write: Box<dyn FnMut(u64) -> Result<(), String>> = match &self.ours {
            Some(ours) => {
                let writer = ours
                    .attachment
                    .writer()
                    .map_err(|e| failed(e.to_string()))?;
                let made = writer.create(ROOT_INODE, name.as_bytes(), &new_file());
                let made = made.map_err(|error| failed(error.to_string()))?;
                let pattern = &pattern;
                Box::new(move |offset| {
                    writer
                        .write(made.inode, made.generation, offset, pattern, now_ns())
                        .map_err(|error| error.to_string())
                })
            }
            None => {
                let file = File::create(self.file(name));
                let mut file = file.map_err(|error| failed(error.to_string()))?;
                let pattern = &pattern;
                Box::new(move |_| file.write_all(pattern).map_err(|error| error.to_string()))
            }
        };
        for offset in (0..bytes).step_by(write_bytes) {
            write(offset).map_err(failed)?;
            if offset.is_multiple_of(64 << 20) {
                crate::scratch::check_interrupted()?;
            }
        }
        Ok(())
    }
}

pub(crate) fn new_file() -> NewInode {
    // SAFETY: these calls only return the identity of the process.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    NewInode {
        mode: libc::S_IFREG | 0o644,
        user,
        group,
        now_ns: now_ns(),
    }
}

fn tmpfs(folder: &Path, bytes: u64, huge: bool) -> Result<Mount, String> {
    let huge = if huge { "always" } else { "never" };
    Mount::new("tmpfs", &format!("size={bytes},huge={huge}"), folder)
}

/// Returns the library for programs, in the folder of this program, if it was built.
fn library() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok()?.parent()?.join(LIBRARY);
    beside.is_file().then_some(beside)
}

/// Creates all systems that this machine supports. Lists the others as missing.
///
/// # Errors
/// One line if not even tmpfs is available, or if the user has asked to stop.
pub(crate) fn all(
    scratch: &Path,
    files: &Files,
    missing: &mut Vec<String>,
    show: &mut dyn FnMut(&str),
) -> Result<Vec<System>, String> {
    let mut systems = Vec::new();
    let bytes = files.bytes();
    let mut ours = KEEL_TMPFS;
    show("preparing keel over huge pages");
    match System::over_huge_pages(scratch, bytes) {
        Ok(system) => systems.push(system),
        Err(reason) => {
            missing.push(format!("keel over huge pages ({reason}); it is over tmpfs"));
            ours = KEEL;
        }
    }
    if library().is_none() {
        missing.push(format!(
            "keel as programs see it ({LIBRARY} is not beside this program; build it with `cargo build --release -p \
             mem-preload`)"
        ));
    }
    show("preparing keel over tmpfs");
    systems.push(System::over_tmpfs(ours, scratch, bytes)?);
    show("preparing tmpfs");
    systems.push(System::tmpfs(scratch, bytes, false)?);
    match System::tmpfs(scratch, bytes, true) {
        Ok(system) => systems.push(system),
        Err(reason) => missing.push(format!("{TMPFS_HUGE} ({reason})")),
    }
    for (name, write_bytes) in EXT4_WRITES {
        show(&format!("preparing {name}"));
        match System::ext4(name, scratch, bytes) {
            Ok(system) => {
                for (file, bytes) in files.all() {
                    system.fill(file, bytes, write_bytes)?;
                }
                system.settle()?;
                systems.push(system);
            }
            Err(reason) => missing.push(format!("{name} ({reason}; loop devices take root)")),
        }
    }
    for system in systems.iter().filter(|system| !system.waits_in_caches) {
        show(&format!("filling {}", system.name));
        for (file, bytes) in files.all() {
            system.fill(file, bytes, 1 << 20)?;
        }
        if system.ours.is_some() {
            system.fill(PACKED.0, PACKED.1, PACKED.1 as usize)?;
        }
    }
    Ok(systems)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_are_counted() {
        let files = Files {
            data_bytes: 100,
            thread_bytes: 10,
            threads: 2,
        };
        let names: Vec<_> = files.all().map(|(name, _)| name).collect();
        assert_eq!(names, [DATA, "thread-0", "thread-1"]);
        assert_eq!(files.bytes(), 120);
    }
}
