//! Tasks that the node declares for programs that it has started and that do not declare one themselves.

use super::state::Shared;
use super::tasks::{Declared, TaskId};
use libkeel::protocol::Failure;
use std::sync::Arc;

/// The handle with which a thread of the node declares tasks.
#[derive(Clone)]
pub(crate) struct OwnTasks {
    shared: Arc<Shared>,
}

#[cfg(test)]
impl OwnTasks {
    /// Creates a handle without a sampling thread.
    pub(crate) fn alone(config: &config::QosConfig) -> Self {
        Self::new(Arc::new(Shared {
            inner: std::sync::Mutex::new(super::state::Inner::new(config, Vec::new())),
            changed: std::sync::Condvar::new(),
        }))
    }
}

impl OwnTasks {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Declares a task; it lives until [`leave`](Self::leave).
    pub(crate) fn declare(&self, declared: Declared) -> Result<TaskId, Failure> {
        self.shared.declare(declared)
    }

    /// Adds what a task did since its last report. Returns the length of a sampling period, in ms.
    pub(crate) fn report(&self, id: TaskId, period: &db::Monitor) -> Result<u32, Failure> {
        self.shared.report(id, period)
    }

    /// Removes the task.
    pub(crate) fn leave(&self, id: TaskId) {
        self.shared.leave(&[id]);
    }

    /// Returns whether a program of this process group has declared a task, other than `own`.
    pub(crate) fn is_declared_by(&self, group: libc::pid_t, own: Option<TaskId>) -> bool {
        let processes = self.shared.lock().tasks.processes(own);
        let mut processes = processes.into_iter().map(|one| one as libc::pid_t);
        // SAFETY: a plain system call; an ended process is in no group.
        processes.any(|process| unsafe { libc::getpgid(process) } == group)
    }
}
