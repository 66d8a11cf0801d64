//! The sockets: binds them, and accepts connections.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use base::error::Code;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::{JoinSet, LocalSet};

use super::LineOptions;
use super::connection::{self, Shared};
use super::places::{Places, Taken};
use super::state::{Control, Counted, LineState};
use crate::Error;
use crate::durable::DurableWatch;
use crate::intake::{Destination, Intake};

/// Wait after a failed accept, for example for lack of descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// Time to tell senders that the log has failed.
const FAILURE_TOLD: Duration = Duration::from_millis(200);

/// The message to a connection above the limit.
const TOO_MANY: &[u8] = b"error connections_max\n";

/// Sockets that are bound and listened on. Dropping them removes the Unix socket's file.
#[derive(Debug)]
pub struct LineListeners {
    tcp: Option<std::net::TcpListener>,
    unix: Option<std::os::unix::net::UnixListener>,
    options: LineOptions,
    _file: Option<SocketFile>,
}

/// Why [`run`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The controller requested it.
    Stopped,
    /// The log has failed for good: no line can be acknowledged any more.
    LogFailed,
}

impl LineListeners {
    /// Binds the sockets that the options name, perhaps none. A Unix socket's file without a listener is replaced; any
    /// other file in its place is left alone.
    ///
    /// # Errors
    /// [`Error::OptionRange`]; [`Error::Listen`] names the address and the remedy.
    pub fn bind(options: LineOptions) -> Result<Self, Error> {
        options.check()?;
        let tcp = match &options.tcp_listen {
            Some(address) => Some(bind_tcp(address)?),
            None => None,
        };
        let (unix, file) = match &options.unix_socket {
            Some(path) => {
                let (unix, file) = bind_unix(path, options.unix_mode)?;
                (Some(unix), Some(file))
            }
            None => (None, None),
        };
        Ok(Self {
            tcp,
            unix,
            options,
            _file: file,
        })
    }

    /// Returns the bound TCP address, with the port that the system chose for port 0.
    #[must_use]
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref()?.local_addr().ok()
    }
}

/// Accepts connections and takes their lines until the control says stop or the log fails. Must run on a current-thread
/// runtime with time and network.
///
/// Dropping the future ends the connections as a crash would: senders must send unacknowledged lines again.
///
/// # Errors
/// [`Error::Listen`] if the runtime cannot watch the sockets.
pub async fn run<D: Destination>(
    listeners: LineListeners,
    intake: Rc<RefCell<Intake<D>>>,
    durable: DurableWatch,
    control: Control,
    state: Arc<LineState>,
) -> Result<Ended, Error> {
    let shared = Rc::new(Shared {
        places: Places::new(listeners.options.connections_max),
        intake,
        durable,
        control,
        state,
        options: listeners.options.clone(),
    });
    // Connections share the intake without a lock, so they stay on this thread.
    LocalSet::new()
        .run_until(accept_all(listeners, shared))
        .await
}

async fn accept_all<D: Destination>(
    listeners: LineListeners,
    shared: Rc<Shared<D>>,
) -> Result<Ended, Error> {
    let watched = |name: &str, error: io::Error| Error::Listen {
        address: name.to_owned(),
        reason: error.to_string(),
        code: Code::Io,
    };
    let tcp = listeners.tcp.as_ref().map(|listener| {
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener.try_clone()?)
    });
    let tcp = tcp
        .transpose()
        .map_err(|error| watched("the TCP socket", error))?;
    let unix = listeners.unix.as_ref().map(|listener| {
        listener.set_nonblocking(true)?;
        UnixListener::from_std(listener.try_clone()?)
    });
    let unix = unix
        .transpose()
        .map_err(|error| watched("the Unix socket", error))?;

    let mut connections = JoinSet::new();
    let mut durable = shared.durable.clone();
    let mut control = shared.control.clone();
    let ended = loop {
        if durable.get().failed {
            break Ended::LogFailed;
        }
        tokio::select! {
            biased;
            wait = control.stopped() => {
                // Each connection ends by itself within the time limit; this is for one that does not.
                let rest = async { while connections.join_next().await.is_some() {} };
                let _ = tokio::time::timeout(wait + Duration::from_millis(50), rest).await;
                return Ok(Ended::Stopped);
            }
            () = durable.changed() => {}
            Some(_) = connections.join_next() => {}
            accepted = accept_tcp(tcp.as_ref()) => match accepted {
                Ok(stream) => take(&mut connections, &shared, stream),
                Err(error) => failed(&shared, &error).await,
            },
            accepted = accept_unix(unix.as_ref()) => match accepted {
                Ok(stream) => take(&mut connections, &shared, stream),
                Err(error) => failed(&shared, &error).await,
            },
        }
    };
    // Connections that owe an acknowledgement notice the failure too, and report it; the others have nothing to report.
    let rest = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(FAILURE_TOLD, rest).await;
    Ok(ended)
}

