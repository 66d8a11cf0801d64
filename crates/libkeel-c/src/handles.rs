//! The tables of handles, one for each kind of object.

use c_interface::handles::{PLACES_LIMIT, Table};
use libkeel::{Key, Node, Task, Ticket};
use std::sync::{Arc, Mutex};

/// The task of a handle; the thread that runs it holds the lock.
pub(crate) type SharedTask = Arc<Mutex<Task>>;

macro_rules! table {
    ($kind:literal, $name:literal) => {
        Table::new(
            $kind,
            $name,
            concat!("the handle of this ", $name, " has been closed"),
            PLACES_LIMIT,
        )
    };
}

pub(crate) static NODES: Table<Node> = table!(1, "node");
pub(crate) static KEYS: Table<Arc<Key>> = table!(2, "key");
pub(crate) static TICKETS: Table<Ticket> = table!(3, "ticket");
pub(crate) static TASKS: Table<SharedTask> = table!(4, "task");
