//! Recorded readings: a trace, replayed at any speed.
//!
//! **Holds:** the two tables of a trace and their limits, the trace of the burning office block that is bundled with
//! the project ([`bundled`]), the replayer that yields readings at the times of the trace ([`replay`]), and the step
//! from a reading to an object of the database ([`sink`]).
//!
//! **Must not know:** the file store and its format, sockets.
//!
//! **Invariants:** A malformed line of readings affects that line alone and is counted by its reason. No input makes
//! the parser panic or hold more than its stated limits. Readings are yielded in the order of the trace and never
//! before their time. The bytes stored for a reading give back exactly the number that was parsed.
//!
//! **Files:** `lib.rs` types, limits and the bundled trace, `line.rs` bounded lines and CSV fields, `sensors.rs` and
//! `readings.rs` the two tables, `replay.rs` the replayer, `sink.rs` the way into the database, `error.rs`.

mod error;
mod line;
pub mod readings;
pub mod replay;
pub mod sensors;
pub mod sink;

pub use error::Error;
pub use readings::{Reading, ReadingReader, Rejection, Rejections};
pub use sensors::{Sensor, Sensors};
use std::io::{BufRead, BufReader, Read};

/// Longest line of either table in bytes, without its terminator.
pub const LINE_BYTES_MAX: usize = 256;

/// Largest number of sensors in one trace.
pub const SENSORS_MAX: usize = 65_535;

/// Largest table in bytes, after decompression.
pub const SOURCE_BYTES_MAX: u64 = 1 << 30;

/// Largest number of readings in a trace in memory (24 bytes each).
pub const READINGS_MAX: usize = 4_000_000;

/// Latest time of a reading, in milliseconds: one year.
pub const TIME_MS_MAX: u64 = 366 * 24 * 3_600 * 1_000;

static SENSORS_CSV: &[u8] = include_bytes!("../../../examples/fire/sensors.csv");
static READINGS_CSV_GZ: &[u8] = include_bytes!("../../../examples/fire/readings.csv.gz");

/// Sensors and readings, in memory.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    sensors: Sensors,
    readings: Vec<Reading>,
    rejections: Rejections,
    complete: bool,
}

impl Trace {
    /// Reads both tables; the readings may be compressed with gzip. Readings after `until_ms` are left out without
    /// being read.
    ///
    /// # Errors
    /// Any [`Error`] of either table. Bad lines of the readings are no error, see [`Trace::rejections`].
    pub fn read(
        sensors: impl BufRead,
        readings: impl BufRead,
        until_ms: u64,
    ) -> Result<Self, Error> {
        let sensors = Sensors::read(sensors)?;
        let mut reader = ReadingReader::new(plain_or_gzip(readings)?, &sensors)?;
        let mut list = Vec::new();
        let mut complete = true;
        while let Some(reading) = reader.next_reading()? {
            if reading.time_ms > until_ms {
                complete = false;
                break;
            }
            if list.len() == READINGS_MAX {
                return Err(Error::TooLarge {
                    table: "readings",
                    limit: READINGS_MAX as u64,
                    unit: "readings",
                });
            }
            list.push(reading);
        }
        let rejections = reader.rejections();
        Ok(Self {
            sensors,
            readings: list,
            rejections,
            complete,
        })
    }

    /// Returns the sensors.
    #[must_use]
    pub fn sensors(&self) -> &Sensors {
        &self.sensors
    }

    /// Returns the readings, in order of time.
    #[must_use]
    pub fn readings(&self) -> &[Reading] {
        &self.readings
    }

    /// Returns the number of refused lines, by reason.
    #[must_use]
    pub fn rejections(&self) -> Rejections {
        self.rejections
    }

    /// Returns whether the whole source was read; otherwise reading stopped at `until_ms`.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Returns the time of the last reading in ms; 0 for an empty trace.
    #[must_use]
    pub fn duration_ms(&self) -> u64 {
        self.readings.last().map_or(0, |reading| reading.time_ms)
    }
}

/// Returns the sensors of the burning office block; see `examples/fire/README.md`. Needs no file.
///
/// # Errors
/// None for the bundled bytes, as a test verifies; the type is that of any other table.
pub fn bundled_sensors() -> Result<Sensors, Error> {
    Sensors::read(SENSORS_CSV)
}

/// Returns the bundled trace of the burning office block up to `until_ms`; see `examples/fire/README.md`. Needs no
/// file.
///
/// # Errors
/// None for the bundled bytes, as a test verifies; the type is that of any other trace.
pub fn bundled(until_ms: u64) -> Result<Trace, Error> {
    Trace::read(SENSORS_CSV, READINGS_CSV_GZ, until_ms)
}

/// Decompresses the source if it starts with gzip's magic number.
fn plain_or_gzip<'a>(mut source: impl BufRead + 'a) -> Result<Box<dyn BufRead + 'a>, Error> {
    let mut magic = [0_u8; 2];
    let mut got = 0;
    while got < magic.len() {
        match source.read(&mut magic[got..]) {
            Ok(0) => break,
            Ok(bytes) => got += bytes,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(source) => {
                return Err(Error::Read {
                    table: "readings",
                    line: 0,
                    source,
                });
            }
        }
    }
    let whole = std::io::Cursor::new(magic).take(got as u64).chain(source);
    Ok(if magic == [0x1f, 0x8b] {
        Box::new(BufReader::with_capacity(
            1 << 16,
            flate2::bufread::MultiGzDecoder::new(whole),
        ))
    } else {
        Box::new(whole)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bundled_trace_is_whole() {
        let trace = bundled(u64::MAX).unwrap();
        assert_eq!(trace.sensors().len(), 1_024);
        assert_eq!(trace.readings().len(), 155_499);
        assert_eq!(trace.rejections().total(), 0);
        assert!(trace.is_complete());
        assert_eq!(trace.duration_ms(), 597_995);
        let part = bundled(10_000).unwrap();
        assert!(!part.is_complete());
        assert!(part.duration_ms() <= 10_000);
        assert_eq!(part.readings(), &trace.readings()[..part.readings().len()]);
    }

    #[test]
    fn damaged_compression_is_an_error_and_no_panic() {
        for cut in [3, 10, 11, 1_000, READINGS_CSV_GZ.len() - 1] {
            let result = Trace::read(SENSORS_CSV, &READINGS_CSV_GZ[..cut], u64::MAX);
            assert!(
                matches!(result, Err(Error::Read { .. } | Error::Header { .. })),
                "{cut}"
            );
        }
    }
}
