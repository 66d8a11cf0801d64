//! `node.user`: what that user lacks, for a check of the configuration by root.

use super::Config;
use command::persistence::is_device;
use nix::unistd::{Gid, User, geteuid, getgrouplist};
use std::ffi::CString;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Permission bits of one kind of user.
const READ: u32 = 4;
const WRITE: u32 = 2;
const SEARCH: u32 = 1;

/// Keys whose files and folders the node makes and writes as the user.
const MADE: [&str; 5] = [
    "store.image",
    "node.socket",
    "line.unix_socket",
    "region.file",
    "region.checkpoint_image",
];

/// Folders with at most as many ancestors, themselves included, belong to the system: `/` and `/run`.
const SYSTEM_DEPTH: usize = 2;

/// A user as the kernel judges it.
struct Successor {
    name: String,
    uid: u32,
    groups: Vec<u32>,
}

/// Returns the warnings about `node.user`. Only root can look at everything, and only a node of root becomes a user.
pub(super) fn warnings(config: &Config, path: &Path) -> Vec<String> {
    let Some(name) = config.node.user.as_ref().filter(|_| geteuid().is_root()) else {
        return Vec::new();
    };
    match successor(name) {
        Ok(successor) => successor.lacks(config, path),
        Err(why) => vec![format!("node.user is {name}, {why}")],
    }
}

fn successor(name: &str) -> Result<Successor, String> {
    let user =
        User::from_name(name).map_err(|error| format!("which cannot be looked up: {error}"))?;
    let user = user.ok_or(
        "a user that this machine does not have; make it with `useradd --system`, or name another",
    )?;
    if user.uid.is_root() {
        return Err("which has every right; name a user without rights".to_owned());
    }
    let known = CString::new(name).ok();
    let groups = known.and_then(|name| getgrouplist(&name, user.gid).ok());
    let groups = groups.unwrap_or_else(|| vec![user.gid]);
    Ok(Successor {
        name: name.to_owned(),
        uid: user.uid.as_raw(),
        groups: groups.into_iter().map(Gid::as_raw).collect(),
    })
}

impl Successor {
    /// Returns what this user may not do with the files of a configuration.
    fn lacks(&self, config: &Config, config_path: &Path) -> Vec<String> {
        let mut warnings = Vec::new();
        // Programs are run, not read.
        let files = config.files().into_iter();
        let files = files.filter(|(key, _)| *key != "task.command");
        for (key, path) in files.chain([("configuration", config_path)]) {
            let told = match MADE.contains(&key) {
                true => self.cannot_make(path),
                false => self.cannot_read(path),
            };
            warnings.extend(told.map(|told| format!("{key}: {told}")));
        }
        warnings
    }

    fn cannot_make(&self, path: &Path) -> Option<String> {
        // Root opens a device.
        if path.as_os_str().is_empty() || is_device(path) {
            return None;
        }
        let name = &self.name;
        let path = &std::path::absolute(path).ok()?;
        let folder = path.parent()?;
        let nearest = folder.ancestors().find(|folder| folder.is_dir())?;
        if !self.may(&fs::metadata(nearest).ok()?, WRITE | SEARCH) {
            let shown = folder.display();
            return Some(if nearest != folder {
                format!(
                    "the folder {shown} is missing, and the user {name} cannot make it; \
                     install -d -o {name} -m 750 {shown}"
                )
            } else if folder.ancestors().count() <= SYSTEM_DEPTH {
                format!(
                    "the user {name} cannot write to {shown}; name a path in a folder of its own"
                )
            } else {
                format!(
                    "the folder {shown} does not belong to the user {name}; chown {name}: {shown}"
                )
            });
        }
        let about = fs::metadata(path).ok().filter(Metadata::is_file)?;
        let shown = path.display();
        (!self.may(&about, READ | WRITE))
            .then(|| format!("{shown} does not belong to the user {name}; chown {name}: {shown}"))
    }

    fn cannot_read(&self, path: &Path) -> Option<String> {
        // One that does not exist has a warning of its own, or is no mistake.
        let real = path.canonicalize().ok()?;
        let folders = real.ancestors().skip(1);
        let mut closed = folders.filter(|folder| !self.passes(folder, SEARCH));
        if closed.next().is_none() && self.passes(&real, READ) {
            return None;
        }
        let (name, shown) = (&self.name, path.display());
        Some(format!(
            "the user {name} cannot read {shown}; let that user read it"
        ))
    }

    fn passes(&self, path: &Path, bits: u32) -> bool {
        fs::metadata(path).is_ok_and(|about| self.may(&about, bits))
    }

    fn may(&self, about: &Metadata, bits: u32) -> bool {
        let shift = if about.uid() == self.uid {
            6
        } else if self.groups.contains(&about.gid()) {
            3
        } else {
            0
        };
        (about.mode() >> shift) & bits == bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn folders_and_secrets_that_the_user_cannot_use_are_warned_of() {
        let name = format!("keel-user-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        let text = "[node]\nuser = \"keel\"\nsocket = \"keel.sock\"\n[store]\nimage = \"later/store.img\"\n\
                    [line]\nunix_socket = \"\"\n[http]\ntoken_file = \"tokens\"\n";
        let config = Config::parse(text, "keel.toml", &folder).unwrap();
        let file = folder.join("keel.toml");
        fs::write(&file, text).unwrap();
        fs::write(folder.join("tokens"), "").unwrap();
        mode(&file, 0o644);
        // No user of a machine has this number.
        let stranger = Successor {
            name: "keel".to_owned(),
            uid: u32::MAX - 7,
            groups: Vec::new(),
        };
        mode(&folder, 0o755);
        mode(&folder.join("tokens"), 0o600);
        let told = stranger.lacks(&config, &file);
        let about = |key: &str, words: &str| {
            let of_key = |line: &&String| line.starts_with(key) && line.contains(words);
            told.iter().filter(of_key).count()
        };
        let made = format!(
            "install -d -o keel -m 750 {}",
            folder.join("later").display()
        );
        assert_eq!(about("store.image: ", &made), 1);
        assert_eq!(about("node.socket: ", "chown keel: "), 1);
        assert_eq!(about("http.token_file: ", "the user keel cannot read"), 1);
        assert_eq!(told.len(), 3, "{told:?}");
        let of_system = stranger.cannot_make(Path::new("/keel.sock")).unwrap();
        assert!(of_system.ends_with("a folder of its own"), "{of_system}");
        // With the rights of a group, and of others.
        let gid = fs::metadata(&folder).unwrap().gid();
        let member = Successor {
            groups: vec![gid],
            ..stranger
        };
        mode(&folder, 0o770);
        mode(&folder.join("tokens"), 0o640);
        assert_eq!(member.lacks(&config, &file), Vec::<String>::new());
        fs::remove_dir_all(&folder).unwrap();
        assert!(successor("keel-has-no-such-user").is_err());
        assert!(successor("root").is_err());
    }
}
