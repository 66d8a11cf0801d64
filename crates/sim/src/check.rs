//! The comparison of what is found in a log, or on a device, with what the ledger says.

use std::ops::ControlFlow;

use base::sim::{Random, SimDevice};
use db::{DbOptions, LogEntry, ScanReport, scan_log};
use flash::{OpenOptions, Store};

use crate::clock::Probes;
use crate::device::Device;
use crate::invariant::{Broken, Invariant};
use crate::ledger::Ledger;
use crate::logged::Logged;
use crate::ranges::{self, LogReadings};
use crate::sensors::Feed;

/// What was found of a log, in its order.
pub(crate) struct Found {
    /// How often each reading was found.
    times: Vec<u8>,
    /// Of each sensor, the last reading that was found for the first time.
    last: Vec<Option<u64>>,
    /// Readings that were found again.
    again: u64,
    /// Of two copies of a reading, the first one may be missing: damaged, deleted or not read.
    misses_copies: bool,
}

impl Found {
    pub(crate) fn new(feed: &Feed<'_>) -> Self {
        Self {
            times: Vec::new(),
            last: vec![None; feed.sensors().count()],
            again: 0,
            misses_copies: false,
        }
    }

    /// From now on, the first of two copies of a reading may be missing.
    pub(crate) fn miss_copies(&mut self) {
        self.misses_copies = true;
    }

    /// Returns how many readings were found again.
    pub(crate) fn again(&self) -> u64 {
        self.again
    }

    /// Compares the next reading of the log.
    ///
    /// # Errors
    /// I2, I3 or I4.
    pub(crate) fn add(
        &mut self,
        feed: &Feed<'_>,
        ledger: &Ledger,
        logged: &Logged<'_>,
    ) -> Result<(), Broken> {
        let number = logged.number(feed, ledger)?;
        let taken = ledger.times_taken(number);
        let place = number as usize;
        if self.times.len() <= place {
            self.times.resize(place + 1, 0);
        }
        self.times[place] = self.times[place].saturating_add(1);
        let times = self.times[place];
        if times > taken {
            let found =
                format!("reading {number} is there {times} times, and was taken {taken} times");
            return Err(Broken::new(Invariant::NothingInvented, found));
        }
        if times > 1 {
            self.again += 1;
            return Ok(());
        }
        let last = &mut self.last[usize::from(feed.sensor(number))];
        if let Some(before) = *last
            && before >= number
        {
            if self.misses_copies && taken > 1 {
                return Ok(());
            }
            let found = format!("reading {number} comes after {before} of the same sensor");
            return Err(Broken::new(Invariant::Order, found));
        }
        *last = Some(number);
        Ok(())
    }

    /// Whether the reading was found.
    pub(crate) fn has(&self, number: u64) -> bool {
        self.times
            .get(number as usize)
            .is_some_and(|times| *times > 0)
    }

    /// Returns the first acknowledged reading that was not found, although nothing excuses that. Counted damage does,
    /// and so does a number in the log below `gone_end`.
    fn first_lost(&self, ledger: &Ledger, gone_end: u64) -> Option<u64> {
        (0..ledger.end()).find(|number| ledger.is_owed(*number, gone_end) && !self.has(*number))
    }

    /// Checks that every acknowledged reading was found. Those whose number in the log is below `gone_end` are deleted
    /// and may be missing.
    ///
    /// # Errors
    /// The invariant that says so.
    pub(crate) fn complete(
        &self,
        ledger: &Ledger,
        gone_end: u64,
        invariant: Invariant,
    ) -> Result<(), Broken> {
        self.first_lost(ledger, gone_end).map_or(Ok(()), |number| {
            let found = format!("reading {number} was acknowledged and is not there");
            Err(Broken::new(invariant, found))
        })
    }

