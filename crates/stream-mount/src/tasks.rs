//! Which task a read belongs to.
//!
//! A task is the outermost program that is run from the mount: that of the first process, from the root of all
//! processes on, whose program is in the mount. Its descendants belong to it, whatever they run. It is found
//!
//! - by a read of a file that was opened to be executed, from a process whose program is elsewhere: that file is being
//!   executed (a script counts as itself, as it is read before its interpreter);
//! - by the program of the process, or of one that has made it: the beginning of a program that is in the page cache
//!   already is read without a request.
//!
//! A dynamic loader is no task: it is read for every program. Where it is run as a program itself, the first file that
//! it reads is the task, as that is the program that it was given.
//!
//! A process that outlives those that made it before it has read anything from the mount is not known to be
//! theirs.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use stream::{FileId, Token};

use crate::processes::{FileSystem, Process, leader_of, look_at};
use crate::source::Source;
use crate::view::View;
use crate::watcher::Watcher;

/// How long a thread is believed to be the one that it was, and a process without task not to have begun one unseen.
const BELIEVED: Duration = Duration::from_millis(100);

/// Threads that are remembered, at most; then all are forgotten, and looked at again.
const THREADS_MAX: usize = 4096;

/// Generations of processes that are looked at, at most.
const GENERATIONS_MAX: usize = 64;

/// A thread that has read something.
#[derive(Clone, Copy)]
struct Known {
    thread: Process,
    /// Its process.
    leader: u32,
    token: Option<Token>,
    looked_at: Instant,
}

#[derive(Default)]
struct State {
    /// By number.
    threads: HashMap<u32, Known>,
    /// Processes of tasks: each is watched.
    members: HashMap<Process, Token>,
    /// Tasks, with the number of their processes.
    tasks: HashMap<Token, usize>,
    is_over: bool,
}

pub(crate) struct Tasks {
    source: Arc<dyn Source>,
    view: Arc<View>,
    state: Mutex<State>,
    /// Held by who looks at a process that is not known yet, so that a task begins once. Beginning one may need answers
    /// of this mount, so those who give them never wait for this.
    judging: Mutex<()>,
    /// Known when it is mounted; before, nobody reads.
    place: OnceLock<(FileSystem, Watcher)>,
}

/// What a read shows of its task.
enum Found {
    /// It belongs to a task that runs.
    Running(Token),
    /// A program has been executed.
    Begins(FileId),
    /// Not yet: the next read shows more.
    Undecided,
    Nothing,
}

impl Tasks {
    pub(crate) fn new(source: Arc<dyn Source>, view: Arc<View>) -> Self {
        Self {
            source,
            view,
            state: Mutex::default(),
            judging: Mutex::default(),
            place: OnceLock::new(),
        }
    }

    /// From here on reads have tasks.
    pub(crate) fn start(self: &Arc<Self>, file_system: FileSystem) -> io::Result<()> {
        let tasks = Arc::downgrade(self);
        let watcher = Watcher::start(move |process| {
            if let Some(tasks) = tasks.upgrade() {
                tasks.process_ended(process);
            }
        })?;
        self.place.set((file_system, watcher)).ok();
        Ok(())
    }

    /// The mount ends, and with it all tasks.
    pub(crate) fn end(&self) {
        let ended: Vec<Token> = {
            let mut state = self.state();
            state.is_over = true;
            state.members.clear();
            state.threads.clear();
            state.tasks.drain().map(|(token, _)| token).collect()
        };
        for token in ended {
            self.source.end(token, false);
        }
    }

