//! Connections and their limits. Everything here runs on the caller's thread, beside its other work.
//!
//! **Limits.** When the maximum number of connections is reached, the connection that has been idle longest is closed
//! for the new one. So a client with many idle connections locks no other client out. If none is idle, the new client
//! gets an error and is closed. The head of a request has a timeout, an idle connection is closed, and so is a
//! connection that does not read its answers. A connection is idle if it has no answer to wait for and none to take. An
//! answer that a slow client is taking ends only with a write that makes no progress.
//!
//! **With TLS** a client takes a place only after its handshake. Handshakes have places and a timeout of their own, in
//! the crate `tls`. So clients that open connections and say nothing take no place from those that are served. The
//! wrapper that sees bytes and stalled writes is under the encryption. So a client that sends a record byte by byte
//! counts as one that sends a head.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tls::{Refusal as TlsRefusal, Server, ServerStream, has_unread};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Notify, Semaphore, watch as latest};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep};

use super::app::App;
use super::counters::{Counters, Refusal, add, less};
use super::hub::Hub;
use super::limits::{HistoryPermits, Pace, Places};
use super::options::{
    HEAD_BYTES_MAX, HEAD_SECONDS_MAX, HEADERS_MAX, HttpOptions, IDLE_SECONDS_MAX,
    SEND_BUFFER_BYTES, STALLED_SECONDS_MAX, WRITES_MAX,
};
use super::patient::{Patient, Traffic};
use super::routes::{self, Client};
use super::source::Source;
use super::status::Asker;
use super::write_queue::Writer;

/// Length of the accept queue.
const BACKLOG: u32 = 128;

/// Handshakes of TLS that begin in a second. They run on the thread that serves everything else, and a signature with
/// an RSA key takes a board some milliseconds.
const HANDSHAKES_PER_SECOND_MAX: u32 = 32;
/// Pause after a failed accept, for example for lack of descriptors.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);
/// Interval of the check for connections that are idle for too long.
const LOOK_PERIOD: Duration = Duration::from_secs(1);
/// Largest number of surplus clients that get an error answer at the same time.
const TOLD_MAX: usize = 16;
/// Timeout of one of these answers.
const TOLD_PATIENCE: Duration = Duration::from_secs(1);

/// The answer to a surplus client: status with a header, and body.
const TOO_MANY: &str = "503 Service Unavailable\r\nretry-after: 1";
/// See [`TOO_MANY`].
const NO_PLACE: &str = "{\"code\":\"busy\",\"thing\":\"connections\",\"wrong\":\"all places are taken\",\
    \"remedy\":\"try again, or raise http.connections_max\"}";

/// The first byte of a connection with TLS.
const TLS_HANDSHAKE: u8 = 0x16;

/// The answer to a client that speaks plain HTTP where TLS is expected.
const NO_TLS: &str = "{\"code\":\"invalid\",\"thing\":\"connection\",\"wrong\":\"is not encrypted\",\
    \"remedy\":\"use an address with https://\"}";

/// A bound listener.
#[derive(Debug)]
pub struct Bound {
    listener: TcpListener,
    options: HttpOptions,
}

/// Handles of a running listener, for its figures.
#[derive(Clone, Debug)]
pub struct Running {
    /// Where it listens.
    pub address: SocketAddr,
    /// What it counts.
    pub counters: Arc<Counters>,
}

/// Binds the address. Must be called within a runtime.
///
/// # Errors
/// The system's error.
pub fn bind(options: HttpOptions) -> io::Result<Bound> {
    let socket = if options.listen.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    }?;
    socket.set_reuseaddr(true)?;
    // Every connection inherits it from the listener.
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.bind(options.listen)?;
    Ok(Bound {
        listener: socket.listen(BACKLOG)?,
        options,
    })
}

