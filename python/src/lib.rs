//! The Python package `keel`, described for its users in `keel.pyi`.
//!
//! **Holds:** the classes of the package, and how values and errors cross the border.
//!
//! **Must not know:** anything of a node that `libkeel` does not show.
//!
//! **Invariants:** no `unsafe`; whoever waits lets other threads of the interpreter run meanwhile and sees signals; an
//! error is an exception with the one line and the code that `libkeel` gives.
//!
//! **Files:** `lib.rs` the package, nodes and tickets; `value.rs` values, keys and readings; `task.rs` periodic tasks.

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use std::time::Duration;

mod task;
mod value;

use task::{Data, Task};
use value::{At, Key, KeyOrName, Put, Reading};

create_exception!(
    keel,
    Error,
    PyException,
    "What is wrong and what to do about it, in one line."
);

/// Longest pause between two looks for a signal.
const SIGNALS_EVERY: Duration = Duration::from_millis(100);

/// The exception of an error.
fn raised(py: Python<'_>, error: &libkeel::Error) -> PyErr {
    let raised = Error::new_err(error.to_string());
    match raised.value(py).setattr("code", error.code().name()) {
        Ok(()) => raised,
        Err(other) => other,
    }
}

/// A time in seconds.
fn seconds(name: &str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value)
        .map_err(|error| PyValueError::new_err(format!("{name}: {value} s: {error}")))
}

/// Attaches to the node that serves `socket`.
#[pyfunction]
fn attach(py: Python<'_>, socket: std::path::PathBuf) -> PyResult<Node> {
    let attached = py.detach(|| libkeel::Node::attach(&socket));
    let inner = attached.map_err(|error| raised(py, &error))?;
    Ok(Node { inner })
}

/// A node, attached to.
#[pyclass(frozen, module = "keel")]
struct Node {
    inner: libkeel::Node,
}

#[pymethods]
impl Node {
    #[getter]
    fn is_shared(&self) -> bool {
        self.inner.is_shared()
    }

    #[getter]
    fn is_live(&self, py: Python<'_>) -> bool {
        py.detach(|| self.inner.is_live())
    }

    fn __getitem__(&self, py: Python<'_>, name: &str) -> PyResult<Key> {
        let key = self.inner.key(name);
        key.map(Key::of).map_err(|error| raised(py, &error))
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
        let sent = key
            .find(&self.inner)
            .and_then(|key| at.put(&key, value.value()));
        sent.map(Ticket::of).map_err(|error| raised(py, &error))
    }

    #[pyo3(signature = (name, *, period, deadline, firm = false, weight = 1.0, fifo_priority = None,
                        cores = Vec::new(), stack_bytes = 0))]
    #[expect(
        clippy::too_many_arguments,
        reason = "they are named where they are given"
    )]
    fn task(
        &self,
        py: Python<'_>,
        name: &str,
        period: f64,
        deadline: f64,
        firm: bool,
        weight: f64,
        fifo_priority: Option<u8>,
        cores: Vec<u16>,
        stack_bytes: usize,
    ) -> PyResult<Task> {
        let (period, deadline) = (seconds("period", period)?, seconds("deadline", deadline)?);
        let mut spec = libkeel::TaskSpec::new(name, period, deadline);
        if firm {
            spec.kind = libkeel::TaskKind::Firm;
        }
        spec.weight = weight;
        spec.fifo_priority = fifo_priority;
        spec.cores = cores;
        spec.stack_bytes = stack_bytes;
        let made = self.inner.periodic_task(spec);
        let made = made.map_err(|error| raised(py, &error))?;
        Ok(Task::of(made, &self.inner))
    }
}

/// A put on its way.
#[pyclass(frozen, module = "keel")]
struct Ticket {
    inner: libkeel::Ticket,
}

impl Ticket {
    fn of(inner: libkeel::Ticket) -> Self {
        Self { inner }
    }
}

#[pymethods]
impl Ticket {
    fn poll(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        let found = self.inner.poll().transpose();
        found.map_err(|error| raised(py, &error))
    }

    #[pyo3(signature = (timeout = 70.0))]
    fn wait(&self, py: Python<'_>, timeout: f64) -> PyResult<u64> {
        let mut left = seconds("timeout", timeout)?;
        loop {
            let part = left.min(SIGNALS_EVERY);
            left -= part;
            match py.detach(|| self.inner.wait(part)) {
                Err(_) if self.inner.poll().is_none() && !left.is_zero() => py.check_signals()?,
                found => return found.map_err(|error| raised(py, &error)),
            }
        }
    }
}

/// A node's latest values, puts with tickets, and periodic tasks, for programs on the same machine.
#[pymodule]
fn keel(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("Error", module.py().get_type::<Error>())?;
    module.add_function(wrap_pyfunction!(attach, module)?)?;
    module.add_class::<Node>()?;
    module.add_class::<Key>()?;
    module.add_class::<Reading>()?;
    module.add_class::<Ticket>()?;
    module.add_class::<Task>()?;
    module.add_class::<Data>()
}
