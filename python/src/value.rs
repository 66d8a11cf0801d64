//! Values, keys and readings.

use crate::error::raised;
use crate::ticket::Ticket;
use base::error::Code;
use libkeel::{Owned, Times, Value};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyString};

/// A value that is to be put.
pub(crate) enum Put {
    Float(f64),
    Integer(i64),
    Unsigned(u64),
    Boolean(bool),
    Text(String),
}

impl Put {
    pub(crate) fn value(&self) -> Value<'_> {
        match self {
            Self::Float(number) => Value::Float(*number),
            Self::Integer(number) => Value::Integer(*number),
            Self::Unsigned(number) => Value::Unsigned(*number),
            Self::Boolean(truth) => Value::Boolean(*truth),
            Self::Text(text) => Value::Text(text),
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for Put {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        // First: a truth value is an integer in Python, too.
        if object.is_instance_of::<PyBool>() {
            return object.extract().map(Self::Boolean);
        }
        if object.is_instance_of::<PyInt>() {
            let signed = object.extract().map(Self::Integer);
            let number = signed.or_else(|_: PyErr| object.extract().map(Self::Unsigned));
            return number.map_err(|_: PyErr| {
                PyOverflowError::new_err("the number is no integer of 64 bits: put a float")
            });
        }
        if object.is_instance_of::<PyString>() {
            return object.extract().map(Self::Text);
        }
        // Other kinds of numbers know how to become one.
        object.extract().map(Self::Float).map_err(|_: PyErr| {
            PyTypeError::new_err("a value is a number, a truth value or a text")
        })
    }
}

/// The time of a put: in ms, in ns, or not given.
#[derive(Clone, Copy)]
pub(crate) enum At {
    Ms(Option<i64>),
    Ns(i64),
}

impl At {
    pub(crate) fn of(time_ms: Option<i64>, time_ns: Option<i64>) -> PyResult<Self> {
        match (time_ms, time_ns) {
            (Some(_), Some(_)) => Err(PyValueError::new_err(
                "time_ms and time_ns are both given: give one of them",
            )),
            (None, Some(ns)) => Ok(Self::Ns(ns)),
            (ms, None) => Ok(Self::Ms(ms)),
        }
    }

    pub(crate) fn put(
        self,
        key: &libkeel::Key,
        value: Value<'_>,
    ) -> Result<libkeel::Ticket, libkeel::Error> {
        match self {
            Self::Ms(ms) => key.put(value, ms),
            Self::Ns(ns) => key.put_ns(value, Some(ns)),
        }
    }
}

/// A key, or the name of one.
#[derive(FromPyObject)]
pub(crate) enum KeyOrName<'py> {
    Key(Bound<'py, Key>),
    Name(String),
}

impl KeyOrName<'_> {
    pub(crate) fn find(&self, node: &libkeel::Node) -> Result<libkeel::Key, libkeel::Error> {
        match self {
            Self::Key(key) => Ok(key.get().inner.clone()),
            Self::Name(name) => node.key(name),
        }
    }
}

/// A key of a node.
#[pyclass(frozen, module = "keel")]
pub(crate) struct Key {
    inner: libkeel::Key,
}

impl Key {
    pub(crate) fn of(inner: libkeel::Key) -> Self {
        Self { inner }
    }
}

#[pymethods]
impl Key {
    #[getter]
    fn name(&self) -> &str {
        self.inner.name()
    }

    #[getter]
    fn value<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        // The usual case has no copy in between.
        match py.detach(|| self.inner.float()) {
            Ok((number, _)) => number.into_bound_py_any(py),
            Err(error) if error.code() == Code::Unsupported => object(py, &self.find(py)?.0),
            Err(error) => Err(raised(py, &error)),
        }
    }

    fn read(&self, py: Python<'_>) -> PyResult<Reading> {
        let (value, times) = self.find(py)?;
        Ok(Reading {
            value: object(py, &value)?.unbind(),
            times,
        })
    }

    #[pyo3(signature = (value, time_ms = None, *, time_ns = None))]
    fn put(
        &self,
        py: Python<'_>,
        value: Put,
        time_ms: Option<i64>,
        time_ns: Option<i64>,
    ) -> PyResult<Ticket> {
        let sent = At::of(time_ms, time_ns)?.put(&self.inner, value.value());
        sent.map(Ticket::of).map_err(|error| raised(py, &error))
    }
}

impl Key {
    fn find(&self, py: Python<'_>) -> PyResult<(Owned, Times)> {
        // Where the node is asked, that takes time.
        let found = py.detach(|| self.inner.read());
        found.map_err(|error| raised(py, &error))
    }
}

fn object<'py>(py: Python<'py>, value: &Owned) -> PyResult<Bound<'py, PyAny>> {
    match value {
        Owned::Float(number) => Ok(PyFloat::new(py, *number).into_any()),
        Owned::Integer(number) => number.into_bound_py_any(py),
        Owned::Unsigned(number) => number.into_bound_py_any(py),
        Owned::Boolean(truth) => truth.into_bound_py_any(py),
        Owned::Text(text) => Ok(PyString::new(py, text).into_any()),
        Owned::Bytes(bytes) => Ok(PyBytes::new(py, bytes).into_any()),
    }
}

/// A value and what is known of it.
#[pyclass(frozen, module = "keel")]
pub(crate) struct Reading {
    value: Py<PyAny>,
    times: Times,
}

#[pymethods]
impl Reading {
    #[getter]
    fn value(&self, py: Python<'_>) -> Py<PyAny> {
        self.value.clone_ref(py)
    }

    #[getter]
    fn time_ms(&self) -> i64 {
        self.times.time_ms
    }

    #[getter]
    fn time_ns(&self) -> i64 {
        self.times.time_ns
    }

    #[getter]
    fn age_ms(&self) -> i64 {
        self.times.age_ms
    }

    #[getter]
    fn fresh(&self) -> bool {
        self.times.fresh
    }

    #[getter]
    fn validity_ms(&self) -> u32 {
        self.times.validity_ms
    }

    #[getter]
    fn temporal(&self) -> bool {
        self.times.temporal
    }

    #[getter]
    fn node_time(&self) -> bool {
        self.times.node_time
    }

    #[getter]
    fn clock_trusted(&self) -> bool {
        self.times.clock_trusted
    }

    #[getter]
    fn this_boot(&self) -> bool {
        self.times.this_boot
    }

    #[getter]
    fn retained(&self) -> bool {
        self.times.retained
    }
}
