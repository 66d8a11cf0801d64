//! The wall clock of a run: its jumps, and what must be known of times and ages nevertheless.
//!
//! Probes are readings without a time of their sensor: the node gives it. They age by the monotonic clock for as long
//! as the boot lasts, and by the wall clock afterwards. Readings with a time of their sensor always age by the wall
//! clock. The judge asks for values at drawn moments and computes each age from its own record.

use std::collections::BTreeMap;

use base::clock::Clock;
use base::sim::{Random, SimClock};
use db::value::Value;
use db::{Got, LogEntry, Time};
use ingest::line::write_line;

use crate::invariant::{Broken, Invariant};
use crate::ledger::Ledger;
use crate::logged::Logged;
use crate::sensors::{BEGIN_MS, Feed};

/// Keys of probes.
pub(crate) const PROBES: u16 = 8;
/// One look in this many comes with a jump of the wall clock, and one with a change of its trust.
const JUMP_ONE_IN: u64 = 8;
/// The longest jump is 2^28 s, which is more than eight years.
const JUMP_POWERS: u64 = 29;
/// Wall times of a run, in ms: from 1970 to about 2160. The clock is set right again beyond.
const WALL_MS: std::ops::Range<i64> = 0..6_000_000_000_000;
/// One boot in this many begins in 1970.
const BOOT_IN_1970_ONE_IN: u64 = 3;
/// Longest time between two looks.
const LOOK_NS_MAX: u64 = 400_000_000;
const NS_PER_MS: i64 = 1_000_000;

/// A reading of a probe that the node has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Taken {
    probe: u16,
    number: u32,
    /// What the node has given it.
    time: Time,
    is_trusted: bool,
    arrival_ns: u64,
    boot_id: [u8; 16],
}

impl Taken {
    /// The stored bytes of its value.
    fn value(&self) -> [u8; 8] {
        f64::from(self.number).to_le_bytes()
    }
}

/// Jumps, probes and ages.
#[derive(Debug)]
pub(crate) struct Probes {
    random: Random,
    /// How long a value counts as fresh.
    validity_ms: u32,
    /// Number of the next reading, which is its value, too.
    next: u32,
    /// What the log has, by the numbers there. What a crash has taken is removed at the next start.
    taken: BTreeMap<u64, Taken>,
    /// What crashes have taken from the log, and what a checkpoint may have nevertheless: values are in the table
    /// before they are in the log.
    doubtful: Vec<Taken>,
    /// Of each probe, the reading that the table shows.
    last: [Option<Taken>; PROBES as usize],
    /// Of each sensor, the reading that the table shows at least: the newest one that this life has found or taken.
    newest: Vec<Option<u64>>,
}

impl Probes {
    pub(crate) fn new(random: Random, validity_ms: u32, sensors: usize) -> Self {
        Self {
            random,
            validity_ms,
            next: 0,
            taken: BTreeMap::new(),
            doubtful: Vec::new(),
            last: [None; PROBES as usize],
            newest: vec![None; sensors],
        }
    }

    /// Returns the time until the next look.
    pub(crate) fn pause_ns(&mut self) -> u64 {
        1 + self.random.below(LOOK_NS_MAX)
    }

    /// Returns a drawn number below the bound.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    /// Returns a drawn sensor.
    pub(crate) fn draw_sensor(&mut self) -> u16 {
        self.random.index(self.newest.len()) as u16
    }

    // ---- the wall clock ----

    /// Lets the wall clock jump, or its trust change, or neither. Returns whether it has jumped.
    pub(crate) fn disturb(&mut self, clock: &SimClock) -> bool {
        let drawn = self.random.below(JUMP_ONE_IN);
        match drawn {
            0 => {
                let ms = 1_000_i64 << self.random.below(JUMP_POWERS);
                clock.jump_wall_ms(if self.random.coin() { ms } else { -ms });
                if !WALL_MS.contains(&clock.wall_ms()) {
                    clock.set_wall_ms(BEGIN_MS);
                }
            }
            1 => clock.set_wall_trusted(self.random.coin()),
            _ => {}
        }
        drawn == 0
    }

