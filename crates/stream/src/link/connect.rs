//! Connects to a server by name.

use super::secure::Secure;
use super::socket::{Socket, timed_out};
use super::{Link, LinkError};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The maximum number of a name's addresses that are tried, because each may take up to `connect_max`.
const ADDRESSES_MAX: usize = 8;

/// The settings of a link.
#[derive(Clone)]
pub struct LinkSettings {
    /// Host name or address, a colon, and the port.
    pub server: String,
    /// The device's TLS configuration and the expected name of the server; `None` for plain TCP, to this machine only.
    pub tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    /// The timeout for connecting to one address, including the handshake.
    pub connect_max: Duration,
    /// The timeout of a read, which then fails with [`io::ErrorKind::TimedOut`]; `None` waits forever.
    pub read_max: Option<Duration>,
    /// The timeout of a write, which then ends the link.
    pub write_max: Option<Duration>,
}

/// Connects to the first of the name's first 8 addresses that answers.
///
/// # Errors
/// There is no such name, no server answers in time, or the two do not agree on TLS.
pub fn connect(settings: &LinkSettings) -> Result<Link, LinkError> {
    let server = &settings.server;
    let addresses = server
        .to_socket_addrs()
        .map_err(|source| LinkError::Address {
            server: server.clone(),
            source,
        })?;
    let nothing = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let mut last = LinkError::Address {
        server: server.clone(),
        source: nothing,
    };
    for address in addresses.take(ADDRESSES_MAX) {
        match connect_to(address, settings) {
            Ok(link) => return Ok(link),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn connect_to(address: SocketAddr, settings: &LinkSettings) -> Result<Link, LinkError> {
    if settings.tls.is_none() && !address.ip().is_loopback() {
        return Err(LinkError::NotLoopback(address));
    }
    let failed = |source| LinkError::Socket {
        server: settings.server.clone(),
        source: timed_out(source),
    };
    let deadline = Instant::now() + settings.connect_max;
    let stream = TcpStream::connect_timeout(&address, settings.connect_max).map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    let socket = Socket::new(stream, settings.read_max);
    let mut secure = None;
    if let Some((config, name)) = &settings.tls {
        let refused = |source| LinkError::Tls {
            server: settings.server.clone(),
            source,
        };
        let mut connection =
            ClientConnection::new(Arc::clone(config), name.clone()).map_err(refused)?;
        match shake_hands(&mut connection, &socket, deadline) {
            Ok(()) => {}
            Err(Shaken::Socket(source)) => return Err(failed(source)),
            Err(Shaken::Tls(source)) => return Err(refused(source)),
        }
        secure = Some(Secure::new(connection));
    }
    let stream = &socket.stream;
    stream
        .set_read_timeout(settings.read_max)
        .and_then(|()| stream.set_write_timeout(settings.write_max))
        .map_err(failed)?;
    Ok(Link::new(socket, secure))
}

enum Shaken {
    Socket(io::Error),
    Tls(rustls::Error),
}

impl From<io::Error> for Shaken {
    fn from(error: io::Error) -> Self {
        Self::Socket(error)
    }
}

/// Does the handshake until it completes or the deadline passes. A server that sends single bytes does not extend the
/// deadline.
fn shake_hands(
    connection: &mut ClientConnection,
    socket: &Socket,
    deadline: Instant,
) -> Result<(), Shaken> {
    let mut buffer = [0; 4096];
    let mut records = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Shaken::Socket(io::ErrorKind::TimedOut.into()));
        }
        socket.stream.set_read_timeout(Some(left))?;
        socket.stream.set_write_timeout(Some(left))?;
        records.clear();
        while connection.wants_write() {
            connection.write_tls(&mut records)?;
        }
        socket.send(&records)?;
        if !connection.is_handshaking() {
            return Ok(());
        }
        let count = socket.receive(&mut buffer)?;
        if count == 0 {
            return Err(Shaken::Socket(io::ErrorKind::UnexpectedEof.into()));
        }
        let mut rest = &buffer[..count];
        while !rest.is_empty() {
            connection.read_tls(&mut rest)?;
            if let Err(error) = connection.process_new_packets() {
                // Send the server an alert with the reason.
                records.clear();
                while connection.wants_write() {
                    connection.write_tls(&mut records)?;
                }
                let _ = socket.send(&records);
                return Err(Shaken::Tls(error));
            }
        }
    }
}
