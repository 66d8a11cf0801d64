//! A connection to a node. Every wait on it has a timeout, because a process that is stopped, or that is no node, may
//! hold the socket and never answer.

use crate::protocol::{self, ANSWER_BYTES_MAX, Failure, Kind, REQUEST_BYTES_MAX};
use base::error::Code;
use base::wire::{self, Decoded};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Size of one read, in bytes.
const READ_BYTES: usize = 64 << 10;

/// Timeout of a connection attempt, and of requests that a node answers at once.
pub const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Timeout of a put: the node itself gives up after 10 s without room and 60 s without a flush. Also the longest pause
/// within a history that has begun.
pub const SLOW_MAX: Duration = Duration::from_secs(70);

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The connection could not be opened.
    #[error("no connection to the node ({0})")]
    Unreachable(#[source] io::Error),
    /// A process holds the socket and has been silent for this time.
    #[error("the node has not answered for {} s", .0.as_secs_f64())]
    Silent(Duration),
    /// The system has closed the connection.
    #[error("the connection to the node broke ({0})")]
    Lost(#[source] io::Error),
    /// The node has closed the connection.
    #[error("the node has closed the connection")]
    Closed,
    /// The answer is not one of this version.
    #[error("the answer is not what this version expects ({0})")]
    Strange(String),
    /// The request is longer than a node accepts.
    #[error("the request has more than {REQUEST_BYTES_MAX} bytes")]
    TooLong,
    /// The output for which the answer was meant no longer has a reader.
    #[error("the output has no reader any more")]
    NoReader,
    /// The node has answered with an error.
    #[error("{}: {}", .0.thing, .0.wrong)]
    Refused(Failure),
}

impl ConnectionError {
    /// Returns the error code of this error; see [`base::error`].
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Unreachable(error) if error.kind() == io::ErrorKind::InvalidInput => {
                Code::Invalid
            }
            Self::Unreachable(error) => Code::from_io(error),
            Self::Silent(_) => Code::Late,
            Self::Lost(_) => Code::Io,
            Self::Closed | Self::NoReader => Code::Gone,
            Self::Strange(_) => Code::Unsupported,
            Self::TooLong => Code::Invalid,
            Self::Refused(failure) => Code::from_name(&failure.code).unwrap_or(Code::Io),
        }
    }
}

/// A connection to a node.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    /// The last request.
    asked: Option<Kind>,
    /// Whether an answer to it has arrived.
    has_begun: bool,
    input: Vec<u8>,
    /// Number of bytes of `input` that belong to the answer returned last.
    taken: usize,
}

/// One answer.
#[derive(Debug)]
pub struct Answer<'c> {
    /// Its kind.
    pub kind: Kind,
    payload: &'c [u8],
}

impl Answer<'_> {
    /// Parses its payload.
    ///
    /// # Errors
    /// [`ConnectionError::Strange`].
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, ConnectionError> {
        serde_json::from_slice(self.payload)
            .map_err(|error| ConnectionError::Strange(error.to_string()))
    }

    /// Returns the raw payload, for the one kind that is not JSON.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.payload
    }

    /// Returns the answer, unless it is an error.
    ///
    /// # Errors
    /// [`ConnectionError::Refused`] with the node's message.
    pub fn unless_failed(self) -> Result<Self, ConnectionError> {
        match self.kind {
            Kind::Error => Err(ConnectionError::Refused(self.read()?)),
            _ => Ok(self),
        }
    }
}

/// Why a wait has ended.
#[derive(Debug, PartialEq)]
enum Waited {
    /// The node has sent something, or is gone.
    Input,
    /// The output of this program no longer has a reader.
    NoReader,
    Late,
}

