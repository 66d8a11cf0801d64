//! The inputs of a question: figures, each with its origin, and the conditions.

use crate::Error;
use crate::model::Boundary;

/// One figure. The order is that in the documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum Input {
    /// Seconds of the job on one board.
    SingleS,
    /// Fraction of the job that can be shared out.
    ParallelFraction,
    /// Number of exchanges between all boards.
    ExchangeTimes,
    /// Bytes of each message of an exchange.
    ExchangeBytes,
    /// Bytes that a data centre would need.
    InputBytes,
    /// Bytes that the data centre would send back.
    OutputBytes,
    /// Watts of a computing board.
    BoardActiveW,
    /// Watts of a board without load.
    BoardIdleW,
    /// Watts of a board that waits for messages.
    BoardCommunicatingW,
    /// Watts of the device that connects the boards.
    SwitchW,
    /// Seconds of an empty message between boards.
    MessageAlphaS,
    /// Bytes per second between boards.
    MessageBytesPerS,
    /// Bytes per second to the data centre.
    UpBytesPerS,
    /// Bytes per second from it.
    DownBytesPerS,
    /// Round-trip time in seconds.
    RoundTripS,
    /// Speed of a machine in the data centre ÷ speed of a board.
    MachineSpeed,
    /// Watts of that machine when it computes.
    MachineActiveW,
    /// Its watts without load.
    MachineIdleW,
    /// Power of the building ÷ power of its machines.
    Pue,
    /// Joules of the radio or network card for a byte.
    RadioJPerByte,
    /// Joules of the network for a byte.
    NetworkJPerByte,
    /// Price of a kilowatt-hour.
    EnergyPricePerKwh,
    /// Price of a gigabyte (10^9) to or from the data centre.
    NetworkPricePerGb,
    /// Price of an hour of the machine.
    MachinePricePerHour,
}

