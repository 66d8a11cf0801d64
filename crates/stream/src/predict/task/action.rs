//! One learned action: each block that its runs have read, in order, and in which of the last runs.

use super::settings::TaskSettings;
use crate::block::{BlockAt, FileId};
use crate::predict::{Counters, Plan};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The number of runs in a block's history.
pub(super) const RUNS_KEPT: u32 = u32::BITS;

/// The minimum number of guesses of a run to judge whether guessing is worth it.
const GUESSES_JUDGED_MIN: usize = 8;

/// The minimum share of guesses that must have been read.
const GUESSES_RIGHT_MIN: f64 = 0.75;

/// The increase of the required share after a run of bad guesses, the decrease after one of good ones, and the maximum.
const GUESS_SHARE_UP: f64 = 0.05;
const GUESS_SHARE_DOWN: f64 = 0.05;
const GUESS_SHARE_MAX: f64 = 0.95;

/// A bound above the rounding error of sums of shares.
const ROUNDING: f64 = 1e-6;

/// A block that was read in at least one of the last runs of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) at: BlockAt,
    /// Bit i: read in the run i runs ago.
    pub(super) read: u32,
    /// Bit i: it is known whether it was read in the run i runs ago.
    pub(super) known: u32,
    /// It is part of the plan.
    pub(super) is_planned: bool,
}

/// A plan, and the set of its blocks.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) plan: Arc<Plan>,
    blocks: HashSet<BlockAt>,
}

impl Planned {
    fn of(blocks: &[BlockAt]) -> Self {
        Self {
            plan: Arc::new(Plan::of(blocks)),
            blocks: blocks.iter().copied().collect(),
        }
    }

    pub(super) fn has(&self, at: BlockAt) -> bool {
        self.blocks.contains(&at)
    }

    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }
}

/// One action of a task.
#[derive(Clone, Debug, Default)]
pub(super) struct Action {
    /// The entries, in the order in which they are read.
    pub(super) entries: Vec<Entry>,
    places: HashMap<BlockAt, usize>,
    /// Bit i: everything that was read in the run i runs ago is known.
    pub(super) exact: u32,
    /// The number of runs that something was learned from.
    pub(super) runs: u64,
    /// The number of starts with the current plan.
    pub(super) starts: u64,
    /// Some of it is from an older version of its files, so the next start must be an audit.
    pub(super) is_unconfirmed: bool,
    /// One of the runs was whole: it did not fail, and was not cut off.
    pub(super) is_whole: bool,
    /// The minimum likelihood of a guess; grows after wrong guesses. 0 means the value of the settings.
    guess_share: f64,
    planned: Option<Arc<Planned>>,
}

/// The observations of one run.
pub(super) struct Observed<'a> {
    /// The blocks that it has read, in order, each block once.
    pub(super) blocks: &'a [BlockAt],
    /// Whether `blocks` has everything that it has read.
    pub(super) is_exact: bool,
    /// A read has failed, or the run was cut off. What it did not reach is unknown, not unread.
    pub(super) is_incomplete: bool,
    /// Tells whether it may have read a block unseen, because the block was there before it was requested.
    pub(super) hidden: &'a dyn Fn(BlockAt) -> bool,
    /// Its plan was stopped because it did not follow the plan.
    pub(super) was_stopped: bool,
    /// It needed some blocks of its plan before they arrived.
    pub(super) is_ahead: bool,
    /// For each file of its plan, whether it has read from the file. `None` if unknown.
    pub(super) files: Option<HashMap<FileId, bool>>,
    /// The blocks that were sent to it on a guess.
    pub(super) guessed: &'a [BlockAt],
}

impl Action {
    /// Restores an action from a file. The plan is made of the marked entries.
    pub(super) fn restore(
        entries: Vec<Entry>,
        exact: u32,
        runs: u64,
        is_unconfirmed: bool,
        is_whole: bool,
    ) -> Self {
        let mut action = Self {
            entries,
            exact,
            runs,
            is_unconfirmed,
            is_whole,
            ..Self::default()
        };
        action.index();
        action.make_plan(&TaskSettings::default());
        // Starts are not saved. A plan that had its second start but no audit is due for one, even if the server
        // restarts before each start.
        action.starts = match exact.count_ones() {
            0 | 1 => u64::from(runs > 1),
            _ => 2,
        };
        action
    }

    pub(super) fn planned(&self) -> Option<&Arc<Planned>> {
        self.planned.as_ref()
    }

    pub(super) fn plan(&self) -> Option<&Arc<Plan>> {
        self.planned.as_ref().map(|planned| &planned.plan)
    }

