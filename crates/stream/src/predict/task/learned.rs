//! What is learned of a task.

use super::action::Action;
use super::run::Phase;
use crate::block::BlockAt;
use crate::predict::{Needed, Plan};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// The learned actions of a task.
#[derive(Default)]
pub(super) struct Task {
    pub(super) actions: BTreeMap<Phase, Action>,
    /// Grows with each use of any task.
    pub(super) used: u64,
    /// The result of [`Task::all_needed`], until an action changes.
    pub(super) needed: Option<Needed>,
}

impl Task {
    /// Returns every block that may be sent for the task. These are the plan of its start, the blocks that only some of
    /// its starts read, and those of its other actions. If no start is whole, they are too few to run the task.
    pub(super) fn all_needed(&self) -> Needed {
        let startup = self.actions.get(&Phase::Startup);
        if !startup.is_some_and(|startup| startup.is_whole) {
            return Needed::Part;
        }
        let mut known = HashSet::new();
        let mut blocks: Vec<BlockAt> = Vec::new();
        // The startup action is the first one.
        for action in self.actions.values() {
            let planned = action.plan().into_iter().flat_map(|plan| plan.blocks());
            blocks.extend(
                planned
                    .chain(action.others())
                    .filter(|at| known.insert(*at)),
            );
        }
        let plan = startup.and_then(Action::plan);
        if let Some(plan) = plan.filter(|plan| plan.blocks().count() == blocks.len()) {
            return Needed::Plan(Arc::clone(plan));
        }
        match blocks.is_empty() {
            true => Needed::Nothing,
            false => Needed::Plan(Arc::new(Plan::of(&blocks))),
        }
    }
}
