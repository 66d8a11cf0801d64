//! Original values of settings, in a file that survives a kill.
//!
//! Text, specified in `crates/keel/QOS.md`: `evenkeel settings 3`, the root that all lie below, the boot id of their
//! machine. A line for each setting follows, with its path, a tab and its value, then `end` with the CRC-32C of all
//! before it. The file exists before the first setting changes, and is removed when all are restored.

use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use crate::error::{NAMED_MAX, SavedError, Unset};
use crate::files::{Files, is_ours};

/// Path below the root of the system's files.
pub(crate) const POLICIES: &str = "sys/devices/system/cpu/cpufreq";

/// The settings of a policy that are changed. Others are never written, even if a file of saved settings names them.
const SETTINGS: [&str; 4] = [
    "scaling_setspeed",
    "scaling_governor",
    "scaling_max_freq",
    "scaling_min_freq",
];

/// All versions begin with this; the version number follows.
const NAME: &str = "evenkeel settings ";
const HEAD: &str = "evenkeel settings 3\n";
/// Version 2: without the boot id of the machine.
const HEAD_2: &str = "evenkeel settings 2\n";
/// Version 1: also without a root, and with paths as the configuration spelled them.
const HEAD_1: &str = "evenkeel settings 1\n";
const ROOT: &str = "root\t";
const BOOT: &str = "boot\t";

/// A file that changes with each boot of a machine, below its root.
const BOOT_ID: &str = "proc/sys/kernel/random/boot_id";

/// Most bytes of the file.
const BYTES_MAX: u64 = 64 << 10;

/// Most bytes of a value: names of governors and frequencies are short.
const VALUE_BYTES_MAX: usize = 64;

/// Settings to be restored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    root: PathBuf,
    /// The boot of the machine in which they were in force; `None` if it reports none, or an older version wrote them.
    boot: Option<String>,
    /// In the order in which they are restored.
    settings: Vec<(PathBuf, String)>,
}

/// Returns the root that a setting lies below, if it is one that this program changes.
fn root_of(setting: &Path) -> Option<PathBuf> {
    let is_plain = setting.components().all(|part| {
        matches!(
            part,
            Component::Normal(_) | Component::RootDir | Component::CurDir
        )
    });
    let name = setting.file_name()?.to_str()?;
    let policy = setting.parent()?;
    let number = policy.file_name()?.to_str()?.strip_prefix("policy")?;
    let is_number = (1..=6).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit());
    let folder = policy.parent()?;
    let is_ours = is_plain && is_number && SETTINGS.contains(&name) && folder.ends_with(POLICIES);
    let above = Path::new(POLICIES).components().count();
    is_ours
        .then(|| folder.ancestors().nth(above))
        .flatten()
        .map(Path::to_path_buf)
}

/// Returns the boot id of the machine below a root.
fn boot(files: &dyn Files, root: &Path) -> Option<String> {
    let text = files.read(&root.join(BOOT_ID)).ok()?;
    let boot = text.trim();
    is_value(boot).then(|| boot.to_owned())
}

fn is_value(value: &str) -> bool {
    (1..=VALUE_BYTES_MAX).contains(&value.len()) && value.bytes().all(|b| b.is_ascii_graphic())
}

