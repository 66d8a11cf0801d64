//! What mounting through FUSE needs, for any content: whether it can be mounted here, where it is, and its removal.
//!
//! A path does not identify a mount. The mount may have been moved with the directory above it, unmounted by another
//! process, or covered by another mount. The path then leads to a mount that is not ours to touch.

use std::ffi::{CString, OsString};
use std::fs::OpenOptions;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// Where the kernel offers FUSE.
const FUSE_DEVICE: &str = "/dev/fuse";

/// Longest wait for an answer of a mount: Evenkeel's mounts answer from memory.
pub const ANSWER_TIME: Duration = Duration::from_secs(5);

/// The programs that mount and unmount for users other than root, by their names in new and old distributions.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];

/// Why something is not mounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// There is no such directory, or it cannot be opened.
    #[error("cannot be opened: {0}")]
    Directory(#[source] io::Error),
    /// It is something else than a directory.
    #[error("is not a directory")]
    NotADirectory,
    /// A mount of ours is there, from this source, and its process answers.
    #[error("{0} is mounted there already")]
    MountedAlready(String),
    /// The content of the directory would be covered.
    #[error("is not empty")]
    NotEmpty,
    /// A mount is there whose process has ended.
    #[error("is the mount of a process that has ended")]
    DeadMount,
    /// A mount is there whose process does not answer.
    #[error("is a mount that has not answered for {ANSWER_TIME:?}")]
    Silent,
    /// The kernel has no FUSE, or the module is not loaded.
    #[error("this kernel offers no FUSE: {FUSE_DEVICE} is missing")]
    NoFuse,
    /// This user may not use FUSE.
    #[error("no permission to use {FUSE_DEVICE}")]
    FuseDenied,
    /// Only root can mount without the helper.
    #[error("fusermount3 is missing, which mounts for users other than root")]
    NoHelper,
    /// The kernel or the helper refused.
    #[error("mounting failed: {0}")]
    Refused(String),
}

impl MountError {
    /// Returns what the FUSE library's error means once directory and device have been checked.
    #[must_use]
    pub fn refused(error: &io::Error) -> Self {
        match error.kind() {
            // The directory and the device are there, so the helper is missing. Root needs it only if the kernel has
            // refused already.
            ErrorKind::NotFound if effective_ids().0 == 0 => {
                Self::Refused("the kernel permits no mounts here".to_owned())
            }
            ErrorKind::NotFound => Self::NoHelper,
            _ => Self::Refused(error.to_string().trim().to_owned()),
        }
    }
}

/// Returns the result of `ask` on a directory. Gives up a FUSE mount that does not answer for [`ANSWER_TIME`]: its
/// process may be stopped, or wait for a disk. Any other slow file system is waited for.
///
/// The waiting thread ends with this process. The exception is a mount whose process has taken the request and keeps
/// it: at its end this process then waits for the answer.
///
/// # Errors
/// [`MountError::Silent`]; [`MountError::Directory`] if no thread can be started.
pub fn answer_in_time<T: Send + 'static>(
    directory: &Path,
    ask: impl FnOnce(&Path) -> T + Send + 'static,
) -> Result<T, MountError> {
    let (sender, answer) = mpsc::channel();
    let asked = directory.to_path_buf();
    let run = move || {
        // If this is late, the receiver no longer waits.
        sender.send(ask(&asked)).ok();
    };
    std::thread::Builder::new()
        .name("mount-asker".to_owned())
        .spawn(run)
        .map_err(MountError::Directory)?;
    let answer = match answer.recv_timeout(ANSWER_TIME) {
        Err(RecvTimeoutError::Timeout) if !is_fuse(directory) => answer.recv().ok(),
        answer => answer.ok(),
    };
    answer.ok_or(MountError::Silent)
}

/// Returns the path of a directory without links. Neither the directory itself nor a mount on it is accessed.
///
/// # Errors
/// The kernel's error for the directory above; [`ErrorKind::InvalidInput`] if the path has no name at its end.
pub fn path_unasked(directory: &Path) -> io::Result<PathBuf> {
    let name = directory.file_name().ok_or(ErrorKind::InvalidInput)?;
    let above = match directory.parent() {
        Some(above) if !above.as_os_str().is_empty() => above,
        _ => Path::new("."),
    };
    Ok(above.canonicalize()?.join(name))
}

