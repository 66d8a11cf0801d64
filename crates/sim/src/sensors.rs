//! What the sensors say: the bundled trace of the fire, repeated with its times moved on, as lines of text.
//!
//! Readings are numbered from 0. Sensor, value and time are functions of the number, and the number can be read back
//! from a key and a time. So nothing needs to be kept of a reading to judge what comes back.

use std::collections::HashMap;

use base::sim::Random;
use db::Time;
use db::value::Value;
use ingest::line::write_line;
use trace::Reading;

/// Wall time at which a run begins, in ms since 1970.
pub(crate) const BEGIN_MS: i64 = 1_700_000_000_000;
/// How many seconds of the trace may pass in one.
pub(crate) const SPEEDS: [u64; 5] = [1, 2, 5, 10, 20];

const NS_PER_MS: u64 = 1_000_000;
/// Readings of the trace in a second, rounded down.
const TRACE_RATE: u64 = 260;
/// Time between the last reading of the trace and the first of its repetition.
const PAUSE_MS: u64 = 4;
/// One reading in this many has a time that no node takes.
const ABSURD_ONE_IN: u64 = 400;
/// What times have beyond the times of the trace: nothing, whole µs, ns. Less than a ms of the trace at any speed.
const BELOW_NS: [u64; 3] = [0, 7_000, 7_654];

/// The sensors and a part of their trace.
pub(crate) struct Sensors {
    names: Vec<Name>,
    by_key: HashMap<String, u16>,
    readings: Vec<Reading>,
    /// Of each sensor, the places of its readings in `readings`.
    places: Vec<Vec<u32>>,
    period_ms: u64,
}

struct Name {
    measurement: String,
    room: String,
}

impl Sensors {
    /// Reads half of what a run with this number of readings needs, so that it repeats the trace.
    ///
    /// # Errors
    /// None for the bundled bytes; the type is that of any other trace.
    pub(crate) fn read(readings: u64) -> Result<Self, trace::Error> {
        let until_ms = 500 + readings.saturating_mul(1_000) / (2 * TRACE_RATE);
        let trace = trace::bundled(until_ms)?;
        let mut names = Vec::new();
        let mut by_key = HashMap::new();
        for (index, sensor) in (0_u16..).zip(trace.sensors().as_slice()) {
            let (room, measurement) = sensor
                .name
                .split_once('/')
                .unwrap_or(("", sensor.name.as_str()));
            // As the template `{measurement}/{pairs}/{field}` makes it.
            by_key.insert(format!("{measurement}/room={room}/value"), index);
            names.push(Name {
                measurement: measurement.to_owned(),
                room: room.to_owned(),
            });
        }
        let mut places = vec![Vec::new(); names.len()];
        for (place, reading) in (0_u32..).zip(trace.readings()) {
            places[usize::from(reading.sensor)].push(place);
        }
        Ok(Self {
            names,
            by_key,
            readings: trace.readings().to_vec(),
            places,
            period_ms: trace.duration_ms() + PAUSE_MS,
        })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.names.len()
    }

    /// Returns what a sensor measures: the first levels of its key.
    pub(crate) fn measurement(&self, sensor: u16) -> &str {
        &self.names[usize::from(sensor)].measurement
    }

    /// Returns the sensors whose keys match a pattern, ascending.
    pub(crate) fn matching(&self, pattern: &str) -> Vec<u16> {
        let keys = self.by_key.iter();
        let matching = keys.filter(|(key, _)| base::pattern::matches(pattern, key));
        let mut sensors: Vec<u16> = matching.map(|(_, sensor)| *sensor).collect();
        sensors.sort_unstable();
        sensors
    }
}

/// The readings of one run: the trace at a speed, with the bad lines of a seed.
pub(crate) struct Feed<'s> {
    sensors: &'s Sensors,
    /// How many seconds of the trace pass in one; a divisor of a million, and at most 20.
    speed: u64,
    seed: u64,
}

