//! A connection to an upstream, plain or with TLS, and how it is opened. The protocols are in other files.

use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;
use tls::{Phase, Progress};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Stack size of the thread that resolves a name: enough for the system's resolver and its plug-ins.
const STACK_BYTES: usize = 256 << 10;
/// Largest number of addresses of a name that are tried, and the time between the starts of two attempts.
const ADDRESSES_MAX: u32 = 8;
const ADDRESS_PAUSE: Duration = Duration::from_millis(250);

/// A byte stream in both directions.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Unpin {}

impl<W: AsyncRead + AsyncWrite + Unpin> Wire for W {}

/// What happened on a connection.
#[derive(Debug)]
pub(crate) enum Event {
    /// This many bytes were read; 0 is the end of the stream.
    Read(usize),
    /// This many bytes were written.
    Written(usize),
}

/// Reads into `space` or writes from `out`, whichever is possible first. Bytes that TLS holds back behind a full socket
/// go out before more are taken. Dropping the future loses nothing.
pub(crate) async fn either(wire: &mut dyn Wire, space: &mut [u8], out: &[u8]) -> io::Result<Event> {
    poll_fn(|context| {
        let mut buffer = ReadBuf::new(space);
        match Pin::new(&mut *wire).poll_read(context, &mut buffer) {
            Poll::Ready(read) => {
                return Poll::Ready(read.map(|()| Event::Read(buffer.filled().len())));
            }
            Poll::Pending => {}
        }
        match Pin::new(&mut *wire).poll_flush(context) {
            Poll::Ready(Ok(())) if !out.is_empty() => {}
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) | Poll::Pending => return Poll::Pending,
        }
        match Pin::new(&mut *wire).poll_write(context, out) {
            Poll::Ready(written) => Poll::Ready(written.map(Event::Written)),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Returns why a connection has failed.
pub(crate) fn why(error: &(dyn std::error::Error + 'static)) -> String {
    tls::reason(error).unwrap_or_else(|| error.to_string())
}

/// Connects to `host:port`, encrypted if there is a client for that. The caller sets the timeout.
pub(crate) async fn connect(
    address: &str,
    tls: Option<&tls::Client>,
    progress: &Progress,
) -> Result<Box<dyn Wire>, String> {
    let addresses = resolve(address)
        .await
        .map_err(|error| format!("{address}: cannot look up the address: {error}"))?;
    progress.set(Phase::Connecting);
    let stream = first_of(addresses)
        .await
        .map_err(|error| format!("{address}: cannot connect: {error}"))?;
    // Writes are already batched, so Nagle's algorithm is turned off.
    stream
        .set_nodelay(true)
        .map_err(|error| format!("{address}: cannot set up the socket: {error}"))?;
    let wire: Box<dyn Wire> = match tls {
        None => Box::new(stream),
        Some(client) => {
            progress.set(Phase::Handshake);
            let secure = client.connect(stream, address).await;
            Box::new(secure.map_err(|error| error.to_string())?)
        }
    };
    progress.set(Phase::Greeting);
    Ok(wire)
}

/// Connects to the address that answers first. The attempts start one after the other. So a host with an unreachable
/// address, such as IPv6 behind many routers, is reached by the next one.
async fn first_of(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let mut attempts = JoinSet::new();
    for (at, one) in (0..ADDRESSES_MAX).zip(addresses) {
        attempts.spawn(async move {
            sleep(ADDRESS_PAUSE * at).await;
            TcpStream::connect(one).await
        });
    }
    let mut failed = io::Error::other("the name has no address");
    while let Some(done) = attempts.join_next().await {
        match done {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => failed = error,
            // Attempts do not panic.
            Err(_) => {}
        }
    }
    Err(failed)
}

/// Resolves a name on a thread of its own, since a system look-up blocks its thread for as long as name servers are
/// silent.
async fn resolve(address: &str) -> io::Result<Vec<SocketAddr>> {
    if let Ok(literal) = address.parse() {
        return Ok(vec![literal]);
    }
    let (sender, answer) = oneshot::channel();
    let name = address.to_owned();
    std::thread::Builder::new()
        .name("resolver".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(move || {
            let found: io::Result<Vec<_>> = name.to_socket_addrs().map(Iterator::collect);
            // If the attempt was given up, the receiver is gone.
            let _ = sender.send(found);
        })?;
    answer
        .await
        .unwrap_or_else(|_| Err(io::Error::other("the look-up has failed")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::{TcpListener, TcpSocket};
    use tokio::time::timeout;

    #[tokio::test]
    async fn a_host_is_reached_behind_an_address_that_does_not_answer() {
        // A listener with a full queue does not answer.
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let full = socket.listen(0).unwrap();
        let silent = full.local_addr().unwrap();
        let mut fill = Vec::new();
        while let Ok(stream) = timeout(ADDRESS_PAUSE * 2, TcpStream::connect(silent)).await {
            fill.push(stream.unwrap());
        }
        let host = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let answers = host.local_addr().unwrap();
        // Far longer than any connection takes here.
        let patience = Duration::from_secs(60);
        let found = timeout(patience, first_of(vec![silent, answers])).await;
        let stream = found.expect("no end of it").unwrap();
        assert_eq!(stream.peer_addr().unwrap(), answers);
        assert!(first_of(Vec::new()).await.is_err());
    }

    #[tokio::test]
    async fn an_attempt_that_connects_is_late_for_its_answer() {
        let host = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = host.local_addr().unwrap().to_string();
        let progress = Progress::default();
        connect(&address, None, &progress).await.unwrap();
        let late = progress.late(&address, Duration::from_secs(10), None);
        assert!(
            late.ends_with("connects, but does not answer within 10 s"),
            "{late}"
        );
    }

    #[tokio::test]
    async fn bytes_behind_a_full_socket_go_out_although_no_others_are_written() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt, BufWriter, duplex};
        let (ours, mut theirs) = duplex(16);
        // As TLS does, this takes more than the socket behind it has room for.
        let mut wire: Box<dyn Wire> = Box::new(BufWriter::with_capacity(64, ours));
        let mut space = [0; 8];
        let event = either(&mut *wire, &mut space, &[7; 40]).await.unwrap();
        assert!(matches!(event, Event::Written(40)));
        let mut got = [0; 40];
        let peer = async {
            theirs.read_exact(&mut got).await.unwrap();
            theirs.write_all(b"ack").await.unwrap();
        };
        let both = async { tokio::join!(either(&mut *wire, &mut space, &[]), peer) };
        let (event, ()) = timeout(Duration::from_secs(60), both).await.unwrap();
        assert!(matches!(event, Ok(Event::Read(3))));
        assert_eq!(got, [7; 40]);
    }
}
