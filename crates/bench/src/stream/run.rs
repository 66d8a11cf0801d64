//! One start of a program in a folder that is its root. A separate process provides the kernel's file systems (`/proc`,
//! `/dev/null`, an empty `/tmp`). It measures the time from the start of the program to its end.

use std::fs::File;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::sys::{self, c_path};
use super::tasks::Task;
use super::tree::PLACES;
use crate::mem::child::{Limits, output};

/// `keel-bench stream-run`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Options {
    /// Folder that is the program's root.
    #[arg(long, value_name = "DIR")]
    root: PathBuf,
    /// File in which the number of this process is written before the program is started.
    #[arg(long, value_name = "FILE")]
    join: Vec<PathBuf>,
    /// File for what the program says, and what it writes behind it.
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// What it says in errors.
    #[arg(long, value_name = "FILE")]
    errors: PathBuf,
    /// A file that the program writes, from its root.
    #[arg(long, value_name = "PATH")]
    writes: Option<PathBuf>,
    /// Time limit of the program in seconds; it is killed afterwards.
    #[arg(long, value_name = "N", default_value_t = 120)]
    seconds_max: u64,
    /// The program, and what it is started with.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// The cost of a start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Time from before the start of the program until its end.
    pub(crate) wall_ns: u64,
    /// Processor time of the program and its children.
    pub(crate) cpu_ns: u64,
    /// Page faults that waited for I/O.
    pub(crate) major_faults: u64,
    /// Its exit status, or the negated number of the signal that ended it.
    pub(crate) status: i32,
}

impl Outcome {
    pub(crate) fn wall_ms(self) -> f64 {
        self.wall_ns as f64 / 1e6
    }
}

/// The output of a program, what it wrote, and the cost of the start.
#[derive(Clone, Debug)]
pub(crate) struct Ran {
    pub(crate) outcome: Outcome,
    pub(crate) output: Vec<u8>,
}

/// How a program is started.
pub(crate) struct Start<'a> {
    pub(crate) task: &'a Task,
    pub(crate) arguments: &'a [String],
    /// The root of the program.
    pub(crate) root: &'a Path,
    /// Files of the groups that it joins.
    pub(crate) join: &'a [PathBuf],
    pub(crate) seconds_max: u64,
}

impl<'a> Start<'a> {
    /// Returns a start with the usual arguments.
    pub(crate) fn usual(task: &'a Task, root: &'a Path) -> Self {
        Self {
            task,
            arguments: &task.arguments,
            root,
            join: &[],
            seconds_max: 120,
        }
    }

    /// Runs the program to its end. `folder` holds its output meanwhile.
    ///
    /// # Errors
    /// One line: it could not be started, did not end, or failed.
    pub(crate) fn run(&self, folder: &Path) -> Result<Ran, String> {
        let name = self.task.name;
        let [said, errors] = ["output", "errors"].map(|what| folder.join(what));
        let program = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
        let mut command = Command::new(program);
        sys::in_network(&mut command, None);
        command.arg("stream-run");
        command.arg("--root").arg(self.root);
        command
            .arg("--output")
            .arg(&said)
            .arg("--errors")
            .arg(&errors);
        command.args(["--seconds-max", &self.seconds_max.to_string()]);
        for file in self.join {
            command.arg("--join").arg(file);
        }
        if let Some(path) = self.task.writes {
            command.args(["--writes", path]);
        }
        command.arg("--").arg(&self.task.path).args(self.arguments);
        let limits = Limits {
            folder,
            time: Duration::from_secs(self.seconds_max + 30),
        };
        let text = output(name, &mut command, &limits)?;
        let outcome: Outcome =
            serde_json::from_str(&text).map_err(|error| format!("{name}: {error}"))?;
        if outcome.status != 0 {
            let text = std::fs::read(&errors).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).into_owned();
            let line = text.lines().next().unwrap_or("it said nothing");
            return Err(format!("{name}: status {}: {line}", outcome.status));
        }
        let output = std::fs::read(&said).map_err(|error| format!("{name}: {error}"))?;
        Ok(Ran { outcome, output })
    }
}

