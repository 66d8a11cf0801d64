//! What a seed decides before a run begins: sizes, rates, latencies, lives and how they end.

use base::sim::{LatencyModel, Random};
use db::{CommitDriver, DbOptions};

use crate::alarm::AlarmDraw;
use crate::sensors::SPEEDS;
use crate::upstream::UpstreamDraw;

/// Most ends before the last one.
const ENDS_MAX: u64 = 7;
/// One seed in this many has neither a cut nor a kill.
const QUIET_ONE_IN: u64 = 10;
/// Bytes of log that a reading takes at most, with the name of its object and its share of what stands beside.
pub(crate) const READING_LOG_BYTES_MAX: u64 = 160;
/// Segments of a whole run. Few files share few table blocks of the store, so that damage to one would be noticed.
const SEGMENTS_MAX: u64 = 24;
/// Slots of the table: the sensors, and some.
const OBJECTS_MAX: u32 = 1_100;

/// What a seed decides.
#[derive(Clone, Debug)]
pub(crate) struct Draw {
    pub(crate) options: DbOptions,
    pub(crate) latency: LatencyModel,
    pub(crate) speed: u64,
    pub(crate) device_blocks: u64,
    pub(crate) sources: Vec<SourceDraw>,
    pub(crate) upstreams: Vec<UpstreamDraw>,
    /// How long a value counts as fresh.
    pub(crate) validity_ms: u32,
    /// Whether the time of a reading may be any distance from the node's clock.
    pub(crate) takes_any_time: bool,
    pub(crate) alarms: AlarmDraw,
    /// How the lives before the last one end.
    pub(crate) ends: Vec<PlannedEnd>,
    /// Whether nothing fails: then nothing may come again, be lost or be refused.
    pub(crate) is_quiet: bool,
}

/// One sender of lines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SourceDraw {
    /// Whether it asks for acknowledgements. One that does not loses what a crash takes.
    pub(crate) asks: bool,
    /// Most lines that wait for an acknowledgement.
    pub(crate) window: usize,
    /// For how long it collects lines before it sends them.
    pub(crate) burst_ns: u64,
    /// One line in this many is sent twice, as after a time-out of the sender; 0: none.
    pub(crate) twice_one_in: u64,
    /// Whether it wants what it has sent on flash at once, as a put over the node's socket does.
    pub(crate) hurries: bool,
}

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum End {
    /// The power fails.
    Cut,
    /// The process is killed: the device goes on, with its cache.
    Kill,
    /// The node is stopped, and everything taken becomes durable before.
    Stop {
        /// Whether the machine is started anew.
        reboots: bool,
    },
}

/// The end of one life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlannedEnd {
    pub(crate) end: End,
    /// Number of the reading that sets it off, once it is offered; `None`: the start does.
    pub(crate) at: Option<u64>,
    /// After how many writes of the device it comes then; 0: at once.
    pub(crate) writes: u64,
}

impl PlannedEnd {
    /// Whether the start sets it off.
    pub(crate) fn is_at_start(&self) -> bool {
        self.at.is_none()
    }
}

impl Draw {
    /// Draws what a run with this number of readings needs. The order of the draws is part of what a seed means.
    pub(crate) fn new(random: &mut Random, readings: u64) -> Self {
        let is_quiet = random.below(QUIET_ONE_IN) == 0;
        let mut options = database_options(random, readings);
        let latency = latencies(random);
        let mut sources = senders(random);
        let mut ends: Vec<PlannedEnd> = (0..random.below(ENDS_MAX + 1))
            .map(|_| planned_end(random, readings, is_quiet))
            .collect();
        options.commit_driver = match random.below(4) {
            0 => CommitDriver::Manual,
            _ => CommitDriver::Stepped,
        };
        for source in &mut sources {
            source.draw_repeats(random, is_quiet);
        }
        // Starts that are cut keep their place among the others.
        ends.sort_by_key(|planned| planned.at.unwrap_or(readings / 2));
        Self {
            options,
            latency,
            speed: SPEEDS[random.index(SPEEDS.len())],
            // The whole log, and room for checkpoints beside it.
            device_blocks: 4_096 + readings * READING_LOG_BYTES_MAX / 4_096,
            sources,
            upstreams: UpstreamDraw::some(random, is_quiet),
            validity_ms: 60_000,
            takes_any_time: false,
            alarms: AlarmDraw::default(),
            ends,
            is_quiet,
        }
    }
}

