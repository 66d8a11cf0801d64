//! The readings of a trace, one per line, in order of time. A bad line affects itself only and is counted.

use super::line::{Line, LineError, LineReader};
use super::sensors::Sensors;
use super::{LINE_BYTES_MAX, SOURCE_BYTES_MAX, TIME_MS_MAX};
use crate::Error;
use std::io::BufRead;

/// The header of the table of readings.
pub const HEADER: &str = "time_ms,sensor,value";

const TABLE: &str = "readings";

/// One value of one sensor at one time of the trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// Milliseconds since the start of the trace.
    pub time_ms: u64,
    /// Index of the sensor in its table.
    pub sensor: u16,
    /// The value, finite, in the unit of the sensor.
    pub value: f64,
}

/// Why a line of readings was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Rejection {
    /// Longer than [`LINE_BYTES_MAX`].
    LineTooLong,
    /// Not UTF-8.
    NotUtf8,
    /// Not three fields.
    FieldCount,
    /// The time is not a whole number of milliseconds within the limit.
    BadTime,
    /// The sensor is not in the table.
    UnknownSensor,
    /// The value is not a finite number.
    BadValue,
    /// The time is before that of an earlier accepted line.
    TimeBackwards,
}

impl Rejection {
    /// Every reason, in the order of the counters.
    pub const ALL: [Self; 7] = [
        Self::LineTooLong,
        Self::NotUtf8,
        Self::FieldCount,
        Self::BadTime,
        Self::UnknownSensor,
        Self::BadValue,
        Self::TimeBackwards,
    ];

    /// Returns the reason in words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::LineTooLong => "line too long",
            Self::NotUtf8 => "not UTF-8",
            Self::FieldCount => "wrong number of fields",
            Self::BadTime => "bad time",
            Self::UnknownSensor => "unknown sensor",
            Self::BadValue => "bad value",
            Self::TimeBackwards => "time goes backwards",
        }
    }
}

/// The number of refused lines, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rejections([u64; Rejection::ALL.len()]);

impl Rejections {
    /// Returns the number of lines refused for this reason.
    #[must_use]
    pub fn count(&self, reason: Rejection) -> u64 {
        self.0[reason as usize]
    }

    /// Returns the number of lines refused for any reason.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    fn add(&mut self, reason: Rejection) {
        self.0[reason as usize] += 1;
    }
}

/// Reads readings one by one in constant memory.
pub struct ReadingReader<'s, R> {
    lines: LineReader<R>,
    sensors: &'s Sensors,
    rejections: Rejections,
    time_ms_last: u64,
}

impl<'s, R: BufRead> ReadingReader<'s, R> {
    /// Creates a reader and checks the header.
    ///
    /// # Errors
    /// [`Error::Header`] if the first line is another, [`Error::Read`] if the source cannot be read.
    pub fn new(source: R, sensors: &'s Sensors) -> Result<Self, Error> {
        let mut lines = LineReader::new(source, LINE_BYTES_MAX, SOURCE_BYTES_MAX);
        match lines.next_line() {
            Ok(Some(Line::Text(text))) if text == HEADER.as_bytes() => {}
            Ok(_) => {
                return Err(Error::Header {
                    table: TABLE,
                    expected: HEADER,
                });
            }
            Err(error) => return Err(error_of(error, 0)),
        }
        Ok(Self {
            lines,
            sensors,
            rejections: Rejections::default(),
            time_ms_last: 0,
        })
    }