    /// A boot begins; its clock may have lost its time.
    pub(crate) fn boot(&mut self, clock: &SimClock) {
        if self.random.below(BOOT_IN_1970_ONE_IN) == 0 {
            clock.set_wall_ms(self.random.below(60_000) as i64);
        }
    }

    // ---- probes ----

    /// Returns the probe that has this key.
    pub(crate) fn index_of(&self, key: &str) -> Option<u16> {
        let probe = key.strip_prefix("probe/room=p")?.strip_suffix("/value")?;
        probe.parse().ok().filter(|probe| *probe < PROBES)
    }

    /// Returns the key of a probe.
    pub(crate) fn key(probe: u16) -> String {
        format!("probe/room=p{probe}/value")
    }

    /// Writes the line of the next reading of a drawn probe. Returns the probe and the number of the reading.
    pub(crate) fn line(&mut self, line: &mut String) -> (u16, u32) {
        let probe = self.random.index(usize::from(PROBES)) as u16;
        let number = self.next;
        self.next += 1;
        let room = format!("p{probe}");
        line.clear();
        write_line(
            line,
            "probe",
            &[("room", room.as_str())],
            &[("value", Value::Float(f64::from(number)))],
            None,
        );
        (probe, number)
    }

    /// The node has taken a probe as the reading `lsn` of the log, and shows this at once.
    ///
    /// # Errors
    /// I7.
    pub(crate) fn take(
        &mut self,
        (probe, number): (u16, u32),
        lsn: u64,
        (got, shown): (Got, &[u8]),
        clock: &SimClock,
    ) -> Result<(), Broken> {
        let taken = Taken {
            probe,
            number,
            time: got.time,
            is_trusted: got.wall_trusted,
            arrival_ns: clock.monotonic_ns(),
            boot_id: clock.boot_id(),
        };
        self.taken.insert(lsn, taken);
        self.last[usize::from(probe)] = Some(taken);
        self.check(probe, Some((got, shown)), clock)
    }

    /// Checks what the node shows of a probe now.
    ///
    /// # Errors
    /// I7.
    pub(crate) fn check(
        &self,
        probe: u16,
        shown: Option<(Got, &[u8])>,
        clock: &SimClock,
    ) -> Result<(), Broken> {
        let (taken, got, value) = match (self.last[usize::from(probe)], shown) {
            (None, None) => return Ok(()),
            (Some(taken), Some((got, value))) => (taken, got, value),
            (taken, shown) => {
                return broken(format!("probe {probe}: {shown:?} instead of {taken:?}"));
            }
        };
        let this_boot = taken.boot_id == clock.boot_id();
        let is_it = got.node_time
            && !got.retained
            && got.time == taken.time
            && got.wall_trusted == taken.is_trusted
            && got.this_boot == this_boot
            && value == taken.value();
        // The log has arrivals in whole µs.
        let arrivals = [taken.arrival_ns, taken.arrival_ns / 1_000 * 1_000];
        let ages = arrivals.map(|arrival_ns| match this_boot {
            true => i64::try_from(clock.monotonic_ns() - arrival_ns).unwrap_or(i64::MAX),
            false => clock.wall_ns().saturating_sub(taken.time.ns()),
        });
        match is_it && ages.iter().any(|age_ns| self.is_told(&got, *age_ns)) {
            true => Ok(()),
            false => broken(format!(
                "probe {probe}: {got:?} {value:?} instead of {taken:?} with an age of {ages:?} ns"
            )),
        }
    }

    /// Whether age and freshness are those of a value of this age.
    fn is_told(&self, got: &Got, age_ns: i64) -> bool {
        let valid_ns = u64::from(self.validity_ms) * NS_PER_MS as u64;
        let is_fresh = age_ns.unsigned_abs() <= valid_ns;
        got.age_ms == age_ns / NS_PER_MS && got.fresh == is_fresh
    }

