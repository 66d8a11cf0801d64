//! A connection on which requests are sent without waiting for earlier answers. The sender never waits for the node: if
//! the socket takes no more, the request is refused. The maintenance thread takes the answers, in the order of the
//! requests, and completes the corresponding promises.

use crate::connection::{ConnectionError, connect};
use crate::error::Error;
use crate::inbox::Inbox;
use crate::process;
use crate::protocol::{
    self, ANSWER_BYTES_MAX, Failure, Kind, REQUEST_BYTES_MAX, Stored, TaskDeclared, TaskNoted,
};
use crate::ticket::Promise;
use base::error::Code;
use base::wire::{self, Decoded};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Largest number of requests of one connection that wait for their answers.
pub const PENDING_MAX: u32 = 1024;

/// Timeout of connecting, which delays the sender. A running node accepts a connection at once.
const CONNECT_MAX: Duration = Duration::from_millis(20);

/// Number of bytes that may wait for the socket before a request is refused.
const REST_BYTES_MAX: usize = 256 << 10;

/// Size of one read, in bytes.
const READ_BYTES: usize = 16 << 10;

/// What an answer completes.
pub(crate) enum Expected {
    Stored(Arc<Promise>),
    /// Several readings, stored together or not at all.
    Together(Vec<Arc<Promise>>, Arc<Refusals>),
    Declared(Arc<Declared>),
    Noted(Arc<Declared>),
}

/// The node's answers about a task.
#[derive(Default)]
pub(crate) struct Declared {
    /// Its number; `None` until the answer has come.
    pub(crate) id: OnceLock<u64>,
    pub(crate) sampling_period_ms: AtomicU32,
    error: Mutex<Option<Error>>,
    /// Signalled when there is a number or an error.
    is_answered: Condvar,
}

/// Instances of a firm task that were sent, and of which the node has stored nothing.
#[derive(Default)]
pub(crate) struct Refusals {
    pub(crate) aborted: AtomicU64,
    /// How many of them arrived after their deadline.
    pub(crate) late: AtomicU64,
    /// Why the last of the others was refused.
    pub(crate) error: Mutex<Option<Error>>,
}

/// State that sender and receiver of one connection share.
struct Link {
    stream: UnixStream,
    pending: AtomicU32,
    /// Whether part of a request has not been sent yet.
    has_rest: AtomicBool,
    /// Whether the other end is gone or has been given up.
    is_over: AtomicBool,
    /// Process id of the process that has connected.
    process: u32,
}

/// The sending half.
struct Sender {
    link: Arc<Link>,
    expected: mpsc::Sender<Expected>,
    /// Bytes of requests that count as sent, but that the socket has not taken yet.
    rest: Vec<u8>,
}

/// The receiving half, owned by the maintenance thread.
pub(crate) struct Receiver {
    link: Arc<Link>,
    pipe: std::sync::Weak<Pipe>,
    expected: mpsc::Receiver<Expected>,
    input: Vec<u8>,
}

/// A connection that is opened when it is needed, and again after it was lost.
pub(crate) struct Pipe {
    socket: PathBuf,
    sender: Mutex<Option<Sender>>,
    inbox: Inbox<Receiver>,
    /// Number of connections so far: what was declared on one is not valid on the next.
    connections: AtomicU64,
}

