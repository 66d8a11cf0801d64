//! Privileges of a node that root starts and that becomes another user, `node.user`.
//!
//! Root opens the image if it is a device, takes ports, and locks memory. Every file is opened and made as the user. In
//! a folder of the user, a link could lead root to any file of the machine. Before the first input is read, all threads
//! give up root for good. The group changes at the very start.

use super::log;
use super::sources::Plan;
use command::error::CliError;
use command::persistence::is_device;
use config::Config;
use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{
    AccessFlags, Gid, Uid, User, access, getresuid, initgroups, setfsuid, setresgid, setresuid,
};
use std::ffi::CString;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

/// What no file and no folder of a node permits: anything to others, and writing to the group.
const UMASK: u32 = 0o027;

/// Limits that root leaves to the user, as the unit for systemd does: the greatest real-time priority, and locked
/// bytes.
const LIMITS: [(Resource, rlim_t); 2] = [
    (Resource::RLIMIT_RTPRIO, 80),
    (Resource::RLIMIT_MEMLOCK, 256 << 20),
];

/// Keys whose files the user need not read: the image is open, and programs are run.
const OF_ROOT: [&str; 2] = ["store.image", "task.command"];

/// The folder with a folder for each thread of this process.
const THREADS: &str = "/proc/self/task";

/// The rights of the main thread.
const STATUS: &str = "/proc/self/status";

/// The lines of a thread's status without which its rights are unknown.
const SHOWN: [&str; 4] = ["Uid", "Gid", "CapPrm", "CapEff"];

/// The user and the group with every right.
const ROOT: u32 = 0;

/// Restricts the permissions of new files to the owner and, for reading, the group. A stricter mask stays.
pub(crate) fn restrict_new_files() {
    let before = umask(Mode::from_bits_truncate(0o777));
    umask(before | Mode::from_bits_truncate(UMASK));
}

/// The user that the node becomes.
#[derive(Clone, Debug)]
pub(crate) struct Successor {
    name: String,
    uid: Uid,
    gid: Gid,
}

impl Successor {
    /// Returns the configured user, and takes its groups; `None` if there is nothing to give up. Must be called on the
    /// main thread before it starts a thread that starts programs: these inherit that no program gets more rights.
    ///
    /// # Errors
    /// The user does not exist or is root, or this process may not become it.
    pub(crate) fn prepare(config: &Config) -> Result<Option<Self>, CliError> {
        let Some(name) = &config.node.user else {
            return Ok(None);
        };
        let refused = |wrong: &str, remedy: &str| {
            CliError::failure("node.user", format!("is {name}, {wrong}"), remedy)
        };
        let Some(user) = User::from_name(name).map_err(system)? else {
            return Err(refused(
                "a user that this machine does not have",
                "make it with `useradd --system`, or name another",
            ));
        };
        if user.uid.is_root() {
            return Err(refused(
                "which has every right",
                "name a user without rights, or remove the key",
            ));
        }
        prctl::set_no_new_privs().map_err(system)?;
        let own = getresuid().map_err(system)?;
        if [own.real, own.effective, own.saved]
            .iter()
            .all(|id| *id == user.uid)
        {
            let status =
                fs::read_to_string(STATUS).map_err(|error| CliError::io(STATUS, &error))?;
            return match left_of_root(&status, user.uid, user.gid) {
                None => Ok(None),
                Some(left) => Err(refused(
                    &format!("and the process has rights beyond it: {left}"),
                    "start the node with the groups of the user alone, and without capabilities",
                )),
            };
        }
        if !own.effective.is_root() {
            return Err(refused(
                "and only root can become another user",
                "start the node as root or as that user",
            ));
        }
        let name_of_system = CString::new(name.as_str())
            .map_err(|_| refused("which holds a zero byte", "correct it"))?;
        initgroups(&name_of_system, user.gid).map_err(system)?;
        setresgid(user.gid, user.gid, user.gid).map_err(system)?;
        for (resource, least) in LIMITS {
            if let Ok((soft, hard)) = getrlimit(resource) {
                // What is refused here is missing later, and is logged then.
                setrlimit(resource, soft.max(least), hard.max(least)).ok();
            }
        }
        Ok(Some(Self {
            name: name.clone(),
            uid: user.uid,
            gid: user.gid,
        }))
    }

    /// Like [`open_files`](Self::open_files), unless the image is a device, which root opens.
    pub(crate) fn open_image(&self, image: &Path) -> Result<(), CliError> {
        match is_device(image) {
            true => open_files_as(Uid::from_raw(ROOT)),
            false => self.open_files(),
        }
    }

    /// From now on this thread opens and makes files as the user, and so does each thread that it starts.
    pub(crate) fn open_files(&self) -> Result<(), CliError> {
        open_files_as(self.uid)
    }

    /// What to do about a file that the user cannot read.
    pub(crate) fn remedy_for_files(&self) -> String {
        format!(
            "let the user {} read it: a reload and each connection read it again",
            self.name
        )
    }

