//! The boards, their MPI, and whether each board can be reached. This is checked before anything is started, because a
//! launcher that cannot reach a board reports it on many lines, or not at all.

use crate::error::{CliError, describe};
use clap::Args;
use cluster::measure::{
    Address, HostEntry, Launch, Library, is_interface_name, parse_hosts, ranks_of,
};
use std::ffi::{CString, OsString};
use std::io::{self, Read};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const PROGRAM: &str = "keel-mpi";

/// Bytes read of a program's output, at most.
const SAID_BYTES_MAX: u64 = 64 << 10;

/// Timeout for a program of this machine to identify itself.
const ASK_TIME_MAX: Duration = Duration::from_secs(20);

/// Timeout for the remaining output of an ended program.
const READ_TIME_MAX: Duration = Duration::from_secs(1);

/// Timeout for a board to answer.
const REACH_TIME_MAX: Duration = Duration::from_secs(20);

/// The most names of boards in one error.
const NAMES_MAX: usize = 8;

/// Boards that are queried at the same time.
const ASKED_AT_ONCE: usize = 32;

/// The boards, and how ranks are started there.
#[derive(Debug, Args)]
pub(crate) struct BoardsArgs {
    /// File with one board per line
    #[arg(long, value_name = "FILE")]
    pub(crate) hosts: PathBuf,
    /// Path of the program keel-mpi on each board [default: beside keel, or in PATH]
    #[arg(long, value_name = "PATH")]
    pub(crate) program: Option<PathBuf>,
    /// Launcher of MPI [default: launcher of the MPI that keel-mpi is built with, in PATH]
    #[arg(long, value_name = "PATH")]
    pub(crate) mpirun: Option<PathBuf>,
    /// Program to use instead of ssh, called as PROGRAM [options] HOST COMMAND
    #[arg(long, value_name = "PATH")]
    pub(crate) launcher: Option<PathBuf>,
    /// Address at which boards reach this machine, such as 10.77.0.254/24
    #[arg(long, value_name = "ADDRESS/BITS")]
    pub(crate) address: Option<String>,
    /// Network interface of the boards that carries messages, such as eth0
    #[arg(long, value_name = "NAME")]
    pub(crate) interface: Option<String>,
    /// Send through TCP only, even between ranks that share memory; needs two hosts
    #[arg(long)]
    pub(crate) tcp: bool,
    /// Additional argument for MPI's launcher; may be repeated
    #[arg(long, value_name = "WORD", allow_hyphen_values = true)]
    pub(crate) mpi_arg: Vec<String>,
    /// Maximum duration of the command, in s, from 1 to 86400
    #[arg(long, value_name = "N", default_value_t = 3_600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds_max: u64,
    /// Timeout after which to give up if nothing arrives, in s, from 1 to 3600
    #[arg(long, value_name = "N", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub(crate) silence_seconds_max: u64,
}

/// A board that cannot be reached.
pub(crate) struct MissingBoard {
    pub(crate) name: String,
    /// How that is known.
    pub(crate) how: String,
    remedy: String,
}

impl MissingBoard {
    fn error(&self) -> CliError {
        CliError::failure(&self.name, &self.how, &self.remedy)
    }

    /// Returns the error of the first of several boards, which names the others.
    fn error_of(missing: &[Self]) -> Option<CliError> {
        let (first, others) = missing.split_first()?;
        if others.is_empty() {
            return Some(first.error());
        }
        let names: Vec<&str> = others.iter().map(|board| board.name.as_str()).collect();
        let remedy = format!("{}; not reached either: {}", first.remedy, listed(&names));
        Some(first.error().with_remedy(remedy))
    }
}

/// The answer of a board: none if all is well, the board if it cannot be reached, else what is wrong with it.
type Answer = Result<Option<MissingBoard>, CliError>;

/// Returns why a board cannot be used, by its answer.
fn unusable_text(name: &str, answer: Answer) -> Option<String> {
    match answer {
        Ok(missing) => missing.map(|board| board.how),
        Err(error) => {
            let text = error.to_string();
            let why = text.strip_prefix(&format!("{name}: ")).unwrap_or(&text);
            Some(format!("cannot be used: {why}"))
        }
    }
}