impl SourceDraw {
    /// Draws whether a source hurries, and what it sends twice. A source of a quiet run sends nothing twice.
    fn draw_repeats(&mut self, random: &mut Random, is_quiet: bool) {
        self.hurries = random.below(4) == 0;
        let twice_one_in = [0, 0, 200, 20][random.index(4)];
        if !is_quiet {
            self.twice_one_in = twice_one_in;
        }
    }
}

/// Draws the sizes and the interval of the database.
fn database_options(random: &mut Random, readings: u64) -> DbOptions {
    // A checkpoint of all objects has more than 100 KiB; the least intervals are below that.
    let sizes = [
        (12 << 10, 8 << 10, 2 << 10),
        (24 << 10, 40 << 10, 2 << 10),
        (96 << 10, 300 << 10, 16 << 10),
        (4 << 20, 2 << 20, 16 << 10),
    ];
    let (segment_bytes, checkpoint_bytes, piece_bytes) = sizes[random.index(sizes.len())];
    DbOptions {
        objects_max: OBJECTS_MAX,
        queue_bytes_max: [4 << 10, 64 << 10, 1 << 20][random.index(3)],
        commit_interval_ms: [5, 20, 100, 250][random.index(4)],
        append_bytes_max: [4 << 10, 20 << 10, 64 << 10][random.index(3)],
        segment_bytes_max: (readings * READING_LOG_BYTES_MAX / SEGMENTS_MAX).max(segment_bytes),
        checkpoint_bytes,
        checkpoint_piece_bytes_max: piece_bytes,
        ..DbOptions::default()
    }
}

/// Draws what the requests of the device take.
fn latencies(random: &mut Random) -> LatencyModel {
    let is_instant = random.below(4) == 0;
    let mut up_to = |us: u64| match is_instant {
        true => 0,
        false => random.below(us * 1_000),
    };
    LatencyModel {
        read_ns: up_to(300),
        read_block_ns: up_to(40),
        write_ns: up_to(500),
        write_block_ns: up_to(60),
        flush_ns: up_to(10_000),
    }
}

/// Draws the senders of lines. [`SourceDraw::draw_repeats`] draws the rest of each, after the ends of lives.
fn senders(random: &mut Random) -> Vec<SourceDraw> {
    let source = |random: &mut Random| SourceDraw {
        asks: random.below(4) != 0,
        window: [1, 16, 256, 2_000][random.index(4)],
        burst_ns: [0, 30_000_000, 400_000_000][random.index(3)],
        twice_one_in: 0,
        hurries: false,
    };
    let mut sources: Vec<SourceDraw> = (0..=random.below(3)).map(|_| source(random)).collect();
    // Otherwise nothing would be acknowledged.
    sources[0].asks = true;
    sources
}

fn planned_end(random: &mut Random, readings: u64, is_quiet: bool) -> PlannedEnd {
    let reboots = random.coin();
    let end = match random.below(8) {
        0 | 1 => End::Stop { reboots },
        2 | 3 => End::Kill,
        _ => End::Cut,
    };
    let end = match is_quiet {
        true => End::Stop { reboots },
        false => end,
    };
    let at = random.below(readings.max(1));
    let writes = [0, 1 + random.below(8), 1 + random.below(120)][random.index(3)];
    if matches!(end, End::Stop { .. }) || random.below(6) != 0 {
        return PlannedEnd {
            end,
            at: Some(at),
            writes,
        };
    }
    // A start writes little, or a checkpoint as well.
    let writes_max = [6, 60][random.index(2)];
    PlannedEnd {
        end,
        at: None,
        writes: 1 + random.below(writes_max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_and_every_kind_is_drawn() {
        let (mut cuts, mut kills, mut stops, mut starts, mut quiet) = (0, 0, 0, 0, 0);
        for seed in 0..200 {
            let draw = Draw::new(&mut Random::new(seed), 3_000);
            let again = Draw::new(&mut Random::new(seed), 3_000);
            assert_eq!((draw.options, &draw.ends), (again.options, &again.ends));
            assert_eq!(draw.options.check(), Ok(()));
            assert!(draw.sources[0].asks);
            for planned in &draw.ends {
                match planned.end {
                    End::Cut => cuts += 1,
                    End::Kill => kills += 1,
                    End::Stop { .. } => stops += 1,
                }
                starts += u64::from(planned.at.is_none());
                assert!(!draw.is_quiet || matches!(planned.end, End::Stop { .. }));
            }
            quiet += u64::from(draw.is_quiet);
        }
        for count in [cuts, kills, stops, starts, quiet] {
            assert!(count > 5, "{cuts} {kills} {stops} {starts} {quiet}");
        }
    }
}