/// Starts the program and prints its cost.
///
/// # Errors
/// One line: it could not be started.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let named = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
    for file in &options.join {
        let number = std::process::id().to_string();
        std::fs::write(file, number).map_err(|error| named(file, error))?;
    }
    let create = |path: &PathBuf| File::create(path).map_err(|error| named(path, error));
    let (mut said, errors) = (create(&options.output)?, create(&options.errors)?);
    sys::own_mounts().map_err(|error| format!("mounts of its own: {error}"))?;
    give_places(&options.root)?;
    let root = c_path(&options.root)?;
    // SAFETY: a path that ends with zero.
    if unsafe { libc::chroot(root.as_ptr()) } != 0 {
        return Err(named(&options.root, io::Error::last_os_error()));
    }
    std::env::set_current_dir("/").map_err(|error| format!("/: {error}"))?;
    let mut command = Command::new(&options.command[0]);
    command
        .args(&options.command[1..])
        .env_clear()
        .envs([
            ("PATH", "/usr/bin:/bin"),
            ("HOME", "/tmp"),
            ("LC_ALL", "C"),
            ("PYTHONDONTWRITEBYTECODE", "1"),
        ])
        .stdin(Stdio::null())
        .stdout(said.try_clone().map_err(|error| error.to_string())?)
        .stderr(errors)
        .process_group(0);
    let begun = Instant::now();
    let mut child = command
        .spawn()
        .map_err(|error| format!("{}: {error}", options.command[0]))?;
    let group = libc::pid_t::try_from(child.id()).map_err(|error| error.to_string())?;
    let (ended, patience) = mpsc::channel::<()>();
    let seconds_max = Duration::from_secs(options.seconds_max);
    let watch = std::thread::spawn(move || {
        if patience.recv_timeout(seconds_max) == Err(mpsc::RecvTimeoutError::Timeout) {
            // SAFETY: no memory is passed; the process group is that of a child that has not been waited for.
            unsafe { libc::kill(-group, libc::SIGKILL) };
        }
    });
    let status = child.wait();
    let wall_ns = begun.elapsed().as_nanos() as u64;
    drop(ended);
    let status = status.map_err(|error| error.to_string())?;
    watch.join().map_err(|_| "the watch has ended early")?;
    if let Some(path) = &options.writes
        && status.success()
    {
        let mut written = File::open(path).map_err(|error| named(path, error))?;
        io::copy(&mut written, &mut said).map_err(|error| named(path, error))?;
    }
    let (cpu_ns, major_faults) = sys::children_usage();
    let outcome = Outcome {
        wall_ns,
        cpu_ns,
        major_faults,
        status: status
            .code()
            .or(status.signal().map(|signal| -signal))
            .unwrap_or(-1),
    };
    let text = serde_json::to_string(&outcome).map_err(|error| error.to_string())?;
    println!("{text}");
    Ok(())
}

/// Mounts the kernel's file systems in the tree.
fn give_places(root: &Path) -> Result<(), String> {
    for (name, is_directory) in PLACES {
        let place = root.join(name);
        let failed = |error: io::Error| format!("{}: {error}", place.display());
        match name {
            "proc" => sys::mount("proc", &place, "proc", 0, ""),
            "tmp" => sys::mount("tmpfs", &place, "tmpfs", 0, "mode=1777"),
            _ if is_directory => Ok(()),
            _ => sys::bind(&Path::new("/").join(name), &place),
        }
        .map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_of_a_start_is_read_back() {
        let outcome = Outcome {
            wall_ns: 1_500_000,
            cpu_ns: 2,
            major_faults: 3,
            status: -9,
        };
        let text = serde_json::to_string(&outcome).unwrap();
        assert_eq!(serde_json::from_str::<Outcome>(&text).unwrap(), outcome);
        assert_eq!(outcome.wall_ms(), 1.5);
    }
}
