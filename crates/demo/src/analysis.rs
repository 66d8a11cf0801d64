//! The analysis task: which rooms are survivable, where the fire is heading, and which way out is open.
//!
//! Each room has two zones: hot smoke above `layer height`, clearer air below. A person breathes and sees the layer at
//! head height, [`HEAD_HEIGHT_M`] above the floor. The limits are published values; each names its source. Nothing here
//! allocates after construction.

use super::building::{NEIGHBOURS_MAX, Quantity, ROOMS, Room, RoomSensors, STOREYS};
use std::fmt;

/// Height of the nose and eyes of a slightly stooping person (SFPE Handbook: 1.5 m is the usual design value).
const HEAD_HEIGHT_M: f64 = 1.5;

/// Gas temperature at the head. ISO 13571: 60 °C of convected heat, saturated with water, is the highest temperature
/// that can be breathed for long.
const TEMPERATURE_C_MAX: f64 = 60.0;

/// Oxygen. SFPE Handbook, "Combustion Toxicity" (Purser): below 15 % judgement and movement fail.
const OXYGEN_MOL_PERCENT_MIN: f64 = 15.0;

/// Carbon monoxide, 1,400 ppm: about the concentration whose half-hour dose incapacitates. The ISO 13571 asphyxiant gas
/// model has 35,000 ppm·min at an FED of 1, here with a margin for exertion.
const MONOXIDE_MOL_PERCENT_MAX: f64 = 0.14;

/// Optical density per metre. Jin, in the SFPE Handbook: at an extinction coefficient of 1.15 1/m, which equals this
/// density, people walk as slowly as in the dark.
const SMOKE_PER_M_MAX: f64 = 0.5;

/// Radiant flux on the skin. ISO 13571: 2.5 kW/m² is the tolerance limit; above it pain comes within seconds.
const FLUX_KW_PER_M2_MAX: f64 = 2.5;

/// A smoke layer this low touches the door heads (2.05 m) and will be at head height soon.
const LAYER_NEAR_M: f64 = 2.1;

/// Share of the way to a limit from which a room counts as threatened.
const THREAT_SHARE: f64 = 0.5;

/// Ambient values at which the share is 0.
const AMBIENT_TEMPERATURE_C: f64 = 20.0;
const AMBIENT_OXYGEN_MOL_PERCENT: f64 = 20.9;

/// Upper layer temperature from which a room counts as burning in the forecast of the next room. A layer of 200 °C
/// radiates the tolerance limit (SFPE Handbook). Half of the rise towards it marks a room that feeds its neighbours.
const SPREADING_TEMPERATURE_C: f64 = 110.0;

/// Time over which the rate of rise is averaged, in milliseconds of the trace.
const RISE_WINDOW_MS: f64 = 30_000.0;

/// Slower rises are noise of the sensors' resolution (0.1 °C in up to 10 s).
const RISE_C_PER_S_MIN: f64 = 0.02;

/// What makes a room not survivable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Cause {
    Heat = 0,
    Oxygen = 1,
    Monoxide = 2,
    Smoke = 3,
    Radiation = 4,
}

impl Cause {
    const ALL: [Self; 5] = [
        Self::Heat,
        Self::Oxygen,
        Self::Monoxide,
        Self::Smoke,
        Self::Radiation,
    ];

    /// Returns the cause with this number.
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Heat => "heat",
            Self::Oxygen => "lack of oxygen",
            Self::Monoxide => "carbon monoxide",
            Self::Smoke => "smoke",
            Self::Radiation => "radiation",
        })
    }
}

/// Whether a room is survivable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Too few readings so far.
    #[default]
    Unknown,
    /// Nothing is near a limit.
    Safe,
    /// Survivable, but near a limit.
    Threatened(Cause),
    /// Past a limit.
    Lost(Cause),
}

impl Verdict {
    /// Returns whether a way out may lead through the room.
    pub(crate) fn is_passable(self) -> bool {
        matches!(self, Self::Safe | Self::Threatened(_))
    }
}

