//! What must leave at once: alarms for a broker or a command, and values that drive actuators.
//!
//! Readings wait in the log for their upstream. Alarms and actuator values wait in memory, in bounded queues, because
//! they are useful only for moments. Alarms keep their order, and the oldest is dropped when there are too many. Of an
//! actuator's values the latest wins: a waiting value is replaced by the next one, and an in-flight value is not
//! overtaken. Each has a deadline from the moment when it happened; what is late is counted, and sent or skipped as
//! configured.
//!
//! **Files:** `options.rs` options, `outbox.rs` the queue of one broker, `publish.rs` one connection, `collect.rs` from
//! the database to the outboxes, `command.rs` the program that is run, `message.rs` payloads, `figures.rs` counters,
//! `run.rs` the threads.

mod collect;
mod command;
mod figures;
mod message;
pub mod options;
pub mod outbox;
mod publish;
mod run;

pub use command::Surroundings;
pub use figures::{
    ActuatorFigures, AlarmFigures, BrokerFigures, Delivery, UrgentFigures, UrgentState,
};
pub use options::{ActuatorOptions, AlarmOptions, BrokerOptions, UrgentOptions};
pub use run::{Prepared, Urgent};
