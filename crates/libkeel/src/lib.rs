//! The node's client for other programs. It has the latest values, read in place, where the node writes them, and puts
//! with tickets. It has periodic tasks whose data and compute time the node's monitor sees.
//!
//! **Holds:** the client ([`Node`], [`Key`], [`Ticket`], [`Task`]), the protocol of the node's socket, a blocking
//! connection to it, and the file beside the socket that says where values are. `crates/node/NODE.md` specifies every
//! field.
//!
//! **Must not know:** the configuration, the command line, how the node answers, the bytes of a region or of a store.
//!
//! **Invariants:** All input from the socket is checked before use, and none of it causes a panic. Every wait has a
//! timeout from its caller or from the documentation. A reader of shared values takes no lock that is held for long,
//! allocates nothing and makes no system call. A program holds nothing that the node would wait for, so a killed
//! program affects no other process.
//!
//! **Files:** `node.rs` attaching and its parts, `attachment.rs` what these share, `key.rs` values, `shared.rs` the
//! table in a region, `ticket.rs` puts, `pipe.rs` requests sent without waiting, `maintenance.rs` the thread that takes
//! their answers, `inbox.rs` the queue to it, `task.rs` periodic tasks, `process.rs` detection of a child process,
//! `error.rs`; `protocol/` the messages, `connection.rs` requests and answers one after the other, `whereabouts.rs`
//! where values are.
//!
//! ```no_run
//! use libkeel::{Node, TaskSpec, Value};
//! use std::ops::ControlFlow;
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), libkeel::Error> {
//! let node = Node::attach("keel-data/keel.sock")?;
//! let (celsius, valve) = (node.key("boiler/celsius")?, node.key("boiler/valve")?);
//! let ms = Duration::from_millis;
//! let mut task = node.periodic_task(TaskSpec::new("valve", ms(100), ms(50)))?;
//! task.run(|task| {
//!     // Where the node writes it, without a copy, a lock or a system call.
//!     if let Ok((celsius, times)) = task.data(|| celsius.float())
//!         && times.fresh
//!     {
//!         // Sent at once; the ticket tells when it is on flash.
//!         task.put(&valve, Value::Float(100.0 - celsius), None).ok();
//!     }
//!     ControlFlow::Continue(())
//! });
//! # Ok(())
//! # }
//! ```

mod attachment;
pub mod connection;
mod error;
mod inbox;
mod key;
mod maintenance;
mod node;
mod pipe;
mod process;
pub mod protocol;
mod shared;
mod task;
mod ticket;
pub mod whereabouts;

pub use db::value::Value;
pub use error::Error;
pub use key::{Bytes, Key, Owned, Times};
pub use maintenance::CHECK_INTERVAL;
pub use node::Node;
pub use pipe::PENDING_MAX;
pub use protocol::TaskKind;
pub use task::{Counts, Outcome, STAGED_PUTS_MAX, Task, TaskSpec};
pub use ticket::Ticket;

/// Compiles the program on the documentation page about clients.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/clients.md")]
struct ClientsPage;
