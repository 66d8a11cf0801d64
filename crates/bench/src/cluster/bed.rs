//! How both programs are started: two ranks on this machine, or on two emulated boards with a link of a known rate.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cluster::measure::{
    Address, Case, Event, HostEntry, Launch, Library, Plan, Steps, parse_event,
};
use cluster::results::Benchmark;

use super::mpi::Mpi;

/// The script that emulates boards, shared with the tests.
const BOARDS_SCRIPT: &str = include_str!("../../../keel-mpi/boards/boards.sh");

/// Exit status of the script if emulation is not permitted.
const STATUS_SKIPPED: i32 = 77;

/// Rate of the link between two boards.
const LINE_RATE: &str = "1gbit";
const LINE_BURST: &str = "32kb";
pub(crate) const LINE: &str = "1 Gbit/s, burst 32 kB, tbf both ways";

/// Timeout of a run.
const RUN_TIME_MAX: Duration = Duration::from_secs(900);

/// The path of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Memory,
    Link,
}

impl Way {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Link => "link",
        }
    }
}

/// Which of the two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    Ours,
    C,
}

/// Microseconds of one operation in each sample of each case.
pub(crate) type Found = BTreeMap<(Benchmark, u64), Vec<f64>>;

/// An MPI with both programs built for it.
pub(crate) struct Bed {
    pub(crate) mpi: Mpi,
    pub(crate) library_text: String,
    pub(crate) keel_mpi: PathBuf,
    loops: PathBuf,
    launcher: PathBuf,
    folder: PathBuf,
}

impl Bed {
    /// Finds the programs that scripts/mpi-build.sh has built.
    ///
    /// # Errors
    /// One line that says what is missing.
    pub(crate) fn find(mpi: Mpi, programs: Option<&Path>, scratch: &Path) -> Result<Self, String> {
        let beside = || {
            let own = std::env::current_exe().ok()?;
            let profile = own.parent()?;
            Some(profile.parent()?.to_path_buf())
        };
        let target = programs
            .map(Path::to_path_buf)
            .or_else(beside)
            .unwrap_or_default();
        let build = if cfg!(debug_assertions) {
            "debug"
        } else {
            "release"
        };
        let folder = target.join(format!("mpi-{}", mpi.name())).join(build);
        let there = |name: &str| {
            let path = folder.join(name);
            let missing = format!(
                "{} is not there: scripts/mpi-build.sh builds it",
                path.display()
            );
            if path.is_file() {
                Ok(path)
            } else {
                Err(missing)
            }
        };
        let (keel_mpi, loops) = (there("keel-mpi")?, there("loops")?);
        let said = Command::new(&keel_mpi)
            .arg("library")
            .stdin(Stdio::null())
            .output();
        let said = said.map_err(|error| format!("{}: {error}", keel_mpi.display()))?;
        let library_text = String::from_utf8_lossy(&said.stdout).trim().to_owned();
        if Library::of(&library_text) != Some(library(mpi)) {
            return Err(format!(
                "{} has another library: {library_text}",
                keel_mpi.display()
            ));
        }
        Ok(Self {
            mpi,
            library_text,
            keel_mpi,
            loops,
            launcher: find_launcher(mpi)?,
            folder: scratch.to_path_buf(),
        })
    }

    /// Returns the folder for files of this run.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Runs a program once. Returns `None` if boards cannot be emulated here.
    ///
    /// # Errors
    /// If the program failed or took too long.
    pub(crate) fn run(
        &self,
        program: Program,
        way: Way,
        cases: &[Case],
        samples: usize,
    ) -> Result<Option<Found>, String> {
        let (path, arguments) = match program {
            Program::Ours => (&self.keel_mpi, ours(cases, samples)?),
            Program::C => (&self.loops, plain(cases, samples)),
        };
        let names = match way {
            Way::Memory => vec![("localhost", 2)],
            Way::Link => vec![("b1", 1), ("b2", 1)],
        };
        let hosts: Vec<HostEntry> = names
            .into_iter()
            .map(|(name, ranks)| HostEntry {
                name: name.to_owned(),
                ranks,
            })
            .collect();
        let hosts_file = self.folder.join("mpi-hosts");
        let shell = self.folder.join("shell");
        let is_far = way == Way::Link;
        let address = Address::parse("10.77.0.254/24").map_err(|error| error.to_string())?;
        let launch = Launch {
            library: library(self.mpi),
            hosts: &hosts,
            hosts_file: &hosts_file,
            remote_shell: is_far.then_some(&shell),
            address: is_far.then_some(address),
            interface: is_far.then_some("eth0"),
            is_network_only: is_far,
            is_root: base::mount::effective_ids().0 == 0,
            further: &[],
            program: path,
            arguments: &arguments,
        };
        let failed =
            |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        fs::write(&hosts_file, launch.hosts_text()).map_err(|error| failed(&hosts_file, &error))?;
        let mut command = match way {
            Way::Memory => Command::new(&self.launcher),
            Way::Link => {
                let script = self.folder.join("boards.sh");
                fs::write(&script, BOARDS_SCRIPT).map_err(|error| failed(&script, &error))?;
                let mut command = Command::new("bash");
                command.arg(&script).arg("--dir").arg(&self.folder);
                command.args([
                    "--boards", "2", "--rate", LINE_RATE, "--burst", LINE_BURST, "--",
                ]);
                command.arg(&self.launcher);
                command
            }
        };
        command.args(launch.arguments());
        let Some(said) = self.said(&mut command)? else {
            return Ok(None);
        };
        let found = match program {
            Program::Ours => read_ours(&said)?,
            Program::C => read_plain(&said)?,
        };
        let is_whole = cases.iter().all(|case| {
            found
                .get(&(case.benchmark, case.bytes))
                .is_some_and(|found| found.len() == samples)
        });
        if !is_whole {
            return Err(format!(
                "{} has left out a case, or samples of one",
                path.display()
            ));
        }
        Ok(Some(found))
    }

