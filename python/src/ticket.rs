//! Tickets.

use crate::error::{raised, seconds};
use pyo3::prelude::*;
use std::time::Duration;

/// Interval of the checks for a signal.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// A put on its way.
#[pyclass(frozen, module = "keel")]
pub(crate) struct Ticket {
    inner: libkeel::Ticket,
}

impl Ticket {
    pub(crate) fn of(inner: libkeel::Ticket) -> Self {
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
            let part = left.min(SIGNAL_INTERVAL);
            left -= part;
            match py.detach(|| self.inner.wait(part)) {
                Err(_) if self.inner.poll().is_none() && !left.is_zero() => py.check_signals()?,
                found => return found.map_err(|error| raised(py, &error)),
            }
        }
    }
}
