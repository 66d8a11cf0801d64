//! Our system as processes: a store, its server on the server's side of the line, a mount on the device's side.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::net::{Line, SERVER, at_server};
use super::sshfs::{is_mounted, wait_for_port};
use super::sys;
use crate::node::process::Process;
use crate::store::tool;

/// Port of the server.
pub(crate) const PORT: u16 = 7007;

/// The attribute of the mount's root that holds its figures.
const FIGURES: &str = "user.keel.stream";

/// The folder of a store that holds what was learned.
const LEARNED: &str = "actions";

/// Timeout for a tree to be mounted.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server is idle if it uses less than `REST_NS` of processor time in each of `LOOKS_AT_REST` polls; this is the poll
/// interval.
const LOOK_EVERY: Duration = Duration::from_millis(40);
const REST_NS: u64 = 4_000_000;
const LOOKS_AT_REST: u32 = 3;
/// Timeout for a server to become ready; after it, the server is measured as it is.
const READY_MAX: Duration = Duration::from_secs(30);

/// The program, and the certificates by which its parts identify each other.
pub(crate) struct Keel {
    program: PathBuf,
    folder: PathBuf,
}

/// The options of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Serving {
    pub(crate) predict: &'static str,
    /// Blocks of a segment in the mode `paper`, if not the default.
    pub(crate) seg_max: Option<u32>,
    pub(crate) provide: &'static str,
    /// Memory for content, in MiB.
    pub(crate) memory_mebibytes: u32,
    /// Whether it compresses learned actions ahead at its start.
    pub(crate) prepares: bool,
}

impl Default for Serving {
    fn default() -> Self {
        Self {
            predict: "task",
            seg_max: None,
            provide: "async",
            memory_mebibytes: 256,
            prepares: true,
        }
    }
}

/// The options of the mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mounting {
    /// Readahead of the kernel, in KiB.
    pub(crate) readahead_kib: u32,
    /// Pages of the pool, if not the default.
    pub(crate) pool_pages: Option<u32>,
    /// Whether a thread allocates the pool's free pages ahead.
    pub(crate) pool_is_filled: bool,
    /// Connections, if not the default.
    pub(crate) connections: Option<&'static str>,
    /// Folder of a cache on this device.
    pub(crate) cache: Option<PathBuf>,
    /// Timeout of a read in seconds, if not the default.
    pub(crate) deadline_s: Option<u32>,
    /// Files of the groups that the mount joins.
    pub(crate) join: Vec<PathBuf>,
    /// Whether to run the peer instead, which fetches only what the kernel requests.
    pub(crate) is_plain: bool,
}

/// A server.
pub(crate) struct Server {
    process: Option<Process>,
}

/// A mounted tree.
pub(crate) struct Mounted {
    at: PathBuf,
    process: Option<Process>,
}

