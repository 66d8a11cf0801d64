//! `keel mem run`: a program with the library of the region preloaded.

use super::program::{self, Unserved};
use super::saver::{Plan, Saver};
use crate::error::{CliError, STATUS_FAILURE};
use clap::{Args, ValueEnum};
use mem::Attachment;
use node::regions::{CHECKPOINT_NAME, clear_up, limit_of_descriptors, region_error};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Name of the library, beside this program, or in `../lib/keel`.
const LIBRARY: &str = "libkeelmem.so";

/// Architectures for which the library exists, as [`std::env::consts::ARCH`] names them.
const LIBRARY_ARCHITECTURES: [&str; 2] = ["x86_64", "aarch64"];

/// Environment variable with the path of the library, if it is installed elsewhere.
const LIBRARY_VARIABLE: &str = "KEEL_MEM_LIBRARY";

/// Environment variable that tells the library where the region appears.
const AT_VARIABLE: &str = "KEEL_MEM_AT";

/// Time between two sweeps for what dead processes have left.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Sweeps per memory lock: every tenth sweep also locks the memory.
const SWEEPS_PER_LOCK: u32 = 10;

/// Timeout of the greeting: a program that has not greeted by then does not use the library.
const GREETING_MAX: Duration = Duration::from_secs(5);

/// The lowest number of the greeting's descriptor in the program, which may need low ones itself.
const GREETING_DESCRIPTOR_MIN: libc::c_int = 100;

/// Longest path at which the region may appear: the kernel accepts no longer path, and a name follows it.
const AT_BYTES_MAX: usize = libc::PATH_MAX as usize - 2;

/// Exit statuses, the same as a shell's.
const STATUS_NOT_STARTED: u8 = 126;
const STATUS_NOT_FOUND: u8 = 127;
const STATUS_SIGNAL: i32 = 128;

/// Signals sent to this process that are forwarded. The terminal's signals reach the program anyway.
const PASSED_ON: [libc::c_int; 7] = [
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGHUP,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
];

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel mem run /dev/hugepages/plant --at /keel -- python3 collect.py /keel/readings\n  \
    keel mem run /dev/hugepages/plant --at /keel -- sh -c 'cp -r data /keel/; sqlite3 /keel/data/plant.db .dump'\n  \
    keel mem run /dev/hugepages/plant --at /keel --mode posix -- gzip -k /keel/log\n\n\
    The program and all programs that it starts find the region's files below --at; every other path is the\n\
    kernel's. The program must be linked dynamically with the C library of this system; for static programs, Go and\n\
    setuid use `keel mem mount`. Signals are forwarded. The exit status is that of the program: 128 plus the signal\n\
    number if a signal ended it, 127 if it was not found, 126 if it could not be started. Several `keel mem run`\n\
    may use a region at the same time, and save to the same IMAGE: they take turns. While another program has IMAGE\n\
    open, the program runs without checkpoints; the command reports this, and tries to save again every --every-s\n\
    seconds.")]
pub(crate) struct RunArgs {
    /// File of the region
    region: PathBuf,
    /// Path of the region in the program; it need not exist, and hides what is there
    #[arg(long, value_name = "PATH")]
    at: PathBuf,
    /// What a dead writer may leave
    #[arg(long, value_enum, default_value_t = Mode::Sync)]
    mode: Mode,
    /// Flash store to save all files in, every --every-s seconds, at the end, and at SIGTERM
    #[arg(long, value_name = "IMAGE")]
    checkpoint: Option<PathBuf>,
    /// Name of the checkpoint
    #[arg(long, default_value = CHECKPOINT_NAME, requires = "checkpoint")]
    name: String,
    /// Interval between two checkpoints, in s, from 1 to 86400: a power cut loses at most this
    #[arg(long, value_name = "N", default_value_t = 60, requires = "checkpoint",
        value_parser = clap::value_parser!(u32).range(1..=86_400))]
    every_s: u32,
    /// Fail, instead of a warning, if the program does not use the region's library
    #[arg(long)]
    strict: bool,
    /// Program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// State of a write whose writer dies during it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Names, sizes and space are consistent; any part of the bytes of a write may be there
    Posix,
    /// A write of up to 16 KiB is there completely or not at all
    Sync,
}

impl Mode {
    /// As the library is told.
    fn text(self) -> &'static str {
        match self {
            Self::Posix => "posix",
            Self::Sync => "sync",
        }
    }
}

