//! What must leave at once: alarms, on their way to a broker or to a command, and values that drive actuators.
//!
//! Readings wait in the log for their upstream; what is here waits in memory, in queues with limits, because it is
//! worth something for moments only. Alarms keep their order, and their oldest is dropped when there are too many. Of
//! an actuator's values the latest wins: one that waits is replaced by the next one, and one on its way is not
//! overtaken. Each has a deadline from the moment when it happened; what is late is counted, and sent or skipped as
//! configured.
//!
//! **Files:** `options.rs` what is told, `outbox.rs` what waits for one broker, `publish.rs` one connection,
//! `collect.rs` from the database to the outboxes, `command.rs` the program that is run, `message.rs` payloads,
//! `figures.rs` what is counted, `run.rs` the threads.

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