impl Saved {
    /// Makes an empty set for settings below `root`, of an unknown boot of the machine.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            boot: None,
            settings: Vec::new(),
        }
    }

    /// Makes an empty set for settings below `root`, of the present boot of the machine.
    #[must_use]
    pub fn now(files: &dyn Files, root: &Path) -> Self {
        Self {
            boot: boot(files, root),
            ..Self::new(root)
        }
    }

    /// Whether the machine has been restarted since. Its settings are then its own again, and values from before the
    /// restart would undo what was set after it. `false` if either boot is unknown.
    #[must_use]
    pub fn is_of_another_start(&self, files: &dyn Files) -> bool {
        let now = boot(files, &self.root);
        self.boot.is_some() && now.is_some() && self.boot != now
    }

    /// Adds a setting, which will be restored after those before.
    pub fn add(&mut self, path: &Path, value: &str) {
        self.settings.push((path.to_owned(), value.to_owned()));
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.settings.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.settings.is_empty()
    }

    /// Returns the root that all of them lie below.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns all of them, as not restored for this reason.
    #[must_use]
    pub fn unset(&self, text: &str) -> Vec<Unset> {
        let unset = |(path, value): &(PathBuf, String)| Unset {
            path: path.clone(),
            value: value.clone(),
            text: text.to_owned(),
            is_gone: false,
        };
        self.settings.iter().map(unset).collect()
    }

    /// Returns only those that could not be restored.
    #[must_use]
    pub fn only(&self, unset: &[Unset]) -> Self {
        Self {
            root: self.root.clone(),
            boot: self.boot.clone(),
            settings: unset
                .iter()
                .map(|unset| (unset.path.clone(), unset.value.clone()))
                .collect(),
        }
    }

    /// Returns these, then those of `more` that are not among them.
    pub(crate) fn and(&self, more: &Self) -> Self {
        let mut all = self.clone();
        for (path, value) in &more.settings {
            if !all.settings.iter().any(|(has, _)| has == path) {
                all.add(path, value);
            }
        }
        all
    }

    /// Returns the text of a file of them.
    ///
    /// # Errors
    /// [`SavedError::Damaged`] for a setting that this program does not set, or that no line can hold.
    pub fn text(&self) -> Result<String, SavedError> {
        let wrong = |path: &Path, what| SavedError::Damaged {
            path: path.to_owned(),
            what,
            readable: String::new(),
        };
        let line = |path: &Path| {
            let text = path
                .to_str()
                .filter(|text| !text.contains(char::is_control));
            text.map(str::to_owned)
                .ok_or_else(|| wrong(path, "no line can hold it"))
        };
        let mut text = format!("{HEAD}{ROOT}{}\n", line(&self.root)?);
        if let Some(boot) = &self.boot {
            let _ = writeln!(text, "{BOOT}{boot}");
        }
        for (setting, value) in &self.settings {
            if root_of(setting).as_deref() != Some(&self.root) {
                return Err(wrong(setting, "no setting of a processor"));
            }
            if !is_value(value) {
                return Err(wrong(setting, "its value is none"));
            }
            let _ = writeln!(text, "{}\t{value}", line(setting)?);
        }
        let _ = writeln!(text, "end {:08x}", crc32c::crc32c(text.as_bytes()));
        Ok(text)
    }

    /// Writes them to `path`, completely or not at all.
    ///
    /// # Errors
    /// [`SavedError::File`], and as [`text`](Self::text).
    pub fn keep(&self, path: &Path) -> Result<(), SavedError> {
        let text = self.text()?;
        let mut draft = path.as_os_str().to_owned();
        draft.push(".new");
        let draft = PathBuf::from(draft);
        let write = || -> std::io::Result<()> {
            // Remove what a kill has left there, or a link that another user has put there.
            match std::fs::remove_file(&draft) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut file = std::fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&draft)?;
            // A kill keeps what was written; a power cut resets the settings themselves.
            file.write_all(text.as_bytes())?;
            std::fs::rename(&draft, path)
        };
        write().map_err(|error| {
            let _ = std::fs::remove_file(&draft);
            SavedError::file(path, &error)
        })
    }

    /// Writes them to `path`, or removes that file if there are none.
    ///
    /// # Errors
    /// As [`keep`](Self::keep).
    pub fn keep_or_remove(&self, path: &Path) -> Result<(), SavedError> {
        if !self.is_empty() {
            return self.keep(path);
        }
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(SavedError::file(path, &error))
            }
            _ => Ok(()),
        }
    }

    /// Whether a file begins as these do, of any version and however damaged, and is this user's or root's. Files that
    /// others put beside it do not matter.
    #[must_use]
    pub fn looks_like_one(path: &Path) -> bool {
        let mut start = [0; NAME.len()];
        let Ok(mut file) = open(path) else {
            return false;
        };
        is_ours(&file) && file.read_exact(&mut start).is_ok() && start == *NAME.as_bytes()
    }

    /// Loads a file of them; `None` if there is none. Version 1 has paths as they were spelled then: relative ones are
    /// searched below each of `bases`.
    ///
    /// # Errors
    /// [`SavedError`].
    pub fn load(path: &Path, bases: &[PathBuf]) -> Result<Option<Self>, SavedError> {
        let Some(bytes) = read(path)? else {
            return Ok(None);
        };
        Self::parse(&bytes, bases)
            .map(Some)
            .map_err(|what| SavedError::Damaged {
                path: path.to_owned(),
                what,
                readable: readable(&bytes),
            })
    }

    /// Parses the bytes of a file.
    ///
    /// # Errors
    /// What is wrong.
    pub fn parse(bytes: &[u8], bases: &[PathBuf]) -> Result<Self, &'static str> {
        if bytes.len() as u64 > BYTES_MAX {
            return Err("it is too long");
        }
        let text = std::str::from_utf8(bytes).map_err(|_| "it is no text")?;
        let (head, body) = checked(text)?;
        let is_first = head == HEAD_1;
        let (root, lines) = if is_first {
            (None, body)
        } else {
            let rest = body.strip_prefix(ROOT);
            let (root, lines) = rest
                .and_then(|rest| rest.split_once('\n'))
                .ok_or("it names no root")?;
            if root.contains(char::is_control) {
                return Err("it has what no line can hold");
            }
            (Some(PathBuf::from(root)), lines)
        };
        let (boot, lines) = match lines.strip_prefix(BOOT).filter(|_| head == HEAD) {
            Some(rest) => {
                let (boot, lines) = rest.split_once('\n').ok_or("it was cut")?;
                if !is_value(boot) {
                    return Err("it names no start of the machine");
                }
                (Some(boot.to_owned()), lines)
            }
            None => (None, lines),
        };
        let mut found = Self {
            root: root.clone().unwrap_or_default(),
            boot,
            settings: Vec::new(),
        };
        for line in lines.lines() {
            let (setting, value) = line.split_once('\t').ok_or("a line has no value")?;
            if setting.contains(char::is_control) {
                return Err("it has what no line can hold");
            }
            let setting = PathBuf::from(setting);
            let lies_below =
                root_of(&setting).ok_or("it names what is no setting of a processor")?;
            if !is_value(value) {
                return Err("it has a value that is none");
            }
            let (setting, lies_below) = if is_first {
                placed(setting, lies_below, bases)?
            } else {
                (setting, lies_below)
            };
            let is_same = root.is_none() && found.is_empty() || lies_below == found.root;
            if !is_same || !lies_below.is_absolute() {
                return Err("it names a setting below another root");
            }
            found.root = lies_below;
            found.settings.push((setting, value.to_owned()));
        }
        Ok(found)
    }

    /// Restores all, as far as possible; returns those that could not be restored. A setting that is not found counts
    /// among these: it exists again when its driver is reloaded, or its processor is switched on again.
    #[must_use]
    pub fn put_back(&self, files: &dyn Files) -> Vec<Unset> {
        // Some are refused until another one is restored: a least value above the greatest one.
        let mut left: Vec<_> = self.settings.iter().collect();
        let mut unset = Vec::new();
        for _ in 0..2 {
            unset.clear();
            left.retain(|(path, value)| {
                let Err(error) = files.write(path, value) else {
                    return false;
                };
                // It was restored by hand, where this program may not.
                if files.read(path).is_ok_and(|found| found == *value) {
                    return false;
                }
                unset.push(Unset {
                    path: path.clone(),
                    value: value.clone(),
                    text: error.to_string(),
                    is_gone: error.kind() == std::io::ErrorKind::NotFound,
                });
                true
            });
        }
        unset
    }
}