/// Whether a mount through FUSE is on a directory, by the table of mounts.
fn is_fuse(directory: &Path) -> bool {
    let place = path_unasked(directory).and_then(|path| Place::of(&path));
    place.is_ok_and(|place| place.origin.starts_with(b"fuse"))
}

/// Whether something can be mounted on `directory`.
///
/// # Errors
/// The variants of [`MountError`] about directories.
pub fn check_directory(directory: &Path) -> Result<(), MountError> {
    answer_in_time(directory, check_now)?
}

fn check_now(directory: &Path) -> Result<(), MountError> {
    let failed = |error: io::Error| match error.raw_os_error() {
        Some(libc::ENOTCONN) => MountError::DeadMount,
        _ => MountError::Directory(error),
    };
    if !std::fs::metadata(directory).map_err(failed)?.is_dir() {
        return Err(MountError::NotADirectory);
    }
    // Cached answers of a mount whose process is dead are no sign of life; the kernel never caches this one.
    ask(directory).map_err(failed)?;
    match std::fs::read_dir(directory).map_err(failed)?.next() {
        None => Ok(()),
        Some(Ok(_)) => Err(match Place::source_at(directory) {
            Some(source) => MountError::MountedAlready(source),
            None => MountError::NotEmpty,
        }),
        Some(Err(error)) => Err(failed(error)),
    }
}

