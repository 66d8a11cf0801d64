//! The invariants by their numbers, and how a run says that one is broken.

use std::fmt;

/// What must hold. `DESIGN.md` has all of them, with their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Invariant {
    /// I1.
    NothingLost,
    /// I2.
    NothingAltered,
    /// I3.
    NothingInvented,
    /// I4.
    Order,
    /// I5.
    Bounds,
    /// I6.
    Taken,
    /// I7.
    Freshness,
    /// I9.
    Alarms,
    /// I12.
    Forwarded,
    /// I13.
    TrueAcknowledgement,
    /// I14.
    StartEnds,
    /// I16.
    RangeReads,
}

impl Invariant {
    /// Its number in `DESIGN.md`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::NothingLost => "I1",
            Self::NothingAltered => "I2",
            Self::NothingInvented => "I3",
            Self::Order => "I4",
            Self::Bounds => "I5",
            Self::Taken => "I6",
            Self::Freshness => "I7",
            Self::Alarms => "I9",
            Self::Forwarded => "I12",
            Self::TrueAcknowledgement => "I13",
            Self::StartEnds => "I14",
            Self::RangeReads => "I16",
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Self::NothingLost => "no acknowledged reading is lost",
            Self::NothingAltered => "no reading is altered",
            Self::NothingInvented => "no reading is invented",
            Self::Order => "the readings of a key keep their order",
            Self::Bounds => "no limit is exceeded",
            Self::Taken => "a right reading is taken, and a taken one becomes durable in time",
            Self::Freshness => "a value is the latest one, with its age, and fresh or not by that",
            Self::Alarms => "each crossing of a threshold is told once, in order, or counted",
            Self::Forwarded => "an upstream gets each reading, and twice only for a reason",
            Self::TrueAcknowledgement => "what is acknowledged is on the device",
            Self::StartEnds => "a start ends, within its bounds",
            Self::RangeReads => "a range read returns just what the log has",
        }
    }
}

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    pub(crate) invariant: Invariant,
    /// What was found.
    pub(crate) found: String,
}

impl Broken {
    pub(crate) fn new(invariant: Invariant, found: impl Into<String>) -> Self {
        Self {
            invariant,
            found: found.into(),
        }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, text) = (self.invariant.name(), self.invariant.text());
        write!(f, "{name} ({text}) does not hold: {}", self.found)
    }
}
