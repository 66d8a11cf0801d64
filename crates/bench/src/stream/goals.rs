//! The goals, for the figures that exist.

use super::bed::{CARD, EXT4, KEEL, READAHEAD, SSHFS};
use super::cases::{
    FIRST, OFFLINE, PAGE_TIME, ROUND_TRIPS, RUN_TIME, START, WARM, WIRE_SHARE, named,
};
use super::clients::{CLIENTS, OF_FAIR_SHARE};
use super::limits::{
    COPIES, COPY_TIME, LOSS, LOSSES_PERCENT, MEMORY, MEMORY_MEBIBYTES, SLOWDOWN, TCP_COPY, UNREAD,
    UNREAD_SHARE, UNREAD_VARIED,
};
use super::spread;
use super::tasks::Program;
use crate::figures::{Bound, Figures, Goal, Metric};

/// Maximum ratio to the lower bound of a start.
const OF_BOUND_MAX: f64 = 1.15;
/// Maximum ratio to readahead, at 10 ms.
const OF_READAHEAD_MAX: f64 = 0.25;
const OF_SSHFS_MAX: f64 = 0.15;
/// Maximum ratio at 1 Gbit/s to a disk as slow as a card.
const OF_CARD_MAX: f64 = 0.64;
const PAGE_OF_CARD_MAX: f64 = 0.25;
const ROUND_TRIPS_MAX: f64 = 5.0;
const WIRE_SHARE_MAX: f64 = 0.55;
/// Maximum ratio to ext4.
const WARM_MAX: f64 = 1.05;
const OFFLINE_MAX: f64 = 1.3;
/// Maximum ratio of the very first start to readahead.
const FIRST_MAX: f64 = 1.0;
const UNREAD_MAX: f64 = 0.02;
const UNREAD_VARIED_MAX: f64 = 0.15;
const MEMORY_MAX_MEBIBYTES: f64 = 24.0;
const OF_FAIR_SHARE_MAX: f64 = 1.5;
/// Maximum ratio to a copy of the same bytes. Copies differ among themselves, too: a start that cannot be distinguished
/// from a copy counts as not slower.
const SLOWDOWN_MAX: f64 = 1.0;

/// Adds all goals.
pub(crate) fn state(figures: &mut Figures) {
    let no_faster = losses(figures);
    let mut add = |case: String, metric: Metric, peer, at_most| {
        figures.add_goal(Goal {
            case: named(case),
            metric: metric.name,
            peer,
            bound: Bound::AtMost(at_most),
        });
    };
    for program in Program::ALL {
        let name = program.name();
        for trip in [2, 10] {
            let case = || format!("{START}-{name}-100-mbit-{trip}-ms");
            add(case(), RUN_TIME, Some("bound"), OF_BOUND_MAX);
            add(case(), ROUND_TRIPS, None, ROUND_TRIPS_MAX);
            add(case(), WIRE_SHARE, None, WIRE_SHARE_MAX);
            add(
                format!("{FIRST}-{name}-100-mbit-{trip}-ms"),
                RUN_TIME,
                Some(READAHEAD),
                FIRST_MAX,
            );
        }
        let case = || format!("{START}-{name}-100-mbit-10-ms");
        add(case(), RUN_TIME, Some(READAHEAD), OF_READAHEAD_MAX);
        add(case(), RUN_TIME, Some(SSHFS), OF_SSHFS_MAX);
        let case = || format!("{START}-{name}-1000-mbit-0-ms");
        add(case(), RUN_TIME, Some(CARD), OF_CARD_MAX);
        add(case(), PAGE_TIME, Some(CARD), PAGE_OF_CARD_MAX);
        add(format!("{WARM}-{name}"), RUN_TIME, Some(EXT4), WARM_MAX);
        add(
            format!("{OFFLINE}-{name}"),
            RUN_TIME,
            Some(EXT4),
            OFFLINE_MAX,
        );
        add(format!("{UNREAD}-{name}"), UNREAD_SHARE, None, UNREAD_MAX);
        add(
            format!("{UNREAD_VARIED}-{name}"),
            UNREAD_SHARE,
            None,
            UNREAD_VARIED_MAX,
        );
        add(
            format!("{MEMORY}-{name}"),
            MEMORY_MEBIBYTES,
            None,
            MEMORY_MAX_MEBIBYTES,
        );
        add(
            format!("{CLIENTS}-{name}"),
            OF_FAIR_SHARE,
            None,
            OF_FAIR_SHARE_MAX,
        );
    }
    for (case, at_most) in no_faster {
        add(case, SLOWDOWN, Some(TCP_COPY), at_most);
    }
}

/// Returns the maximum slowdown by losses relative to a copy: the slowdown that a copy may have by chance. Without the
/// spread of the copies there is no goal.
fn losses(figures: &Figures) -> Vec<(String, f64)> {
    let case = |program: Program, percent: f64| format!("{LOSS}-{}-{percent}", program.name());
    let all = Program::ALL
        .into_iter()
        .flat_map(|program| LOSSES_PERCENT.map(|percent| (program, percent)));
    let judged = all.filter_map(|(program, percent)| {
        let times = |percent| figures.rounds(&case(program, percent), TCP_COPY, COPY_TIME);
        let starts = figures.rounds(&case(program, 0.0), KEEL, RUN_TIME);
        let spread = spread::of_copies(times(0.0), times(percent), COPIES, starts)?;
        Some((case(program, percent), spread.max(SLOWDOWN_MAX)))
    });
    judged.collect()
}
