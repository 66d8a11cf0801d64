//! How a job cuts readings into windows and analyses them: its options.

use crate::error::CliError;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use cluster::jobs::Settings;
use config::{JobConfig, Kernel};

/// The jobs, in the order of the help.
const KERNELS: [Kernel; 3] = [Kernel::Vibration, Kernel::KMeans, Kernel::MatrixProfile];

fn help(kernel: Kernel) -> &'static str {
    match kernel {
        Kernel::Vibration => "Vibration features of each window's spectrum",
        Kernel::KMeans => "Clusters of usual windows, and the windows that are unusual",
        Kernel::MatrixProfile => "Nearest neighbour of each window: repeated patterns and outliers",
    }
}

/// Returns the parser of the name of a job.
pub(crate) fn kernel_parser() -> impl TypedValueParser<Value = Kernel> {
    let values = KERNELS.map(|kernel| PossibleValue::new(kernel.name()).help(help(kernel)));
    PossibleValuesParser::new(values).try_map(|name| {
        let found = KERNELS.into_iter().find(|kernel| kernel.name() == name);
        found.ok_or("is no job")
    })
}

/// How a job cuts readings into windows and analyses them.
#[derive(Debug, Args)]
pub(crate) struct KernelArgs {
    /// Number of readings in a window, from 4 to 65536 [default: vibration 1024, k-means 32, matrix-profile 64]
    #[arg(long, value_name = "N", value_parser = counts(4, 65_536))]
    pub(crate) window: Option<usize>,
    /// Number of readings between the starts of two windows; not for matrix-profile [default: half a window]
    #[arg(long, value_name = "N", value_parser = counts(1, 65_536))]
    pub(crate) step: Option<usize>,
    /// Number of clusters of k-means, from 1 to 64 [default: 8]
    #[arg(long, value_name = "N", value_parser = counts(1, 64))]
    pub(crate) clusters: Option<usize>,
    /// Maximum number of rounds of k-means, from 1 to 1000 [default: 25]
    #[arg(long, value_name = "N", value_parser = counts(1, 1_000))]
    pub(crate) rounds: Option<usize>,
    /// Seed of the random starts of k-means [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
}

/// A number within a range.
fn counts(least: usize, most: usize) -> impl TypedValueParser<Value = usize> {
    RangedU64ValueParser::<usize>::new().range(least as u64..=most as u64)
}

impl KernelArgs {
    /// Returns the options of a job of the configuration.
    pub(super) fn of_job(job: &JobConfig) -> Self {
        Self {
            window: (job.window > 0).then_some(job.window),
            // The configuration has these settings for every job, but some kernels do not use them.
            step: (job.step > 0 && job.kernel != Kernel::MatrixProfile).then_some(job.step),
            clusters: Some(job.clusters).filter(|_| job.kernel == Kernel::KMeans),
            rounds: None,
            seed: None,
        }
    }

    /// Returns each option, and whether it is on the command line.
    pub(crate) fn said(&self) -> [(&'static str, bool); 5] {
        [
            ("--window", self.window.is_some()),
            ("--step", self.step.is_some()),
            ("--clusters", self.clusters.is_some()),
            ("--rounds", self.rounds.is_some()),
            ("--seed", self.seed.is_some()),
        ]
    }

    /// As the job takes it.
    ///
    /// # Errors
    /// An option that this job has no use for: it would be taken for one that did something.
    pub(crate) fn checked(&self, kernel: Kernel) -> Result<Settings, CliError> {
        let k_means = [
            ("--clusters", self.clusters.is_some()),
            ("--rounds", self.rounds.is_some()),
            ("--seed", self.seed.is_some()),
        ];
        let useless = match kernel {
            Kernel::KMeans => None,
            _ => k_means.into_iter().find(|(_, is_said)| *is_said),
        };
        let step = (
            "--step",
            self.step.is_some() && kernel == Kernel::MatrixProfile,
        );
        match useless.or(Some(step).filter(|(_, is_said)| *is_said)) {
            None => Ok(self.settings(kernel)),
            Some((option, _)) => Err(CliError::usage(
                option,
                format_args!("{} has no use for it", kernel.name()),
                "leave it out",
            )),
        }
    }

    /// As the job takes it.
    pub(crate) fn settings(&self, kernel: Kernel) -> Settings {
        let window = self.window.unwrap_or(match kernel {
            Kernel::Vibration => 1_024,
            Kernel::KMeans => 32,
            Kernel::MatrixProfile => 64,
        });
        let step = self.step.unwrap_or((window / 2).max(1));
        match kernel {
            Kernel::Vibration => Settings::Vibration { window, step },
            Kernel::KMeans => Settings::KMeans {
                window,
                step,
                clusters: self.clusters.unwrap_or(8),
                rounds_max: self.rounds.unwrap_or(25),
                seed: self.seed.unwrap_or(1),
            },
            Kernel::MatrixProfile => Settings::MatrixProfile { window },
        }
    }
}
