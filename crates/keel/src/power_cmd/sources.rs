//! Selects the sensors that a command reads.

use crate::cli::PowerSourceArgs;
use crate::error::CliError;
use base::clock::SystemClock;
use cluster::power::{Meter, Pmic, Root, Source, discover, why_none};
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Timeout of the firmware's program; the firmware answers within milliseconds.
const PMIC_TIME_MAX: Duration = Duration::from_secs(2);

/// Bytes of its answer that are read, at most.
const PMIC_BYTES_MAX: u64 = 64 << 10;

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
        found.push(Box::new(Pmic::new(Box::new(pmic_text))));
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

fn pmic_text() -> Result<String, String> {
    let mut child = Command::new("vcgencmd")
        .arg("pmic_read_adc")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("vcgencmd: {}", crate::error::describe(&error)))?;
    let start = Instant::now();
    // Its answer is smaller than the pipe, so it can end before the answer is read.
    let ended = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Ok(status),
            Ok(None) if start.elapsed() < PMIC_TIME_MAX => {
                std::thread::sleep(Duration::from_millis(1))
            }
            Ok(None) => {
                break Err(format!(
                    "vcgencmd does not end within {} s",
                    PMIC_TIME_MAX.as_secs()
                ));
            }
            Err(error) => break Err(format!("vcgencmd: {error}")),
        }
    };
    let status = ended.inspect_err(|_| {
        child.kill().ok();
        child.wait().ok();
    })?;
    if !status.success() {
        return Err(format!(
            "vcgencmd ended with {status}: is this a Raspberry Pi 5?"
        ));
    }
    let mut text = String::new();
    let output = child.stdout.take().ok_or("vcgencmd has no output")?;
    output
        .take(PMIC_BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(|error| format!("vcgencmd: {error}"))?;
    Ok(text)
}
