//! The device's end of a connection against a tokio server: both directions at once, ended, slow, and with wrong
//! certificates.

use crate::link_support;
use crate::link_support::{Identities, Seen, Server, settings};
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use stream::link::{Link, LinkError, connect};
use stream::tls::{Authority, device_config, server_config};

/// The number of bytes in each direction.
const BYTES: usize = 50 << 20;

/// Returns a byte that depends on its position, so that lost or swapped bytes are detected.
fn pattern(at: usize) -> u8 {
    (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]
}

/// Sends `bytes` bytes of the pattern in pieces of odd lengths.
fn send(writer: &mut impl Write, bytes: usize) {
    let piece_of = |at: usize, length: usize| (at..at + length).map(pattern).collect::<Vec<_>>();
    let mut at = 0;
    while at < bytes {
        let length = (1 + at % 150_001).min(bytes - at);
        writer.write_all(&piece_of(at, length)).unwrap();
        at += length;
    }
}

/// Receives `bytes` bytes, which must match the pattern.
fn take(reader: &mut impl Read, bytes: usize) {
    let mut buffer = vec![0; 70_001];
    let mut at = 0;
    while at < bytes {
        let room = buffer.len().min(bytes - at);
        let count = reader.read(&mut buffer[..room]).unwrap();
        assert!(count > 0, "the link ends after {at} bytes");
        for byte in &buffer[..count] {
            assert_eq!(*byte, pattern(at), "byte {at}");
            at += 1;
        }
    }
}

fn both_ways(link: Link, seen: impl FnOnce() -> Seen) {
    let Link {
        mut reader,
        mut writer,
        control,
    } = link;
    let sender = thread::spawn(move || {
        send(&mut writer, BYTES);
        writer
    });
    take(&mut reader, BYTES);
    let _writer = sender.join().unwrap();
    let seen = seen();
    assert!(seen.is_whole, "the server got other bytes");
    assert_eq!(control.sent_bytes(), seen.received_bytes);
    assert_eq!(control.received_bytes(), seen.sent_bytes);
    assert!(control.sent_bytes() >= BYTES as u64);
}

#[test]
fn fifty_megabytes_go_both_ways_at_once_plain() {
    let server = Server::echo_pattern(None, BYTES, pattern);
    let link = connect(&settings(&server.address(), None)).unwrap();
    both_ways(link, || server.seen());
}

#[test]
fn fifty_megabytes_go_both_ways_at_once_with_tls() {
    let identities = Identities::new();
    let server = Server::echo_pattern(Some(identities.server()), BYTES, pattern);
    let link = connect(&settings(&server.address(), Some(identities.device()))).unwrap();
    both_ways(link, || server.seen());
}

/// Both directions are full until the server reads: a reader that waits for the writer would wait forever.
#[test]
fn received_bytes_do_not_wait_for_a_blocked_writer() {
    const MUCH: usize = 16 << 20;
    let identities = Identities::new();
    for tls in [false, true] {
        let server = Server::send_then_receive(tls.then(|| identities.server()), MUCH, pattern);
        let settings = settings(&server.address(), tls.then(|| identities.device()));
        let link = connect(&settings).unwrap();
        let (mut reader, mut writer) = (link.reader, link.writer);
        let sender = thread::spawn(move || {
            send(&mut writer, MUCH);
            writer
        });
        take(&mut reader, MUCH);
        let _writer = sender.join().unwrap();
        assert!(server.seen().is_whole);
    }
}

#[test]
fn shutdown_wakes_reader_and_writer() {
    let identities = Identities::new();
    for tls in [false, true] {
        let server = Server::silent(tls.then(|| identities.server()));
        let settings = settings(&server.address(), tls.then(|| identities.device()));
        let link = connect(&settings).unwrap();
        let (mut reader, mut writer, control) = (link.reader, link.writer, link.control);
        let reading = thread::spawn(move || reader.read(&mut [0; 10]));
        let writing = thread::spawn(move || {
            // More than the buffers of the sockets hold: it waits until it is woken.
            let piece = vec![7; 1 << 20];
            loop {
                writer.write_all(&piece)?;
            }
        });
        while control.sent_bytes() < 1 << 20 {
            thread::yield_now();
        }
        assert!(!control.is_ended());
        control.shutdown();
        assert_eq!(reading.join().unwrap().unwrap(), 0);
        let error: io::Result<()> = writing.join().unwrap();
        assert!(error.is_err());
        assert!(control.is_ended());
    }
}

#[test]
fn a_time_limit_of_reading_leaves_the_link_as_it_was() {
    let identities = Identities::new();
    for tls in [false, true] {
        let server = Server::echo(tls.then(|| identities.server()));
        let mut settings = settings(&server.address(), tls.then(|| identities.device()));
        settings.read_max = Some(Duration::from_millis(20));
        let mut link = connect(&settings).unwrap();
        for _ in 0..3 {
            let error = link.reader.read(&mut [0; 10]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        }
        link.writer.write_all(b"hello").unwrap();
        let (mut got, mut buffer) = (Vec::new(), [0; 10]);
        while got.len() < 5 {
            match link.reader.read(&mut buffer) {
                Ok(count) => got.extend_from_slice(&buffer[..count]),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::TimedOut),
            }
        }
        assert_eq!(got, b"hello");
    }
}