impl Connection {
    /// Connects to the node that serves a socket. Takes at most `patience`.
    ///
    /// # Errors
    /// [`ConnectionError::Unreachable`], [`ConnectionError::Silent`].
    pub fn open(socket: &Path, patience: Duration) -> Result<Self, ConnectionError> {
        let stream = connect(socket, patience).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => ConnectionError::Silent(patience),
            _ => ConnectionError::Unreachable(error),
        })?;
        Ok(Self {
            stream,
            asked: None,
            has_begun: false,
            input: Vec::new(),
            taken: 0,
        })
    }

    /// Sends a request. Takes at most 10 s.
    ///
    /// # Errors
    /// [`ConnectionError::TooLong`], [`ConnectionError::Silent`], [`ConnectionError::Lost`].
    pub fn send(&mut self, kind: Kind, message: &impl Serialize) -> Result<(), ConnectionError> {
        let frame = protocol::frame(kind, message, REQUEST_BYTES_MAX);
        let frame = frame.ok_or(ConnectionError::TooLong)?;
        self.asked = Some(kind);
        self.has_begun = false;
        self.stream.set_write_timeout(Some(ANSWER_MAX)).ok();
        match self.stream.write_all(&frame) {
            // A node that refuses the connection sends the reason and closes it; the reason can still be read.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(ConnectionError::Silent(ANSWER_MAX))
            }
            Err(error) => Err(ConnectionError::Lost(error)),
            Ok(()) => Ok(()),
        }
    }

    /// Waits for the next answer, up to the timeout of the last request.
    ///
    /// # Errors
    /// [`ConnectionError::Refused`] if it is an error, and those of [`next`](Self::next).
    pub fn answer(&mut self) -> Result<Answer<'_>, ConnectionError> {
        let answer = self.next(self.patience(), None)?;
        answer.unless_failed()
    }

    /// Returns the timeout of the next answer; `None` for one that may never come.
    #[must_use]
    pub fn patience(&self) -> Option<Duration> {
        match (self.asked, self.has_begun) {
            (Some(Kind::Watch), true) => None,
            (Some(Kind::Put | Kind::KeysRelease), _)
            | (Some(Kind::History | Kind::Backup), true) => Some(SLOW_MAX),
            _ => Some(ANSWER_MAX),
        }
    }

    /// Returns the next answer, even if it is an error. `patience`: the timeout; `None` waits for ever. `output`: the
    /// destination of the answer; the wait ends if it loses its reader.
    ///
    /// # Errors
    /// [`ConnectionError::Silent`], [`ConnectionError::NoReader`], [`ConnectionError::Closed`],
    /// [`ConnectionError::Lost`], [`ConnectionError::Strange`].
    pub fn next(
        &mut self,
        patience: Option<Duration>,
        output: Option<BorrowedFd<'_>>,
    ) -> Result<Answer<'_>, ConnectionError> {
        self.input.drain(..self.taken);
        self.taken = 0;
        let end = patience.map(|patience| Instant::now() + patience);
        let strange = ConnectionError::Strange;
        let (kind, range) = loop {
            match wire::decode(&self.input, ANSWER_BYTES_MAX) {
                Err(error) => return Err(strange(error.to_string())),
                Ok(Decoded::NeedMore(_)) => match self.wait(end, output)? {
                    Waited::Input => self.receive()?,
                    Waited::NoReader => return Err(ConnectionError::NoReader),
                    Waited::Late => {
                        return Err(ConnectionError::Silent(patience.unwrap_or_default()));
                    }
                },
                Ok(Decoded::Frame(frame)) => {
                    self.taken = frame.consumed;
                    if frame.version != protocol::VERSION {
                        return Err(strange(format!("version {}", frame.version)));
                    }
                    let end = frame.consumed;
                    break (frame.kind, end - frame.payload.len()..end);
                }
            }
        };
        self.has_begun = true;
        Ok(Answer {
            kind: Kind::of(kind).ok_or_else(|| strange(format!("kind {kind}")))?,
            payload: self.input.get(range).unwrap_or_default(),
        })
    }

    /// Sends a request that has one answer, of this kind.
    ///
    /// # Errors
    /// Those of [`send`](Self::send) and [`answer`](Self::answer).
    pub fn ask<T: DeserializeOwned>(
        &mut self,
        kind: Kind,
        message: &impl Serialize,
        expected: Kind,
    ) -> Result<T, ConnectionError> {
        self.send(kind, message)?;
        let answer = self.answer()?;
        match answer.kind {
            found if found == expected => answer.read(),
            other => Err(ConnectionError::Strange(format!("{other:?}"))),
        }
    }

    /// Waits until there is something to read, `output` has no reader any more, or `end` has passed.
    fn wait(
        &self,
        end: Option<Instant>,
        output: Option<BorrowedFd<'_>>,
    ) -> Result<Waited, ConnectionError> {
        let polled = |fd, events| libc::pollfd {
            fd,
            events,
            revents: 0,
        };
        // For the output only the hang-up event is wanted, which poll always reports. poll ignores a negative
        // descriptor.
        let mut polled = [
            polled(self.stream.as_raw_fd(), libc::POLLIN),
            polled(output.map_or(-1, |output| output.as_raw_fd()), 0),
        ];
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            // Rounded up, so that the loop does not wake repeatedly just before the end.
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
                return Err(ConnectionError::Lost(error));
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

    fn receive(&mut self) -> Result<(), ConnectionError> {
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
            Ok(0) => Err(ConnectionError::Closed),
            Ok(_) => Ok(()),
            Err(error) => Err(ConnectionError::Lost(error)),
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Connects within `patience`; `WouldBlock` if the other side has not accepted the connection by then. The queue of a
/// stopped process may be full, and connecting would then wait for ever.
pub(crate) fn connect(socket: &Path, patience: Duration) -> io::Result<UnixStream> {
    // SAFETY: a plain system call.
    let descriptor =
        unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: opened just now, and it has no other owner.
    let owned = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let stream = UnixStream::from(owned);
    // The kernel waits for a place in the queue up to the write timeout. A timeout of zero would be infinite.
    let end = Instant::now() + patience;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        stream.set_write_timeout(Some(left.max(Duration::from_millis(1))))?;
        match connect_to(stream.as_raw_fd(), socket) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(()) => break,
        }
    }
    stream.set_write_timeout(None)?;
    Ok(stream)
}

