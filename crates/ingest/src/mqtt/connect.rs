//! Opens a connection, up to the broker's CONNACK.

use super::codec::{self, Welcome};
use super::link::{Link, Secure};
use super::options::MqttOptions;
use super::packet::{Kind, Malformed, Reader, Step};
use super::resolve::Resolver;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tls::{Phase, Progress, with_hint};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A connection that the broker has accepted.
pub(super) struct Connection {
    pub link: Link,
    /// Holds the bytes that arrived after CONNACK.
    pub reader: Reader,
    pub session_present: bool,
    /// Whether the broker names the subscriptions of a message.
    pub names_subscriptions: bool,
    /// The broker's keep-alive in seconds, if it overrides the node's.
    pub keep_alive_seconds: Option<u16>,
}

/// The kind of TLS's alerts, and the first byte of its versions. No packet of a broker begins like that.
const TLS_ALERT: [u8; 2] = [0x15, 3];

/// Returns what helps if a broker without TLS speaks it.
fn hint(options: &MqttOptions) -> Option<&'static str> {
    options.tls.is_none().then_some("tls = true")
}

/// Returns why an attempt has failed that takes longer than the options allow.
pub(super) fn late(progress: &Progress, options: &MqttOptions) -> String {
    let limit = Duration::from_millis(options.connect_ms_max);
    progress.late(&options.address, limit, hint(options))
}

pub(super) enum Refusal {
    Failed(String),
    Malformed(Malformed),
}

