//! What the programs of Evenkeel share on the command line.
//!
//! **Holds:** failures of commands ([`error`]), standard output ([`output`]), signals ([`signals`]), the limit of open
//! files ([`descriptors`]), random bytes of the kernel ([`random`]), the progress line of long work ([`progress`]),
//! whether a file outlives a reboot ([`persistence`]).
//!
//! **Must not know:** any command, any room but `base`.
//!
//! **Invariants:** a failure is one line that names the object, the problem and the remedy, and has an exit status. A
//! standard output whose reader has gone is no failure.
//!
//! **Files:** as listed.

pub mod descriptors;
pub mod error;
mod limit;
pub mod output;
pub mod persistence;
pub mod progress;
pub mod random;
pub mod signals;
