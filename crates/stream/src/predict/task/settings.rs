//! The settings of the default predictor.

use crate::block::SEGMENT_BLOCKS;

/// The settings of the default predictor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TaskSettings {
    /// A plan is stopped after this number of consecutive demands that were not predicted.
    pub mismatches_max: u32,
    /// A block is no longer pushed when it was not read in this number of consecutive runs that show it. It is pushed
    /// when it was read in as many. 1 to 32.
    pub drop_runs: u32,
    /// After the second start of a plan, the interval of audits, which show all reads, in starts; 0 disables them.
    pub audit_every: u64,
    /// A block becomes part of the plan when at least this share of the runs that show it has read it.
    pub share_min: f64,
    /// A block stays in the plan while its share is at least this.
    pub share_stay_min: f64,
    /// Like `share_stay_min`, for a block of a file that some of these runs have not read at all. Such a block does not
    /// depend on chance, but on the purpose of the start.
    pub share_stay_of_part_min: f64,
    /// The maximum expected share of a plan's blocks that are not read.
    pub unread_share_max: f64,
    /// Like `unread_share_max`, for blocks that are read only by chance. They are pushed while that costs next to
    /// nothing, since each such block that is read and missing costs a round trip.
    pub chance_share_max: f64,
    /// A block is sent with another one when it was read in at least this share of the runs that read the other one.
    /// The share counts one run as read and one as not read beside those observed (Laplace's rule of succession).
    pub guess_share_min: f64,
    /// The maximum number of blocks sent with one that only some runs read; at most [`SEGMENT_BLOCKS`].
    pub guess_blocks: usize,
    /// The number of known blocks after it among which they are searched.
    pub guess_reach: usize,
    /// The time without a new block after which an action has ended.
    pub pause_ms: u64,
    /// A phase that began, after a pause, within this time before the end of its process is the exit action.
    pub exit_ms: u64,
    /// The minimum number of blocks of a workload or exit action: a shorter one is not worth a plan.
    pub later_blocks_min: usize,
    /// The maximum number of tasks with actions; the one unused for longest is evicted.
    pub tasks_max: usize,
    /// The maximum number of workloads of a task.
    pub workloads_max: usize,
    /// The maximum number of blocks of a task's actions.
    pub blocks_per_task_max: usize,
    /// The maximum number of blocks of all actions.
    pub blocks_total_max: usize,
    /// The maximum number of recorded blocks of all live runs.
    pub recorded_max: usize,
    /// The maximum number of live runs.
    pub tokens_max: usize,
    /// The number of remembered tokens of ended runs.
    pub ended_max: usize,
}

impl Default for TaskSettings {
    fn default() -> Self {
        Self {
            mismatches_max: 16,
            drop_runs: 3,
            audit_every: 8,
            share_min: 0.75,
            share_stay_min: 0.6,
            share_stay_of_part_min: 0.7,
            unread_share_max: 0.03,
            chance_share_max: 0.005,
            guess_share_min: 0.65,
            guess_blocks: SEGMENT_BLOCKS as usize - 1,
            guess_reach: 1_024,
            pause_ms: 3_000,
            exit_ms: 1_000,
            later_blocks_min: 4,
            tasks_max: 256,
            workloads_max: 16,
            blocks_per_task_max: 32_768,
            blocks_total_max: 1 << 19,
            recorded_max: 1 << 20,
            tokens_max: 1_024,
            ended_max: 4_096,
        }
    }
}
