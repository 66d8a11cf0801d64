//! What is known of the blocks that a task needs, and where it comes from.

use super::error::DeviceError;
use super::settings::PLAN_BLOCKS_MAX;
use crate::block::BlockAt;
use std::collections::HashSet;

/// What a server has answered to the question which blocks a task needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanAnswer {
    /// No server is connected, or the answer has not come as a whole in time.
    Missing,
    /// The server has learned nothing of the task.
    Nothing,
    /// The server has learned no start that is whole: each one has failed or was cut off. The answer does not have the
    /// blocks that these have read.
    Part,
    /// The blocks.
    Blocks,
}

/// Where a list of blocks comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanOrigin {
    /// The server.
    Server,
    /// What this device has noted: the blocks that starts here needed, and those of earlier answers of a server.
    Note,
    /// Nothing is known.
    Nothing,
}

/// The blocks that a task needs, as far as they are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskPlan {
    /// The blocks, in the order in which the task needs them.
    pub blocks: Vec<BlockAt>,
    /// What the server has answered.
    pub answer: PlanAnswer,
    /// The list is as long as it may be, so that it has probably lost its end, here or at the server.
    pub is_cut: bool,
}

impl TaskPlan {
    pub(super) fn new(blocks: Vec<BlockAt>, answer: PlanAnswer) -> Self {
        Self {
            is_cut: blocks.len() >= PLAN_BLOCKS_MAX,
            blocks,
            answer,
        }
    }

    /// Returns where the blocks come from.
    #[must_use]
    pub fn origin(&self) -> PlanOrigin {
        match self.answer {
            PlanAnswer::Blocks => PlanOrigin::Server,
            _ if self.blocks.is_empty() => PlanOrigin::Nothing,
            _ => PlanOrigin::Note,
        }
    }

    /// Returns the blocks.
    ///
    /// # Errors
    /// Nothing is known of the task.
    pub fn known(self) -> Result<Vec<BlockAt>, DeviceError> {
        match self.blocks.is_empty() {
            true => Err(DeviceError::NoPlan),
            false => Ok(self.blocks),
        }
    }

    /// Adds noted blocks behind the others, as many as a list may have.
    pub(super) fn add(&mut self, noted: &[BlockAt]) {
        let mut known = HashSet::new();
        let all = self.blocks.iter().chain(noted).copied();
        let mut all: Vec<BlockAt> = all.filter(|at| known.insert(*at)).collect();
        all.truncate(PLAN_BLOCKS_MAX);
        self.is_cut |= all.len() >= PLAN_BLOCKS_MAX;
        self.blocks = all;
    }
}
