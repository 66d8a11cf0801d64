//! The store that a run leaves behind, reopened and compared only with the parent's record. The comparison covers its
//! whole log, and the tables that a start rebuilds from it.

use super::recorder::{Comparison, Record, TablesFound};
use super::writer::{db_options, table_rows};
use base::block::{
    BLOCK_BYTES, BlockDevice, Counters, DeviceError, FileDevice, FileDeviceOptions, Geometry,
};
use base::clock::{Clock, SystemClock};
use command::error::CliError;
use db::log::CHECKPOINT_PREFIX;
use db::{CommitDriver, Database, DbOptions, SegmentStore};
use flash::{OpenOptions, Store};
use std::collections::HashMap;
use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use trace::Sensors;

/// What the reopened store showed.
pub(crate) struct Reopened {
    pub(crate) comparison: Comparison,
    /// Damaged records, pieces and files of the log.
    pub(crate) log_damaged: u64,
    /// Missing readings, according to the numbering of the log.
    pub(crate) log_readings_missing: u64,
    /// Files of the log.
    pub(crate) log_segments: u64,
}

/// Reopens the store without writing to it. Compares the record with its whole log, with the table of a start, and with
/// the table of a start without checkpoints. The run ends with a checkpoint, so only the last one shows that the log
/// alone restores every reading.
pub(crate) fn reopen(image: &Path, record: &Record) -> Result<Reopened, CliError> {
    let failed = |error: &dyn Error| {
        CliError::failure(
            image.display(),
            format!("cannot be reopened: {error}"),
            "this is a defect; please report it",
        )
    };
    let sensors = trace::bundled_sensors().map_err(|error| failed(&error))?;
    let options = FileDeviceOptions {
        create_bytes: None,
        read_only: true,
        direct: true,
        exclusive: true,
    };
    let device = FileDevice::open(image, &options).map_err(|error| failed(&error))?;
    let device = Overlay {
        below: device,
        written: HashMap::new(),
    };
    let options = OpenOptions::default();
    let mut store = Store::open(device, &options).map_err(|error| failed(&error))?;
    let mut comparing = record.compare();
    let report = db::scan_log(&mut store, &mut |entry| {
        comparing.found(
            entry.key.and_then(|key| sensors.index_of(key)),
            entry.time.ms(),
            entry.value,
        );
        ControlFlow::Continue(())
    });
    let report = report.map_err(|error| failed(&error))?;
    let mut comparison = comparing.finish();
    let mut log_damaged = 0;
    let mut log_readings_missing = 0;
    let mut note = |damage: &db::Damage| {
        log_damaged = damage.places_unreadable().max(log_damaged);
        log_readings_missing = damage.readings_missing.max(log_readings_missing);
    };
    note(&report.damage);
    let (mut store, found) = table(store, &sensors, record, &mut note).map_err(|e| failed(&e))?;
    comparison.tables.add(&found);
    let mut checkpoints = Vec::new();
    let listed = store.list(&mut |name, _| {
        if name.starts_with(CHECKPOINT_PREFIX) {
            checkpoints.push(name.to_owned());
        }
    });
    listed.map_err(|error| failed(&error))?;
    for name in &checkpoints {
        store.delete(name).map_err(|error| failed(&error))?;
    }
    let (_, found) = table(store, &sensors, record, &mut note).map_err(|error| failed(&error))?;
    comparison.tables.add(&found);
    Ok(Reopened {
        comparison,
        log_damaged,
        log_readings_missing,
        log_segments: report.segments,
    })
}

/// Starts a database on the store and compares its table. What the start writes stays in the overlay.
fn table<S: SegmentStore>(
    store: S,
    sensors: &Sensors,
    record: &Record,
    note: &mut dyn FnMut(&db::Damage),
) -> Result<(S, TablesFound), db::Error> {
    let options = DbOptions {
        commit_driver: CommitDriver::Manual,
        ..db_options(sensors)
    };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let db = Database::open(store, clock, options)?;
    note(&db.recovery().damage);
    let found = record.compare_table(&table_rows(&db, sensors));
    let store = db.abandon().ok_or(db::Error::Closed)?;
    Ok((store, found))
}

/// A device whose writes stay in memory: the device below is unchanged.
struct Overlay<D> {
    below: D,
    written: HashMap<u64, Box<[u8]>>,
}

impl<D: BlockDevice> BlockDevice for Overlay<D> {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }
    fn read(&mut self, first_block: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.below.read(first_block, buffer)?;
        for (block, bytes) in (first_block..).zip(buffer.chunks_exact_mut(BLOCK_BYTES)) {
            if let Some(written) = self.written.get(&block) {
                bytes.copy_from_slice(written);
            }
        }
        Ok(())
    }
    fn write(&mut self, first_block: u64, data: &[u8]) -> Result<(), DeviceError> {
        for (block, bytes) in (first_block..).zip(data.chunks_exact(BLOCK_BYTES)) {
            self.written.insert(block, bytes.into());
        }
        Ok(())
    }
    fn flush(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }
    fn discard(&mut self, _first_block: u64, _block_count: u64) -> Result<(), DeviceError> {
        Ok(())
    }
    fn counters(&self) -> Counters {
        self.below.counters()
    }
    fn reset_write_blocks_max(&mut self) {
        self.below.reset_write_blocks_max();
    }
}