/// Whether the people of a storey have a way out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum WayOut {
    /// Too few readings so far.
    #[default]
    Unknown,
    /// From the storey's corridor down to the main door, only through safe rooms.
    Open,
    /// A way exists, but it passes a threatened room.
    Threatened,
    /// No way through survivable rooms exists.
    Cut,
}

/// The state of one room.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct RoomPicture {
    pub(crate) verdict: Verdict,
    /// The highest gas temperature of its thermocouples and layers, in °C; NaN-free, 0 when unknown.
    pub(crate) hottest_c: f64,
}

/// The result of one instance of the task.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Picture {
    pub(crate) rooms: [RoomPicture; ROOMS],
    /// The room with the highest gas temperature.
    pub(crate) hottest: Option<Room>,
    /// The room that the fire reaches next.
    pub(crate) heading_to: Option<Room>,
    /// The way out of each storey.
    pub(crate) ways_out: [WayOut; STOREYS],
}

impl Picture {
    /// The picture before the first instance.
    pub(crate) const UNKNOWN: Self = Self {
        rooms: [RoomPicture {
            verdict: Verdict::Unknown,
            hottest_c: 0.0,
        }; ROOMS],
        hottest: None,
        heading_to: None,
        ways_out: [WayOut::Unknown; STOREYS],
    };
}

impl Default for Picture {
    fn default() -> Self {
        Self::UNKNOWN
    }
}

/// The values of one room's sensors; `None` where nothing was received yet.
#[derive(Clone, Copy, Debug, Default)]
struct Zone {
    quantity: [Option<f64>; super::building::QUANTITIES],
}

impl Zone {
    fn get(&self, quantity: Quantity) -> Option<f64> {
        self.quantity[quantity as usize]
    }

    /// Returns the quantity in the layer at head height.
    fn at_head(&self, upper: Quantity, lower: Quantity) -> Option<f64> {
        let in_smoke = self.get(Quantity::LayerHeight)? < HEAD_HEIGHT_M;
        self.get(if in_smoke { upper } else { lower })
    }

    fn verdict(&self) -> Verdict {
        use Quantity::*;
        // (share of the way from ambient to the limit, cause); 1 is the limit.
        let shares = [
            (
                self.at_head(UpperTemperature, LowerTemperature).map(|t| {
                    (t - AMBIENT_TEMPERATURE_C) / (TEMPERATURE_C_MAX - AMBIENT_TEMPERATURE_C)
                }),
                Cause::Heat,
            ),
            (
                self.at_head(UpperOxygen, LowerOxygen).map(|o2| {
                    (AMBIENT_OXYGEN_MOL_PERCENT - o2)
                        / (AMBIENT_OXYGEN_MOL_PERCENT - OXYGEN_MOL_PERCENT_MIN)
                }),
                Cause::Oxygen,
            ),
            (
                self.at_head(UpperMonoxide, LowerMonoxide)
                    .map(|co| co / MONOXIDE_MOL_PERCENT_MAX),
                Cause::Monoxide,
            ),
            (
                self.at_head(UpperSmoke, LowerSmoke)
                    .map(|od| od / SMOKE_PER_M_MAX),
                Cause::Smoke,
            ),
            (
                self.get(HeatFlux).map(|flux| flux / FLUX_KW_PER_M2_MAX),
                Cause::Radiation,
            ),
        ];
        let mut worst: Option<(f64, Cause)> = None;
        let mut known = 0;
        for (share, cause) in shares {
            let Some(share) = share else { continue };
            known += 1;
            if worst.is_none_or(|(most, _)| share > most) {
                worst = Some((share, cause));
            }
        }
        match worst {
            // One value beyond its limit makes a room lost; only all values together make it safe.
            Some((share, cause)) if share > 1.0 => Verdict::Lost(cause),
            _ if known < shares.len() => Verdict::Unknown,
            Some((share, cause)) if share > THREAT_SHARE => Verdict::Threatened(cause),
            _ if self.smoke_hangs_low() => Verdict::Threatened(Cause::Smoke),
            _ => Verdict::Safe,
        }
    }

