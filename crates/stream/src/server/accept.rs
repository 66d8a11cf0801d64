//! Serves connections: accepts them, does the handshakes, and reads requests until the end.

use super::connection::Connection;
use super::counters::{Reason, add};
use super::learned::is_tenant;
use super::queue::Queue;
use super::session::SessionKey;
use super::state::State;
use super::tenant::Tenant;
use super::{requests, system, writer};
use crate::store::{Lease, StoreError};
use crate::tls::{Identity, ListedDevices, fingerprint, is_unlisted};
use crate::wire::{Answer, DecodeError, FrameReader, Refusal, Request};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// The tenant of all devices of a server without TLS.
const LOCAL_TENANT: &str = "local";

/// The pause before the next `accept` after one failed, for example because the process has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The time that a refused device has to read the reason.
const REFUSAL_DEADLINE: Duration = Duration::from_millis(500);

/// A socket, plain or with TLS.
trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// The owner of a connection.
struct Owner {
    tenant: Arc<str>,
    /// The fingerprint of the certificate; `None` without TLS.
    certificate: Option<[u8; 32]>,
}

impl Owner {
    /// Returns the owner of all connections of a server without TLS.
    fn local() -> Self {
        Self {
            tenant: LOCAL_TENANT.into(),
            certificate: None,
        }
    }
}

