//! A TCP connection or a serial port, on which one request is under way at a time.
//!
//! An answer may come after its timeout, when the next request is under way already. Over TCP the number of the request
//! tells them apart. The client of `tokio-modbus` would then be one answer behind for ever, so a timeout ends the
//! connection. A serial line has only the number of the device. So received bytes are thrown away before each request,
//! and answers of other devices are passed over. After a fault no request is sent until the timeout of the faulty one
//! is over.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_modbus::Slave;
use tokio_modbus::client::{Context as Client, rtu, tcp};
use tokio_modbus::slave::SlaveContext;

use super::exchange::{Answer, Failure, Fault, exchange};
use super::options::{Address, Serial};
use super::plan::Request;
use super::port::{Port, silence};
use crate::mqtt::connect::connect_to;
use crate::mqtt::resolve::Resolver;

/// How often the silence of a line is waited for before a request is sent all the same.
const SILENCES_MAX: usize = 20;

/// A link to the devices of one address.
pub(super) struct Link {
    address: Address,
    resolver: Resolver,
    open: Open,
}

enum Open {
    Closed,
    Tcp(Connection),
    Serial(Port),
}

struct Connection {
    client: Client,
    seen: Arc<TransportState>,
    /// Whether it has brought an answer.
    is_proven: bool,
}

impl Link {
    pub(super) fn new(address: Address) -> Self {
        Self {
            address,
            resolver: Resolver::default(),
            open: Open::Closed,
        }
    }

    /// Returns whether it is a serial line, on which nothing in an answer says to which request it is.
    pub(super) fn is_line(&self) -> bool {
        matches!(self.address, Address::Serial(_))
    }

    pub(super) fn is_open(&self) -> bool {
        !matches!(self.open, Open::Closed)
    }

    /// Connects, or opens the port.
    ///
    /// # Errors
    /// [`Fault::NotConnected`]
    pub(super) async fn open(&mut self, limit: Duration) -> Result<(), Failure> {
        let failed = |text: String| Failure::new(Fault::NotConnected, text);
        self.open = match &self.address {
            Address::Serial(serial) => Open::Serial(Port::open(serial).map_err(failed)?),
            Address::Tcp(address) => {
                let connecting = connect(address, &mut self.resolver, limit);
                let stream = timeout(limit, connecting)
                    .await
                    .unwrap_or_else(|_| Err("no connection within timeout_ms".to_owned()))
                    .map_err(failed)?;
                let seen = Arc::new(TransportState::default());
                let transport = Watched {
                    inner: stream,
                    seen: Arc::clone(&seen),
                    is_by_byte: false,
                };
                Open::Tcp(Connection {
                    client: tcp::attach(transport),
                    seen,
                    is_proven: false,
                })
            }
        };
        Ok(())
    }

    /// Sends a request to a device and returns its answer. After a fault the link may be closed.
    ///
    /// # Errors
    /// [`Failure`]
    pub(super) async fn ask(
        &mut self,
        unit: u8,
        request: &Request,
        limit: Duration,
    ) -> Result<Answer, Failure> {
        let was_proven = matches!(&self.open, Open::Tcp(connection) if connection.is_proven);
        match self.ask_once(unit, request, limit).await {
            // Devices end connections on which nothing was asked for a while.
            Err(failure) if was_proven && failure.fault == Fault::ConnectionLost => {
                self.open(limit).await?;
                self.ask_once(unit, request, limit).await
            }
            other => other,
        }
    }

    async fn ask_once(
        &mut self,
        unit: u8,
        request: &Request,
        limit: Duration,
    ) -> Result<Answer, Failure> {
        let asked = match (&mut self.open, &self.address) {
            (Open::Tcp(connection), _) => connection.ask(unit, request, limit).await,
            (Open::Serial(port), Address::Serial(serial)) => {
                ask_on_line(port, serial, unit, request, limit).await
            }
            _ => Err(Failure::new(Fault::NotConnected, "there is no connection")),
        };
        if let Err(failure) = &asked {
            let is_over = match &self.open {
                Open::Tcp(_) => !failure.fault.is_exception(),
                _ => failure.fault == Fault::ConnectionLost,
            };
            if is_over {
                self.open = Open::Closed;
            }
        }
        asked
    }
}

async fn connect(
    address: &str,
    resolver: &mut Resolver,
    limit: Duration,
) -> Result<TcpStream, String> {
    let said = |what: &str, error: &io::Error| format!("{what}: {}", base::error::io_text(error));
    let addresses = resolver
        .resolve(address)
        .await
        .map_err(|error| said("cannot look up the address", &error))?;
    let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    let stream = connect_to(&addresses, limit_ms)
        .await
        .map_err(|error| said("cannot connect", &error))?;
    // Requests are small, and each waits for its answer.
    let _ = stream.set_nodelay(true);
    base::socket::keep_alive(&stream);
    Ok(stream)
}