    fn smoke_hangs_low(&self) -> bool {
        self.get(Quantity::LayerHeight)
            .is_some_and(|height| height < LAYER_NEAR_M)
            && self
                .get(Quantity::UpperSmoke)
                .is_some_and(|density| density > SMOKE_PER_M_MAX)
    }
}

/// The state of the task between instances.
pub(crate) struct Analysis {
    sensors: [RoomSensors; ROOMS],
    /// Trailing average of each room's upper layer temperature, for its rate of rise.
    trailing_c: [Option<f64>; ROOMS],
    last_ms: Option<u64>,
    picture: Picture,
}

impl Analysis {
    /// Creates the task for sensors assigned to rooms by [`super::building::assign`].
    pub(crate) fn new(sensors: [RoomSensors; ROOMS]) -> Self {
        Self {
            sensors,
            trailing_c: [None; ROOMS],
            last_ms: None,
            picture: Picture::default(),
        }
    }

    /// Runs one instance at `now_ms` of the trace. `latest` returns the last value of a sensor, `None` before its
    /// first. Stale values are used, because the last known state of a burning room is better than none.
    pub(crate) fn step(
        &mut self,
        now_ms: u64,
        mut latest: impl FnMut(u16) -> Option<f64>,
    ) -> &Picture {
        let mut rise_c_per_s = [0.0_f64; ROOMS];
        let elapsed_ms = self
            .last_ms
            .map_or(0.0, |last_ms| now_ms.saturating_sub(last_ms) as f64);
        self.last_ms = Some(now_ms);
        let mut hottest: Option<Room> = None;
        let mut upper_c = [None; ROOMS];
        for room in Room::all() {
            let index = room.index();
            let here = &self.sensors[index];
            let mut zone = Zone::default();
            for (value, sensor) in zone.quantity.iter_mut().zip(here.quantity) {
                *value = sensor.and_then(&mut latest);
            }
            let layers = [
                zone.get(Quantity::UpperTemperature),
                zone.get(Quantity::LowerTemperature),
            ];
            let mut hottest_c = layers.into_iter().flatten().fold(0.0_f64, f64::max);
            for sensor in &here.thermocouple[..here.thermocouple_count] {
                hottest_c = hottest_c.max(latest(*sensor).unwrap_or(0.0));
            }
            upper_c[index] = zone.get(Quantity::UpperTemperature);
            rise_c_per_s[index] = self.rise(index, upper_c[index], elapsed_ms);
            self.picture.rooms[index] = RoomPicture {
                verdict: zone.verdict(),
                hottest_c,
            };
            // A tie goes to the earlier room. Before the fire all rooms are at 20 °C, and none is the hottest.
            let most_c = hottest.map_or(AMBIENT_TEMPERATURE_C, |room| {
                self.picture.rooms[room.index()].hottest_c
            });
            if hottest_c > most_c {
                hottest = Some(room);
            }
        }
        self.picture.hottest = hottest;
        self.picture.heading_to =
            hottest.and_then(|seat| heading_to(seat, &upper_c, &rise_c_per_s));
        self.picture.ways_out = ways_out(&self.picture.rooms);
        &self.picture
    }

    /// Returns the rate of rise in °C/s against an exponential trailing average, which lags a steady ramp by the
    /// window.
    fn rise(&mut self, index: usize, upper_c: Option<f64>, elapsed_ms: f64) -> f64 {
        let Some(now_c) = upper_c else { return 0.0 };
        let trailing_c = self.trailing_c[index].get_or_insert(now_c);
        *trailing_c += (now_c - *trailing_c) * (1.0 - (-elapsed_ms / RISE_WINDOW_MS).exp());
        (now_c - *trailing_c) / (RISE_WINDOW_MS / 1_000.0)
    }
}

