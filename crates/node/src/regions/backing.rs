//! The kind of memory of a region at a path, existing or not, and how much of it there is.

use command::error::CliError;
use command::progress::bytes_text;
use mem::{Backing, PAGE_BYTES};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The file systems that this process sees, one per line.
const TABLE: &str = "/proc/self/mountinfo";

const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// The properties of a folder's file system that matter for regions.
pub struct Ground {
    pub(super) backing: Backing,
    /// For tmpfs: the mount option for huge pages, such as `always`; `None` if not set.
    huge: Option<String>,
    /// Its mount point.
    point: PathBuf,
    free_bytes: u64,
    block_bytes: u64,
    /// Whether it reports a size of zero, like file systems without users' files: /proc, /sys.
    counts_nothing: bool,
}

impl Ground {
    /// Returns the file system of a file at `path`, existing or not.
    ///
    /// # Errors
    /// The folder of the file does not exist, or the error of the system.
    pub fn of(path: &Path) -> Result<Self, CliError> {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let failed = |error: std::io::Error| CliError::io(folder.display(), &error);
        let device = std::fs::metadata(folder).map_err(failed)?.dev();
        let found = statfs(folder).map_err(failed)?;
        let (point, huge) = mount_of(device).unwrap_or_default();
        Ok(Self {
            // The field is signed on some systems, unsigned on others, and has 32 bits on a few; the numbers have 32
            // bits.
            backing: match found.f_type as u64 & 0xffff_ffff {
                HUGETLBFS_MAGIC => Backing::HugePages,
                TMPFS_MAGIC => Backing::SharedMemory,
                _ => Backing::File,
            },
            huge,
            point,
            // hugetlbfs reports zero blocks if its mount sets no limit.
            free_bytes: match found.f_blocks {
                0 => u64::MAX,
                _ => found.f_bavail.saturating_mul(found.f_bsize as u64),
            },
            block_bytes: found.f_bsize as u64,
            counts_nothing: found.f_blocks == 0,
        })
    }

    /// Returns its mount point.
    pub(super) fn point(&self) -> &Path {
        &self.point
    }

    /// Returns whether it may be a file system in which the kernel shows its own objects.
    pub(super) fn is_of_the_kernel(&self) -> bool {
        self.counts_nothing && self.backing == Backing::File
    }

    /// Returns its name in `--json`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self.backing {
            Backing::HugePages => "hugetlbfs",
            Backing::SharedMemory => "tmpfs",
            Backing::File => "file",
        }
    }

    /// Returns whether its pages are, or may be, huge ones.
    #[must_use]
    pub fn has_huge_pages(&self) -> bool {
        match self.backing {
            Backing::HugePages => true,
            Backing::SharedMemory => matches!(self.huge.as_deref(), Some("always" | "within_size")),
            Backing::File => false,
        }
    }

    /// Returns a short description.
    #[must_use]
    pub fn short(&self) -> String {
        match self.backing {
            Backing::HugePages => "huge pages (hugetlbfs)".to_owned(),
            Backing::SharedMemory if self.has_huge_pages() => "tmpfs with huge pages".to_owned(),
            Backing::SharedMemory => "tmpfs with pages of 4 KiB".to_owned(),
            Backing::File => format!("a file on {}", self.point.display()),
        }
    }

    /// Returns a description and its consequence.
    #[must_use]
    pub fn meaning(&self) -> String {
        let point = self.point.display();
        match self.backing {
            Backing::HugePages => {
                "huge pages of 2 MiB (hugetlbfs), the fastest; never swapped, gone at the next boot"
                    .to_owned()
            }
            Backing::SharedMemory if self.has_huge_pages() => {
                "tmpfs with huge pages where the kernel finds some; gone at the next boot"
                    .to_owned()
            }
            Backing::SharedMemory => format!(
                "tmpfs with pages of 4 KiB; faster after `mount -o remount,huge=always {point}` or on hugetlbfs; gone \
                 at the next boot"
            ),
            Backing::File => format!(
                "a file on {point}: the kernel writes it back to the disk below when it likes, so it is slower and a \
                 power cut may leave any mixture"
            ),
        }
    }

    /// Checks that `bytes` of memory are available there. `smaller` says how to request less.
    ///
    /// # Errors
    /// There is less memory; the reason and the remedy.
    pub fn require(&self, region: &Path, bytes: u64, smaller: &str) -> Result<(), CliError> {
        let shown = region.display();
        if self.backing == Backing::HugePages {
            return self.require_huge_pages(region, bytes, smaller);
        }
        if self.free_bytes >= bytes {
            return Ok(());
        }
        let (free, wanted) = (bytes_text(self.free_bytes), bytes_text(bytes));
        let point = self.point.display();
        let wrong = format!("{wanted} are more than the {free} that {point} has free");
        Err(CliError::failure(
            shown,
            wrong,
            match self.backing {
                Backing::SharedMemory => format!(
                    "{smaller}, or let it have more memory: `mount -o remount,size=… {point}`"
                ),
                _ => format!("{smaller}, or free some space"),
            },
        ))
    }

    fn require_huge_pages(&self, region: &Path, bytes: u64, smaller: &str) -> Result<(), CliError> {
        let shown = region.display();
        if self.block_bytes != PAGE_BYTES {
            return Err(CliError::failure(
                shown,
                format!(
                    "the huge pages there have {}, a region needs those of {}",
                    bytes_text(self.block_bytes),
                    bytes_text(PAGE_BYTES)
                ),
                "use a folder with them: `mount -t hugetlbfs -o pagesize=2M none DIR`",
            ));
        }
        let wanted = bytes / PAGE_BYTES;
        // Checks the pages of the machine; the mount may have its own limit, which `free_bytes` contains.
        let pages = huge_pages();
        let free = pages.free.saturating_sub(pages.reserved);
        if free < wanted {
            return Err(CliError::failure(
                shown,
                format!(
                    "not enough huge pages: {wanted} are needed, {free} of {} are free, {} missing",
                    pages.total,
                    wanted - free
                ),
                format!(
                    "`sysctl vm.nr_hugepages={}`, or {smaller}",
                    pages.total + wanted - free
                ),
            ));
        }
        if self.free_bytes < bytes {
            let point = self.point.display();
            return Err(CliError::failure(
                shown,
                format!(
                    "the mount {point} lets only {} more be used",
                    bytes_text(self.free_bytes)
                ),
                format!("{smaller}, or mount it with more: `mount -o remount,size=… {point}`"),
            ));
        }
        Ok(())
    }
}