    /// Returns the blocks that some of the last runs have read and that the plan does not have, in order. They are sent
    /// on a guess, when one of them is requested.
    pub(super) fn others(&self) -> impl Iterator<Item = BlockAt> + '_ {
        let others = self.entries.iter().filter(|entry| !entry.is_planned);
        others.map(|entry| entry.at)
    }

    /// Returns the entry of a block.
    pub(super) fn entry(&self, at: BlockAt) -> Option<&Entry> {
        self.places.get(&at).map(|place| &self.entries[*place])
    }

    /// Counts a start, and returns whether it is an audit.
    pub(super) fn start(&mut self, settings: &TaskSettings) -> bool {
        self.starts += 1;
        let is_due = match self.starts {
            _ if self.is_unconfirmed => true,
            1 => false,
            2 => true,
            later => settings.audit_every > 0 && (later - 2).is_multiple_of(settings.audit_every),
        };
        self.is_unconfirmed &= !is_due;
        is_due
    }

    /// Learns from a run. At most `room` blocks are added.
    pub(super) fn learn(
        &mut self,
        run: &Observed<'_>,
        settings: &TaskSettings,
        room: usize,
        counters: &mut Counters,
    ) {
        if run.blocks.is_empty() {
            return;
        }
        self.runs += 1;
        counters.runs_learned += 1;
        if run.is_incomplete {
            // It only adds blocks. As a run of the history it would push out runs that show what is not read.
            self.insert(run.blocks, room, counters);
            self.index();
            self.choose(settings);
            return;
        }
        self.is_whole = true;
        if !run.is_exact
            && run.files.is_none()
            && self.entries.iter().all(|entry| (run.hidden)(entry.at))
            && (run.blocks.iter()).all(|at| self.places.contains_key(at))
        {
            // The run shows nothing (everything was there already), so it must not push other runs out of the history.
            return;
        }
        let read: HashSet<BlockAt> = run.blocks.iter().copied().collect();
        self.judge_guesses(run, &read, settings);
        let is_off = run.was_stopped || (run.is_exact && self.is_unread(&read, settings));
        if run.is_exact && run.is_ahead {
            self.reorder(run.blocks);
        }
        self.note_run(run, &read);
        self.insert(run.blocks, room, counters);
        self.entries.retain(|entry| {
            // A block that is pushed in each run and shown by none has no evidence against it.
            let is_alive = entry.read != 0 || (entry.known == 0 && entry.is_planned);
            counters.blocks_dropped += u64::from(!is_alive);
            is_alive
        });
        self.index();
        self.choose(settings);
        if is_off {
            // More unread blocks were sent, or would have been, than is allowed. The very next start must be an audit
            // to show what else is not read, even after a restart of the server.
            self.starts = 1;
            self.is_unconfirmed = true;
        }
    }

    /// Adds a run to the history of each block. `read`: the blocks that it has read.
    fn note_run(&mut self, run: &Observed<'_>, read: &HashSet<BlockAt>) {
        let used = match &run.files {
            Some(_) => self.used_in_exact_runs(),
            None => HashMap::new(),
        };
        self.exact = self.exact << 1 | u32::from(run.is_exact);
        for entry in &mut self.entries {
            let is_used = run
                .files
                .as_ref()
                .and_then(|files| files.get(&entry.at.file));
            let shown = match is_used {
                Some(true) => entry.sample(used.get(&entry.at.file).copied(), self.runs),
                Some(false) => Some(false),
                None => None,
            };
            entry.read <<= 1;
            entry.known <<= 1;
            // For blocks that were pushed or already there, only an exact run counts. Reads of them are seen by chance
            // (when the program was faster than the push), and counting only those would make the block look needed.
            if run.is_exact || !(run.hidden)(entry.at) {
                entry.known |= 1;
                entry.read |= u32::from(read.contains(&entry.at));
            } else if let Some(is_read) = shown {
                entry.known |= 1;
                entry.read |= u32::from(is_read);
            }
        }
    }

    /// Returns for each file the exact runs that have read from it.
    fn used_in_exact_runs(&self) -> HashMap<FileId, u32> {
        let mut used: HashMap<FileId, u32> = HashMap::new();
        for entry in &self.entries {
            *used.entry(entry.at.file).or_default() |= entry.read & self.exact;
        }
        used
    }

    /// Puts the read entries into the order of this run. An unread one stays after the entry that it followed.
    fn reorder(&mut self, blocks: &[BlockAt]) {
        let order: HashMap<BlockAt, usize> = blocks
            .iter()
            .enumerate()
            .map(|(place, at)| (*at, place + 1))
            .collect();
        let mut last = 0;
        let mut keyed: Vec<(usize, Entry)> = Vec::with_capacity(self.entries.len());
        for entry in self.entries.drain(..) {
            last = order.get(&entry.at).copied().unwrap_or(last);
            keyed.push((last, entry));
        }
        // The sort is stable: entries that follow the same block keep their order.
        keyed.sort_by_key(|(place, entry)| (*place, !order.contains_key(&entry.at)));
        self.entries = keyed.into_iter().map(|(_, entry)| entry).collect();
        self.index();
    }

    /// Returns whether more of the plan than is allowed was not read.
    fn is_unread(&self, read: &HashSet<BlockAt>, settings: &TaskSettings) -> bool {
        self.planned.as_ref().is_some_and(|planned| {
            let unread = planned.blocks.iter().filter(|at| !read.contains(at));
            unread.count() as f64 > planned.len() as f64 * settings.unread_share_max
        })
    }

    /// Raises the required share if guessed blocks were not read, and lowers it if they were.
    fn judge_guesses(
        &mut self,
        run: &Observed<'_>,
        read: &HashSet<BlockAt>,
        settings: &TaskSettings,
    ) {
        if !run.is_exact || run.guessed.len() < GUESSES_JUDGED_MIN {
            return;
        }
        let right = run.guessed.iter().filter(|at| read.contains(at)).count();
        let is_bad = (right as f64) < run.guessed.len() as f64 * GUESSES_RIGHT_MIN;
        let step = if is_bad {
            GUESS_SHARE_UP
        } else {
            -GUESS_SHARE_DOWN
        };
        self.guess_share =
            (self.guess_share(settings) + step).clamp(settings.guess_share_min, GUESS_SHARE_MAX);
    }

    fn guess_share(&self, settings: &TaskSettings) -> f64 {
        self.guess_share.max(settings.guess_share_min)
    }

    /// Inserts each new block after the block that was read before it.
    fn insert(&mut self, blocks: &[BlockAt], room: usize, counters: &mut Counters) {
        let mut behind: Vec<Vec<Entry>> = vec![Vec::new(); self.entries.len() + 1];
        let (mut place, mut added) = (0, 0);
        for at in blocks {
            if let Some(known) = self.places.get(at) {
                place = known + 1;
            } else if added < room {
                added += 1;
                behind[place].push(Entry {
                    at: *at,
                    read: 1,
                    // The exact runs before this one have not read it.
                    known: self.exact | 1,
                    is_planned: false,
                });
            } else {
                counters.blocks_refused += 1;
            }
        }
        if added == 0 {
            return;
        }
        let mut behind = behind.into_iter();
        let mut entries = behind.next().unwrap_or_default();
        entries.reserve(self.entries.len() + added);
        for (entry, new) in self.entries.drain(..).zip(behind) {
            entries.push(entry);
            entries.extend(new);
        }
        self.entries = entries;
    }

    fn index(&mut self) {
        self.places = self
            .entries
            .iter()
            .enumerate()
            .map(|(place, entry)| (entry.at, place))
            .collect();
    }

    /// Decides what is pushed. Takes the sufficiently frequent blocks, the most frequent first, until the expected
    /// share of unread blocks reaches its limit.
    fn choose(&mut self, settings: &TaskSettings) {
        let mut files: HashMap<FileId, (u32, u32)> = HashMap::new();
        for entry in &self.entries {
            let (read, known) = files.entry(entry.at.file).or_default();
            *read |= entry.read;
            *known |= entry.known;
        }
        let is_of_part = |entry: &Entry| {
            let (read, known) = files.get(&entry.at.file).copied().unwrap_or_default();
            known & !read != 0
        };
        let mut shares: Vec<(Share, usize)> = self
            .entries
            .iter()
            .enumerate()
            .filter_map(|(place, entry)| Some((entry.share(is_of_part(entry), settings)?, place)))
            .collect();
        shares.sort_by(|a, b| b.0.of_runs.total_cmp(&a.0.of_runs).then(a.1.cmp(&b.1)));
        let mut planned = vec![false; self.entries.len()];
        let (mut unread, mut count) = (0.0, 0);
        for (share, place) in shares.iter().filter(|(share, _)| share.is_enough) {
            unread += 1.0 - share.of_runs;
            // A sum of exactly the limit must not exceed it because of rounding.
            if unread > settings.unread_share_max * f64::from(count + 1) + ROUNDING {
                break;
            }
            count += 1;
            planned[*place] = true;
        }
        let chance_max = settings.chance_share_max * f64::from(count);
        let mut chance = 0.0;
        for (share, place) in shares {
            if planned[place] {
                continue;
            }
            chance += 1.0 - share.of_runs;
            if chance > chance_max {
                break;
            }
            planned[place] = true;
        }
        for (entry, is_planned) in self.entries.iter_mut().zip(planned) {
            entry.is_planned = is_planned;
        }
        self.make_plan(settings);
    }

    fn make_plan(&mut self, settings: &TaskSettings) {
        let planned = self.entries.iter().filter(|entry| entry.is_planned);
        let blocks: Vec<BlockAt> = planned.map(|entry| entry.at).collect();
        let is_same = match self.plan() {
            Some(plan) => plan.blocks().eq(blocks.iter().copied()),
            None => blocks.is_empty(),
        };
        if !is_same {
            let new = match &self.planned {
                Some(planned) => blocks.iter().filter(|at| !planned.has(**at)).count(),
                None => blocks.len(),
            };
            self.planned = (!blocks.is_empty()).then(|| Arc::new(Planned::of(&blocks)));
            // Another order, or a few chance blocks more or less, does not reset the starts. Otherwise a plan that
            // changes a little each time would never be audited.
            if new as f64 > blocks.len() as f64 * settings.unread_share_max {
                self.starts = 0;
            }
        }
    }

    /// Returns the blocks that are likely to be read after a block that the plan does not have, in order.
    pub(super) fn guess(
        &self,
        at: BlockAt,
        settings: &TaskSettings,
        is_wanted: impl Fn(&Entry) -> bool,
    ) -> Vec<BlockAt> {
        let Some(place) = self.places.get(&at) else {
            return Vec::new();
        };
        let asked = self.entries[*place];
        let share_min = self.guess_share(settings);
        let rest = self.entries[place + 1..].iter();
        rest.take(settings.guess_reach)
            .filter(|entry| entry.follows(&asked, share_min) && is_wanted(entry))
            .take(settings.guess_blocks)
            .map(|entry| entry.at)
            .collect()
    }
}