impl<'s> Feed<'s> {
    pub(crate) fn new(sensors: &'s Sensors, speed: u64, seed: u64) -> Self {
        Self {
            sensors,
            speed,
            seed,
        }
    }

    pub(crate) fn sensors(&self) -> &'s Sensors {
        self.sensors
    }

    fn reading(&self, number: u64) -> &Reading {
        let length = self.sensors.readings.len() as u64;
        &self.sensors.readings[(number % length) as usize]
    }

    /// Returns the sensor of a reading.
    pub(crate) fn sensor(&self, number: u64) -> u16 {
        self.reading(number).sensor
    }

    /// Returns the time from the beginning of the run to the reading, in ns.
    pub(crate) fn due_ns(&self, number: u64) -> u64 {
        let round = number / self.sensors.readings.len() as u64;
        let ms = round * self.sensors.period_ms + self.reading(number).time_ms;
        ms * (NS_PER_MS / self.speed)
    }

    /// Returns the time that its sensor gives a reading.
    pub(crate) fn time(&self, number: u64) -> Time {
        let since_ns = self.due_ns(number) + BELOW_NS[(number % 3) as usize];
        Time::from_ns((BEGIN_MS * NS_PER_MS as i64).saturating_add_unsigned(since_ns))
    }

    /// Returns the stored bytes of a reading's value.
    pub(crate) fn value(&self, number: u64) -> [u8; 8] {
        self.reading(number).value.to_le_bytes()
    }

    /// Whether the line of this reading has a time that no node takes.
    pub(crate) fn is_absurd(&self, number: u64) -> bool {
        let mut random = Random::new(self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        random.below(ABSURD_ONE_IN) == 0
    }

    /// Writes the line of a reading, without its end, to `line`.
    pub(crate) fn line(&self, number: u64, line: &mut String) {
        let reading = self.reading(number);
        let name = &self.sensors.names[usize::from(reading.sensor)];
        let time_ns = match self.is_absurd(number) {
            true => 1,
            false => self.time(number).ns(),
        };
        line.clear();
        write_line(
            line,
            &name.measurement,
            &[("room", name.room.as_str())],
            &[("value", Value::Float(reading.value))],
            Some(time_ns),
        );
    }

    /// Returns the sensor whose readings have this key.
    pub(crate) fn sensor_of(&self, key: &str) -> Option<u16> {
        self.sensors.by_key.get(key).copied()
    }

    /// Returns the number of the reading of a sensor that has this time, if what is below a ms of the trace is ignored.
    pub(crate) fn number_of(&self, sensor: u16, time: Time) -> Option<u64> {
        let since_ns = time.ns().checked_sub(BEGIN_MS * NS_PER_MS as i64)?;
        let ms = u64::try_from(since_ns).ok()?.checked_mul(self.speed)? / NS_PER_MS;
        let (round, time_ms) = (ms / self.sensors.period_ms, ms % self.sensors.period_ms);
        let places = self.sensors.places.get(usize::from(sensor))?;
        let found = places.binary_search_by_key(&time_ms, |place| {
            self.sensors.readings[*place as usize].time_ms
        });
        let place = places[found.ok()?];
        Some(round * self.sensors.readings.len() as u64 + u64::from(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_comes_back_from_key_and_time() {
        let sensors = Sensors::read(1_000).expect("the bundled trace");
        for speed in SPEEDS {
            let feed = Feed::new(&sensors, speed, 1);
            let mut line = String::new();
            let mut absurd = 0;
            for number in (0..3_000).chain([1 << 30]) {
                let sensor = feed.sensor(number);
                assert_eq!(feed.number_of(sensor, feed.time(number)), Some(number));
                feed.line(number, &mut line);
                absurd += u64::from(line.ends_with(" 1"));
            }
            assert!(absurd > 0);
            let early = Time::from_ms(BEGIN_MS - 1);
            assert_eq!(feed.number_of(0, early), None);
            assert_eq!(feed.number_of(u16::MAX, feed.time(0)), None);
        }
        assert!(sensors.readings.len() < 1_000, "the trace is repeated");
    }
}
