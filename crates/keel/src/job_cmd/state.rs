//! The state of a job's ranks, from their lines and the ends of their processes, and the cause of a failure. It has no
//! clock and no processes of its own: the caller passes both.

use cluster::jobs::energy::BoardEnergy;
use cluster::jobs::lines::{Line, Report};
use cluster::results::Known;
use std::time::{Duration, Instant};

/// Time after the first sign of a failure for further signs of the failed rank.
pub(super) const SETTLE: Duration = Duration::from_millis(700);

/// The same with a launcher, which reports events with a delay.
pub(super) const SETTLE_LAUNCHER: Duration = Duration::from_secs(5);

/// The same if a board is cut off: all of its ranks are silent within a beat or two. Counts from when the other ranks
/// speak: when all ranks were silent, and the first of them speaks again, the others are about to.
const SETTLE_CUT_OFF: Duration = Duration::from_secs(1);

/// The state of one rank.
#[derive(Clone, Debug)]
struct Rank {
    /// When its last line arrived.
    heard: Option<Instant>,
    /// Its board's name, kernel start and cores.
    board: Option<(String, String, usize)>,
    done: f64,
    has_ended: bool,
    /// The rank that it blames, and why.
    failed: Option<(Option<usize>, String)>,
}

/// The state of the ranks.
#[derive(Debug)]
pub(super) struct State {
    ranks: Vec<Rank>,
    begun: Instant,
    /// The report of the job, once it has arrived.
    pub(super) report: Option<Report>,
    pub(super) energy: Vec<(String, Known<BoardEnergy>)>,
    /// Lines of the answer's table received from rank 0.
    pub(super) table_rows: usize,
    /// The number of these lines, once all of them and the report have come, and the check has not.
    pub(super) whole: Option<usize>,
    /// The common name of two boards: their ranks cannot be told apart.
    pub(super) twin: Option<String>,
    is_checking: bool,
}

/// Why a job failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// These ranks are lost; `how` tells how the first was lost.
    Lost {
        /// The lost ranks.
        ranks: Vec<usize>,
        /// The evidence.
        how: String,
    },
    /// All ranks are present, but the job is impossible.
    Job(String),
    /// No rank has started on any board: nothing tells one from another.
    Unheard(String),
    /// The cause is unknown.
    Unknown(String),
}

/// Since when a condition holds.
#[derive(Default)]
struct Since(Option<Instant>);

impl Since {
    /// Returns for how long it has held without a break; `None` if it does not hold now.
    fn lasts(&mut self, holds: bool, now: Instant) -> Option<Duration> {
        let since = self.0.unwrap_or(now);
        self.0 = holds.then_some(since);
        holds.then(|| now.saturating_duration_since(since))
    }
}

/// Decides when a failure has lasted long enough to be judged. Both conditions end when a rank that was silent for long
/// speaks again.
#[derive(Default)]
pub(super) struct Settled {
    failing: Since,
    cut_off: Since,
}

impl Settled {
    /// Returns whether the signs are complete. `settle` is the time for signs of a failure other than a cut-off.
    pub(super) fn is_complete(
        &mut self,
        is_failing: bool,
        is_cut_off: bool,
        settle: Duration,
        now: Instant,
    ) -> bool {
        // A cut-off has a clock of its own: ranks that are silent after a silence of all may be about to speak, too.
        let failing = self.failing.lasts(is_failing && !is_cut_off, now);
        let cut_off = self.cut_off.lasts(is_cut_off, now);
        failing.is_some_and(|time| time > settle)
            || cut_off.is_some_and(|time| time > SETTLE_CUT_OFF)
    }
}

impl State {
    /// Creates the state of this number of ranks that start now.
    pub(super) fn new(ranks: usize, now: Instant) -> Self {
        let rank = Rank {
            heard: None,
            board: None,
            done: 0.0,
            has_ended: false,
            failed: None,
        };
        Self {
            ranks: vec![rank; ranks],
            begun: now,
            report: None,
            energy: Vec::new(),
            table_rows: 0,
            whole: None,
            twin: None,
            is_checking: false,
        }
    }