    // Nothing of ours panics with the lock held; if it did, the tables would still be usable.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn process_ended(&self, process: Process) {
        let ended = {
            let mut state = self.state();
            let Some(token) = state.members.remove(&process) else {
                return;
            };
            state
                .threads
                .retain(|_, known| known.leader != process.number);
            match state.tasks.get_mut(&token) {
                Some(processes) if *processes > 1 => {
                    *processes -= 1;
                    None
                }
                _ => state.tasks.remove(&token).map(|_| token),
            }
        };
        if let Some(token) = ended {
            self.source.end(token, true);
        }
    }

    /// Whose a read by a thread is, where that is known; `is_executed`: of a file that it opened to execute it. None:
    /// ask [`Tasks::find`], which may take longer.
    pub(crate) fn known(&self, thread: u32, is_executed: bool) -> Option<Option<Token>> {
        if thread == 0 || self.place.get().is_none() {
            return Some(None);
        }
        let state = self.state();
        if state.is_over {
            return Some(None);
        }
        let known = state.threads.get(&thread)?;
        let is_new = known.looked_at.elapsed() < BELIEVED;
        (is_new && (known.token.is_some() || !is_executed)).then_some(known.token)
    }

    /// Whose a read of `file` by a thread is. Not for those who answer the kernel.
    pub(crate) fn find(&self, thread: u32, file: FileId, is_executed: bool) -> Option<Token> {
        let (file_system, watcher) = self.place.get()?;
        let _judging = self.judging.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = self.known(thread, is_executed) {
            return known;
        }
        let found = look_at(thread)?;
        let before = self.state().threads.get(&thread).copied();
        let before = before.filter(|known| known.thread == found.process);
        let leader = match before {
            Some(known) => known.leader,
            None => leader_of(thread)?,
        };
        let token = match before {
            Some(known) if known.token.is_some() => known.token,
            _ if leader == std::process::id() => None,
            _ => {
                let process = look_at(leader)?;
                let line = Line {
                    file_system: *file_system,
                    file,
                    is_executed,
                    is_known: before.is_some(),
                };
                match self.judge(process.process, process.parent, &line) {
                    Found::Running(token) => self.join(watcher, process.process, token),
                    Found::Begins(task) => {
                        let token = self.source.begin(task);
                        let joined = self.join(watcher, process.process, token);
                        if joined.is_none() {
                            // Nobody would see its end.
                            self.source.end(token, false);
                        }
                        joined
                    }
                    Found::Undecided => return None,
                    Found::Nothing => None,
                }
            }
        };
        let known = Known {
            thread: found.process,
            leader,
            token,
            looked_at: Instant::now(),
        };
        let mut state = self.state();
        if state.threads.len() >= THREADS_MAX {
            state.threads.clear();
        }
        // Unless it has ended meanwhile.
        if token.is_none_or(|token| state.tasks.contains_key(&token)) {
            state.threads.insert(thread, known);
        }
        token
    }

    /// Makes a process one of a task, if its end can be seen.
    fn join(&self, watcher: &Watcher, process: Process, token: Token) -> Option<Token> {
        let mut state = self.state();
        if state.is_over {
            return None;
        }
        if let Some(token) = state.members.get(&process) {
            return Some(*token);
        }
        // Its end is told to who waits for the lock that is held here.
        if !watcher.add(process) {
            return None;
        }
        state.members.insert(process, token);
        *state.tasks.entry(token).or_insert(0) += 1;
        Some(token)
    }

    fn member(&self, process: Process) -> Option<Token> {
        self.state().members.get(&process).copied()
    }

    /// Whether a program is a dynamic loader.
    fn is_loader(&self, file: FileId) -> bool {
        self.view.base_name(file).is_some_and(|name| {
            name == b"ld.so" || name.starts_with(b"ld-") && contains(name, b".so")
        })
    }

    fn judge(&self, process: Process, parent: u32, line: &Line) -> Found {
        if let Some(token) = self.member(process) {
            return Found::Running(token);
        }
        let own = line.file_system.program_of(process.number);
        let mut outermost = own.filter(|program| !self.is_loader(*program));
        let mut next = parent;
        for _ in 0..GENERATIONS_MAX {
            // Those that made it are looked at once; they do not change what they run for what it does.
            if next <= 1 || line.is_known {
                break;
            }
            let Some(above) = look_at(next) else {
                break;
            };
            if let Some(token) = self.member(above.process) {
                return Found::Running(token);
            }
            let program = line.file_system.program_of(next);
            outermost = program.filter(|it| !self.is_loader(*it)).or(outermost);
            next = above.parent;
        }
        match (outermost, own) {
            (Some(task), _) => Found::Begins(task),
            // A loader that was run as a program.
            (None, Some(loader)) if line.file != loader => Found::Begins(line.file),
            (None, Some(_)) => Found::Undecided,
            // About to be executed; of a loader that is read for a program, the program will be seen.
            (None, None) if line.is_executed && self.is_loader(line.file) => Found::Undecided,
            (None, None) if line.is_executed => Found::Begins(line.file),
            (None, None) => Found::Nothing,
        }
    }
}

/// What a read says by itself.
struct Line {
    file_system: FileSystem,
    file: FileId,
    is_executed: bool,
    /// The thread has been looked at before, and had no task.
    is_known: bool,
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|found| found == part)
}
