//! The interface between a job and the connection of its ranks: its rank, the number of ranks and five operations. It
//! is the same on MPI, between processes of one machine, and with one rank alone.
//!
//! Every rank calls the same operations in the same order. Rank 0 distributes and collects.
//!
//! The answer of a job must be bitwise independent of the number of ranks, and an implementation may combine values in
//! any order. So both combining operations have results that do not depend on the order: maxima, and sums of integers.
//! Sums are exact as long as they do not overflow, which jobs ensure. A sum of floating-point numbers is omitted on
//! purpose.

use std::fmt;

/// Largest number of numbers in one message: 1 GiB, and below the limit of MPI's counts.
pub const LENGTH_MAX: usize = 1 << 27;

/// Largest number of ranks of a job.
pub const RANKS_MAX: usize = 1_024;

/// Why ranks no longer work together. The job is over for every rank that gets a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The rank at fault, if known.
    pub rank: Option<usize>,
    /// What happened, in one line.
    pub why: String,
}

impl Failure {
    /// Creates a failure of one rank.
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

/// Ranks that compute in parallel. Each operation returns when this rank's part in it is done.
pub trait Communicator {
    /// Returns this rank, from 0.
    fn rank(&self) -> usize;

    /// Returns the number of ranks, at least 1.
    fn size(&self) -> usize;

    /// Sends part `r` to rank `r`; returns the part of this rank. Rank 0 passes as many parts as there are ranks, the
    /// others pass `None`. Parts may differ in length and be empty.
    ///
    /// # Errors
    /// A rank is gone or violates the order of operations.
    fn scatter(&mut self, parts: Option<Vec<Vec<f64>>>) -> Result<Vec<f64>, Failure>;

    /// Collects all parts on rank 0, in the order of ranks; the others get `None`. Parts may differ in length and be
    /// empty.
    ///
    /// # Errors
    /// As [`Self::scatter`].
    fn gather(&mut self, part: &[f64]) -> Result<Option<Vec<Vec<f64>>>, Failure>;

    /// Copies the `values` of rank 0 to every rank, including their length; the earlier content on the others is lost.
    ///
    /// # Errors
    /// As [`Self::scatter`].
    fn broadcast(&mut self, values: &mut Vec<f64>) -> Result<(), Failure>;

    /// Replaces each number by its sum over all ranks, on every rank. The length is the same on every rank.
    ///
    /// # Errors
    /// As [`Self::scatter`].
    fn all_reduce_sum(&mut self, values: &mut [i64]) -> Result<(), Failure>;

    /// Replaces each number by its maximum over all ranks, on every rank. The length is the same on every rank; no
    /// value is NaN, infinities are allowed, and jobs do not distinguish 0 from −0.
    ///
    /// # Errors
    /// As [`Self::scatter`].
    fn all_reduce_max(&mut self, values: &mut [f64]) -> Result<(), Failure>;
}

/// A single rank without others.
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

/// Checks the parts that rank 0 distributes, one for each rank.
///
/// # Errors
/// There are no parts, or a wrong number of them.
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