pub(super) fn run(arguments: &RunArgs) -> Result<u8, CliError> {
    let region = &arguments.region;
    // Check the arguments before the installation.
    let attachment = Arc::new(attach(region, &arguments.at)?);
    let library = library()?;
    let plan = arguments.checkpoint.as_ref().map(|image| Plan {
        region: region.clone(),
        image: image.clone(),
        name: arguments.name.clone(),
        every_s: arguments.every_s,
    });
    let busy = plan.as_ref().map_or(Ok(None), Plan::look)?;
    let warnings = [hidden(&attachment), busy.clone()];
    for warning in warnings.into_iter().flatten() {
        eprintln!("keel: {warning}");
    }
    // Relative paths would change their meaning when the program changes its directory.
    let absolute =
        std::fs::canonicalize(region).map_err(|error| CliError::io(region.display(), &error))?;
    let (name, rest) = arguments.command.split_first().unwrap_or((
        // The command line parser requires a command.
        &arguments.command[0],
        &[],
    ));
    let found = program::find(name);
    let unserved = found.as_deref().and_then(program::unserved);
    let mut greeting = Greeting::new(arguments)?;
    if let Some(unserved) = unserved {
        greeting.tell_unserved(Some(&unserved))?;
    }
    let signals = Signals::block();
    let mut command = Command::new(name);
    command
        .args(rest)
        .env("LD_PRELOAD", preload(&library))
        .env("KEEL_MEM_REGION", &absolute)
        .env(AT_VARIABLE, OsStr::from_bytes(attachment.at()))
        .env("KEEL_MEM_MODE", arguments.mode.text())
        .env("KEEL_MEM_HANDSHAKE", greeting.descriptor().to_string());
    signals.stay_here(&mut command);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return not_started(name, &attachment, &error),
    };
    greeting.close_own();
    let saver = plan
        .map(|plan| Saver::start(&attachment, plan, busy.unwrap_or_default()))
        .transpose()?;
    let attended = attend(
        &mut child,
        &signals,
        &attachment,
        &mut greeting,
        saver.as_ref(),
    );
    // Clear up what the program has left behind.
    clear_up(&attachment, false);
    drop(saver);
    let status = attended?;
    greeting.end()?;
    Ok(match status.code() {
        Some(code) => u8::try_from(code).unwrap_or(STATUS_FAILURE),
        None => u8::try_from(STATUS_SIGNAL + status.signal().unwrap_or(0)).unwrap_or(u8::MAX),
    })
}

fn attach(region: &Path, at: &Path) -> Result<Attachment, CliError> {
    let at = at.as_os_str().as_bytes();
    if at.len() > AT_BYTES_MAX {
        return Err(CliError::usage(
            "--at",
            format_args!("a path of {} bytes, of at most {AT_BYTES_MAX}", at.len()),
            "choose a shorter one, such as --at /keel",
        ));
    }
    let opened = match Attachment::open(region, at, true) {
        // A user without write permission can still run programs that read.
        Err(mem::Error::System { source, .. })
            if matches!(
                source.raw_os_error(),
                Some(libc::EACCES | libc::EPERM | libc::EROFS)
            ) =>
        {
            Attachment::open(region, at, false)
        }
        other => other,
    };
    opened.map_err(|error| match error {
        mem::Error::Invalid { what } => CliError::usage("--at", what, "such as --at /keel"),
        other => region_error(region, &other),
    })
}

/// Returns a warning about files that the program does not see, because the region appears in their place.
fn hidden(attachment: &Attachment) -> Option<String> {
    let at = Path::new(OsStr::from_bytes(attachment.at()));
    // The source of a mount is the path that was used for mounting it.
    let is_mounted = base::mount::Place::source_at(at).is_some_and(|source| {
        let region = attachment.region().path().canonicalize();
        region.is_ok_and(|region| region.ends_with(source))
    });
    let is_the_region =
        is_mounted || std::env::var_os(AT_VARIABLE).is_some_and(|shown| shown == at);
    if is_the_region {
        // The region is mounted there, or this program is served itself: these are the same files.
        return None;
    }
    let what = match std::fs::read_dir(at) {
        Ok(mut entries) => entries.next().map(|_| "has files")?,
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => "is a file",
        Err(_) => return None,
    };
    Some(format!(
        "{}: {what}, which the program does not see with the region there; choose an --at where nothing is",
        at.display()
    ))
}

