//! `keel power watch`: prints the values of each sensor.

use super::sources;
use crate::cli::PowerWatchArgs;
use crate::error::CliError;
use crate::output::Output;
use crate::signals;
use base::clock::{Clock, SystemClock};
use cluster::power::Power;
use serde_json::json;
use std::time::Duration;

pub(super) fn run(arguments: &PowerWatchArgs) -> Result<u8, CliError> {
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
    while left > 0 && out.is_open() && !signals::stop_requested() {
        std::thread::sleep(interval);
        if signals::stop_requested() {
            break;
        }
        let mut values = Vec::new();
        for source in &mut found {
            let power = source.read(clock.monotonic_ns());
            has_value |= !matches!(power, Power::Unavailable { .. });
            if arguments.json {
                values.push(as_json(source.name(), source.covers(), &power));
            } else {
                out.line(format_args!(
                    "{:<28} {power}; {}",
                    source.name(),
                    source.covers()
                ))?;
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

fn as_json(name: &str, covers: &str, power: &Power) -> serde_json::Value {
    let (kind, watts, text) = match power {
        Power::Measured { watts } => ("measured", Some(*watts), None),
        Power::Modelled { watts, source } => ("modelled", Some(*watts), Some(source)),
        Power::Unavailable { why } => ("unavailable", None, Some(why)),
    };
    json!({"source": name, "covers": covers, "origin": kind, "watts": watts, "why": text})
}