/// Returns the room whose upper layer warms fastest among the neighbours of the burning rooms. Burning are the seat of
/// the fire and every room connected to it through rooms that are hot enough to feed their neighbours.
fn heading_to(
    seat: Room,
    upper_c: &[Option<f64>; ROOMS],
    rise_c_per_s: &[f64; ROOMS],
) -> Option<Room> {
    let mut burning = [false; ROOMS];
    burning[seat.index()] = true;
    let mut queue = Queue::starting_at(seat);
    let mut next: Option<Room> = None;
    while let Some(room) = queue.pop() {
        for other in room.neighbours() {
            let index = other.index();
            if burning[index] {
                continue;
            }
            if upper_c[index].is_some_and(|t| t > SPREADING_TEMPERATURE_C) {
                burning[index] = true;
                queue.push(other);
            } else if rise_c_per_s[index]
                > next.map_or(RISE_C_PER_S_MIN, |best| rise_c_per_s[best.index()])
            {
                next = Some(other);
            }
        }
    }
    next
}

/// Returns the best way from each storey's corridor to the main door. It is a breadth-first search from the main door
/// inwards: first only through safe rooms, then through all survivable rooms.
fn ways_out(rooms: &[RoomPicture; ROOMS]) -> [WayOut; STOREYS] {
    let safely = reached(|room| rooms[room.index()].verdict == Verdict::Safe);
    let somehow = reached(|room| rooms[room.index()].verdict.is_passable());
    // A storey counts as cut off only if rooms known to be lost cut it off.
    let perhaps = reached(|room| !matches!(rooms[room.index()].verdict, Verdict::Lost(_)));
    std::array::from_fn(|storey| {
        let corridor = Room::corridor(storey).index();
        if safely[corridor] {
            WayOut::Open
        } else if somehow[corridor] {
            WayOut::Threatened
        } else if perhaps[corridor] {
            WayOut::Unknown
        } else {
            WayOut::Cut
        }
    })
}

/// Returns the rooms that can be reached from outside through rooms for which `passable` is true.
fn reached(passable: impl Fn(Room) -> bool) -> [bool; ROOMS] {
    let mut reached = [false; ROOMS];
    let mut queue = Queue::starting_at(Room::AT_MAIN_DOOR);
    while let Some(room) = queue.pop() {
        if reached[room.index()] || !passable(room) {
            continue;
        }
        reached[room.index()] = true;
        room.neighbours().for_each(|other| queue.push(other));
    }
    reached
}

/// Rooms to visit, without allocation. Each neighbour may push a room once, which bounds the size.
struct Queue {
    rooms: [Room; ROOMS * NEIGHBOURS_MAX],
    first: usize,
    end: usize,
}

impl Queue {
    fn starting_at(room: Room) -> Self {
        Self {
            rooms: [room; ROOMS * NEIGHBOURS_MAX],
            first: 0,
            end: 1,
        }
    }

    fn push(&mut self, room: Room) {
        if let Some(slot) = self.rooms.get_mut(self.end) {
            *slot = room;
            self.end += 1;
        }
    }

    fn pop(&mut self) -> Option<Room> {
        let room = (self.first < self.end).then(|| self.rooms[self.first])?;
        self.first += 1;
        Some(room)
    }
}

#[cfg(test)]
mod tests {
    use super::super::building::assign;
    use super::*;

    /// A building at rest, as values by sensor.
    struct Values {
        sensors: trace::Sensors,
        values: Vec<Option<f64>>,
    }

    impl Values {
        fn at_rest() -> Self {
            let sensors = trace::bundled_sensors().unwrap();
            let rest = |name: &str| match name.rsplit('/').next().unwrap() {
                "layer-height" => 2.8,
                "upper-o2" | "lower-o2" => 20.5,
                "heat-flux" => 0.4,
                name if name.contains("temperature") => 20.0,
                _ => 0.0,
            };
            let values = sensors
                .as_slice()
                .iter()
                .map(|sensor| Some(rest(&sensor.name)))
                .collect();
            Self { sensors, values }
        }

