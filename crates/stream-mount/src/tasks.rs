//! Determines the task that a read belongs to.
//!
//! A task is the outermost program that is run from the mount. It is the first process, from the root of the process
//! tree downwards, whose program is in the mount. Its descendants belong to it, whichever programs they run. It is
//! found in two ways:
//!
//! - By a read of a file that was opened for execution, from a process whose program is elsewhere. That file is being
//!   executed (a script counts as itself, as it is read before its interpreter).
//! - By the program of the process or of an ancestor. This covers a program whose beginning is already in the page
//!   cache, and so is read without a request.
//!
//! A dynamic loader is no task: it is read for every program. If it is run as a program itself, the first file that it
//! reads is the task: the program that it was given.
//!
//! If a process first reads from the mount after its ancestors have ended, it is not recognised as theirs.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use stream::{FileId, Token};

use crate::processes::{FileSystem, Process, leader_of, look_at};
use crate::source::Source;
use crate::view::View;
use crate::watcher::Watcher;

/// How long a cached result is valid. It says that a thread is still the same one, and that a process without a task
/// has not begun one.
const BELIEVED: Duration = Duration::from_millis(100);

/// The maximum number of cached threads. When it is reached, all are dropped and looked up again.
const THREADS_MAX: usize = 4096;

/// The maximum number of ancestors that are examined.
const GENERATIONS_MAX: usize = 64;

/// A cached thread that has read something.
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
    /// Threads by number.
    threads: HashMap<u32, Known>,
    /// Processes of tasks. Each is watched.
    members: HashMap<Process, Token>,
    /// Tasks, with the number of their processes.
    tasks: HashMap<Token, usize>,
    is_over: bool,
}

pub(crate) struct Tasks {
    source: Arc<dyn Source>,
    view: Arc<View>,
    state: Mutex<State>,
    /// Held while an unknown process is examined, so that a task begins once. Beginning a task may need replies of this
    /// mount, so the threads that reply never wait for this lock.
    judging: Mutex<()>,
    /// Set when the mount is ready; before, there are no reads.
    place: OnceLock<(FileSystem, Watcher)>,
}

/// What a read reveals about its task.
enum Found {
    /// It belongs to a running task.
    Running(Token),
    /// A program was executed.
    Begins(FileId),
    /// Unknown yet: the next read reveals more.
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

    /// Starts the detection of tasks.
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

    /// Ends all tasks, because the mount ends.
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

    // Ignores poisoning: no code panics with the lock held, and if it did, the tables would still be usable.
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

    /// Returns the task of a read by a thread, if it is cached. `is_executed`: the file was opened for execution.
    /// `None` if the caller must use [`Tasks::find`], which may take longer.
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

    /// Returns the task of a read of `file` by a thread. Must not be called by threads that reply to the kernel.
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
                            // The end of the task would not be detected.
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
        // Cache the result, unless the task has ended meanwhile.
        if token.is_none_or(|token| state.tasks.contains_key(&token)) {
            state.threads.insert(thread, known);
        }
        token
    }

    /// Adds a process to a task, if its end can be detected.
    fn join(&self, watcher: &Watcher, process: Process, token: Token) -> Option<Token> {
        let mut state = self.state();
        if state.is_over {
            return None;
        }
        if let Some(token) = state.members.get(&process) {
            return Some(*token);
        }
        // The handler of its end waits for the lock that is held here, so it runs after the insertion below.
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

    /// Returns whether a program is a dynamic loader.
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
            // The ancestors are examined only once: their programs do not change because of this process.
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
            // A loader was run as a program.
            (None, Some(loader)) if line.file != loader => Found::Begins(line.file),
            (None, Some(_)) => Found::Undecided,
            // A file is about to be executed. If it is a loader read for a program, a later read reveals the program.
            (None, None) if line.is_executed && self.is_loader(line.file) => Found::Undecided,
            (None, None) if line.is_executed => Found::Begins(line.file),
            (None, None) => Found::Nothing,
        }
    }
}

/// The properties of a read.
struct Line {
    file_system: FileSystem,
    file: FileId,
    is_executed: bool,
    /// The thread was examined before, and had no task.
    is_known: bool,
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|found| found == part)
}