/// Returns names as text, the first ones of many.
pub(crate) fn listed<S: AsRef<str>>(names: &[S]) -> String {
    let (shown, others) = names.split_at(names.len().min(NAMES_MAX));
    let shown: Vec<&str> = shown.iter().map(AsRef::as_ref).collect();
    let shown = shown.join(", ");
    match others.len() {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Boards, an MPI, and the command line for starting ranks.
pub(crate) struct Boards {
    pub(crate) hosts: Vec<HostEntry>,
    /// The library's own description.
    pub(crate) library_text: String,
    library: Library,
    program: PathBuf,
    launcher: PathBuf,
    remote_shell: Option<PathBuf>,
    address: Option<Address>,
    interface: Option<String>,
    is_network_only: bool,
    further: Vec<String>,
}

impl Boards {
    /// Reads the list of boards and finds the programs of this machine.
    ///
    /// # Errors
    /// The list has an invalid form; keel-mpi or MPI's launcher are missing or do not match each other.
    pub(crate) fn find(arguments: &BoardsArgs) -> Result<Self, CliError> {
        let hosts = read_hosts(&arguments.hosts)?;
        if ranks_of(&hosts) < 2 {
            return Err(CliError::failure(
                arguments.hosts.display(),
                "is one rank on one host, but at least 2 ranks are needed",
                format_args!("add a board, or say `{}:2`", hosts[0].name),
            ));
        }
        check_link_options(arguments, &hosts)?;
        let program = find_program(arguments.program.as_deref())?;
        let library_text = ask_library(&program)?;
        let library = Library::of(&library_text).ok_or_else(|| {
            let said = match library_text.as_str() {
                "" => "nothing",
                said => said,
            };
            let wrong = format!(
                "is no keel-mpi built with MPICH or Open MPI: asked for its library, it said {said}"
            );
            CliError::failure(
                program.display(),
                wrong,
                "build it with scripts/mpi-build.sh, and name it with --program",
            )
        })?;
        let launcher = find_launcher(arguments.mpirun.as_deref(), library)?;
        let address = arguments.address.as_deref().map(Address::parse).transpose();
        let address =
            address.map_err(|error| CliError::usage("--address", error, "see `--help`"))?;
        if let Some(name) = &arguments.interface
            && !is_interface_name(name)
        {
            let wrong = format!("{name} is no name of an interface");
            return Err(CliError::usage(
                "--interface",
                wrong,
                "`ip link` lists them",
            ));
        }
        check_network(address, arguments.interface.as_deref(), &hosts)?;
        let remote_shell = arguments.launcher.as_deref().map(|path| {
            let absolute = std::fs::canonicalize(path);
            absolute.map_err(|error| CliError::io(path.display(), &error))
        });
        Ok(Self {
            hosts,
            library_text,
            library,
            program,
            launcher,
            remote_shell: remote_shell.transpose()?,
            address,
            interface: arguments.interface.clone(),
            is_network_only: arguments.tcp,
            further: arguments.mpi_arg.clone(),
        })
    }

    /// Returns the number of ranks on all boards.
    pub(crate) fn ranks(&self) -> u32 {
        ranks_of(&self.hosts)
    }

    /// Returns the launcher's command for ranks with these arguments; the list of boards is in a separate file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn command(
        &self,
        arguments: &[String],
        hosts_file: &Path,
    ) -> Result<Command, CliError> {
        let launch = Launch {
            library: self.library,
            hosts: &self.hosts,
            hosts_file,
            remote_shell: self.remote_shell.as_deref(),
            address: self.address,
            interface: self.interface.as_deref(),
            is_network_only: self.is_network_only,
            is_root: base::mount::effective_ids().0 == 0,
            further: &self.further,
            program: &self.program,
            arguments,
        };
        std::fs::write(hosts_file, launch.hosts_text())
            .map_err(|error| CliError::io(hosts_file.display(), &error))?;
        let mut command = Command::new(&self.launcher);
        command.args(launch.arguments());
        Ok(command)
    }

    /// Returns the launcher's name in errors.
    pub(crate) fn launcher(&self) -> &Path {
        &self.launcher
    }

    /// Queries keel-mpi on each board other than this machine.
    ///
    /// # Errors
    /// The boards that cannot be reached; the first one that lacks keel-mpi, or has another version.
    pub(crate) fn reach(&self) -> Result<(), CliError> {
        MissingBoard::error_of(&self.missing()?).map_or(Ok(()), Err)
    }

    /// Removes the boards that cannot be reached, and returns them.
    ///
    /// # Errors
    /// No board is left; another board lacks keel-mpi, or has another version.
    pub(crate) fn leave_out_missing(&mut self) -> Result<Vec<MissingBoard>, CliError> {
        let missing = self.missing()?;
        let is_there = |host: &HostEntry| missing.iter().all(|board| board.name != host.name);
        if !self.hosts.iter().any(is_there)
            && let Some(error) = MissingBoard::error_of(&missing)
        {
            return Err(error);
        }
        self.hosts.retain(is_there);
        Ok(missing)
    }

    /// Queries keel-mpi on each board other than this machine. Returns those that cannot be reached.
    ///
    /// # Errors
    /// The first board that lacks keel-mpi, or has another version.
    pub(crate) fn missing(&self) -> Result<Vec<MissingBoard>, CliError> {
        let answers = self.answers().into_iter();
        let missing = answers.filter_map(|(_, answer)| answer.transpose());
        missing.collect()
    }

    /// Queries keel-mpi on each board other than this machine. Returns the boards that cannot be used: those that
    /// cannot be reached, lack keel-mpi, or have another version.
    pub(crate) fn unusable(&self) -> Vec<(String, String)> {
        let answers = self.answers().into_iter();
        let unusable = answers.filter_map(|(name, answer)| {
            let how = unusable_text(name, answer)?;
            Some((name.to_owned(), how))
        });
        unusable.collect()
    }

    /// Queries keel-mpi on each board other than this machine. Returns the answers with the names of the boards.
    fn answers(&self) -> Vec<(&str, Answer)> {
        let mut all = Vec::new();
        let far: Vec<&HostEntry> = self
            .hosts
            .iter()
            .filter(|host| !is_here(&host.name))
            .collect();
        for some in far.chunks(ASKED_AT_ONCE) {
            let answers = std::thread::scope(|scope| {
                let asked: Vec<_> = some
                    .iter()
                    .map(|host| scope.spawn(|| self.ask(&host.name)))
                    .collect();
                let answers = asked.into_iter().map(|thread| thread.join());
                answers
                    .map(|answer| answer.unwrap_or(Ok(None)))
                    .collect::<Vec<_>>()
            });
            all.extend(some.iter().map(|host| host.name.as_str()).zip(answers));
        }
        all
    }

    /// Queries keel-mpi on a board. Returns the board if it cannot be reached.
    fn ask(&self, host: &str) -> Answer {
        let missing = |how: String, remedy: String| MissingBoard {
            name: host.to_owned(),
            how,
            remedy,
        };
        let (mut command, shell) = match &self.remote_shell {
            Some(shell) => (Command::new(shell), shell.display().to_string()),
            None => {
                let mut command = Command::new("ssh");
                command.args(["-x", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]);
                (command, "ssh".to_owned())
            }
        };
        command.arg(host).arg(&self.program).arg("library");
        let output = match output_within(&mut command, REACH_TIME_MAX) {
            Ok(Some(output)) => output,
            Ok(None) => {
                let how = format!("did not answer within {} s", REACH_TIME_MAX.as_secs());
                let remedy = "check that it is on and in the network".to_owned();
                return Ok(Some(missing(how, remedy)));
            }
            Err(error) => {
                let wrong = format!("cannot be started: {}", describe(&error));
                return Err(CliError::failure(
                    shell,
                    wrong,
                    "install it, or name another program with --launcher",
                ));
            }
        };
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let complained = last_line(&output.stderr);
        match output.status.code() {
            Some(0) if said == self.library_text => Ok(None),
            Some(0) if said.is_empty() => Err(CliError::failure(
                host,
                format_args!("its keel-mpi, asked through {shell}, said nothing"),
                format_args!(
                    "see that `{shell} {host} {} library` says the library",
                    self.program.display()
                ),
            )),
            Some(0) => {
                let wrong = format!(
                    "its keel-mpi has {said}, that of this machine {}",
                    self.library_text
                );
                Err(CliError::failure(
                    host,
                    wrong,
                    "install the same MPI on all boards",
                ))
            }
            Some(126 | 127) => {
                let wrong = format!("has no {} ({complained})", self.program.display());
                Err(CliError::failure(
                    host,
                    wrong,
                    "install keel-mpi there at the same path",
                ))
            }
            Some(255) => {
                let how = format!("cannot be reached: {complained}");
                let remedy = format!("see that `{shell} {host} true` works without a question");
                Ok(Some(missing(how, remedy)))
            }
            _ => {
                let program = self.program.display();
                let wrong = format!(
                    "{program} does not run there ({}): {complained}",
                    output.status
                );
                let remedy = format!(
                    "see that `{shell} {host} {program} library` works; the board needs the MPI's libraries, too"
                );
                Err(CliError::failure(host, wrong, remedy))
            }
        }
    }
}

/// Checks that there is a link for the options that are about one.
fn check_link_options(arguments: &BoardsArgs, hosts: &[HostEntry]) -> Result<(), CliError> {
    let [only] = hosts else { return Ok(()) };
    for (option, is_given) in [
        ("--tcp", arguments.tcp),
        ("--interface", arguments.interface.is_some()),
        (
            "--address",
            arguments.address.is_some() && is_here(&only.name),
        ),
    ] {
        if is_given {
            let wrong = "all ranks are on one host: no message passes a link";
            let remedy = "leave it out, or add a board";
            return Err(CliError::usage(option, wrong, remedy));
        }
    }
    Ok(())
}

/// Checks that this machine has the address, and the interface if it is one of the boards: MPI would wait for messages
/// that never come.
fn check_network(
    address: Option<Address>,
    interface: Option<&str>,
    hosts: &[HostEntry],
) -> Result<(), CliError> {
    if let Some(address) = address.map(Address::address) {
        let bound = UdpSocket::bind((address, 0));
        if bound.is_err_and(|error| error.kind() == io::ErrorKind::AddrNotAvailable) {
            return Err(CliError::failure(
                "--address",
                format_args!("{address} is no address of this machine"),
                "name the one at which the boards reach it: `ip -4 address` lists them",
            ));
        }
    }
    let Some(name) = interface.filter(|_| hosts.iter().any(|host| is_here(&host.name))) else {
        return Ok(());
    };
    let is_there = CString::new(name).is_ok_and(|text| {
        // SAFETY: a plain system call with a text that ends with 0.
        unsafe { libc::if_nametoindex(text.as_ptr()) != 0 }
    });
    if !is_there {
        return Err(CliError::failure(
            "--interface",
            format_args!("{name} is no interface of this machine, which is one of the boards"),
            "name the one that carries messages: `ip link` lists them",
        ));
    }
    Ok(())
}

/// Returns whether launchers start ranks there without a remote shell.
pub(crate) fn is_here(name: &str) -> bool {
    let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name == "localhost" || name == "127.0.0.1" || name == own.trim()
}

fn read_hosts(path: &Path) -> Result<Vec<HostEntry>, CliError> {
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| CliError::io(path.display(), &error))?;
    file.take(2 << 20)
        .read_to_string(&mut text)
        .map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => CliError::failure(
                path.display(),
                "is not UTF-8",
                "write one board on each line",
            ),
            _ => CliError::io(path.display(), &error),
        })?;
    parse_hosts(&text).map_err(|error| {
        CliError::failure(
            path.display(),
            error,
            "write one board on each line: NAME, NAME:RANKS or NAME slots=RANKS",
        )
    })
}

