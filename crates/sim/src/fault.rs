//! Faults of the device beside the ends of lives: which of them the runs of a profile have, and what a seed decides
//! about them.
//!
//! Errors, refusals and stalls keep the contract of a device: with them nothing may be lost. Rot, lost and misdirected
//! writes break it: with them something may be lost, and `run/harm.rs` says what must hold.

use base::sim::{FaultCounters, FaultPlan, Random, SimDevice};
use clap::ValueEnum;
use db::{FullPolicy, Retention};

use crate::draw::Draw;

/// Keeps what is drawn here apart from what `draw.rs` draws: a run of another profile has the same lives.
const FAULT_SEED: u64 = 0x6661_756c_7473;
const SECOND_NS: u64 = 1_000_000_000;
/// Readings of the trace in a second.
const TRACE_RATE: u64 = 260;
/// Blocks of the least device of the profile `full`. Its table of files and its records take about 60. A checkpoint of
/// all sensors, with the owners of their keys, is less than a quarter of the rest: there is always room for one.
const FULL_BLOCKS_MIN: u64 = 320;
/// Bytes of log that a reading takes on average, with its share of names.
const READING_LOG_BYTES: u64 = 70;
/// Parts of the log of a whole run in the profile `full`.
const FULL_SEGMENTS: u64 = 16;
/// Least segment there.
const FULL_SEGMENT_BYTES_MIN: u64 = 6 << 10;
/// Tries to find a block that holds something.
const ROT_TRIES: u32 = 64;
const BITS_PER_BLOCK: u64 = 4096 * 8;

/// What goes wrong in the runs of a profile, beside the ends of lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Profile {
    /// Nothing: power cuts, kills and stops alone
    #[default]
    Cuts,
    /// Bits rot, writes are lost or land elsewhere
    Damage,
    /// Reads, writes and flushes fail
    Errors,
    /// The store is full, or the device has no more room; old readings are deleted
    Full,
    /// Old readings are deleted, but those that upstreams hold
    Retention,
    /// Requests stall for seconds
    Slow,
    /// The wall clock jumps, and its trust comes and goes
    Clock,
}

impl Profile {
    /// As an argument of the program.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Cuts => "cuts",
            Self::Damage => "damage",
            Self::Errors => "errors",
            Self::Full => "full",
            Self::Retention => "retention",
            Self::Slow => "slow",
            Self::Clock => "clock",
        }
    }

    /// Whether readings are forwarded. What upstreams may miss under other faults is not judged.
    const fn has_upstreams(self) -> bool {
        matches!(self, Self::Cuts | Self::Retention | Self::Slow)
    }

    /// Whether readings are deleted: because they are old, or to make room.
    pub(crate) const fn deletes(self) -> bool {
        matches!(self, Self::Full | Self::Retention)
    }

    /// Whether a fault may make the log fail, so that the node must be started again.
    pub(crate) const fn may_fail(self) -> bool {
        matches!(self, Self::Damage | Self::Errors | Self::Full)
    }
}

/// For a while the device answers no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Burst {
    /// Number of the reading that sets it off, once it is offered.
    pub(crate) at: u64,
    /// How many requests fail.
    pub(crate) requests: u64,
}

/// From some moment on the device has no room for more, as a sparse file on a full file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom {
    /// Number of the reading that sets it off, once it is offered.
    pub(crate) at: u64,
    /// Blocks that it still takes.
    pub(crate) blocks: u64,
    /// Number of starts of the node after which there is room again.
    pub(crate) starts: u64,
}

/// What the operator of a full store does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Relief {
    /// For how long the store is full before that.
    pub(crate) patience_ns: u64,
    /// What is kept from then on.
    pub(crate) retention: Retention,
}

/// The faults of one run.
#[derive(Clone, Debug)]
pub(crate) struct Faults {
    pub(crate) profile: Profile,
    /// While the node starts.
    pub(crate) starting: FaultPlan,
    /// While it runs.
    pub(crate) running: FaultPlan,
    pub(crate) burst: Option<Burst>,
    pub(crate) no_room: Option<NoRoom>,
    pub(crate) relief: Relief,
    /// Most bits that rot between two lives.
    rots_max: u64,
    random: Random,
}