impl Pipe {
    pub(crate) fn new(socket: &Path, inbox: Inbox<Receiver>) -> Arc<Self> {
        Arc::new(Self {
            socket: socket.to_path_buf(),
            sender: Mutex::new(None),
            inbox,
            connections: AtomicU64::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Sender>> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shown(&self) -> impl std::fmt::Display + '_ {
        self.socket.display()
    }

    /// Returns the number of the current connection; `None` while there is none.
    pub(crate) fn connection(&self) -> Option<u64> {
        let sender = self.lock();
        let is_there = sender.as_ref().is_some_and(|sender| !sender.link.is_over());
        is_there.then(|| self.connections.load(Ordering::Relaxed))
    }

    /// Connects if there is no connection; returns its number.
    pub(crate) fn connect(self: &Arc<Self>) -> Result<u64, Error> {
        self.connected(&mut self.lock())
    }

    fn connected(self: &Arc<Self>, sender: &mut Option<Sender>) -> Result<u64, Error> {
        if sender.as_ref().is_none_or(|sender| sender.link.is_over()) {
            *sender = None;
            let failed = |error: &ConnectionError| Error::connection(self.shown(), error);
            let stream = connect(&self.socket, CONNECT_MAX).map_err(|error| {
                failed(&match error.kind() {
                    io::ErrorKind::WouldBlock => ConnectionError::Silent(CONNECT_MAX),
                    _ => ConnectionError::Unreachable(error),
                })
            })?;
            let link = Arc::new(Link {
                stream,
                pending: AtomicU32::new(0),
                has_rest: AtomicBool::new(false),
                is_over: AtomicBool::new(false),
                process: process::number(),
            });
            let (to, from) = mpsc::channel();
            self.inbox.add(Receiver {
                link: Arc::clone(&link),
                pipe: Arc::downgrade(self),
                expected: from,
                input: Vec::new(),
            })?;
            *sender = Some(Sender {
                link,
                expected: to,
                rest: Vec::new(),
            });
            self.connections.fetch_add(1, Ordering::Relaxed);
        }
        Ok(self.connections.load(Ordering::Relaxed))
    }

    /// Sends a request, connecting first if necessary.
    pub(crate) fn send(self: &Arc<Self>, request: Request) -> Result<(), Error> {
        let mut sender = self.lock();
        self.connected(&mut sender)?;
        self.send_on(sender, &mut vec![request])
    }

    /// Sends requests in one piece on the connection with this number, or none of them; in that case they remain in
    /// `requests`.
    pub(crate) fn send_over(
        &self,
        number: Option<u64>,
        requests: &mut Vec<Request>,
    ) -> Result<(), Error> {
        let sender = self.lock();
        if number != Some(self.connections.load(Ordering::Relaxed)) {
            return Err(Error::connection(self.shown(), &ConnectionError::Closed));
        }
        self.send_on(sender, requests)
    }

    fn send_on(
        &self,
        mut guard: MutexGuard<'_, Option<Sender>>,
        requests: &mut Vec<Request>,
    ) -> Result<(), Error> {
        let closed = || Error::connection(self.shown(), &ConnectionError::Closed);
        let sender = guard.as_mut().ok_or_else(closed)?;
        if sender.link.is_over() {
            return Err(closed());
        }
        let count = u32::try_from(requests.len()).unwrap_or(u32::MAX);
        let link = Arc::clone(&sender.link);
        // Only the lock's holder increases it.
        let pending = link.pending.load(Ordering::Acquire).saturating_add(count);
        if pending > PENDING_MAX {
            let wrong = format!("{PENDING_MAX} requests wait for their answers");
            return Err(self.busy(wrong));
        }
        sender.send_rest();
        if sender.rest.len() > REST_BYTES_MAX {
            return Err(self.busy("takes no more at the moment"));
        }
        link.pending.fetch_add(count, Ordering::AcqRel);
        for request in requests.drain(..) {
            sender.rest.extend_from_slice(&request.frame);
            // Queued before the request is sent, so that the answer finds it. If the receiver is gone, it is returned
            // and dropped.
            drop(sender.expected.send(request.expected));
        }
        sender.send_rest();
        if !sender.rest.is_empty() {
            // The maintenance thread waits until the socket takes it.
            self.inbox.ring();
        }
        Ok(())
    }

    fn busy(&self, wrong: impl std::fmt::Display) -> Error {
        let remedy = "wait for tickets before you put more";
        Error::new(Code::Busy, self.shown(), wrong, remedy)
    }
}

/// A request and what its answer completes.
pub(crate) struct Request {
    frame: Vec<u8>,
    expected: Expected,
}

impl Request {
    /// Builds a request. `thing`: the object that an error names.
    pub(crate) fn new(
        thing: &str,
        kind: Kind,
        message: &impl Serialize,
        expected: Expected,
    ) -> Result<Self, Error> {
        let frame = protocol::frame(kind, message, REQUEST_BYTES_MAX);
        let frame = frame.ok_or_else(|| too_long(thing))?;
        Ok(Self { frame, expected })
    }

    /// Gives up the request, and fails its promise.
    pub(crate) fn give_up(self, error: &Error) {
        self.expected.fail(error);
    }
}

/// Returns the error for a reading that is too large for a request.
pub(crate) fn too_long(thing: &str) -> Error {
    let wrong = ConnectionError::TooLong;
    Error::new(Code::Invalid, thing, wrong, "shorten key and value")
}

impl Link {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}

impl Sender {
    /// Sends what the socket takes, without waiting. The receiver reports what is lost with the connection.
    fn send_rest(&mut self) {
        let mut sent = 0;
        while let Some(bytes) = self.rest.get(sent..).filter(|bytes| !bytes.is_empty()) {
            // SAFETY: the bytes are valid for the length given.
            let done = unsafe {
                libc::send(
                    self.link.stream.as_raw_fd(),
                    bytes.as_ptr().cast(),
                    bytes.len(),
                    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                )
            };
            if let Ok(done) = usize::try_from(done) {
                sent += done;
                continue;
            }
            match io::Error::last_os_error().kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock => break,
                // A node that refuses the connection has sent the reason, which the receiver reads before the end of
                // the stream.
                _ => sent = self.rest.len(),
            }
        }
        self.rest.drain(..sent);
        let has_rest = !self.rest.is_empty();
        self.link.has_rest.store(has_rest, Ordering::Release);
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // The receiver finds the end, and notifies the waiting threads. In a child after fork the connection belongs to
        // the parent.
        if self.link.process == process::number() {
            self.link.stream.shutdown(std::net::Shutdown::Write).ok();
        }
    }
}

impl Receiver {
    /// Returns the events to wait for.
    pub(crate) fn polled(&self) -> libc::pollfd {
        let mut events = libc::POLLIN;
        if self.link.has_rest.load(Ordering::Acquire) {
            events |= libc::POLLOUT;
        }
        libc::pollfd {
            fd: self.link.stream.as_raw_fd(),
            events,
            revents: 0,
        }
    }