    /// Runs a command and returns its output, which goes through a file because it is large. `None` if boards cannot be
    /// emulated here.
    pub(crate) fn said(&self, command: &mut Command) -> Result<Option<String>, String> {
        let (out, complaints) = (self.folder.join("said"), self.folder.join("complaints"));
        let create = |path: &Path| {
            fs::File::create(path).map_err(|error| format!("{}: {error}", path.display()))
        };
        command
            .stdin(Stdio::null())
            .stdout(create(&out)?)
            .stderr(create(&complaints)?);
        let name = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .spawn()
            .map_err(|error| format!("{name}: {error}"))?;
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = child
                .try_wait()
                .map_err(|error| format!("{name}: {error}"))?
            {
                break status;
            }
            let interrupted = crate::scratch::check_interrupted();
            if interrupted.is_err() || begun.elapsed() > RUN_TIME_MAX {
                child.kill().ok();
                child.wait().ok();
                interrupted?;
                return Err(format!(
                    "{name}: not done after {} s",
                    RUN_TIME_MAX.as_secs()
                ));
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let read = |path: &Path| {
            fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
        };
        match status.code() {
            Some(0) => Ok(Some(read(&out)?)),
            Some(STATUS_SKIPPED) => Ok(None),
            _ => {
                let text = read(&complaints)?;
                let last = text
                    .lines()
                    .rev()
                    .find(|line| !line.trim().is_empty())
                    .unwrap_or("it said nothing");
                Err(format!("{name}: {status}: {last}"))
            }
        }
    }
}

/// Finds the launcher of an MPI.
///
/// # Errors
/// One line that names what is not in PATH.
pub(crate) fn find_launcher(mpi: Mpi) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let launcher = library(mpi).launchers().iter().find_map(|name| {
        std::env::split_paths(&path)
            .map(|folder| folder.join(name))
            .find(|path| path.is_file())
    });
    launcher.ok_or_else(|| {
        format!(
            "its launcher {} is not in PATH",
            library(mpi).launchers()[0]
        )
    })
}

fn library(mpi: Mpi) -> Library {
    match mpi {
        Mpi::Mpich => Library::Mpich,
        Mpi::Openmpi => Library::OpenMpi,
    }
}

/// Returns the arguments for keel-mpi: `samples` samples of each case, in this order.
fn ours(cases: &[Case], samples: usize) -> Result<Vec<String>, String> {
    let plan = Plan {
        ranks: 2,
        cases: cases.to_vec(),
        steps: Steps::Sound {
            half_width_max: 0.5,
            samples_min: samples,
            samples_max: samples,
            sample_us_min: 0.0,
            case_ms_max: 60_000,
        },
        pin: true,
        power: None,
        seconds_max: RUN_TIME_MAX.as_secs(),
    };
    Ok(vec![
        "measure".to_owned(),
        plan.text().map_err(|error| error.to_string())?,
    ])
}

/// Returns the same for the program in C.
fn plain(cases: &[Case], samples: usize) -> Vec<String> {
    let mut words = vec!["1".to_owned(), samples.to_string()];
    words.extend(cases.iter().map(|case| {
        format!(
            "{}:{}:{}",
            case.benchmark.name(),
            case.bytes,
            case.iterations.unwrap_or(1)
        )
    }));
    words
}

fn read_ours(said: &str) -> Result<Found, String> {
    let mut found = Found::new();
    for event in said.lines().filter_map(parse_event) {
        match event.map_err(|error| error.to_string())? {
            Event::Row { row } => {
                found.insert((row.benchmark, row.bytes), row.samples_us);
            }
            Event::Failed { why, .. } => return Err(why),
            _ => {}
        }
    }
    Ok(found)
}

fn read_plain(said: &str) -> Result<Found, String> {
    let mut found = Found::new();
    for line in said.lines() {
        let mut words = line.split(' ');
        let name = words.next().unwrap_or_default();
        let Some(benchmark) = Benchmark::ALL
            .into_iter()
            .find(|benchmark| benchmark.name() == name)
        else {
            return Err(format!("loops: says `{line}`"));
        };
        let numbers: Option<Vec<f64>> = words.map(|word| word.parse().ok()).collect();
        match numbers.as_deref() {
            Some([bytes, _, samples @ ..])
                if samples.iter().all(|us| us.is_finite() && *us > 0.0) =>
            {
                found.insert((benchmark, *bytes as u64), samples.to_vec());
            }
            _ => return Err(format!("loops: says `{line}`")),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_programs_get_the_same_cases_and_are_read_alike() {
        let cases = [Case {
            benchmark: Benchmark::Reduce,
            bytes: 64,
            iterations: Some(7),
        }];
        assert_eq!(plain(&cases, 3), ["1", "3", "reduce:64:7"]);
        let plan = Plan::parse(&ours(&cases, 3).expect("fits")[1]).expect("a plan");
        assert_eq!(plan.cases, cases);
        let found = read_plain("reduce 64 7 1.5 2.5 3.5\n").expect("numbers");
        assert_eq!(found[&(Benchmark::Reduce, 64)], [1.5, 2.5, 3.5]);
        for wrong in [
            "reduce 64",
            "other 64 7 1.5",
            "reduce 64 7 0",
            "reduce 64 7 nan",
            "a warning",
        ] {
            assert!(read_plain(wrong).is_err(), "{wrong}");
        }
    }
}
