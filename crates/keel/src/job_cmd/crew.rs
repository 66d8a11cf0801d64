//! The processes of a job: each rank one of this machine, or MPI's launcher, which has the ranks. What they say comes
//! as events; how they end is asked. None of them outlives the crew.

use crate::cluster_cmd::boards::{Boards, wait_within};
use crate::error::CliError;
use cluster::jobs::Order;
use cluster::jobs::lines::{LINE_BYTES_MAX, Line};
use cluster::jobs::worker::Options;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, BufWriter, Read};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lines that wait to be looked at.
const LINES_MAX: usize = 256;

/// How much is kept of what launcher and libraries complain about.
const COMPLAINT_LINES_MAX: usize = 200;

/// How long a launcher that was told to end is waited for: it ends the ranks on all boards.
const END_TIME_MAX: Duration = Duration::from_secs(5);

/// Seconds that a local rank waits for another: longer than any job lasts, since the crew looks who is silent.
const PATIENCE_SECONDS: u64 = 90_000;

/// A process of the crew.
struct Process {
    child: Child,
    status: Option<ExitStatus>,
}

/// What is heard.
pub(super) enum Heard {
    /// A rank's line.
    Line(Line),
    /// Nothing for a while.
    Nothing,
    /// Nobody is left who could say anything.
    End,
}

/// The processes.
pub(super) struct Crew {
    processes: Vec<Process>,
    lines: Receiver<Line>,
    complaints: Arc<Mutex<VecDeque<String>>>,
    /// Goes last, with what is in it.
    _folder: Folder,
}

impl Crew {
    /// So many ranks on this machine.
    pub(super) fn local(ranks: usize, order: &Arc<Order>, options: &Options) -> Result<Self, CliError> {
        let folder = Folder::create()?;
        let program = std::env::current_exe().map_err(|error| CliError::io("this program", &error))?;
        let socket = folder.0.join("ranks");
        let (mut crew, sender) = Self::empty(folder);
        for rank in 0..ranks {
            let mut command = Command::new(&program);
            command
                .args(["cluster", "rank", "--rank", &rank.to_string(), "--ranks", &ranks.to_string()])
                .args(["--patience-seconds", &PATIENCE_SECONDS.to_string(), "--socket"])
                .arg(&socket)
                .arg("--")
                .args(options.words());
            crew.start(command, &program, (rank == 0).then(|| Arc::clone(order)), &sender)?;
        }
        Ok(crew)
    }

    /// Ranks on boards, started by MPI's launcher, which hands standard input on to rank 0.
    pub(super) fn on(boards: &Boards, order: &Arc<Order>, options: &Options) -> Result<Self, CliError> {
        let folder = Folder::create()?;
        let mut arguments = vec!["job".to_owned()];
        arguments.extend(options.words());
        let command = boards.command(&arguments, &folder.0.join("hosts"))?;
        let (mut crew, sender) = Self::empty(folder);
        crew.start(command, boards.launcher(), Some(Arc::clone(order)), &sender)?;
        Ok(crew)
    }

    fn empty(folder: Folder) -> (Self, SyncSender<Line>) {
        let (sender, lines) = sync_channel(LINES_MAX);
        let crew = Self {
            processes: Vec::new(),
            lines,
            complaints: Arc::default(),
            _folder: folder,
        };
        (crew, sender)
    }

    fn start(
        &mut self,
        mut command: Command,
        program: &Path,
        order: Option<Arc<Order>>,
        sender: &SyncSender<Line>,
    ) -> Result<(), CliError> {
        let input = if order.is_some() { Stdio::piped() } else { Stdio::null() };
        // A group of its own: Ctrl-C comes to this program, which ends the others.
        command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().map_err(|error| CliError::io(program.display(), &error))?;
        if let (Some(order), Some(input)) = (order, child.stdin.take()) {
            std::thread::spawn(move || hand_over(&order, input));
        }
        if let Some(output) = child.stdout.take() {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for_each_line(output, |text| match Line::parse(&text) {
                    Some(Ok(line)) => sender.send(line).is_ok(),
                    // Torn, or somebody else's: who says nothing that can be read is silent.
                    Some(Err(_)) | None => true,
                });
            });
        }
        if let Some(errors) = child.stderr.take() {
            let complaints = Arc::clone(&self.complaints);
            std::thread::spawn(move || {
                for_each_line(errors, |text| {
                    let mut kept = complaints.lock().unwrap_or_else(PoisonError::into_inner);
                    if kept.len() == COMPLAINT_LINES_MAX {
                        kept.pop_front();
                    }
                    kept.push_back(text);
                    true
                });
            });
        }
        self.processes.push(Process {
            child,
            status: None,
        });
        Ok(())
    }

    /// What comes next, within a time.
    pub(super) fn hear(&self, within: Duration) -> Heard {
        match self.lines.recv_timeout(within) {
            Ok(line) => Heard::Line(line),
            Err(RecvTimeoutError::Timeout) => Heard::Nothing,
            Err(RecvTimeoutError::Disconnected) => Heard::End,
        }
    }

    /// How each process has ended, so far; of local ranks in their order.
    pub(super) fn statuses(&mut self) -> Vec<Option<ExitStatus>> {
        for process in &mut self.processes {
            if process.status.is_none() {
                process.status = process.child.try_wait().ok().flatten();
            }
        }
        self.processes.iter().map(|process| process.status).collect()
    }

    /// What was complained about.
    pub(super) fn complaints(&self) -> Vec<String> {
        let kept = self.complaints.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().cloned().collect()
    }

    /// Ends all that are still there.
    pub(super) fn end(&mut self) {
        self.statuses();
        for process in self.processes.iter().filter(|process| process.status.is_none()) {
            // SAFETY: a plain system call. The child has not been waited for, so its number is its own.
            unsafe { libc::kill(process.child.id() as libc::pid_t, libc::SIGTERM) };
        }
        let until = Instant::now() + END_TIME_MAX;
        for process in self.processes.iter_mut().filter(|process| process.status.is_none()) {
            let left = until.saturating_duration_since(Instant::now());
            let ended = wait_within(&mut process.child, left).ok().flatten();
            process.status = ended.or_else(|| {
                let group = process.child.id() as libc::pid_t;
                // SAFETY: as above; with the group of its own go those whom it has started here.
                unsafe { libc::kill(-group, libc::SIGKILL) };
                process.child.wait().ok()
            });
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.end();
    }
}

/// Rank 0 may be gone in the middle: others see that.
fn hand_over(order: &Order, input: ChildStdin) {
    order.write(&mut BufWriter::new(input)).ok();
}

/// Hands on each line, as text, until the stream ends or nobody wants more.
fn for_each_line(stream: impl Read, mut wanted: impl FnMut(String) -> bool) {
    let mut reader = BufReader::new(stream);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        let bytes_max = LINE_BYTES_MAX as u64 + 64;
        match reader.by_ref().take(bytes_max).read_until(b'\n', &mut bytes) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&bytes);
        if !wanted(text.trim_end_matches(['\n', '\r']).to_owned()) {
            return;
        }
    }
}

/// A folder for sockets and lists of hosts, which nobody else can put anything into. Removed with the crew.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

impl Folder {
    fn create() -> Result<Self, CliError> {
        let parent = std::env::temp_dir();
        for number in 0..100 {
            let path = parent.join(format!("keel-job-{}-{number}", std::process::id()));
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(CliError::io(parent.display(), &error)),
            }
        }
        Err(CliError::failure(parent.display(), "is full of folders keel-job-*", "remove them"))
    }
}
