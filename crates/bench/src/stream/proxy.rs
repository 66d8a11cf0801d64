//! A proxy that delays a connection: data received on one side is sent on the other after half a round trip. It stands
//! between the line and the server, because this kernel cannot delay packets.
//!
//! The data in flight is limited to about what a line of that rate and length holds. Further data waits at its sender,
//! as on a real line, so that a backlog in the proxy does not delay an answer. A new connection first waits for the
//! round trips of its handshake.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::net::Rate;
use super::sys;

/// Size of a read, in bytes.
const CHUNK_BYTES: usize = 16 << 10;
/// Bytes in flight beyond what the line holds.
const SPARE_BYTES: usize = 32 << 10;
/// Size of the kernel's socket buffers of the proxy, in bytes; the kernel doubles the given value.
const SOCKET_BYTES: libc::c_int = 64 << 10;
/// Poll interval for the end of the proxy.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Maximum number of simultaneous connections.
const CONNECTIONS_MAX: usize = 512;

/// A proxy. Dropping it ends it with all its connections.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    is_over: AtomicBool,
    connections: AtomicUsize,
    open: Mutex<Vec<TcpStream>>,
}

/// One direction of a connection.
struct Lane {
    on_way: Mutex<OnWay>,
    changed: Condvar,
    delay: Duration,
    bytes_max: usize,
}

#[derive(Default)]
struct OnWay {
    chunks: VecDeque<(Instant, Vec<u8>)>,
    bytes: usize,
    /// Whether the sender has ended, so no data follows.
    is_ended: bool,
    /// Whether the receiver takes no more data.
    is_given_up: bool,
}

impl Proxy {
    /// Listens on a port of `listen`, in `network`, and forwards to `server`.
    ///
    /// # Errors
    /// One line with the reason.
    pub(crate) fn start(
        network: &File,
        listen: SocketAddr,
        server: SocketAddr,
        round_trip: Duration,
        rate: Rate,
    ) -> Result<Self, String> {
        let network = network
            .try_clone()
            .map_err(|error| format!("proxy: {error}"))?;
        let shared = Arc::new(Shared {
            is_over: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            open: Mutex::new(Vec::new()),
        });
        let (ready, is_ready) = std::sync::mpsc::channel();
        let of_thread = Arc::clone(&shared);
        std::thread::spawn(move || {
            let listener = sys::enter_network(&network)
                .and_then(|()| TcpListener::bind(listen))
                .and_then(|listener| {
                    listener.set_nonblocking(true)?;
                    Ok((listener.local_addr()?, listener))
                });
            match listener {
                Ok((address, listener)) => {
                    let _ = ready.send(Ok(address));
                    accept(&listener, server, round_trip, rate, &of_thread);
                }
                Err(error) => {
                    let _ = ready.send(Err(format!("proxy: {error}")));
                }
            }
        });
        let address = is_ready
            .recv()
            .map_err(|error| format!("proxy: {error}"))??;
        Ok(Self { address, shared })
    }

