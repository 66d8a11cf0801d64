//! A connection to a node. Whoever waits on it waits for a limited time, because a process that is stopped, or that
//! is no node, may hold the socket and never answer.

use super::place::Place;
use super::{failed, strange};
use crate::cli::NodeArgs;
use crate::error::{CliError, describe};
use crate::node::protocol::{self, ANSWER_BYTES_MAX, Failure, Kind, REQUEST_BYTES_MAX};
use base::wire::{self, Decoded};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;

/// How long a connection, and what a node answers at once, may take.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// How long a put may take: the node itself gives up after 10 s without room and 60 s without a flush. Also how long
/// a history may pause that has begun.
const SLOW_MAX: Duration = Duration::from_secs(70);

/// A connection to a node.
pub(super) struct Connection {
    stream: UnixStream,
    place: Place,
    shown: String,
    /// What was asked for last.
    asked: Option<Kind>,
    /// Whether an answer to that has come.
    has_begun: bool,
    input: Vec<u8>,
    /// Bytes of `input` that belong to the answer given last.
    taken: usize,
}

/// One answer.
pub(super) struct Answer<'c> {
    pub(super) kind: Kind,
    payload: &'c [u8],
    pub(super) shown: &'c str,
}

impl Answer<'_> {
    pub(super) fn read<T: DeserializeOwned>(&self) -> Result<T, CliError> {
        serde_json::from_slice(self.payload).map_err(|error| strange(self.shown, error))
    }

    fn unless_failed(self, asked: Option<Kind>) -> Result<Self, CliError> {
        if self.kind == Kind::Error {
            Err(failed(&self.read()?, asked))
        } else {
            Ok(self)
        }
    }
}

/// What a wait has ended with.
#[derive(Debug, PartialEq)]
enum Waited {
    /// The node has sent something, or has gone.
    Input,
    /// Nobody reads what this program writes any more.
    NoReader,
    Late,
}

impl Connection {
    pub(super) fn open(arguments: &NodeArgs) -> Result<Self, CliError> {
        Self::to(Place::of(arguments)?)
    }

    pub(super) fn to(place: Place) -> Result<Self, CliError> {
        Self::open_at(place, ANSWER_MAX)
    }

