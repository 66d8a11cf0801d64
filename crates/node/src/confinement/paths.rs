//! The files that a node may open and make, as rules for Landlock. What is open already stays usable.

use command::persistence::is_device;
use config::Config;
use ingest::modbus::Address;
use nix::sys::prctl;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf, absolute};

/// Rights that the kernel has for files and folders (`LANDLOCK_ACCESS_FS_…`), in the order of their bits.
const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const REMOVE_DIR: u64 = 1 << 4;
const REMOVE_FILE: u64 = 1 << 5;
const MAKE_DIR: u64 = 1 << 7;
const MAKE_REG: u64 = 1 << 8;
const MAKE_SOCK: u64 = 1 << 9;
/// Since version 3.
const TRUNCATE: u64 = 1 << 14;

/// All rights of version 1; of later ones the node needs only `TRUNCATE`. What is not handled stays as it is.
const OF_VERSION_1: u64 = (1 << 13) - 1;
/// Those that a file can have. The kernel refuses others in the rule of a file.
const OF_FILES: u64 = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE;
const READ: u64 = READ_FILE | READ_DIR;
const WRITE: u64 =
    READ | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | MAKE_SOCK | TRUNCATE;

/// Flag that asks `landlock_create_ruleset` for the version.
const ASK_VERSION: u32 = 1;
/// The kind of a rule for what lies below a path.
const BELOW_PATH: u32 = 1;

/// Keys whose files the node makes or writes. It only reads the files of all other keys.
const WRITTEN: [&str; 5] = [
    "store.image",
    "node.socket",
    "line.unix_socket",
    "region.file",
    "region.checkpoint_image",
];

/// Places of the system that the C library and the node read. They have names of hosts and users, certificates, time
/// zones, libraries, processes that read a region, and sensors of power.
const OF_SYSTEM: [&str; 8] = [
    "/etc",
    "/usr",
    "/lib",
    "/lib64",
    "/proc",
    "/sys",
    "/run",
    "/dev/urandom",
];

/// A file or a folder with all below it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rule {
    path: PathBuf,
    is_written: bool,
}

/// Returns the rules for a configuration that was read at `config_path`.
pub(super) fn rules(config: &Config, config_path: &Path) -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    let mut add = |path: PathBuf, is_written: bool| {
        // A rule grants, so that of two for one path both would count. One says it.
        match rules.iter_mut().find(|rule| rule.path == path) {
            Some(rule) => rule.is_written |= is_written,
            None => rules.push(Rule { path, is_written }),
        }
    };
    for path in OF_SYSTEM {
        add(path.into(), false);
    }
    add("/dev/null".into(), true);
    let files = config.files().into_iter();
    for (key, path) in files.chain([("configuration", config_path)]) {
        let is_written = WRITTEN.contains(&key);
        // Behind a link, the file's own folder counts as well.
        let real = path.canonicalize().ok();
        for path in std::iter::once(path).chain(real.as_deref()) {
            // An editor replaces a file by another one, so the folder counts.
            let place = match is_device(path) {
                true => path.to_owned(),
                false => folder_of(path),
            };
            add(place, is_written);
        }
    }
    for device in &config.modbus {
        if let Address::Serial(serial) = &device.address {
            add(serial.path.clone(), true);
        }
    }
    rules
}

/// Returns the places of the rules as the kernel sees them: without links.
pub(super) fn places(rules: &[Rule]) -> Vec<PathBuf> {
    rules.iter().map(|rule| real(&rule.path)).collect()
}

/// Returns whether a file is in one of these places, and so is what it leads to.
pub(super) fn are_in(places: &[PathBuf], path: &Path) -> bool {
    let real = real(path);
    places.iter().any(|place| real.starts_with(place))
}

/// Returns where a path leads. Of one that does not exist, that is where its folder leads.
fn real(path: &Path) -> PathBuf {
    if let Ok(real) = path.canonicalize() {
        return real;
    }
    let folder = folder_of(path);
    let folder = folder.canonicalize().or_else(|_| absolute(&folder));
    match (folder, path.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        _ => path.to_owned(),
    }
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Returns the version of Landlock.
///
/// # Errors
/// The kernel has none, or it was turned off when the machine started.
pub fn version() -> io::Result<u32> {
    // SAFETY: no memory is passed.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<RulesetAttributes>(),
            0_usize,
            ASK_VERSION,
        )
    };
    u32::try_from(version).map_err(|_| io::Error::last_os_error())
}

/// The kernel's `struct landlock_ruleset_attr`, as version 1 has it.
#[repr(C)]
struct RulesetAttributes {
    handled: u64,
}

/// The kernel's `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct PathBeneath {
    allowed: u64,
    parent: i32,
}