    /// Takes the received answers; `false` at the end of the connection.
    pub(crate) fn serve(&mut self, events: libc::c_short) -> bool {
        if events & libc::POLLOUT != 0
            && let Some(pipe) = self.pipe.upgrade()
        {
            // If the lock is taken, its holder sends the rest itself.
            if let Ok(mut sender) = pipe.sender.try_lock()
                && let Some(sender) = sender.as_mut()
                && Arc::ptr_eq(&sender.link, &self.link)
            {
                sender.send_rest();
            }
        }
        if events & !libc::POLLOUT == 0 {
            return true;
        }
        let ended = match self.receive() {
            Ok(()) => return true,
            Err(error) => error,
        };
        self.link.is_over.store(true, Ordering::Release);
        let shown = self.pipe.upgrade().map(|pipe| pipe.shown().to_string());
        let error = Error::connection(shown.as_deref().unwrap_or("node"), &ended);
        for expected in self.expected.try_iter() {
            expected.fail(&error);
        }
        false
    }

    /// Reads once, and completes what has been answered.
    fn receive(&mut self) -> Result<(), ConnectionError> {
        let before = self.input.len();
        self.input.resize(before + READ_BYTES, 0);
        let read = (&self.link.stream).read(&mut self.input[before..]);
        self.input.truncate(before + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => return Err(ConnectionError::Closed),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(ConnectionError::Lost(error)),
            Ok(_) => {}
        }
        let strange = ConnectionError::Strange;
        let mut at = 0;
        loop {
            match wire::decode(&self.input[at..], ANSWER_BYTES_MAX) {
                Err(error) => return Err(strange(error.to_string())),
                Ok(Decoded::NeedMore(_)) => break,
                Ok(Decoded::Frame(frame)) => {
                    at += frame.consumed;
                    if frame.version != protocol::VERSION {
                        return Err(strange(format!("version {}", frame.version)));
                    }
                    match self.expected.try_recv() {
                        Ok(expected) => {
                            self.link.pending.fetch_sub(1, Ordering::AcqRel);
                            expected.complete(frame.kind, frame.payload)?;
                        }
                        // No request is pending: a node without room for another connection reports it like this.
                        Err(_) if frame.kind == Kind::Error as u16 => {
                            return Err(ConnectionError::Refused(read_payload(frame.payload)?));
                        }
                        Err(_) => return Err(strange(format!("kind {} unasked", frame.kind))),
                    }
                }
            }
        }
        self.input.drain(..at);
        if self.input.is_empty() {
            // A connection without traffic holds no memory.
            self.input = Vec::new();
        }
        Ok(())
    }
}

fn read_payload<T: DeserializeOwned>(payload: &[u8]) -> Result<T, ConnectionError> {
    serde_json::from_slice(payload).map_err(|error| ConnectionError::Strange(error.to_string()))
}

impl Expected {
    fn complete(self, kind: u16, payload: &[u8]) -> Result<(), ConnectionError> {
        let done = match (&self, Kind::of(kind)) {
            (Self::Together(_, refusals), Some(Kind::Error)) => {
                let failure: Failure = read_payload(payload)?;
                // Counted first, so that a notified thread sees the count.
                self.fail(&refusals.note(Error::refused(&failure)));
                Ok(())
            }
            (_, Some(Kind::Error)) => {
                let failure: Failure = read_payload(payload)?;
                self.fail(&Error::refused(&failure));
                Ok(())
            }
            (Self::Stored(promise), Some(Kind::Stored)) => {
                read_payload(payload).map(|stored: Stored| promise.keep(Ok(stored.lsn)))
            }
            (Self::Together(promises, _), Some(Kind::Stored)) => {
                read_payload(payload).map(|stored: Stored| {
                    // Their numbers are consecutive; the answer contains the last one.
                    for (back, promise) in (0_u64..).zip(promises.iter().rev()) {
                        promise.keep(Ok(stored.lsn.saturating_sub(back)));
                    }
                })
            }
            (Self::Declared(task), Some(Kind::TaskDeclared)) => {
                read_payload(payload).map(|declared: TaskDeclared| {
                    task.sampling(declared.sampling_period_ms);
                    // Each declaration is answered once on a connection.
                    task.id.set(declared.id).ok();
                    // A thread that has checked the state and is about to wait holds the lock.
                    drop(task.error.lock().unwrap_or_else(PoisonError::into_inner));
                    task.is_answered.notify_all();
                })
            }
            (Self::Noted(task), Some(Kind::TaskNoted)) => read_payload(payload)
                .map(|noted: TaskNoted| task.sampling(noted.sampling_period_ms)),
            _ => Err(ConnectionError::Strange(format!("kind {kind}"))),
        };
        if let Err(error) = &done {
            self.fail(&Error::connection("node", error));
        }
        done
    }