impl From<Malformed> for Refusal {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

/// Connects to the first address that answers. Each but the last gets an equal part of the time, so that a silent
/// address does not keep the node from the next one. Behind many routers IPv6 is silent.
pub(crate) async fn connect_to(
    addresses: &[SocketAddr],
    connect_ms_max: u64,
) -> io::Result<TcpStream> {
    let Some((last, others)) = addresses.split_last() else {
        return Err(io::Error::other("the name has no address"));
    };
    let part = Duration::from_millis(connect_ms_max / addresses.len() as u64);
    for address in others {
        if let Ok(Ok(stream)) = timeout(part, TcpStream::connect(address)).await {
            return Ok(stream);
        }
    }
    TcpStream::connect(last).await
}

/// Connects and waits until the broker accepts the connection. The caller sets the timeout; dropping the future closes
/// the socket.
pub(super) async fn connect(
    options: &MqttOptions,
    resolver: &mut Resolver,
    progress: &Progress,
) -> Result<Connection, Refusal> {
    let failed = |what: &str, error: &io::Error| refused(options, what, error);
    let addresses = resolver
        .resolve(&options.address)
        .await
        .map_err(|error| failed("cannot look up the address", &error))?;
    progress.set(Phase::Connecting);
    let mut stream = connect_to(&addresses, options.connect_ms_max)
        .await
        .map_err(|error| failed("cannot connect", &error))?;
    // Acknowledgements are already written in batches, so Nagle's algorithm would only delay them.
    stream
        .set_nodelay(true)
        .map_err(|error| failed("cannot set up the socket", &error))?;
    // Pings find a dead link, too, but the broker may turn them off.
    base::socket::keep_alive(&stream);
    let (link, reader, welcome) = match &options.tls {
        None => {
            progress.set(Phase::Greeting);
            let (reader, welcome) = greet(&mut stream, options).await?;
            (Link::Watched(stream), reader, welcome)
        }
        Some(client) => {
            progress.set(Phase::Handshake);
            let mut secure = client
                .connect(stream, &options.address)
                .await
                .map_err(|error| Refusal::Failed(error.to_string()))?;
            progress.set(Phase::Greeting);
            let (reader, welcome) = greet(&mut secure, options).await?;
            (Link::Secure(Secure::new(Box::new(secure))), reader, welcome)
        }
    };
    Ok(Connection {
        link,
        reader,
        session_present: welcome.session_present,
        names_subscriptions: welcome.names_subscriptions,
        keep_alive_seconds: welcome.keep_alive_seconds,
    })
}

fn refused(options: &MqttOptions, what: &str, error: &io::Error) -> Refusal {
    let why = tls::reason(error).unwrap_or_else(|| error.to_string());
    Refusal::Failed(format!("{}: {what}: {why}", options.address))
}

/// Returns that CONNECT was not answered, and why.
fn unanswered(options: &MqttOptions, why: &str) -> Refusal {
    let address = &options.address;
    Refusal::Failed(with_hint(
        format!("{address}: no answer to CONNECT: {why}"),
        hint(options),
    ))
}

/// Sends CONNECT and waits for CONNACK. The reader holds what has come behind it.
async fn greet<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    options: &MqttOptions,
) -> Result<(Reader, Welcome), Refusal> {
    let greeting = codec::connect(options).map_err(|text| Refusal::Failed(text.into()))?;
    let sent = async {
        stream.write_all(&greeting).await?;
        stream.flush().await
    };
    let failed = |error: &io::Error| {
        let why = tls::reason(error).unwrap_or_else(|| error.to_string());
        unanswered(options, &why)
    };
    sent.await.map_err(|error| failed(&error))?;
    let mut reader = Reader::new();
    loop {
        match reader.peek(options.version, options.packet_bytes_max)? {
            Step::More(_) => {}
            Step::Control(Kind::ConnAck, packet, _) => {
                let bytes = packet.len();
                let welcome = codec::welcome(options.version, packet)?.map_err(|reason| {
                    let address = &options.address;
                    Refusal::Failed(format!("{address}: the broker refuses: {reason}"))
                })?;
                reader.advance(bytes);
                return Ok((reader, welcome));
            }
            _ => return Err(Malformed("something else than CONNACK").into()),
        }
        let space = reader.space();
        let read = stream.read(space).await;
        let count = read.map_err(|error| failed(&error))?;
        if count == 0 {
            return Err(unanswered(options, "the broker has closed the connection"));
        }
        if space[..count].starts_with(&TLS_ALERT) {
            return Err(unanswered(options, "it speaks another protocol"));
        }
        reader.filled(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mqtt::Version;
    use tokio::net::{TcpListener, TcpSocket};

    /// Far longer than any connection takes here.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Returns an address of a host that does not answer: a listener with a full queue, and what fills it.
    async fn silent() -> (SocketAddr, TcpListener, Vec<TcpStream>) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        let mut fill = Vec::new();
        while let Ok(stream) =
            timeout(Duration::from_millis(500), TcpStream::connect(address)).await
        {
            fill.push(stream.unwrap());
        }
        (address, listener, fill)
    }

    async fn connects(options: &MqttOptions, found: Vec<SocketAddr>) -> Option<Connection> {
        let mut resolver = Resolver::new(move |_| Ok(found.clone()));
        let connection = timeout(
            PATIENCE,
            connect(options, &mut resolver, &Progress::default()),
        )
        .await;
        match connection.expect("no end of it") {
            Ok(connection) => Some(connection),
            Err(Refusal::Failed(_)) => None,
            Err(Refusal::Malformed(malformed)) => panic!("{}", malformed.0),
        }
    }

    #[tokio::test]
    async fn a_broker_that_says_nothing_is_not_called_unreachable() {
        // The kernel accepts for it.
        let broker = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = broker.local_addr().unwrap();
        let options = MqttOptions::new(address.to_string(), "t");
        let progress = Progress::default();
        let mut resolver = Resolver::new(move |_| Ok(vec![address]));
        let attempt = connect(&options, &mut resolver, &progress);
        assert!(timeout(Duration::from_millis(500), attempt).await.is_err());
        assert_eq!(
            late(&progress, &options),
            format!(
                "{address}: connects, but does not answer within 10 s; if it speaks TLS: tls = true"
            )
        );
    }

    #[tokio::test]
    async fn a_name_that_is_not_resolved_and_a_host_that_does_not_answer_have_their_remedies() {
        let (silent, _listener, _fill) = silent().await;
        let options = MqttOptions::new("broker.example:1883", "t");
        let mut resolver = Resolver::new(move |_| Ok(vec![silent]));
        let progress = Progress::default();
        let told = late(&progress, &options);
        assert!(told.contains("check the machine's name servers"), "{told}");
        let attempt = connect(&options, &mut resolver, &progress);
        assert!(timeout(Duration::from_secs(2), attempt).await.is_err());
        let told = late(&progress, &options);
        assert!(
            told.contains("no connection within 10 s; check that the host is up"),
            "{told}"
        );
    }

    #[tokio::test]
    async fn a_broker_that_answers_with_an_alert_of_tls_is_told_apart() {
        let broker = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = broker.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = broker.accept().await.unwrap();
            let mut greeting = [0; 256];
            assert!(stream.read(&mut greeting).await.unwrap() > 0);
            stream.write_all(&[0x15, 3, 3, 0, 2, 2, 70]).await.unwrap();
        });
        let options = MqttOptions::new(address.to_string(), "t");
        let mut resolver = Resolver::new(move |_| Ok(vec![address]));
        let progress = Progress::default();
        let attempt = timeout(PATIENCE, connect(&options, &mut resolver, &progress));
        match attempt.await.expect("no end of it") {
            Err(Refusal::Failed(why)) => {
                assert!(why.contains("if it speaks TLS: tls = true"), "{why}")
            }
            Err(Refusal::Malformed(malformed)) => panic!("{}", malformed.0),
            Ok(_) => panic!("it was accepted"),
        }
    }

    #[tokio::test]
    async fn a_broker_is_reached_behind_an_address_that_does_not_answer() {
        let (silent, _listener, _fill) = silent().await;
        let closed_port = {
            let closed = TcpListener::bind("127.0.0.2:0").await.unwrap();
            closed.local_addr().unwrap()
        };
        let broker = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let answers = broker.local_addr().unwrap();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = broker.accept().await.unwrap();
                let mut greeting = [0; 256];
                assert!(stream.read(&mut greeting).await.unwrap() > 0);
                stream.write_all(&[0x20, 2, 0, 0]).await.unwrap();
            }
        });
        let options = MqttOptions {
            version: Version::V311,
            connect_ms_max: 1_500,
            ..MqttOptions::new("broker.example:1883", "t")
        };
        for others in [vec![silent], vec![closed_port], vec![closed_port, silent]] {
            let found = others.iter().copied().chain([answers]).collect();
            let connection = connects(&options, found).await;
            let peer = connection.map(|connection| match connection.link {
                Link::Watched(stream) => stream.peer_addr().unwrap(),
                _ => panic!("not a plain socket"),
            });
            assert_eq!(peer, Some(answers), "behind {others:?}");
        }
        assert!(connects(&options, vec![closed_port]).await.is_none());
        assert!(connects(&options, Vec::new()).await.is_none());
    }
}