    /// Gives up root in every thread, and checks that nothing is left of it. Then reads as the user what a reload
    /// reads, so that a missing permission ends the start instead of a later reload.
    pub(crate) fn replace_root(&self, config: &Config, path: &Path) -> Result<(), CliError> {
        setresuid(self.uid, self.uid, self.uid).map_err(system)?;
        let unreadable = |error: io::Error| CliError::io(THREADS, &error);
        for thread in fs::read_dir(THREADS).map_err(unreadable)? {
            let thread = thread.map_err(unreadable)?.path();
            let status = match fs::read_to_string(thread.join("status")) {
                Ok(status) => status,
                // A thread that has ended has no rights.
                Err(error) if has_ended(&error) => continue,
                Err(error) => return Err(unreadable(error)),
            };
            if let Some(left) = left_of_root(&status, self.uid, self.gid) {
                let remedy = "report this as a bug, and start the node as the user";
                return Err(CliError::failure(
                    thread.display(),
                    format!("keeps rights of root: {left}"),
                    remedy,
                ));
            }
        }
        self.read_again(config, path)?;
        let text = format!("runs as {} (user ID {}) from now on", self.name, self.uid);
        log::event("user", text);
        Ok(())
    }

    fn read_again(&self, config: &Config, path: &Path) -> Result<(), CliError> {
        let remedy = self.remedy_for_files();
        let reloaded = Config::load(path).and_then(|config| Plan::of(&config).map(drop));
        reloaded.map_err(|error| error.with_remedy(&remedy))?;
        let files = config.files().into_iter();
        for (_, file) in files.filter(|(key, _)| !OF_ROOT.contains(key)) {
            // One that does not exist yet is no mistake.
            if access(file, AccessFlags::R_OK) == Err(Errno::EACCES) {
                let shown = file.display();
                return Err(CliError::failure(shown, "permission denied", remedy));
            }
        }
        Ok(())
    }
}

fn open_files_as(user: Uid) -> Result<(), CliError> {
    setfsuid(user);
    // The call reports no error. It returns the user from before, which a second call shows.
    if setfsuid(user) == user {
        return Ok(());
    }
    Err(system(Errno::EPERM))
}

fn system(error: Errno) -> CliError {
    CliError::io("node.user", &error.into())
}

/// Returns whether the status of a thread cannot be read because the thread has ended.
fn has_ended(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// Returns the first line of a thread's status that shows another user, another group, the group of root, or a right
/// of root. A status that does not show them at all is told as well.
fn left_of_root(status: &str, uid: Uid, gid: Gid) -> Option<&str> {
    let has = |name: &str| {
        let mut names = status.lines().filter_map(|line| line.split_once(':'));
        names.any(|(found, _)| found == name)
    };
    if !SHOWN.into_iter().all(has) {
        return Some("its status does not show them");
    }
    let (uid, gid) = (uid.to_string(), gid.to_string());
    let mut lines = status.lines();
    lines.find(|line| {
        let Some((name, value)) = line.split_once(':') else {
            return false;
        };
        match name {
            "Uid" => value.split_whitespace().any(|one| one != uid),
            "Gid" => value.split_whitespace().any(|one| one != gid),
            "Groups" => value.split_whitespace().any(|one| one == ROOT.to_string()),
            "CapInh" | "CapPrm" | "CapEff" | "CapAmb" => {
                value.trim().bytes().any(|digit| digit != b'0')
            }
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tkeel\nUid:\t990\t990\t990\t990\nGid:\t980\t980\t980\t980\n\
                          Groups:\t20 980\nCapInh:\t0000000000000000\n\
                          CapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n\
                          CapBnd:\t000001ffffffffff\nCapAmb:\t0000000000000000\n";

    #[test]
    fn a_right_that_is_left_of_root_is_found() {
        let (uid, gid) = (Uid::from_raw(990), Gid::from_raw(980));
        let left = |status: &str| left_of_root(status, uid, gid).map(str::to_owned);
        assert_eq!(left(STATUS), None);
        // A status that shows nothing proves nothing.
        for status in ["", "Name:\tkeel\n"] {
            assert_eq!(left(status).unwrap(), "its status does not show them");
        }
        let silent = STATUS.replace("CapEff:", "Other:");
        assert!(left(&silent).is_some());
        let saved = STATUS.replace("\t990\nGid", "\t0\nGid");
        assert_eq!(left(&saved).unwrap(), "Uid:\t990\t990\t990\t0");
        let group = STATUS.replace("\t980\nGroups", "\t0\nGroups");
        assert_eq!(left(&group).unwrap(), "Gid:\t980\t980\t980\t0");
        let groups = STATUS.replace("\t20 980", "\t20 0 980");
        assert_eq!(left(&groups).unwrap(), "Groups:\t20 0 980");
        for name in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            let none = format!("{name}:\t0000000000000000");
            let one = format!("{name}:\t0000000000000400");
            assert_eq!(left(&STATUS.replace(&none, &one)), Some(one));
        }
    }
}