/// Huge pages of the default size.
struct HugePages {
    total: u64,
    free: u64,
    reserved: u64,
}

fn huge_pages() -> HugePages {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let number = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.trim_start_matches(':').trim().parse().ok())
            .unwrap_or(0)
    };
    HugePages {
        total: number("HugePages_Total"),
        free: number("HugePages_Free"),
        reserved: number("HugePages_Rsvd"),
    }
}

fn statfs(folder: &Path) -> std::io::Result<libc::statfs64> {
    let path = CString::new(folder.as_os_str().as_bytes())?;
    // SAFETY: all zeros are a valid value of this plain structure.
    let mut found: libc::statfs64 = unsafe { std::mem::zeroed() };
    // SAFETY: a C string and a structure that live as long as the call.
    if unsafe { libc::statfs64(path.as_ptr(), &raw mut found) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(found)
}

/// Returns the mount point of a device, and its option for huge pages.
fn mount_of(device: u64) -> Option<(PathBuf, Option<String>)> {
    let table = std::fs::read_to_string(TABLE).ok()?;
    let number = format!("{}:{}", libc::major(device), libc::minor(device));
    let mut found = None;
    for line in table.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        if fields.get(2) != Some(&number.as_str()) {
            continue;
        }
        let options = fields.last().copied().unwrap_or_default();
        let huge = options
            .split(',')
            .find_map(|option| option.strip_prefix("huge="));
        // Of several mounts, prefer the one of the whole file system.
        if found.is_none() || fields.get(3) == Some(&"/") {
            found = Some((
                PathBuf::from(fields.get(4).copied().unwrap_or_default()),
                huge.map(str::to_owned),
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ground(backing: Backing, free_bytes: u64, block_bytes: u64) -> Ground {
        Ground {
            backing,
            huge: None,
            point: "/there".into(),
            free_bytes,
            block_bytes,
            counts_nothing: false,
        }
    }

    #[test]
    fn missing_memory_is_named_with_its_remedy() {
        let said = |ground: &Ground, bytes| {
            let error = ground
                .require(Path::new("r"), bytes, "choose less")
                .unwrap_err();
            error.to_string()
        };
        let pages = huge_pages();
        let free = pages.free.saturating_sub(pages.reserved);
        let text = said(
            &ground(Backing::HugePages, u64::MAX, PAGE_BYTES),
            (free + 3) * PAGE_BYTES,
        );
        let remedy = format!("vm.nr_hugepages={}`", pages.total + 3);
        assert!(text.contains(&remedy), "{text}");
        assert!(text.contains(", 3 missing"), "{text}");
        let text = said(&ground(Backing::HugePages, u64::MAX, 1 << 30), 1 << 30);
        assert!(text.contains("1.0 GiB"), "{text}");
        let text = said(&ground(Backing::SharedMemory, 1 << 20, 4096), 16 << 20);
        assert!(
            text.contains("remount,size=") && text.contains("1.0 MiB"),
            "{text}"
        );
        let text = said(&ground(Backing::File, 0, 4096), 16 << 20);
        assert!(text.ends_with("choose less, or free some space"), "{text}");
        let enough = ground(Backing::File, 16 << 20, 4096).require(Path::new("r"), 16 << 20, "");
        assert!(enough.is_ok());
    }

    #[test]
    fn a_folder_is_known_by_its_file_system() {
        let ground = Ground::of(Path::new("/proc/region")).unwrap();
        assert_eq!(ground.backing, Backing::File);
        assert_eq!(ground.point(), Path::new("/proc"));
        assert!(ground.is_of_the_kernel());
        let here = Ground::of(&std::env::temp_dir().join("region")).unwrap();
        assert!(!here.is_of_the_kernel());
        assert!(Ground::of(Path::new("/nosuch/region")).is_err());
    }
}