    /// Returns the next good reading, or `None` at the end. Bad lines before it are counted in
    /// [`rejections`](Self::rejections).
    ///
    /// # Errors
    /// [`Error::Read`] or [`Error::TooLarge`]; the readings yielded before remain good.
    pub fn next_reading(&mut self) -> Result<Option<Reading>, Error> {
        loop {
            let read = self.lines.lines();
            let line = match self.lines.next_line() {
                Ok(None) => return Ok(None),
                Ok(Some(line)) => line,
                Err(error) => return Err(error_of(error, read)),
            };
            let parsed = match line {
                Line::TooLong => Err(Rejection::LineTooLong),
                Line::Text(bytes) => parse(bytes, self.sensors, self.time_ms_last),
            };
            match parsed {
                Ok(reading) => {
                    self.time_ms_last = reading.time_ms;
                    return Ok(Some(reading));
                }
                Err(reason) => self.rejections.add(reason),
            }
        }
    }

    /// Returns the number of lines refused so far, by reason.
    #[must_use]
    pub fn rejections(&self) -> Rejections {
        self.rejections
    }
}

fn error_of(error: LineError, line: u64) -> Error {
    match error {
        LineError::Io(source) => Error::Read {
            table: TABLE,
            line,
            source,
        },
        LineError::SourceTooLarge => Error::TooLarge {
            table: TABLE,
            limit: SOURCE_BYTES_MAX,
            unit: "bytes",
        },
    }
}

fn parse(bytes: &[u8], sensors: &Sensors, time_ms_last: u64) -> Result<Reading, Rejection> {
    let text = std::str::from_utf8(bytes).map_err(|_| Rejection::NotUtf8)?;
    let mut fields = text.split(',');
    let (Some(time), Some(name), Some(value), None) =
        (fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return Err(Rejection::FieldCount);
    };
    let time_ms = match time.parse::<u64>() {
        Ok(time_ms) if time_ms <= TIME_MS_MAX => time_ms,
        _ => return Err(Rejection::BadTime),
    };
    let sensor = sensors.index_of(name).ok_or(Rejection::UnknownSensor)?;
    let value = match value.parse::<f64>() {
        Ok(value) if value.is_finite() => value,
        _ => return Err(Rejection::BadValue),
    };
    if time_ms < time_ms_last {
        return Err(Rejection::TimeBackwards);
    }
    Ok(Reading {
        time_ms,
        sensor,
        value,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sensors() -> Sensors {
        let table = format!(
            "{}\na,Hall,1,x,u,1,1,1\nb,Hall,1,x,u,1,1,1\n",
            super::super::sensors::HEADER
        );
        Sensors::read(table.as_bytes()).unwrap()
    }

    #[test]
    fn every_reason_costs_one_line_and_is_counted() {
        let sensors = sensors();
        let mut body = format!("{HEADER}\n5,a,1.5\n").into_bytes();
        body.extend_from_slice(&[b'9'; LINE_BYTES_MAX + 1]);
        body.extend_from_slice(
            b"\n5,a\n5,a,1,2\n\n-1,a,1\n99999999999999999999,a,1\n5,c,1\n5,a,NaN\n5,a,inf\n\
              5,a,1e999\n4,a,1\n\xff,a,1\n6,b,-2e-3",
        );
        let mut reader = ReadingReader::new(&body[..], &sensors).unwrap();
        assert_eq!(
            reader.next_reading().unwrap(),
            Some(Reading {
                time_ms: 5,
                sensor: 0,
                value: 1.5
            })
        );
        assert_eq!(
            reader.next_reading().unwrap(),
            Some(Reading {
                time_ms: 6,
                sensor: 1,
                value: -0.002
            })
        );
        assert_eq!(reader.next_reading().unwrap(), None);
        let counts = Rejection::ALL.map(|reason| reader.rejections().count(reason));
        assert_eq!(counts, [1, 1, 3, 2, 1, 3, 1]);
        assert_eq!(reader.rejections().total(), 12);
    }

    #[test]
    fn the_header_is_required() {
        let sensors = sensors();
        assert!(matches!(
            ReadingReader::new(&b"1,a,1\n"[..], &sensors),
            Err(Error::Header { .. })
        ));
        assert!(matches!(
            ReadingReader::new(&b""[..], &sensors),
            Err(Error::Header { .. })
        ));
    }
}
