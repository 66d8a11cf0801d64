//! What is learned of a task.

use super::action::Action;
use super::run::Phase;
use std::collections::BTreeMap;

/// The learned actions of a task.
#[derive(Default)]
pub(super) struct Task {
    pub(super) actions: BTreeMap<Phase, Action>,
    /// Grows with each use of any task.
    pub(super) used: u64,
}
