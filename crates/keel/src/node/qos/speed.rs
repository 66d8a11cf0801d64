//! Which actuator sets the speed of the tasks' threads.

use crate::config::ActuatorKind;
use db::qos::actuator::{
    Actuator, ActuatorError, Cpufreq, Deadline, Files, Lock, NoActuator, RtGroup, SavedError,
    SystemFiles,
};
use std::path::{Path, PathBuf};

/// What to do where there is nothing that sets the speed.
pub(super) const REMEDY: &str =
    "take another qos.actuator (docs/qos.md says which this machine has) and send the node SIGHUP";

/// Why an identification would end with a model of nothing.
pub(super) const NONE_SLOWED: &str = "the speed cannot be set: rtgroup slows real-time threads alone, and no task has \
                                      one; declare it with a fifo_priority, or take qos.actuator = \"deadline\"";

/// What to say of a task whose thread is an ordinary one.
pub(super) fn not_slowed(task: &str) -> String {
    format!(
        "the task {task} has no real-time thread, and rtgroup slows no other; declare it with a fifo_priority, or take \
         qos.actuator = \"deadline\""
    )
}

/// Whether a thread is scheduled by SCHED_FIFO or SCHED_RR; one that has ended counts as such: nothing is to be said
/// of it.
pub(super) fn is_real_time(thread: u32) -> bool {
    // SAFETY: a number goes in, and a number comes out.
    let policy = unsafe { libc::sched_getscheduler(thread.cast_signed()) };
    policy < 0
        || matches!(
            policy & !libc::SCHED_RESET_ON_FORK,
            libc::SCHED_FIFO | libc::SCHED_RR
        )
}

/// Names a group of this node beside those of others on this machine.
fn group_name() -> String {
    format!("keel-{}", std::process::id())
}

/// The folder below which the machine's settings lie, however it is spelled.
pub(super) fn root(configured: &Path) -> PathBuf {
    configured
        .canonicalize()
        .or_else(|_| std::path::absolute(configured))
        .unwrap_or_else(|_| configured.to_path_buf())
}

/// Lets go the threads of nodes that were killed; the groups that could not be removed, and why.
pub(super) fn remove_groups(files: &dyn Files, root: &Path) -> Vec<(PathBuf, String)> {
    let mut left = Vec::new();
    for parent in RtGroup::places(root) {
        for name in files.list(&parent).unwrap_or_default() {
            let owner = name.strip_prefix("keel-").and_then(|id| id.parse().ok());
            let is_left = owner.is_some_and(|id: u32| !Path::new(&format!("/proc/{id}")).exists());
            if !is_left {
                continue;
            }
            // Opening one removes what has its name.
            if let Err(error) = RtGroup::open(Box::new(SystemFiles), root, &name, &[]) {
                left.push((parent.join(&name), error.to_string()));
            }
        }
    }
    left
}

/// Why this kind cannot set the speed of these threads, as far as looking tells.
pub(super) fn missing(kind: ActuatorKind, threads: &[u32], root: &Path) -> Option<String> {
    if kind != ActuatorKind::Cpufreq || threads.is_empty() {
        return None;
    }
    let checked = Cpufreq::check(&SystemFiles, root, &cores_of(threads));
    checked.err().map(|error| error.to_string())
}

/// The actuator of this kind for these threads; the words say why there is none. `root`: below it lie the system's
/// settings.
pub(crate) fn open(
    kind: ActuatorKind,
    threads: &[u32],
    root: &Path,
    saved_path: &Path,
) -> Result<Box<dyn Actuator>, String> {
    if threads.is_empty() {
        return Ok(Box::new(NoActuator));
    }
    let cpufreq = || -> Result<Box<dyn Actuator>, SavedError> {
        let cores = cores_of(threads);
        // Before there is a lock: most machines need none.
        Cpufreq::check(&SystemFiles, root, &cores)?;
        let lock = Lock::take(root, saved_path).map_err(ActuatorError::from)?;
        let opened = Cpufreq::open(Box::new(SystemFiles), root, &cores, saved_path, lock)?;
        Ok(Box::new(opened))
    };
    let rtgroup = || -> Result<Box<dyn Actuator>, String> {
        let opened = RtGroup::open(Box::new(SystemFiles), root, &group_name(), threads);
        Ok(Box::new(
            opened.map_err(|error: ActuatorError| error.to_string())?,
        ))
    };
    let deadline = || -> Box<dyn Actuator> { Box::new(Deadline::new(threads)) };
    match kind {
        ActuatorKind::None => Ok(Box::new(NoActuator)),
        ActuatorKind::Cpufreq => cpufreq().map_err(|error| error.to_string()),
        ActuatorKind::RtGroup => rtgroup(),
        ActuatorKind::Deadline => Ok(deadline()),
        ActuatorKind::Auto => match cpufreq() {
            Ok(actuator) => Ok(actuator),
            Err(SavedError::Setting(ActuatorError::Missing { .. })) => {
                Ok(rtgroup().unwrap_or_else(|_| deadline()))
            }
            // It is there, and somebody else's or in disorder: that is to be said, not to be gone round.
            Err(error) => Err(error.to_string()),
        },
    }
}

/// The processors that these threads may run on.
pub(super) fn cores_of(threads: &[u32]) -> Vec<u32> {
    let mut cores = Vec::new();
    for thread in threads {
        // SAFETY: all zero is a valid set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set lives until the call returns, and its size is said.
        let asked = unsafe {
            libc::sched_getaffinity(
                thread.cast_signed(),
                size_of::<libc::cpu_set_t>(),
                &raw mut set,
            )
        };
        if asked != 0 {
            continue;
        }
        for core in 0..libc::CPU_SETSIZE {
            // SAFETY: the number lies below the size of the set.
            if unsafe { libc::CPU_ISSET(core as usize, &set) } {
                cores.push(core.cast_unsigned());
            }
        }
    }
    cores.sort_unstable();
    cores.dedup();
    cores
}
