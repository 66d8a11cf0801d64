//! The goals, for the figures that exist. The best peer of a case is determined from the run itself.

use super::case::{Case, Kind, OF_ONE_THREAD, Pattern, RATE, REQUESTS_BYTES, THROUGHPUT, TIME};
use super::mapping::{ATTACH_CASE, ATTACH_TIME, EXT4_LARGEST, GROWTH, GROWTH_CASE};
use super::systems::{EXT4_SMALL, KEEL, MEMCPY, PEERS, TMPFS};
use super::takeover::{CASES as TAKEOVERS, WAIT_MAX};
use crate::figures::{Bound, Figures, Goal, Metric};

use Pattern::{RandomRead, RandomWrite, SequentialRead, SequentialWrite};

const KIB: u32 = 1 << 10;

/// Goals against the best peer, measured by fio.
const AGAINST_THE_BEST: [(Pattern, u32, f64); 20] = [
    (SequentialRead, KIB, 1.7),
    (RandomRead, KIB, 1.6),
    (SequentialWrite, KIB, 2.5),
    (RandomWrite, KIB, 1.9),
    (SequentialRead, 4 * KIB, 1.7),
    (RandomRead, 4 * KIB, 1.6),
    (SequentialWrite, 4 * KIB, 2.5),
    (RandomWrite, 4 * KIB, 1.9),
    (SequentialRead, 16 * KIB, 1.3),
    (RandomRead, 16 * KIB, 1.3),
    (SequentialWrite, 16 * KIB, 1.3),
    (RandomWrite, 16 * KIB, 1.3),
    (SequentialRead, 64 * KIB, 1.0),
    (RandomRead, 64 * KIB, 1.0),
    (SequentialWrite, 64 * KIB, 1.3),
    (RandomWrite, 64 * KIB, 1.3),
    (SequentialRead, 1024 * KIB, 1.0),
    (RandomRead, 1024 * KIB, 1.0),
    (SequentialWrite, 1024 * KIB, 1.3),
    (RandomWrite, 1024 * KIB, 1.3),
];

/// Request sizes of sequential writes that are compared with the paper's peer, and the ratio required at each.
const AGAINST_THE_PAPERS: ([u32; 3], f64) = ([KIB, 4 * KIB, 16 * KIB], 3.0);

/// The largest of these ratios.
pub(crate) const PAPERS_CASE: &str = "fio-sequential-write-1024-to-16384";
pub(crate) const PAPERS_BEST: Metric = Metric::shown("most_of_ext4-4k-folios", "1");
const PAPERS_BEST_MIN: f64 = 7.1;

/// Goals against tmpfs, measured by the tight loop.
const TIGHT: [(Pattern, u32, f64); 5] = [
    (RandomRead, KIB, 6.5),
    (RandomRead, 4 * KIB, 2.8),
    (SequentialRead, 4 * KIB, 4.5),
    (SequentialWrite, KIB, 6.0),
    (RandomWrite, 4 * KIB, 3.0),
];

/// Maximum time of a random read of 1 KiB in the loop, divided by that of a copy.
const OF_MEMCPY_MAX: f64 = 1.5;

/// Minimum ratio for the largest file of ext4 with pages of 4 KiB, against its populated mapping. The paper's ratio is
/// over PMFS, and over ext4 on a RAM disk, whose cache had such pages.
pub(crate) const MAPPING_MIN: f64 = 8700.0;
/// Maximum ratio between the sizes.
const MAPPING_GROWTH_MAX: f64 = 1.1;
/// Maximum time to attach, in microseconds.
const ATTACH_US: f64 = 1000.0;
/// Maximum wait for the lock of a killed process, in microseconds.
const TAKEOVER_US: f64 = 10_000.0;
/// Minimum ratio of several threads to one.
const SCALING_MIN: f64 = 1.7;

/// Adds all goals for which there are figures, for a machine with this many processors.
pub(crate) fn state(figures: &mut Figures, cores: usize) {
    let case = |kind, pattern, request_bytes| {
        Case {
            kind,
            pattern,
            request_bytes,
        }
        .name()
    };
    let add = |case, metric: Metric, peer, bound, figures: &mut Figures| {
        figures.add_goal(Goal {
            case,
            metric: metric.name,
            peer,
            bound,
        });
    };
    for (pattern, request_bytes, at_least) in AGAINST_THE_BEST {
        let case = case(Kind::Fio, pattern, request_bytes);
        if let Some(best) = best_peer(figures, case) {
            let bound = Bound::AtLeast(at_least);
            add(case, THROUGHPUT, Some(best), bound, figures);
        }
    }
    let (sizes, at_least) = AGAINST_THE_PAPERS;
    let cases = sizes.map(|bytes| case(Kind::Fio, SequentialWrite, bytes));
    for case in cases {
        let bound = Bound::AtLeast(at_least);
        add(case, THROUGHPUT, Some(EXT4_SMALL), bound, figures);
    }
    let ratios = cases.map(|case| figures.ratio(case, EXT4_SMALL, THROUGHPUT));
    if let Some(most) = ratios.into_iter().flatten().max_by(f64::total_cmp) {
        figures.record(PAPERS_CASE, KEEL, PAPERS_BEST, most);
        let bound = Bound::AtLeast(PAPERS_BEST_MIN);
        add(PAPERS_CASE, PAPERS_BEST, None, bound, figures);
    }
    for (pattern, request_bytes, at_least) in TIGHT {
        let case = case(Kind::Tight, pattern, request_bytes);
        add(case, RATE, Some(TMPFS), Bound::AtLeast(at_least), figures);
    }
    let copied = case(Kind::Tight, RandomRead, KIB);
    let bound = Bound::AtMost(OF_MEMCPY_MAX);
    add(copied, TIME, Some(MEMCPY), bound, figures);
    let bound = Bound::AtLeast(MAPPING_MIN);
    add(EXT4_LARGEST, RATE, Some(EXT4_SMALL), bound, figures);
    let bound = Bound::AtMost(MAPPING_GROWTH_MAX);
    add(GROWTH_CASE, GROWTH, None, bound, figures);
    let bound = Bound::Below(ATTACH_US);
    add(ATTACH_CASE, ATTACH_TIME, None, bound, figures);
    for (_, case) in TAKEOVERS {
        let bound = Bound::Below(TAKEOVER_US);
        add(case, WAIT_MAX, None, bound, figures);
    }
    // Results of threads that share processors are shown but not judged.
    let scaling = [Kind::TwoThreads, Kind::FourThreads]
        .into_iter()
        .filter(|kind| kind.threads() <= cores);
    for kind in scaling {
        for case in Case::all(kind, &REQUESTS_BYTES) {
            let bound = Bound::AtLeast(SCALING_MIN);
            add(case.name(), OF_ONE_THREAD, None, bound, figures);
        }
    }
}

