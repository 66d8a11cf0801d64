//! The server's side: which clients it admits, how long they may take, and certificates that are replaced while it
//! serves.

use crate::authority::{Authority, Folder, Purpose};
use crate::identity::{issued, written};
use base::clock::Clock;
use base::sim::SimClock;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tls::{
    Client, ClientOptions, HANDSHAKE_TIME_MAX, HANDSHAKES_MAX, Identity, Refusal, Server,
    ServerOptions,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::JoinHandle;

const ADDRESS: &str = "node.example:8095";

fn clock() -> Arc<dyn Clock> {
    let clock = SimClock::new(1);
    clock.set_wall_ms(1_767_225_600_000);
    Arc::new(clock)
}

fn quiet(_: &str) {}

fn identity(authority: &Authority, folder: &Folder, purpose: Purpose) -> Identity {
    issued(authority, folder, "node.example", purpose)
}

fn server(authority: &Authority, folder: &Folder, clients: Option<&Authority>) -> Arc<Server> {
    let options = ServerOptions {
        identity: identity(authority, folder, Purpose::Server),
        client_ca_file: clients.map(|clients| folder.write("clients.pem", &clients.certificate)),
    };
    Arc::new(Server::open(options, clock(), quiet).unwrap())
}

fn client(authority: &Authority, folder: &Folder, identity: Option<Identity>) -> Client {
    let options = ClientOptions {
        ca_file: Some(folder.write("ca.pem", &authority.certificate)),
        identity,
        server_name: None,
    };
    Client::new(options, clock())
}

/// Accepts one connection and sends back what comes. Returns the client's end of it, and how it went.
fn serve(server: &Arc<Server>) -> (DuplexStream, JoinHandle<Result<(), Refusal>>) {
    let (ours, theirs) = duplex(64 << 10);
    let server = Arc::clone(server);
    let served = tokio::spawn(async move {
        let mut stream = server.accept(async { Ok(theirs) }).await?;
        let mut bytes = [0; 256];
        while let Ok(count @ 1..) = stream.read(&mut bytes).await {
            if stream.write_all(&bytes[..count]).await.is_err() || stream.flush().await.is_err() {
                break;
            }
        }
        Ok(())
    });
    (ours, served)
}

async fn echoes(client: &Client, server: &Arc<Server>) -> bool {
    let (ours, _served) = serve(server);
    let Ok(mut stream) = client.connect(ours, ADDRESS).await else {
        return false;
    };
    echo(&mut stream).await
}

async fn echo(stream: &mut tls::ClientStream<DuplexStream>) -> bool {
    let mut answer = [0; 4];
    let sent = stream.write_all(b"ping").await.is_ok() && stream.flush().await.is_ok();
    sent && stream.read_exact(&mut answer).await.is_ok() && &answer == b"ping"
}

#[tokio::test]
async fn only_clients_of_the_authority_of_clients_are_admitted() {
    let folder = Folder::new("clients");
    let (authority, clients) = (Authority::new("servers"), Authority::new("clients"));
    let server = server(&authority, &folder, Some(&clients));
    let right = identity(&clients, &folder, Purpose::Client);
    assert!(echoes(&client(&authority, &folder, Some(right)), &server).await);
    let strangers = Authority::new("strangers");
    let wrong = identity(&strangers, &folder, Purpose::Client);
    for own in [None, Some(wrong)] {
        let (ours, served) = serve(&server);
        let client = client(&authority, &folder, own);
        // The client may learn of it only when it reads.
        if let Ok(mut stream) = client.connect(ours, ADDRESS).await {
            assert!(!echo(&mut stream).await);
        }
        assert_eq!(served.await.unwrap(), Err(Refusal::Certificate));
    }
}

#[tokio::test]
async fn a_client_without_tls_is_refused() {
    let folder = Folder::new("no-tls");
    let authority = Authority::new("servers");
    let server = server(&authority, &folder, None);
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b""] {
        let (mut ours, served) = serve(&server);
        ours.write_all(bytes).await.unwrap();
        ours.shutdown().await.unwrap();
        assert_eq!(served.await.unwrap(), Err(Refusal::Failed));
    }
    let refused = server
        .accept(async { Err::<DuplexStream, _>(Refusal::Plain) })
        .await;
    assert_eq!(refused.err(), Some(Refusal::Plain));
    assert_eq!(server.handshakes(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_slow_handshake_ends_in_time() {
    let folder = Folder::new("slow");
    let server = server(&Authority::new("servers"), &folder, None);
    let begun = tokio::time::Instant::now();
    // One says nothing; another sends a byte of its hello from time to time.
    let (_silent, first) = serve(&server);
    let (mut slow, second) = serve(&server);
    tokio::spawn(async move {
        for byte in [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3] {
            let _ = slow.write_all(&[byte]).await;
            tokio::time::sleep(HANDSHAKE_TIME_MAX / 4).await;
        }
    });
    for served in [first, second] {
        assert_eq!(served.await.unwrap(), Err(Refusal::Slow));
    }
    // The paused clock counts: no time of this machine.
    assert_eq!(begun.elapsed().as_secs(), HANDSHAKE_TIME_MAX.as_secs());
    assert_eq!(server.handshakes(), 0);
}

#[tokio::test]
async fn silent_clients_do_not_shut_others_out() {
    let folder = Folder::new("crowd");
    let authority = Authority::new("servers");
    let server = server(&authority, &folder, None);
    let mut silent = Vec::new();
    for _ in 0..HANDSHAKES_MAX {
        silent.push(serve(&server));
        tokio::task::yield_now().await;
    }
    while server.handshakes() < HANDSHAKES_MAX {
        tokio::task::yield_now().await;
    }
    let honest = client(&authority, &folder, None);
    assert!(echoes(&honest, &server).await);
    let (_end, oldest) = silent.remove(0);
    assert_eq!(oldest.await.unwrap(), Err(Refusal::Evicted));
    assert!(silent.iter().all(|(_, served)| !served.is_finished()));
}

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn note(text: &str) {
    SAID.lock().unwrap().push(text.to_owned());
}

#[tokio::test]
async fn certificates_are_replaced_under_load_without_a_lost_connection() {
    let folder = Folder::new("reload");
    let (first, second) = (Authority::new("first"), Authority::new("second"));
    let options = ServerOptions {
        identity: identity(&first, &folder, Purpose::Server),
        client_ca_file: None,
    };
    let server = Arc::new(Server::open(options, clock(), note).unwrap());
    let of_first = client(&first, &folder, None);
    let mut open = Vec::new();
    for _ in 0..8 {
        let (ours, served) = serve(&server);
        let stream = of_first.connect(ours, ADDRESS).await.unwrap();
        open.push((stream, served));
    }
    let folder_of_second = Folder::new("reload-second");
    let of_second = client(&second, &folder_of_second, None);
    let next = second.issue(&["node.example"], Purpose::Server);
    // Half of the change: the key does not belong to the certificate. The ones before it are used on.
    folder.write("server.pem", &next.certificate);
    assert!(echoes(&of_first, &server).await);
    assert!(echoes(&of_first, &server).await);
    let problem = server.problem().unwrap();
    assert!(problem.contains("server.key: does not belong"), "{problem}");
    assert!(!echoes(&of_second, &server).await);
    // The other half.
    set_mode(&folder.write("server.key", &next.key), 0o600);
    assert!(echoes(&of_second, &server).await);
    assert!(!echoes(&of_first, &server).await);
    assert_eq!(server.problem(), None);
    for (stream, _) in &mut open {
        assert!(echo(stream).await, "the reload has cut a connection");
    }
    // Each change is told once, and no line shows a key.
    let said = SAID.lock().unwrap();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(
        said[0].contains("until then the certificate before"),
        "{said:?}"
    );
    assert!(said[1].contains("is read again"), "{said:?}");
    assert!(said.iter().all(|line| !line.contains("PRIVATE KEY")));
}

fn set_mode(file: &Path, mode: u32) {
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(mode)).unwrap();
}

static WARNED: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn warn(text: &str) {
    WARNED.lock().unwrap().push(text.to_owned());
}

#[tokio::test]
async fn a_key_that_becomes_open_to_others_at_run_time_is_warned_of() {
    let folder = Folder::new("open-key");
    let authority = Authority::new("servers");
    let own = identity(&authority, &folder, Purpose::Server);
    let of_client = identity(&authority, &folder, Purpose::Client);
    let keys = [own.key_file.clone(), of_client.key_file.clone()];
    for key in &keys {
        set_mode(key, 0o600);
    }
    let options = ServerOptions {
        identity: own,
        client_ca_file: None,
    };
    let server = Arc::new(Server::open(options, clock(), warn).unwrap());
    let client = client(&authority, &folder, Some(of_client));
    client.say_with(warn);
    let told = |key: &Path| {
        let words = format!("{} is open to every user", key.display());
        let said = WARNED.lock().unwrap();
        said.iter().filter(|line| line.contains(&words)).count()
    };
    for key in &keys {
        assert!(echoes(&client, &server).await);
        assert_eq!(told(key), 0);
        set_mode(key, 0o604);
        for _ in 0..2 {
            assert!(echoes(&client, &server).await);
            assert_eq!(told(key), 1);
        }
    }
}

#[test]
fn a_server_without_its_files_does_not_begin() {
    let folder = Folder::new("begin");
    let authority = Authority::new("servers");
    let mut options = ServerOptions {
        identity: identity(&authority, &folder, Purpose::Server),
        client_ca_file: Some(folder.file("none.pem")),
    };
    let why = Server::open(options.clone(), clock(), quiet).unwrap_err();
    assert!(
        why.to_string().contains("none.pem: is not there; "),
        "{why}"
    );
    assert!(why.to_string().starts_with("client_ca_file "), "{why}");
    let empty = folder.write("empty.pem", "");
    options.client_ca_file = Some(empty);
    let why = Server::open(options.clone(), clock(), quiet).unwrap_err();
    let told = why.to_string();
    assert!(
        told.starts_with("client_ca_file ") && told.contains("empty.pem: holds no certificate"),
        "{why}"
    );
    options.client_ca_file = None;
    std::fs::remove_file(&options.identity.key_file).unwrap();
    let why = Server::open(options, clock(), quiet).unwrap_err();
    assert!(
        why.to_string().contains("server.key: is not there; "),
        "{why}"
    );
}

/// A kind, a purpose or dates that no client accepts are told by the check before a start, and while
/// the server serves.
#[tokio::test]
async fn a_certificate_that_no_client_accepts_is_a_problem() {
    let authority = Authority::new("an authority");
    let of_trust = |is_trusted: bool| -> Arc<dyn Clock> {
        let clock = SimClock::new(1);
        clock.set_wall_ms(1_767_225_600_000);
        clock.set_wall_trusted(is_trusted);
        Arc::new(clock)
    };
    let (clock, in_doubt) = (of_trust(true), of_trust(false));
    let names = ["node.example"];
    let cases = [
        (
            authority.issue_for(&names, Purpose::Server, (2000, 2025)),
            "has expired",
        ),
        (
            authority.issue_for(&names, Purpose::Server, (2100, 2101)),
            "is not valid yet",
        ),
        (
            authority.issue(&names, Purpose::Client),
            "is not for a server",
        ),
        (authority.issued(), "is that of an authority"),
    ];
    for (issued, expected) in cases {
        let folder = Folder::new("unaccepted");
        let options = ServerOptions {
            identity: written(&issued, &folder, "server"),
            client_ca_file: None,
        };
        let wrong = options.check(&clock).unwrap_err().to_string();
        assert!(wrong.contains(expected), "{wrong}");
        let server = Server::open(options.clone(), Arc::clone(&clock), quiet).unwrap();
        assert_eq!(server.problem(), Some(wrong));
        // Before the clock is right, dates say nothing.
        let is_date = expected.contains("expired") || expected.contains("yet");
        assert_eq!(options.check(&in_doubt).is_ok(), is_date, "{expected}");
    }
    let folder = Folder::new("accepted");
    let own = identity(&authority, &folder, Purpose::Server);
    let options = ServerOptions {
        identity: own,
        client_ca_file: None,
    };
    options.check(&clock).unwrap();
    let server = Server::open(options, Arc::clone(&clock), quiet).unwrap();
    assert_eq!(server.problem(), None);
}

/// The status asks each time for the verdict on the certificate, which holds for a minute of the wall clock. A new
/// certificate, a clock that is set and another trust in the clock have a new verdict at once.
#[tokio::test]
async fn the_verdict_on_a_certificate_is_kept_for_a_minute() {
    const END_OF_2025_MS: i64 = 1_767_225_600_000;
    const SECOND_NS: u64 = 1_000_000_000;
    let folder = Folder::new("verdict");
    let authority = Authority::new("an authority");
    let issued = authority.issue_for(&["node.example"], Purpose::Server, (2000, 2026));
    let options = ServerOptions {
        identity: written(&issued, &folder, "server"),
        client_ca_file: None,
    };
    let clock = SimClock::new(1);
    clock.set_wall_ms(END_OF_2025_MS - 30_000);
    clock.set_wall_trusted(true);
    let server = Arc::new(Server::open(options, Arc::new(clock.clone()), quiet).unwrap());
    assert_eq!(server.problem(), None);
    clock.advance_ns(59 * SECOND_NS);
    assert_eq!(server.problem(), None);
    clock.advance_ns(SECOND_NS);
    let told = server.problem().unwrap();
    assert!(told.contains("has expired"), "{told}");
    let next = authority.issue(&["node.example"], Purpose::Server);
    next.write(&folder, "server");
    assert!(echoes(&client(&authority, &folder, None), &server).await);
    assert_eq!(server.problem(), None);
    // A dead battery sets the clock to a time before the certificate.
    clock.set_wall_ms(1_000);
    let told = server.problem().unwrap();
    assert!(told.contains("is not valid yet"), "{told}");
    // Dates count only by a clock that is trusted.
    clock.set_wall_trusted(false);
    assert_eq!(server.problem(), None);
    clock.set_wall_trusted(true);
    let told = server.problem().unwrap();
    assert!(told.contains("is not valid yet"), "{told}");
}