async fn accept_tcp(listener: Option<&TcpListener>) -> io::Result<tokio::net::TcpStream> {
    match listener {
        Some(listener) => {
            let (stream, _) = listener.accept().await?;
            // Acknowledgements are small, and senders wait for them. The read will detect a peer that has already hung
            // up.
            let _ = stream.set_nodelay(true);
            base::socket::keep_alive(&stream);
            Ok(stream)
        }
        None => std::future::pending().await,
    }
}

async fn accept_unix(listener: Option<&UnixListener>) -> io::Result<tokio::net::UnixStream> {
    match listener {
        Some(listener) => Ok(listener.accept().await?.0),
        None => std::future::pending().await,
    }
}

async fn failed<D: Destination>(shared: &Shared<D>, error: &io::Error) {
    // This is caused by the peer, and is not the node's state.
    if error.kind() != io::ErrorKind::ConnectionAborted {
        shared.state.accept_failed(error);
    }
    tokio::time::sleep(ACCEPT_BACKOFF).await;
}

fn take<D, S>(connections: &mut JoinSet<()>, shared: &Rc<Shared<D>>, mut stream: S)
where
    D: Destination,
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let state = Arc::clone(&shared.state);
    state.accept_succeeded();
    let place = match shared.places.take() {
        Taken::Place(place) => place,
        Taken::PlaceOfAnother(place) => {
            state.connections_made_room.fetch_add(1, Relaxed);
            place
        }
        Taken::Refused => {
            state.connections_refused.fetch_add(1, Relaxed);
            // The socket's send buffer is empty: it takes this at once or not at all.
            connections.spawn_local(async move {
                let _ = tokio::time::timeout(ACCEPT_BACKOFF, stream.write_all(TOO_MANY)).await;
            });
            return;
        }
    };
    state.connections_total.fetch_add(1, Relaxed);
    let shared = Rc::clone(shared);
    connections.spawn_local(async move {
        let _open = Counted::new(&state.connections);
        connection::serve(stream, &shared, &place).await;
    });
}

fn bind_tcp(address: &str) -> Result<std::net::TcpListener, Error> {
    std::net::TcpListener::bind(address).map_err(|error| {
        let (remedy, code) = match error.kind() {
            io::ErrorKind::AddrInUse => (
                "another program listens there: end it or choose another port",
                Code::Busy,
            ),
            io::ErrorKind::AddrNotAvailable => (
                "this machine has no such address: choose one of its own",
                Code::Invalid,
            ),
            io::ErrorKind::PermissionDenied => ("choose a port from 1024 on", Code::Denied),
            io::ErrorKind::InvalidInput => ("write it as host:port", Code::Invalid),
            _ => ("check the address, written as host:port", Code::Io),
        };
        Error::Listen {
            address: address.to_owned(),
            reason: format!("{error} ({remedy})"),
            code,
        }
    })
}

/// The file of a bound Unix socket; removed when dropped, unless another file has taken its place.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: Option<(u64, u64)>,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = fs::symlink_metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

fn bind_unix(
    path: &Path,
    mode: u32,
) -> Result<(std::os::unix::net::UnixListener, SocketFile), Error> {
    let fail = |reason: String, code| Error::Listen {
        address: path.display().to_string(),
        reason,
        code,
    };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(fail(error.to_string(), Code::Io)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            let reason = "it exists and is no socket: remove it or choose another path";
            return Err(fail(reason.to_owned(), Code::Exists));
        }
        Ok(_) => match StdUnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                // A killed process has left the file behind.
                fs::remove_file(path).map_err(|error| fail(error.to_string(), Code::Io))?;
            }
            Ok(_) => {
                let reason = "another process listens on it: end that one or choose another path";
                return Err(fail(reason.to_owned(), Code::Busy));
            }
            Err(error) => {
                let reason = format!("whether another process listens on it is unknown: {error}");
                return Err(fail(reason, Code::Denied));
            }
        },
    }
    let listener = std::os::unix::net::UnixListener::bind(path).map_err(|error| {
        let (remedy, code) = match error.kind() {
            io::ErrorKind::NotFound => ("make its folder", Code::NotFound),
            io::ErrorKind::PermissionDenied => ("its folder must be writable", Code::Denied),
            io::ErrorKind::InvalidInput => ("a socket's path has at most 107 bytes", Code::Invalid),
            _ => ("choose another path", Code::Io),
        };
        fail(format!("{error} ({remedy})"), code)
    })?;
    let file = SocketFile {
        path: path.to_owned(),
        identity: identity(path),
    };
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(|error| fail(format!("its mode cannot be set: {error}"), Code::Denied))?;
    Ok((listener, file))
}
