//! A share of the processor for real-time tasks: the real-time bandwidth of a control group (version 1, a kernel with
//! `CONFIG_RT_GROUP_SCHED`).
//!
//! A substitute for frequency where that cannot be set: the task gets a part of each short period, so it takes longer
//! in proportion. It also slows work that waits for memory, which frequency does less, and saves no energy by itself.

use std::path::{Component, Path, PathBuf};

use control::actuator::{Actuator, Applied};

use crate::error::ActuatorError;
use crate::files::Files;

/// Where the groups are, below the root of the system's files; the second one where several controllers share a mount.
const PLACES: [&str; 2] = ["sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"];

/// Short against a task of some milliseconds; otherwise one task runs through unslowed and the next one stands still.
const PERIOD_US: u64 = 5_000;

/// Largest part of the period that real-time tasks may have: the kernel keeps the rest for others.
const PART_MAX: f64 = 0.94;

/// Steps that are worth setting: enforcement is by the clock tick.
const STEP: f64 = 0.05;

/// A group of its own with some threads in it.
pub struct RtGroup {
    files: Box<dyn Files>,
    root: PathBuf,
    parent: PathBuf,
    group: PathBuf,
    threads: Vec<u32>,
    /// Groups that threads were in before, if that is not the parent group.
    homes: Vec<(u32, PathBuf)>,
    /// The group exists.
    is_changed: bool,
    /// It has its share and all of the threads.
    is_begun: bool,
}

impl std::fmt::Debug for RtGroup {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("RtGroup")
            .field("group", &self.group)
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

impl RtGroup {
    /// Where groups may be, below the root of the system's files.
    #[must_use]
    pub fn places(root: &Path) -> [PathBuf; 2] {
        PLACES.map(|place| root.join(place))
    }

    /// The name that configurations use.
    pub const NAME: &'static str = "rtgroup";

    /// Makes the actuator for these threads, in a group of this name, which no other program uses. A group that a
    /// killed program has left is removed.
    ///
    /// # Errors
    /// [`ActuatorError::Missing`] where there are no such groups.
    pub fn open(
        files: Box<dyn Files>,
        root: &Path,
        name: &str,
        threads: &[u32],
    ) -> Result<Self, ActuatorError> {
        let has_bandwidth =
            |parent: &PathBuf| files.read(&parent.join("cpu.rt_runtime_us")).is_ok();
        let parent = Self::places(root).into_iter().find(has_bandwidth);
        let Some(parent) = parent else {
            return Err(ActuatorError::Missing {
                path: root.join(PLACES[0]),
                what: "no control groups with real-time bandwidth (cgroup v1, CONFIG_RT_GROUP_SCHED)",
            });
        };
        let group = parent.join(name);
        let made = Self {
            files,
            root: root.to_owned(),
            parent,
            group,
            threads: threads.to_vec(),
            homes: Vec::new(),
            is_changed: false,
            is_begun: false,
        };
        made.remove()?;
        Ok(made)
    }

    fn write(&self, folder: &Path, name: &str, text: &str) -> Result<(), ActuatorError> {
        let path = folder.join(name);
        self.files
            .write(&path, text)
            .map_err(|error| ActuatorError::file(&path, &error))
    }

    fn runtime_us(speed: f64) -> u64 {
        ((speed * PART_MAX * PERIOD_US as f64).round() as u64).max(1)
    }

    /// Creates the group, or continues where an earlier attempt has failed.
    fn begin(&mut self, speed: f64) -> Result<(), ActuatorError> {
        if !self.is_changed {
            self.files
                .make(&self.group)
                .map_err(|error| ActuatorError::file(&self.group, &error))?;
            self.is_changed = true;
        }
        self.write(&self.group, "cpu.rt_period_us", &PERIOD_US.to_string())?;
        // Set the share before a real-time thread enters: a group without a share refuses it.
        let runtime = Self::runtime_us(speed).to_string();
        self.write(&self.group, "cpu.rt_runtime_us", &runtime)
            .map_err(taken)?;
        for thread in self.threads.clone() {
            if let Some(home) = self.home(thread) {
                self.homes.retain(|(other, _)| *other != thread);
                self.homes.push((thread, home));
            }
            self.write(&self.group, "tasks", &thread.to_string())?;
        }
        self.is_begun = true;
        Ok(())
    }

