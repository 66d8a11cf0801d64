//! A launcher of MPI that first measures the time of a cache line between the cores of the ranks. `keel cluster
//! measure` starts its ranks with it, so each start of a run has its time.
//!
//! **Invariants:** the launcher itself takes the place of this process, with its cores. A time that cannot be measured
//! or kept ends the start.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::bed::find_launcher;
use super::cores::{core_to_core_ns, cores_of_ranks};
use super::mpi::Mpi;
use crate::realtime;

/// The ending of a file of times.
pub(crate) const TIMES: &str = "cores";

/// The word in the arguments of a start. The launcher is also asked for its version.
const START: &str = "measure";

/// `keel-bench cluster-launch`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Options {
    /// The MPI whose launcher is meant.
    #[arg(long, value_name = "MPI")]
    mpi: Mpi,
    /// File to which the time is appended, in ns.
    #[arg(long, value_name = "FILE")]
    times: PathBuf,
    /// Arguments of the launcher.
    #[arg(last = true)]
    arguments: Vec<OsString>,
}

/// Measures the time if this is a start, and becomes the launcher.
///
/// # Errors
/// One line; the launcher does not run then.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let launcher = find_launcher(options.mpi)?;
    if is_start(&options.arguments)
        && let Some(cores) = cores_of_ranks(&realtime::cores())
    {
        append(&options.times, core_to_core_ns(cores)?)?;
    }
    let error = Command::new(&launcher).args(&options.arguments).exec();
    Err(format!("{}: {error}", launcher.display()))
}

fn is_start(arguments: &[OsString]) -> bool {
    arguments.iter().any(|word| word == START)
}

fn append(path: &Path, time: f64) -> Result<(), String> {
    let file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path);
    file.and_then(|mut file| writeln!(file, "{time}"))
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// Writes a program that does this, for an option that takes a launcher without arguments.
///
/// # Errors
/// One line that names the file.
pub(crate) fn write_script(mpi: Mpi, times: &Path, path: &Path) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let own = std::env::current_exe().map_err(|error| failed(&error))?;
    // The launcher may run in another working directory.
    let times = std::path::absolute(times).map_err(|error| failed(&error))?;
    let text = script(mpi, &own, &times).ok_or_else(|| failed(&"a path in it is not UTF-8"))?;
    std::fs::write(path, text).map_err(|error| failed(&error))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
        .map_err(|error| failed(&error))
}

fn script(mpi: Mpi, own: &Path, times: &Path) -> Option<String> {
    let quoted = |path: &Path| Some(format!("'{}'", path.to_str()?.replace('\'', r"'\''")));
    Some(format!(
        "#!/bin/sh\nexec {} cluster-launch --mpi {} --times {} -- \"$@\"\n",
        quoted(own)?,
        mpi.name(),
        quoted(times)?
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::cores::read_times;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn only_a_start_is_measured_and_the_launcher_gets_its_arguments_as_they_are() {
        let parse = |words: &[&str]| {
            let before = ["l", "--mpi", "openmpi", "--times", "t", "--"];
            let line = Line::try_parse_from(before.iter().chain(words).copied());
            line.expect("arguments").options
        };
        let start = [
            "-n",
            "2",
            "--bind-to",
            "none",
            "/bin/keel-mpi",
            "measure",
            "{}",
        ];
        let options = parse(&start);
        assert_eq!(options.mpi, Mpi::Openmpi);
        assert_eq!(options.arguments, start.map(OsString::from));
        assert!(is_start(&options.arguments));
        assert!(!is_start(&parse(&["--version"]).arguments));
    }

    #[test]
    fn times_are_appended_in_the_order_of_the_starts() {
        let name = format!("keel-bench-appended-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::remove_file(&path).ok();
        for time in [61.25, 140.0] {
            append(&path, time).expect("a file");
        }
        assert_eq!(read_times(&path), Ok(vec![61.25, 140.0]));
        std::fs::remove_file(&path).expect("the file");
    }

    #[test]
    fn the_script_quotes_its_paths() {
        let found = script(Mpi::Mpich, Path::new("/a b/keel-bench"), Path::new("/it's"));
        let expected = "#!/bin/sh\nexec '/a b/keel-bench' cluster-launch --mpi mpich --times '/it'\\''s' -- \"$@\"\n";
        assert_eq!(found.as_deref(), Some(expected));
    }
}
