//! Periodic tasks.

use crate::error::{Error, raised};
use crate::ticket::Ticket;
use crate::value::{At, KeyOrName, Put};
use libkeel::Outcome;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::{Mutex, MutexGuard, TryLockError};

/// A periodic task; each turn of a loop over it is an instance.
#[pyclass(frozen, module = "keel")]
pub(crate) struct Task {
    /// The thread that runs the task holds the lock, also while it waits. Other threads are refused.
    inner: Mutex<libkeel::Task>,
    node: libkeel::Node,
}

impl Task {
    pub(crate) fn of(inner: libkeel::Task, node: &libkeel::Node) -> Self {
        Self {
            inner: Mutex::new(inner),
            node: node.clone(),
        }
    }

    /// The task, for the caller that runs it. A child after `fork` is refused.
    fn run_by_caller(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, libkeel::Task>> {
        let task = self.own(py)?;
        task.usable().map_err(|error| raised(py, &error))?;
        Ok(task)
    }

    fn own(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, libkeel::Task>> {
        match self.inner.try_lock() {
            Ok(task) => Ok(task),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                let refused =
                    Error::new_err("another thread runs this task; a task belongs to one thread");
                refused.value(py).setattr("code", "busy")?;
                Err(refused)
            }
        }
    }
}

#[pymethods]
impl Task {
    fn __iter__(task: PyRef<'_, Self>) -> PyRef<'_, Self> {
        task
    }

    fn __next__(task: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        let py = task.py();
        let this = task.get();
        // Refused here, where an exception can be made.
        drop(this.run_by_caller(py)?);
        while !py.detach(|| match this.inner.lock() {
            Ok(mut task) => task.next_unless(|_| true),
            Err(poisoned) => poisoned.into_inner().next_unless(|_| true),
        }) {
            py.check_signals()?;
        }
        Ok(task)
    }

    fn data(task: Py<Self>) -> Data {
        Data { task }
    }

    #[pyo3(signature = (key, value, time_ms = None, *, time_ns = None))]
    fn put(
        &self,
        py: Python<'_>,
        key: KeyOrName<'_>,
        value: Put,
        time_ms: Option<i64>,
        time_ns: Option<i64>,
    ) -> PyResult<Ticket> {
        let at = At::of(time_ms, time_ns)?;
        let key = key.find(&self.node).map_err(|error| raised(py, &error))?;
        let mut task = self.own(py)?;
        let sent = match at {
            At::Ms(ms) => task.put(&key, value.value(), ms),
            At::Ns(ns) => task.put_ns(&key, value.value(), Some(ns)),
        };
        sent.map(Ticket::of).map_err(|error| raised(py, &error))
    }

    #[getter]
    fn has_missed(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.own(py)?.has_missed())
    }

    fn give_up(&self, py: Python<'_>) -> PyResult<()> {
        self.own(py)?.give_up();
        Ok(())
    }

    fn end(&self, py: Python<'_>) -> PyResult<Option<&'static str>> {
        let outcome = self.run_by_caller(py)?.end_instance();
        Ok(outcome.map(|outcome| match outcome {
            Outcome::InTime => "in-time",
            Outcome::Late => "late",
            Outcome::Aborted => "aborted",
        }))
    }

    #[getter]
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = self.own(py)?.counts();
        let found = PyDict::new(py);
        for (name, count) in [
            ("instances", counts.instances),
            ("deadline_misses", counts.deadline_misses),
            ("aborted", counts.aborted),
            ("releases_missed", counts.releases_missed),
            ("reports", counts.reports),
            ("reports_lost", counts.reports_lost),
        ] {
            found.set_item(name, count)?;
        }
        Ok(found)
    }

    #[getter]
    fn warnings(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let task = self.own(py)?;
        let error = task.last_error().map(|error| error.to_string());
        Ok(task.warnings().iter().cloned().chain(error).collect())
    }
}

/// A scope whose time counts as data time.
#[pyclass(frozen, module = "keel")]
pub(crate) struct Data {
    task: Py<Task>,
}

#[pymethods]
impl Data {
    fn __enter__(scope: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        let py = scope.py();
        scope.get().task.get().own(py)?.data_begin();
        Ok(scope)
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.task.get().own(py)?.data_end();
        Ok(())
    }
}
