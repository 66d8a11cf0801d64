//! What programs outside the node use of it: its latest values, read where the node writes them; puts with tickets;
//! periodic tasks whose data and compute time the node's monitor sees.
//!
//! **Holds:** the client ([`Node`], [`Key`], [`Ticket`], [`Task`]), the protocol of the node's socket, a blocking
//! connection to it, and the word beside the socket that says where values lie. `crates/keel/NODE.md` says every field.
//!
//! **Must not know:** the configuration, the command line, how the node answers, the bytes of a region or of a store.
//!
//! **Invariants:** whatever comes through the socket is checked before it is believed, and nothing of it makes this
//! panic; every wait has an end that its caller gave or that stands in the documentation; a reader of shared values
//! takes no lock that anybody holds for long, allocates nothing and makes no system call; a program holds nothing that
//! the node would wait for, so one that is killed is nobody's trouble.
//!
//! **Files:** `node.rs` attaching and what it is made of, `key.rs` values, `shared.rs` the table in a region,
//! `ticket.rs` puts, `pipe.rs` requests sent without waiting, `keeper.rs` the thread that takes their answers,
//! `task.rs` periodic tasks, `process.rs` whether this is a child, `error.rs`; `protocol/` the messages,
//! `connection.rs` requests and answers one after the other, `whereabouts.rs` where values lie.
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

pub mod connection;
mod error;
mod keeper;
mod key;
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
pub use keeper::LOOK_INTERVAL;
pub use key::{Bytes, Key, Owned, Times};
pub use node::Node;
pub use pipe::PENDING_MAX;
pub use protocol::TaskKind;
pub use task::{Counts, Outcome, STAGED_PUTS_MAX, Task, TaskSpec};
pub use ticket::Ticket;

/// The program on the page about clients is compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/clients.md")]
struct ClientsPage;