/// Sends a request to a directory's file system.
fn ask(directory: &Path) -> io::Result<()> {
    let path = CString::new(directory.as_os_str().as_bytes())?;
    let mut found = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: a C string and room for the structure, both alive until the call returns.
    match unsafe { libc::statfs(path.as_ptr(), found.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Checks whether FUSE can be used; its errors say more than the error of mounting.
///
/// # Errors
/// [`MountError::NoFuse`], [`MountError::FuseDenied`], [`MountError::Refused`].
pub fn check_fuse() -> Result<(), MountError> {
    let opened = OpenOptions::new().read(true).write(true).open(FUSE_DEVICE);
    match opened {
        Ok(_) => Ok(()),
        Err(error) => Err(match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => MountError::NoFuse,
            Some(libc::EACCES | libc::EPERM) => MountError::FuseDenied,
            _ => MountError::Refused(error.to_string()),
        }),
    }
}

/// Effective user and group of this process.
#[must_use]
pub fn effective_ids() -> (u32, u32) {
    // SAFETY: neither call has arguments, touches memory or can fail.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// The bit of the capability that mounting takes, in the kernel's list of them (capability.h).
const CAP_SYS_ADMIN: u32 = 21;

/// Returns why this process cannot mount without the helper, as root does; `None` if it can.
#[must_use]
pub fn why_root_cannot_mount() -> Option<String> {
    if let Err(error) = check_fuse() {
        return Some(error.to_string());
    }
    if effective_ids().0 != 0 {
        return Some("only root can mount by itself".to_owned());
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    (!may_administer(&status))
        .then(|| "this root has no CAP_SYS_ADMIN, as in most containers".to_owned())
}

/// Returns whether a process has [`CAP_SYS_ADMIN`], by its `/proc/…/status`. A text without the line does not deny it.
fn may_administer(status: &str) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = line.and_then(|line| u64::from_str_radix(line.trim(), 16).ok());
    set.is_none_or(|set| set & 1 << CAP_SYS_ADMIN != 0)
}

/// The mounts that this process sees, one per line.
const TABLE: &str = "/proc/self/mountinfo";

/// The kinds of file system that the kernel shows for mounts of this program: for a mount by root it says less.
const OWN_KINDS: [&[u8]; 2] = [b"fuse.keel ", b"fuse "];

/// A mount, identified by the numbers that the kernel has given it, and by more. Once it is gone, the next mount gets
/// the same numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    mount_id: u64,
    device: String,
    /// Kind and source. No other mount of this source can be made while this process holds the store.
    origin: Vec<u8>,
    /// Where it was mounted first.
    point: PathBuf,
}

/// Where a mount is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// Its directory leads to it.
    At(PathBuf),
    /// Another mount lies on its directory.
    Covered(PathBuf),
    /// It is not in the tree any more.
    Gone,
}

impl Place {
    /// The mount that `directory`, a path without links, leads to.
    ///
    /// # Errors
    /// What the kernel says, and [`ErrorKind::NotFound`].
    pub fn of(directory: &Path) -> io::Result<Self> {
        let table = std::fs::read(TABLE)?;
        find(&table, directory).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Returns the source of what this program may have mounted on `directory`; `None` if it has mounted nothing there.
    #[must_use]
    pub fn source_at(directory: &Path) -> Option<String> {
        let table = std::fs::read(TABLE).ok()?;
        find(&table, &directory.canonicalize().ok()?)?.source()
    }

    /// Returns the source of the mount, if it may be ours.
    #[must_use]
    pub fn source(&self) -> Option<String> {
        let source = OWN_KINDS
            .iter()
            .find_map(|kind| self.origin.strip_prefix(*kind))?;
        Some(String::from_utf8_lossy(&unescape(source)).into_owned())
    }

    /// Returns where the mount is at present. A mount that the kernel may have given up, because its process does not
    /// answer, counts only where it was mounted first.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn now(&self, is_alive: bool) -> io::Result<Whereabouts> {
        Ok(self.in_table(&std::fs::read(TABLE)?, is_alive))
    }

    fn in_table(&self, table: &[u8], is_alive: bool) -> Whereabouts {
        let is_own = |place: &Place| {
            let is_same = place.mount_id == self.mount_id && place.device == self.device;
            is_same && place.origin == self.origin && (is_alive || place.point == self.point)
        };
        let own = lines(table).find(|line| is_own(&line.place));
        match own {
            None => Whereabouts::Gone,
            Some(own) if is_covered(table, &own) => Whereabouts::Covered(own.place.point),
            Some(own) => Whereabouts::At(own.place.point),
        }
    }
}

impl Whereabouts {
    /// Takes only the mount out of the tree, although files in it may be open. Returns its directory if that fails.
    #[must_use]
    pub fn take_out(self) -> Option<PathBuf> {
        match self {
            Self::At(directory) => detach(&directory).err().map(|_| directory),
            Self::Covered(directory) => Some(directory),
            Self::Gone => None,
        }
    }
}

/// Takes the mount that lies on top at `directory` out of the tree, although files in it are open.
fn detach(directory: &Path) -> io::Result<()> {
    let path = CString::new(directory.as_os_str().as_bytes())?;
    let flags = libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW;
    // SAFETY: `path` is a C string that lives until the call returns.
    if unsafe { libc::umount2(path.as_ptr(), flags) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() != Some(libc::EPERM) {
        return Err(error);
    }
    // A user other than root has mounted by the helper, which also unmounts.
    for helper in HELPERS {
        let status = Command::new(helper)
            .args(["-u", "-z", "-q", "--"])
            .arg(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        match status {
            Ok(status) if status.success() => return Ok(()),
            Ok(_) => return Err(error),
            // Try the next name.
            Err(_) => {}
        }
    }
    Err(error)
}

struct Line {
    place: Place,
    parent_id: u64,
}

fn find(table: &[u8], directory: &Path) -> Option<Place> {
    lines(table)
        .filter(|line| line.place.point == directory)
        .find(|line| !is_covered(table, line))
        .map(|line| line.place)
}

/// Whether another mount has the root of this one as its directory.
fn is_covered(table: &[u8], below: &Line) -> bool {
    lines(table)
        .any(|line| line.parent_id == below.place.mount_id && line.place.point == below.place.point)
}

fn lines(table: &[u8]) -> impl Iterator<Item = Line> {
    table.split(|byte| *byte == b'\n').filter_map(parse)
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext4 /dev/root rw`: number, that of the parent, device, root,
/// directory, options, any number of fields up to a dash, kind, source.
fn parse(line: &[u8]) -> Option<Line> {
    let mut fields = line.split(|byte| *byte == b' ');
    let mut text = || std::str::from_utf8(fields.next()?).ok();
    let mount_id = text()?.parse().ok()?;
    let parent_id = text()?.parse().ok()?;
    let device = text()?.to_owned();
    let point = fields.nth(1)?;
    fields.find(|field| *field == b"-")?;
    let origin = [fields.next()?, fields.next()?].join(&b' ');
    Some(Line {
        place: Place {
            mount_id,
            device,
            origin,
            point: PathBuf::from(OsString::from_vec(unescape(point))),
        },
        parent_id,
    })
}

/// In the table, space, tab, line feed and backslash are written as a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let value = tail
            .get(..3)
            .filter(|_| *first == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match value {
            Some(value) => {
                bytes.push(value);
                rest = &tail[3..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &[u8] = b"22 1 254:0 / / rw,relatime - ext4 /dev/root rw\n\
        40 22 0:50 / /mnt rw,relatime shared:1 - tmpfs tmpfs rw\n\
        41 40 0:51 / /mnt rw - fuse.keel first.img rw,user_id=0\n\
        42 22 0:52 / /srv/a\\040b\\134c rw - fuse.keel second.img rw\n\
        43 42 0:53 / /srv/a\\040b\\134c/\xff rw - tmpfs tmpfs rw\n";

    #[test]
    fn a_root_without_the_capability_cannot_mount() {
        // Everything; what Docker gives by default; a user.
        for (set, may) in [
            ("000001ffffffffff", true),
            ("00000000a80425fb", false),
            ("0000000000000000", false),
        ] {
            let status = format!("Name:\tkeel\nCapPrm:\t{set}\nCapEff:\t{set}\n");
            assert_eq!(may_administer(&status), may, "{set}");
        }
        assert!(may_administer("no such line"));
    }

    fn place(mount_id: u64, device: &str, origin: &str, point: &str) -> Place {
        Place {
            mount_id,
            device: device.to_owned(),
            origin: origin.as_bytes().to_vec(),
            point: point.into(),
        }
    }

    #[test]
    fn a_directory_leads_to_the_mount_on_top() {
        let first = find(LINES, Path::new("/mnt")).unwrap();
        assert_eq!(first, place(41, "0:51", "fuse.keel first.img", "/mnt"));
        assert_eq!(first.in_table(LINES, true), Whereabouts::At("/mnt".into()));
        let odd = find(LINES, Path::new("/srv/a b\\c")).unwrap();
        assert_eq!(
            odd,
            place(42, "0:52", "fuse.keel second.img", "/srv/a b\\c")
        );
        assert_eq!(
            odd.in_table(LINES, false),
            Whereabouts::At("/srv/a b\\c".into()),
            "what is mounted in it does not cover it"
        );
        assert_eq!(find(LINES, Path::new("/srv")), None);
        assert_eq!(first.source().as_deref(), Some("first.img"));
        assert_eq!(find(LINES, Path::new("/")).unwrap().source(), None);
        let by_root = place(41, "0:51", "fuse a\\040b.img", "/mnt");
        assert_eq!(by_root.source().as_deref(), Some("a b.img"));
    }

    #[test]
    fn a_covered_or_removed_mount_is_told_from_the_present_one() {
        let below = place(40, "0:50", "tmpfs tmpfs", "/mnt").in_table(LINES, true);
        assert_eq!(below, Whereabouts::Covered("/mnt".into()));
        // A moved mount is found as long as it lives.
        let moved = place(41, "0:51", "fuse.keel first.img", "/before");
        assert_eq!(moved.in_table(LINES, true), Whereabouts::At("/mnt".into()));
        assert_eq!(moved.in_table(LINES, false), Whereabouts::Gone);
        // The kernel has reused the numbers.
        for other in [
            place(39, "0:51", "fuse.keel first.img", "/mnt"),
            place(41, "0:99", "fuse.keel first.img", "/mnt"),
            place(41, "0:51", "fuse.keel before.img", "/mnt"),
            place(41, "0:51", "tmpfs tmpfs", "/mnt"),
        ] {
            assert_eq!(other.in_table(LINES, true), Whereabouts::Gone);
        }
    }

    #[test]
    fn lines_of_another_form_are_passed_over() {
        for line in [
            "",
            "41",
            "41 40 0:51 / /mnt rw shared:1",
            "41 40 0:51 / /mnt rw - tmpfs",
            "x 40 0:51 / /mnt rw - tmpfs tmpfs rw",
        ] {
            assert!(parse(line.as_bytes()).is_none(), "{line}");
        }
        assert_eq!(unescape(b"a\\04"), b"a\\04");
        assert_eq!(unescape(b"\\777\\"), b"\\777\\");
    }
}