/// Returns keel-mpi; the boards must have it at the same path.
fn find_program(named: Option<&Path>) -> Result<PathBuf, CliError> {
    let beside = || {
        Some(std::env::current_exe().ok()?.parent()?.join(PROGRAM)).filter(|path| path.is_file())
    };
    let found = match named {
        Some(path) => Some(path.to_path_buf()),
        None => beside().or_else(|| in_path(PROGRAM)),
    };
    let Some(found) = found else {
        return Err(CliError::failure(
            PROGRAM,
            "not found beside this program or in PATH",
            "build it with scripts/mpi-build.sh, or name it with --program",
        ));
    };
    std::fs::canonicalize(&found).map_err(|error| CliError::io(found.display(), &error))
}

fn ask_library(program: &Path) -> Result<String, CliError> {
    let remedy = "install the MPI that it was built with (mpich or openmpi-bin), or build it anew";
    let output = output_within(Command::new(program).arg("library"), ASK_TIME_MAX)
        .map_err(|error| CliError::io(program.display(), &error))?
        .ok_or_else(|| CliError::failure(program.display(), "does not say its library", remedy))?;
    if !output.status.success() {
        let wrong = format!("does not run: {}", last_line(&output.stderr));
        return Err(CliError::failure(program.display(), wrong, remedy));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Returns the launcher of that library: another library's launcher would start each rank alone.
fn find_launcher(named: Option<&Path>, library: Library) -> Result<PathBuf, CliError> {
    let package = match library {
        Library::Mpich => "mpich",
        Library::OpenMpi => "openmpi-bin",
    };
    let is_of_it = |path: &Path| -> io::Result<bool> {
        let output = output_within(Command::new(path).arg("--version"), ASK_TIME_MAX)?;
        let said = output.map_or(String::new(), |output| {
            let both = [output.stdout, output.stderr].concat();
            String::from_utf8_lossy(&both).into_owned()
        });
        Ok(Library::of(&said) == Some(library))
    };
    if let Some(path) = named {
        return match is_of_it(path) {
            Ok(true) => Ok(path.to_path_buf()),
            Ok(false) => Err(CliError::failure(
                path.display(),
                format_args!(
                    "is no launcher of {}, which keel-mpi is built with",
                    library.name()
                ),
                format_args!("name that of {}", library.name()),
            )),
            Err(error) => Err(CliError::io(path.display(), &error)),
        };
    }
    let mut there = library.launchers().iter().filter_map(|name| in_path(name));
    there
        .find(|path| is_of_it(path).unwrap_or(false))
        .ok_or_else(|| {
            CliError::failure(
                library.name(),
                format_args!(
                    "its launcher is not in PATH ({})",
                    library.launchers().join(", ")
                ),
                format_args!("install it (apt-get install {package}), or name it with --mpirun"),
            )
        })
}

fn in_path(name: &str) -> Option<PathBuf> {
    let path: OsString = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}

/// Returns the output and exit status of a program; `None` if it took too long and was killed.
fn output_within(command: &mut Command, time: Duration) -> io::Result<Option<Output>> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let readers = (
        child.stdout.take().map(read_all),
        child.stderr.take().map(read_all),
    );
    let status = wait_within(&mut child, time)?;
    if status.is_none() {
        child.kill().ok();
        child.wait().ok();
        // Its children may hold the pipes open, so do not wait for the readers.
        return Ok(None);
    }
    // A process that it left behind, such as the master connection of ssh, may hold the pipes, too: use a timeout.
    let collect = |said: Option<Said>| {
        let Some(said) = said else {
            return Vec::new();
        };
        said.ended.recv_timeout(READ_TIME_MAX).ok();
        std::mem::take(&mut *said.bytes.lock().unwrap_or_else(PoisonError::into_inner))
    };
    Ok(status.map(|status| Output {
        status,
        stdout: collect(readers.0),
        stderr: collect(readers.1),
    }))
}

/// The data read from a pipe, and whether the pipe has ended.
struct Said {
    bytes: Arc<Mutex<Vec<u8>>>,
    ended: Receiver<()>,
}

fn read_all(pipe: impl Read + Send + 'static) -> Said {
    let bytes = Arc::new(Mutex::new(Vec::new()));
    let (sender, ended) = sync_channel(1);
    let read = Arc::clone(&bytes);
    std::thread::spawn(move || {
        let mut pipe = pipe.take(SAID_BYTES_MAX);
        let mut piece = [0; 4096];
        // A read error counts as the end.
        while let Ok(count @ 1..) = pipe.read(&mut piece) {
            let mut read = read.lock().unwrap_or_else(PoisonError::into_inner);
            read.extend_from_slice(&piece[..count]);
        }
        sender.send(()).ok();
    });
    Said { bytes, ended }
}

/// Returns the exit status of a child that ended in time.
pub(crate) fn wait_within(
    child: &mut Child,
    time: Duration,
) -> io::Result<Option<std::process::ExitStatus>> {
    let begun = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if begun.elapsed() >= time {
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// Returns the last line with words: Open MPI frames its texts with dashes.
pub(crate) fn last_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.lines().rev().map(str::trim);
    let last = lines.find(|line| line.chars().any(char::is_alphanumeric));
    last.unwrap_or("it said nothing")
        .chars()
        .take(200)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_board_that_answers_wrongly_cannot_be_used_for_that_reason() {
        let missing = MissingBoard {
            name: "b2".to_owned(),
            how: "cannot be reached: no route to host".to_owned(),
            remedy: String::new(),
        };
        let faulty = CliError::failure("b2", "has no keel-mpi (not found)", "install it");
        assert_eq!(unusable_text("b2", Ok(None)), None);
        let how = unusable_text("b2", Ok(Some(missing)));
        assert_eq!(how.as_deref(), Some("cannot be reached: no route to host"));
        let how = unusable_text("b2", Err(faulty)).expect("a reason");
        assert!(
            how.starts_with("cannot be used: has no keel-mpi (not found)"),
            "{how}"
        );
    }
}
