//! Selects the segments that a server reads into memory when it starts, by SYSFLOW's normalised variance (section
//! III.C, Provider).
//!
//! B is the index of a block in its executable. B_min and B_max are the lowest and highest index in any action of the
//! executable. N = (B - B_min) / (B_max - B_min). The variance of a segment is the sum of (mean of its N - N)². The
//! more its blocks are spread over the executable, the more disk reads it takes, and the more it is worth memory.

use super::ActionInfo;
use crate::block::{BlockAt, FileId};
use std::collections::HashMap;

/// The lowest and highest index in the actions of each executable.
#[derive(Clone, Debug, Default)]
pub struct Extents(HashMap<FileId, (u32, u32)>);

impl Extents {
    /// Computes the extents of all blocks of these actions.
    #[must_use]
    pub fn of(actions: &[ActionInfo]) -> Self {
        let mut extents = HashMap::new();
        for at in actions.iter().flat_map(|action| &action.segments).flatten() {
            let extent = extents.entry(at.file).or_insert((at.index, at.index));
            *extent = (extent.0.min(at.index), extent.1.max(at.index));
        }
        Self(extents)
    }

    /// Returns N of a block, 0 to 1; 0 if the actions have at most one block of its executable.
    #[must_use]
    pub fn normalised(&self, at: BlockAt) -> f64 {
        match self.0.get(&at.file) {
            Some(&(min, max)) if max > min => {
                (f64::from(at.index) - f64::from(min)) / f64::from(max - min)
            }
            _ => 0.0,
        }
    }

    /// Returns the variance of a segment.
    #[must_use]
    pub fn variance(&self, segment: &[BlockAt]) -> f64 {
        if segment.is_empty() {
            return 0.0;
        }
        let normalised: Vec<f64> = segment.iter().map(|at| self.normalised(*at)).collect();
        let mean = normalised.iter().sum::<f64>() / normalised.len() as f64;
        normalised.iter().map(|n| (mean - n) * (mean - n)).sum()
    }
}

/// A segment that is worth memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chosen {
    /// The index of the action.
    pub action: usize,
    /// The index of the segment in the action.
    pub segment: usize,
    /// Its variance.
    pub variance: f64,
}

/// Returns the segments with a variance above the threshold, the highest first.
#[must_use]
pub fn choose(actions: &[ActionInfo], threshold: f64) -> Vec<Chosen> {
    let extents = Extents::of(actions);
    let mut chosen: Vec<Chosen> = actions
        .iter()
        .enumerate()
        .flat_map(|(action, info)| {
            let segments = info.segments.iter().enumerate();
            segments.map(move |(segment, blocks)| (action, segment, blocks))
        })
        .map(|(action, segment, blocks)| Chosen {
            action,
            segment,
            variance: extents.variance(blocks),
        })
        .filter(|chosen| chosen.variance > threshold)
        .collect();
    chosen.sort_by(|a, b| b.variance.total_cmp(&a.variance));
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::ActionKind;

    fn blocks(file: u32, indexes: &[u32]) -> Vec<BlockAt> {
        let file = FileId(file);
        indexes
            .iter()
            .map(|&index| BlockAt { file, index })
            .collect()
    }

    fn action(segments: Vec<Vec<BlockAt>>) -> ActionInfo {
        ActionInfo {
            task: FileId(1),
            kind: ActionKind::Startup,
            segments,
            others: 0,
            runs: 1,
            is_whole: true,
        }
    }

    /// Indexes 10 to 30, so N = (B - 10) / 20. Segment 1: 10, 30, 10, 30 has N 0, 1, 0, 1, mean 1/2, sum 4 × 1/4 = 1.
    /// Segment 2: 12, 14, 16, 18 has N 0.1, 0.2, 0.3, 0.4, mean 0.25, sum 2 × 0.0225 + 2 × 0.0025 = 0.05.
    #[test]
    fn variance_of_a_worked_example_is_exact() {
        let actions = [
            action(vec![blocks(1, &[12, 14, 16, 18])]),
            action(vec![blocks(1, &[20; 4]), blocks(1, &[10, 30, 10, 30])]),
        ];
        let extents = Extents::of(&actions);
        let near = |a: f64, b: f64| (a - b).abs() < 1e-12;
        assert!(near(extents.normalised(blocks(1, &[15])[0]), 0.25));
        assert!(near(extents.variance(&actions[0].segments[0]), 0.05));
        assert!(near(extents.variance(&actions[1].segments[0]), 0.0));
        assert!(near(extents.variance(&actions[1].segments[1]), 1.0));
        let places = |threshold| {
            choose(&actions, threshold)
                .iter()
                .map(|chosen| (chosen.action, chosen.segment))
                .collect::<Vec<_>>()
        };
        assert_eq!(places(0.04), [(1, 1), (0, 0)]);
        assert_eq!(places(0.06), [(1, 1)]);
        assert_eq!(places(1.5), []);
    }

    #[test]
    fn each_executable_has_its_own_scale_and_a_single_block_none() {
        let actions = [action(vec![
            blocks(1, &[0, 100]),
            blocks(2, &[0, 2]),
            blocks(3, &[7]),
            Vec::new(),
        ])];
        let extents = Extents::of(&actions);
        let sums = actions[0].segments.iter().map(|one| extents.variance(one));
        assert_eq!(sums.collect::<Vec<_>>(), [0.5, 0.5, 0.0, 0.0]);
        assert!(extents.normalised(blocks(9, &[5])[0]).abs() < f64::EPSILON);
    }
}
