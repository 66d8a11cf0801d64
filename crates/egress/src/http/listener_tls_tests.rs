//! Connections with TLS: which clients get one, how long a handshake may take, and certificates that change.

use super::*;
use authority::{Authority, Folder, Purpose};
use base::clock::SystemClock;
use tls::{
    Client as TlsClient, ClientOptions, ClientStream, HANDSHAKE_TIME_MAX, HANDSHAKES_MAX, Identity,
    ServerOptions,
};

#[path = "../../../tls/tests/authority.rs"]
mod authority;

type Stream = ClientStream<TcpStream>;

/// A node that serves over TLS, and what its clients trust.
struct Secured {
    node: Node,
    server: Arc<Server>,
    authority: Authority,
    folder: Folder,
}

fn quiet(_: &str) {}

fn identity(folder: &Folder, authority: &Authority, purpose: Purpose, name: &str) -> Identity {
    let issued = authority.issue(&["127.0.0.1"], purpose);
    let (certificate_file, key_file) = issued.write(folder, name);
    Identity {
        certificate_file,
        key_file,
    }
}

fn secured(connections_max: u32, clients: Option<&Authority>) -> Secured {
    let mut options = HttpOptions::new("127.0.0.1:0".parse().unwrap());
    options.connections_max = connections_max;
    secured_with(options, clients)
}

fn secured_with(mut options: HttpOptions, clients: Option<&Authority>) -> Secured {
    let (folder, authority) = (Folder::new("listener"), Authority::new("nodes"));
    let given = ServerOptions {
        identity: identity(&folder, &authority, Purpose::Server, "server"),
        client_ca_file: clients.map(|clients| folder.write("clients.pem", &clients.certificate)),
    };
    let server = Server::open(given, Arc::new(SystemClock::new()), quiet).unwrap();
    let server = Arc::new(server);
    options.tls = Some(Arc::clone(&server));
    Secured {
        node: start_with(options).0,
        server,
        authority,
        folder,
    }
}

impl Secured {
    fn client(&self, authority: &Authority, identity: Option<Identity>) -> TlsClient {
        let name = format!("ca-{}.pem", authority.certificate.len());
        let given = ClientOptions {
            ca_file: Some(self.folder.write(&name, &authority.certificate)),
            identity,
            server_name: None,
        };
        TlsClient::new(given, Arc::new(SystemClock::new()))
    }

    /// Connects as a client that trusts the node's authority.
    async fn connect(&self) -> Stream {
        let client = self.client(&self.authority, None);
        self.connect_as(&client).await.unwrap()
    }

    async fn connect_as(&self, client: &TlsClient) -> Result<Stream, tls::Error> {
        let address = self.node.running.address.to_string();
        client.connect(self.node.connect().await, &address).await
    }

    fn refused(&self, why: &str) -> u64 {
        self.node.figures().refused[why]
    }

    async fn until_refused(&self, why: &str, count: u64) {
        self.node
            .until(why, |figures| figures.refused[why] == count)
            .await;
    }

