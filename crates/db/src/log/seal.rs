//! What makes every checksum of a store its own.

use crc32c::crc32c_append;

/// Makes a checksum this store's own: a sender that knows every rule but not the secret cannot make one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// Initial value of the checksum.
    pub(super) seed: u32,
    /// XORed into the final checksum. Without it, a record with its checksum would always leave the same known state.
    /// From this state, a checksum for the bytes behind it could be made.
    pub(super) mask: u32,
}

impl Seal {
    /// The seal of a store with this [`secret`](crate::SegmentStore::secret).
    #[must_use]
    pub fn of(secret: u64) -> Self {
        Self {
            seed: secret as u32,
            mask: (secret >> 32) as u32,
        }
    }

    /// The sealed checksum of these bytes.
    #[must_use]
    pub fn check(self, bytes: &[u8]) -> u32 {
        crc32c_append(self.seed, bytes) ^ self.mask
    }
}