#[test]
fn a_record_that_comes_byte_by_byte_does_not_put_the_time_limit_off() {
    let identities = Identities::new();
    // Sending all bytes takes 10 s.
    let server = Server::send_byte_by_byte(Some(identities.server()), 2000);
    let mut settings = settings(&server.address(), Some(identities.device()));
    settings.read_max = Some(Duration::from_millis(50));
    let mut link = connect(&settings).unwrap();
    for _ in 0..3 {
        let error = link.reader.read(&mut [0; 10]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}

#[test]
fn a_writer_without_a_reader_gives_up_after_its_time_limit() {
    let identities = Identities::new();
    for tls in [false, true] {
        let server = Server::silent(tls.then(|| identities.server()));
        let mut settings = settings(&server.address(), tls.then(|| identities.device()));
        settings.write_max = Some(Duration::from_millis(50));
        let mut link = connect(&settings).unwrap();
        let piece = vec![7; 1 << 20];
        let error = loop {
            if let Err(error) = link.writer.write_all(&piece) {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        // A part of a record may have been sent, so the link is unusable.
        assert!(link.control.is_ended());
    }
}

#[test]
fn a_server_that_says_nothing_is_given_up_at_the_deadline() {
    let identities = Identities::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut settings = settings(&address, Some(identities.device()));
    settings.connect_max = Duration::from_millis(100);
    match connect(&settings).err().unwrap() {
        LinkError::Socket { source, .. } => assert_eq!(source.kind(), io::ErrorKind::TimedOut),
        other => panic!("{other}"),
    }
}

#[test]
fn only_this_machine_is_reached_without_tls() {
    // A documentation address (RFC 5737): nothing is sent there.
    let error = connect(&settings("192.0.2.1:9", None)).err().unwrap();
    assert!(matches!(error, LinkError::NotLoopback(_)), "{error}");
    let error = connect(&settings("no-port", None)).err().unwrap();
    assert!(matches!(error, LinkError::Address { .. }), "{error}");
}

/// Returns whether a device and a server can exchange a byte.
fn do_they_talk(
    server: &Arc<rustls::ServerConfig>,
    device: link_support::DeviceTls,
) -> Result<(), String> {
    let server = Server::echo(Some(Arc::clone(server)));
    let mut settings = settings(&server.address(), Some(device));
    settings.read_max = Some(Duration::from_secs(10));
    let mut link = connect(&settings).map_err(|error| error.to_string())?;
    let written = link.writer.write_all(b"x");
    match link.reader.read(&mut [0; 4]) {
        Ok(1) => Ok(()),
        Ok(count) => Err(format!("{count} bytes, {written:?}")),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn only_certificates_of_one_authority_connect() {
    let identities = Identities::new();
    let folder = &identities.folder;
    let (server, device) = (identities.server(), identities.device());
    assert_eq!(do_they_talk(&server, device.clone()), Ok(()));

    // Another authority with the same name.
    let other = Authority::new(&folder.join("other")).unwrap();
    other
        .issue_device("device", "default", &folder.join("other-device"))
        .unwrap();
    let names = ["127.0.0.1".to_owned()];
    other
        .issue_server(&names, &folder.join("other-server"))
        .unwrap();
    let others_device = device_config(&folder.join("other-device"), "127.0.0.1").unwrap();
    let others_server = server_config(&folder.join("other-server")).unwrap();
    let error = do_they_talk(&server, others_device.clone()).unwrap_err();
    assert!(
        error.contains("UnknownIssuer") || error.contains("BadSignature"),
        "{error}"
    );
    let error = do_they_talk(&others_server, device.clone()).unwrap_err();
    assert!(
        error.contains("UnknownIssuer") || error.contains("BadSignature"),
        "{error}"
    );

    // A device that trusts the other authority, and shows its own certificate.
    std::fs::copy(
        folder.join("authority/ca.pem"),
        folder.join("other-device/ca.pem"),
    )
    .unwrap();
    let stranger = device_config(&folder.join("other-device"), "127.0.0.1").unwrap();
    let error = do_they_talk(&server, stranger).unwrap_err();
    assert!(error.contains("alert"), "{error}");

    // A device that acts as a server.
    let pretender = server_config(&folder.join("device")).unwrap();
    assert!(do_they_talk(&pretender, device.clone()).is_err());

    // A server that is reached by a name that is not in its certificate.
    let elsewhere = (device.0.clone(), "localhost.invalid".try_into().unwrap());
    let error = do_they_talk(&server, elsewhere).unwrap_err();
    assert!(
        error.contains("NotValidForName") || error.contains("not valid for name"),
        "{error}"
    );

    // A device without a certificate.
    let mut roots = rustls::RootCertStore::empty();
    let pem = std::fs::read(folder.join("authority/ca.pem")).unwrap();
    use rustls::pki_types::pem::PemObject;
    let authority = rustls::pki_types::CertificateDer::from_pem_slice(&pem).unwrap();
    roots.add(authority).unwrap();
    let nobody = rustls::ClientConfig::builder_with_provider(Arc::new(
        rustls::crypto::ring::default_provider(),
    ))
    .with_protocol_versions(&[&rustls::version::TLS13])
    .unwrap()
    .with_root_certificates(roots)
    .with_no_client_auth();
    assert!(do_they_talk(&server, (Arc::new(nobody), device.1.clone())).is_err());
}
