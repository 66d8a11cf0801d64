//! The goals of the data path.

use super::cases::{
    DATA, DATA_RATIO, DURABLE, FLOOR, P50, P999, RATE_TO_LONE, SIZES, WORST, WRITERS_CASE,
};
use crate::figures::{Bound, Goal};

/// Figures and their bounds.
pub(crate) fn goals() -> Vec<Goal> {
    let goal = |case, metric, peer, bound| Goal {
        case,
        metric,
        peer,
        bound,
    };
    let mut goals = vec![
        goal(DURABLE, P50.name, Some(FLOOR), Bound::AtMost(1.3)),
        goal(WRITERS_CASE, RATE_TO_LONE.name, None, Bound::AtLeast(20.0)),
        goal(DATA, DATA_RATIO.name, None, Bound::AtMost(1.2)),
    ];
    for size in &SIZES {
        goals.push(goal(
            size.get,
            P50.name,
            Some("dashmap"),
            Bound::AtMost(1.0),
        ));
        goals.push(goal(size.get, P50.name, Some("lmdb"), Bound::AtMost(0.5)));
        // The absolute goal applies to the size at which LMDB takes twice as long; for the other sizes that ratio is
        // the goal.
        goals.push(if size.get == SIZES[0].get {
            goal(size.get, P999.name, None, Bound::AtMost(1.0))
        } else {
            goal(size.get, P999.name, Some("lmdb"), Bound::AtMost(0.5))
        });
        goals.push(goal(
            size.put,
            P50.name,
            Some("dashmap"),
            Bound::AtMost(1.0),
        ));
        goals.push(goal(
            size.put,
            WORST.name,
            Some("berkeleydb"),
            Bound::AtMost(0.05),
        ));
    }
    goals
}