    /// Returns the group that a thread is in now: that of its service, for example. `None` if the system does not
    /// report it, or if it is this group or its parent.
    fn home(&self, thread: u32) -> Option<PathBuf> {
        let path = self.root.join(format!("proc/{thread}/cgroup"));
        let text = self.files.read(&path).ok()?;
        // A number, the controllers and the path, divided by colons.
        let below = text.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let is_cpu = controllers.split(',').any(|name| name == "cpu");
            is_cpu.then(|| path.trim_start_matches('/'))
        })?;
        let is_plain = Path::new(below)
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        let home = self.parent.join(below);
        let is_there = || self.files.read(&home.join("tasks")).is_ok();
        (is_plain && !below.is_empty() && home != self.group && is_there()).then_some(home)
    }

    /// Moves all threads of the group back to where they were, and removes it. For a killed program's group that place
    /// is unknown: its threads go to the parent group.
    fn remove(&self) -> Result<(), ActuatorError> {
        let path = self.group.join("tasks");
        let threads = match self.files.read(&path) {
            Ok(threads) => threads,
            Err(error) => {
                // The group is gone only if it is missing while its parent is there.
                let has_others = self.files.read(&self.parent.join("tasks")).is_ok();
                return if has_others && error.kind() == std::io::ErrorKind::NotFound {
                    Ok(())
                } else {
                    Err(ActuatorError::file(&path, &error))
                };
            }
        };
        for thread in threads.lines() {
            let known = self
                .homes
                .iter()
                .find(|(other, _)| thread.parse::<u32>() == Ok(*other));
            let is_home = known.is_some_and(|(_, home)| self.write(home, "tasks", thread).is_ok());
            if !is_home {
                // A thread that has ended is in no group.
                let _ = self.write(&self.parent, "tasks", thread);
            }
        }
        self.files
            .remove(&self.group)
            .map_err(|error| ActuatorError::file(&self.group, &error))
    }
}

impl Actuator for RtGroup {
    type Error = ActuatorError;

    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn set(&mut self, speed: f64) -> Result<Applied, ActuatorError> {
        if !(speed > 0.0 && speed <= 1.0) {
            return Err(ActuatorError::Speed);
        }
        let runtime = Self::runtime_us(speed);
        if self.is_begun {
            self.write(&self.group, "cpu.rt_runtime_us", &runtime.to_string())?;
        } else {
            self.begin(speed)?;
        }
        let path = self.group.join("cpu.rt_runtime_us");
        let text = self
            .files
            .read(&path)
            .map_err(|error| ActuatorError::file(&path, &error))?;
        let Ok(found) = text.parse::<u64>() else {
            return Err(ActuatorError::NoNumber { path, text });
        };
        Ok(Applied {
            speed: found as f64 / (PART_MAX * PERIOD_US as f64),
            is_obeyed: found == runtime,
        })
    }

    fn step(&self) -> f64 {
        STEP
    }

    fn restore(&mut self) -> Result<(), ActuatorError> {
        if self.is_changed {
            self.remove()?;
            (self.is_changed, self.is_begun) = (false, false);
            self.homes.clear();
        }
        Ok(())
    }
}

impl Drop for RtGroup {
    fn drop(&mut self) {
        let _ = self.restore();
    }
}