impl Bound {
    /// Serves until the node stops. Returns the future to await on a `LocalSet`, and the figures to show meanwhile.
    /// `run` tells the runs of the node apart. Lines that clients write go to `writer`.
    ///
    /// # Errors
    /// The system's error about the address.
    pub fn serve(
        self,
        source: Arc<dyn Source>,
        asker: Asker,
        writer: Writer,
        run: u32,
        stop: latest::Receiver<bool>,
    ) -> io::Result<(Running, impl Future<Output = ()>)> {
        let Self { listener, options } = self;
        let counters = Arc::new(Counters::default());
        if let Some(server) = &options.tls {
            // The cell is new.
            let _ = counters.tls.set(Arc::clone(server));
        }
        let running = Running {
            address: listener.local_addr()?,
            counters: Arc::clone(&counters),
        };
        let hub = Arc::new(Hub::new(
            run,
            options.stream_period_ms,
            Arc::clone(&counters),
        ));
        let app = Arc::new(App {
            pace: Pace::new(options.requests_per_second_max, Instant::now()),
            write_pace: Pace::new(options.requests_per_second_max, Instant::now()),
            handshake_pace: Pace::new(
                options
                    .requests_per_second_max
                    .min(HANDSHAKES_PER_SECOND_MAX),
                Instant::now(),
            ),
            source: Arc::clone(&source),
            counters,
            asker: asker.clone(),
            hub: Arc::clone(&hub),
            places: Arc::new(Places::default()),
            history_permits: HistoryPermits::default(),
            bodies: Arc::new(Semaphore::new(
                options
                    .write
                    .map_or(0, |limits| limits.writes_max.min(WRITES_MAX)) as usize,
            )),
            writer,
            options,
        });
        let serves = async move {
            let stopped = stop.clone();
            let works = hub.work(&*source, &asker, stopped);
            tokio::join!(accept(&app, listener, stop), works);
        };
        Ok((running, serves))
    }
}

/// One connection, as the listener sees it.
struct Connection {
    /// Since when it is between two requests; `None` while it is answered, until the client has taken the answer.
    idle_since: Cell<Option<Instant>>,
    leave: Notify,
    /// Whether the node stops: the connection ends as soon as it is between two requests.
    is_stopping: Cell<bool>,
}

type Connections = Rc<RefCell<Vec<Rc<Connection>>>>;

/// What every client passes.
#[derive(Clone)]
struct Door {
    app: Arc<App>,
    router: Router,
    connections: Connections,
    /// Surplus clients that get an error answer at present.
    told: Rc<Cell<usize>>,
}

async fn accept(app: &Arc<App>, listener: TcpListener, mut stop: latest::Receiver<bool>) {
    let door = Door {
        app: Arc::clone(app),
        router: routes::router(Arc::clone(app)),
        connections: Rc::default(),
        told: Rc::default(),
    };
    let mut tasks = JoinSet::new();
    let mut looks = tokio::time::interval(LOOK_PERIOD);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = tasks.join_next() => continue,
            _ = looks.tick() => {
                end_silent(app, &door.connections);
                continue;
            }
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(_) => {
                add(&app.counters.accepts_failed, 1);
                tokio::select! {
                    () = tokio::time::sleep(REFUSED_PAUSE) => continue,
                    _ = stop.wait_for(|stop| *stop) => break,
                }
            }
        };
        add(&app.counters.connections_total, 1);
        let door = door.clone();
        match &app.options.tls {
            None => {
                let place = door.place();
                tasks.spawn_local(async move {
                    let (stream, traffic) = patient(stream, &door.app);
                    door.admit(place, stream, traffic, peer).await;
                });
            }
            Some(server) => {
                let (server, mut stop) = (Arc::clone(server), stop.clone());
                tasks.spawn_local(async move {
                    // The stop comes first: a place that is taken after it would never be given back.
                    let shaken = tokio::select! {
                        biased;
                        _ = stop.wait_for(|stop| *stop) => return,
                        shaken = shake_hands(&server, stream, &door.app) => shaken,
                    };
                    match shaken {
                        Ok((stream, traffic)) => {
                            let place = door.place();
                            door.admit(place, stream, traffic, peer).await;
                        }
                        Err(refusal) => door.app.counters.refuse(refusal),
                    }
                });
            }
        }
    }
    drop(listener);
    // Streams end by themselves; an idle connection has nothing to wait for.
    for connection in door.connections.borrow().iter() {
        connection.is_stopping.set(true);
        if connection.idle_since.get().is_some() {
            connection.leave.notify_one();
        }
    }
    while tasks.join_next().await.is_some() {}
}

