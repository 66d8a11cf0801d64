//! The jobs on readings, by name: the command line and the configuration choose one.

/// A job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Features of vibration.
    Vibration,
    /// A model of normal operation.
    KMeans,
    /// The nearest neighbour of each window.
    MatrixProfile,
}

impl Kernel {
    /// Returns its name on the command line and in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Vibration => "vibration",
            Self::KMeans => "k-means",
            Self::MatrixProfile => "matrix-profile",
        }
    }
}