    pub(crate) fn fail(&self, error: &Error) {
        match self {
            Self::Stored(promise) => promise.keep(Err(error.clone())),
            Self::Together(promises, _) => {
                for promise in promises {
                    promise.keep(Err(error.clone()));
                }
            }
            Self::Declared(task) | Self::Noted(task) => {
                let mut last = task.error.lock().unwrap_or_else(PoisonError::into_inner);
                *last = Some(error.clone());
                task.is_answered.notify_all();
            }
        }
    }
}

impl Drop for Expected {
    /// Fails the promise however a request was lost, so that no thread waits for ever.
    fn drop(&mut self) {
        let is_done = match self {
            Self::Stored(promise) => promise.is_done(),
            Self::Together(promises, _) => promises.iter().all(|promise| promise.is_done()),
            Self::Declared(_) | Self::Noted(_) => true,
        };
        if !is_done {
            self.fail(&Error::connection("node", &ConnectionError::Closed));
        }
    }
}

impl Refusals {
    /// Counts an instance that the node has refused. Returns the error to report.
    fn note(&self, error: Error) -> Error {
        let error = match error.code() {
            // The node's error about an unknown request names only a number.
            Code::Unsupported => {
                let wrong = "the node is older than this client and does not store an instance's puts together; \
                             nothing was stored";
                let remedy = "use a node of the client's version";
                Error::new(Code::Unsupported, "firm task", wrong, remedy)
            }
            _ => error,
        };
        match error.code() {
            // The node has received them in time, and does not know whether they are stored.
            Code::Io | Code::Gone => {}
            Code::Late => {
                self.late.fetch_add(1, Ordering::Relaxed);
                self.aborted.fetch_add(1, Ordering::Relaxed);
                return error;
            }
            _ => {
                self.aborted.fetch_add(1, Ordering::Relaxed);
            }
        }
        let mut last = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some(error.clone());
        error
    }
}

impl Declared {
    /// Waits until the node has answered, or the connection is lost.
    pub(crate) fn wait_for_answer(&self, at_most: Duration) {
        let error = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        let is_awaited = |error: &mut Option<Error>| error.is_none() && self.id.get().is_none();
        let waited = self
            .is_answered
            .wait_timeout_while(error, at_most, is_awaited);
        drop(waited);
    }

    /// Returns why the node does not accept the task, or its periods.
    pub(crate) fn refusal(&self) -> Option<Error> {
        let error = self.error.lock();
        error.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether the node has refused the task because its limit of tasks is reached.
    pub(crate) fn is_without_place(&self) -> bool {
        self.id.get().is_none()
            && self
                .refusal()
                .is_some_and(|error| error.code() == Code::Full)
    }

    fn sampling(&self, period_ms: u32) {
        self.sampling_period_ms.store(period_ms, Ordering::Relaxed);
    }
}
