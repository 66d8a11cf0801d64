//! Fills stores with a history before a restart is measured.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base::clock::SystemClock;
use db::{Database, DbOptions, Durability, ObjectSpec};

use super::cases::STEADY_RATE;
use super::publisher::TOPICS;
use super::sqlite::{Row, SqliteLog};
use super::system::{System, image_path};
use crate::scratch::check_interrupted;

/// Readings in one transaction of the peer.
const TRANSACTION: u64 = 65_000;

/// Stores `count` readings, the last one at the current time, into the store that `system` has created in `folder`.
pub(crate) fn fill(system: System, folder: &Path, count: u64) -> Result<(), String> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let begin_ms = now.as_millis() as i64 - (count * 1000 / u64::from(STEADY_RATE)) as i64;
    let time_ms = |number: u64| begin_ms + (number * 1000 / u64::from(STEADY_RATE)) as i64;
    let sensor = |number: u64| (number.wrapping_mul(7919) % u64::from(TOPICS)) as u32;
    let value = |number: u64| 18.0 + (number % 700) as f64 / 100.0;
    match system {
        System::Keel | System::KeelParts => {
            let device = crate::store::open_direct(&image_path(folder))?;
            let store = flash::Store::open(device, &flash::OpenOptions::default());
            let store = store.map_err(|error| error.to_string())?;
            let database =
                Database::open(store, Arc::new(SystemClock::new()), DbOptions::default());
            let database = database.map_err(describe)?;
            let declare = |sensor| {
                database.declare(&ObjectSpec {
                    key: &system.key(sensor),
                    avi_ms: 60_000,
                    temporal: true,
                })
            };
            let objects = (0..TOPICS)
                .map(declare)
                .collect::<Result<Vec<_>, _>>()
                .map_err(describe)?;
            for number in 0..count {
                let (object, value) = (
                    objects[sensor(number) as usize],
                    value(number).to_le_bytes(),
                );
                loop {
                    let time = db::Time::from_ms(time_ms(number));
                    match database.put(object, &value, time, Durability::Batched) {
                        Ok(_) => break,
                        Err(db::Error::Busy) => std::thread::sleep(Duration::from_millis(1)),
                        Err(error) => return Err(describe(error)),
                    }
                }
                if number % 16_384 == 0 {
                    check_interrupted()?;
                    while database.maintain().map_err(describe)? {}
                }
            }
            database.close().map_err(describe)?;
        }
        System::Sqlite | System::SqliteIndexed | System::SqliteStock => {
            let mut log = SqliteLog::open(folder, system == System::SqliteIndexed)?;
            let names: Vec<_> = (0..TOPICS)
                .map(|sensor| (sensor, system.key(sensor)))
                .collect();
            log.commit(&names, &[])?;
            let mut rows = Vec::new();
            for begin in (0..count).step_by(TRANSACTION as usize) {
                check_interrupted()?;
                let row = |number| Row {
                    key: sensor(number),
                    time_ms: time_ms(number),
                    value: value(number),
                };
                rows.clear();
                rows.extend((begin..count.min(begin + TRANSACTION)).map(row));
                log.commit(&[], &rows)?;
            }
        }
    }
    Ok(())
}

fn describe(error: db::Error) -> String {
    error.to_string()
}
