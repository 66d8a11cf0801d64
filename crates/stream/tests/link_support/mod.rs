//! A tokio server for the tests of links, with or without TLS, which counts the bytes on its socket; and identities.

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;
use stream::link::LinkSettings;
use stream::tls::{Authority, device_config, server_config};
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, ReadHalf, WriteHalf, split,
};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// The TLS configuration of a device, and the expected name of the server.
pub type DeviceTls = (Arc<ClientConfig>, ServerName<'static>);

/// An authority, a server and a device in a folder, which is removed when this is dropped.
pub struct Identities {
    pub folder: PathBuf,
}

impl Identities {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("stream-link-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let authority = Authority::new(&folder.join("authority")).unwrap();
        let names = ["127.0.0.1".to_owned()];
        authority
            .issue_server(&names, &folder.join("server"))
            .unwrap();
        authority
            .issue_device("device", "default", &folder.join("device"))
            .unwrap();
        Self { folder }
    }

    pub fn server(&self) -> Arc<ServerConfig> {
        server_config(&self.folder.join("server")).unwrap()
    }

    pub fn device(&self) -> DeviceTls {
        device_config(&self.folder.join("device"), "127.0.0.1:1").unwrap()
    }
}

impl Drop for Identities {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub fn settings(server: &str, tls: Option<DeviceTls>) -> LinkSettings {
    LinkSettings {
        server: server.to_owned(),
        tls,
        connect_max: Duration::from_secs(10),
        // Long enough for a busy machine: a link that stalls fails its test instead of blocking it.
        read_max: Some(Duration::from_secs(60)),
        write_max: Some(Duration::from_secs(60)),
    }
}

/// The observations of a server at its end.
pub struct Seen {
    pub is_whole: bool,
    pub received_bytes: u64,
    pub sent_bytes: u64,
}

/// A server for one connection, in its own thread, which ends with the connection.
pub struct Server {
    port: u16,
    seen: mpsc::Receiver<Seen>,
}

type Tls = Option<Arc<ServerConfig>>;

/// What a server does with a connection.
enum Does {
    BothWays(usize, fn(usize) -> u8),
    SendThenReceive(usize, fn(usize) -> u8),
    Echo,
    SendByteByByte(usize),
    Nothing,
}

impl Server {
    /// Sends a pattern of `bytes` bytes, and receives the same concurrently.
    pub fn echo_pattern(tls: Tls, bytes: usize, pattern: fn(usize) -> u8) -> Self {
        Self::start(tls, Does::BothWays(bytes, pattern))
    }

    /// Sends everything before it reads a byte.
    pub fn send_then_receive(tls: Tls, bytes: usize, pattern: fn(usize) -> u8) -> Self {
        Self::start(tls, Does::SendThenReceive(bytes, pattern))
    }

    /// Sends back what it receives.
    pub fn echo(tls: Tls) -> Self {
        Self::start(tls, Does::Echo)
    }

    /// Sends `bytes` bytes as one message, and each resulting byte on the wire separately.
    pub fn send_byte_by_byte(tls: Tls, bytes: usize) -> Self {
        Self::start(tls, Does::SendByteByByte(bytes))
    }

    /// Neither reads nor writes.
    pub fn silent(tls: Tls) -> Self {
        Self::start(tls, Does::Nothing)
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn seen(&self) -> Seen {
        self.seen.recv_timeout(Duration::from_secs(60)).unwrap()
    }

    fn start(tls: Tls, does: Does) -> Self {
        let (say_port, port) = mpsc::channel();
        let (say_seen, seen) = mpsc::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                say_port
                    .send(listener.local_addr().unwrap().port())
                    .unwrap();
                let (socket, _) = listener.accept().await.unwrap();
                let counts = Arc::new(Counts::default());
                let counted = Counted {
                    socket,
                    counts: Arc::clone(&counts),
                };
                let is_whole = match tls {
                    None => serve(counted, does, &counts).await,
                    Some(config) => match TlsAcceptor::from(config).accept(counted).await {
                        Ok(stream) => serve(stream, does, &counts).await,
                        Err(_) => false,
                    },
                };
                // The receiver may be gone if the test does not check the server.
                let _ = say_seen.send(Seen {
                    is_whole,
                    received_bytes: counts.received.load(Ordering::Relaxed),
                    sent_bytes: counts.sent.load(Ordering::Relaxed),
                });
            });
        });
        let port = port.recv().unwrap();
        Self { port, seen }
    }
}

async fn serve<S: AsyncRead + AsyncWrite>(stream: S, does: Does, counts: &Counts) -> bool {
    let (mut reader, mut writer) = split(stream);
    match does {
        Does::BothWays(bytes, pattern) => {
            let (sent, is_whole) = tokio::join!(
                send(&mut writer, bytes, pattern),
                receive(&mut reader, bytes, pattern)
            );
            sent.is_ok() && is_whole
        }
        Does::SendThenReceive(bytes, pattern) => {
            let sent = send(&mut writer, bytes, pattern).await;
            sent.is_ok() && receive(&mut reader, bytes, pattern).await
        }
        Does::Echo => {
            let _ = tokio::io::copy(&mut reader, &mut writer).await;
            true
        }
        Does::SendByteByByte(bytes) => {
            counts.is_slow.store(true, Ordering::Relaxed);
            writer.write_all(&vec![7; bytes]).await.is_ok()
        }
        Does::Nothing => {
            // Wait until the test's process ends: the other end must not depend on the end of this one.
            std::future::pending::<()>().await;
            true
        }
    }
}

async fn send<S: AsyncWrite>(
    writer: &mut WriteHalf<S>,
    bytes: usize,
    pattern: fn(usize) -> u8,
) -> io::Result<()> {
    let mut at = 0;
    while at < bytes {
        let length = (1 + at % 100_003).min(bytes - at);
        let piece: Vec<u8> = (at..at + length).map(pattern).collect();
        writer.write_all(&piece).await?;
        at += length;
    }
    writer.flush().await
}

async fn receive<S: AsyncRead>(
    reader: &mut ReadHalf<S>,
    bytes: usize,
    pattern: fn(usize) -> u8,
) -> bool {
    let (mut at, mut buffer) = (0, vec![0; 80_000]);
    while at < bytes {
        match reader.read(&mut buffer).await {
            Ok(0) | Err(_) => return false,
            Ok(count) => {
                if (at..)
                    .zip(&buffer[..count])
                    .any(|(at, byte)| *byte != pattern(at))
                {
                    return false;
                }
                at += count;
            }
        }
    }
    at == bytes
}

#[derive(Default)]
struct Counts {
    received: AtomicU64,
    sent: AtomicU64,
    is_slow: AtomicBool,
}

/// A socket that counts its bytes.
struct Counted {
    socket: TcpStream,
    counts: Arc<Counts>,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.socket).poll_read(context, buffer);
        let count = buffer.filled().len() - before;
        self.counts
            .received
            .fetch_add(count as u64, Ordering::Relaxed);
        result
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let is_slow = self.counts.is_slow.load(Ordering::Relaxed);
        if is_slow {
            // Blocking is fine: the thread has nothing else to do.
            thread::sleep(Duration::from_millis(5));
        }
        let bytes = &bytes[..if is_slow { 1 } else { bytes.len() }];
        let result = Pin::new(&mut self.socket).poll_write(context, bytes);
        if let Poll::Ready(Ok(count)) = result {
            self.counts.sent.fetch_add(count as u64, Ordering::Relaxed);
        }
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}
