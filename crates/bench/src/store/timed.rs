//! The timed cases: each repetition does one operation on each system, in a new random order. A disturbance of the
//! machine then affects all of them equally, and so does the work that one system leaves behind for the next one. In a
//! rotating order each system would nearly always follow the same one.

use std::time::Instant;

use base::sim::Random;

use super::counts::DeviceCounts;
use crate::report::Samples;
use crate::scratch::check_interrupted;

/// Size of an append, of a read, of an overwrite and of a cut, in bytes.
pub(crate) const OPERATION_BYTES: usize = 4096;

/// Size of a small record, in bytes.
pub(crate) const RECORD_BYTES: usize = 100;

/// Size of the file that random reads use, in bytes.
pub(crate) const READ_FILE_BYTES: u64 = 16 << 20;

/// Size of the file that random overwrites use, in bytes.
pub(crate) const OVERWRITE_FILE_BYTES: u64 = READ_FILE_BYTES;

/// One kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    /// Append 4,096 bytes, durable on return.
    Append,
    /// Append a record of 100 bytes, durable on return.
    Record,
    /// Read 4,096 bytes at a random multiple of 4,096, from the device.
    Read,
    /// Overwrite 4,096 bytes at a random multiple of 4,096, durable on return.
    Overwrite,
    /// Cut 4,096 bytes off the end of a file, durable on return.
    Truncate,
    /// Create an empty file under a new name, durable on return.
    Create,
    /// Give a file a new name, durable on return.
    Rename,
    /// Delete a file of 4,096 bytes, durable on return.
    Delete,
    /// An SQLite transaction of one row of 100 bytes, with a write-ahead log, durable on return.
    CommitWal,
    /// As `CommitWal`, with a rollback journal.
    CommitRollback,
}

impl Case {
    /// All cases in the order of a round: the created files are those renamed and deleted.
    pub(crate) const ALL: [Self; 10] = [
        Self::Append,
        Self::Record,
        Self::Read,
        Self::Overwrite,
        Self::Truncate,
        Self::Create,
        Self::Rename,
        Self::Delete,
        Self::CommitWal,
        Self::CommitRollback,
    ];

    /// Whether this is one of the file store's own operations, rather than one of a database in it.
    pub(crate) fn is_of_store(self) -> bool {
        !matches!(self, Self::CommitWal | Self::CommitRollback)
    }

    /// Returns the name in reports: on a file, or on a loop device.
    pub(crate) fn name(self, place: Place) -> &'static str {
        let (file, on_loop) = match self {
            Self::Append => ("append-4096-sync", "append-4096-sync-loop"),
            Self::Record => ("record-100-sync", "record-100-sync-loop"),
            Self::Read => ("read-4096-random", "read-4096-random-loop"),
            Self::Overwrite => ("overwrite-4096-sync", "overwrite-4096-sync-loop"),
            Self::Truncate => ("truncate-4096-sync", "truncate-4096-sync-loop"),
            Self::Create => ("create-sync", "create-sync-loop"),
            Self::Rename => ("rename-sync", "rename-sync-loop"),
            Self::Delete => ("delete-sync", "delete-sync-loop"),
            Self::CommitWal => ("sqlite-commit-wal", "sqlite-commit-wal-loop"),
            Self::CommitRollback => ("sqlite-commit-rollback", "sqlite-commit-rollback-loop"),
        };
        match place {
            Place::File => file,
            Place::Loop => on_loop,
        }
    }

    /// Cases that make a file longer. For a good system only their tail latencies are of interest, so they are repeated
    /// more often.
    pub(crate) const APPENDS: [Self; 3] = [Self::Append, Self::Record, Self::CommitWal];

    /// Returns the number of repetitions in a round.
    fn steps(self, round_steps: u32) -> u32 {
        if Self::APPENDS.contains(&self) {
            round_steps * 5
        } else {
            round_steps
        }
    }
}

/// The medium of the systems of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Files in one folder; our store and the floor bypass the page cache.
    File,
    /// A loop device for each system, all of one kind.
    Loop,
}

/// One operation to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) case: Case,
    pub(crate) round: u32,
    /// Index within the round, from 0.
    pub(crate) index: u32,
    /// Where a read or overwrite starts; a multiple of [`OPERATION_BYTES`] within [`READ_FILE_BYTES`].
    pub(crate) offset: u64,
}

impl Step {
    /// Returns the first step of a round, which defines the names that the round uses.
    pub(crate) fn first(case: Case, round: u32) -> Self {
        Self {
            case,
            round,
            index: 0,
            offset: 0,
        }
    }

    /// Returns the file name that a create makes and a rename renames.
    pub(crate) fn file_name(&self) -> String {
        format!("file-{}-{}", self.round, self.index)
    }

    /// Returns the name after the rename, under which the file is deleted.
    pub(crate) fn renamed_name(&self) -> String {
        format!("renamed-{}-{}", self.round, self.index)
    }

    /// Returns the name of the file that a round appends to or cuts.
    pub(crate) fn round_name(&self) -> String {
        format!("{:?}-{}", self.case, self.round).to_lowercase()
    }
}

/// A system under measurement. Only the operation itself is timed, without the work around it.
pub(crate) trait System {
    /// Returns the name in reports.
    fn name(&self) -> &str;

