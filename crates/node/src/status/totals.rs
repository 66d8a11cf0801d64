//! The figures that outlive a run, and the file that holds them. `TOTALS.md` beside this crate's manifest is
//! the specification.

use serde::{Deserialize, Serialize};

/// Name of the file in the store.
pub(crate) const TOTALS_NAME: &str = "node-totals";

const MAGIC: [u8; 8] = *b"keeltots";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 16;
const CHECK_BYTES: usize = 4;
const FIELDS: usize = 10;
/// The most fields that a later version may have.
const FIELDS_MAX: usize = 64;

/// Defines the fields of [`Totals`], in the order of the file.
macro_rules! totals {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Figures since the store was made.
        #[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
        #[serde(default)]
        pub struct Totals {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Totals {
            fn fields(&self) -> [u64; FIELDS] {
                [$(self.$name),*]
            }

            fn of_fields([$($name),*]: [u64; FIELDS]) -> Self {
                Self { $($name),* }
            }
        }
    };
}

totals! {
    /// Starts of a node on this store.
    starts,
    /// Total run time of nodes, in ms.
    run_ms,
    /// Bytes written to the device.
    bytes_written,
    /// Flushes of the device.
    flushes,
    /// Readings that became durable.
    readings,
    /// Readings deleted because of a limit.
    readings_expired,
    /// Readings deleted to make room in a full store.
    readings_dropped,
    /// Offers that a full store refused.
    refused_full,
    /// Bad input.
    refused_input,
    /// Steps of the wall clock.
    clock_steps,
}

/// Why a file holds no totals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TotalsError {
    /// It is damaged, or of another kind.
    #[error("the lifetime totals are damaged; they begin anew")]
    Damaged,
    /// It was written by a later version.
    #[error(
        "the lifetime totals have version {found}, this program knows {VERSION}; they begin anew"
    )]
    Version {
        /// Version in the file.
        found: u32,
    },
}

impl Totals {
    /// Returns these totals plus those of a run.
    pub(crate) fn plus(&self, run: &Self) -> Self {
        let mut sum = self.fields();
        for (total, more) in sum.iter_mut().zip(run.fields()) {
            *total = total.saturating_add(more);
        }
        Self::of_fields(sum)
    }

    /// Returns the content of the file.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + FIELDS * 8 + CHECK_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(FIELDS as u32).to_le_bytes());
        for field in self.fields() {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    /// Reads the content of the file.
    ///
    /// # Errors
    /// It holds no totals that this version can use.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, TotalsError> {
        let word = |at: usize| -> Option<u32> {
            let bytes = bytes.get(at..at + 4)?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?))
        };
        let count = word(12).ok_or(TotalsError::Damaged)? as usize;
        if !bytes.starts_with(&MAGIC) || count > FIELDS_MAX {
            return Err(TotalsError::Damaged);
        }
        let end = HEADER_BYTES + count * 8;
        let body = bytes.get(..end).ok_or(TotalsError::Damaged)?;
        if word(end) != Some(crc32c::crc32c(body)) || bytes.len() != end + CHECK_BYTES {
            return Err(TotalsError::Damaged);
        }
        match word(8) {
            Some(VERSION) => {}
            found => {
                let found = found.unwrap_or_default();
                return Err(TotalsError::Version { found });
            }
        }
        let mut fields = [0; FIELDS];
        let stored = body[HEADER_BYTES..].chunks_exact(8);
        for (field, stored) in fields.iter_mut().zip(stored) {
            *field = u64::from_le_bytes(stored.try_into().map_err(|_| TotalsError::Damaged)?);
        }
        Ok(Self::of_fields(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn golden_totals() -> Totals {
        Totals {
            starts: 3,
            run_ms: 86_400_000,
            bytes_written: 5_000_000_000,
            flushes: 345_600,
            readings: 22_464_000,
            readings_expired: 1_000,
            readings_dropped: 2,
            refused_full: 7,
            refused_input: 11,
            clock_steps: 1,
        }
    }

    const GOLDEN: &[u8] = include_bytes!("../../tests/golden/node-totals-1");

    #[test]
    fn totals_are_the_bytes_that_the_specification_says() {
        assert_eq!(golden_totals().encode(), GOLDEN);
        assert_eq!(Totals::decode(GOLDEN), Ok(golden_totals()));
    }

    #[test]
    fn damaged_totals_are_refused_and_other_versions_are_named() {
        for bit in 0..GOLDEN.len() * 8 {
            let mut bytes = GOLDEN.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Totals::decode(&bytes), Err(TotalsError::Damaged));
        }
        for end in 0..GOLDEN.len() {
            assert_eq!(Totals::decode(&GOLDEN[..end]), Err(TotalsError::Damaged));
        }
        let sealed = |mut bytes: Vec<u8>| {
            bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
            bytes
        };
        let body = &GOLDEN[..GOLDEN.len() - 4];
        let mut later = body.to_vec();
        later[8] = 2;
        assert_eq!(
            Totals::decode(&sealed(later)),
            Err(TotalsError::Version { found: 2 })
        );
        // Fields unknown to this version, and fields missing in an earlier one.
        let mut more = body.to_vec();
        more[12] += 1;
        more.extend_from_slice(&5_u64.to_le_bytes());
        assert_eq!(Totals::decode(&sealed(more)), Ok(golden_totals()));
        let mut fewer = body[..body.len() - 8].to_vec();
        fewer[12] -= 1;
        let expected = Totals {
            clock_steps: 0,
            ..golden_totals()
        };
        assert_eq!(Totals::decode(&sealed(fewer)), Ok(expected));
        let huge = Totals {
            readings: u64::MAX,
            ..Totals::default()
        };
        assert_eq!(huge.plus(&golden_totals()).readings, u64::MAX);
    }
}