    /// Processes a rank's line. Ignores lines of ranks that do not exist.
    pub(super) fn hear(&mut self, line: Line, now: Instant) {
        let who = match &line {
            Line::Begin { rank, .. }
            | Line::Beat { rank, .. }
            | Line::Energy { rank, .. }
            | Line::Done { rank, .. }
            | Line::Failed { rank, .. } => *rank,
            // Only rank 0 sends these.
            Line::Report { .. } | Line::Row { .. } | Line::Taken { .. } | Line::Whole { .. } => 0,
        };
        let count = self.ranks.len();
        let Some(rank) = self.ranks.get_mut(who) else {
            return;
        };
        rank.heard = Some(now);
        match line {
            Line::Row { .. } | Line::Taken { .. } => {}
            Line::Begin {
                host, boot, cores, ..
            } => self.begin(who, host, boot, cores),
            Line::Beat { done, checks, .. } => {
                rank.done = done.clamp(0.0, 1.0);
                self.is_checking |= checks;
            }
            Line::Energy { host, board, .. } => {
                if !self.energy.iter().any(|(known, _)| *known == host) {
                    self.energy.push((host, board));
                }
            }
            Line::Report { report } => self.report = Some(*report),
            Line::Whole { rows } => self.whole = Some(rows),
            Line::Done { rows, .. } => {
                rank.has_ended = true;
                rank.done = 1.0;
                self.table_rows = self.table_rows.max(rows);
            }
            Line::Failed { blames, why, .. } => {
                rank.failed = Some((blames.filter(|blamed| *blamed < count), why));
            }
        }
    }

    /// Records the start of a rank. Boards are distinguished by their names.
    fn begin(&mut self, who: usize, host: String, boot: String, cores: usize) {
        let others = self.ranks.iter().enumerate().filter(|(at, _)| *at != who);
        let is_twin = others.map(|(_, other)| other).any(|other| {
            let board = other.board.as_ref();
            // If a kernel does not tell its start, nothing is known.
            let is_known = |start: &String| !start.is_empty() && !boot.is_empty();
            board.is_some_and(|(name, start, _)| *name == host && is_known(start) && *start != boot)
        });
        if is_twin {
            self.twin = Some(host.clone());
        }
        self.ranks[who].board = Some((host, boot, cores));
    }

    /// Returns whether each rank has a core of its own.
    pub(super) fn has_core_each(&self) -> bool {
        self.ranks.iter().all(|rank| {
            rank.board.as_ref().is_some_and(|(host, boot, cores)| {
                let is_here = |other: &&Rank| {
                    other.board.as_ref().is_some_and(|(name, start, _)| {
                        if boot.is_empty() {
                            name == host
                        } else {
                            start == boot
                        }
                    })
                };
                self.ranks.iter().filter(is_here).count() <= *cores
            })
        })
    }

    /// Returns whether a rank has reported how it ends.
    pub(super) fn has_word(&self, at: usize) -> bool {
        self.ranks
            .get(at)
            .is_some_and(|rank| rank.failed.is_some() || rank.has_ended)
    }

    /// Returns whether none of these ranks has ever said anything.
    pub(super) fn is_unheard(&self, ranks: &[usize]) -> bool {
        let mut ranks = ranks.iter().filter_map(|&at| self.ranks.get(at));
        ranks.all(|rank| rank.heard.is_none())
    }

    /// Returns whether all ranks are done.
    pub(super) fn is_done(&self) -> bool {
        self.report.is_some() && self.ranks.iter().all(|rank| rank.has_ended)
    }

    /// Returns the progress as text for people.
    pub(super) fn progress(&self) -> String {
        if self.is_checking {
            let done = self.ranks.first().map_or(0.0, |rank| rank.done);
            return format!("checking on one rank {:.0} %", done * 100.0);
        }
        let there = self
            .ranks
            .iter()
            .filter(|rank| rank.heard.is_some())
            .count();
        if there < self.ranks.len() {
            return format!("{there} of {} ranks are there", self.ranks.len());
        }
        format!("{:.0} %", self.done() * 100.0)
    }

    /// Returns the mean progress of the ranks.
    pub(super) fn done(&self) -> f64 {
        self.ranks.iter().map(|rank| rank.done).sum::<f64>() / self.ranks.len().max(1) as f64
    }

    /// Returns the ranks that have been silent for `silence_max` and have not ended.
    fn silent(&self, silence_max: Duration, now: Instant) -> Vec<usize> {
        let is_silent = |rank: &Rank| {
            let since = rank.heard.unwrap_or(self.begun);
            !rank.has_ended
                && rank.failed.is_none()
                && now.saturating_duration_since(since) > silence_max
        };
        let ranks = self.ranks.iter().enumerate();
        ranks
            .filter(|(_, rank)| is_silent(rank))
            .map(|(at, _)| at)
            .collect()
    }