/// How often a block is read.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// The share of the runs that show it, 0 to 1.
    of_runs: f64,
    /// Whether the share is enough for a push.
    is_enough: bool,
}

impl Entry {
    /// Returns how often it is read; `None` if it is not read any more. `is_of_part`: some runs have not read from its
    /// file at all.
    fn share(&self, is_of_part: bool, settings: &TaskSettings) -> Option<Share> {
        if self.known == 0 {
            return self.is_planned.then_some(Share {
                of_runs: 1.0,
                is_enough: true,
            });
        }
        // A block that was once not read is likely not to be read again: that counts twice.
        let is_sure = self.known == self.read;
        let runs = self.known.count_ones() + u32::from(!is_sure);
        let share = f64::from(self.read.count_ones()) / f64::from(runs);
        // The number of consecutive latest runs that show it and have read it, or have not read it.
        let (mut left, mut streak, mut was_read) = (self.known, 0, None);
        while left != 0 {
            let latest = left & left.wrapping_neg();
            let is_read = self.read & latest != 0;
            if *was_read.get_or_insert(is_read) != is_read {
                break;
            }
            streak += 1;
            left ^= latest;
        }
        let is_streak = streak >= settings.drop_runs;
        let was_read = was_read == Some(true);
        if is_streak && !was_read {
            return None;
        }
        // New behaviour is accepted as quickly as the end of old behaviour. A block that was also read now and then
        // before is no new behaviour, unless the streak is twice as long.
        let is_new = self.read.count_ones() == streak || streak >= settings.drop_runs * 2;
        let share = if is_streak && is_new {
            share.max(1.0 - settings.unread_share_max)
        } else {
            share
        };
        let min = match self.is_planned {
            true if is_of_part => settings.share_stay_of_part_min,
            true => settings.share_stay_min,
            false => settings.share_min,
        };
        Some(Share {
            of_runs: share,
            is_enough: share >= min,
        })
    }

    /// Returns whether a run that used its file is assumed to have read it, taking turns through the exact runs that
    /// used the file. Without an assumption for such runs, only those without the file would count.
    fn sample(&self, used: Option<u32>, turn: u64) -> Option<bool> {
        // What a program reads after a change of behaviour says nothing about the runs before.
        let since_first_read = u32::MAX.checked_shr(self.read.leading_zeros()).unwrap_or(0);
        let all = used? & self.known & since_first_read;
        // The first read made the block known, so that run says less than the others.
        let others = all & since_first_read >> 1;
        let mut runs = if others == 0 { all } else { others };
        let skipped = turn % u64::from(runs.count_ones().max(1));
        for _ in 0..skipped {
            runs &= runs - 1;
        }
        (runs != 0).then(|| self.read & runs & runs.wrapping_neg() != 0)
    }

    /// Returns whether it is likely to be read when the other one is.
    fn follows(&self, other: &Self, share_min: f64) -> bool {
        let runs = (other.read & self.known).count_ones();
        let both = (other.read & self.read).count_ones();
        // Laplace's rule: a single run is some evidence, but not proof.
        f64::from(both + 1) / f64::from(runs + 2) >= share_min && both > 0
    }
}