/// Accepts connections until it is dropped.
pub(super) async fn accept(
    state: &Arc<State>,
    listener: &TcpListener,
    connections: &mut tokio::task::JoinSet<()>,
) {
    let mut id = 0;
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((socket, _)) => {
                    id += 1;
                    connections.spawn(serve(Arc::clone(state), socket, id));
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(state: Arc<State>, socket: TcpStream, id: u64) {
    add(&state.counters.accepted, 1);
    let has_to_go = state.admission.knock(id, state.settings.half_open_max);
    let greeted = tokio::select! {
        greeted = timeout(state.settings.handshake_deadline, greet(&state, socket, id)) => {
            greeted.unwrap_or(Err(Reason::HandshakeDeadline))
        }
        _ = has_to_go => Err(Reason::HalfOpen),
    };
    state.admission.settle(id);
    let ended = match greeted {
        Ok((io, frames, connection)) => {
            let (mut read, mut write) = tokio::io::split(io);
            tokio::select! {
                ended = receive(&connection, &mut read, frames) => ended,
                ended = writer::run(&connection, &mut write) => ended,
            }
        }
        Err(reason) => Err(reason),
    };
    if let Err(reason) = ended {
        state.counters.refuse(reason);
    }
}

/// Does the TLS handshake, if TLS is configured, and handles `Hello`.
async fn greet(
    state: &Arc<State>,
    socket: TcpStream,
    id: u64,
) -> Result<(Box<dyn Io>, FrameReader, Connection), Reason> {
    // If one of these options cannot be set, the connection is only slower.
    socket.set_nodelay(true).ok();
    base::socket::keep_alive(&socket);
    system::keep_unsent_short(&socket).ok();
    if let Some(bytes) = state.settings.send_buffer_bytes {
        system::send_buffer(&socket, bytes).ok();
    }
    let (mut io, owner): (Box<dyn Io>, Option<Owner>) = match &state.settings.identity {
        None => (Box::new(socket), Some(Owner::local())),
        Some(identity) => {
            let stream = shake_hands(identity, socket).await?;
            let certificates = stream.get_ref().1.peer_certificates();
            let certificate = certificates.and_then(<[_]>::first).ok_or(Reason::Tls)?;
            let fingerprint = fingerprint(certificate);
            let owner = match tenant(&identity.devices, fingerprint).await {
                // Refused with a reason, after the device has sent `Hello`.
                Err(Reason::BadDevices) => None,
                tenant => Some(Owner {
                    tenant: tenant?,
                    certificate: Some(fingerprint),
                }),
            };
            (Box::new(stream), owner)
        }
    };
    let mut frames = FrameReader::for_requests();
    let (frame_version, hello) = loop {
        if let Some(request) = next(&mut frames)? {
            break request;
        }
        if fill(state, &mut io, &mut frames).await? == 0 {
            return Err(Reason::Broken);
        }
    };
    let (protocol, device, version, held) = match hello {
        // `Hello` is decoded by the layout that all versions have in common. A mismatching version is not supported
        // here.
        Request::Hello {
            protocol,
            device,
            version,
            manifest_held,
        } if protocol == frame_version => (protocol, device, version, manifest_held),
        Request::Hello { .. } => return Err(Reason::Protocol),
        _ => return Err(Reason::OutOfOrder),
    };
    let welcomed = match owner {
        Some(owner) => {
            let said = Said {
                protocol,
                device,
                version,
                held,
            };
            welcome(state, id, owner, said).await
        }
        None => {
            state.look_at_devices().await;
            Err((Reason::BadDevices, Refusal::NoList))
        }
    };
    match welcomed {
        Ok(connection) => Ok((io, frames, connection)),
        Err((reason, refusal)) => {
            let mut bytes = Vec::new();
            let answer = Answer::Refused {
                id: 0,
                token: None,
                reason: refusal,
            };
            answer.encode_for(protocol, &mut bytes);
            let say = async {
                io.write_all(&bytes).await?;
                io.shutdown().await
            };
            timeout(REFUSAL_DEADLINE, say).await.ok();
            Err(reason)
        }
    }
}

/// The contents of `Hello`.
struct Said {
    protocol: u16,
    device: [u8; 16],
    version: Option<u64>,
    held: Option<[u8; 32]>,
}

/// Finds the version and the tenant, and admits the device.
async fn welcome(
    state: &Arc<State>,
    id: u64,
    owner: Owner,
    said: Said,
) -> Result<Connection, (Reason, Refusal)> {
    let Said {
        protocol,
        device,
        version,
        held,
    } = said;
    let (finding, name) = (Arc::clone(state), Arc::clone(&owner.tenant));
    let find = move || -> Result<(Arc<Tenant>, Lease), (Reason, Refusal)> {
        let store = &finding.store;
        let published = match version {
            Some(version) => store.published(version),
            None => {
                let newest = finding.newest();
                if newest.sound.is_ok() && !newest.passed.is_empty() {
                    add(&finding.counters.greetings_older, 1);
                }
                newest.sound
            }
        };
        let published = published.map_err(|error| match error {
            StoreError::NoSuchVersion { .. } => (Reason::NoSuchVersion, Refusal::NoSuchVersion),
            error => {
                finding.log_failure(&error.into());
                (Reason::Damaged, Refusal::Damaged)
            }
        })?;
        let lease = store.lease(&published);
        let tenant = finding.tenants.get(&name, &published);
        Ok((tenant.ok_or((Reason::Tenants, Refusal::Limit))?, lease))
    };
    let (tenant, lease) = tokio::task::spawn_blocking(find)
        .await
        .unwrap_or(Err((Reason::Damaged, Refusal::Damaged)))?;
    let published = Arc::clone(&tenant.published);
    let key = SessionKey {
        tenant: owner.tenant,
        certificate: owner.certificate,
        device,
        version: published.version,
    };
    let wake = Arc::new(Notify::new());
    let session = state
        .admission
        .enter(&state.settings, &key, &tenant, id, &wake)
        .map_err(|reason| (reason, Refusal::Limit))?;
    let is_held = held.is_some_and(|held| blake3::hash(&published.signed) == held);
    let manifest_bytes = if is_held {
        0
    } else {
        published.signed.len() as u64
    };
    let mut queue = Queue::default();
    queue.answer(Answer::Welcome {
        protocol,
        version: published.version,
        manifest_bytes,
    });
    if manifest_bytes > 0 {
        queue.manifest(manifest_bytes);
    }
    Ok(Connection {
        state: Arc::clone(state),
        id,
        protocol,
        key,
        session,
        published,
        _lease: lease,
        queue: Mutex::new(queue),
        wake,
        room: Notify::new(),
        hashes: Mutex::default(),
    })
}

/// Returns the tenant of a device.
async fn tenant(devices: &Arc<ListedDevices>, fingerprint: [u8; 32]) -> Result<Arc<str>, Reason> {
    let devices = Arc::clone(devices);
    let find = move || {
        let devices = devices.get().map_err(|_| Reason::BadDevices)?;
        let tenant = devices.tenant(&fingerprint).ok_or(Reason::UnknownDevice)?;
        if is_tenant(tenant) {
            Ok(Arc::from(tenant))
        } else {
            Err(Reason::BadDevices)
        }
    };
    tokio::task::spawn_blocking(find)
        .await
        .unwrap_or(Err(Reason::BadDevices))
}

/// Does the TLS handshake. A device that is not on the list, or has a certificate of another authority, gets a TLS
/// alert.
async fn shake_hands(
    identity: &Identity,
    socket: TcpStream,
) -> Result<TlsStream<TcpStream>, Reason> {
    // Refresh the list first: the handshake uses the list in memory, because it must not wait for the disk.
    let devices = Arc::clone(&identity.devices);
    tokio::task::spawn_blocking(move || devices.get())
        .await
        .ok()
        .and_then(Result::ok);
    let acceptor = TlsAcceptor::from(Arc::clone(&identity.tls));
    let (error, mut socket) = match acceptor.accept(socket).into_fallible().await {
        Ok(stream) => return Ok(stream),
        Err(failed) => failed,
    };
    // Read the rest: the device's `Hello` may be in flight, and a socket that is closed before it arrives discards the
    // alert.
    let take_the_rest = async {
        socket.shutdown().await?;
        while socket.read(&mut [0; 512]).await? > 0 {}
        std::io::Result::Ok(())
    };
    timeout(REFUSAL_DEADLINE, take_the_rest).await.ok();
    match is_unlisted(&error) {
        true => Err(Reason::UnknownDevice),
        false => Err(Reason::Tls),
    }
}

/// Reads requests until the device disconnects or breaks a rule.
async fn receive(
    connection: &Connection,
    io: &mut ReadHalf<Box<dyn Io>>,
    mut frames: FrameReader,
) -> Result<(), Reason> {
    let settings = &connection.state.settings;
    // When the incomplete message began. Its deadline does not restart with each received byte.
    let mut since = None;
    loop {
        while let Some((protocol, request)) = next(&mut frames)? {
            if protocol != connection.protocol {
                return Err(Reason::Protocol);
            }
            since = None;
            while connection.queue().requests() >= settings.requests_max {
                connection.room.notified().await;
            }
            requests::handle(connection, request)?;
        }
        let now = Instant::now();
        let (deadline, late) = if frames.is_within_frame() {
            let since = *since.get_or_insert(now);
            (since + settings.message_deadline, Reason::SlowSender)
        } else {
            (now + settings.idle_deadline, Reason::Idle)
        };
        match timeout_at(deadline, fill(&connection.state, io, &mut frames)).await {
            Err(_) => return Err(late),
            Ok(Ok(0)) if frames.is_within_frame() => return Err(Reason::Broken),
            Ok(Ok(0)) => return Ok(()),
            Ok(Ok(_)) => {}
            Ok(Err(reason)) => return Err(reason),
        }
    }
}

/// Reads the bytes that have arrived.
async fn fill(
    state: &State,
    io: &mut (impl AsyncRead + Unpin),
    frames: &mut FrameReader,
) -> Result<usize, Reason> {
    let count = io.read(frames.space()).await.map_err(|_| Reason::Broken)?;
    frames.advance(count);
    add(&state.counters.received_bytes, count);
    Ok(count)
}

/// Returns the next request and its protocol version.
fn next(frames: &mut FrameReader) -> Result<Option<(u16, Request)>, Reason> {
    let Some(frame) = frames.next().map_err(|_| Reason::BadFrame)? else {
        return Ok(None);
    };
    Request::decode(frame.kind, frame.version, frame.payload)
        .map(|request| Some((frame.version, request)))
        .map_err(|error| match error {
            DecodeError::Version(_) => Reason::Protocol,
            _ => Reason::BadMessage,
        })
}
