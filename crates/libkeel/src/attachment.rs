//! What a node, its keys, its tasks and the maintenance thread share: the table of the node's run, and connections.

use crate::connection::{Connection, ConnectionError};
use crate::error::Error;
use crate::inbox::Inbox;
use crate::pipe::{Pipe, Receiver};
use crate::process;
use crate::protocol::Kind;
use crate::shared::Shared;
use base::clock::{Clock, SystemClock};
use base::error::Code;
use db::table::Now;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, TryLockError};
use std::time::Duration;

/// How long [`Node::attach`](crate::Node::attach) waits for the node.
const ATTACH_MAX: Duration = Duration::from_secs(2);

/// Number of attempts to replace a table that a reader may be using.
const REPLACE_TRIES: u32 = 1000;

/// An attachment to a node, and to each run of it that serves the same socket.
pub(crate) struct Attachment {
    pub(crate) socket: PathBuf,
    clock: SystemClock,
    /// Process id of the process that has attached.
    process: u32,
    /// Locked for reading while a value is read, for writing only while the table of a new run replaces this one.
    shared: RwLock<Option<Shared>>,
    /// Why values are not read in place, although the node announces them.
    why_not: Mutex<Option<Error>>,
    /// Whether the last check has found the run of the table alive.
    is_live: AtomicBool,
    tables: AtomicU32,
    /// For puts outside of tasks.
    pub(crate) pipe: Arc<Pipe>,
    /// To the maintenance thread.
    pub(crate) inbox: Inbox<Receiver>,
    /// For requests that wait for their answer.
    asking: Mutex<Option<Connection>>,
}

impl Attachment {
    /// Attaches through a connection to the node that serves `socket`. Connections to come go to `inbox`.
    pub(crate) fn new(socket: &Path, connection: Connection, inbox: Inbox<Receiver>) -> Self {
        Self {
            socket: socket.to_path_buf(),
            clock: SystemClock::new(),
            process: process::number(),
            shared: RwLock::new(None),
            why_not: Mutex::new(None),
            is_live: AtomicBool::new(false),
            tables: AtomicU32::new(0),
            pipe: Pipe::new(socket, inbox.clone()),
            inbox,
            asking: Mutex::new(Some(connection)),
        }
    }

    /// Opens a connection to the node.
    pub(crate) fn connect(socket: &Path) -> Result<Connection, ConnectionError> {
        Connection::open(socket, ATTACH_MAX)
    }

    /// Refuses a child after `fork`: the thread and the connections belong to its parent.
    pub(crate) fn usable(&self) -> Result<(), Error> {
        if process::number() == self.process {
            return Ok(());
        }
        let wrong = "was attached to by the parent of this process";
        let remedy = "attach again after the fork";
        Err(Error::new(
            Code::Stale,
            self.socket.display(),
            wrong,
            remedy,
        ))
    }

    /// Returns the table, if there is one.
    fn read_shared(&self) -> RwLockReadGuard<'_, Option<Shared>> {
        self.shared.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the table, if there is one; an error if its node has ended.
    pub(crate) fn live(&self) -> Result<RwLockReadGuard<'_, Option<Shared>>, Error> {
        let shared = self.read_shared();
        if shared.is_some() && !self.was_live() {
            let wrong = "the node has ended";
            let remedy = "start it again; it is attached to by itself";
            return Err(Error::new(Code::Gone, self.socket.display(), wrong, remedy));
        }
        Ok(shared)
    }

    /// Returns the current moment.
    pub(crate) fn now(&self) -> Now {
        Now::of(&self.clock)
    }

    pub(crate) fn clock(&self) -> &SystemClock {
        &self.clock
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.clock.monotonic_ns()
    }

    /// Returns whether there is a table.
    pub(crate) fn is_shared(&self) -> bool {
        self.read_shared().is_some()
    }

    /// Returns why there is no table, although the node announces one.
    pub(crate) fn why_not_shared(&self) -> Option<Error> {
        let why_not = self.why_not.lock();
        why_not.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether the run of the table lived at the last check.
    pub(crate) fn was_live(&self) -> bool {
        self.is_live.load(Ordering::Acquire)
    }

    /// Checks whether the run lives whose table is read; if not, searches for the table of another run. For the
    /// maintenance thread.
    pub(crate) fn refresh(&self) {
        {
            let shared = self.read_shared();
            if let Some(shared) = &*shared {
                let is_live = shared.is_live();
                self.is_live.store(is_live, Ordering::Release);
                if is_live {
                    return;
                }
            }
        }
        let number = self.tables.load(Ordering::Relaxed) + 1;
        let why_not = match Shared::beside(&self.socket, number) {
            Ok(Some(found)) => {
                self.replace(found);
                None
            }
            Ok(None) => None,
            Err(error) => Some(error),
        };
        *self.why_not.lock().unwrap_or_else(PoisonError::into_inner) = why_not;
    }

    /// Replaces the table of a run that is over by that of another run. A reader never waits for a waiting writer, so
    /// that a function that reads one value may read another. If a reader holds the table for long, the next check
    /// tries again.
    fn replace(&self, found: Shared) {
        for _ in 0..REPLACE_TRIES {
            let mut shared = match self.shared.try_write() {
                Ok(shared) => shared,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    std::thread::yield_now();
                    continue;
                }
            };
            self.tables.store(found.number, Ordering::Relaxed);
            let before = shared.replace(found);
            self.is_live.store(true, Ordering::Release);
            drop(shared);
            // The memory of the previous run is released without the lock, so that no reader waits.
            drop(before);
            return;
        }
    }

    /// Asks the node and waits for its answer, 10 s at most.
    pub(crate) fn ask<T: DeserializeOwned>(
        &self,
        kind: Kind,
        message: &impl Serialize,
        expected: Kind,
    ) -> Result<T, Error> {
        let failed = |error: &ConnectionError| Error::connection(self.socket.display(), error);
        let mut asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        // The node may have closed a connection that was silent for minutes.
        for is_new in [false, true] {
            let connection = match &mut *asking {
                Some(connection) if !is_new => connection,
                other => {
                    let opened = Self::connect(&self.socket);
                    other.insert(opened.map_err(|error| failed(&error))?)
                }
            };
            match connection.ask(kind, message, expected) {
                Err(ConnectionError::Closed | ConnectionError::Lost(_)) if !is_new => {}
                Err(error @ ConnectionError::Refused(_)) => return Err(failed(&error)),
                Err(error) => {
                    // Drop the connection: a late answer would be taken for that of the next question.
                    *asking = None;
                    return Err(failed(&error));
                }
                Ok(answer) => return Ok(answer),
            }
        }
        *asking = None;
        Err(failed(&ConnectionError::Closed))
    }
}
