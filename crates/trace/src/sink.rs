//! From a reading to an object of the database: one object per sensor, the value as bits.

use crate::Error;
use crate::Sensors;
use crate::replay::Offer;
use db::{Database, Durability, ObjectId, ObjectSpec, SegmentStore, Ticket, Time};

/// Bytes of a stored value: an IEEE 754 double, little-endian, which gives back exactly the number parsed.
pub const VALUE_BYTES: usize = 8;

/// Returns the stored bytes of a value.
#[must_use]
pub fn value_bytes(value: f64) -> [u8; VALUE_BYTES] {
    value.to_le_bytes()
}

/// Returns the value of stored bytes; `None` if the length is wrong.
#[must_use]
pub fn value_of(bytes: &[u8]) -> Option<f64> {
    bytes.try_into().ok().map(f64::from_le_bytes)
}

/// The objects of a trace's sensors.
#[derive(Clone, Debug)]
pub struct Objects {
    ids: Vec<ObjectId>,
}

impl Objects {
    /// Declares one temporal object per sensor, with the sensor's name as key and its validity interval. Objects that
    /// the database knows from an earlier run keep their number.
    ///
    /// # Errors
    /// [`Error::Database`], as `Database::declare` gives it.
    pub fn declare<S: SegmentStore>(
        database: &Database<S>,
        sensors: &Sensors,
    ) -> Result<Self, Error> {
        let declare = |sensor: &crate::Sensor| {
            database.declare(&ObjectSpec {
                key: &sensor.name,
                avi_ms: sensor.validity_ms,
                temporal: true,
            })
        };
        let ids = sensors
            .as_slice()
            .iter()
            .map(declare)
            .collect::<Result<_, _>>()?;
        Ok(Self { ids })
    }

    /// Returns the object of a sensor.
    #[must_use]
    pub fn id(&self, sensor: u16) -> Option<ObjectId> {
        self.ids.get(usize::from(sensor)).copied()
    }

    /// Returns all objects, in the order of the sensors.
    #[must_use]
    pub fn ids(&self) -> &[ObjectId] {
        &self.ids
    }

    /// Puts one reading, with its time on the trace's clock as timestamp.
    ///
    /// # Errors
    /// [`Error::Database`], as `Database::put` gives it: `Busy` when the store does not keep up, for example.
    pub fn put<S: SegmentStore>(
        &self,
        database: &Database<S>,
        offer: &Offer,
        durability: Durability,
    ) -> Result<Ticket, Error> {
        let id = self
            .id(offer.sensor)
            .ok_or(Error::Option("the reading's sensor is not in the table"))?;
        let time_ms = i64::try_from(offer.time_ms)
            .map_err(|_| Error::Option("the reading's time is out of range"))?;
        let time = Time::from_ms(time_ms);
        Ok(database.put(id, &value_bytes(offer.value), time, durability)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_bit_for_bit() {
        for value in [0.0, -0.0, 20.1, 1e-5, f64::MAX, f64::MIN_POSITIVE] {
            assert_eq!(
                value_of(&value_bytes(value)).unwrap().to_bits(),
                value.to_bits()
            );
        }
        assert_eq!(value_of(&[1, 2]), None);
    }
}