impl Door {
    /// Takes a place for a connection; `None` if all are taken by clients that are served.
    fn place(&self) -> Option<Rc<Connection>> {
        let app = &self.app;
        if !make_room(app, &self.connections) {
            app.counters.refuse(Refusal::Connections);
            if app.options.write.is_some() {
                add(&app.counters.writes_turned_away, 1);
            }
            return None;
        }
        let connection = Rc::new(Connection {
            idle_since: Cell::new(Some(Instant::now())),
            leave: Notify::new(),
            is_stopping: Cell::new(false),
        });
        self.connections.borrow_mut().push(Rc::clone(&connection));
        add(&app.counters.connections, 1);
        Some(connection)
    }

    /// Serves a client that has a place, and tells others that there is none.
    async fn admit<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        place: Option<Rc<Connection>>,
        stream: S,
        traffic: Rc<Traffic>,
        peer: SocketAddr,
    ) {
        let app = &self.app;
        let Some(connection) = place else {
            if self.told.get() < TOLD_MAX {
                self.told.set(self.told.get() + 1);
                let tells = tell(stream, TOO_MANY, NO_PLACE);
                tokio::time::timeout(TOLD_PATIENCE, tells).await.ok();
                self.told.set(self.told.get() - 1);
            }
            return;
        };
        serve(app, &self.router, stream, &traffic, peer, &connection).await;
        let is_it = |other: &Rc<Connection>| Rc::ptr_eq(other, &connection);
        self.connections.borrow_mut().retain(|other| !is_it(other));
        less(&app.counters.connections);
    }
}

/// Returns a socket with what watches its bytes.
fn patient(stream: TcpStream, app: &App) -> (Patient<TcpStream>, Rc<Traffic>) {
    stream.set_nodelay(true).ok();
    base::socket::keep_alive(&stream);
    let patience = Duration::from_secs(STALLED_SECONDS_MAX);
    let traffic = Rc::new(Traffic::default());
    let counters = Arc::clone(&app.counters);
    let patient = Patient::new(stream, patience, counters, Rc::clone(&traffic));
    (patient, traffic)
}

/// Encrypts a connection. A client that speaks plain HTTP is told so.
async fn shake_hands(
    server: &Server,
    stream: TcpStream,
    app: &App,
) -> Result<(ServerStream<Patient<TcpStream>>, Rc<Traffic>), Refusal> {
    let mut seen = None;
    let opens = async {
        // Of a client that has left, nothing is seen.
        let mut first = [TLS_HANDSHAKE];
        let peeked = stream.peek(&mut first).await;
        if peeked.is_ok() && first[0] != TLS_HANDSHAKE {
            // A socket that is closed with unread bytes resets its connection, which may cost the answer.
            let _ = stream.try_read(&mut [0; 4096]);
            let tells = tell(stream, "421 Misdirected Request", NO_TLS);
            tokio::time::timeout(TOLD_PATIENCE, tells).await.ok();
            return Err(TlsRefusal::Plain);
        }
        // A silent client has no share of it.
        if !app.handshake_pace.admit(Instant::now()) {
            return Err(TlsRefusal::Busy);
        }
        let (stream, traffic) = patient(stream, app);
        seen = Some(traffic);
        Ok(stream)
    };
    let shaken = server.accept(opens).await;
    match (shaken, seen) {
        (Ok(stream), Some(traffic)) => {
            // That was the handshake. Part of a head may have come with its end.
            traffic.heard.set(has_unread(&stream));
            Ok((stream, traffic))
        }
        (Err(TlsRefusal::Slow), _) => Err(Refusal::HandshakeSlow),
        (Err(TlsRefusal::Evicted), _) => Err(Refusal::HandshakeEvicted),
        (Err(TlsRefusal::Certificate), _) => Err(Refusal::Certificate),
        (Err(TlsRefusal::Plain), _) => Err(Refusal::NotEncrypted),
        (Err(TlsRefusal::Busy), _) => Err(Refusal::Rate),
        (Err(TlsRefusal::Failed) | Ok(_), _) => Err(Refusal::Handshake),
    }
}

