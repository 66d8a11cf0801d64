//! The implementations of MPI that the bench measures.

use clap::ValueEnum;

/// An implementation of MPI that `keel-mpi` is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mpi {
    /// MPICH.
    Mpich,
    /// Open MPI.
    Openmpi,
}

impl Mpi {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Mpich => "mpich",
            Self::Openmpi => "openmpi",
        }
    }
}
