//! Known bugs that a test run puts into the program, to show that the tests find them.
//!
//! A build with debug assertions, which the tests use, reads the name of one bug from the environment variable
//! `KEEL_SEEDED_BUG`. A build without them, which users get, contains neither the variable's name nor the bugs:
//! [`SeededBug::is_on`] is the constant `false` there. `scripts/seeded-bugs.sh` runs the tests against each bug and
//! looks into both builds.

/// A bug that the tests must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeededBug {
    /// `flash` writes the images of a record before the barrier that makes the record durable.
    SwappedBarrier,
    /// `db` completes the tickets of a batch before it is flushed.
    AckBeforeFlush,
    /// `db` does not wake a commit thread that sleeps.
    WakeUpLost,
    /// `keel` acknowledges a reading to its sender when it is put.
    AckWhenPut,
    /// `db` tells keys apart by their first 16 bytes.
    KeyTailIgnored,
    /// `db` takes the first 64 bytes of a longer key.
    KeyCutAt64,
    /// `db` logs the times of readings without what they have beyond whole ms.
    TimeTruncated,
    /// `db` follows each sample of the wall clock, also by what the reading of the clocks alone changes.
    OffsetTrembles,
    /// `db` keeps the owners of keys in memory and checkpoints alone.
    OwnerNotLogged,
    /// `db` appends to the last segment in any format.
    OldSegmentContinued,
    /// `db` ends an alarm at the threshold that raised it.
    AlarmWithoutHysteresis,
    /// `db` counts an alarm that found no room as reported.
    AlarmForgetsWhenFull,
    /// `db` does not count the readings of a segment that it deletes.
    ExpiryUncounted,
    /// `db` takes the wall clock for the age of a value whose time the node's clock gave.
    AgeByWall,
    /// `egress` moves a cursor when readings are sent.
    CursorBeforeAck,
    /// `egress` takes the acknowledgement of one message for that of another.
    AckOfAnother,
    /// `egress` sends without a limit on unacknowledged messages.
    WindowUnbounded,
    /// `egress` keeps the first of several values that wait for an actuator.
    ActuatorFirstWins,
    /// `ingest` leaves slashes in the names and values of keys with pairs.
    SlashUnescaped,
    /// `ingest` reads integers that no double holds as doubles.
    IntegerThroughDouble,
}

impl SeededBug {
    /// Every bug.
    pub const ALL: [Self; 20] = [
        Self::SwappedBarrier,
        Self::AckBeforeFlush,
        Self::WakeUpLost,
        Self::AckWhenPut,
        Self::KeyTailIgnored,
        Self::KeyCutAt64,
        Self::TimeTruncated,
        Self::OffsetTrembles,
        Self::OwnerNotLogged,
        Self::OldSegmentContinued,
        Self::AlarmWithoutHysteresis,
        Self::AlarmForgetsWhenFull,
        Self::ExpiryUncounted,
        Self::AgeByWall,
        Self::CursorBeforeAck,
        Self::AckOfAnother,
        Self::WindowUnbounded,
        Self::ActuatorFirstWins,
        Self::SlashUnescaped,
        Self::IntegerThroughDouble,
    ];

    /// The value of `KEEL_SEEDED_BUG` that turns the bug on.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SwappedBarrier => "swapped-barrier",
            Self::AckBeforeFlush => "ack-before-flush",
            Self::WakeUpLost => "wake-up-lost",
            Self::AckWhenPut => "ack-when-put",
            Self::KeyTailIgnored => "key-tail-ignored",
            Self::KeyCutAt64 => "key-cut-at-64",
            Self::TimeTruncated => "time-truncated",
            Self::OffsetTrembles => "offset-trembles",
            Self::OwnerNotLogged => "owner-not-logged",
            Self::OldSegmentContinued => "old-segment-continued",
            Self::AlarmWithoutHysteresis => "alarm-without-hysteresis",
            Self::AlarmForgetsWhenFull => "alarm-forgets-when-full",
            Self::ExpiryUncounted => "expiry-uncounted",
            Self::AgeByWall => "age-by-wall",
            Self::CursorBeforeAck => "cursor-before-ack",
            Self::AckOfAnother => "ack-of-another",
            Self::WindowUnbounded => "window-unbounded",
            Self::ActuatorFirstWins => "actuator-first-wins",
            Self::SlashUnescaped => "slash-unescaped",
            Self::IntegerThroughDouble => "integer-through-double",
        }
    }

    /// Whether this process has the bug.
    ///
    /// # Panics
    ///
    /// In a build with debug assertions, if `KEEL_SEEDED_BUG` names no bug: a misspelt name must not pass for a
    /// program without the bug.
    #[cfg(debug_assertions)]
    pub fn is_on(self) -> bool {
        static CHOSEN: std::sync::OnceLock<Option<SeededBug>> = std::sync::OnceLock::new();
        *CHOSEN.get_or_init(|| {
            let name = std::env::var_os("KEEL_SEEDED_BUG")?;
            let bug = Self::ALL.into_iter().find(|bug| name == bug.name());
            assert!(bug.is_some(), "KEEL_SEEDED_BUG names no bug: {name:?}");
            bug
        }) == Some(self)
    }

    /// Whether this process has the bug: never.
    #[cfg(not(debug_assertions))]
    pub const fn is_on(self) -> bool {
        false
    }
}
