//! Alarms: thresholds and staleness of objects, judged as readings are put, and the transitions to report.
//!
//! A rule names objects by a pattern. Each matching object is *watched*: one small state for each rule and object, in
//! memory allocated at the start. A put judges the states of its object under the lock that it holds anyway. A scan of
//! bounded pieces judges elapsed time: a minimum duration, and staleness. A change of a state is a *transition*. It
//! goes into a ring that is read without any lock, so delivery never delays a producer.
//!
//! **Invariants:** a put allocates nothing here, takes no lock of its own and does not call the system. A full ring
//! loses no state: what was reported last is kept beside each state, and the next scan reports what it has become.
//! Transitions that are never reported are counted: `raised + cleared = told + lost + those still to tell`.
//!
//! **Files:** `rule.rs` rules and values, `state.rs` one state, `ring.rs` transitions on their way out, `watches.rs`
//! all states behind the queue's lock. The calls are those of the database: `database/alarms.rs`.

pub(crate) mod ring;
pub(crate) mod rule;
pub(crate) mod state;
pub(crate) mod watches;

pub use ring::AlarmTransition;
pub use rule::{
    ALARM_MS_MAX, ALARM_QUEUE_MAX, ALARM_RULES_MAX, ALARM_WATCHES_MAX, AlarmCondition, AlarmRule,
    AlarmValue,
};
pub use state::ActiveAlarm;
pub use watches::{AlarmFigures, AlarmRuleFigures};
