//! A broker of which a test writes each packet.

use super::until;
use ingest::mqtt::Version;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

pub const BOTH: [Version; 2] = [Version::V311, Version::V5];

/// Listens on the loopback interface.
pub struct Fake {
    listener: TcpListener,
    version: Version,
}

impl Fake {
    pub fn new(version: Version) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Self { listener, version }
    }

    pub fn port(&self) -> u16 {
        self.listener.local_addr().unwrap().port()
    }

    /// Returns the next connection, after its CONNECT has been read.
    pub fn accept(&self) -> Peer {
        let mut accepted = None;
        until("the session connects", || {
            accepted = self.listener.accept().ok();
            accepted.is_some()
        });
        let (stream, _) = accepted.unwrap();
        stream.set_nonblocking(false).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        stream.set_nodelay(true).unwrap();
        let mut peer = Peer {
            stream,
            version: self.version,
        };
        assert_eq!(peer.packet().unwrap().0, 0x10);
        peer
    }

    /// Returns the next connection, accepted.
    pub fn welcome(&self, session_present: bool) -> Peer {
        let mut peer = self.accept();
        match self.version {
            Version::V311 => peer.send(&[0x20, 2, u8::from(session_present), 0]),
            Version::V5 => peer.send(&[0x20, 3, u8::from(session_present), 0, 0]),
        }
        peer
    }

    /// Returns the next connection, accepted without a session, its one subscription granted.
    pub fn subscribed(&self) -> Peer {
        let mut peer = self.welcome(false);
        peer.grant(&[1]);
        peer
    }
}

/// Its end of one connection of the session.
pub struct Peer {
    pub stream: TcpStream,
    version: Version,
}

impl Peer {
    pub fn send(&mut self, bytes: &[u8]) {
        // The session may have closed the connection already, which each test detects in its own way.
        let _ = self.stream.write_all(bytes);
    }

    /// Returns the next packet: its first byte and its body; `None` at the end.
    pub fn packet(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut byte = [0];
        self.stream.read_exact(&mut byte).ok()?;
        let first = byte[0];
        let (mut length, mut shift) = (0, 0);
        loop {
            self.stream.read_exact(&mut byte).ok()?;
            length |= usize::from(byte[0] & 0x7f) << shift;
            shift += 7;
            if byte[0] & 0x80 == 0 {
                break;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).ok()?;
        Some((first, body))
    }

    /// Reads a SUBSCRIBE and answers it.
    pub fn grant(&mut self, codes: &[u8]) -> Vec<u8> {
        let (first, body) = self.packet().unwrap();
        assert_eq!(first, 0x82, "a SUBSCRIBE");
        let mut answer = vec![body[0], body[1]];
        if self.version == Version::V5 {
            answer.push(0);
        }
        answer.extend_from_slice(codes);
        let length = u8::try_from(answer.len()).unwrap();
        self.send(&[&[0x90, length][..], &answer].concat());
        body
    }

    /// Sends a message of MQTT 5 to the topic `a/b`, for the subscriptions with these names.
    pub fn publish_for(&mut self, id: u8, value: u8, names: &[&[u8]]) {
        let mut properties = Vec::new();
        for name in names {
            // A property of another kind before it.
            properties.extend_from_slice(&[0x26, 0, 1, b'n', 0, 0, 0x0b]);
            properties.extend_from_slice(name);
        }
        let mut body = vec![0, 3, b'a', b'/', b'b', 0, id];
        body.push(u8::try_from(properties.len()).unwrap());
        body.extend_from_slice(&properties);
        body.push(value);
        let length = u8::try_from(body.len()).unwrap();
        self.send(&[&[0x32, length][..], &body].concat());
    }

    pub fn publish(&self, first: u8, id: u16, payload: &[u8]) -> Vec<u8> {
        let mut body = vec![0, 1, b't'];
        if first & 6 != 0 {
            body.extend_from_slice(&id.to_be_bytes());
        }
        if self.version == Version::V5 {
            body.push(0);
        }
        body.extend_from_slice(payload);
        let length = u8::try_from(body.len()).unwrap();
        [&[first, length][..], &body].concat()
    }
}