    /// Checks that every reading that was offered was found once or refused: nothing has failed.
    ///
    /// # Errors
    /// I1 or I3.
    pub(crate) fn exact(&self, ledger: &Ledger) -> Result<(), Broken> {
        if self.again > 0 {
            let found = format!("{} readings came again, and nothing has failed", self.again);
            return Err(Broken::new(Invariant::NothingInvented, found));
        }
        let lost =
            (0..ledger.end()).find(|number| !ledger.is_refused(*number) && !self.has(*number));
        lost.map_or(Ok(()), |number| {
            let found = format!("reading {number} is not there, and nothing has failed");
            Err(Broken::new(Invariant::NothingLost, found))
        })
    }
}

/// What must be on a device.
#[derive(Clone, Copy)]
pub(crate) struct Expected<'a> {
    pub(crate) feed: &'a Feed<'a>,
    pub(crate) ledger: &'a Ledger,
    /// Readings numbered below this were durable.
    pub(crate) durable_end: u64,
    /// Readings numbered below this may be deleted: retention has counted them.
    pub(crate) gone_end: u64,
    /// The device has broken its contract: what is lost must be counted as damage.
    pub(crate) is_harmed: bool,
    /// Readings to which the node gives the time.
    pub(crate) probes: Option<&'a Probes>,
    /// Those of a node that starts on it.
    pub(crate) options: DbOptions,
    /// What does not hold if something is lost.
    pub(crate) invariant: Invariant,
}

impl Expected<'_> {
    /// Says that something is lost.
    fn lost<T>(&self, found: String) -> Result<T, Broken> {
        Err(Broken::new(self.invariant, found))
    }
}

/// What was found on a device.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    /// Whether the store opens; it may not if the device has broken its contract.
    pub(crate) opens: bool,
    /// Number in the log of its first reading.
    pub(crate) first: Option<u64>,
    /// Acknowledged readings that are not there, and whose loss is counted.
    pub(crate) lost: Vec<u64>,
    /// Range reads that were compared with the log.
    pub(crate) range_reads: u64,
}

/// What reading a log from its beginning has found.
struct ReadLog {
    found: Found,
    /// All of them, for range reads.
    readings: LogReadings,
    /// Number of its first reading.
    first: Option<u64>,
    /// The number after its last reading.
    end: u64,
    /// Its readings numbered below `durable_end`.
    below: u64,
    report: ScanReport,
}

impl ReadLog {
    fn new(expected: &Expected<'_>) -> Self {
        let mut found = Found::new(expected.feed);
        if expected.is_harmed || expected.gone_end > 0 {
            found.miss_copies();
        }
        Self {
            found,
            readings: LogReadings::default(),
            first: None,
            end: 0,
            below: 0,
            report: ScanReport::default(),
        }
    }

    /// Compares the next reading of the log.
    ///
    /// # Errors
    /// I2, I3 or I4.
    fn add(&mut self, entry: &LogEntry<'_>, expected: &Expected<'_>) -> Result<(), Broken> {
        self.first.get_or_insert(entry.lsn);
        self.end = entry.lsn + 1;
        self.below += u64::from(entry.lsn < expected.durable_end);
        let probe = entry
            .key
            .zip(expected.probes)
            .and_then(|(key, probes)| probes.index_of(key).zip(Some(probes)));
        self.readings.add(entry, probe.is_some());
        // A name that is not there is a loss, and the report counts it.
        let Some(key) = entry.key else {
            return Ok(());
        };
        match probe {
            Some((probe, probes)) => probes.check_logged(probe, entry),
            None => {
                let logged = Logged {
                    sensor: expected.feed.sensor_of(key),
                    time: entry.time,
                    value: entry.value,
                };
                self.found.add(expected.feed, expected.ledger, &logged)
            }
        }
    }
}