    /// Whether it takes part in `case`.
    fn takes(&self, case: Case) -> bool {
        case.is_of_store()
    }

    /// Prepares the steps of `case` in `round`, of which there are `count`.
    fn begin(&mut self, case: Case, round: u32, count: u32) -> Result<(), String>;

    /// Does one step. Returns the nanoseconds of the operation alone.
    fn step(&mut self, step: &Step) -> Result<u64, String>;

    /// Removes the files of a round.
    fn end(&mut self, case: Case, round: u32) -> Result<(), String>;

    /// Returns the device's counters, or `None` if they are unknown.
    fn counts(&self) -> Option<DeviceCounts>;

    /// Returns the source of the counters for the report: `exact` our own, `own disk` the kernel's of a disk that only
    /// this system uses, `whole disk` the kernel's of a disk that everything uses; `None` if there are none.
    fn counts_source(&self) -> Option<&'static str>;
}

/// Runs `operation`. Returns its result and its time in nanoseconds.
pub(crate) fn timed<T>(operation: impl FnOnce() -> T) -> (T, u64) {
    let start = Instant::now();
    let result = operation();
    let elapsed = start.elapsed();
    (
        result,
        u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX),
    )
}

/// Writes the content of every file that is read here: each eight bytes hold their own position, so a wrong block is
/// detected.
pub(crate) fn fill_pattern(offset: u64, bytes: &mut [u8]) {
    for (index, word) in bytes.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(offset / 8 + index as u64).to_le_bytes());
    }
}

/// Writes the content of an overwrite: each word differs from those of all earlier steps at that place, because a store
/// may skip unchanged content.
pub(crate) fn fill_changed(offset: u64, step: &Step, bytes: &mut [u8]) {
    fill_pattern(offset, bytes);
    // Placed above the bits of a position.
    let stamp = (u64::from(step.round) << 20 | u64::from(step.index + 1)) << 32;
    for word in bytes.chunks_exact_mut(8) {
        let changed = u64::from_le_bytes(std::array::from_fn(|place| word[place])) ^ stamp;
        word.copy_from_slice(&changed.to_le_bytes());
    }
}

/// Returns an error if `bytes` are not those of [`fill_pattern`].
pub(crate) fn check_pattern(offset: u64, bytes: &[u8]) -> Result<(), String> {
    for (index, word) in bytes.chunks_exact(8).enumerate() {
        if word != (offset / 8 + index as u64).to_le_bytes() {
            return Err(format!(
                "read at {offset}: wrong content at byte {}",
                index * 8
            ));
        }
    }
    Ok(())
}

/// Measures `cases` on `systems`, in `rounds` rounds. Returns the samples of each case and system.
///
/// # Errors
/// One line that names system, case and reason.
pub(crate) fn measure(
    systems: &mut [Box<dyn System>],
    cases: &[Case],
    place: Place,
    rounds: u32,
    round_steps: u32,
    show: &mut dyn FnMut(&str),
) -> Result<Vec<Samples>, String> {
    let mut samples = Vec::new();
    for case in cases.iter().copied() {
        for system in systems.iter().filter(|system| system.takes(case)) {
            samples.push(Samples::new(
                case.name(place),
                system.name(),
                system.counts_source(),
                rounds,
                case.steps(round_steps),
            ));
        }
    }
    let mut random = Random::new(1);
    for round in 0..rounds {
        let mut rest = &mut samples[..];
        for case in cases.iter().copied() {
            show(&format!(
                "round {} of {rounds}: {}",
                round + 1,
                case.name(place)
            ));
            let mut taking: Vec<_> = systems
                .iter_mut()
                .filter(|system| system.takes(case))
                .collect();
            let (of_case, others) = rest.split_at_mut(taking.len());
            let steps = case.steps(round_steps);
            run_round(&mut taking, of_case, case, round, steps, &mut random)?;
            rest = others;
        }
    }
    Ok(samples)
}

/// Runs one case of one round: the same steps on every system.
fn run_round(
    systems: &mut [&mut Box<dyn System>],
    samples: &mut [Samples],
    case: Case,
    round: u32,
    steps: u32,
    random: &mut Random,
) -> Result<(), String> {
    let described = |system: &dyn System, error| format!("{}, {:?}: {error}", system.name(), case);
    for system in systems.iter_mut() {
        let done = system.begin(case, round, steps);
        done.map_err(|error| described(system.as_ref(), error))?;
    }
    let mut order: Vec<usize> = (0..systems.len()).collect();
    for index in 0..steps {
        check_interrupted()?;
        let offset =
            random.below(READ_FILE_BYTES / OPERATION_BYTES as u64) * OPERATION_BYTES as u64;
        let step = Step {
            case,
            round,
            index,
            offset,
        };
        random.shuffle(&mut order);
        for position in order.iter().copied() {
            let system = &mut systems[position];
            let before = system.counts();
            let done = system.step(&step);
            let elapsed_ns = done.map_err(|error| described(system.as_ref(), error))?;
            samples[position].record(elapsed_ns, before, system.counts());
        }
    }
    for system in systems.iter_mut() {
        let done = system.end(case, round);
        done.map_err(|error| described(system.as_ref(), error))?;
    }
    Ok(())
}