/// Restricts this thread, and those that it starts, to the rules. A rule for a written folder that does not exist is
/// one for the nearest one that does. Where nothing is written, there is nothing to read.
pub(super) fn restrict(rules: &[Rule], version: u32) -> io::Result<()> {
    let handled = OF_VERSION_1 | if version >= 3 { TRUNCATE } else { 0 };
    let attributes = RulesetAttributes { handled };
    // SAFETY: the structure lives as long as the call, and its size is passed.
    let ruleset = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            &raw const attributes,
            size_of::<RulesetAttributes>(),
            0_u32,
        )
    };
    if ruleset < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has returned a new descriptor, which nothing else has.
    let ruleset = unsafe { OwnedFd::from_raw_fd(ruleset as i32) };
    for rule in rules {
        add(&ruleset, rule, handled)?;
    }
    prctl::set_no_new_privs()?;
    // SAFETY: no memory is passed, and the descriptor is open.
    let result =
        unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0_u32) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn add(ruleset: &OwnedFd, rule: &Rule, handled: u64) -> io::Result<()> {
    let mut path = rule.path.as_path();
    let place = loop {
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH)
            .open(path);
        match opened {
            Ok(place) => break place,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // The folder of a device has others, so one that comes later is not permitted.
                if !rule.is_written || is_device(path) || path == Path::new(".") {
                    return Ok(());
                }
                path = match path.parent() {
                    Some(parent) if parent != Path::new("") => parent,
                    _ => Path::new("."),
                };
            }
            Err(error) => return Err(error),
        }
    };
    let rights = if rule.is_written { WRITE } else { READ };
    let of_kind = if place.metadata()?.is_dir() {
        rights
    } else {
        rights & OF_FILES
    };
    let beneath = PathBeneath {
        allowed: of_kind & handled,
        parent: place.as_raw_fd(),
    };
    // SAFETY: the structure lives as long as the call, and its descriptor is open.
    let result = unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            ruleset.as_raw_fd(),
            BELOW_PATH,
            &raw const beneath,
            0_u32,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_of_image_sockets_and_region_are_written() {
        let text = "[store]\nimage = \"/var/lib/keel/store.img\"\n[node]\nsocket = \"/run/keel/keel.sock\"\n\
                    [line]\nunix_socket = \"/run/keel/line.sock\"\n[region]\nfile = \"/dev/shm/keel\"\n\
                    [http]\ntoken_file = \"/etc/keel/secrets/tokens\"\n\
                    [[modbus]]\naddress = \"rtu:///dev/ttyUSB0\"\nunit = 7\n\
                    [[modbus.register]]\nkey = \"a\"\ntable = \"coil\"\naddress = 0\n";
        let config = Config::parse(text, "keel.toml", Path::new("/etc/keel"));
        let rules = rules(&config.unwrap(), Path::new("/etc/keel/keel.toml"));
        let with = |is_written: bool| -> Vec<&str> {
            let rules = rules.iter().filter(|rule| rule.is_written == is_written);
            rules.filter_map(|rule| rule.path.to_str()).collect()
        };
        let written = with(true);
        let expected = [
            "/dev/null",
            "/var/lib/keel",
            "/run/keel",
            "/dev/shm",
            "/dev/ttyUSB0",
        ];
        assert_eq!(written, expected);
        let read = with(false);
        assert!(
            read.contains(&"/etc/keel") && read.contains(&"/etc/keel/secrets"),
            "{read:?}"
        );
    }

    #[test]
    fn a_block_device_brings_no_other_device_along() {
        let text = "[store]\nimage = \"/dev/mmcblk0p3\"\n";
        let config = Config::parse(text, "keel.toml", Path::new("/etc/keel")).unwrap();
        let rules = rules(&config, Path::new("keel.toml"));
        let image = Path::new("/dev/mmcblk0p3");
        assert!(
            rules
                .iter()
                .any(|rule| rule.path == image && rule.is_written)
        );
        assert!(rules.iter().all(|rule| rule.path != Path::new("/dev")));
        assert!(
            rules
                .iter()
                .any(|rule| rule.path == Path::new(".") && !rule.is_written)
        );
    }

    #[test]
    fn a_file_behind_a_link_out_of_the_listed_folders_is_not_listed() {
        let name = format!("keel-listed-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let (inside, outside) = (folder.join("inside"), folder.join("outside"));
        for place in [&inside, &outside] {
            std::fs::create_dir_all(place).unwrap();
            std::fs::write(place.join("secret"), "word").unwrap();
        }
        std::os::unix::fs::symlink(outside.join("secret"), inside.join("link")).unwrap();
        let rule = Rule {
            path: inside.clone(),
            is_written: false,
        };
        let places = places(&[rule]);
        for (path, is_listed) in [
            (inside.join("secret"), true),
            (inside.join("later"), true),
            (inside.join("link"), false),
            (outside.join("secret"), false),
            (folder.join("inside-not/later"), false),
        ] {
            assert_eq!(are_in(&places, &path), is_listed, "{}", path.display());
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_rights_of_files_are_a_subset_of_the_rights_of_folders() {
        assert_eq!(WRITE & OF_FILES, READ_FILE | WRITE_FILE | TRUNCATE);
        assert_eq!((READ | WRITE) & !(OF_VERSION_1 | TRUNCATE), 0);
        assert_eq!(WRITE & EXECUTE, 0);
    }
}