impl Faults {
    /// Draws the faults of a run. In the profile `full` this changes the sizes that were drawn.
    pub(crate) fn draw(profile: Profile, seed: u64, readings: u64, draw: &mut Draw) -> Self {
        let mut faults = Self {
            profile,
            starting: FaultPlan::default(),
            running: FaultPlan::default(),
            burst: None,
            no_room: None,
            relief: Relief {
                patience_ns: u64::MAX,
                retention: draw.options.retention,
            },
            rots_max: 0,
            random: Random::new(seed ^ FAULT_SEED),
        };
        match profile {
            Profile::Cuts | Profile::Clock => {}
            Profile::Damage => faults.draw_damage(draw),
            Profile::Errors => faults.draw_errors(readings),
            Profile::Full => faults.draw_full(readings, draw),
            Profile::Retention => faults.draw_retention(readings, draw),
            Profile::Slow => faults.draw_stalls(),
        }
        // A node that was started again is sent readings again, and what is deleted cannot be counted by the judge.
        draw.is_quiet &= !profile.may_fail() && !profile.deletes();
        if !profile.has_upstreams() {
            draw.upstreams.clear();
        }
        faults
    }

    fn one_of(&mut self, choices: [u32; 4]) -> u32 {
        choices[self.random.index(choices.len())]
    }

    fn draw_damage(&mut self, draw: &mut Draw) {
        // A sensor whose name is lost gets another object.
        draw.options.objects_max *= 4;
        self.rots_max = self.random.below(4);
        self.running = FaultPlan {
            write_lost_ppm: self.one_of([0, 0, 300, 2_000]),
            write_misdirected_ppm: self.one_of([0, 0, 300, 2_000]),
            write_rot_ppm: self.one_of([0, 0, 500, 4_000]),
            read_rot_ppm: self.one_of([0, 0, 500, 4_000]),
            ..FaultPlan::default()
        };
        self.starting = self.running;
        if self.running == FaultPlan::default() {
            self.rots_max = self.rots_max.max(1);
        }
    }

    fn draw_errors(&mut self, readings: u64) {
        self.starting = FaultPlan {
            write_error_ppm: self.one_of([0, 200, 1_000, 3_000]),
            flush_error_ppm: self.one_of([0, 200, 1_000, 3_000]),
            ..FaultPlan::default()
        };
        self.running = FaultPlan {
            read_error_ppm: self.one_of([0, 0, 500, 3_000]),
            ..self.starting
        };
        if self.random.coin() {
            self.burst = Some(Burst {
                at: self.random.below(readings.max(1)),
                requests: 1 + self.random.below(30),
            });
        }
        if self.starting == FaultPlan::default() && self.burst.is_none() {
            self.running.flush_error_ppm = 3_000;
        }
    }

    /// Little is kept, on a device with room for all of it.
    fn draw_retention(&mut self, readings: u64, draw: &mut Draw) {
        draw_small_segments(readings, draw);
        let segments = 1 + self.random.below(4);
        draw.options.retention = Retention {
            history_bytes_max: segments * draw.options.segment_bytes_max,
            ..Retention::default()
        };
    }

    fn draw_full(&mut self, readings: u64, draw: &mut Draw) {
        draw_small_segments(readings, draw);
        let log_bytes = readings * READING_LOG_BYTES;
        let options = &mut draw.options;
        let quarters = self.random.below(3);
        draw.device_blocks = FULL_BLOCKS_MIN + log_bytes / 4_096 * quarters / 4;
        let run_ms = readings * 1_000 / TRACE_RATE / draw.speed;
        let segments = u64::from(self.one_of([0, 0, 2, 4]));
        let age_parts = u64::from(self.one_of([0, 2, 4, 8]));
        options.retention = Retention {
            history_bytes_max: segments * options.segment_bytes_max,
            history_age_ms_max: run_ms.checked_div(age_parts).map_or(0, |ms| ms.max(100)),
            backlog_bytes_max: 0,
            full_policy: match self.random.coin() {
                true => FullPolicy::DropOldest,
                false => FullPolicy::RejectNew,
            },
        };
        self.relief = Relief {
            patience_ns: (1 + self.random.below(20)) * SECOND_NS,
            retention: Retention {
                history_bytes_max: 2 * options.segment_bytes_max,
                ..options.retention
            },
        };
        if self.random.below(3) == 0 {
            self.no_room = Some(NoRoom {
                at: self.random.below(readings.max(1)),
                blocks: self.random.below(40),
                starts: 1 + self.random.below(3),
            });
        }
    }