impl Connection {
    async fn ask(
        &mut self,
        unit: u8,
        request: &Request,
        limit: Duration,
    ) -> Result<Answer, Failure> {
        self.client.set_slave(Slave(unit));
        let before = self.seen.bytes.load(Relaxed);
        let asked = timeout(limit, exchange(&mut self.client, request)).await;
        let asked = asked.unwrap_or_else(|_| Err(late(&self.seen, before, limit)));
        match &asked {
            Ok(_) => self.is_proven = true,
            Err(failure) if failure.fault.is_exception() => self.is_proven = true,
            Err(_) if self.seen.is_over.load(Relaxed) => {
                let text = "the device has closed the connection";
                return Err(Failure::new(Fault::ConnectionLost, text));
            }
            Err(_) => {}
        }
        asked
    }
}

/// Sends a request on a serial line. Each has a client of its own: what one that failed still holds is of no use.
async fn ask_on_line(
    port: &Port,
    serial: &Serial,
    unit: u8,
    request: &Request,
    limit: Duration,
) -> Result<Answer, Failure> {
    let failed = |error: &io::Error| {
        let text = format!("the port has failed: {}", base::error::io_text(error));
        Failure::new(Fault::ConnectionLost, text)
    };
    settle(port, silence(serial.baud))
        .await
        .map_err(|error| failed(&error))?;
    let seen = Arc::new(TransportState::default());
    let transport = Watched {
        inner: port.clone(),
        seen: Arc::clone(&seen),
        is_by_byte: true,
    };
    let mut client = rtu::attach_slave(transport, Slave(unit));
    let rest = pin!(sleep(limit));
    let mut passed = None;
    let asked = timeout(limit, async {
        loop {
            match exchange(&mut client, request).await {
                // Late, of another device or to another request. The right one may follow.
                Err(failure) if failure.fault == Fault::AnswerInvalid => {
                    seen.is_muted.store(true, Relaxed);
                    passed = Some(failure);
                }
                other => return other,
            }
        }
    })
    .await;
    let asked = asked.unwrap_or_else(|_| Err(passed.unwrap_or_else(|| late(&seen, 0, limit))));
    if asked.is_err() && seen.is_over.load(Relaxed) {
        return Err(failed(&io::Error::other("it is gone")));
    }
    if let Err(failure) = &asked
        && !failure.fault.is_exception()
        && failure.fault != Fault::ConnectionLost
    {
        // The answer may still be on its way; the next request must not get it.
        rest.await;
    }
    asked
}

/// Waits until nothing comes, and throws away what has come.
async fn settle(port: &Port, pause: Duration) -> io::Result<()> {
    for _ in 0..SILENCES_MAX {
        sleep(pause).await;
        if port.discard()? == 0 {
            break;
        }
    }
    Ok(())
}

fn late(seen: &TransportState, before: u64, limit: Duration) -> Failure {
    let limit_ms = limit.as_millis();
    match seen.bytes.load(Relaxed) - before {
        0 => Failure::new(Fault::Timeout, format!("no answer within {limit_ms} ms")),
        bytes => Failure::new(
            Fault::Garbled,
            format!("{bytes} bytes came within {limit_ms} ms, and they are no answer"),
        ),
    }
}

/// What a transport has brought.
#[derive(Debug, Default)]
struct TransportState {
    bytes: AtomicU64,
    /// Whether its end has been reached.
    is_over: AtomicBool,
    /// Whether nothing is sent any more, and only heard.
    is_muted: AtomicBool,
}

/// A transport that is observed while a client owns it. The client tells neither an end nor a part of an answer from
/// other faults.
#[derive(Debug)]
struct Watched<T> {
    inner: T,
    seen: Arc<TransportState>,
    /// Whether a read brings one byte. Then what follows an answer stays where it is: the client throws away what it
    /// holds when it is called again.
    is_by_byte: bool,
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (before, room) = (buffer.filled().len(), buffer.remaining());
        if self.is_by_byte && room > 0 {
            let mut byte = [0];
            let mut part = ReadBuf::new(&mut byte);
            ready!(Pin::new(&mut self.inner).poll_read(context, &mut part))?;
            buffer.put_slice(part.filled());
        } else {
            ready!(Pin::new(&mut self.inner).poll_read(context, buffer))?;
        }
        match buffer.filled().len() - before {
            0 if room > 0 => self.seen.is_over.store(true, Relaxed),
            count => {
                self.seen.bytes.fetch_add(count as u64, Relaxed);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.seen.is_muted.load(Relaxed) {
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
