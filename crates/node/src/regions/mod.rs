//! Regions in terms of the command line: their memory, checkpoints in a store, and errors with a remedy.
//!
//! **Files:** `make.rs` a new region, `backing.rs` its kind of memory, `checkpoint.rs` checkpoints, `storage.rs` a
//! store that holds them, `sweep.rs` what dead processes have left, `error.rs` errors.

mod backing;
mod checkpoint;
mod error;
mod make;
mod storage;
mod sweep;

pub use backing::Ground;
pub use checkpoint::{
    CHECKPOINT_NAME, checkpoint_error, checkpoint_now, close, newest, open, save,
};
pub use error::{limit_of_descriptors, region_error};
pub use make::{fill, make_plainly};
pub use storage::FlashStorage;
pub use sweep::clear_up;