/// Returns the path of the library.
pub(crate) fn library() -> Result<PathBuf, CliError> {
    if let Some(named) = std::env::var_os(LIBRARY_VARIABLE) {
        let named = PathBuf::from(named);
        return checked(&named).map_err(|error| {
            CliError::failure(
                named.display(),
                crate::error::describe(&error),
                format!("{LIBRARY_VARIABLE} must name {LIBRARY}"),
            )
        });
    }
    // A build for another architecture leaves a library there that serves nothing.
    exists_for(std::env::consts::ARCH)?;
    let folder = std::env::current_exe()
        .ok()
        .and_then(|program| Some(program.parent()?.to_owned()));
    let beside = folder.as_ref().map(|folder| {
        [
            folder.join(LIBRARY),
            folder.join("../lib/keel").join(LIBRARY),
        ]
    });
    beside
        .into_iter()
        .flatten()
        .find_map(|path| checked(&path).ok())
        .ok_or_else(|| {
            // The library is built and installed together with this program, so it is either elsewhere or not built.
            let folder = folder.unwrap_or_else(|| "the folder of keel".into());
            CliError::failure(
                LIBRARY,
                "found neither beside this program nor in ../lib/keel",
                format!(
                    "copy it into {}, or name the file in {LIBRARY_VARIABLE}; the package evenkeel has it, and `cargo \
                     build --release -p mem-preload` puts it into target/release",
                    folder.display()
                ),
            )
        })
}

/// Fails if there is no library for an architecture.
fn exists_for(architecture: &str) -> Result<(), CliError> {
    if LIBRARY_ARCHITECTURES.contains(&architecture) {
        return Ok(());
    }
    Err(CliError::failure(
        LIBRARY,
        format!(
            "does not exist for {architecture}, only for {}",
            LIBRARY_ARCHITECTURES.join(" and ")
        ),
        "`keel mem mount REGION DIR` shows the same files to every program",
    ))
}

fn checked(library: &Path) -> io::Result<PathBuf> {
    let path = library.canonicalize()?;
    let separates = |byte: &u8| matches!(byte, b' ' | b':' | b'\t' | b'\n');
    if path.as_os_str().as_bytes().iter().any(separates) {
        let text = "no library can be preloaded from a path with a space or a colon";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(path)
}

/// Returns the library, followed by the libraries that `LD_PRELOAD` already names.
fn preload(library: &Path) -> OsString {
    let mut list = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

fn not_started(name: &OsStr, attachment: &Attachment, error: &io::Error) -> Result<u8, CliError> {
    let is_inside = attachment.inside(name.as_bytes()).is_some();
    let failed = if is_inside {
        CliError::failure(
            name.display(),
            "is in the region, where this command cannot start it",
            "have a program do it that is served: `-- sh -c …`",
        )
    } else {
        CliError::io(name.display(), error)
    };
    eprintln!("keel: {failed}");
    Ok(match error.kind() {
        io::ErrorKind::NotFound => STATUS_NOT_FOUND,
        _ => STATUS_NOT_STARTED,
    })
}

/// Waits for the end of the program. Meanwhile it forwards signals and clears up after dead processes.
fn attend(
    child: &mut Child,
    signals: &Signals,
    attachment: &Attachment,
    greeting: &mut Greeting,
    saver: Option<&Saver>,
) -> Result<ExitStatus, CliError> {
    let mut next_sweep = Instant::now() + SWEEP_INTERVAL;
    let mut sweeps = 0_u32;
    loop {
        let waited = child
            .try_wait()
            .map_err(|error| CliError::io("the program", &error))?;
        if let Some(status) = waited {
            return Ok(status);
        }
        let pause = next_sweep.saturating_duration_since(Instant::now());
        if let Some(signal) = signals.wait(pause) {
            // SAFETY: plain numbers. The child has not been waited for, so its number is its own.
            unsafe { libc::kill(child.id() as libc::pid_t, signal) };
            if let (libc::SIGTERM, Some(saver)) = (signal, saver) {
                // Save now: the program may take its time to end, but the power may not last.
                saver.save_now();
            }
        }
        if Instant::now() >= next_sweep {
            next_sweep = Instant::now() + SWEEP_INTERVAL;
            clear_up(attachment, sweeps.is_multiple_of(SWEEPS_PER_LOCK));
            sweeps += 1;
            if let Err(error) = greeting.look() {
                // SAFETY: as above.
                unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGTERM) };
                child.wait().ok();
                return Err(error);
            }
        }
    }
}

/// The greeting: the library writes one byte when it is loaded. A program without it would look for files that do not
/// exist.
struct Greeting<'a> {
    arguments: &'a RunArgs,
    receiver: OwnedFd,
    sender: Option<OwnedFd>,
    begun: Instant,
    is_told: bool,
    has_come: bool,
}