    /// Returns whether a board is cut off: some ranks are silent, others speak, and none complains. The launcher can
    /// add nothing to that, and cannot end what it does not reach.
    pub(super) fn is_cut_off(&self, silence_max: Duration, now: Instant) -> bool {
        let silent = self.silent(silence_max, now).len();
        // A rank that has ended is not silent, and does not speak.
        let running = self.ranks.iter().filter(|rank| !rank.has_ended).count();
        (1..running).contains(&silent) && self.ranks.iter().all(|rank| rank.failed.is_none())
    }

    /// Returns whether something has gone wrong; the cause may become clear a little later.
    pub(super) fn is_failing(&self, silence_max: Duration, now: Instant) -> bool {
        self.ranks.iter().any(|rank| rank.failed.is_some())
            || !self.silent(silence_max, now).is_empty()
    }

    /// Determines the cause of a failure. `died`: ranks whose processes ended abnormally, and how, if processes are
    /// known by rank; `named`: the ranks that a launcher names, with its text.
    pub(super) fn judge(
        &self,
        died: &[(usize, String)],
        named: Option<(Vec<usize>, String)>,
        silence_max: Duration,
        now: Instant,
    ) -> Failed {
        // A rank that reports that it cannot continue is present, so the job itself fails.
        let own = self
            .ranks
            .iter()
            .enumerate()
            .find_map(|(at, rank)| match &rank.failed {
                Some((Some(blames), why)) if *blames == at => Some(why.clone()),
                _ => None,
            });
        if let Some(why) = own {
            return Failed::Job(why);
        }
        // A rank that ended without a report was killed.
        let mut killed = died.iter().filter(|(rank, _)| !self.has_word(*rank));
        if let Some((rank, how)) = killed.next() {
            let ranks = std::iter::once(*rank).chain(killed.map(|(rank, _)| *rank));
            return Failed::Lost {
                ranks: ranks.collect(),
                how: how.clone(),
            };
        }
        if let Some((ranks, how)) = named {
            return Failed::Lost { ranks, how };
        }
        let silent = self.silent(silence_max, now);
        if !silent.is_empty() && silent.len() < self.ranks.len() {
            let how = format!("has said nothing for {} s", silence_max.as_secs());
            return Failed::Lost { ranks: silent, how };
        }
        let blamed = self.ranks.iter().find_map(|rank| match &rank.failed {
            Some((Some(blames), why)) => Some((*blames, why.clone())),
            _ => None,
        });
        if let Some((rank, how)) = blamed {
            return Failed::Lost {
                ranks: vec![rank],
                how,
            };
        }
        if !silent.is_empty() {
            return self.all_silent(silence_max);
        }
        let why = self
            .ranks
            .iter()
            .find_map(|rank| rank.failed.as_ref().map(|(_, why)| why.clone()));
        Failed::Unknown(why.unwrap_or_else(|| "the ranks have ended without a result".to_owned()))
    }