    /// Returns the address on which it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let mut open = self
            .shared
            .open
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for stream in open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn accept(
    listener: &TcpListener,
    server: SocketAddr,
    round_trip: Duration,
    rate: Rate,
    shared: &Arc<Shared>,
) {
    while !shared.is_over.load(Ordering::Relaxed) {
        // The timeout limits how long the end of the proxy goes unnoticed; a new connection ends the wait at once.
        let mut poll = libc::pollfd {
            fd: listener.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one descriptor, writable for the length of the call.
        unsafe { libc::poll(&raw mut poll, 1, LOOK_EVERY.as_millis() as libc::c_int) };
        let Ok((device, _)) = listener.accept() else {
            continue;
        };
        let begun = Instant::now();
        if shared.connections.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            shared.connections.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let shared = Arc::clone(shared);
        std::thread::spawn(move || {
            // If connecting fails, the connection is closed, which the device notices.
            let _ = serve(device, server, begun, round_trip, rate, &shared);
            shared.connections.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

/// Serves one connection until its end. Its threads are in the network of the accepting thread.
fn serve(
    device: TcpStream,
    server: SocketAddr,
    begun: Instant,
    round_trip: Duration,
    rate: Rate,
    shared: &Shared,
) -> io::Result<()> {
    sys::exact_timers();
    device.set_nonblocking(false)?;
    // The server learns of a connection with the third packet of its handshake.
    sleep_until(begun + round_trip * 3 / 2);
    let server = TcpStream::connect(server)?;
    for stream in [&device, &server] {
        stream.set_nodelay(true)?;
        limit_socket(stream);
    }
    {
        let mut open = shared.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|stream| stream.peer_addr().is_ok());
        open.push(device.try_clone()?);
        open.push(server.try_clone()?);
    }
    let half = round_trip / 2;
    std::thread::scope(|scope| {
        let there = Lane::new(half, rate);
        let back = Lane::new(half, rate);
        let (there, back) = (Arc::new(there), Arc::new(back));
        for (lane, from, to) in [(&there, &device, &server), (&back, &server, &device)] {
            let (filled, emptied) = (Arc::clone(lane), Arc::clone(lane));
            scope.spawn(move || filled.fill(from));
            scope.spawn(move || emptied.empty(to));
        }
    });
    Ok(())
}

impl Lane {
    fn new(delay: Duration, rate: Rate) -> Self {
        // Each lane holds as much as the line in half a round trip. A quarter is added as a reserve for a thread that
        // is scheduled late.
        let held = rate.bytes_per_s() * delay.as_secs_f64() * 1.25;
        Self {
            on_way: Mutex::new(OnWay::default()),
            changed: Condvar::new(),
            delay,
            bytes_max: held as usize + SPARE_BYTES,
        }
    }

    fn fill(&self, mut from: &TcpStream) {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let read = from.read(&mut chunk);
            let due = Instant::now() + self.delay;
            let mut on_way = self.on_way.lock().unwrap_or_else(PoisonError::into_inner);
            match read {
                Ok(bytes) if bytes > 0 => {
                    on_way.bytes += bytes;
                    on_way.chunks.push_back((due, chunk[..bytes].to_vec()));
                    self.changed.notify_all();
                    while on_way.bytes >= self.bytes_max && !on_way.is_given_up {
                        on_way = self
                            .changed
                            .wait(on_way)
                            .unwrap_or_else(PoisonError::into_inner);
                    }
                    if on_way.is_given_up {
                        let _ = from.shutdown(Shutdown::Both);
                        return;
                    }
                }
                _ => {
                    // The end of the stream is delayed like the data before it.
                    on_way.is_ended = true;
                    on_way.chunks.push_back((due, Vec::new()));
                    self.changed.notify_all();
                    return;
                }
            }
        }
    }

    fn empty(&self, mut to: &TcpStream) {
        sys::exact_timers();
        loop {
            let mut on_way = self.on_way.lock().unwrap_or_else(PoisonError::into_inner);
            let (due, chunk) = loop {
                if let Some(first) = on_way.chunks.pop_front() {
                    break first;
                }
                on_way = self
                    .changed
                    .wait(on_way)
                    .unwrap_or_else(PoisonError::into_inner);
            };
            drop(on_way);
            sleep_until(due);
            if chunk.is_empty() {
                let _ = to.shutdown(Shutdown::Write);
                return;
            }
            let is_sent = to.write_all(&chunk).is_ok();
            let mut on_way = self.on_way.lock().unwrap_or_else(PoisonError::into_inner);
            on_way.bytes -= chunk.len();
            on_way.is_given_up = !is_sent;
            self.changed.notify_all();
            if !is_sent {
                return;
            }
        }
    }
}

fn sleep_until(due: Instant) {
    let left = due.saturating_duration_since(Instant::now());
    if !left.is_zero() {
        std::thread::sleep(left);
    }
}

/// Limits the data that the kernel buffers for the proxy.
fn limit_socket(stream: &TcpStream) {
    for option in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
        let bytes = SOCKET_BYTES;
        // SAFETY: an open socket, and an integer of the given size; a failure only leaves larger buffers.
        unsafe {
            libc::setsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                option,
                (&raw const bytes).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_network() -> File {
        File::open("/proc/thread-self/ns/net").unwrap()
    }

    /// Entering a network requires root, even the own one.
    fn is_skipped() -> bool {
        let skipped = sys::enter_network(&own_network()).is_err();
        if skipped {
            println!("skipped: entering a network takes root");
        }
        skipped
    }

    #[test]
    fn bytes_and_ends_pass_both_ways_and_take_their_time() {
        if is_skipped() {
            return;
        }
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let round_trip = Duration::from_millis(20);
        let proxy = Proxy::start(&own_network(), any, address, round_trip, Rate::SLOW).unwrap();
        let echo = std::thread::spawn(move || {
            let (mut stream, _) = server.accept().unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).unwrap();
            stream.write_all(&all).unwrap();
        });
        let begun = Instant::now();
        let mut stream = TcpStream::connect(proxy.address()).unwrap();
        let sent: Vec<u8> = (0..1_000_000_u32)
            .map(|number| (number % 251) as u8)
            .collect();
        stream.write_all(&sent).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        // The handshake and one round trip; longer on a busy machine, but never shorter.
        assert!(begun.elapsed() >= round_trip * 2, "{:?}", begun.elapsed());
        assert!(got == sent);
        echo.join().unwrap();
    }

    #[test]
    fn a_dropped_proxy_ends_its_connections() {
        if is_skipped() {
            return;
        }
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let to = server.local_addr().unwrap();
        let proxy = Proxy::start(&own_network(), any, to, Duration::ZERO, Rate::FAST).unwrap();
        let mut stream = TcpStream::connect(proxy.address()).unwrap();
        let (mut other, _) = server.accept().unwrap();
        stream.write_all(b"x").unwrap();
        other.read_exact(&mut [0]).unwrap();
        drop(proxy);
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
        assert_eq!(other.read(&mut [0]).unwrap_or(0), 0);
    }
}
