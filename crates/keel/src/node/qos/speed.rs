//! Which actuator sets the speed of the tasks' threads.

use crate::config::ActuatorKind;
use db::qos::actuator::{
    Actuator, ActuatorError, Cpufreq, Deadline, NoActuator, RtGroup, SavedError, SystemFiles,
};
use db::qos::actuator::{Files, Saved};
use std::path::Path;

/// Names a group of this node beside those of others on this machine.
fn group_name() -> String {
    format!("keel-{}", std::process::id())
}

/// Puts back what a node has left that was killed, whatever is configured now.
pub(crate) fn clean_up(root: &Path, saved_path: &Path) -> Result<usize, SavedError> {
    remove_groups(&SystemFiles, root);
    Saved::put_back_left(saved_path, root, &SystemFiles)
}

/// The threads in a group go back to where the others are when nobody needs it any more.
fn remove_groups(files: &dyn Files, root: &Path) {
    let parent = root.join("sys/fs/cgroup/cpu");
    let names = files.list(&parent).unwrap_or_default();
    for name in names {
        let owner = name.strip_prefix("keel-").and_then(|id| id.parse().ok());
        let is_left = owner.is_some_and(|id: u32| !Path::new(&format!("/proc/{id}")).exists());
        if is_left {
            // Opening one removes what has its name.
            drop(RtGroup::open(Box::new(SystemFiles), root, &name, &[]));
        }
    }
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
    let cpufreq = || -> Result<Box<dyn Actuator>, String> {
        let cores = cores_of(threads);
        let opened = Cpufreq::open(Box::new(SystemFiles), root, &cores, saved_path);
        Ok(Box::new(opened.map_err(|error| error.to_string())?))
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
        ActuatorKind::Cpufreq => cpufreq(),
        ActuatorKind::RtGroup => rtgroup(),
        ActuatorKind::Deadline => Ok(deadline()),
        ActuatorKind::Auto => Ok(cpufreq()
            .or_else(|_| rtgroup())
            .unwrap_or_else(|_| deadline())),
    }
}

/// The processors that these threads may run on.
fn cores_of(threads: &[u32]) -> Vec<u32> {
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
