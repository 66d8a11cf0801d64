//! The processes of a job: each is one rank of this machine, or MPI's launcher, which has the ranks. Their output
//! arrives as events; their exit statuses are polled. No process outlives [`Processes`].

use crate::cluster_cmd::boards::{Boards, wait_within};
use crate::error::CliError;
use crate::signals;
use crate::temporary::Folder;
use cluster::jobs::Order;
use cluster::jobs::lines::{LINE_BYTES_MAX, Line, ORDER_BYTES_AHEAD};
use cluster::jobs::worker::Options;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Timeout for a launcher that was asked to end: it ends the ranks on all boards.
pub(super) const END_TIME_MAX: Duration = Duration::from_secs(5);

/// Capacity of the queue of lines.
const LINES_MAX: usize = 256;

/// The most lines kept of the complaints of launcher and libraries.
const COMPLAINT_LINES_MAX: usize = 200;

/// The most characters kept of each line.
const COMPLAINT_LETTERS_MAX: usize = 500;

/// Seconds that a local rank waits for another one. Longer than any job, because [`Processes`] detects silent ranks.
const PATIENCE_SECONDS: u64 = 90_000;

/// A process of a job.
struct Process {
    child: Child,
    status: Option<ExitStatus>,
}

/// The events of the processes.
pub(super) enum Heard {
    /// A rank's line.
    Line(Line),
    /// Nothing within the timeout.
    Nothing,
    /// All outputs are closed.
    End,
}

/// The processes of a job.
pub(super) struct Processes {
    processes: Vec<Process>,
    lines: Receiver<Line>,
    complaints: Arc<Mutex<VecDeque<String>>>,
    /// Dropped last, with its content.
    _folder: Folder,
}

impl Processes {
    /// Starts this number of ranks on this machine.
    pub(super) fn local(
        ranks: usize,
        order: &Arc<Order>,
        options: &Options,
    ) -> Result<Self, CliError> {
        let folder = Folder::create("job")?;
        let program =
            std::env::current_exe().map_err(|error| CliError::io("this program", &error))?;
        let socket = folder.path().join("ranks");
        let (mut all, sender) = Self::empty(folder);
        for rank in 0..ranks {
            let mut command = Command::new(&program);
            command
                .args([
                    "cluster",
                    "rank",
                    "--rank",
                    &rank.to_string(),
                    "--ranks",
                    &ranks.to_string(),
                ])
                .args(["--parent", &std::process::id().to_string()])
                .args([
                    "--patience-seconds",
                    &PATIENCE_SECONDS.to_string(),
                    "--socket",
                ])
                .arg(&socket)
                .arg("--")
                .args(options.words());
            all.start(
                command,
                &program,
                (rank == 0).then(|| Arc::clone(order)),
                &sender,
            )?;
        }
        Ok(all)
    }

    /// Starts ranks on boards through MPI's launcher, which forwards standard input to rank 0.
    pub(super) fn on(
        boards: &Boards,
        order: &Arc<Order>,
        options: &Options,
    ) -> Result<Self, CliError> {
        let folder = Folder::create("job")?;
        let mut arguments = vec!["job".to_owned()];
        arguments.extend(options.words());
        let command = boards.command(&arguments, &folder.path().join("hosts"))?;
        let (mut all, sender) = Self::empty(folder);
        all.start(command, boards.launcher(), Some(Arc::clone(order)), &sender)?;
        Ok(all)
    }

    fn empty(folder: Folder) -> (Self, SyncSender<Line>) {
        let (sender, lines) = sync_channel(LINES_MAX);
        let all = Self {
            processes: Vec::new(),
            lines,
            complaints: Arc::default(),
            _folder: folder,
        };
        (all, sender)
    }