/// Fixed properties of an input.
struct Known {
    name: &'static str,
    least: f64,
    most: f64,
    /// Relative standard deviation if the question does not give one and it is not assumed; 0 for counted or agreed
    /// figures, which are not measured.
    spread: f64,
    /// The value to assume on request, and its source. `None` if only the user can know it.
    assumed: Option<(f64, &'static str)>,
}

/// Inputs, in the order of [`Input`].
pub const INPUTS: [Input; 24] = [
    Input::SingleS,
    Input::ParallelFraction,
    Input::ExchangeTimes,
    Input::ExchangeBytes,
    Input::InputBytes,
    Input::OutputBytes,
    Input::BoardActiveW,
    Input::BoardIdleW,
    Input::BoardCommunicatingW,
    Input::SwitchW,
    Input::MessageAlphaS,
    Input::MessageBytesPerS,
    Input::UpBytesPerS,
    Input::DownBytesPerS,
    Input::RoundTripS,
    Input::MachineSpeed,
    Input::MachineActiveW,
    Input::MachineIdleW,
    Input::Pue,
    Input::RadioJPerByte,
    Input::NetworkJPerByte,
    Input::EnergyPricePerKwh,
    Input::NetworkPricePerGb,
    Input::MachinePricePerHour,
];

/// Spread of measured figures, unless the question gives another.
const MEASURED: f64 = 0.1;

/// Spread of assumed figures: those of another machine or site.
const ASSUMED: f64 = 0.5;

/// Spread of assumed figures of which only the order of magnitude is known: a factor of 2.7.
const ORDER_OF_MAGNITUDE: f64 = 1.0;

/// Powers without load, each with the power at work that it cannot exceed.
pub(super) const IDLE_AND_ACTIVE: [(Input, Input); 2] = [
    (Input::BoardIdleW, Input::BoardActiveW),
    (Input::MachineIdleW, Input::MachineActiveW),
];

const fn known(
    name: &'static str,
    (least, most): (f64, f64),
    spread: f64,
    assumed: Option<(f64, &'static str)>,
) -> Known {
    Known {
        name,
        least,
        most,
        spread,
        assumed,
    }
}

const BOARD: &str = "a MinnowBoard MAX in the thesis's table 5.6 (bandwidth)";
const MACHINE: &str = "a NUC D54250WYK in the thesis's table 5.7 (bandwidth)";
const POLLS: &str = "boards poll for messages: as active";
const IDLE_OF_ACTIVE: &str =
    "the part of active power that a MinnowBoard MAX has in the thesis's table 5.6 (bandwidth)";

/// Powers of the board of reference, at work and without load.
const BOARD_ACTIVE_W: f64 = 4.9871;
const BOARD_IDLE_W: f64 = 2.5663;

const LINK: &str = "1 Gbit/s Ethernet between two Linux machines";

const TABLE: [Known; INPUTS.len()] = [
    known("single_s", (1e-6, 1e9), MEASURED, None),
    known("parallel_fraction", (0.0, 1.0), MEASURED, None),
    known("exchange_times", (0.0, 1e9), 0.0, None),
    known("exchange_bytes", (0.0, 1e12), 0.0, None),
    known("input_bytes", (0.0, 1e15), 0.0, None),
    known(
        "output_bytes",
        (0.0, 1e15),
        0.0,
        Some((0.0, "a result of a few numbers")),
    ),
    known(
        "board_active_w",
        (1e-3, 1e4),
        MEASURED,
        Some((BOARD_ACTIVE_W, BOARD)),
    ),
    known(
        "board_idle_w",
        (0.0, 1e4),
        MEASURED,
        Some((BOARD_IDLE_W, BOARD)),
    ),
    known(
        "board_communicating_w",
        (0.0, 1e4),
        MEASURED,
        Some((BOARD_ACTIVE_W, POLLS)),
    ),
    known(
        "switch_w",
        (0.0, 1e4),
        MEASURED,
        Some((0.0, "not counted, as in the thesis")),
    ),
    known("message_alpha_s", (0.0, 1e3), MEASURED, Some((10e-6, LINK))),
    known(
        "message_bytes_per_s",
        (1.0, 1e13),
        MEASURED,
        Some((122e6, LINK)),
    ),
    known("up_bytes_per_s", (1.0, 1e13), MEASURED, None),
    known("down_bytes_per_s", (1.0, 1e13), MEASURED, None),
    known(
        "round_trip_s",
        (0.0, 1e4),
        MEASURED,
        Some((0.05, "a data centre on the same continent")),
    ),
    known("machine_speed", (1e-6, 1e6), MEASURED, None),
    known(
        "machine_active_w",
        (1e-3, 1e6),
        MEASURED,
        Some((18.2385, MACHINE)),
    ),
    known(
        "machine_idle_w",
        (0.0, 1e6),
        MEASURED,
        Some((4.4801, MACHINE)),
    ),
    known(
        "pue",
        (1.0, 10.0),
        MEASURED,
        Some((1.58, "average of the Uptime Institute's survey of 2023")),
    ),
    known(
        "radio_j_per_byte",
        (0.0, 1.0),
        MEASURED,
        Some((2e-6, "LTE, order of magnitude")),
    ),
    known(
        "network_j_per_byte",
        (0.0, 1.0),
        MEASURED,
        Some((4.8e-6, "core network, order of magnitude")),
    ),
    known("energy_price_per_kwh", (0.0, 1e6), 0.0, None),
    known("network_price_per_gb", (0.0, 1e9), 0.0, None),
    known("machine_price_per_hour", (0.0, 1e9), 0.0, None),
];

impl Input {
    fn known(self) -> &'static Known {
        &TABLE[self as usize]
    }

    /// Returns its name in files, which includes its unit.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.known().name
    }

    /// Returns the input with a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        INPUTS.into_iter().find(|input| input.name() == name)
    }

    /// Returns the range of its values.
    #[must_use]
    pub fn range(self) -> (f64, f64) {
        (self.known().least, self.known().most)
    }

    /// Returns the relative standard deviation of a figure with this origin that does not give one.
    #[must_use]
    pub fn usual_spread(self, origin: &Origin) -> f64 {
        match (origin, self) {
            (Origin::Assumed(_), Self::RadioJPerByte | Self::NetworkJPerByte) => ORDER_OF_MAGNITUDE,
            (Origin::Assumed(_), _) => ASSUMED,
            _ => self.known().spread,
        }
    }

    /// Returns the assumed value and its source; `None` if only the user can know it.
    #[must_use]
    pub fn assumed(self) -> Option<(f64, &'static str)> {
        self.known().assumed
    }

    /// Returns the assumed value beside a known active power of the board, and its source. Powers of one board belong
    /// together: beside those of another board its work could cost nothing.
    fn assumed_beside(self, active_w: f64) -> Option<(f64, &'static str)> {
        match self {
            Self::BoardIdleW => Some((active_w * (BOARD_IDLE_W / BOARD_ACTIVE_W), IDLE_OF_ACTIVE)),
            Self::BoardCommunicatingW => Some((active_w, POLLS)),
            _ => self.assumed(),
        }
    }
}

