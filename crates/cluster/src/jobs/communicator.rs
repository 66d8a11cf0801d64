//! What a job needs of whoever connects its ranks: its rank, the number of ranks and five operations, the same on MPI,
//! between processes of one machine, and with one rank alone.
//!
//! Every rank calls the same operations in the same order. Rank 0 is the one that hands out and takes in.
//!
//! The answer of a job must not depend on the number of ranks, bit for bit, and an implementation may combine in
//! whatever order its library likes. So the two operations that combine are ones whose result has no order: sums of
//! whole numbers, which are exact as long as they do not overflow (jobs see to that), and maxima. There is no sum of
//! floating-point numbers here, on purpose.

use std::fmt;

/// Numbers in one message at most: 1 GiB, and below what MPI counts with.
pub const LENGTH_MAX: usize = 1 << 27;

/// Ranks of a job at most.
pub const RANKS_MAX: usize = 1_024;

/// Why ranks no longer work together. The job is over for every rank that gets one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The rank that is to blame, where that is known.
    pub rank: Option<usize>,
    /// What happened, in one line.
    pub why: String,
}

impl Failure {
    /// A failure of one rank.
    #[must_use]
    pub fn of(rank: usize, why: impl Into<String>) -> Self {
        Self {
            rank: Some(rank),
            why: why.into(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rank {
            Some(rank) => write!(formatter, "rank {rank} {}", self.why),
            None => write!(formatter, "{}", self.why),
        }
    }
}

impl std::error::Error for Failure {}

/// Ranks that compute side by side. Each operation returns when this rank's part in it is done.
pub trait Communicator {
    /// This rank, from 0.
    fn rank(&self) -> usize;

    /// How many there are, at least 1.
    fn size(&self) -> usize;

    /// Part `r` goes to rank `r`; the part of this rank comes back. Rank 0 gives as many parts as there are ranks, the
    /// others give `None`. Parts may differ in length and be empty.
    ///
    /// # Errors
    /// A rank is gone or does not keep to the order of operations.
    fn scatter(&mut self, parts: Option<Vec<Vec<f64>>>) -> Result<Vec<f64>, Failure>;

    /// All parts come to rank 0, in the order of ranks; the others get `None`. Parts may differ in length and be empty.
    ///
    /// # Errors
    /// As [`Self::scatter`].
    fn gather(&mut self, part: &[f64]) -> Result<Option<Vec<Vec<f64>>>, Failure>;

    /// What rank 0 has in `values` is on every rank afterwards, in its length; what the others had there is lost.
    ///
    /// # Errors
    /// As [`Self::scatter`].
    fn broadcast(&mut self, values: &mut Vec<f64>) -> Result<(), Failure>;

    /// Place by place, the sum over all ranks, on every rank. The length is the same on every rank.
    ///
    /// # Errors
    /// As [`Self::scatter`].
    fn all_reduce_sum(&mut self, values: &mut [i64]) -> Result<(), Failure>;

    /// Place by place, the greatest over all ranks, on every rank. The length is the same on every rank; no value is
    /// NaN, infinities are allowed, and jobs do not tell 0 from −0.
    ///
    /// # Errors
    /// As [`Self::scatter`].
    fn all_reduce_max(&mut self, values: &mut [f64]) -> Result<(), Failure>;
}

/// One rank and nobody to talk to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Communicator for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn scatter(&mut self, parts: Option<Vec<Vec<f64>>>) -> Result<Vec<f64>, Failure> {
        let mut parts = check_parts(parts, 1)?;
        Ok(parts.pop().unwrap_or_default())
    }

    fn gather(&mut self, part: &[f64]) -> Result<Option<Vec<Vec<f64>>>, Failure> {
        Ok(Some(vec![part.to_vec()]))
    }

    fn broadcast(&mut self, _values: &mut Vec<f64>) -> Result<(), Failure> {
        Ok(())
    }

    fn all_reduce_sum(&mut self, _values: &mut [i64]) -> Result<(), Failure> {
        Ok(())
    }

    fn all_reduce_max(&mut self, _values: &mut [f64]) -> Result<(), Failure> {
        Ok(())
    }
}

/// The parts that rank 0 hands out, one for each rank.
///
/// # Errors
/// There are none, or another number.
pub fn check_parts(parts: Option<Vec<Vec<f64>>>, size: usize) -> Result<Vec<Vec<f64>>, Failure> {
    match parts {
        Some(parts) if parts.len() == size => Ok(parts),
        Some(parts) => Err(Failure::of(
            0,
            format!("hands out {} parts to {size} ranks", parts.len()),
        )),
        None => Err(Failure::of(0, "has nothing to hand out")),
    }
}
