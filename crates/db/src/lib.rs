//! The real-time database: latest values that are read in time, and a log that loses nothing acknowledged.
//!
//! **Holds:** objects and their slot table, the durable log and its checkpoints, group commit, range reads over the
//! log, retention, admission of readings, periodic tasks, alarms. `DESIGN.md` says why, `SPEC.md` says every byte.
//!
//! **Must not know:** sockets, protocols, the file format on flash, asynchronous run-times.
//!
//! **Invariants:** a completed ticket means that its reading is on flash; a reader takes no lock and allocates nothing;
//! a producer never waits for the store; every queue and buffer has a limit; damage costs only the records it hits, is
//! counted by reason and never prevents a start; a failed log refuses every put.
//!
//! **Files:** `database.rs` the interface, `put.rs` how a reading gets into table and log, `options.rs`, `error.rs`,
//! `stats.rs`, `table.rs` the slot table, `shared.rs` a table that other processes read, `queue.rs` and `ticket.rs`
//! between producers and the commit thread, `owners.rs` which series has a key, `commit.rs` the commit thread, `log/`
//! records, writer, reader, checkpoint and scan, `history/` range reads, their index, and the log in its own order,
//! `snapshot.rs` a copy while the store is written to, `retention.rs`, `recovery.rs`, `room.rs` whether checkpoints fit
//! the store, `alarm/` thresholds and staleness, `qos/` which readings are admitted under load, `task.rs` periodic
//! tasks, `realtime.rs` what they need from the machine, `value.rs` the stored form of typed values, `wall.rs` the wall
//! clock beside the monotonic clock, `store/` the interface to flash.

mod alarm;
mod commit;
mod database;
mod error;
mod history;
pub mod log;
mod options;
mod owners;
mod pi_lock;
mod put;
pub mod qos;
mod queue;
pub mod realtime;
mod recovery;
mod retention;
mod room;
pub mod shared;
mod snapshot;
mod stats;
pub mod store;
pub mod table;
mod task;
mod ticket;
pub mod value;
mod wall;

pub use base::monitor::{Instance, Monitor, MonitorSum, MonitorSumError};

pub use alarm::{
    ALARM_MS_MAX, ALARM_QUEUE_MAX, ALARM_RULES_MAX, ALARM_WATCHES_MAX, ActiveAlarm, AlarmCondition,
    AlarmFigures, AlarmRule, AlarmRuleFigures, AlarmTransition, AlarmValue,
};
pub use database::{Database, Got};
pub use error::{Error, LogFailure};
pub use history::follow::{LogCursor, LogStep};
pub use history::{HistoryCursor, HistoryEntry, HistoryQuery, HistoryReport};
pub use log::checkpoint::bytes_max as checkpoint_bytes_max;
pub use log::codec::{Owner, SERIES_BYTES_MAX};
pub use log::reader::Damage;
pub use log::scan::{LogEntry, ScanReport, scan_log};
pub use log::times::Time;
pub use options::{
    CommitDriver, DbOptions, Durability, FullPolicy, KEY_BYTES_MAX, KEY_BYTES_MEAN,
    KEY_BYTES_MEAN_MAX, KEY_BYTES_MEAN_MIN, OBJECTS_LIMIT, ObjectId, ObjectSpec, Retention,
    ShedPolicy, TableSize, VALUE_BYTES_LIMIT,
};
pub use owners::{OWNERS_PER_KEY, Owners};
pub use put::{STAGED_BYTES_MAX, STAGED_PUTS_MAX, TogetherReading};
pub use qos::admission::AdmissionFigures;
pub use recovery::RecoveryReport;
pub use room::TableFit;
pub use snapshot::{Snapshot, SnapshotFile, SnapshotRead};
pub use stats::{CheckpointFailure, Health, Pulse, Stats};
pub use store::{MemoryStore, PowerCut, SegmentStore, StoreError};
pub use table::{FreshCount, Key};
pub use task::{
    ReleaseTimer, STACK_BYTES, TaskContext, TaskHandle, TaskKind, TaskSpec, spawn_task,
};
pub use ticket::Ticket;
