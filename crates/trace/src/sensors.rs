//! The table of sensors: the configuration of a trace, so one unusable line makes the whole table unusable.

use super::line::{Line, LineError, LineReader, fields};
use super::{LINE_BYTES_MAX, SENSORS_MAX, SOURCE_BYTES_MAX};
use crate::Error;
use std::collections::HashMap;
use std::io::BufRead;

/// The header of the sensor table.
pub const HEADER: &str = "sensor,room,storey,quantity,unit,height_m,period_ms,validity_ms";

/// Longest name of a sensor in bytes: a key of the database.
pub const NAME_BYTES_MAX: usize = 64;

const TABLE: &str = "sensors";

/// One sensor of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Sensor {
    /// Unique name, at most [`NAME_BYTES_MAX`] bytes; the key of its object.
    pub name: String,
    /// The room it is in.
    pub room: String,
    /// Storey of the room, from 1.
    pub storey: u8,
    /// What it measures, in words.
    pub quantity: String,
    /// Unit of its values.
    pub unit: String,
    /// Height above the floor in metres.
    pub height_m: f32,
    /// Sampling period in milliseconds, at least 1.
    pub period_ms: u32,
    /// Absolute validity interval in milliseconds: how long a reading stays fresh, at least 1.
    pub validity_ms: u32,
}

/// The sensors of a trace, in the order of their table, found by name in constant time.
#[derive(Clone, Debug, Default)]
pub struct Sensors {
    list: Vec<Sensor>,
    index: HashMap<String, u16>,
}

impl Sensors {
    /// Reads the table.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Header`], [`Error::Sensor`] naming the line, or [`Error::TooLarge`].
    pub fn read(source: impl BufRead) -> Result<Self, Error> {
        let mut lines = LineReader::new(source, LINE_BYTES_MAX, SOURCE_BYTES_MAX);
        let mut sensors = Self::default();
        loop {
            let number = lines.lines() + 1;
            let line = match lines.next_line() {
                Ok(None) if number == 1 => {
                    return Err(Error::Header {
                        table: TABLE,
                        expected: HEADER,
                    });
                }
                Ok(None) => return Ok(sensors),
                Ok(Some(line)) => line,
                Err(LineError::Io(source)) => {
                    return Err(Error::Read {
                        table: TABLE,
                        line: number - 1,
                        source,
                    });
                }
                Err(LineError::SourceTooLarge) => {
                    return Err(Error::TooLarge {
                        table: TABLE,
                        limit: SOURCE_BYTES_MAX,
                        unit: "bytes",
                    });
                }
            };
            let refuse = |reason| Error::Sensor {
                line: number,
                reason,
            };
            let text = match line {
                Line::TooLong => return Err(refuse("too long")),
                Line::Text(bytes) => std::str::from_utf8(bytes).map_err(|_| refuse("not UTF-8"))?,
            };
            if number == 1 {
                if text != HEADER {
                    return Err(Error::Header {
                        table: TABLE,
                        expected: HEADER,
                    });
                }
                continue;
            }
            if sensors.list.len() == SENSORS_MAX {
                return Err(Error::TooLarge {
                    table: TABLE,
                    limit: SENSORS_MAX as u64,
                    unit: "sensors",
                });
            }
            let sensor = parse(text).map_err(refuse)?;
            let index =
                u16::try_from(sensors.list.len()).map_err(|_| refuse("too many sensors"))?;
            if sensors.index.insert(sensor.name.clone(), index).is_some() {
                return Err(refuse("this sensor was named before"));
            }
            sensors.list.push(sensor);
        }
    }

    /// Returns all sensors; the position in this slice is a sensor's index.
    #[must_use]
    pub fn as_slice(&self) -> &[Sensor] {
        &self.list
    }

    /// Returns the number of sensors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns whether there are no sensors.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the sensor with this index.
    #[must_use]
    pub fn get(&self, index: u16) -> Option<&Sensor> {
        self.list.get(usize::from(index))
    }

    /// Returns the index of the sensor with this name.
    #[must_use]
    pub fn index_of(&self, name: &str) -> Option<u16> {
        self.index.get(name).copied()
    }
}

fn parse(text: &str) -> Result<Sensor, &'static str> {
    let [name, room, storey, quantity, unit, height, period, validity] =
        fields::<8>(text).ok_or("must have eight fields")?;
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err("the name must have 1 to 64 bytes");
    }
    let height_m: f32 = height.parse().map_err(|_| "the height is not a number")?;
    if !height_m.is_finite() {
        return Err("the height is not a finite number");
    }
    let positive = |text: &str, reason| match text.parse::<u32>() {
        Ok(value) if value > 0 => Ok(value),
        _ => Err(reason),
    };
    Ok(Sensor {
        name,
        room,
        storey: storey
            .parse()
            .map_err(|_| "the storey is not a number from 0 to 255")?,
        quantity,
        unit,
        height_m,
        period_ms: positive(
            &period,
            "the period is not a positive number of milliseconds",
        )?,
        validity_ms: positive(
            &validity,
            "the validity is not a positive number of milliseconds",
        )?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<Sensors, Error> {
        Sensors::read(format!("{HEADER}\n{body}").as_bytes())
    }

    #[test]
    fn a_good_table_is_read() {
        let sensors =
            read("a/t,Hall,1,\"gas, hot\",degC,0.5,1000,1100\nb,Hall,2,x,,1,5,6").unwrap();
        assert_eq!(sensors.len(), 2);
        assert_eq!(sensors.index_of("b"), Some(1));
        assert_eq!(sensors.get(0).unwrap().quantity, "gas, hot");
        assert_eq!(sensors.get(2), None);
        assert!(read("").unwrap().is_empty());
    }

    #[test]
    fn a_bad_line_refuses_the_table_and_is_named() {
        for (body, line) in [
            ("a,Hall,1,x,u,1,1,1\na,Hall,1,x,u,1,1,1", 3),
            ("a,Hall,1,x,u,1,0,1", 2),
            ("a,Hall,1,x,u,NaN,1,1", 2),
            ("a,Hall,300,x,u,1,1,1", 2),
            ("a,Hall,1,x,u,1,1", 2),
            (",Hall,1,x,u,1,1,1", 2),
        ] {
            match read(body) {
                Err(Error::Sensor { line: found, .. }) => assert_eq!(found, line, "{body}"),
                other => panic!("{body}: {other:?}"),
            }
        }
        assert!(matches!(
            Sensors::read(&b"x\n"[..]),
            Err(Error::Header { .. })
        ));
        assert!(matches!(Sensors::read(&b""[..]), Err(Error::Header { .. })));
    }
}