    fn open_at(place: Place, patience: Duration) -> Result<Self, CliError> {
        let (sender, receiver) = mpsc::channel();
        let path = place.socket.clone();
        // The queue of a process that is stopped may be full, and then connecting waits for ever. The thread ends
        // with this program at the latest.
        std::thread::spawn(move || sender.send(UnixStream::connect(path)));
        let stream = match receiver.recv_timeout(patience) {
            Ok(connected) => connected.map_err(|error| place.unreachable(&error))?,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                return Err(silent(&place, patience));
            }
        };
        Ok(Self {
            stream,
            shown: place.shown(),
            place,
            asked: None,
            has_begun: false,
            input: Vec::new(),
            taken: 0,
        })
    }

    /// Sends a request.
    pub(super) fn send(&mut self, kind: Kind, message: &impl Serialize) -> Result<(), CliError> {
        let frame = protocol::frame(kind, message, REQUEST_BYTES_MAX).ok_or_else(|| {
            let wrong = format!("has more than {REQUEST_BYTES_MAX} bytes");
            CliError::usage("request", wrong, "shorten key and value")
        })?;
        self.asked = Some(kind);
        self.has_begun = false;
        self.stream.set_write_timeout(Some(ANSWER_MAX)).ok();
        match self.stream.write_all(&frame) {
            // A node that refuses the connection says why and closes it; what it said can still be read.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(silent(&self.place, ANSWER_MAX))
            }
            Err(error) => Err(self.lost(&error)),
            Ok(()) => Ok(()),
        }
    }

    /// Waits for the next answer. One that is an error becomes the command's.
    pub(super) fn answer(&mut self) -> Result<Answer<'_>, CliError> {
        let asked = self.asked;
        let answer = self.next(self.patience(), None)?.ok_or_else(no_reader)?;
        answer.unless_failed(asked)
    }

    /// Waits for the next of the answers that nobody needs once standard output has lost its reader, which is `None`.
    /// One that is an error becomes the command's.
    pub(super) fn answer_to_reader(&mut self) -> Result<Option<Answer<'_>>, CliError> {
        let asked = self.asked;
        let answer = self.next(self.patience(), Some(libc::STDOUT_FILENO))?;
        answer.map(|answer| answer.unless_failed(asked)).transpose()
    }

    /// How long the next answer may take; `None` for one that may never come.
    fn patience(&self) -> Option<Duration> {
        match (self.asked, self.has_begun) {
            (Some(Kind::Watch), true) => None,
            (Some(Kind::Put), _) | (Some(Kind::History), true) => Some(SLOW_MAX),
            _ => Some(ANSWER_MAX),
        }
    }

    /// The next answer, be it an error.
    fn next(
        &mut self,
        patience: Option<Duration>,
        output: Option<RawFd>,
    ) -> Result<Option<Answer<'_>>, CliError> {
        self.input.drain(..self.taken);
        self.taken = 0;
        let end = patience.map(|patience| Instant::now() + patience);
        let (kind, range) = loop {
            match wire::decode(&self.input, ANSWER_BYTES_MAX) {
                Err(error) => return Err(strange(&self.shown, error)),
                Ok(Decoded::NeedMore(_)) => match self.wait(end, output)? {
                    Waited::Input => self.receive()?,
                    Waited::NoReader => return Ok(None),
                    Waited::Late => {
                        return Err(silent(&self.place, patience.unwrap_or_default()));
                    }
                },
                Ok(Decoded::Frame(frame)) => {
                    self.taken = frame.consumed;
                    if frame.version != protocol::VERSION {
                        return Err(strange(&self.shown, format!("version {}", frame.version)));
                    }
                    let end = frame.consumed;
                    break (frame.kind, end - frame.payload.len()..end);
                }
            }
        };
        self.has_begun = true;
        let answer = Answer {
            kind: Kind::of(kind).ok_or_else(|| strange(&self.shown, format!("kind {kind}")))?,
            payload: self.input.get(range).unwrap_or_default(),
            shown: &self.shown,
        };
        Ok(Some(answer))
    }

    /// Sends a request that has one answer, of this kind.
    pub(super) fn ask<T: DeserializeOwned>(
        &mut self,
        kind: Kind,
        message: &impl Serialize,
        expected: Kind,
    ) -> Result<T, CliError> {
        self.ask_or(kind, message, expected, |failure| {
            failed(&failure, Some(kind))
        })
    }

    /// The same, for a command that has more to say about a failure than the node.
    pub(super) fn ask_or<T: DeserializeOwned>(
        &mut self,
        kind: Kind,
        message: &impl Serialize,
        expected: Kind,
        tell: impl FnOnce(Failure) -> CliError,
    ) -> Result<T, CliError> {
        self.send(kind, message)?;
        let answer = self.next(self.patience(), None)?.ok_or_else(no_reader)?;
        match answer.kind {
            Kind::Error => Err(tell(answer.read()?)),
            found if found == expected => answer.read(),
            other => Err(strange(answer.shown, format!("{other:?}"))),
        }
    }

    /// Waits until there is something to read, or `output` has no reader any more, or the end has come.
    fn wait(&self, end: Option<Instant>, output: Option<RawFd>) -> Result<Waited, CliError> {
        let polled = |fd, events| libc::pollfd {
            fd,
            events,
            revents: 0,
        };
        // Of the output only what is always told is wanted: that its other end has gone. A negative number is passed
        // over.
        let mut polled = [
            polled(self.stream.as_raw_fd(), libc::POLLIN),
            polled(output.unwrap_or(-1), 0),
        ];
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            // Rounded up: not woken a moment before the end again and again.
            let timeout_ms = left.map_or(-1, |left| {
                i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
            });
            // SAFETY: the array outlives the call, and its length is given.
            let ready = unsafe {
                libc::poll(
                    polled.as_mut_ptr(),
                    polled.len() as libc::nfds_t,
                    timeout_ms,
                )
            };
            if ready < 0 {
                let error = io::Error::last_os_error();
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                return Err(self.lost(&error));
            }
            if polled[1].revents & (libc::POLLERR | libc::POLLHUP) != 0 {
                return Ok(Waited::NoReader);
            }
            if polled[0].revents != 0 {
                return Ok(Waited::Input);
            }
            if end.is_some_and(|end| Instant::now() >= end) {
                return Ok(Waited::Late);
            }
        }
    }

    fn receive(&mut self) -> Result<(), CliError> {
        let before = self.input.len();
        self.input.resize(before + READ_BYTES, 0);
        let read = loop {
            match self.stream.read(&mut self.input[before..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        self.input.truncate(before + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => Err(CliError::failure(
                &self.shown,
                "the node has closed the connection",
                "look at what it says, or whether it runs, then try again",
            )),
            Ok(_) => Ok(()),
            Err(error) => Err(self.lost(&error)),
        }
    }

    fn lost(&self, error: &io::Error) -> CliError {
        let wrong = format!("the connection to the node broke ({})", describe(error));
        CliError::failure(
            &self.shown,
            wrong,
            "look whether the node runs, then try again",
        )
    }
}

/// Nobody would see the answer.
fn no_reader() -> CliError {
    CliError::failure("standard output", "nobody reads it any more", "")
}

/// Somebody holds the socket and says nothing.
fn silent(place: &Place, patience: Duration) -> CliError {
    let wrong = format!("the node has not answered for {} s", patience.as_secs_f64());
    CliError::failure(place.shown(), wrong, place.look_hint())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    const SHORT: Duration = Duration::from_millis(40);

    /// A socket that nobody accepts from, removed in the end.
    struct Mute(PathBuf, UnixListener);

    impl Mute {
        fn new() -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("keel-mute-{}-{number}.sock", std::process::id());
            let path = std::env::temp_dir().join(name);
            let listener = UnixListener::bind(&path).unwrap();
            Self(path, listener)
        }

        fn connect(&self) -> Result<Connection, CliError> {
            Connection::open_at(Place::named(&self.0), SHORT)
        }
    }

    impl Drop for Mute {
        fn drop(&mut self) {
            std::fs::remove_file(&self.0).ok();
        }
    }

    fn is_silence(error: &CliError) {
        assert_eq!(error.status(), 1);
        let line = error.to_string();
        assert!(
            line.contains("the node has not answered for 0.04 s; look at its process"),
            "{line}"
        );
    }

    #[test]
    fn a_node_that_never_answers_is_not_waited_for() {
        let mute = Mute::new();
        let mut connection = mute.connect().unwrap();
        connection.send(Kind::Status, &protocol::Status {}).unwrap();
        is_silence(&connection.next(Some(SHORT), None).err().unwrap());
        // What is asked for says how long that is.
        assert_eq!(connection.patience(), Some(ANSWER_MAX));
        for (kind, first, later) in [
            (Kind::Put, Some(SLOW_MAX), Some(SLOW_MAX)),
            (Kind::History, Some(ANSWER_MAX), Some(SLOW_MAX)),
            (Kind::Watch, Some(ANSWER_MAX), None),
        ] {
            connection.send(kind, &protocol::Status {}).unwrap();
            assert_eq!(connection.patience(), first, "{kind:?}");
            connection.has_begun = true;
            assert_eq!(connection.patience(), later, "{kind:?}");
        }
    }

    #[test]
    fn half_an_answer_is_none() {
        let mute = Mute::new();
        let mut connection = mute.connect().unwrap();
        let (mut other, _) = mute.1.accept().unwrap();
        let stored = protocol::Stored { lsn: 7 };
        let whole = protocol::frame(Kind::Stored, &stored, ANSWER_BYTES_MAX).unwrap();
        let (first, rest) = whole.split_at(9);
        other.write_all(first).unwrap();
        is_silence(&connection.next(Some(SHORT), None).err().unwrap());
        // It is none yet: what has come is kept.
        other.write_all(rest).unwrap();
        let answer = connection.answer().ok().unwrap();
        assert_eq!(answer.read::<protocol::Stored>().unwrap(), stored);
    }

    #[test]
    fn a_queue_that_is_full_is_not_waited_for() {
        let mute = Mute::new();
        // SAFETY: a plain system call on a socket that is open; listening again only makes its queue shorter.
        assert_eq!(unsafe { libc::listen(mute.1.as_raw_fd(), 0) }, 0);
        let mut connections = Vec::new();
        let error = loop {
            match mute.connect() {
                Ok(connection) => connections.push(connection),
                Err(error) => break error,
            }
            assert!(connections.len() < 10_000);
        };
        is_silence(&error);
    }

    #[test]
    fn a_reader_who_has_gone_ends_the_wait() {
        let mute = Mute::new();
        let connection = mute.connect().unwrap();
        let (reader, writer) = io::pipe().unwrap();
        let output = Some(writer.as_raw_fd());
        let end = Some(Instant::now() + SHORT);
        assert_eq!(connection.wait(end, output).unwrap(), Waited::Late);
        drop(reader);
        assert_eq!(connection.wait(None, output).unwrap(), Waited::NoReader);
    }
}