    /// Checks a probe of the log.
    ///
    /// # Errors
    /// I2 or I3.
    pub(crate) fn check_logged(&self, probe: u16, entry: &LogEntry<'_>) -> Result<(), Broken> {
        let lsn = entry.lsn;
        let known = self.taken.get(&lsn).filter(|taken| taken.probe == probe);
        let Some(taken) = known else {
            let found = format!("probe {probe} has no reading with the number {lsn} of the log");
            return Err(Broken::new(Invariant::NothingInvented, found));
        };
        let is_it = entry.value == taken.value()
            && entry.time == taken.time
            && entry.wall_trusted == taken.is_trusted
            && entry.boot_id == taken.boot_id
            && entry.arrival_us == taken.arrival_ns / 1_000;
        match is_it {
            true => Ok(()),
            false => {
                let found = format!("probe {probe} is {entry:?} instead of {taken:?}");
                Err(Broken::new(Invariant::NothingAltered, found))
            }
        }
    }

    /// The node has started on a log that ends with this number.
    pub(crate) fn restart(&mut self, durable_end: u64) {
        let lost = self.taken.split_off(&durable_end);
        self.doubtful.extend(lost.into_values());
        let mut last: [Option<Taken>; PROBES as usize] = [None; PROBES as usize];
        for taken in self.taken.values() {
            last[usize::from(taken.probe)] = Some(*taken);
        }
        // What the log has replaces what is older.
        self.doubtful.retain(|doubtful| {
            let logged = last[usize::from(doubtful.probe)];
            logged.is_none_or(|logged| logged.number < doubtful.number)
        });
        self.last = last;
        self.newest.fill(None);
    }

    /// Checks what a start has found of a probe.
    ///
    /// # Errors
    /// I7.
    pub(crate) fn begin_with(
        &mut self,
        probe: u16,
        shown: Option<(Got, &[u8])>,
        clock: &SimClock,
    ) -> Result<(), Broken> {
        if let Some((_, value)) = shown {
            let mut doubtful = self.doubtful.iter();
            let found = doubtful.find(|one| one.probe == probe && value == one.value());
            if let Some(found) = found {
                self.last[usize::from(probe)] = Some(*found);
            }
        }
        self.check(probe, shown, clock)
    }

    // ---- values with a time of their sensor ----

    /// Whether a reading is at least as new as what the table shows of its sensor.
    pub(crate) fn is_news(&self, sensor: u16, number: u64) -> bool {
        self.newest[usize::from(sensor)].is_none_or(|newest| newest <= number)
    }

    /// Whether this life has neither found nor taken a reading of this sensor.
    pub(crate) fn is_unknown(&self, sensor: u16) -> bool {
        self.newest[usize::from(sensor)].is_none()
    }

    /// The table has this reading, or a newer one.
    pub(crate) fn note(&mut self, sensor: u16, number: u64) {
        let newest = &mut self.newest[usize::from(sensor)];
        *newest = (*newest).max(Some(number));
    }

    /// Checks what the node shows of a sensor now. Returns the number of the reading.
    ///
    /// # Errors
    /// I2, I3 or I7.
    pub(crate) fn check_sensor(
        &self,
        feed: &Feed<'_>,
        ledger: &Ledger,
        sensor: u16,
        (got, value): (Got, &[u8]),
        clock: &SimClock,
    ) -> Result<u64, Broken> {
        let logged = Logged {
            sensor: Some(sensor),
            time: got.time,
            value,
        };
        let number = logged.number(feed, ledger)?;
        if !self.is_news(sensor, number) {
            let newest = self.newest[usize::from(sensor)];
            return broken(format!("reading {number} is shown instead of {newest:?}"));
        }
        let age_ns = clock.wall_ns().saturating_sub(got.time.ns());
        if got.node_time || !self.is_told(&got, age_ns) {
            return broken(format!(
                "reading {number}: {got:?} has an age of {age_ns} ns"
            ));
        }
        Ok(number)
    }
}