    fn draw_stalls(&mut self) {
        self.running = FaultPlan {
            stall_ppm: self.one_of([200, 1_000, 3_000, 5_000]),
            stall_ns: (1 + self.random.below(7)) * SECOND_NS,
            ..FaultPlan::default()
        };
        self.starting = self.running;
    }

    /// Draws the bits that rot between two lives.
    pub(crate) fn rots(&mut self) -> u64 {
        self.random.below(self.rots_max + 1)
    }

    /// Lets one bit rot in a drawn block of these that holds something. Returns the block.
    pub(crate) fn rot(&mut self, device: &mut SimDevice, blocks: std::ops::Range<u64>) -> u64 {
        let count = blocks.end.saturating_sub(blocks.start);
        let mut block = blocks.start;
        for _ in 0..ROT_TRIES {
            block = blocks.start + self.random.below(count);
            if device.peek(block).iter().any(|byte| *byte != 0) {
                break;
            }
        }
        device.inject_bit_rot(block, self.random.below(BITS_PER_BLOCK) as u32);
        block
    }
}

/// Makes segments so small that some are deleted.
fn draw_small_segments(readings: u64, draw: &mut Draw) {
    let log_bytes = readings * READING_LOG_BYTES;
    for source in &mut draw.sources {
        // Of two copies of a reading one may be deleted: the judge knows one place of each reading.
        source.twice_one_in = 0;
    }
    let options = &mut draw.options;
    options.segment_bytes_max = (log_bytes / FULL_SEGMENTS).max(FULL_SEGMENT_BYTES_MIN);
    // A checkpoint frees what is older than it, so one must come before the store is full.
    options.checkpoint_bytes = options.checkpoint_bytes.min(log_bytes / 4).max(8 << 10);
}

/// Returns how many faults have broken the contract of the device.
pub(crate) fn silent(counters: &FaultCounters) -> u64 {
    counters.writes_lost
        + counters.writes_misdirected
        + counters.writes_rotten
        + counters.reads_rotten
}

/// Returns how many requests have failed.
pub(crate) fn failed(counters: &FaultCounters) -> u64 {
    counters.write_errors + counters.read_errors + counters.flush_errors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(profile: Profile, seed: u64) -> (Faults, Draw) {
        let mut draw = Draw::new(&mut Random::new(seed), 6_000);
        let faults = Faults::draw(profile, seed, 6_000, &mut draw);
        (faults, draw)
    }

    #[test]
    fn each_profile_has_its_faults_and_leaves_the_options_right() {
        let (mut limits, mut drops, mut bursts, mut no_room) = (0, 0, 0, 0);
        for seed in 0..100 {
            for profile in Profile::value_variants() {
                let (faults, draw) = drawn(*profile, seed);
                assert_eq!(draw.options.check(), Ok(()), "{profile:?} {seed}");
                let has_plan = faults.running != FaultPlan::default();
                let has_faults = has_plan || faults.burst.is_some() || faults.rots_max > 0;
                let expected = matches!(profile, Profile::Damage | Profile::Errors | Profile::Slow);
                assert_eq!(has_faults, expected, "{profile:?} {seed}");
                bursts += u64::from(faults.burst.is_some());
                no_room += u64::from(faults.no_room.is_some());
                let retention = draw.options.retention;
                limits += u64::from(retention.history_age_ms_max > 0);
                drops += u64::from(retention.full_policy == FullPolicy::DropOldest);
            }
        }
        for count in [limits, drops, bursts, no_room] {
            assert!(count > 10, "{limits} {drops} {bursts} {no_room}");
        }
    }

    #[test]
    fn a_bit_rots_in_a_block_that_holds_something() {
        use base::block::{BLOCK_BYTES, BlockDevice};
        let mut device = SimDevice::new(8, 1);
        for block in [2, 5] {
            device.write(block, &[7; BLOCK_BYTES]).expect("on");
        }
        device.flush().expect("on");
        let (mut faults, _) = drawn(Profile::Damage, 3);
        let before = device.image_hash();
        let block = faults.rot(&mut device, 1..8);
        assert!([2, 5].contains(&block), "{block}");
        assert_ne!(device.image_hash(), before);
    }
}
