//! Prefetches and learns nothing: the baseline for measurements of the other modes.

use super::{ActionInfo, Begun, Catalogue, Counters, LoadError, Plan, Predictor, Push, file};
use crate::block::{BlockAt, FileId, Token};
use crate::predict::Mode;
use crate::wire::HeldBlocks;
use std::sync::Arc;

/// Predicts nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NonePredictor;

impl Predictor for NonePredictor {
    fn begin(&mut self, _token: Token, _task: FileId, _held: &HeldBlocks, _now_ms: u64) -> Begun {
        Begun::default()
    }

    fn request(&mut self, _token: Token, _at: BlockAt, _now_ms: u64) -> Push {
        Push::Nothing
    }

    fn trace(&mut self, _token: Token, _blocks: &[BlockAt], _now_ms: u64) {}

    fn end(&mut self, _token: Token, _is_exact: bool, _has_exited: bool, _now_ms: u64) {}

    fn tick(&mut self, _now_ms: u64) {}

    fn plan(&self, _task: FileId) -> Option<Arc<Plan>> {
        None
    }

    fn actions(&self) -> Vec<ActionInfo> {
        Vec::new()
    }

    fn take_changed(&mut self) -> bool {
        false
    }

    fn save(&self, _catalogue: &dyn Catalogue) -> Vec<u8> {
        file::Writer::new(Mode::None).finish()
    }

    fn load(&mut self, bytes: &[u8], _catalogue: &dyn Catalogue) -> Result<(), LoadError> {
        file::Reader::open(bytes, Mode::None)?.finish()
    }

    fn forget(&mut self, _task: FileId) -> bool {
        false
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }

    fn is_used(&self, _token: Token) -> bool {
        false
    }
}