/// Returns the fastest peer in a case of fio.
fn best_peer(figures: &Figures, case: &str) -> Option<&'static str> {
    let measured = PEERS
        .into_iter()
        .filter_map(|peer| Some((figures.value(case, peer, THROUGHPUT)?, peer)));
    let best = measured.max_by(|one, other| one.0.total_cmp(&other.0));
    best.map(|(_, peer)| peer)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::systems::EXT4_LARGE;
    use super::*;
    use crate::machine::Machine;

    #[test]
    fn goals_are_for_the_best_peer_and_the_papers_one() {
        let mut figures = Figures::new(Vec::new());
        let mut record = |case, values: [f64; 4]| {
            for (system, value) in [KEEL, TMPFS, PEERS[1], EXT4_SMALL].into_iter().zip(values) {
                figures.record(case, system, THROUGHPUT, value);
            }
        };
        record("fio-random-read-1024", [160.0, 100.0, 90.0, 80.0]);
        record("fio-sequential-write-4096", [290.0, 50.0, 90.0, 100.0]);
        record("fio-sequential-write-16384", [720.0, 50.0, 600.0, 100.0]);
        state(&mut figures, 2);
        let report = figures.json("mem", &Machine::detect(), json!({}));
        let report = serde_json::to_value(report).unwrap();
        let judged: Vec<_> = report["ratios"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|ratio| ratio["goal"].is_number())
            .map(|ratio| {
                (
                    &ratio["case"],
                    &ratio["peer"],
                    &ratio["goal"],
                    &ratio["met"],
                )
            })
            .collect();
        let expected = [
            ("fio-random-read-1024", TMPFS, 1.6, true),
            // The paper's peer is the best one here, so the higher goal applies.
            ("fio-sequential-write-4096", EXT4_SMALL, 3.0, false),
            ("fio-sequential-write-16384", PEERS[1], 1.3, false),
            ("fio-sequential-write-16384", EXT4_SMALL, 3.0, true),
        ]
        .map(|(case, peer, goal, met)| (json!(case), json!(peer), json!(goal), json!(met)));
        let expected: Vec<_> = expected
            .iter()
            .map(|(case, peer, goal, met)| (case, peer, goal, met))
            .collect();
        assert_eq!(judged, expected);
        let rows = report["rows"].as_array().unwrap();
        let most = rows.iter().find(|row| row["case"] == PAPERS_CASE).unwrap();
        assert_eq!((&most["value"], &most["met"]), (&json!(7.2), &json!(true)));
    }

    #[test]
    fn a_mapping_is_judged_against_ext4_with_pages_of_4_kib() {
        let mut figures = Figures::new(Vec::new());
        for (case, peer, value) in [
            (EXT4_LARGEST, EXT4_SMALL, 1.0),
            (EXT4_LARGEST, EXT4_LARGE, 2.0),
            (EXT4_LARGEST, TMPFS, 2.0),
            ("map-4096-mib", TMPFS, 0.1),
        ] {
            figures.record(case, peer, RATE, value);
        }
        figures.record(EXT4_LARGEST, KEEL, RATE, 9000.0);
        figures.record("map-4096-mib", KEEL, RATE, 9000.0);
        state(&mut figures, 2);
        let report = figures.json("mem", &Machine::detect(), json!({}));
        let report = serde_json::to_value(report).unwrap();
        let ratios = report["ratios"].as_array().unwrap().iter();
        let judged: Vec<_> = ratios.filter(|row| row["goal"].is_number()).collect();
        assert_eq!(judged.len(), 1, "{judged:?}");
        assert_eq!(judged[0]["peer"], EXT4_SMALL);
        assert_eq!(judged[0]["met"], true);
    }

    #[test]
    fn every_goal_names_a_case_of_its_own() {
        let mut cases: Vec<_> = AGAINST_THE_BEST
            .map(|(pattern, bytes, _)| (pattern.name(), bytes))
            .to_vec();
        cases.sort_unstable();
        cases.dedup();
        assert_eq!(cases.len(), 20);
    }
}
