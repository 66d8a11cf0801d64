//! A node as an external program uses it.

use crate::connection::{Connection, ConnectionError};
use crate::error::Error;
use crate::keeper;
use crate::key::{Key, check_key};
use crate::pipe::{Expected, Pipe, Request};
use crate::process;
use crate::protocol::{self, Kind};
use crate::shared::Shared;
use crate::task::{Task, TaskSpec};
use crate::ticket::Ticket;
use base::clock::{Clock, SystemClock};
use base::error::Code;
use db::Time;
use db::table::Now;
use db::value::Value;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, TryLockError};
use std::time::Duration;

/// How long [`Node::attach`] waits for the node.
const ATTACH_MAX: Duration = Duration::from_secs(2);

/// Number of attempts to replace a table that a reader may be using.
const REPLACE_TRIES: u32 = 1000;

/// An attached node. Copies share the attachment; it ends when its last copy, key and task have been dropped.
#[derive(Clone)]
pub struct Node {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
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
    pipe: Arc<Pipe>,
    pub(crate) inbox: keeper::Inbox,
    /// For requests that wait for their answer.
    asking: Mutex<Option<Connection>>,
}

impl Node {
    /// Attaches to the node that serves `socket`. If the node keeps its values in a region, they are read there;
    /// otherwise the node is asked for each. Starts one thread.
    ///
    /// # Errors
    /// [`Code::NotFound`] and others if no node serves the socket, [`Code::Late`] if it does not answer within 2 s.
    pub fn attach(socket: impl AsRef<Path>) -> Result<Self, Error> {
        let socket = socket.as_ref();
        let opened = Connection::open(socket, ATTACH_MAX);
        let connection = opened.map_err(|error| Error::connection(socket.display(), &error))?;
        let (inbox, outbox) = keeper::inbox()?;
        let inner = Arc::new(Inner {
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
        });
        inner.look();
        outbox.start(Arc::downgrade(&inner))?;
        Ok(Self { inner })
    }

    /// Returns whether values are read in place, where the node writes them. Otherwise each read asks the node through
    /// its socket.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.inner.read_shared().is_some()
    }

    /// Returns why values are not read in place, although the node announces them.
    #[must_use]
    pub fn why_not_shared(&self) -> Option<Error> {
        let why_not = self.inner.why_not.lock();
        why_not.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether the node that has written the values lived a tenth of a second ago. If they are not shared:
    /// whether it answers now.
    #[must_use]
    pub fn is_live(&self) -> bool {
        match self.is_shared() {
            true => self.inner.is_live.load(Ordering::Acquire),
            false => Connection::open(&self.inner.socket, ATTACH_MAX).is_ok(),
        }
    }

    /// Returns a key. It need not exist yet.
    ///
    /// # Errors
    /// [`Code::Invalid`] unless it has 1 to 255 bytes without control or invisible characters, and no level that is `+`
    /// or `#` alone.
    pub fn key(&self, name: &str) -> Result<Key, Error> {
        check_key(name)?;
        Ok(Key::new(&self.inner, name))
    }

    /// Sends a reading to the node and does not wait for it; see [`Key::put`].
    ///
    /// # Errors
    /// As there.
    pub fn put(&self, key: &Key, value: Value<'_>, time_ms: Option<i64>) -> Result<Ticket, Error> {
        self.send(key, value, time_ms.map(Time::from_ms))
    }

    /// As [`put`](Self::put), with a time in ns since 1970; see [`Key::put_ns`].
    ///
    /// # Errors
    /// As there.
    pub fn put_ns(
        &self,
        key: &Key,
        value: Value<'_>,
        time_ns: Option<i64>,
    ) -> Result<Ticket, Error> {
        self.send(key, value, time_ns.map(Time::from_ns))
    }

    fn send(&self, key: &Key, value: Value<'_>, time: Option<Time>) -> Result<Ticket, Error> {
        self.inner.usable()?;
        let (request, ticket) = put_request(key, value, time)?;
        self.inner.pipe.send(request)?;
        Ok(ticket)
    }

    /// Prepares a periodic task, which begins with its first [`Task::next_instance`].
    ///
    /// # Errors
    /// [`Code::Invalid`] for times, a name or a weight that no node accepts.
    pub fn periodic_task(&self, spec: TaskSpec) -> Result<Task, Error> {
        self.inner.usable()?;
        Task::new(&self.inner, spec)
    }

    pub(crate) fn of(inner: &Arc<Inner>) -> Self {
        Self {
            inner: Arc::clone(inner),
        }
    }
}

impl Inner {
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

    pub(crate) fn read_shared(&self) -> RwLockReadGuard<'_, Option<Shared>> {
        self.shared.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the table, if there is one; an error if its node has ended.
    pub(crate) fn live(&self) -> Result<RwLockReadGuard<'_, Option<Shared>>, Error> {
        let shared = self.read_shared();
        if shared.is_some() && !self.is_live.load(Ordering::Acquire) {
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

    /// Checks whether the run lives whose table is read; if not, looks for the table of another run. For the keeper's
    /// thread.
    pub(crate) fn look(&self) {
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
    /// that a function that reads one value may read another. If a reader holds the table for long, the keeper's next
    /// check tries again.
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
                    let opened = Connection::open(&self.socket, ATTACH_MAX);
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

/// Builds the request that puts a value, and its ticket.
pub(crate) fn put_request(
    key: &Key,
    value: Value<'_>,
    time: Option<Time>,
) -> Result<(Request, Ticket), Error> {
    let name = key.name_shared();
    let put = put_message(key, value, time)?;
    let ticket = Ticket::new(name);
    let expected = Expected::Stored(ticket.promise());
    Ok((Request::new(name, Kind::Put, &put, expected)?, ticket))
}

/// Builds the message of a reading.
pub(crate) fn put_message(
    key: &Key,
    value: Value<'_>,
    time: Option<Time>,
) -> Result<protocol::Put, Error> {
    let name = key.name_shared();
    let value = protocol::PutValue::of(value).ok_or_else(|| {
        let wrong = "the number is not finite";
        Error::new(Code::Invalid, name, wrong, "put a finite number")
    })?;
    Ok(protocol::Put::new(name.to_string(), value, time))
}
