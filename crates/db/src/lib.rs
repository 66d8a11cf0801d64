//! The real-time database: latest values that are read in time, and a log that loses nothing acknowledged.
//!
//! **Holds:** objects and their slot table, the durable log and its checkpoints, group commit, range reads over the
//! log, retention, admission of readings, periodic tasks, alarms. `DESIGN.md` says why, `SPEC.md` says every byte.
//!
//! **Must not know:** sockets, protocols, the file format on flash, asynchronous run-times.
//!
//! **Invariants:** a completed ticket means that its reading is on flash. A reader takes no lock and allocates nothing.
//! A producer never waits for the store. Every queue and buffer has a limit. Damage costs only the records it hits, is
//! counted by reason and never prevents a start. A failed log refuses every put.
//!
//! **Files.** Each imports only from those after it, and files of one folder from each other:
//! - `task.rs` periodic tasks;
//! - `database.rs` the interface; in its folder `put.rs`, how a reading gets into table and log, and `alarms.rs`;
//! - `driven.rs` there, a commit side without a thread, and `snapshot.rs`, a copy while the store is written to;
//! - `retention.rs`, and `commit.rs` the commit thread;
//! - `recovery.rs`, `stats.rs`, and `queue.rs` between producers and the commit thread;
//! - `history/` range reads, their index, and the log in its own order; `alarm/` thresholds and staleness;
//! - `log/` records, writer, reader, checkpoint, scan, and which series has a key;
//! - `shared.rs` a table that other processes read, `table.rs` the slot table, `ticket.rs`;
//! - `options.rs`, `value.rs` the stored form of typed values, `error.rs`;
//! - `qos/` which readings are admitted under load, `room.rs` whether checkpoints fit the store;
//! - `store/` the interface to flash, `wall.rs` the wall clock beside the monotonic clock, `time.rs`, `limits.rs`;
//! - `realtime.rs` what tasks need from the machine, `mutex.rs`, `pi_lock.rs` a lock with priority inheritance.

mod alarm;
mod commit;
mod database;
mod error;
mod history;
mod limits;
pub mod log;
mod mutex;
mod options;
mod pi_lock;
pub mod qos;
mod queue;
pub mod realtime;
mod recovery;
mod retention;
mod room;
pub mod shared;
mod stats;
pub mod store;
pub mod table;
mod task;
mod ticket;
mod time;
pub mod value;
mod wall;

pub use base::monitor::{Instance, Monitor, MonitorSum, MonitorSumError};

pub use alarm::{
    ALARM_MS_MAX, ALARM_QUEUE_MAX, ALARM_RULES_MAX, ALARM_WATCHES_MAX, ActiveAlarm, AlarmCondition,
    AlarmFigures, AlarmRule, AlarmRuleFigures, AlarmTransition, AlarmValue,
};
pub use commit::CommitStep;
pub use database::put::{STAGED_BYTES_MAX, STAGED_PUTS_MAX, TogetherReading};
pub use database::snapshot::{Snapshot, SnapshotFile, SnapshotRead};
pub use database::{Database, Got};
pub use error::{Error, LogFailure};
pub use history::follow::{LogCursor, LogStep};
pub use history::{HistoryCursor, HistoryEntry, HistoryQuery, HistoryReport};
pub use limits::{
    KEY_BYTES_MAX, KEY_BYTES_MEAN, KEY_BYTES_MEAN_MAX, KEY_BYTES_MEAN_MIN, OBJECTS_LIMIT,
    VALUE_BYTES_LIMIT,
};
pub use log::checkpoint::bytes_max as checkpoint_bytes_max;
pub use log::codec::{Owner, SERIES_BYTES_MAX};
pub use log::counters::CheckpointFailure;
pub use log::owners::{OWNERS_PER_KEY, Owners};
pub use log::reader::Damage;
pub use log::scan::{LogEntry, ScanReport, scan_log};
pub use options::{
    CommitDriver, DbOptions, Durability, FullPolicy, ObjectId, ObjectSpec, Retention, TableSize,
};
pub use qos::admission::{AdmissionFigures, ShedPolicy};
pub use recovery::RecoveryReport;
pub use room::TableFit;
pub use stats::{Health, Pulse, Stats};
pub use store::{MemoryStore, PowerCut, SegmentStore, StoreError};
pub use table::{FreshCount, Key};
pub use task::{
    ReleaseTimer, STACK_BYTES, TaskContext, TaskHandle, TaskKind, TaskSpec, spawn_task,
};
pub use ticket::Ticket;
pub use time::Time;