        fn set(&mut self, name: &str, value: f64) {
            self.values[usize::from(self.sensors.index_of(name).unwrap())] = Some(value);
        }

        fn picture(&self) -> Picture {
            *Analysis::new(assign(&self.sensors)).step(0, |sensor| self.values[usize::from(sensor)])
        }
    }

    fn verdict(picture: &Picture, name: &str) -> Verdict {
        picture.rooms[Room::from_name(name).unwrap().index()].verdict
    }

    #[test]
    fn a_building_at_rest_is_safe_and_open() {
        let picture = Values::at_rest().picture();
        assert!(
            picture
                .rooms
                .iter()
                .all(|room| room.verdict == Verdict::Safe)
        );
        assert_eq!(picture.ways_out, [WayOut::Open; STOREYS]);
        assert_eq!((picture.hottest, picture.heading_to), (None, None));
    }

    #[test]
    fn rooms_are_unknown_before_the_first_readings() {
        let values = Values::at_rest();
        let picture = *Analysis::new(assign(&values.sensors)).step(0, |_| None);
        assert!(
            picture
                .rooms
                .iter()
                .all(|room| room.verdict == Verdict::Unknown)
        );
        assert_eq!(picture.ways_out, [WayOut::Unknown; STOREYS]);
    }

    #[test]
    fn every_limit_counts_in_the_layer_that_the_head_is_in() {
        for (upper, lower, value, cause) in [
            ("upper-temperature", "lower-temperature", 60.1, Cause::Heat),
            ("upper-o2", "lower-o2", 14.9, Cause::Oxygen),
            ("upper-co", "lower-co", 0.141, Cause::Monoxide),
            ("upper-smoke", "lower-smoke", 0.51, Cause::Smoke),
        ] {
            // Smoke above the head: the upper layer is still harmless, the lower one is not.
            let mut values = Values::at_rest();
            values.set(&format!("office-31/{upper}"), value);
            assert!(
                verdict(&values.picture(), "office 31").is_passable(),
                "{upper}"
            );
            values.set(&format!("office-31/{lower}"), value);
            assert_eq!(
                verdict(&values.picture(), "office 31"),
                Verdict::Lost(cause),
                "{lower}"
            );
            // Smoke around the head: the upper layer is breathed.
            let mut values = Values::at_rest();
            values.set("office-31/layer-height", 1.49);
            values.set(&format!("office-31/{upper}"), value);
            assert_eq!(
                verdict(&values.picture(), "office 31"),
                Verdict::Lost(cause),
                "{upper}"
            );
        }
        let mut values = Values::at_rest();
        values.set("office-31/heat-flux", 2.6);
        assert_eq!(
            verdict(&values.picture(), "office 31"),
            Verdict::Lost(Cause::Radiation)
        );
    }

    #[test]
    fn half_of_the_way_to_a_limit_is_a_threat() {
        let mut values = Values::at_rest();
        values.set("office-31/lower-temperature", 45.0);
        assert_eq!(
            verdict(&values.picture(), "office 31"),
            Verdict::Threatened(Cause::Heat)
        );
        let mut values = Values::at_rest();
        values.set("corridor-3/layer-height", 2.0);
        values.set("corridor-3/upper-smoke", 1.0);
        let picture = values.picture();
        assert_eq!(
            verdict(&picture, "corridor 3"),
            Verdict::Threatened(Cause::Smoke)
        );
        assert_eq!(
            picture.ways_out,
            [
                WayOut::Open,
                WayOut::Open,
                WayOut::Threatened,
                WayOut::Threatened
            ]
        );
    }

