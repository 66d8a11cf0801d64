//! Unpredictable random bytes.

use ring::rand::{SecureRandom, SystemRandom};

/// Returns random bytes; `None` if the system gives none.
pub(super) fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).ok()?;
    Some(bytes)
}