fn connect_to(descriptor: RawFd, socket: &Path) -> io::Result<()> {
    // SAFETY: plain data, for which all zeros are a value.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let path = socket.as_os_str().as_bytes();
    // The path must end with a zero, and an empty path would be another kind of address.
    if path.is_empty() || path.len() >= address.sun_path.len() || path.contains(&0) {
        let text = "the path of a socket must have 1 to 107 bytes, none of them zero";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    for (to, from) in address.sun_path.iter_mut().zip(path) {
        *to = *from as libc::c_char;
    }
    let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: the address is whole, ends with a zero, and outlives the call.
    match unsafe { libc::connect(descriptor, (&raw const address).cast(), length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    const SHORT: Duration = Duration::from_millis(40);

    /// A socket without accepts, removed at the end.
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

        fn connect(&self) -> Result<Connection, ConnectionError> {
            Connection::open(&self.0, SHORT)
        }
    }

    impl Drop for Mute {
        fn drop(&mut self) {
            std::fs::remove_file(&self.0).ok();
        }
    }

    fn is_silence(error: &ConnectionError) {
        assert!(matches!(error, ConnectionError::Silent(SHORT)), "{error:?}");
        assert_eq!(error.to_string(), "the node has not answered for 0.04 s");
        assert_eq!(error.code(), Code::Late);
    }

    #[test]
    fn a_node_that_never_answers_is_not_waited_for() {
        let mute = Mute::new();
        let mut connection = mute.connect().unwrap();
        connection.send(Kind::Status, &protocol::Status {}).unwrap();
        is_silence(&connection.next(Some(SHORT), None).err().unwrap());
        // The request determines the timeout.
        assert_eq!(connection.patience(), Some(ANSWER_MAX));
        for (kind, first, later) in [
            (Kind::Put, Some(SLOW_MAX), Some(SLOW_MAX)),
            (Kind::KeysRelease, Some(SLOW_MAX), Some(SLOW_MAX)),
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
    fn an_incomplete_answer_is_none() {
        let mute = Mute::new();
        let mut connection = mute.connect().unwrap();
        let (mut other, _) = mute.1.accept().unwrap();
        let stored = protocol::Stored { lsn: 7 };
        let whole = protocol::frame(Kind::Stored, &stored, ANSWER_BYTES_MAX).unwrap();
        let (first, rest) = whole.split_at(9);
        other.write_all(first).unwrap();
        is_silence(&connection.next(Some(SHORT), None).err().unwrap());
        // The answer is incomplete: the received bytes are kept.
        other.write_all(rest).unwrap();
        let answer = connection.answer().unwrap();
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
    fn a_path_without_a_socket_is_refused_with_its_code() {
        for (path, code) in [
            ("", Code::Invalid),
            ("/nonexistent/keel.sock", Code::NotFound),
            (&*"x".repeat(200), Code::Invalid),
            ("a\0b", Code::Invalid),
        ] {
            let error = Connection::open(path.as_ref(), SHORT).err().unwrap();
            assert!(matches!(error, ConnectionError::Unreachable(_)), "{path}");
            assert_eq!(error.code(), code, "{path}: {error}");
        }
    }

    #[test]
    fn a_closed_reader_ends_the_wait() {
        let mute = Mute::new();
        let connection = mute.connect().unwrap();
        let (reader, writer) = io::pipe().unwrap();
        let output = Some(writer.as_fd());
        let end = Some(Instant::now() + SHORT);
        assert_eq!(connection.wait(end, output).unwrap(), Waited::Late);
        drop(reader);
        assert_eq!(connection.wait(None, output).unwrap(), Waited::NoReader);
    }
}
