//! The peer sshfs, with all its caches: it has its own server, with its own keys, on the server's side of the line.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::net::{Line, SERVER, inside};
use super::sys;
use crate::node::process::Process;
use crate::store::tool;

/// Port of the server.
pub(crate) const PORT: u16 = 2222;

/// Timeout for the server to answer, and for a tree to be mounted.
const PATIENCE: Duration = Duration::from_secs(20);

/// Time in seconds for which the client may cache attributes of a tree that does not change.
const REMEMBER_S: u32 = 86_400;

/// The server.
pub(crate) struct Sshd {
    process: Process,
    folder: PathBuf,
}

impl Sshd {
    /// Starts a server whose keys are in a new folder.
    ///
    /// # Errors
    /// One line that says what is missing.
    pub(crate) fn start(folder: &Path, line: &Line) -> Result<Self, String> {
        fs::create_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        for name in ["host", "device"] {
            let mut command = Command::new("ssh-keygen");
            command.args(["-q", "-t", "ed25519", "-N", "", "-f"]);
            tool(command.arg(folder.join(name)))?;
        }
        // sshd requires this folder for its privilege separation.
        let apart = Path::new("/run/sshd");
        if !apart.exists() {
            // Mounts belong to this run only, so nothing of them stays.
            let failed = |error: std::io::Error| format!("{}: {error}", apart.display());
            sys::mount("tmpfs", Path::new("/run"), "tmpfs", 0, "mode=755").map_err(failed)?;
            fs::create_dir(apart).map_err(failed)?;
        }
        let path = |name: &str| folder.join(name).display().to_string();
        let settings = format!(
            "Port {PORT}\nListenAddress {SERVER}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\n\
             UsePAM no\nPermitRootLogin yes\nPasswordAuthentication no\nSubsystem sftp internal-sftp\n\
             MaxStartups 100\nUseDNS no\n",
            path("host"),
            path("device.pub"),
        );
        let file = folder.join("settings");
        fs::write(&file, settings).map_err(|error| format!("{}: {error}", file.display()))?;
        let mut command = Command::new("/usr/sbin/sshd");
        command.arg("-D").arg("-e").arg("-f").arg(&file);
        sys::in_network(&mut command, Some(line.server()));
        let mut process = Process::spawn("sshd", &mut command, &folder.join("log"))?;
        wait_for_port(line.server(), (SERVER, PORT).into(), &mut process)?;
        Ok(Self {
            process,
            folder: folder.to_owned(),
        })
    }

    /// Mounts a tree of the server's side through a port that leads to the server.
    ///
    /// # Errors
    /// One line that says what is missing.
    pub(crate) fn mount(
        &self,
        line: &Line,
        port: u16,
        tree: &Path,
        at: &Path,
    ) -> Result<Sshfs, String> {
        fs::create_dir_all(at).map_err(|error| format!("{}: {error}", at.display()))?;
        // Newer versions refuse links that lead to the root unless this option is given; older ones do not know the
        // option.
        let help = Command::new("sshfs").arg("--help").output();
        let help = help.map_err(|error| format!("sshfs: {error}"))?;
        let has_word = [help.stdout, help.stderr]
            .iter()
            .any(|text| String::from_utf8_lossy(text).contains("no_contain_symlinks"));
        let options = [
            format!("port={port}{}", if has_word { ",no_contain_symlinks" } else { "" }),
            format!("IdentityFile={}", self.folder.join("device").display()),
            "StrictHostKeyChecking=no,UserKnownHostsFile=/dev/null,GlobalKnownHostsFile=/dev/null,LogLevel=ERROR"
                .to_owned(),
            format!("ro,kernel_cache,dir_cache=yes,dcache_timeout={REMEMBER_S},dcache_max_size=100000"),
            format!("entry_timeout={REMEMBER_S},attr_timeout={REMEMBER_S},negative_timeout={REMEMBER_S}"),
        ];
        let mut command = Command::new("sshfs");
        command
            .arg("-f")
            .arg(format!("root@{SERVER}:{}", tree.display()))
            .arg(at);
        command.arg("-o").arg(options.join(","));
        sys::in_network(&mut command, Some(line.device()));
        let mut process = Process::spawn("sshfs", &mut command, &self.folder.join("sshfs.log"))?;
        let is_there = sys::wait_until(PATIENCE, || {
            process.check_alive()?;
            Ok(is_mounted(at))
        })?;
        if !is_there {
            return Err(format!(
                "sshfs has not mounted after {} s",
                PATIENCE.as_secs()
            ));
        }
        Ok(Sshfs {
            at: at.to_owned(),
            process: Some(process),
        })
    }
}

impl Sshd {
    /// Returns all processes involved.
    pub(crate) fn processes(&self, mounted: &Sshfs) -> Vec<Option<u32>> {
        let mount = mounted.process.as_ref().map(Process::id);
        let mut all = vec![Some(self.process.id()), mount];
        // The mount has a child process that talks to the server.
        let children = mount.map(|id| format!("/proc/{id}/task/{id}/children"));
        let children = children.and_then(|path| fs::read_to_string(path).ok());
        for child in children.unwrap_or_default().split_whitespace() {
            all.push(child.parse().ok());
        }
        all
    }
}

/// A mounted tree.
pub(crate) struct Sshfs {
    at: PathBuf,
    process: Option<Process>,
}

impl Drop for Sshfs {
    fn drop(&mut self) {
        let _ = sys::unmount(&self.at, false).or_else(|_| sys::unmount(&self.at, true));
        if let Some(process) = self.process.take() {
            let _ = process.end();
        }
    }
}

/// Whether a FUSE file system is mounted exactly at this path.
pub(crate) fn is_mounted(at: &Path) -> bool {
    let Ok(mounts) = fs::read_to_string("/proc/self/mountinfo") else {
        return false;
    };
    let place = at.to_string_lossy().replace(' ', "\\040");
    mounts.lines().any(|line| {
        line.split(' ').nth(4) == Some(&place)
            && line
                .split(" - ")
                .nth(1)
                .is_some_and(|kind| kind.starts_with("fuse"))
    })
}

/// Waits until a process listens on this port.
///
/// # Errors
/// One line: the process has ended, or the port stays unused.
pub(crate) fn wait_for_port(
    network: &File,
    address: SocketAddr,
    process: &mut Process,
) -> Result<(), String> {
    let is_there = sys::wait_until(PATIENCE, || {
        process.check_alive()?;
        inside(network, || TcpStream::connect(address).is_ok())
    })?;
    if is_there {
        Ok(())
    } else {
        Err(format!("{address}: no server listens there"))
    }
}
