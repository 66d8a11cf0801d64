//! Nodes.

use crate::error::{raised, seconds};
use crate::task::Task;
use crate::ticket::Ticket;
use crate::value::{At, Key, KeyOrName, Put};
use pyo3::prelude::*;

/// Attaches to the node that serves `socket`.
#[pyfunction]
pub(crate) fn attach(py: Python<'_>, socket: std::path::PathBuf) -> PyResult<Node> {
    let attached = py.detach(|| libkeel::Node::attach(&socket));
    let inner = attached.map_err(|error| raised(py, &error))?;
    Ok(Node { inner })
}

/// A node, attached to.
#[pyclass(frozen, module = "keel")]
pub(crate) struct Node {
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
