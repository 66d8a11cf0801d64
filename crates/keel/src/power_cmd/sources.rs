//! Selects the sensors that a command reads.

use crate::error::CliError;
use base::clock::SystemClock;
use clap::Args;
use cluster::power::{Meter, Pmic, Root, Source, discover, why_none};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Selection of sensors.
#[derive(Debug, Args)]
pub(crate) struct PowerSourceArgs {
    /// CSV file that the program of a power meter keeps writing, with columns time_s or time_ms, and watts or power_w
    #[arg(long, value_name = "FILE")]
    pub(crate) meter: Option<PathBuf>,
    /// Read the power chip of a Raspberry Pi 5 with vcgencmd
    #[arg(long)]
    pub(crate) pmic: bool,
    /// Use only sensors whose name contains this text
    #[arg(long, alias = "source", value_name = "TEXT")]
    pub(crate) sensor: Option<String>,
    /// Folder to use instead of /
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub(crate) root: PathBuf,
}

/// Checks that a meter's file is not something else, such as a pipe. A file that is not there yet may come.
pub(crate) fn check_meter(meter: &Path) -> Result<(), CliError> {
    if std::fs::metadata(meter).is_ok_and(|found| !found.is_file()) {
        return Err(CliError::failure(
            meter.display(),
            "is no regular file",
            "name the CSV file that the meter's program keeps writing",
        ));
    }
    Ok(())
}

/// Returns the sensors, at least one.
pub(crate) fn find(arguments: &PowerSourceArgs) -> Result<Vec<Box<dyn Source>>, CliError> {
    let root = Root::new(&arguments.root);
    let mut found = discover(&root);
    if let Some(meter) = &arguments.meter {
        let Some(path) = meter.to_str() else {
            return Err(CliError::usage(
                meter.display(),
                "is no UTF-8",
                "give the file another name",
            ));
        };
        check_meter(meter)?;
        // The meter's file is at the user's path, even if another folder stands for /.
        found.insert(
            0,
            Box::new(Meter::new(
                &Root::new(""),
                path,
                Arc::new(SystemClock::new()),
            )),
        );
    }
    if arguments.pmic {
        found.push(Box::new(Pmic::of_this_board()));
    }
    if found.is_empty() {
        return Err(CliError::failure("power", why_none(&root), ""));
    }
    if let Some(wanted) = &arguments.sensor {
        let names: Vec<String> = found
            .iter()
            .map(|source| source.name().to_owned())
            .collect();
        found.retain(|source| source.name().contains(wanted.as_str()));
        if found.is_empty() {
            let remedy = format!("there are: {}", names.join(", "));
            return Err(CliError::failure(
                format_args!("--sensor {wanted}"),
                "is in no sensor's name",
                remedy,
            ));
        }
    }
    Ok(found)
}
