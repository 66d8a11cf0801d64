//! The progress of a run: shown live in a terminal, in plain lines, or not at all.

use super::analysis::{Verdict, WayOut};
use super::building::STOREYS;
use super::options::RunOptions;
use super::state::{Phase, Snapshot};
use super::summary::{duration, grouped};
use super::view::View;
use command::error::CliError;
use command::output::Output;
use std::time::{Duration, Instant};

/// Time between two plain lines.
const LINE_PERIOD: Duration = Duration::from_secs(1);

/// How progress is shown.
pub(crate) enum Progress {
    Live(Box<View>),
    Lines(Lines),
    Silent,
}

impl Progress {
    /// Opens the live view if `live`, otherwise plain lines. If the terminal cannot be taken over, plain lines are
    /// used, too.
    pub(crate) fn open(live: bool) -> Result<Self, CliError> {
        if live && let Ok(view) = View::new() {
            return Ok(Self::Live(Box::new(view)));
        }
        Ok(Self::Lines(Lines {
            out: Output::new(),
            last: None,
        }))
    }

    /// Shows the plan of the run.
    pub(crate) fn begin(&mut self, options: &RunOptions) -> Result<(), CliError> {
        let Self::Lines(lines) = self else {
            return Ok(());
        };
        lines.out.line(format_args!(
            "keel demo: 1,024 sensors of a burning office block, {} s of trace at {}x",
            options.end_ms / 1_000,
            options.speed
        ))?;
        if let Some(seed) = options.seed {
            lines.out.line(format_args!(
                "killing the writer with SIGKILL at random moments, seed {seed}"
            ))?;
        }
        lines.out.flush()
    }

    /// Shows a snapshot. Returns whether the user wants to stop.
    pub(crate) fn show(&mut self, snapshot: &Snapshot<'_>) -> Result<bool, CliError> {
        match self {
            Self::Live(view) => view.draw(snapshot),
            Self::Lines(lines) => lines.show(snapshot),
            Self::Silent => Ok(false),
        }
    }
}

/// Plain lines on standard output.
pub(crate) struct Lines {
    out: Output,
    last: Option<Instant>,
}

impl Lines {
    fn show(&mut self, snapshot: &Snapshot<'_>) -> Result<bool, CliError> {
        let now = Instant::now();
        let due = self
            .last
            .is_none_or(|last| now.duration_since(last) >= LINE_PERIOD);
        if due && snapshot.stats.is_some() {
            self.last = Some(now);
            self.out.line(line(snapshot))?;
            self.out.flush()?;
        }
        // Without a reader of the output there is no reason to continue.
        Ok(!self.out.is_open())
    }
}

/// Returns a snapshot as one line.
fn line(snapshot: &Snapshot<'_>) -> String {
    let picture = snapshot.picture();
    let rooms = picture.rooms.iter();
    let lost = rooms.filter(|room| matches!(room.verdict, Verdict::Lost(_)));
    let lost = lost.count();
    // After a kill the analysis starts again: rooms without readings so far may be burning.
    let is_partial = picture
        .rooms
        .iter()
        .any(|room| room.verdict == Verdict::Unknown);
    let lost = match lost {
        0 if is_partial => "unknown".to_owned(),
        lost => lost.to_string(),
    };
    let hottest = match picture.hottest {
        Some(room) => format!(
            "hottest {room} {:.0} °C",
            picture.rooms[room.index()].hottest_c
        ),
        None if is_partial => "fire unknown".to_owned(),
        None => "no fire yet".to_owned(),
    };
    let count = |wanted| {
        picture
            .ways_out
            .iter()
            .filter(|way| **way == wanted)
            .count()
    };
    let (unknown, cut) = (count(WayOut::Unknown), count(WayOut::Cut));
    let ways = match (unknown, cut, count(WayOut::Threatened)) {
        (1.., _, _) => "ways out unknown".to_owned(),
        (0, 0, 0) => "all ways out open".to_owned(),
        (0, 0, threatened) => format!("all ways out open, {threatened} threatened"),
        (0, cut, _) => format!("{cut} of {STOREYS} storeys cut off"),
    };
    let stats = snapshot.stats;
    let mut line = format!(
        "{:>6.1} s  {:>6} readings/s  {:>7} durable, lag {:>7}  fresh {:>5.1} %  \
         tardiness {:.3}, {} late  {hottest}, rooms lost to smoke {lost}  {ways}",
        snapshot.trace_ms() as f64 / 1e3,
        grouped(snapshot.rate_per_s),
        grouped(snapshot.acknowledged),
        duration(stats.map_or(0, |stats| stats.lag_ns)),
        100.0 * stats.map_or(0.0, |stats| stats.fresh_last),
        stats.map_or(0.0, |stats| stats.tardiness_last),
        snapshot.figures.late,
    );
    if snapshot.kills_planned > 0 {
        line.push_str(&format!("  kills {}", snapshot.kills));
    }
    if snapshot.phase == Phase::Recovering {
        line.push_str("  (recovering)");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::super::protocol::Stats;
    use super::super::state::tests_snapshot;
    use super::*;

    #[test]
    fn a_line_is_one_line_with_the_figures() {
        let stats = Stats {
            trace_ms: 12_345,
            fresh_last: 0.5,
            ..Stats::default()
        };
        let text = line(&tests_snapshot(Some(&stats)));
        assert!(
            text.contains("12.3 s")
                && text.contains("2,601 readings/s")
                && text.contains("fresh  50.0 %"),
            "{text}"
        );
        assert!(!text.contains('\n'));
    }

    #[test]
    fn rooms_without_readings_are_shown_as_unknown() {
        let mut stats = Stats::default();
        let text = line(&tests_snapshot(Some(&stats)));
        assert!(
            text.contains("fire unknown, rooms lost to smoke unknown  ways out unknown"),
            "{text}"
        );
        for room in &mut stats.picture.rooms {
            room.verdict = Verdict::Safe;
        }
        let text = line(&tests_snapshot(Some(&stats)));
        assert!(
            text.contains("no fire yet, rooms lost to smoke 0"),
            "{text}"
        );
    }
}