/// Returns the head of a file and what is between it and the checksum, which is checked.
fn checked(text: &str) -> Result<(&'static str, &str), &'static str> {
    let heads = [HEAD, HEAD_2, HEAD_1];
    let head = heads.into_iter().find(|head| text.starts_with(head));
    let head = head.unwrap_or(HEAD);
    let body = text
        .strip_prefix(head)
        .ok_or("it begins otherwise, or is of another version")?;
    let end = body.rfind("end ").ok_or("it was cut")?;
    let sum = body[end..]
        .strip_prefix("end ")
        .and_then(|sum| sum.strip_suffix('\n'))
        .filter(|sum| sum.len() == 8)
        .and_then(|sum| u32::from_str_radix(sum, 16).ok());
    let all_before = &text.as_bytes()[..head.len() + end];
    if sum != Some(crc32c::crc32c(all_before)) {
        return Err("it was cut or changed: its checksum is another");
    }
    Ok((head, &body[..end]))
}

/// Opens a file of any kind, without following a link or blocking.
fn open(path: &Path) -> std::io::Result<std::fs::File> {
    std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
}

/// Returns the bytes of a file that no other user may have written; `None` if there is none.
fn read(path: &Path) -> Result<Option<Vec<u8>>, SavedError> {
    let failed = |error: std::io::Error| SavedError::file(path, &error);
    let untrusted = |what| SavedError::Untrusted {
        path: path.to_owned(),
        what,
    };
    let file = match open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            return Err(untrusted("it is a link"));
        }
        Err(error) => return Err(failed(error)),
        Ok(file) => file,
    };
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        return Err(untrusted("it is no regular file"));
    }
    if !is_ours(&file) {
        return Err(untrusted("it belongs to another user"));
    }
    if found.mode() & 0o022 != 0 {
        return Err(untrusted("others may write it"));
    }
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    Ok(Some(bytes))
}

/// Returns where a setting of version 1 is.
fn placed(
    setting: PathBuf,
    root: PathBuf,
    bases: &[PathBuf],
) -> Result<(PathBuf, PathBuf), &'static str> {
    let below = setting.strip_prefix(&root).unwrap_or(&setting).to_owned();
    let found = if root.is_absolute() {
        // A root that is gone may come back.
        Some(root.canonicalize().unwrap_or(root))
    } else {
        let roots = bases.iter().map(|base| base.join(&root));
        roots
            .filter(|root| root.join(POLICIES).is_dir())
            .find_map(|root| root.canonicalize().ok())
    };
    let root = found.ok_or("it names a folder relative to where an older node was started")?;
    Ok((root.join(below), root))
}