    /// Determines the cause if all ranks are silent: those that have never started.
    fn all_silent(&self, silence_max: Duration) -> Failed {
        let seconds = silence_max.as_secs();
        let ranks = self.ranks.iter().enumerate();
        let unheard: Vec<usize> = ranks
            .filter(|(_, rank)| rank.heard.is_none())
            .map(|(at, _)| at)
            .collect();
        if unheard.len() == self.ranks.len() {
            return Failed::Unheard(format!("no rank has started within {seconds} s"));
        }
        if unheard.is_empty() {
            return Failed::Unknown(format!("no rank has said anything for {seconds} s"));
        }
        Failed::Lost {
            ranks: unheard,
            how: format!("no rank has started there within {seconds} s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: Duration = Duration::from_secs(10);

    fn beat(rank: usize, done: f64) -> Line {
        Line::Beat {
            rank,
            done,
            checks: false,
        }
    }

    fn failed(rank: usize, blames: Option<usize>, why: &str) -> Line {
        Line::Failed {
            rank,
            blames,
            why: why.to_owned(),
        }
    }

    fn lost(ranks: &[usize], how: &str) -> Failed {
        Failed::Lost {
            ranks: ranks.to_vec(),
            how: how.to_owned(),
        }
    }

    #[test]
    fn a_rank_that_ends_silently_is_to_blame_against_the_reports_of_others() {
        let now = Instant::now();
        let mut state = State::new(3, now);
        state.hear(
            failed(0, Some(2), "has ended in the middle of the job"),
            now,
        );
        state.hear(
            failed(1, Some(0), "has ended in the middle of the job"),
            now,
        );
        assert!(state.is_failing(SILENCE, now));
        let died = [
            (0, "exit status: 1"),
            (2, "signal: 9"),
            (1, "exit status: 1"),
        ];
        let died = died.map(|(rank, how)| (rank, how.to_owned()));
        assert_eq!(
            state.judge(&died, None, SILENCE, now),
            lost(&[2], "signal: 9")
        );
        // Without processes to examine, the report of the other ranks decides.
        assert_eq!(
            state.judge(&[], None, SILENCE, now),
            lost(&[2], "has ended in the middle of the job")
        );
        let named = Some((vec![1], "PID 7 RUNNING AT b2".to_owned()));
        assert_eq!(
            state.judge(&[], named, SILENCE, now),
            lost(&[1], "PID 7 RUNNING AT b2")
        );
    }

    #[test]
    fn a_rank_that_is_silent_while_others_speak_is_lost() {
        let begun = Instant::now();
        let mut state = State::new(3, begun);
        let later = begun + SILENCE + Duration::from_secs(1);
        for rank in 0..3 {
            state.hear(beat(rank, 0.5), begun);
        }
        assert!(!state.is_failing(SILENCE, begun + SILENCE));
        state.hear(beat(0, 0.6), later);
        state.hear(Line::Done { rank: 2, rows: 0 }, begun);
        assert!(state.is_failing(SILENCE, later) && state.is_cut_off(SILENCE, later));
        assert_eq!(
            state.judge(&[], None, SILENCE, later),
            lost(&[1], "has said nothing for 10 s")
        );
        // If others complain, the launcher may know more; if all are silent, none of them is cut off.
        let mut complains = State::new(2, begun);
        complains.hear(failed(0, None, "has ended"), later);
        assert!(complains.is_failing(SILENCE, later) && !complains.is_cut_off(SILENCE, later));
        assert!(!State::new(2, begun).is_cut_off(SILENCE, later));
        // A rank that has ended does not speak.
        let mut last = State::new(2, begun);
        last.hear(Line::Done { rank: 0, rows: 0 }, later);
        assert!(last.is_failing(SILENCE, later) && !last.is_cut_off(SILENCE, later));
    }

    #[test]
    fn ranks_that_have_never_started_are_told_from_those_that_are_silent_later() {
        let begun = Instant::now();
        let end = begun + 2 * SILENCE;
        let mut state = State::new(3, begun);
        let unheard = Failed::Unheard("no rank has started within 10 s".to_owned());
        assert_eq!(state.judge(&[], None, SILENCE, end), unheard);
        assert!(state.is_unheard(&[0, 1, 2]));
        state.hear(beat(0, 0.0), begun);
        state.hear(beat(2, 0.0), begun);
        let never = lost(&[1], "no rank has started there within 10 s");
        assert_eq!(state.judge(&[], None, SILENCE, end), never);
        assert!(state.is_unheard(&[1]) && !state.is_unheard(&[1, 2]));
        state.hear(beat(1, 0.0), begun);
        assert!(matches!(
            state.judge(&[], None, SILENCE, end),
            Failed::Unknown(_)
        ));
    }

    #[test]
    fn ranks_have_time_to_report_after_the_first_report_behind_a_silence() {
        let ms = Duration::from_millis;
        for (settle, first_ms) in [
            (SETTLE_LAUNCHER, 3_000),
            (SETTLE_LAUNCHER, 4_970),
            (SETTLE, 650),
        ] {
            for speak in [true, false] {
                let begun = Instant::now();
                let mut state = State::new(3, begun);
                let mut settled = Settled::default();
                let mut look = |state: &State, now: Instant| {
                    let is_cut_off = state.is_cut_off(SILENCE, now);
                    settled.is_complete(state.is_failing(SILENCE, now), is_cut_off, settle, now)
                };
                let silent = begun + SILENCE + ms(1);
                assert!(!look(&state, silent));
                // The silence of the others counts as theirs alone from now on.
                let first = silent + ms(first_ms);
                state.hear(beat(0, 0.1), first);
                for later_ms in [0, 100, 999] {
                    assert!(
                        !look(&state, first + ms(later_ms)),
                        "{settle:?} {first_ms} {later_ms}"
                    );
                }
                if speak {
                    state.hear(beat(1, 0.1), first + ms(999));
                    state.hear(beat(2, 0.1), first + ms(999));
                }
                assert_eq!(look(&state, first + ms(1_001)), !speak);
                assert_eq!(look(&state, first + ms(5_001)), !speak);
                // Later silence is counted anew.
                let again = first + 2 * SILENCE;
                state.hear(beat(0, 0.2), again);
                assert_eq!(look(&state, again), !speak);
            }
        }
    }

    #[test]
    fn silence_of_all_is_judged_after_its_own_time() {
        let begun = Instant::now();
        let state = State::new(2, begun);
        let silent = begun + SILENCE + Duration::from_millis(1);
        for settle in [SETTLE, SETTLE_LAUNCHER] {
            let mut settled = Settled::default();
            let mut look = |time: Duration| {
                let now = silent + time;
                let is_cut_off = state.is_cut_off(SILENCE, now);
                settled.is_complete(state.is_failing(SILENCE, now), is_cut_off, settle, now)
            };
            assert!(!look(Duration::ZERO) && !look(settle));
            assert!(look(settle + Duration::from_millis(1)));
        }
    }

    #[test]
    fn a_rank_that_blames_itself_is_there_and_the_job_cannot_be_done() {
        let now = Instant::now();
        let mut state = State::new(2, now);
        state.hear(failed(1, Some(0), "has no job to do"), now);
        state.hear(failed(0, Some(0), "has no order: it was cut"), now);
        let died = [
            (0, "exit status: 1".to_owned()),
            (1, "exit status: 1".to_owned()),
        ];
        assert_eq!(
            state.judge(&died, None, SILENCE, now),
            Failed::Job("has no order: it was cut".to_owned())
        );
    }

    fn begin(rank: usize, host: &str, boot: &str, cores: usize) -> Line {
        Line::Begin {
            rank,
            ranks: 3,
            host: host.to_owned(),
            boot: boot.to_owned(),
            cores,
        }
    }

    #[test]
    fn two_boards_of_one_name_are_refused_and_ranks_that_share_cores_are_known() {
        let now = Instant::now();
        let mut state = State::new(3, now);
        assert!(!state.has_core_each());
        state.hear(begin(0, "b1", "4c5d", 2), now);
        state.hear(begin(1, "b1", "4c5d", 2), now);
        state.hear(begin(2, "b2", "9e0f", 1), now);
        assert!(state.has_core_each() && !state.is_failing(SILENCE, now));
        // Emulated boards have different names, but share a kernel and its cores.
        state.hear(begin(2, "b2", "4c5d", 2), now);
        assert!(!state.has_core_each() && !state.is_failing(SILENCE, now));
        assert_eq!(state.twin, None);
        state.hear(begin(2, "b1", "9e0f", 1), now);
        assert_eq!(state.twin.as_deref(), Some("b1"));
        // Kernels that do not tell their start.
        let mut state = State::new(2, now);
        state.hear(begin(0, "b1", "", 1), now);
        state.hear(begin(1, "b2", "", 1), now);
        assert!(state.has_core_each() && state.twin.is_none());
    }

    #[test]
    fn a_failure_that_blames_a_rank_that_does_not_exist_is_unknown() {
        let now = Instant::now();
        let mut state = State::new(2, now);
        state.hear(failed(0, Some(99), "has ended"), now);
        assert_eq!(
            state.judge(&[], None, SILENCE, now),
            Failed::Unknown("has ended".to_owned())
        );
    }

    #[test]
    fn a_job_is_done_when_all_ranks_have_ended_and_progress_is_their_mean() {
        let now = Instant::now();
        let mut state = State::new(2, now);
        assert_eq!(state.progress(), "0 of 2 ranks are there");
        state.hear(beat(0, 0.25), now);
        state.hear(beat(1, 0.75), now);
        state.hear(beat(9, 0.75), now);
        assert_eq!(state.progress(), "50 %");
        state.hear(
            Line::Beat {
                rank: 0,
                done: 0.1,
                checks: true,
            },
            now,
        );
        assert_eq!(state.progress(), "checking on one rank 10 %");
        state.hear(Line::Done { rank: 0, rows: 3 }, now);
        state.hear(Line::Done { rank: 1, rows: 0 }, now);
        assert_eq!(state.table_rows, 3);
        // The job is not done without a report.
        assert!(!state.is_done());
    }
}