/// The origin of a figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Measured, and with what.
    Measured(String),
    /// Agreed or counted: a price, a size.
    Stated(String),
    /// Taken from elsewhere, with the source.
    Assumed(String),
}

/// One figure of a question.
#[derive(Clone, Debug, PartialEq)]
pub struct Given {
    /// Its value.
    pub value: f64,
    /// Its origin.
    pub origin: Origin,
    /// Relative standard deviation. For `parallel_fraction` it is that of the serial part.
    pub spread: f64,
}

/// Where data may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privacy {
    /// It stays on its board.
    Board,
    /// It may go to neighbouring boards.
    Neighbours,
    /// It may go anywhere.
    Anywhere,
}

/// Which power of the data centre's machine the job is charged with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// A machine for the job alone: all of its power.
    Dedicated,
    /// A part of a machine that runs anyway: the power above its idle power.
    Shared,
}

/// What to minimise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Minimise {
    /// Money.
    Cost,
    /// Energy.
    Energy,
    /// Time.
    Time,
}

/// A question to the advisor.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// The job.
    pub name: String,
    /// By [`Input`]; `None` if missing.
    pub given: [Option<Given>; INPUTS.len()],
    /// Number of available boards.
    pub boards_max: u32,
    /// What the boards' energy includes.
    pub boundary: Boundary,
    /// Which power of the machine is charged.
    pub machine: Machine,
    /// Where data may go.
    pub privacy: Privacy,
    /// When the result must be available.
    pub deadline_s: Option<f64>,
    /// What to minimise.
    pub minimise: Minimise,
    /// Probability with which at least one option must keep the deadline.
    pub confidence: f64,
    /// An option whose probability of being in time is lower than this is not advised, however cheap it is.
    pub confidence_floor: f64,
    /// Cost of a late result, in multiples of a result's cost: weighs the risk against extra cost.
    pub late_penalty: f64,
}

/// Largest number of boards of a question.
pub const BOARDS_MAX: u32 = 64;

/// The default confidence.
pub const CONFIDENCE: f64 = 0.8;

/// The default confidence floor.
pub const CONFIDENCE_FLOOR: f64 = 0.02;

/// The default penalty.
pub const LATE_PENALTY: f64 = 5.0;