/// Checks what is left on a device: the store opens and is whole. Its log has every acknowledged reading and every
/// reading numbered below `durable_end`. Only the oldest ones may be missing, as retention has counted them. Nothing
/// else is there than what was taken. Range reads, some of them drawn, return what the log has.
///
/// # Errors
/// `invariant` for what is lost; I2, I3, I4 or I16.
pub(crate) fn image(
    device: SimDevice,
    expected: &Expected<'_>,
    random: &mut Random,
) -> Result<Contents, Broken> {
    let mut store = match Store::open(Device::image(device), &OpenOptions::default()) {
        Ok(store) => store,
        Err(_) if expected.is_harmed => return Ok(Contents::default()),
        Err(error) => return expected.lost(format!("the store does not open: {error}")),
    };
    let Some(log) = read_log(&mut store, expected)? else {
        return Ok(Contents::default());
    };
    let options = expected.options;
    let (lost, range_reads) = if expected.is_harmed {
        let is_counted = is_damage_counted(&mut store, &log, expected.invariant);
        (
            check_harmed(&log, expected, is_counted)?,
            ranges::check_harmed(store, options, &log.readings, is_counted)?,
        )
    } else {
        check_whole(&mut store, &log, expected)?;
        (
            Vec::new(),
            ranges::check(store, options, &log.readings, random)?,
        )
    };
    Ok(Contents {
        opens: true,
        first: log.first,
        lost,
        range_reads,
    })
}

/// Reads the log of a store from its beginning. Returns `None` if it cannot be read because of damage.
fn read_log(store: &mut Store<Device>, expected: &Expected<'_>) -> Result<Option<ReadLog>, Broken> {
    let mut log = ReadLog::new(expected);
    let mut broken = None;
    let scanned = scan_log(store, &mut |entry| match log.add(entry, expected) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            broken = Some(error);
            ControlFlow::Break(())
        }
    });
    if let Some(broken) = broken {
        return Err(broken);
    }
    log.report = match scanned {
        Ok(report) => report,
        Err(_) if expected.is_harmed => return Ok(None),
        Err(error) => return expected.lost(format!("the log cannot be read: {error}")),
    };
    Ok(Some(log))
}

/// Whether any damage is found: in the log, its names, or the store.
fn is_damage_counted(store: &mut Store<Device>, log: &ReadLog, invariant: Invariant) -> bool {
    log.report.damage.any()
        || log.report.readings_unnamed > 0
        || check_store(store, invariant).is_err()
}

/// Checks the log of a device that has broken its contract. What is lost must be counted as damage, or be taken back
/// with the end of the log. Returns the acknowledged readings that are lost.
fn check_harmed(
    log: &ReadLog,
    expected: &Expected<'_>,
    is_counted: bool,
) -> Result<Vec<u64>, Broken> {
    let ledger = expected.ledger;
    let is_missing =
        |number: &u64| ledger.is_owed(*number, expected.gone_end) && !log.found.has(*number);
    let missing: Vec<u64> = (0..ledger.end()).filter(is_missing).collect();
    // A lost write of a record takes back the last calls, and what they have appended: nothing can count that.
    let is_taken_back = log.end < expected.durable_end;
    if let Some(number) = missing.first()
        && !is_counted
        && !is_taken_back
    {
        return expected.lost(format!(
            "reading {number} was acknowledged and is not there, and nothing counts it"
        ));
    }
    Ok(missing)
}

/// Checks the log of a device that has kept its contract: only what retention has counted is missing, and nothing is
/// damaged.
fn check_whole(
    store: &mut Store<Device>,
    log: &ReadLog,
    expected: &Expected<'_>,
) -> Result<(), Broken> {
    let Expected {
        durable_end,
        gone_end,
        ..
    } = *expected;
    if log.report.readings_unnamed > 0 {
        let unnamed = log.report.readings_unnamed;
        return expected.lost(format!("the names of {unnamed} readings are not there"));
    }
    let begin = log.first.unwrap_or(durable_end);
    if begin > gone_end {
        return expected.lost(format!(
            "the log begins with {begin}, and what is below {gone_end} is counted as deleted"
        ));
    }
    log.found
        .complete(expected.ledger, begin, expected.invariant)?;
    let due = durable_end.saturating_sub(begin);
    let below = log.below;
    if below < due {
        return expected.lost(format!(
            "readings from {begin} to {durable_end} were durable, and {below} of these {due} are there"
        ));
    }
    let damage = log.report.damage;
    if damage.any() {
        return expected.lost(format!("damage without a fault: {damage:?}"));
    }
    check_store(store, expected.invariant)
}