/// Makes room for one more connection. Returns whether there is room.
fn make_room(app: &App, connections: &Connections) -> bool {
    let mut connections = connections.borrow_mut();
    if connections.len() < app.options.connections_max as usize {
        return true;
    }
    let silent = connections
        .iter()
        .enumerate()
        .filter_map(|(at, connection)| Some((connection.idle_since.get()?, at)))
        .min();
    let Some((_, at)) = silent else { return false };
    connections.swap_remove(at).leave.notify_one();
    add(&app.counters.connections_evicted, 1);
    true
}

fn end_silent(app: &App, connections: &Connections) {
    let now = Instant::now();
    connections.borrow_mut().retain(|connection| {
        let since = connection.idle_since.get();
        let silent = since.map_or(0, |since| now.duration_since(since).as_secs());
        if silent < IDLE_SECONDS_MAX {
            return true;
        }
        connection.leave.notify_one();
        add(&app.counters.connections_idle, 1);
        false
    });
}

async fn tell<S: AsyncWrite + Unpin>(mut stream: S, status: &str, body: &str) {
    let answer = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    if stream.write_all(answer.as_bytes()).await.is_ok() {
        stream.shutdown().await.ok();
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    app: &Arc<App>,
    router: &Router,
    stream: S,
    traffic: &Rc<Traffic>,
    peer: SocketAddr,
    connection: &Rc<Connection>,
) {
    let io = TokioIo::new(stream);
    // Answers in progress. Separate from the connection, because answer bodies on other threads may not access that.
    let busy = Arc::new(AtomicU32::new(0));
    let service = service_fn(|mut request: Request<Incoming>| {
        connection.idle_since.set(None);
        traffic.heard.set(false);
        traffic.heads.set(traffic.heads.get() + 1);
        let is_empty = http_body::Body::is_end_stream(request.body());
        traffic.has_body.set(!is_empty);
        request.extensions_mut().insert(Client(peer.ip()));
        let watched = Watched::new(&busy);
        async move {
            let response = routes::answer(app, router, request).await;
            let response = response.map(|body| Answered {
                body,
                _watched: watched,
            });
            Ok::<Response<Answered>, Infallible>(response)
        }
    });
    // No `header_read_timeout`: it also runs while nothing has come of a head.
    let serving = http1::Builder::new()
        .header_read_timeout(None)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(io, service);
    let mut serving = std::pin::pin!(serving);
    let mut head: Option<Pin<Box<Sleep>>> = None;
    let mut timed = 0;
    let ended = std::future::poll_fn(|context| {
        let poll = serving.as_mut().poll(context);
        let is_answering = busy.load(Ordering::Relaxed) > 0 || traffic.sending.get();
        if !is_answering && connection.idle_since.get().is_none() {
            connection.idle_since.set(Some(Instant::now()));
            if traffic.has_body.take() {
                // What has arrived since the head was the body, not the beginning of another head.
                traffic.heard.set(false);
            }
        }
        if poll.is_ready() || connection.idle_since.get().is_none() {
            head = None;
            return poll.map(|ended| match ended {
                // Otherwise the client has left between two requests, or an answer.
                Err(error) => {
                    let is_head = traffic.heard.get() && !traffic.has_body.get();
                    error.is_parse() || (error.is_incomplete_message() && is_head)
                }
                Ok(()) => false,
            });
        }
        if connection.is_stopping.get() {
            return Poll::Ready(false);
        }
        if !traffic.heard.get() {
            return Poll::Pending;
        }
        // The timer of each head is its own: an earlier head may have come and been answered within one poll.
        if timed != traffic.heads.get() {
            timed = traffic.heads.get();
            head = None;
        }
        let patience = Duration::from_secs(HEAD_SECONDS_MAX);
        let head = head.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        head.as_mut().poll(context).map(|()| true)
    });
    let is_broken = tokio::select! {
        is_broken = ended => is_broken,
        () = connection.leave.notified() => false,
    };
    if is_broken {
        add(&app.counters.heads_broken, 1);
    }
}

/// Counts an answer for its lifetime.
struct Watched(Arc<AtomicU32>);

impl Watched {
    fn new(busy: &Arc<AtomicU32>) -> Self {
        busy.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(busy))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A body that counts as in progress until it has been handed over.
struct Answered {
    body: Body,
    _watched: Watched,
}

impl http_body::Body for Answered {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
#[path = "listener_tests.rs"]
mod tests;