    /// Waits until the node is busy with this many handshakes.
    async fn until_handshakes(&self, count: usize) {
        let waits = async {
            while self.server.handshakes() != count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        // Far longer than it takes on any machine.
        let waited = tokio::time::timeout(Duration::from_secs(60), waits).await;
        let now = self.server.handshakes();
        waited.unwrap_or_else(|_| panic!("{now} handshakes, not {count}"));
    }
}

#[test]
fn the_answer_to_a_plain_client_is_json_of_one_line() {
    assert!(!NO_TLS.contains('\n'));
    serde_json::from_str::<serde_json::Value>(NO_TLS).unwrap();
}

#[tokio::test]
async fn an_answer_that_a_slow_client_takes_over_tls_makes_no_room_for_silent_ones() {
    let test = async {
        let secured = secured(2, None);
        let mut slow = secured.connect().await;
        ask(&mut slow, POINTS).await;
        let first = head(&mut slow).await;
        assert!(first.starts_with("HTTP/1.1 200"), "{first}");
        let mut silent = Vec::new();
        for _ in 0..4 {
            silent.push(secured.connect().await);
        }
        secured
            .node
            .until("room", |figures| figures.connections_evicted == 3)
            .await;
        assert!(is_whole(&mut slow, &first).await, "{first}");
        // The next request on the same connection.
        ask(&mut slow, "/nothing").await;
        assert!(head(&mut slow).await.starts_with("HTTP/1.1 404"));
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn a_client_that_speaks_plain_http_is_told_the_remedy() {
    let test = async {
        let secured = secured(2, None);
        let mut plain = secured.node.ask("/nothing").await;
        let mut answer = String::new();
        plain.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 421 "), "{answer}");
        assert!(answer.contains("https://"), "{answer}");
        secured.until_refused("not_encrypted", 1).await;
        // Not a request either.
        let mut other = secured.node.connect().await;
        other.write_all(&[0x16, 3, 1, 0, 2, 1, 0]).await.unwrap();
        other.shutdown().await.unwrap();
        secured.until_refused("handshake", 1).await;
        let figures = secured.node.figures();
        assert_eq!((figures.requests, figures.connections), (0, 0));
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn clients_that_do_not_finish_their_handshake_take_no_place() {
    let test = async {
        let secured = secured(1, None);
        let mut served = secured.connect().await;
        ask(&mut served, POINTS).await;
        let first = head(&mut served).await;
        // The silent clients have 5 s, which a slow machine needs for a body.
        assert!(is_whole(&mut served, &first).await, "{first}");
        let mut silent = Vec::new();
        for _ in 0..HANDSHAKES_MAX + 4 {
            silent.push(secured.node.connect().await);
        }
        secured.until_refused("handshake_evicted", 4).await;
        secured.until_handshakes(HANDSHAKES_MAX).await;
        // They evict each other, and no client that is served.
        assert_eq!(secured.node.figures().connections_evicted, 0);
        ask(&mut served, "/nothing").await;
        assert!(head(&mut served).await.starts_with("HTTP/1.1 404"));
        let mut honest = secured.connect().await;
        ask(&mut honest, "/nothing").await;
        assert!(head(&mut honest).await.starts_with("HTTP/1.1 404"));
        assert_eq!(secured.refused("handshake_evicted"), 5);
        // The others have their time.
        tokio::time::pause();
        tokio::time::advance(HANDSHAKE_TIME_MAX).await;
        tokio::time::resume();
        secured
            .until_refused("handshake_slow", HANDSHAKES_MAX as u64 - 1)
            .await;
        secured.until_handshakes(0).await;
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn handshakes_of_a_second_are_limited() {
    let test = async {
        let mut given = HttpOptions::new("127.0.0.1:0".parse().unwrap());
        given.requests_per_second_max = 3;
        let secured = secured_with(given, None);
        let client = secured.client(&secured.authority, None);
        let mut connected = Vec::new();
        for _ in 0..40 {
            connected.extend(secured.connect_as(&client).await);
        }
        let refused = secured.refused("rate");
        assert!(refused > 0, "{:?}", secured.node.figures());
        assert_eq!(connected.len() as u64 + refused, 40);
        // The pace of requests is another one.
        ask(&mut connected[0], "/nothing").await;
        assert!(head(&mut connected[0]).await.starts_with("HTTP/1.1 404"));
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn a_client_needs_a_certificate_of_the_authority_of_clients() {
    let test = async {
        let clients = Authority::new("clients");
        let secured = secured(4, Some(&clients));
        let own = identity(&secured.folder, &clients, Purpose::Client, "right");
        let right = secured.client(&secured.authority, Some(own));
        let mut stream = secured.connect_as(&right).await.unwrap();
        ask(&mut stream, "/nothing").await;
        assert!(head(&mut stream).await.starts_with("HTTP/1.1 404"));
        let strangers = Authority::new("strangers");
        let own = identity(&secured.folder, &strangers, Purpose::Client, "wrong");
        for (count, own) in [(1, None), (2, Some(own))] {
            let wrong = secured.client(&secured.authority, own);
            // The client learns of it with its first answer.
            if let Ok(mut stream) = secured.connect_as(&wrong).await {
                assert!(stream.read_u8().await.is_err());
            }
            secured.until_refused("certificate", count).await;
        }
        assert_eq!(secured.node.figures().requests, 1);
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn certificates_change_while_clients_are_served() {
    let test = async {
        let secured = secured(8, None);
        let mut open = Vec::new();
        for _ in 0..4 {
            open.push(secured.connect().await);
        }
        let before = secured.client(&secured.authority, None);
        let next = Authority::new("the authority of the next nodes");
        let after = secured.client(&next, None);
        let issued = next.issue(&["127.0.0.1"], Purpose::Server);
        // Half of a change keeps no client out, and the status tells it.
        secured.folder.write("server.pem", &issued.certificate);
        secured.connect_as(&before).await.unwrap();
        let figures = secured.node.figures();
        assert!(figures.tls);
        let problem = figures.certificate_error.unwrap();
        assert!(problem.contains("server.key: does not belong"), "{problem}");
        secured.folder.write("server.key", &issued.key);
        secured.connect_as(&after).await.unwrap();
        assert!(secured.connect_as(&before).await.is_err());
        assert_eq!(secured.node.figures().certificate_error, None);
        for stream in &mut open {
            ask(stream, "/nothing").await;
            assert!(head(stream).await.starts_with("HTTP/1.1 404"));
        }
    };
    LocalSet::new().run_until(test).await;
}

/// Lets the hello of a client pass, and holds back what it sends behind the answer until `is_all` is told. Then all of
/// it goes at once.
async fn hold_back(
    socket: TcpStream,
    client: tokio::io::DuplexStream,
    is_all: tokio::sync::oneshot::Receiver<()>,
) {
    let (mut answers, mut requests) = socket.into_split();
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let mut space = [0; 4096];
    loop {
        tokio::select! {
            read = from_client.read(&mut space) => {
                let count = read.unwrap();
                requests.write_all(&space[..count]).await.unwrap();
            }
            ready = answers.readable() => {
                ready.unwrap();
                break;
            }
        }
    }
    let answered = async { tokio::io::copy(&mut answers, &mut to_client).await.ok() };
    let held = async {
        is_all.await.unwrap();
        let count = from_client.read(&mut space).await.unwrap();
        requests.write_all(&space[..count]).await.unwrap();
        // The connection stays.
        std::future::pending::<()>().await;
    };
    tokio::join!(answered, held);
}

#[tokio::test]
async fn a_head_that_begins_in_the_packet_of_the_handshake_has_its_time_too() {
    let test = async {
        let secured = secured(4, None);
        let client = secured.client(&secured.authority, None);
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let (all, is_all) = tokio::sync::oneshot::channel();
        let socket = secured.node.connect().await;
        let relay = tokio::task::spawn_local(hold_back(socket, theirs, is_all));
        let address = secured.node.running.address.to_string();
        let mut stream = client.connect(ours, &address).await.unwrap();
        // For the client the handshake is over; the node has its end together with half a head.
        stream.write_all(b"GET /noth").await.unwrap();
        stream.flush().await.unwrap();
        all.send(()).unwrap();
        secured
            .node
            .until("connection", |figures| figures.connections == 1)
            .await;
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(HEAD_SECONDS_MAX)).await;
        tokio::time::resume();
        secured
            .node
            .until("end", |figures| figures.heads_broken == 1)
            .await;
        relay.abort();
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn a_silent_client_gives_up_its_handshake_before_one_that_has_begun() {
    let test = async {
        let secured = secured(1, None);
        let mut begun = secured.node.connect().await;
        begun.write_all(&[0x16]).await.unwrap();
        secured.until_handshakes(1).await;
        // The node has seen the byte once it looks at a later connection.
        let mut served = secured.connect().await;
        ask(&mut served, "/nothing").await;
        assert!(head(&mut served).await.starts_with("HTTP/1.1 404"));
        let mut silent = Vec::new();
        for _ in 0..HANDSHAKES_MAX {
            silent.push(secured.node.connect().await);
        }
        secured.until_refused("handshake_evicted", 1).await;
        secured.until_handshakes(HANDSHAKES_MAX).await;
        // The first has its place.
        let waits = tokio::time::timeout(Duration::from_millis(50), begun.read_u8());
        assert!(waits.await.is_err(), "it has lost its place");
        let ended = silent[0].read_u8().await;
        assert!(ended.is_err());
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn a_stop_waits_for_no_handshake() {
    let test = async {
        let secured = secured(2, None);
        let mut silent = secured.node.connect().await;
        secured.until_handshakes(1).await;
        tokio::time::pause();
        secured.node.stop.send_replace(true);
        // The paused clock moves only while everything waits.
        let ended = tokio::time::timeout(HANDSHAKE_TIME_MAX / 2, secured.node.serves);
        ended.await.expect("it waits for a handshake").unwrap();
        assert!(silent.read_u8().await.is_err());
    };
    LocalSet::new().run_until(test).await;
}