/// Checks the store itself: damage that has cost nothing yet will cost something later.
fn check_store(store: &mut Store<Device>, invariant: Invariant) -> Result<(), Broken> {
    let found = match store.check() {
        Ok(report) if report.is_clean() => return Ok(()),
        Ok(report) => format!("the store is damaged: {:?}", report.problems),
        Err(error) => format!("the store cannot be checked: {error}"),
    };
    Err(Broken::new(invariant, found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sensors::Sensors;
    use db::Time;

    /// What `add` says of a reading, and what it has found so far.
    struct Case<'s> {
        feed: Feed<'s>,
        ledger: Ledger,
        found: Found,
    }

    impl<'s> Case<'s> {
        fn new(sensors: &'s Sensors) -> Self {
            let feed = Feed::new(sensors, 1, 1);
            Self {
                found: Found::new(&feed),
                ledger: Ledger::default(),
                feed,
            }
        }

        fn add(&mut self, sensor: Option<u16>, time: Time, value: &[u8]) -> Option<Invariant> {
            let logged = Logged {
                sensor,
                time,
                value,
            };
            let added = self.found.add(&self.feed, &self.ledger, &logged);
            added.err().map(|broken| broken.invariant)
        }

        /// Adds a reading as it was offered.
        fn add_right(&mut self, number: u64) -> Option<Invariant> {
            let (sensor, time) = (self.feed.sensor(number), self.feed.time(number));
            let value = self.feed.value(number);
            self.add(Some(sensor), time, &value)
        }
    }

    #[test]
    fn each_invariant_can_be_broken() {
        let sensors = Sensors::read(1_000).expect("the bundled trace");
        let mut case = Case::new(&sensors);
        let first = 10;
        let sensor = case.feed.sensor(first);
        let later = (first + 1..).find(|number| case.feed.sensor(*number) == sensor);
        let later = later.expect("each sensor has many readings");
        for number in [first, later, 11] {
            case.ledger.take(number);
        }
        case.ledger.take(first);
        case.ledger.refuse(12);
        let (time, value) = (case.feed.time(first), case.feed.value(first));
        let moved = Time::from_ns(time.ns() + 1);
        assert_eq!(
            case.add(Some(sensor), moved, &value),
            Some(Invariant::NothingAltered)
        );
        assert_eq!(
            case.add(Some(sensor), time, &value[..7]),
            Some(Invariant::NothingAltered)
        );
        let invented = Some(Invariant::NothingInvented);
        assert_eq!(case.add(None, time, &value), invented);
        let never = Time::from_ms(crate::sensors::BEGIN_MS - 5);
        assert_eq!(case.add(Some(sensor), never, &value), invented);
        assert_eq!(case.add_right(12), invented, "refused");
        assert_eq!(case.add_right(13), invented, "never offered");
        assert_eq!(
            (case.add_right(later), case.add_right(later)),
            (None, invented)
        );
        assert_eq!(case.add_right(first), Some(Invariant::Order));
        // It is there now, and it was taken twice.
        assert_eq!((case.add_right(first), case.found.again()), (None, 1));
        let complete = |case: &Case<'_>| {
            let (ledger, invariant) = (&case.ledger, Invariant::NothingLost);
            case.found.complete(ledger, 0, invariant)
        };
        case.ledger.acknowledge(first);
        assert_eq!(complete(&case), Ok(()));
        case.ledger.acknowledge(11);
        let lost = complete(&case).expect_err("11 is not there");
        assert!(lost.to_string().starts_with("I1 (") && lost.found.contains("11"));
        assert!(case.found.exact(&case.ledger).is_err());
    }
}
