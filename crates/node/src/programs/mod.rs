//! Programs that the node keeps running (`[[task]]`), and the mounts that contain them (`[[mount]]`).
//!
//! Each has a thread that starts its process, waits for its end, and starts it again. No such thread holds anything
//! that a put needs. A process leads a process group of its own and is ended together with it. When the node is killed,
//! the kernel signals the process, and the next start ends what is left.
//!
//! **Files:** `surroundings.rs` what all programs share; `orphans.rs` programs that earlier runs have left;
//! `process.rs` one process: its start, its output, its end; `output.rs` the part of its output that is logged;
//! `watch.rs` communication between a thread and the rest of the node; `mount.rs` mounts; `supervision.rs` programs
//! that are restarted when they end; `periodic.rs` programs that are started at each period.

mod mount;
mod orphans;
mod output;
mod periodic;
mod process;
mod supervision;
mod surroundings;
mod watch;

use super::log;
use super::qos::OwnTasks;
use crate::status::{MountFigures, TaskFigures};
use config::{Config, MountConfig, Start, TaskConfig};
use std::cell::RefCell;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use surroundings::{STACK_BYTES, Surroundings, thread};
use tokio::sync::oneshot;
use watch::Watch;

pub(crate) use surroundings::folder_of;

struct Running<F> {
    watch: Arc<Watch<F>>,
    thread: Option<JoinHandle<()>>,
}

struct Mount {
    config: MountConfig,
    running: Running<MountFigures>,
}

struct Task {
    config: TaskConfig,
    running: Running<supervision::Known>,
}

#[derive(Default)]
struct All {
    mounts: Vec<Mount>,
    tasks: Vec<Task>,
    /// Threads of tasks that are no longer in the configuration.
    leaving: Vec<(String, JoinHandle<()>)>,
}

/// The programs; they run until this is dropped.
pub(crate) struct Programs {
    /// Programs of earlier runs that run on, or may run on.
    orphans: Option<String>,
    surroundings: Arc<Surroundings>,
    all: RefCell<All>,
    /// Stack of a task's thread; a test asks for too much.
    stack_bytes: usize,
}

impl Programs {
    /// Ends programs of earlier runs, and starts all that the configuration names.
    pub(crate) async fn start(
        config: &Config,
        config_file: &Path,
        store: String,
        own_tasks: OwnTasks,
    ) -> std::io::Result<Self> {
        let surroundings = Surroundings::new(config, config_file, store, own_tasks)?;
        let orphans = orphans::end(surroundings.store.clone()).await;
        let programs = Self {
            orphans,
            surroundings: Arc::new(surroundings),
            all: RefCell::default(),
            stack_bytes: STACK_BYTES,
        };
        for one in &config.mount {
            let running = programs.start_mount(one)?;
            programs.all.borrow_mut().mounts.push(Mount {
                config: one.clone(),
                running,
            });
        }
        for one in &config.task {
            let running = programs.start_task(one, None);
            programs.all.borrow_mut().tasks.push(Task {
                config: one.clone(),
                running,
            });
        }
        Ok(programs)
    }

    fn start_mount(&self, config: &MountConfig) -> std::io::Result<Running<MountFigures>> {
        let (watch, events) = Watch::new(mount::figures(config));
        let watch = Arc::new(watch);
        let (theirs, around) = (Arc::clone(&watch), Arc::clone(&self.surroundings));
        let mount = config.clone();
        let thread =
            thread("mount").spawn(move || mount::run(&mount, &around, &theirs, &events))?;
        Ok(Running {
            watch,
            thread: Some(thread),
        })
    }

    /// Starts a task. `before`: the thread of a task of the same name, which must end first. A task for which the
    /// system has no thread is given up: the status shows it, and the next reload tries again.
    fn start_task(
        &self,
        config: &TaskConfig,
        before: Option<JoinHandle<()>>,
    ) -> Running<supervision::Known> {
        let (watch, events) = Watch::new(supervision::known(config));
        let watch = Arc::new(watch);
        let (theirs, around) = (Arc::clone(&watch), Arc::clone(&self.surroundings));
        let all = self.all.borrow();
        let mut mounts = all.mounts.iter();
        let from = config.mount.as_ref().map(|name| {
            let found = mounts.find(|mount| mount.config.name == *name);
            found.map(|mount| Arc::clone(&mount.running.watch))
        });
        drop(all);
        let name = config.name.clone();
        let config = config.clone();
        let before = Arc::new(Mutex::new(before));
        let awaited = Arc::clone(&before);
        let take = |handle: &Mutex<Option<JoinHandle<()>>>| {
            handle.lock().unwrap_or_else(PoisonError::into_inner).take()
        };
        let work = move || {
            if let Some(before) = take(&awaited) {
                before.join().ok();
            }
            let task = supervision::Task {
                config: &config,
                around: &around,
                watch: &theirs,
                events: &events,
                from,
            };
            match config.start {
                Start::Stay => task.run(),
                Start::EachPeriod => periodic::run(&task),
            }
        };
        let thread = match thread("task").stack_size(self.stack_bytes).spawn(work) {
            Ok(thread) => Some(thread),
            Err(error) => {
                let why = format!("it has no thread ({error})");
                log::event("task", format!("{name}: {why}"));
                supervision::give_up(&watch, why);
                // The next one of this name still waits for it.
                let before = take(&before).map(|before| (name, before));
                self.all.borrow_mut().leaving.extend(before);
                None
            }
        };
        Running { watch, thread }
    }

