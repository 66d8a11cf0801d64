//! The body of the fuzz target `node_messages`. A test of `libkeel` includes this file too and runs the committed
//! corpus through it.

use base::wire::{Decoded, decode};
use libkeel::protocol::{
    ANSWER_BYTES_MAX, Backup, BackupBegun, BackupEnd, BackupFile, End, Failure, Get, History,
    KeyList, Keys, KeysRelease, KeysReleased, Kind, Put, PutValue, Qos, REQUEST_BYTES_MAX, Status,
    Stored, Task, TaskDeclared, TaskNoted, TaskPeriod, Together, Watch, frame,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The first byte selects a kind of message, the others are its payload. The payload is refused, or it is a message
/// that is equal after sending and receiving. A task's report can be merged once its limits have been checked.
pub fn node_messages(data: &[u8]) {
    let Some((&first, payload)) = data.split_first() else {
        return;
    };
    let kind = Kind::ALL[usize::from(first) % Kind::ALL.len()];
    match kind {
        Kind::Get => drop(again::<Get>(kind, payload)),
        Kind::Put => {
            if let Some(put) = again::<Put>(kind, payload)
                && let Ok(time) = put.time()
            {
                let value = PutValue::of(libkeel::Value::Float(1.0)).expect("it is finite");
                assert_eq!(Put::new(put.key, value, time).time(), Ok(time));
            }
        }
        Kind::Watch => drop(again::<Watch>(kind, payload)),
        Kind::History => {
            if let Some(asked) = again::<History>(kind, payload)
                && let Ok((from, to)) = asked.range()
            {
                let made = History::new(asked.key, from, to, asked.limit);
                assert_eq!(made.range(), Ok((from, to)));
            }
        }
        Kind::Status => drop(again::<Status>(kind, payload)),
        Kind::Qos => drop(again::<Qos>(kind, payload)),
        Kind::Together => {
            if let Some(together) = again::<Together>(kind, payload) {
                // Each of its puts could also be sent alone.
                for put in &together.puts {
                    let alone = serde_json::to_vec(put).expect("plain structures can be written");
                    assert!(again::<Put>(Kind::Put, &alone).is_some());
                }
            }
        }
        Kind::Keys => drop(again::<Keys>(kind, payload)),
        Kind::KeyList => drop(again::<KeyList>(kind, payload)),
        Kind::KeysRelease => drop(again::<KeysRelease>(kind, payload)),
        Kind::KeysReleased => drop(again::<KeysReleased>(kind, payload)),
        Kind::Stored => drop(again::<Stored>(kind, payload)),
        Kind::End => drop(again::<End>(kind, payload)),
        Kind::TaskDeclared => drop(again::<TaskDeclared>(kind, payload)),
        Kind::TaskNoted => drop(again::<TaskNoted>(kind, payload)),
        Kind::Error => drop(again::<Failure>(kind, payload)),
        Kind::Task => {
            if let Some(task) = again::<Task>(kind, payload)
                && task.check().is_ok()
            {
                assert!(task.weight > 0.0 && task.period_ns > 0 && task.deadline_ns > 0);
                assert!(!task.name.is_empty() && !task.name.contains(char::is_control));
            }
        }
        Kind::TaskPeriod => {
            if let Some(period) = again::<TaskPeriod>(kind, payload) {
                task_period(&period);
            }
        }
        Kind::Backup => drop(again::<Backup>(kind, payload)),
        Kind::BackupBegun => drop(again::<BackupBegun>(kind, payload)),
        Kind::BackupFile => drop(again::<BackupFile>(kind, payload)),
        Kind::BackupEnd => drop(again::<BackupEnd>(kind, payload)),
        // The client knows no field of these; a piece of a backup has none.
        Kind::Value
        | Kind::Updates
        | Kind::Readings
        | Kind::State
        | Kind::QosState
        | Kind::BackupPiece => {}
    }
}

fn task_period(period: &TaskPeriod) {
    let Ok(mut figures) = period.figures() else {
        return;
    };
    assert_eq!(
        TaskPeriod::of(period.id, &figures.to_sum()).as_ref(),
        Some(period)
    );
    // Any number of them can be merged, and the result is valid.
    let other = figures.clone();
    figures.merge(&other);
    assert!(figures.tardiness_mean().is_finite() && (0.0..=1.0).contains(&figures.data_ratio()));
    for histogram in [&figures.response_ns, &figures.jitter_ns] {
        let middle = histogram.percentile(50.0);
        assert!((histogram.min()..=histogram.max()).contains(&middle));
    }
}

/// Returns the message of a payload, if it is one.
fn again<T>(kind: Kind, payload: &[u8]) -> Option<T>
where
    T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug,
{
    let message: T = serde_json::from_slice(payload).ok()?;
    // JSON may be longer than its content; a message from a node or a client has the limit of its kind.
    let bytes_max = match kind as u16 {
        ..256 => REQUEST_BYTES_MAX,
        _ => ANSWER_BYTES_MAX,
    };
    if let Some(bytes) = frame(kind, &message, bytes_max) {
        let Ok(Decoded::Frame(found)) = decode(&bytes, bytes_max) else {
            panic!("a frame that was made is one");
        };
        assert_eq!((found.kind, found.consumed), (kind as u16, bytes.len()));
        let same: T = serde_json::from_slice(found.payload).expect("what was written is read");
        assert_eq!(same, message);
    }
    Some(message)
}
