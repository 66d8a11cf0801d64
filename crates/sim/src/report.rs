//! What a run tells: its figures, its steps, and why it failed.

use std::collections::VecDeque;
use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::{Hash, Hasher};

use crate::draw::End;
use crate::invariant::Broken;

/// Steps that a failure shows.
const SHOWN_MAX: usize = 40;
const SECOND_NS: u64 = 1_000_000_000;

/// What a run has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) readings: u64,
    pub(crate) acknowledged: u64,
    /// Readings that the log has more than once, because their sender offered them again after a crash.
    pub(crate) again: u64,
    pub(crate) refused: u64,
    /// Readings that upstreams have received.
    pub(crate) forwarded: u64,
    /// Those of them that they had received before.
    pub(crate) forwarded_again: u64,
    pub(crate) cuts: u64,
    pub(crate) kills: u64,
    pub(crate) stops: u64,
    /// Starts because the log had failed.
    pub(crate) restarts: u64,
    /// Runs that have ended early: a store that damage has hit did not open, or took nothing any more.
    pub(crate) given_up: u64,
    /// Requests that failed, and faults that broke the contract of the device.
    pub(crate) faults: u64,
    /// Requests that stalled.
    pub(crate) stalls: u64,
    /// Acknowledged readings that damage has taken, and that are counted.
    pub(crate) lost: u64,
    /// Readings that retention, or a full store, has deleted, and that are counted.
    pub(crate) deleted: u64,
    /// Jumps of the wall clock.
    pub(crate) jumps: u64,
    /// Probes that the node has taken.
    pub(crate) probes: u64,
    /// Values that were compared with the judge's record, each with its age.
    pub(crate) values: u64,
    /// Changes of alarms that the node has told.
    pub(crate) alarms: u64,
    /// Devices as a cut, a kill, a stop or a moment in between left them, each read from its beginning.
    pub(crate) images: u64,
    /// Range reads on these devices.
    pub(crate) range_reads: u64,
    pub(crate) virtual_ns: u64,
    /// Hash of every step, and of the device at each end of a life.
    pub(crate) hash: u64,
}

impl Figures {
    /// Adds what another run has done.
    pub(crate) fn add(&mut self, other: &Self) {
        self.readings += other.readings;
        self.acknowledged += other.acknowledged;
        self.again += other.again;
        self.refused += other.refused;
        self.forwarded += other.forwarded;
        self.forwarded_again += other.forwarded_again;
        self.cuts += other.cuts;
        self.kills += other.kills;
        self.stops += other.stops;
        self.restarts += other.restarts;
        self.given_up += other.given_up;
        self.faults += other.faults;
        self.stalls += other.stalls;
        self.lost += other.lost;
        self.deleted += other.deleted;
        self.jumps += other.jumps;
        self.probes += other.probes;
        self.values += other.values;
        self.alarms += other.alarms;
        self.images += other.images;
        self.range_reads += other.range_reads;
        self.virtual_ns += other.virtual_ns;
        self.hash ^= other.hash;
    }
}

/// All but the virtual time, a line for each part.
impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            readings,
            acknowledged,
            again,
            refused,
            forwarded,
            forwarded_again,
            cuts,
            kills,
            stops,
            restarts,
            given_up,
            faults,
            stalls,
            lost,
            deleted,
            jumps,
            probes,
            values,
            alarms,
            images,
            range_reads,
            ..
        } = self;
        writeln!(
            f,
            "readings: {readings} offered, {acknowledged} acknowledged, {refused} refused, {again} came again"
        )?;
        writeln!(
            f,
            "upstreams: {forwarded} readings received, {forwarded_again} of them once more"
        )?;
        writeln!(
            f,
            "lives: {cuts} power cuts, {kills} kills, {stops} stops; {images} images read, {range_reads} range reads"
        )?;
        writeln!(
            f,
            "faults: {faults} of requests, {stalls} stalls, {restarts} restarts, {given_up} stores given up"
        )?;
        writeln!(
            f,
            "clock: {jumps} jumps, {probes} probes taken, {values} values compared, {alarms} alarms told"
        )?;
        writeln!(f, "counted: {lost} readings damaged, {deleted} deleted")
    }
}

/// A run in which an invariant was broken.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) broken: Broken,
    pub(crate) seed: u64,
    pub(crate) life: usize,
    /// The last steps.
    pub(crate) last: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, life {}: {}", self.seed, self.life, self.broken)?;
        writeln!(f, "the last steps, each with its time in s:")?;
        for step in &self.last {
            writeln!(f, "  {step}")?;
        }
        Ok(())
    }
}

/// A step, as it is shown and hashed.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) enum Step {
    Started {
        replayed_bytes: u64,
    },
    Offered {
        source: usize,
        next: u64,
    },
    Committed {
        readings: u64,
        durable_end: u64,
        checkpoint_unfinished: bool,
    },
    CommitFailed {
        durable_end: u64,
    },
    /// The store is full since this time.
    Full {
        since_ns: u64,
    },
    Announced {
        durable_end: u64,
    },
    Followed {
        end: u64,
    },
    Forwarded {
        upstream: usize,
        messages: u64,
    },
    Answered {
        upstream: usize,
        token: u64,
    },
    ConnectionLost {
        upstream: usize,
    },
    EndSetOff {
        end: End,
        writes: u64,
    },
    Ended {
        end: End,
        image_hash: u64,
    },
}

/// Every step: the last ones are kept, all are hashed.
pub(crate) struct Trail {
    steps: VecDeque<(u64, Step)>,
    hasher: DefaultHasher,
    prints: bool,
}

impl Trail {
    pub(crate) fn new(prints: bool) -> Self {
        Self {
            steps: VecDeque::new(),
            hasher: DefaultHasher::new(),
            prints,
        }
    }

    /// Adds a step.
    pub(crate) fn note(&mut self, at_ns: u64, step: Step) {
        (at_ns, step).hash(&mut self.hasher);
        if self.prints {
            println!("{}", shown(at_ns, &step));
        }
        if self.steps.len() == SHOWN_MAX {
            self.steps.pop_front();
        }
        self.steps.push_back((at_ns, step));
    }

    /// Returns the hash of all steps.
    pub(crate) fn hash(&self) -> u64 {
        self.hasher.finish()
    }

    /// Returns the last steps as text.
    pub(crate) fn last(&self) -> Vec<String> {
        let steps = self.steps.iter();
        steps.map(|(at_ns, step)| shown(*at_ns, step)).collect()
    }
}

fn shown(at_ns: u64, step: &Step) -> String {
    let (seconds, rest_ns) = (at_ns / SECOND_NS, at_ns % SECOND_NS);
    format!("{seconds}.{rest_ns:09} {step:?}")
}
