//! The Python package `keel`, described for its users in `keel.pyi`.
//!
//! **Holds:** the classes of the package, and how values and errors cross the border.
//!
//! **Must not know:** anything of a node that `libkeel` does not show.
//!
//! **Invariants:** No `unsafe`. A call that waits lets other threads of the interpreter run, and sees signals. An error
//! is an exception with the one line and the code that `libkeel` gives.
//!
//! **Files:** `lib.rs` the package; `node.rs` nodes; `ticket.rs` tickets; `value.rs` values, keys and readings;
//! `task.rs` periodic tasks; `error.rs` exceptions.

use pyo3::prelude::*;

mod error;
mod node;
mod task;
mod ticket;
mod value;

use error::Error;
use node::Node;
use task::{Data, Task};
use ticket::Ticket;
use value::{Key, Reading};

/// A node's latest values, puts with tickets, and periodic tasks, for programs on the same machine.
#[pymodule]
fn keel(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("Error", module.py().get_type::<Error>())?;
    module.add_function(wrap_pyfunction!(node::attach, module)?)?;
    module.add_class::<Node>()?;
    module.add_class::<Key>()?;
    module.add_class::<Reading>()?;
    module.add_class::<Ticket>()?;
    module.add_class::<Task>()?;
    module.add_class::<Data>()
}
