//! A system under measurement as a process: its processor time, its memory, and how it is ended.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Timeout for a process to end after SIGTERM.
const END_MAX: Duration = Duration::from_secs(20);

/// A child. Dropping it kills it.
pub(crate) struct Process {
    name: String,
    child: Child,
}

impl Process {
    /// Starts `command`; its output goes to the file `log`.
    pub(crate) fn spawn(name: &str, command: &mut Command, log: &Path) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("{name}: {error}");
        let output = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(log)
            .map_err(failed)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone().map_err(failed)?)
            .stderr(output)
            .spawn()
            .map_err(failed)?;
        Ok(Self {
            name: name.to_owned(),
            child,
        })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the processor time of all its threads in nanoseconds, including threads that have ended.
    pub(crate) fn cpu_ns(&self) -> Result<u64, String> {
        cpu_ns_of(self.id()).map_err(|error| format!("{}: {error}", self.name))
    }

    /// Returns the resident memory now and its maximum so far, in MiB.
    pub(crate) fn resident_mebibytes(&self) -> Result<(f64, f64), String> {
        let path = format!("/proc/{}/status", self.id());
        let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        let figure =
            |key: &str| kibibytes_in_status(&text, key).ok_or_else(|| format!("{path}: no {key}"));
        Ok((figure("VmRSS:")? / 1024.0, figure("VmHWM:")? / 1024.0))
    }

    /// Returns an error if the process has ended by itself.
    pub(crate) fn check_alive(&mut self) -> Result<(), String> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(format!("{} ended: {status}", self.name)),
            Err(error) => Err(format!("{}: {error}", self.name)),
        }
    }

    /// Kills the process with SIGKILL.
    pub(crate) fn kill(mut self) -> Result<(), String> {
        let failed = |error: std::io::Error| error.to_string();
        self.child.kill().map_err(failed)?;
        self.child.wait().map_err(failed)?;
        Ok(())
    }

    /// Sends SIGTERM and waits until the process has ended.
    pub(crate) fn end(mut self) -> Result<ExitStatus, String> {
        let pid = libc::pid_t::try_from(self.id()).map_err(|error| error.to_string())?;
        // SAFETY: no memory is passed; the child has not been waited for, so its process ID is not reused.
        unsafe { libc::kill(pid, libc::SIGTERM) };
        let begin = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) if begin.elapsed() > END_MAX => {
                    return Err(format!("{} does not end", self.name));
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                Err(error) => return Err(format!("{}: {error}", self.name)),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the processor time of all threads of a process in nanoseconds, including threads that have ended.
pub(crate) fn cpu_ns_of(process: u32) -> std::io::Result<u64> {
    let pid = libc::pid_t::try_from(process).map_err(std::io::Error::other)?;
    let mut clock: libc::clockid_t = 0;
    // SAFETY: `clock` is writable for the length of the call.
    let error = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
    if error != 0 {
        return Err(std::io::Error::from_raw_os_error(error));
    }
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid, exclusively borrowed `timespec` for the length of the call.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Returns a figure of `/proc/ID/status` or of a file of the same form, in KiB.
pub(crate) fn kibibytes_in_status(status: &str, key: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_and_memory_of_a_child_are_seen_and_its_end_too() {
        let log = std::env::temp_dir().join(format!("keel-bench-process-{}", std::process::id()));
        let child = Process::spawn("sleep", Command::new("sleep").arg("60"), &log).unwrap();
        assert!(child.cpu_ns().is_ok());
        let (now, most) = child.resident_mebibytes().unwrap();
        assert!(now <= most);
        assert!(!child.end().unwrap().success());
        let mut gone = Process::spawn("true", &mut Command::new("true"), &log).unwrap();
        while gone.check_alive().is_ok() {
            std::thread::sleep(Duration::from_millis(5));
        }
        fs::remove_file(&log).unwrap();
    }

    #[test]
    fn status_lines_are_found_by_their_key() {
        assert_eq!(
            kibibytes_in_status("VmHWM:\t  20 kB\nVmRSS:\t 10 kB\n", "VmRSS:"),
            Some(10.0)
        );
        assert_eq!(kibibytes_in_status("", "VmRSS:"), None);
    }
}