impl Keel {
    /// Finds the program in the folder of this one, and creates certificates in a new folder.
    ///
    /// # Errors
    /// One line: it is missing, or of another kind.
    pub(crate) fn create(folder: &Path) -> Result<Self, String> {
        let own = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
        let program = own.with_file_name("keel");
        if !program.is_file() {
            return Err(format!("{} is not there: build it too", program.display()));
        }
        fs::create_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let keel = Self {
            program,
            folder: folder.to_owned(),
        };
        let [authority, server, device] =
            ["authority", "server", "device"].map(|name| keel.path(name));
        keel.tool(&["identity", "authority"], &[&authority])?;
        keel.tool(
            &["identity", "server", "--name", &SERVER.to_string()],
            &[&authority, &server],
        )?;
        keel.tool(
            &["identity", "device", "--name", "bench"],
            &[&authority, &device],
        )?;
        Ok(keel)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns the folder of the device's certificate.
    pub(crate) fn device_identity(&self) -> PathBuf {
        self.path("device")
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        sys::in_network(&mut command, None);
        command.arg("stream").args(words);
        command
    }

    fn tool(&self, words: &[&str], paths: &[&Path]) -> Result<String, String> {
        tool(self.command(words).args(paths))
    }

    /// Publishes a tree in a store.
    ///
    /// # Errors
    /// One line with the program's reason.
    pub(crate) fn pack(&self, tree: &Path, store: &Path) -> Result<(), String> {
        self.tool(&["pack"], &[tree, store]).map(drop)
    }

    /// Serves a store.
    ///
    /// # Errors
    /// One line with the program's reason.
    pub(crate) fn serve(&self, line: &Line, store: &Path, how: &Serving) -> Result<Server, String> {
        let mut command = self.command(&["serve"]);
        command
            .arg(store)
            .args(["--listen", &at_server(PORT).to_string()]);
        command.arg("--identity").arg(self.path("server"));
        command
            .arg("--devices")
            .arg(self.path("authority").join("devices"));
        command.args(["--predict", how.predict, "--provide", how.provide]);
        if let Some(seg_max) = how.seg_max {
            command.args(["--seg-max", &seg_max.to_string()]);
        }
        command.args(["--memory", &format!("{}M", how.memory_mebibytes)]);
        if !how.prepares {
            command.arg("--no-preparation");
        }
        // All clients of a run share one identity.
        command.args(["--clients-max-per-device", "1024"]);
        sys::in_network(&mut command, Some(line.server()));
        let mut process =
            Process::spawn("keel stream serve", &mut command, &self.path("serve.log"))?;
        wait_for_port(line.server(), at_server(PORT), &mut process)
            .map_err(|error| self.last_words(&error, "serve.log"))?;
        Ok(Server {
            process: Some(process),
        })
    }

    /// Mounts a server's tree through a port that leads to the server. The record of seen versions is a new one.
    ///
    /// # Errors
    /// One line with the program's reason.
    pub(crate) fn mount(
        &self,
        line: &Line,
        port: u16,
        at: &Path,
        how: &Mounting,
    ) -> Result<Mounted, String> {
        fs::create_dir_all(at).map_err(|error| format!("{}: {error}", at.display()))?;
        let mut command = if how.is_plain {
            let own = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
            let mut command = Command::new(own);
            command.args(["stream-plain", &at_server(port).to_string()]);
            command
        } else {
            self.command(&["mount", &at_server(port).to_string()])
        };
        command
            .arg(at)
            .arg("--identity")
            .arg(self.device_identity());
        match &how.cache {
            Some(cache) => command.arg("--cache").arg(cache),
            None => {
                let state = self.path("state");
                let _ = fs::remove_dir_all(&state);
                fs::create_dir(&state).map_err(|error| format!("{}: {error}", state.display()))?;
                command.arg("--state").arg(state)
            }
        };
        let options = [
            (
                "--readahead-kb",
                Some(how.readahead_kib)
                    .filter(|kib| *kib > 0)
                    .map(|kib| kib.to_string()),
            ),
            (
                "--pool-pages",
                how.pool_pages.map(|pages| pages.to_string()),
            ),
            ("--connections", how.connections.map(str::to_owned)),
            (
                "--deadline-s",
                how.deadline_s.map(|seconds| seconds.to_string()),
            ),
        ];
        for (name, value) in options {
            if let Some(value) = value {
                command.args([name, &value]);
            }
        }
        if how.pool_is_filled {
            command.arg("--pool-filled");
        }
        sys::in_network(&mut command, Some(line.device()));
        sys::in_groups(&mut command, &how.join)?;
        let mut process =
            Process::spawn("keel stream mount", &mut command, &self.path("mount.log"))?;
        let is_there = sys::wait_until(PATIENCE, || {
            process.check_alive()?;
            Ok(is_mounted(at))
        });
        match is_there {
            Ok(true) => Ok(Mounted {
                at: at.to_owned(),
                process: Some(process),
            }),
            Ok(false) => Err(format!("nothing is mounted after {} s", PATIENCE.as_secs())),
            Err(error) => Err(self.last_words(&error, "mount.log")),
        }
    }

    /// Returns the error, with the last output of the program.
    fn last_words(&self, error: &str, log: &str) -> String {
        let text = fs::read_to_string(self.path(log)).unwrap_or_default();
        let last = text.lines().rev().find(|line| !line.trim().is_empty());
        last.map_or_else(|| error.to_owned(), |line| format!("{error}: {line}"))
    }
}

/// Copies what a store has learned to another folder, or back; replaces what is there. No server may use the store
/// meanwhile.
///
/// # Errors
/// One line with the path.
pub(crate) fn copy_learned(from: &Path, to: &Path) -> Result<(), String> {
    forget_learned(to)?;
    let (from, to) = (from.join(LEARNED), to.join(LEARNED));
    if !from.is_dir() {
        return Ok(());
    }
    let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    fs::create_dir_all(&to).map_err(|error| failed(&to, error))?;
    for entry in fs::read_dir(&from).map_err(|error| failed(&from, error))? {
        let path = entry.map_err(|error| failed(&from, error))?.path();
        let target = to.join(path.file_name().unwrap_or_default());
        fs::copy(&path, &target).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}

/// Removes what a store has learned. No server may use the store.
///
/// # Errors
/// One line with the path.
pub(crate) fn forget_learned(store: &Path) -> Result<(), String> {
    let folder = store.join(LEARNED);
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {error}", folder.display()))
        }
        _ => Ok(()),
    }
}

impl Server {
    /// Ends the server, which then saves what it has learned.
    ///
    /// # Errors
    /// One line: it does not end.
    pub(crate) fn end(mut self) -> Result<(), String> {
        self.process
            .take()
            .map_or(Ok(()), |process| process.end().map(drop))
    }

    /// Returns its process ID.
    pub(crate) fn id(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }

    /// Waits until the server has finished its preparations after the start, which shows by its idleness.
    ///
    /// # Errors
    /// One line: it has ended.
    pub(crate) fn settle(&mut self) -> Result<(), String> {
        let Some(process) = &mut self.process else {
            return Ok(());
        };
        let mut used_ns = process.cpu_ns()?;
        let mut looks_at_rest = 0;
        sys::wait_until(READY_MAX, || {
            process.check_alive()?;
            std::thread::sleep(LOOK_EVERY);
            let now_ns = process.cpu_ns()?;
            let is_at_rest = now_ns - used_ns < REST_NS;
            looks_at_rest = if is_at_rest { looks_at_rest + 1 } else { 0 };
            used_ns = now_ns;
            Ok(looks_at_rest >= LOOKS_AT_REST)
        })
        .map(drop)
    }
}

impl Mounted {
    /// Returns its counters.
    ///
    /// # Errors
    /// One line: it has none.
    pub(crate) fn figures(&self) -> Result<Value, String> {
        let bytes =
            sys::attribute(&self.at, FIGURES).map_err(|error| format!("{FIGURES}: {error}"))?;
        serde_json::from_slice(&bytes).map_err(|error| format!("{FIGURES}: {error}"))
    }

    /// Returns its process ID.
    pub(crate) fn id(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }

    /// Unmounts the tree as a user would.
    ///
    /// # Errors
    /// One line: it does not end.
    pub(crate) fn end(mut self) -> Result<(), String> {
        self.process
            .take()
            .map_or(Ok(()), |process| process.end().map(drop))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            let _ = process.end();
        }
        if is_mounted(&self.at) {
            let _ = sys::unmount(&self.at, true);
        }
    }
}