    #[test]
    fn a_lost_corridor_cuts_off_the_storeys_above_and_a_lost_office_none() {
        let mut values = Values::at_rest();
        values.set("office-23/lower-temperature", 300.0);
        assert_eq!(values.picture().ways_out, [WayOut::Open; STOREYS]);
        values.set("corridor-2/lower-temperature", 80.0);
        let picture = values.picture();
        assert_eq!(
            picture.ways_out,
            [WayOut::Open, WayOut::Cut, WayOut::Cut, WayOut::Cut]
        );
        assert_eq!(picture.hottest, Room::from_name("office 23"));
        values.set("corridor-1/lower-o2", 10.0);
        assert_eq!(values.picture().ways_out, [WayOut::Cut; STOREYS]);
    }

    #[test]
    fn one_missing_quantity_is_no_claim_of_safety_but_one_bad_value_is_enough() {
        let mut values = Values::at_rest();
        let sensor = usize::from(values.sensors.index_of("corridor-2/lower-co").unwrap());
        values.values[sensor] = None;
        let picture = values.picture();
        assert_eq!(verdict(&picture, "corridor 2"), Verdict::Unknown);
        assert_eq!(picture.ways_out[1], WayOut::Unknown);
        values.set("corridor-2/lower-temperature", 90.0);
        assert_eq!(
            verdict(&values.picture(), "corridor 2"),
            Verdict::Lost(Cause::Heat)
        );
    }

    #[test]
    fn the_fire_heads_for_the_neighbour_that_warms_fastest() {
        let mut values = Values::at_rest();
        let mut analysis = Analysis::new(assign(&values.sensors));
        for (step, second) in (0_u64..60).enumerate() {
            let t = step as f64;
            values.set("office-23/upper-temperature", 20.0 + 8.0 * t);
            values.set("corridor-2/upper-temperature", 20.0 + 0.5 * t);
            // It warms faster, but no door connects it to the fire.
            values.set("office-44/upper-temperature", 20.0 + 1.0 * t);
            analysis.step(second * 1_000, |sensor| values.values[usize::from(sensor)]);
        }
        assert_eq!(analysis.picture.hottest, Room::from_name("office 23"));
        assert_eq!(analysis.picture.heading_to, Room::from_name("corridor 2"));
        // Once the corridor burns, its neighbours are next.
        for second in 60_u64..90 {
            values.set("corridor-2/upper-temperature", 150.0);
            values.set(
                "corridor-3/upper-temperature",
                20.0 + 0.4 * (second - 60) as f64,
            );
            analysis.step(second * 1_000, |sensor| values.values[usize::from(sensor)]);
        }
        assert_eq!(analysis.picture.heading_to, Room::from_name("corridor 3"));
    }

    #[test]
    fn over_the_whole_trace_office_23_is_lost_first_and_the_ways_out_close_last() {
        let trace = trace::bundled(u64::MAX).unwrap();
        let mut analysis = Analysis::new(assign(trace.sensors()));
        let mut values = vec![None; trace.sensors().len()];
        let mut lost = Vec::new();
        let mut next_ms = 0;
        let mut cut_at_ms = None;
        for reading in trace.readings() {
            while next_ms < reading.time_ms {
                let picture = analysis.step(next_ms, |sensor| values[usize::from(sensor)]);
                for room in Room::all() {
                    if matches!(picture.rooms[room.index()].verdict, Verdict::Lost(_))
                        && !lost.contains(&room)
                    {
                        lost.push(room);
                    }
                }
                if picture.ways_out[3] == WayOut::Cut {
                    cut_at_ms.get_or_insert(next_ms);
                }
                next_ms += 1_000;
            }
            values[usize::from(reading.sensor)] = Some(reading.value);
        }
        assert_eq!(lost.first(), Room::from_name("office 23").as_ref());
        assert!(lost.len() > 10, "{lost:?}");
        // Corridor 2 fills with smoke ten minutes into the fire and cuts off the storeys above.
        assert!(cut_at_ms.is_some_and(|ms| ms > 500_000), "{cut_at_ms:?}");
        assert_eq!(analysis.picture.ways_out[0], WayOut::Open);
    }
}
