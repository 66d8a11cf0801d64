//! Runs programs for a measurement: collects their output, and kills those that do not end in time.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::scratch::check_interrupted;

/// Poll interval for the end of a program; long enough to use little processor time.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The limits of a program.
pub(crate) struct Limits<'a> {
    /// Folder for its output while it runs.
    pub(crate) folder: &'a Path,
    pub(crate) time: Duration,
}

impl<'a> Limits<'a> {
    /// Limits for programs that end by themselves after seconds.
    pub(crate) fn new(folder: &'a Path) -> Self {
        Self {
            folder,
            time: Duration::from_secs(60),
        }
    }
}

/// Runs a program to its end. Returns its standard output.
///
/// # Errors
/// One line: the last output of the program when it failed, that it took too long, or that the user has asked to stop.
pub(crate) fn output(
    name: &str,
    command: &mut Command,
    limits: &Limits<'_>,
) -> Result<String, String> {
    check_interrupted()?;
    let failed = |error: std::io::Error| format!("{name}: {error}");
    let paths = ["stdout", "stderr"].map(|stream| limits.folder.join(stream));
    let mut child = command
        .stdin(Stdio::null())
        .stdout(File::create(&paths[0]).map_err(failed)?)
        .stderr(File::create(&paths[1]).map_err(failed)?)
        .spawn()
        .map_err(failed)?;
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            break status;
        }
        if started.elapsed() > limits.time || check_interrupted().is_err() {
            child.kill().map_err(failed)?;
            child.wait().map_err(failed)?;
            check_interrupted()?;
            return Err(format!(
                "{name}: it had not ended after {} s",
                limits.time.as_secs()
            ));
        }
        std::thread::sleep(LOOK_EVERY);
    };
    check_interrupted()?;
    let [text, errors] = paths.map(|path| {
        let bytes = std::fs::read(path).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    });
    if status.success() {
        return Ok(text);
    }
    let line = errors
        .lines()
        .next()
        .unwrap_or("it failed and said nothing");
    let line = line.strip_prefix("keel-bench: ").unwrap_or(line);
    Err(format!("{name}: {line} ({status})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str, time_ms: u64) -> Result<String, String> {
        let number = std::process::id();
        let folder = std::env::temp_dir().join(format!("keel-bench-child-{number}-{time_ms}"));
        std::fs::create_dir(&folder).unwrap();
        let limits = Limits {
            folder: &folder,
            time: Duration::from_millis(time_ms),
        };
        let mut command = Command::new("sh");
        let done = output("sh", command.args(["-c", script]), &limits);
        std::fs::remove_dir_all(&folder).unwrap();
        done
    }

    #[test]
    fn output_failure_and_patience_are_told_apart() {
        assert_eq!(run("echo 7; echo beside >&2", 60_000), Ok("7\n".to_owned()));
        let failed = run("echo 7; echo no such luck >&2; exit 3", 60_001).unwrap_err();
        assert!(
            failed.contains("no such luck") && failed.contains('3'),
            "{failed}"
        );
        let late = run("exec sleep 600", 50).unwrap_err();
        assert!(late.contains("had not ended"), "{late}");
    }
}