    fn start(
        &mut self,
        mut command: Command,
        program: &Path,
        order: Option<Arc<Order>>,
        sender: &SyncSender<Line>,
    ) -> Result<(), CliError> {
        let input = if order.is_some() {
            Stdio::piped()
        } else {
            Stdio::null()
        };
        // A group of its own: Ctrl-C reaches only this program, which ends the others.
        command
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        signals::end_with_this(&mut command);
        let mut child = command
            .spawn()
            .map_err(|error| CliError::io(program.display(), &error))?;
        let taken = Arc::new(Taken::default());
        if let (Some(order), Some(input)) = (order, child.stdin.take()) {
            let taken = Arc::clone(&taken);
            std::thread::spawn(move || hand_over(&order, input, &taken));
        }
        if let Some(output) = child.stdout.take() {
            let sender = sender.clone();
            let complaints = Arc::clone(&self.complaints);
            std::thread::spawn(move || {
                for_each_line(output, |text| match Line::parse(&text) {
                    Some(Ok(Line::Taken { bytes })) => {
                        taken.note(bytes);
                        true
                    }
                    Some(Ok(line)) => sender.send(line).is_ok(),
                    // Ignore a damaged line: a rank without readable lines counts as silent.
                    Some(Err(_)) => true,
                    // A line of another program: hydra reports here on which board a rank has died.
                    None => {
                        keep(&complaints, text);
                        true
                    }
                });
                taken.end();
            });
        }
        if let Some(errors) = child.stderr.take() {
            let complaints = Arc::clone(&self.complaints);
            std::thread::spawn(move || {
                for_each_line(errors, |text| {
                    keep(&complaints, text);
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

    /// Returns the next event, with a timeout.
    pub(super) fn hear(&self, within: Duration) -> Heard {
        match self.lines.recv_timeout(within) {
            Ok(line) => Heard::Line(line),
            Err(RecvTimeoutError::Timeout) => Heard::Nothing,
            Err(RecvTimeoutError::Disconnected) => Heard::End,
        }
    }

    /// Returns the exit status of each process so far; local ranks are in order.
    pub(super) fn statuses(&mut self) -> Vec<Option<ExitStatus>> {
        for process in &mut self.processes {
            if process.status.is_none() {
                process.status = process.child.try_wait().ok().flatten();
            }
        }
        self.processes
            .iter()
            .map(|process| process.status)
            .collect()
    }

    /// Returns the complaints.
    pub(super) fn complaints(&self) -> Vec<String> {
        let kept = self
            .complaints
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        kept.iter().cloned().collect()
    }

    /// Asks all remaining processes to end, and kills those that have not ended after `time`.
    pub(super) fn end(&mut self, time: Duration) {
        self.statuses();
        for process in self
            .processes
            .iter()
            .filter(|process| process.status.is_none())
        {
            // SAFETY: a plain system call. The child has not been waited for, so its number is its own.
            unsafe { libc::kill(process.child.id() as libc::pid_t, libc::SIGTERM) };
        }
        let until = Instant::now() + time;
        for process in self
            .processes
            .iter_mut()
            .filter(|process| process.status.is_none())
        {
            let left = until.saturating_duration_since(Instant::now());
            let ended = wait_within(&mut process.child, left).ok().flatten();
            process.status = ended.or_else(|| {
                let group = process.child.id() as libc::pid_t;
                // SAFETY: as above; the signal to its own group also ends its children on this machine.
                unsafe { libc::kill(-group, libc::SIGKILL) };
                process.child.wait().ok()
            });
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.end(END_TIME_MAX);
    }
}

fn keep(complaints: &Mutex<VecDeque<String>>, text: String) {
    let mut kept = complaints.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.len() == COMPLAINT_LINES_MAX {
        kept.pop_front();
    }
    kept.push_back(text.chars().take(COMPLAINT_LETTERS_MAX).collect());
}

/// How much of the order rank 0 has read, according to its reports.
#[derive(Default)]
struct Taken {
    /// Bytes, and whether no more reports will come.
    state: Mutex<(u64, bool)>,
    changed: Condvar,
}

impl Taken {
    fn note(&self, bytes: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 = state.0.max(bytes);
        self.changed.notify_all();
    }

    fn end(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.changed.notify_all();
    }

    /// Returns how many bytes may follow the first `sent`; waits for at least one.
    fn room(&self, sent: u64) -> std::io::Result<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let room = (state.0 + ORDER_BYTES_AHEAD).saturating_sub(sent);
            if room > 0 {
                return Ok(room);
            }
            if state.1 {
                return Err(std::io::ErrorKind::BrokenPipe.into());
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Standard input of rank 0, with a limit on unread bytes.
struct Paced<'a> {
    input: ChildStdin,
    taken: &'a Taken,
    sent: u64,
}

impl Write for Paced<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let room = usize::try_from(self.taken.room(self.sent)?).unwrap_or(usize::MAX);
        let count = self.input.write(&bytes[..bytes.len().min(room)])?;
        self.sent += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.input.flush()
    }
}

/// Writes the order. Rank 0 may die meanwhile; this is detected elsewhere.
fn hand_over(order: &Order, input: ChildStdin, taken: &Taken) {
    let paced = Paced {
        input,
        taken,
        sent: 0,
    };
    order.write(&mut BufWriter::new(paced)).ok();
}

/// Passes each line as text to `wanted`, until the stream ends or `wanted` returns `false`.
fn for_each_line(stream: impl Read, mut wanted: impl FnMut(String) -> bool) {
    let mut reader = BufReader::new(stream);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        let bytes_max = LINE_BYTES_MAX as u64 + 64;
        match reader
            .by_ref()
            .take(bytes_max)
            .read_until(b'\n', &mut bytes)
        {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&bytes);
        if !wanted(text.trim_end_matches(['\n', '\r']).to_owned()) {
            return;
        }
    }
}