impl Question {
    /// Creates a question without figures.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            given: std::array::from_fn(|_| None),
            boards_max: 1,
            boundary: Boundary::BoardsOn,
            machine: Machine::Shared,
            privacy: Privacy::Anywhere,
            deadline_s: None,
            minimise: Minimise::Energy,
            confidence: CONFIDENCE,
            confidence_floor: CONFIDENCE_FLOOR,
            late_penalty: LATE_PENALTY,
        }
    }

    /// Sets a figure, with the usual spread of its kind and origin.
    ///
    /// # Errors
    /// It is out of its range.
    pub fn give(&mut self, input: Input, value: f64, origin: Origin) -> Result<(), Error> {
        let spread = input.usual_spread(&origin);
        self.give_with_spread(input, value, origin, spread)
    }

    /// Sets a figure.
    ///
    /// # Errors
    /// The figure or its spread is out of its range.
    pub fn give_with_spread(
        &mut self,
        input: Input,
        value: f64,
        origin: Origin,
        spread: f64,
    ) -> Result<(), Error> {
        let (least, most) = input.range();
        if !(least..=most).contains(&value) {
            let wrong = format!("is {value}, must be from {least} to {most}");
            return Err(Error::invalid(input.name(), wrong));
        }
        if !(0.0..=1.0).contains(&spread) {
            let wrong = format!("has a spread of {spread}, must be from 0 to 1");
            return Err(Error::invalid(input.name(), wrong));
        }
        self.given[input as usize] = Some(Given {
            value,
            origin,
            spread,
        });
        Ok(())
    }

    /// Returns the inputs that the options of this question need, in order.
    #[must_use]
    pub fn needed(&self) -> Vec<Input> {
        use Input as I;
        let mut needed = vec![I::SingleS, I::BoardActiveW, I::BoardIdleW];
        if self.boards_max > 1 && self.privacy != Privacy::Board {
            needed.extend([
                I::ParallelFraction,
                I::ExchangeTimes,
                I::ExchangeBytes,
                I::BoardCommunicatingW,
            ]);
            needed.extend([I::SwitchW, I::MessageAlphaS, I::MessageBytesPerS]);
        }
        if self.privacy == Privacy::Anywhere {
            needed.extend([
                I::InputBytes,
                I::OutputBytes,
                I::UpBytesPerS,
                I::DownBytesPerS,
                I::RoundTripS,
            ]);
            needed.extend([
                I::MachineSpeed,
                I::MachineActiveW,
                I::Pue,
                I::RadioJPerByte,
                I::NetworkJPerByte,
            ]);
            if self.machine == Machine::Shared {
                needed.push(I::MachineIdleW);
            }
        }
        if self.minimise == Minimise::Cost {
            needed.push(I::EnergyPricePerKwh);
            if self.privacy == Privacy::Anywhere {
                needed.extend([I::NetworkPricePerGb, I::MachinePricePerHour]);
            }
        }
        needed.sort();
        needed
    }

    /// Sets the assumed value for each input that is needed and missing. The other powers of a board follow from its
    /// active power, if that is known. Limits assumed idle power to active power.
    pub fn assume(&mut self) {
        let active_w = self.given[Input::BoardActiveW as usize]
            .as_ref()
            .map(|given| given.value);
        for input in self.needed() {
            let place = &mut self.given[input as usize];
            let assumed = match active_w {
                Some(active_w) => input.assumed_beside(active_w),
                None => input.assumed(),
            };
            if let (None, Some((value, after))) = (&place, assumed) {
                let origin = Origin::Assumed(after.to_owned());
                *place = Some(Given {
                    value,
                    spread: input.usual_spread(&origin),
                    origin,
                });
            }
        }
        // A measured board or machine may need less at work than the assumed one without load.
        for (idle, active) in IDLE_AND_ACTIVE {
            let active = self.given[active as usize]
                .as_ref()
                .map(|given| given.value);
            if let (Some(active), Some(idle)) = (active, self.given[idle as usize].as_mut())
                && matches!(idle.origin, Origin::Assumed(_))
                && idle.value > active
            {
                idle.value = active;
                idle.origin = Origin::Assumed("not above active power".to_owned());
            }
        }
    }

    /// Checks that the question can be answered once these inputs are given, too.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn check_with(&self, later: impl IntoIterator<Item = Input>) -> Result<(), Error> {
        let mut question = self.clone();
        for input in later {
            // A value in its place: only the range of these inputs is checked.
            let (least, _) = input.range();
            question.give(input, least, Origin::Stated(String::new()))?;
        }
        question.check()
    }

    /// Checks that the question can be answered.
    ///
    /// # Errors
    /// All missing inputs at once; inputs that contradict each other.
    pub fn check(&self) -> Result<(), Error> {
        let needed = self.needed();
        let missing = needed
            .iter()
            .filter(|input| self.given[**input as usize].is_none());
        let names: Vec<String> = missing.map(|input| input.name().to_owned()).collect();
        if !names.is_empty() {
            return Err(Error::Missing { names });
        }
        if !(1..=BOARDS_MAX).contains(&self.boards_max) {
            let wrong = format!("is {}, must be from 1 to {BOARDS_MAX}", self.boards_max);
            return Err(Error::invalid("boards_max", wrong));
        }
        if let Some(deadline_s) = self.deadline_s
            && !(deadline_s > 0.0 && deadline_s.is_finite())
        {
            return Err(Error::invalid(
                "deadline_s",
                format!("is {deadline_s}, must be above 0"),
            ));
        }
        if !(0.5..=0.999_999).contains(&self.confidence) {
            let wrong = format!("is {}, must be from 0.5 to 0.999999", self.confidence);
            return Err(Error::invalid("confidence", wrong));
        }
        if !(0.0..=self.confidence).contains(&self.confidence_floor) {
            let wrong = format!(
                "is {}, must be from 0 to `confidence`, {}",
                self.confidence_floor, self.confidence
            );
            return Err(Error::invalid("confidence_floor", wrong));
        }
        if !(0.0..=1e6).contains(&self.late_penalty) {
            let wrong = format!("is {}, must be from 0 to 1000000", self.late_penalty);
            return Err(Error::invalid("late_penalty", wrong));
        }
        for (idle, active) in IDLE_AND_ACTIVE {
            if let (Some(below), Some(above)) =
                (&self.given[idle as usize], &self.given[active as usize])
                && below.value > above.value
            {
                let wrong = format!("is above {}: a load that saves power", active.name());
                return Err(Error::invalid(idle.name(), wrong));
            }
        }
        Ok(())
    }
}