/// Returns what whole lines of a damaged file say, for people.
fn readable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(BYTES_MAX as usize)]);
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let settings = whole.lines().filter_map(|line| {
        let (setting, value) = line.split_once('\t')?;
        let is_one = root_of(Path::new(setting)).is_some()
            && is_value(value)
            && !setting.contains(char::is_control);
        is_one.then(|| format!("{value} in {setting}"))
    });
    let settings: Vec<_> = settings.take(NAMED_MAX).collect();
    if settings.is_empty() {
        String::new()
    } else {
        format!("; what can be read of it: {}", settings.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTING: &str = "/m/sys/devices/system/cpu/cpufreq/policy3/scaling_governor";

    fn one() -> Saved {
        let mut saved = Saved::new(Path::new("/m"));
        saved.add(Path::new(SETTING), "schedutil");
        saved
    }

    fn started() -> Saved {
        Saved {
            boot: Some("6b7c3c64-9f3b-4c7e-8f55-2b0d1f6a9e10".to_owned()),
            ..one()
        }
    }

    #[test]
    fn a_file_is_read_as_it_was_written_and_no_other() {
        let text = one().text().unwrap();
        assert_eq!(Saved::parse(text.as_bytes(), &[]), Ok(one()));
        let text = started().text().unwrap();
        assert_eq!(Saved::parse(text.as_bytes(), &[]), Ok(started()));
        for cut in 0..text.len() {
            assert!(Saved::parse(&text.as_bytes()[..cut], &[]).is_err(), "{cut}");
        }
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            assert!(Saved::parse(&bytes, &[]).is_err(), "{at}");
        }
        let half = &text.as_bytes()[..text.len() - 4];
        assert_eq!(
            readable(half),
            format!("; what can be read of it: schedutil in {SETTING}")
        );
    }

    #[test]
    fn only_settings_of_processors_are_written_or_read() {
        let with_sum = |body: &str| {
            let sum = crc32c::crc32c(body.as_bytes());
            format!("{body}end {sum:08x}\n")
        };
        for (root, setting, value) in [
            ("/", "/etc/passwd", "x"),
            (
                "/m",
                "/n/sys/devices/system/cpu/cpufreq/policy0/scaling_governor",
                "x",
            ),
            (
                "/m",
                "/m/sys/devices/system/cpu/cpufreq/policy0/../../online",
                "0",
            ),
            (
                "/m",
                "/m/sys/devices/system/cpu/cpufreq/policyx/scaling_governor",
                "x",
            ),
            (
                "/m",
                "/m/sys/devices/system/cpu/cpufreq/policy0/scaling_driver",
                "x",
            ),
            ("/m", SETTING, "two words"),
            ("/m", SETTING, ""),
            (
                "m",
                "m/sys/devices/system/cpu/cpufreq/policy0/scaling_governor",
                "x",
            ),
        ] {
            let mut saved = Saved::new(Path::new(root));
            saved.add(Path::new(setting), value);
            let is_relative = root == "m";
            assert!(is_relative || saved.text().is_err(), "{setting} {value}");
            let text = with_sum(&format!("{HEAD}{ROOT}{root}\n{setting}\t{value}\n"));
            assert!(
                Saved::parse(text.as_bytes(), &[]).is_err(),
                "{setting} {value}"
            );
        }
        let text = with_sum(&format!("{HEAD}{ROOT}/m\n{SETTING}\tschedutil\n"));
        assert_eq!(Saved::parse(text.as_bytes(), &[]), Ok(one()));
        // Version 2 had no boot id of the machine, version 1 no root either.
        let text = with_sum(&format!("{HEAD_2}{ROOT}/m\n{SETTING}\tschedutil\n"));
        assert_eq!(Saved::parse(text.as_bytes(), &[]), Ok(one()));
        let text = with_sum(&format!("{HEAD_2}{ROOT}/m\n{BOOT}a\n{SETTING}\tx\n"));
        assert!(Saved::parse(text.as_bytes(), &[]).is_err());
        for boot in ["", "two words"] {
            let text = with_sum(&format!("{HEAD}{ROOT}/m\n{BOOT}{boot}\n{SETTING}\tx\n"));
            assert!(Saved::parse(text.as_bytes(), &[]).is_err(), "{boot}");
        }
        let text = with_sum(&format!("{HEAD_1}{SETTING}\tschedutil\n"));
        assert_eq!(Saved::parse(text.as_bytes(), &[]), Ok(one()));
    }
}