    /// Applies other tasks: changed or removed ones are ended, and those given up are tried again.
    pub(crate) fn reload(&self, wanted: &[TaskConfig]) {
        let old = std::mem::take(&mut self.all.borrow_mut().tasks);
        let mut gone = Vec::new();
        let mut kept: Vec<Task> = Vec::new();
        for mut task in old {
            if wanted.contains(&task.config) && task.running.thread.is_some() {
                task.running.watch.try_again();
                kept.push(task);
            } else {
                task.running.watch.stop();
                gone.extend(
                    task.running
                        .thread
                        .take()
                        .map(|thread| (task.config.name, thread)),
                );
            }
        }
        let mut tasks = Vec::new();
        for config in wanted {
            if let Some(at) = kept.iter().position(|task| task.config == *config) {
                tasks.push(kept.swap_remove(at));
                continue;
            }
            // The program of an earlier reload may still be ending, too: two of one name must not run at once.
            let of_this = |all: &mut Vec<(String, JoinHandle<()>)>| {
                let at = all.iter().position(|(name, _)| *name == config.name)?;
                Some(all.swap_remove(at).1)
            };
            let before = of_this(&mut gone).or_else(|| of_this(&mut self.all.borrow_mut().leaving));
            tasks.push(Task {
                config: config.clone(),
                running: self.start_task(config, before),
            });
        }
        let mut all = self.all.borrow_mut();
        all.tasks = tasks;
        all.leaving.retain(|(_, thread)| !thread.is_finished());
        all.leaving.extend(gone);
    }

    /// Returns the figures for the status.
    pub(crate) fn figures(&self) -> (Vec<MountFigures>, Vec<TaskFigures>) {
        let all = self.all.borrow();
        let mounts = all.mounts.iter();
        let tasks = all.tasks.iter();
        (
            mounts.map(|one| mount::shown(&one.running.watch)).collect(),
            tasks
                .map(|one| supervision::shown(&one.running.watch))
                .collect(),
        )
    }

    /// Returns which programs of earlier runs run on, or may run on.
    pub(crate) fn orphans(&self) -> Option<String> {
        self.orphans.clone()
    }

    /// Ends all programs, tasks before mounts. The receiver reports when they have ended, which takes seconds if
    /// programs do not obey.
    pub(crate) fn finish(&self) -> Option<oneshot::Receiver<()>> {
        let all = std::mem::take(&mut *self.all.borrow_mut());
        if all.tasks.is_empty() && all.mounts.is_empty() && all.leaving.is_empty() {
            return None;
        }
        let (tell, told) = oneshot::channel();
        let end = move || {
            drop(all);
            tell.send(()).ok();
        };
        // Without a thread they are ended here: the node is about to stop serving anyway.
        match thread("ending").spawn(end) {
            Ok(_) => Some(told),
            Err(_) => None,
        }
    }
}

fn end(all: &mut All) {
    for task in &all.tasks {
        task.running.watch.stop();
    }
    let tasks = all.tasks.drain(..);
    let threads = tasks.filter_map(|mut task| task.running.thread.take());
    for thread in threads.chain(all.leaving.drain(..).map(|(_, thread)| thread)) {
        thread.join().ok();
    }
    for mount in &all.mounts {
        mount.running.watch.stop();
    }
    for mut mount in all.mounts.drain(..) {
        if let Some(thread) = mount.running.thread.take() {
            thread.join().ok();
        }
    }
}

impl Drop for All {
    /// Ends all processes, so that none stays however the node ends.
    fn drop(&mut self) {
        end(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_without_a_thread_is_shown_and_started_by_a_later_reload() {
        let parse = |text: &str| Config::parse(text, "keel.toml", Path::new("")).unwrap();
        let empty = parse("");
        let config = parse("[[task]]\nname = \"valve\"\ncommand = [\"sleep\", \"600\"]\n");
        let own_tasks = OwnTasks::alone(&config.qos);
        let store = "a store of no other test".to_owned();
        let started = Programs::start(&empty, Path::new("/keel.toml"), store, own_tasks);
        let mut programs = started.await.unwrap();
        // No system has a quarter of the address space as memory for a stack.
        programs.stack_bytes = usize::MAX / 4;
        programs.reload(&config.task);
        let (_, tasks) = programs.figures();
        let [task] = &tasks[..] else {
            panic!("{tasks:?}")
        };
        assert_eq!(
            (task.name.as_str(), task.state.as_str()),
            ("valve", "given_up")
        );
        assert!(task.failing && task.failed == 1, "{task:?}");
        let why = task.last_error.as_deref().unwrap();
        assert!(why.starts_with("it has no thread ("), "{why}");

        programs.stack_bytes = STACK_BYTES;
        programs.reload(&config.task);
        let runs = async {
            while programs.figures().1[0].state != "running" {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        };
        let waited = tokio::time::timeout(std::time::Duration::from_secs(60), runs).await;
        assert!(waited.is_ok(), "{:?}", programs.figures().1);
    }
}
