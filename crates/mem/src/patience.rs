//! How long a reader waits for a writer, by what earlier waits have shown.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of looks, one every [`CHECK_INTERVAL`](crate::owner::CHECK_INTERVAL), until a file that no process
/// changes counts as damaged: 50 ms. A sound region never has such a file, so this only handles unforeseen errors, and
/// one such wait is enough.
const LOOKS_AT_LEFT_ODD_MAX: u32 = 25;

/// As above, for a reader that may not recover the dead writer: one second. Another process may recover it meanwhile.
const LOOKS_AT_DEAD_MAX: u32 = 500;

/// The number of looks after an earlier wait of that kind has ended without result.
const LOOKS_AGAIN_MAX: u32 = 2;

/// What earlier waits for writers have shown, so that the process does not wait the full time for each file again.
#[derive(Default)]
pub(crate) struct Patience {
    /// Not 0 if a file was found that no process changes although its number is odd.
    left_odd: AtomicU64,
    /// The dead writer that was waited for last, and that no process has recovered.
    dead: AtomicU64,
    /// The number of looks at holders of locks.
    #[cfg(test)]
    pub(crate) looks: AtomicU64,
}

impl Patience {
    pub(crate) fn looks_max(&self, dead: Option<u64>) -> u32 {
        let (spent, looks_max) = match dead {
            None => (
                self.left_odd.load(Ordering::Relaxed) != 0,
                LOOKS_AT_LEFT_ODD_MAX,
            ),
            Some(dead) => (self.dead.load(Ordering::Relaxed) == dead, LOOKS_AT_DEAD_MAX),
        };
        if spent { LOOKS_AGAIN_MAX } else { looks_max }
    }

    pub(crate) fn is_spent(&self, dead: Option<u64>) {
        match dead {
            None => self.left_odd.store(1, Ordering::Relaxed),
            Some(dead) => self.dead.store(dead, Ordering::Relaxed),
        }
    }
}
