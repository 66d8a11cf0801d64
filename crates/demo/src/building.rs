//! The office block of the bundled trace: its rooms, which rooms adjoin, and where the way out is.
//!
//! Source: `examples/fire/building.in`. Each office opens to the corridor of its storey, the corridors are
//! joined by the stairs, and the main door leads out of corridor 1. Doors count as passable at any time:
//! people open them. Windows are no way out.

use trace::Sensors;

/// Storeys of the building.
pub(crate) const STOREYS: usize = 4;

/// Offices on each storey.
pub(crate) const OFFICES: usize = 7;

/// Rooms on each storey: the corridor, then the offices.
pub(crate) const ROOMS_PER_STOREY: usize = OFFICES + 1;

/// All rooms.
pub(crate) const ROOMS: usize = STOREYS * ROOMS_PER_STOREY;

/// Most rooms that adjoin one room: a corridor with its offices and the two corridors above and below.
pub(crate) const NEIGHBOURS_MAX: usize = OFFICES + 2;

/// A room by its number: `storey * ROOMS_PER_STOREY`, plus 0 for the corridor or 1 to 7 for an office.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room(pub u8);

impl Room {
    /// The room that the main door opens to: corridor 1.
    pub(crate) const AT_MAIN_DOOR: Self = Self(0);

    /// All rooms in order.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..ROOMS).map(|index| Self(index as u8))
    }

    /// Returns the corridor of a storey, counted from 0.
    pub(crate) fn corridor(storey: usize) -> Self {
        Self((storey * ROOMS_PER_STOREY) as u8)
    }

    /// Returns the position in an array of [`ROOMS`] elements.
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Returns the storey, counted from 0.
    pub(crate) fn storey(self) -> usize {
        self.index() / ROOMS_PER_STOREY
    }

    /// Returns the number of the office on its storey, from 1; `None` for a corridor.
    pub(crate) fn office(self) -> Option<usize> {
        Some(self.index() % ROOMS_PER_STOREY).filter(|office| *office > 0)
    }

    /// Returns the room with this number, if there is one.
    pub(crate) fn from_index(index: u8) -> Option<Self> {
        (usize::from(index) < ROOMS).then_some(Self(index))
    }

    /// Returns the room with this name in the trace, such as `Office 23` or `Corridor 2`.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::all().find(|room| room.to_string().eq_ignore_ascii_case(name))
    }

    /// Returns the rooms that smoke and people reach from here through doors and stairs.
    pub(crate) fn neighbours(self) -> impl Iterator<Item = Self> {
        let storey = self.storey();
        let corridor = Self::corridor(storey);
        let is_corridor = self == corridor;
        let offices = (1..=OFFICES)
            .filter(move |_| is_corridor)
            .map(move |office| Self(corridor.0 + office as u8));
        let below = (is_corridor && storey > 0).then(|| Self::corridor(storey - 1));
        let above = (is_corridor && storey + 1 < STOREYS).then(|| Self::corridor(storey + 1));
        let own = (!is_corridor).then_some(corridor);
        own.into_iter().chain(below).chain(above).chain(offices)
    }
}

impl std::fmt::Display for Room {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.office() {
            Some(office) => write!(formatter, "office {}{office}", self.storey() + 1),
            None => write!(formatter, "corridor {}", self.storey() + 1),
        }
    }
}

/// The quantities of a room's sensors that the analysis uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Quantity {
    UpperTemperature,
    LowerTemperature,
    LayerHeight,
    UpperOxygen,
    LowerOxygen,
    UpperMonoxide,
    LowerMonoxide,
    UpperSmoke,
    LowerSmoke,
    HeatFlux,
}

/// The number of quantities.
pub(crate) const QUANTITIES: usize = 10;

/// Thermocouples in each room.
pub(crate) const THERMOCOUPLES: usize = 18;

impl Quantity {
    fn of_sensor(name: &str) -> Option<Self> {
        Some(match name {
            "upper-temperature" => Self::UpperTemperature,
            "lower-temperature" => Self::LowerTemperature,
            "layer-height" => Self::LayerHeight,
            "upper-o2" => Self::UpperOxygen,
            "lower-o2" => Self::LowerOxygen,
            "upper-co" => Self::UpperMonoxide,
            "lower-co" => Self::LowerMonoxide,
            "upper-smoke" => Self::UpperSmoke,
            "lower-smoke" => Self::LowerSmoke,
            "heat-flux" => Self::HeatFlux,
            _ => return None,
        })
    }
}

/// The sensors of a room.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoomSensors {
    /// Sensor of each [`Quantity`].
    pub(crate) quantity: [Option<u16>; QUANTITIES],
    /// The thermocouples; the first `thermocouple_count` are set.
    pub(crate) thermocouple: [u16; THERMOCOUPLES],
    pub(crate) thermocouple_count: usize,
}

/// Assigns the sensors of the trace to the rooms. Ignores sensors that belong to no room.
pub(crate) fn assign(sensors: &Sensors) -> [RoomSensors; ROOMS] {
    let mut rooms = [RoomSensors::default(); ROOMS];
    for (index, sensor) in sensors.as_slice().iter().enumerate() {
        let (Some(room), Ok(index)) = (Room::from_name(&sensor.room), u16::try_from(index)) else {
            continue;
        };
        let name = sensor.name.rsplit('/').next().unwrap_or_default();
        let here = &mut rooms[room.index()];
        if let Some(quantity) = Quantity::of_sensor(name) {
            here.quantity[quantity as usize] = Some(index);
        } else if sensor.quantity == "gas temperature" && here.thermocouple_count < THERMOCOUPLES {
            here.thermocouple[here.thermocouple_count] = index;
            here.thermocouple_count += 1;
        }
    }
    rooms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_agree() {
        for room in Room::all() {
            assert_eq!(Room::from_name(&room.to_string()), Some(room));
            assert_eq!(Room::from_index(room.0), Some(room));
        }
        assert_eq!(Room::from_name("Office 23").unwrap().storey(), 1);
        assert_eq!(Room::from_name("Office 58"), None);
        assert_eq!(Room::from_index(ROOMS as u8), None);
    }

    #[test]
    fn adjoining_is_mutual_and_bounded() {
        for room in Room::all() {
            assert!(room.neighbours().count() <= NEIGHBOURS_MAX);
            for other in room.neighbours() {
                assert!(
                    other.neighbours().any(|back| back == room),
                    "{room} {other}"
                );
            }
        }
        assert_eq!(Room::corridor(1).neighbours().count(), NEIGHBOURS_MAX);
        assert_eq!(
            Room::from_name("office 23").unwrap().neighbours().count(),
            1
        );
    }

    #[test]
    fn every_room_of_the_trace_has_all_its_sensors() {
        for room in assign(&trace::bundled_sensors().unwrap()) {
            assert!(room.quantity.iter().all(Option::is_some));
            assert_eq!(room.thermocouple_count, THERMOCOUPLES);
        }
    }
}
