//! The client's side: whom it trusts, what it says when it does not, and files that change.

use crate::authority::{Authority, Folder, Issued, Purpose};
use crate::identity::written;
use base::clock::Clock;
use base::sim::SimClock;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};
use std::sync::Arc;
use tls::{Client, ClientOptions, Identity};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio_rustls::TlsAcceptor;

const ADDRESS: &str = "broker.example:8883";
const HOST: &str = "broker.example";
/// The first of January 2026.
const NOW_MS: i64 = 1_767_225_600_000;

fn clock(trusted: bool) -> Arc<dyn Clock> {
    let clock = SimClock::new(1);
    clock.set_wall_ms(NOW_MS);
    clock.set_wall_trusted(trusted);
    Arc::new(clock)
}

fn client(options: ClientOptions) -> Client {
    Client::new(options, clock(true))
}

/// A server of another make: with the library alone.
struct Peer {
    version: &'static SupportedProtocolVersion,
    clients: Option<String>,
}

impl Default for Peer {
    fn default() -> Self {
        Self {
            version: &rustls::version::TLS13,
            clients: None,
        }
    }
}

impl Peer {
    fn config(&self, own: &Issued) -> Arc<ServerConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[self.version])
            .unwrap();
        let builder = match &self.clients {
            None => builder.with_no_client_auth(),
            Some(pem) => {
                let mut roots = RootCertStore::empty();
                let root = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
                roots.add(root).unwrap();
                let roots = Arc::new(roots);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let certificate = CertificateDer::from_pem_slice(own.certificate.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap();
        Arc::new(builder.with_single_cert(vec![certificate], key).unwrap())
    }

    /// Serves one connection: says `hello` and waits for the end.
    fn serve(&self, own: &Issued) -> DuplexStream {
        let (ours, theirs) = duplex(64 << 10);
        let acceptor = TlsAcceptor::from(self.config(own));
        tokio::spawn(async move {
            // The client says what is wrong.
            if let Ok(mut stream) = acceptor.accept(theirs).await {
                let _ = stream.write_all(b"hello").await;
                let _ = stream.flush().await;
                let _ = stream.read(&mut [0; 16]).await;
            }
        });
        ours
    }
}

/// Connects and reads what the server says, or returns the reason why not.
async fn hello(client: &Client, stream: DuplexStream, address: &str) -> Result<(), String> {
    let connected = client.connect(stream, address).await;
    let mut stream = connected.map_err(|error| error.to_string())?;
    let mut said = [0; 5];
    match stream.read_exact(&mut said).await {
        Ok(_) => {
            assert_eq!(&said, b"hello");
            Ok(())
        }
        Err(error) => Err(tls::reason(&error).unwrap_or_else(|| error.to_string())),
    }
}

/// An authority whose certificate stands in a file.
fn trusted(folder: &Folder) -> (Authority, ClientOptions) {
    let authority = Authority::new("the right authority");
    let options = ClientOptions {
        ca_file: Some(folder.write("ca.pem", &authority.certificate)),
        ..ClientOptions::default()
    };
    (authority, options)
}

#[tokio::test]
async fn a_server_of_the_authority_is_trusted_with_both_versions() {
    let folder = Folder::new("right");
    let (authority, options) = trusted(&folder);
    let own = authority.issue(&[HOST, "192.168.1.10"], Purpose::Server);
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let peer = Peer {
            version,
            clients: None,
        };
        for address in [ADDRESS, "192.168.1.10:8883"] {
            let client = client(options.clone());
            assert_eq!(hello(&client, peer.serve(&own), address).await, Ok(()));
        }
    }
}

#[tokio::test]
async fn a_server_of_an_unknown_authority_is_refused() {
    let folder = Folder::new("unknown");
    let (_, options) = trusted(&folder);
    // With the same name: only the key tells the two apart.
    for name in ["another authority", "the right authority"] {
        let own = Authority::new(name).issue(&[HOST], Purpose::Server);
        let client = client(options.clone());
        let why = hello(&client, Peer::default().serve(&own), ADDRESS).await;
        let why = why.unwrap_err();
        let wrong = format!(
            "{ADDRESS}: its certificate is not signed by an authority in {}; ",
            folder.file("ca.pem").display()
        );
        assert!(why.starts_with(&wrong), "{why}");
        assert!(why.ends_with("in ca_file"), "{why}");
    }
}