/// Explains what the kernel means by an invalid share of a group that has just been made.
fn taken(error: ActuatorError) -> ActuatorError {
    match error {
        ActuatorError::File { path, text, errno } if errno == libc::EINVAL => ActuatorError::File {
            path,
            text: format!(
                "{text}: another group has the share of real time, or the one above has none; see the same file of both"
            ),
            errno,
        },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Says which thread no longer exists.
    const GONE: &str = "/m/gone";

    /// Simulated groups, with the rules of the kernel's.
    #[derive(Clone, Default)]
    struct Machine(Arc<Mutex<BTreeMap<PathBuf, String>>>);

    impl Machine {
        fn new() -> Self {
            let machine = Self::default();
            let parent = Path::new("/m").join(PLACES[1]);
            machine.add(&parent, "950000", "1000000", "1\n77\n78");
            machine
        }

        fn add(&self, group: &Path, runtime: &str, period: &str, tasks: &str) {
            let mut files = self.0.lock().unwrap();
            files.insert(group.join("cpu.rt_runtime_us"), runtime.to_owned());
            files.insert(group.join("cpu.rt_period_us"), period.to_owned());
            files.insert(group.join("tasks"), tasks.to_owned());
        }

        fn remove_group(&self, group: &Path) {
            let mut files = self.0.lock().unwrap();
            files.retain(|file, _| !file.starts_with(group));
        }

        /// Whether the groups together have more of the time than their parent.
        fn is_too_much(files: &BTreeMap<PathBuf, String>) -> bool {
            let parent = Path::new("/m").join(PLACES[1]);
            let number = |path: &Path| files[path].parse::<f64>().unwrap();
            let share =
                |path: &Path| number(path) / number(&path.with_file_name("cpu.rt_period_us"));
            let runtimes = files
                .keys()
                .filter(|path| path.ends_with("cpu.rt_runtime_us"));
            let (above, below): (Vec<_>, Vec<_>) =
                runtimes.partition(|path| path.parent() == Some(&parent));
            below.into_iter().map(|path| share(path)).sum::<f64>() > share(above[0])
        }

        fn has(&self, group: &str, name: &str) -> Option<String> {
            let path = Path::new("/m").join(PLACES[1]).join(group).join(name);
            self.0.lock().unwrap().get(&path).cloned()
        }

        fn open(&self) -> Result<RtGroup, ActuatorError> {
            RtGroup::open(Box::new(self.clone()), Path::new("/m"), "task", &[77, 78])
        }
    }

    impl Files for Machine {
        fn read(&self, path: &Path) -> std::io::Result<String> {
            let found = self.0.lock().unwrap().get(path).cloned();
            found.ok_or_else(|| std::io::Error::from_raw_os_error(2))
        }

        fn write(&self, path: &Path, text: &str) -> std::io::Result<()> {
            let error = std::io::Error::from_raw_os_error;
            let mut files = self.0.lock().unwrap();
            if !files.contains_key(path) {
                return Err(error(2));
            }
            if !path.ends_with("tasks") {
                let before = files.insert(path.to_owned(), text.to_owned());
                if Self::is_too_much(&files) {
                    files.insert(path.to_owned(), before.unwrap());
                    return Err(error(22));
                }
                return Ok(());
            }
            let gone = files.get(Path::new(GONE));
            if gone.is_some_and(|gone| gone == text) {
                return Err(error(3));
            }
            let runtime = &files[&path.with_file_name("cpu.rt_runtime_us")];
            if runtime == "0" {
                return Err(error(22));
            }
            for (file, tasks) in files.iter_mut().filter(|(file, _)| file.ends_with("tasks")) {
                let mut all: Vec<_> = tasks.lines().filter(|task| *task != text).collect();
                if file == path {
                    all.push(text);
                }
                *tasks = all.join("\n");
            }
            Ok(())
        }

        fn list(&self, _: &Path) -> std::io::Result<Vec<String>> {
            Ok(Vec::new())
        }

        fn make(&self, path: &Path) -> std::io::Result<()> {
            self.add(path, "0", "1000000", "");
            Ok(())
        }

        fn remove(&self, path: &Path) -> std::io::Result<()> {
            let mut files = self.0.lock().unwrap();
            if !files[&path.join("tasks")].is_empty() {
                return Err(std::io::Error::from_raw_os_error(16));
            }
            files.retain(|file, _| !file.starts_with(path));
            Ok(())
        }
    }

    #[test]
    fn a_share_that_another_group_has_is_reported() {
        let machine = Machine::new();
        let other = Path::new("/m").join(PLACES[1]).join("other");
        machine.add(&other, "4700", "5000", "5");
        let mut group = machine.open().unwrap();
        let said = group.set(0.5).unwrap_err().to_string();
        assert!(
            said.contains("task/cpu.rt_runtime_us") && said.contains("another group"),
            "{said}"
        );
        assert_eq!(machine.has("", "tasks").unwrap(), "1\n77\n78");
        machine.remove_group(&other);
        group.set(0.5).unwrap();
        assert_eq!(machine.has("task", "tasks").unwrap(), "77\n78");
    }

    #[test]
    fn threads_get_a_share_and_go_back() {
        let machine = Machine::new();
        let mut group = machine.open().unwrap();
        assert_eq!(
            machine.has("task", "tasks"),
            None,
            "nothing before the first speed"
        );
        for (speed, runtime) in [(0.5, "2350"), (1.0, "4700"), (0.1, "470")] {
            let applied = group.set(speed).unwrap();
            assert!(
                applied.is_obeyed && (applied.speed - speed).abs() < 1e-3,
                "{applied:?}"
            );
            assert_eq!(machine.has("task", "cpu.rt_runtime_us").unwrap(), runtime);
            assert_eq!(machine.has("task", "tasks").unwrap(), "77\n78");
        }
        drop(group);
        assert_eq!(machine.has("task", "tasks"), None);
        assert_eq!(machine.has("", "tasks").unwrap(), "1\n77\n78");
    }

    #[test]
    fn a_group_that_a_kill_has_left_is_removed() {
        let machine = Machine::new();
        let mut killed = machine.open().unwrap();
        killed.set(0.3).unwrap();
        std::mem::forget(killed);
        let next = machine.open().unwrap();
        assert_eq!(machine.has("task", "tasks"), None);
        assert_eq!(machine.has("", "tasks").unwrap(), "1\n77\n78");
        drop(next);
    }

    #[test]
    fn a_group_that_cannot_be_seen_is_not_taken_for_removed() {
        let machine = Machine::new();
        let mut group = machine.open().unwrap();
        group.set(0.3).unwrap();
        let all = std::mem::take(&mut *machine.0.lock().unwrap());
        assert!(matches!(
            group.restore(),
            Err(ActuatorError::File { errno: 2, .. })
        ));
        *machine.0.lock().unwrap() = all;
        group.restore().unwrap();
        assert_eq!(machine.has("", "tasks").unwrap(), "1\n77\n78");
    }

    #[test]
    fn threads_go_back_to_the_groups_that_they_were_in() {
        let machine = Machine::new();
        let parent = Path::new("/m").join(PLACES[1]);
        let service = parent.join("system.slice/valve.service");
        machine.add(&service, "100000", "1000000", "77");
        machine.add(&parent, "950000", "1000000", "1\n78");
        let note = |thread: u32, text: &str| {
            let path = PathBuf::from(format!("/m/proc/{thread}/cgroup"));
            machine.0.lock().unwrap().insert(path, text.to_owned());
        };
        let groups = "3:memory:/a\n2:cpu,cpuacct:/system.slice/valve.service\n1:name=systemd:/b";
        note(77, groups);
        // A path outside the visible tree.
        note(78, "2:cpu,cpuacct:/../other");
        let mut group = machine.open().unwrap();
        for _ in 0..2 {
            group.set(0.5).unwrap();
            assert_eq!(machine.has("task", "tasks").unwrap(), "77\n78");
            assert_eq!(
                machine.has("system.slice/valve.service", "tasks").unwrap(),
                ""
            );
            group.restore().unwrap();
            let back = machine.has("system.slice/valve.service", "tasks");
            assert_eq!(back.unwrap(), "77");
            assert_eq!(machine.has("", "tasks").unwrap(), "1\n78");
        }
        // If the original group is gone in the end, the parent takes its threads.
        group.set(0.5).unwrap();
        let files = &machine.0;
        files
            .lock()
            .unwrap()
            .retain(|file, _| !file.starts_with(&service));
        group.restore().unwrap();
        assert_eq!(machine.has("", "tasks").unwrap(), "1\n77\n78");
    }

    #[test]
    fn a_group_that_not_all_threads_are_in_sets_no_speed() {
        let machine = Machine::new();
        let gone = |thread: Option<&str>| {
            let mut files = machine.0.lock().unwrap();
            match thread {
                Some(thread) => files.insert(GONE.into(), thread.to_owned()),
                None => files.remove(Path::new(GONE)),
            };
        };
        let mut group = machine.open().unwrap();
        gone(Some("77"));
        for _ in 0..2 {
            let error = group.set(0.5).unwrap_err();
            assert!(
                matches!(error, ActuatorError::File { errno: 3, .. }),
                "{error}"
            );
        }
        gone(None);
        assert!(group.set(0.5).unwrap().is_obeyed);
        assert_eq!(machine.has("task", "tasks").unwrap(), "77\n78");
        group.restore().unwrap();
        assert_eq!(machine.has("", "tasks").unwrap(), "1\n77\n78");
    }

    #[test]
    fn a_kernel_without_real_time_groups_is_reported() {
        let open = RtGroup::open(Box::new(Machine::default()), Path::new("/m"), "task", &[1]);
        assert!(
            matches!(open, Err(ActuatorError::Missing { .. })),
            "{open:?}"
        );
    }
}