fn broken<T>(found: String) -> Result<T, Broken> {
    Err(Broken::new(Invariant::Freshness, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn shown(time: Time, age_ms: i64, fresh: bool, clock: &SimClock) -> Got {
        Got {
            value_bytes: 8,
            time,
            age_ms,
            fresh,
            arrival_ns: clock.monotonic_ns(),
            this_boot: true,
            wall_trusted: false,
            node_time: true,
            retained: false,
        }
    }

    #[test]
    fn a_probe_ages_by_the_monotonic_clock_until_the_next_boot() {
        let clock = SimClock::new(1);
        clock.set_wall_ms(BEGIN_MS);
        let mut probes = Probes::new(Random::new(1), 5_000, 4);
        let mut line = String::new();
        let (probe, number) = probes.line(&mut line);
        let value = f64::from(number).to_le_bytes();
        assert!(
            line.starts_with("probe,room=p") && line.contains(" value=0"),
            "{line}"
        );
        assert_eq!(probes.index_of(&Probes::key(probe)), Some(probe));
        let time = Time::from_ms(BEGIN_MS);
        let got = shown(time, 0, true, &clock);
        assert_eq!(probes.check(probe, None, &clock), Ok(()));
        let taken = probes.take((probe, number), 7, (got, &value[..]), &clock);
        assert_eq!(taken, Ok(()));
        assert_eq!(probes.check(probe, Some((got, &value[..])), &clock), Ok(()));
        clock.advance_ns(2 * SECOND_NS);
        clock.jump_wall_ms(3_600_000);
        let invariant = |got: Got, clock: &SimClock| {
            let checked = probes.check(probe, Some((got, &value[..])), clock);
            checked.err().map(|broken| broken.invariant)
        };
        let aged = Got {
            age_ms: 2_000,
            ..got
        };
        assert_eq!(invariant(aged, &clock), None);
        let by_wall = Got {
            age_ms: 3_602_000,
            fresh: false,
            ..got
        };
        assert_eq!(invariant(by_wall, &clock), Some(Invariant::Freshness));
        assert_eq!(invariant(got, &clock), Some(Invariant::Freshness), "no age");
        clock.reboot();
        let after = Got {
            this_boot: false,
            ..by_wall
        };
        assert_eq!(invariant(after, &clock), None);
        assert!(probes.check(probe, None, &clock).is_err(), "it is lost");
        // A crash has taken it from the log; a checkpoint may have it.
        probes.restart(7);
        assert_eq!(probes.check(probe, None, &clock), Ok(()));
        assert!(
            probes
                .check(probe, Some((after, &value[..])), &clock)
                .is_err()
        );
        let shown = Some((after, &value[..]));
        assert_eq!(probes.begin_with(probe, shown, &clock), Ok(()));
        assert_eq!(probes.check(probe, shown, &clock), Ok(()));
    }

    #[test]
    fn the_wall_clock_jumps_both_ways_and_stays_within_its_range() {
        let clock = SimClock::new(1);
        clock.set_wall_ms(BEGIN_MS);
        let mut probes = Probes::new(Random::new(2), 5_000, 4);
        let (mut ahead, mut behind, mut trusted) = (0, 0, 0);
        for _ in 0..2_000 {
            let before = clock.wall_ms();
            let has_jumped = probes.disturb(&clock);
            assert_eq!(has_jumped, clock.wall_ms() != before);
            ahead += u64::from(clock.wall_ms() > before);
            behind += u64::from(clock.wall_ms() < before);
            trusted += u64::from(clock.wall_is_trusted());
            assert!(WALL_MS.contains(&clock.wall_ms()));
        }
        for count in [ahead, behind, trusted] {
            assert!(count > 50, "{ahead} {behind} {trusted}");
        }
    }
}