impl<'a> Greeting<'a> {
    fn new(arguments: &'a RunArgs) -> Result<Self, CliError> {
        let failed = || {
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINVAL | libc::EMFILE) => limit_of_descriptors(&error),
                _ => CliError::io("pipe", &error),
            }
        };
        let mut ends = [0; 2];
        // SAFETY: a buffer for two descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
            return Err(failed());
        }
        // SAFETY: both were just opened, and no other code has them.
        let (receiver, low) =
            unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
        // The program inherits this one.
        // SAFETY: plain numbers.
        let sender =
            unsafe { libc::fcntl(low.as_raw_fd(), libc::F_DUPFD, GREETING_DESCRIPTOR_MIN) };
        if sender < 0 {
            return Err(failed());
        }
        Ok(Self {
            arguments,
            receiver,
            // SAFETY: as above.
            sender: Some(unsafe { OwnedFd::from_raw_fd(sender) }),
            begun: Instant::now(),
            is_told: false,
            has_come: false,
        })
    }

    fn descriptor(&self) -> libc::c_int {
        self.sender.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    fn close_own(&mut self) {
        self.sender = None;
    }

    fn receive(&mut self) {
        let mut byte = 0_u8;
        // SAFETY: a buffer of one byte.
        let count = unsafe { libc::read(self.receiver.as_raw_fd(), (&raw mut byte).cast(), 1) };
        self.has_come |= count == 1;
    }

    /// Checks for the greeting; to be called repeatedly while the program runs.
    fn look(&mut self) -> Result<(), CliError> {
        self.receive();
        if self.has_come || self.is_told || self.begun.elapsed() < GREETING_MAX {
            return Ok(());
        }
        self.tell_unserved(None)
    }

    /// Checks for the greeting; to be called when the program has ended.
    fn end(&mut self) -> Result<(), CliError> {
        self.receive();
        if self.has_come || self.is_told {
            return Ok(());
        }
        self.tell_unserved(None)
    }

    /// Reports that the program does not find the region's files, and fails if the arguments ask for that.
    fn tell_unserved(&mut self, why: Option<&Unserved>) -> Result<(), CliError> {
        self.is_told = true;
        let program = self.arguments.command.first().cloned().unwrap_or_default();
        let error = CliError::failure(
            program.display(),
            format!(
                "{}: it does not find the region at {}",
                why.map_or("did not load the region's library", Unserved::reason),
                self.arguments.at.display()
            ),
            format!(
                "`keel mem mount {} DIR` shows the same files to every program",
                self.arguments.region.display()
            ),
        );
        if self.arguments.strict {
            return Err(error);
        }
        eprintln!("keel: {error}");
        Ok(())
    }
}

/// The signals of this process, received one by one instead of interrupting it.
struct Signals {
    waited_for: libc::sigset_t,
    /// The signals that were blocked before, as the parent process wanted.
    blocked_before: libc::sigset_t,
}

impl Signals {
    /// Blocks the signals; from then on they stay pending.
    fn block() -> Self {
        // SAFETY: all zeros are a valid set, and all calls get sets that live until they return.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGCHLD);
            for signal in PASSED_ON {
                libc::sigaddset(&raw mut set, signal);
            }
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before);
            Self {
                waited_for: set,
                blocked_before: before,
            }
        }
    }

    /// Lets the program start with the signal mask that this process had at its start.
    fn stay_here(&self, command: &mut Command) {
        use std::os::unix::process::CommandExt;
        let before = self.blocked_before;
        // SAFETY: the child runs only one call that is allowed after fork, with a copied set.
        unsafe {
            command.pre_exec(move || {
                match libc::pthread_sigmask(
                    libc::SIG_SETMASK,
                    &raw const before,
                    std::ptr::null_mut(),
                ) {
                    0 => Ok(()),
                    errno => Err(std::io::Error::from_raw_os_error(errno)),
                }
            })
        };
    }

    /// Waits at most `time` for a signal that was sent to this process.
    fn wait(&self, time: Duration) -> Option<libc::c_int> {
        let time = libc::timespec {
            tv_sec: time.as_secs() as libc::time_t,
            tv_nsec: time.subsec_nanos() as _,
        };
        // SAFETY: all zeros are a valid value of this plain structure.
        let mut found: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: a set, a structure for the result, and a time, which all live as long as the call.
        let signal = unsafe {
            libc::sigtimedwait(&raw const self.waited_for, &raw mut found, &raw const time)
        };
        // Signals from the kernel, such as the terminal's interrupt, also reach the program directly.
        let is_sent = found.si_code <= 0;
        (signal > 0 && signal != libc::SIGCHLD && is_sent).then_some(signal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_the_library_is_told_to_mount() {
        assert!(exists_for("x86_64").is_ok() && exists_for("aarch64").is_ok());
        let told = exists_for("arm").expect_err("none for armhf").to_string();
        assert_eq!(
            told,
            "libkeelmem.so: does not exist for arm, only for x86_64 and aarch64; `keel mem mount REGION DIR` shows the \
             same files to every program"
        );
    }
}