#[tokio::test]
async fn a_certificate_outside_of_its_dates_is_refused_and_a_clock_in_doubt_is_named() {
    let folder = Folder::new("dates");
    let (authority, options) = trusted(&folder);
    for (years, wrong, remedy) in [
        ((2000, 2025), "has expired 365 days ago", "renew"),
        (
            (2027, 2100),
            "is not valid yet: it begins in 365 days",
            "clock",
        ),
    ] {
        let own = authority.issue_for(&[HOST], Purpose::Server, years);
        for trusted in [true, false] {
            let client = Client::new(options.clone(), clock(trusted));
            let why = hello(&client, Peer::default().serve(&own), ADDRESS).await;
            let why = why.unwrap_err();
            assert!(why.contains(wrong) && why.contains(remedy), "{why}");
            let doubted = why.contains("this node's clock, which is not trusted");
            assert_eq!(doubted, !trusted, "{why}");
        }
    }
    // Once the clock is right, the same client connects.
    let clock = SimClock::new(1);
    let client = Client::new(options, Arc::new(clock.clone()));
    let own = authority.issue_for(&[HOST], Purpose::Server, (2025, 2030));
    let why = hello(&client, Peer::default().serve(&own), ADDRESS).await;
    assert!(why.unwrap_err().contains("not valid yet"));
    clock.set_wall_ms(NOW_MS);
    let now = hello(&client, Peer::default().serve(&own), ADDRESS).await;
    assert_eq!(now, Ok(()));
}

#[tokio::test]
async fn a_certificate_for_another_name_is_refused_unless_that_name_is_expected() {
    let folder = Folder::new("name");
    let (authority, options) = trusted(&folder);
    let own = authority.issue(&["other.example"], Purpose::Server);
    let why = hello(
        &client(options.clone()),
        Peer::default().serve(&own),
        ADDRESS,
    )
    .await;
    let why = why.unwrap_err();
    for part in [
        "is for other.example, not for broker.example",
        "server_name",
    ] {
        assert!(why.contains(part), "{why}");
    }
    let expects = client(ClientOptions {
        server_name: Some("other.example".to_owned()),
        ..options.clone()
    });
    let now = hello(&expects, Peer::default().serve(&own), ADDRESS).await;
    assert_eq!(now, Ok(()));
    // The certificate of a client is none of a server, also with its name.
    let own = authority.issue(&[HOST], Purpose::Client);
    let why = hello(&client(options), Peer::default().serve(&own), ADDRESS).await;
    assert!(why.unwrap_err().contains("not one of a server"));
}

#[tokio::test]
async fn a_server_that_asks_for_a_certificate_gets_it() {
    let folder = Folder::new("mutual");
    let (authority, options) = trusted(&folder);
    let own = authority.issue(&[HOST], Purpose::Server);
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let peer = Peer {
            version,
            clients: Some(authority.certificate.clone()),
        };
        let why = hello(&client(options.clone()), peer.serve(&own), ADDRESS).await;
        let why = why.unwrap_err();
        assert!(why.contains("certificate_file"), "{why}");
        let issued = authority.issue(&[], Purpose::Client);
        let knows = client(ClientOptions {
            identity: Some(written(&issued, &folder, "node")),
            ..options.clone()
        });
        assert_eq!(hello(&knows, peer.serve(&own), ADDRESS).await, Ok(()));
    }
}

#[tokio::test]
async fn a_server_without_tls_is_told_apart() {
    let folder = Folder::new("plain");
    let (_, options) = trusted(&folder);
    let (ours, mut theirs) = duplex(4096);
    tokio::spawn(async move {
        let _ = theirs.read(&mut [0; 1024]).await;
        let _ = theirs.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    });
    let why = hello(&client(options.clone()), ours, ADDRESS).await;
    let why = why.unwrap_err();
    assert!(why.contains("it does not speak TLS"), "{why}");
    // A broker closes a connection of which it understands nothing.
    let (ours, mut theirs) = duplex(4096);
    tokio::spawn(async move {
        let _ = theirs.read(&mut [0; 1024]).await;
    });
    let why = hello(&client(options), ours, ADDRESS).await;
    let why = why.unwrap_err();
    assert!(why.contains("ends the connection during the TLS"), "{why}");
}

