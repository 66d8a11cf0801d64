//! The choice of the actuator that sets the speed of the tasks' threads.

use actuator::{
    ActuatorError, AnyActuator, Cpufreq, Deadline, Files, Lock, NoActuator, RtGroup, SavedError,
    SystemFiles,
};
use config::ActuatorKind;
use std::path::{Path, PathBuf};

/// The remedy where nothing sets the speed.
pub(super) const REMEDY: &str =
    "take another qos.actuator (docs/qos.md says which this machine has) and send the node SIGHUP";

/// Why an identification would end with a useless model.
pub(super) const NONE_SLOWED: &str = "the speed cannot be set: rtgroup slows real-time threads alone, and no task has \
                                      one; declare it with a fifo_priority, or take qos.actuator = \"deadline\"";

/// Returns the message for a task whose thread is not a real-time thread.
pub(super) fn not_slowed(task: &str) -> String {
    format!(
        "the task {task} has no real-time thread, and rtgroup slows no other; declare it with a fifo_priority, or take \
         qos.actuator = \"deadline\""
    )
}

/// Returns whether a thread is scheduled by SCHED_FIFO or SCHED_RR. A thread that has ended counts as such, because no
/// message about it is needed.
pub(super) fn is_real_time(thread: u32) -> bool {
    // SAFETY: the argument and the result are plain numbers.
    let policy = unsafe { libc::sched_getscheduler(thread.cast_signed()) };
    policy < 0
        || matches!(
            policy & !libc::SCHED_RESET_ON_FORK,
            libc::SCHED_FIFO | libc::SCHED_RR
        )
}

/// Returns a group name that is unique among the nodes on this machine.
fn group_name() -> String {
    format!("keel-{}", std::process::id())
}

/// Returns the folder below which the machine's settings lie, in canonical form.
pub(super) fn root(configured: &Path) -> PathBuf {
    configured
        .canonicalize()
        .or_else(|_| std::path::absolute(configured))
        .unwrap_or_else(|_| configured.to_path_buf())
}

/// Releases the threads of killed nodes. Returns the groups that could not be removed, and why.
pub(super) fn remove_groups(files: &dyn Files, root: &Path) -> Vec<(PathBuf, String)> {
    let mut left = Vec::new();
    for parent in RtGroup::places(root) {
        for name in files.list(&parent).unwrap_or_default() {
            let owner = name.strip_prefix("keel-").and_then(|id| id.parse().ok());
            let is_left = owner.is_some_and(|id: u32| !Path::new(&format!("/proc/{id}")).exists());
            if !is_left {
                continue;
            }
            // Opening a group removes an existing one of its name.
            if let Err(error) = RtGroup::open(Box::new(SystemFiles), root, &name, &[]) {
                left.push((parent.join(&name), error.to_string()));
            }
        }
    }
    left
}

/// Returns why this kind of actuator cannot set the speed of these threads, as far as a check can tell.
pub(super) fn missing(kind: ActuatorKind, threads: &[u32], root: &Path) -> Option<String> {
    if kind != ActuatorKind::Cpufreq || threads.is_empty() {
        return None;
    }
    let checked = Cpufreq::check(&SystemFiles, root, &cores_of(threads));
    checked.err().map(|error| error.to_string())
}

/// Opens an actuator of this kind for these threads; the error says why there is none. The system's settings lie below
/// `root`.
pub(crate) fn open(
    kind: ActuatorKind,
    threads: &[u32],
    root: &Path,
    saved_path: &Path,
) -> Result<AnyActuator, String> {
    if threads.is_empty() {
        return Ok(Box::new(NoActuator));
    }
    let cpufreq = || -> Result<AnyActuator, SavedError> {
        let cores = cores_of(threads);
        // Check before taking the lock: most machines need none.
        Cpufreq::check(&SystemFiles, root, &cores)?;
        let lock = Lock::take(root, saved_path).map_err(ActuatorError::from)?;
        let opened = Cpufreq::open(Box::new(SystemFiles), root, &cores, saved_path, lock)?;
        Ok(Box::new(opened))
    };
    let rtgroup = || -> Result<AnyActuator, String> {
        let opened = RtGroup::open(Box::new(SystemFiles), root, &group_name(), threads);
        Ok(Box::new(
            opened.map_err(|error: ActuatorError| error.to_string())?,
        ))
    };
    let deadline = || -> AnyActuator { Box::new(Deadline::new(threads)) };
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
            // The actuator exists, but is in use elsewhere or broken: report that instead of falling back.
            Err(error) => Err(error.to_string()),
        },
    }
}

/// Returns the processors on which these threads may run.
pub(super) fn cores_of(threads: &[u32]) -> Vec<u32> {
    let mut cores = Vec::new();
    for thread in threads {
        // SAFETY: all zeros are a valid set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set lives until the call returns, and its size is given.
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
            // SAFETY: the number is below the size of the set.
            if unsafe { libc::CPU_ISSET(core as usize, &set) } {
                cores.push(core.cast_unsigned());
            }
        }
    }
    cores.sort_unstable();
    cores.dedup();
    cores
}
