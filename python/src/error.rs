//! Errors as exceptions.

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use std::time::Duration;

create_exception!(
    keel,
    Error,
    PyException,
    "What is wrong and what to do about it, in one line."
);

/// The exception of an error.
pub(crate) fn raised(py: Python<'_>, error: &libkeel::Error) -> PyErr {
    let raised = Error::new_err(error.to_string());
    match raised.value(py).setattr("code", error.code().name()) {
        Ok(()) => raised,
        Err(other) => other,
    }
}

/// A time in seconds; an exception if it is none.
pub(crate) fn seconds(name: &str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value)
        .map_err(|error| PyValueError::new_err(format!("{name}: {value} s: {error}")))
}
