//! `keel power watch`: prints the values of each sensor.

use super::sources::{self, PowerSourceArgs};
use crate::error::CliError;
use crate::output::Output;
use crate::signals;
use base::clock::{Clock, SystemClock};
use clap::Args;
use cluster::power::{Power, Source};
use serde_json::json;
use std::time::Duration;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel power watch --count 1\n  \
    keel power watch --meter /var/log/meter.csv --json\n\n\
    Each value is measured, modelled (with the formula's source) or unavailable (with the reason). Exit\n\
    status 1 if there is no sensor, or no sensor gave a value in all readings of --count.")]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    sources: PowerSourceArgs,
    /// Interval between two readings, in ms, from 10 to 60000
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    interval_ms: u64,
    /// Number of readings after which to end; energy counters need one more before the first [default: no end]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &WatchArgs) -> Result<u8, CliError> {
    let mut found = sources::find(&arguments.sources)?;
    signals::catch_stop();
    let clock = SystemClock::new();
    let interval = Duration::from_millis(arguments.interval_ms);
    let mut out = Output::new();
    // Do not show the first round: counters give power only from their second reading on.
    for source in &mut found {
        source.read(clock.monotonic_ns());
    }
    let mut left = arguments.count.unwrap_or(u64::MAX);
    let mut has_value = false;
    let mut remarked = vec![false; found.len()];
    while left > 0 && out.is_open() && !signals::stop_requested() {
        std::thread::sleep(interval);
        if signals::stop_requested() {
            break;
        }
        let mut values = Vec::new();
        for (source, remarked) in found.iter_mut().zip(&mut remarked) {
            let power = source.read(clock.monotonic_ns());
            has_value |= !matches!(power, Power::Unavailable { .. });
            let remark = source.remark();
            if arguments.json {
                values.push(as_json(&**source, &power, remark.as_deref()));
            } else {
                out.line(format_args!(
                    "{:<28} {power}; {}",
                    source.name(),
                    source.covers()
                ))?;
                // Once is enough.
                if let (Some(remark), false) = (remark, *remarked) {
                    out.line(format_args!("{:<28} {remark}", source.name()))?;
                    *remarked = true;
                }
            }
        }
        if arguments.json {
            out.json(&json!({"time_ms": clock.wall_ms(), "sources": values}))?;
        }
        out.flush()?;
        left -= 1;
    }
    if arguments.count.is_some() && left == 0 && !has_value {
        return Err(CliError::failure(
            "power",
            "no sensor gave a value; the reasons are above",
            "see docs/cluster.md, or name the file of a meter with --meter",
        ));
    }
    Ok(0)
}

fn as_json(source: &dyn Source, power: &Power, remark: Option<&str>) -> serde_json::Value {
    let (name, covers) = (source.name(), source.covers());
    let (kind, watts, text) = match power {
        Power::Measured { watts } => ("measured", Some(*watts), None),
        Power::Modelled { watts, source } => ("modelled", Some(*watts), Some(source)),
        Power::Unavailable { why } => ("unavailable", None, Some(why)),
    };
    json!({"source": name, "covers": covers, "origin": kind, "watts": watts, "why": text,
        "remark": remark})
}