#[tokio::test]
async fn changed_files_count_at_the_next_connection() {
    let folder = Folder::new("changed");
    let (first, options) = trusted(&folder);
    let second = Authority::new("the next authority");
    let client = client(options);
    let (old, new) = (
        first.issue(&[HOST], Purpose::Server),
        second.issue(&[HOST], Purpose::Server),
    );
    let peer = Peer::default();
    assert_eq!(hello(&client, peer.serve(&old), ADDRESS).await, Ok(()));
    // An open connection outlives the change.
    let mut open = client.connect(peer.serve(&old), ADDRESS).await.unwrap();
    folder.write("ca.pem", &second.certificate);
    assert_eq!(hello(&client, peer.serve(&new), ADDRESS).await, Ok(()));
    assert!(hello(&client, peer.serve(&old), ADDRESS).await.is_err());
    let mut said = [0; 5];
    open.read_exact(&mut said).await.unwrap();
    assert_eq!(&said, b"hello");
    // Two authorities at once, as while one takes the place of the other.
    let both = format!("{}{}", first.certificate, second.certificate);
    folder.write("ca.pem", &both);
    for own in [&old, &new] {
        assert_eq!(hello(&client, peer.serve(own), ADDRESS).await, Ok(()));
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_used_is_named_with_the_reason_and_no_content() {
    let folder = Folder::new("files");
    let (authority, options) = trusted(&folder);
    let own = authority.issue(&[], Purpose::Client);
    let other = authority.issue(&[], Purpose::Client);
    let (certificate_file, key_file) = own.write(&folder, "node");
    let (_, other_key) = other.write(&folder, "other");
    let marked = folder.write("marked.key", "hunter2hunter2");
    let large = folder.write("large.pem", &"x".repeat((4 << 20) + 1));
    let large_key = folder.write("large.key", &"x".repeat((64 << 10) + 1));
    let with = |certificate_file: &std::path::Path, key_file: &std::path::Path| ClientOptions {
        identity: Some(Identity {
            certificate_file: certificate_file.to_owned(),
            key_file: key_file.to_owned(),
        }),
        ..options.clone()
    };
    let authority_in = |path: std::path::PathBuf| ClientOptions {
        ca_file: Some(path),
        ..ClientOptions::default()
    };
    for (options, file, wrong) in [
        (
            with(&certificate_file, &marked),
            "marked.key",
            "no private key",
        ),
        (
            with(&certificate_file, &other_key),
            "other.key",
            "does not belong",
        ),
        (
            with(&certificate_file, &large_key),
            "large.key",
            "is larger than",
        ),
        (with(&key_file, &key_file), "node.key", "no certificate"),
        (
            authority_in(folder.file("none.pem")),
            "none.pem",
            "is not there",
        ),
        (authority_in(marked.clone()), "marked.key", "no certificate"),
        (authority_in(large), "large.pem", "is larger than"),
        (
            authority_in(folder.path().to_owned()),
            "keel-tls-files",
            "regular file",
        ),
    ] {
        let (ours, _theirs) = duplex(4096);
        let shown = format!("{options:?}");
        let why = hello(&client(options), ours, ADDRESS).await.unwrap_err();
        let (thing, rest) = why.split_once(": ").unwrap();
        assert!(thing.contains(file) && rest.contains(wrong), "{why}");
        assert!(rest.contains("; ") && !why.contains('\n'), "{why}");
        assert!(!why.contains("hunter2") && !shown.contains("hunter2"));
    }
    // Once it is there, it is taken.
    let client = client(authority_in(folder.file("later.pem")));
    let server = authority.issue(&[HOST], Purpose::Server);
    let peer = Peer::default();
    assert!(hello(&client, peer.serve(&server), ADDRESS).await.is_err());
    folder.write("later.pem", &authority.certificate);
    assert_eq!(hello(&client, peer.serve(&server), ADDRESS).await, Ok(()));
}
