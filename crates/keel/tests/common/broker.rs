//! A broker for one test, and a publisher that knows what the broker has acknowledged.

use super::{TempDir, signal, wait_until};
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpSocket;

const MOSQUITTO: &str = "/usr/sbin/mosquitto";

/// Returns a free port of the loopback interface.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// A mosquitto with its own directory; both are removed when this is dropped.
pub struct Broker {
    pub port: u16,
    child: Option<Child>,
    dir: TempDir,
    /// Bound to the port without listening. So the kernel gives the port to no other test while the broker is away.
    _held: TcpSocket,
}

impl Broker {
    /// Starts a broker. Returns `None`, and prints a line that says so, if mosquitto is not installed.
    pub fn start() -> Option<Self> {
        if !Path::new(MOSQUITTO).exists() {
            println!("skipped: mosquitto is not installed");
            return None;
        }
        let dir = TempDir::new();
        let held = TcpSocket::new_v4().unwrap();
        // The broker sets it, too: then both may have the port, as long as only one listens.
        held.set_reuseaddr(true).unwrap();
        held.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = held.local_addr().unwrap().port();
        let path = dir.path().display();
        // Neither the queue for a disconnected node nor the messages in flight to it are limited.
        let text = format!(
            "listener {port} 127.0.0.1\nallow_anonymous true\npersistence true\n\
             persistence_location {path}/\nmax_inflight_messages 0\nmax_queued_messages 0\n\
             log_dest none\nuser root\n"
        );
        std::fs::write(dir.file("mosquitto.conf"), text).unwrap();
        let mut broker = Self {
            port,
            child: None,
            dir,
            _held: held,
        };
        broker.begin();
        Some(broker)
    }

    /// Starts it at its port, with what it has saved.
    pub fn begin(&mut self) {
        assert!(self.child.is_none());
        let child = Command::new(MOSQUITTO)
            .arg("-c")
            .arg(self.dir.file("mosquitto.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.child = Some(child);
        wait_until("the broker", || {
            TcpStream::connect(("127.0.0.1", self.port)).is_ok()
        });
    }

    /// Ends it. With SIGTERM it saves its sessions and messages first. With SIGKILL it forgets what it has not saved.
    /// Then it sends again what waited for an acknowledgement when it saved last, acknowledged since or not.
    pub fn end(&mut self, number: libc::c_int) {
        let mut child = self.child.take().unwrap();
        signal(&child, number);
        child.wait().unwrap();
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// A client that publishes with QoS 1 (MQTT 3.1.1, section 3), at most a window ahead of the acknowledgements.
pub struct Publisher {
    stream: TcpStream,
    input: Vec<u8>,
    next_id: u16,
    /// Messages that the broker has acknowledged, and messages in flight.
    pub acknowledged: u64,
    pub in_flight: u64,
}

impl Publisher {
    pub fn connect(port: u16, client_id: &str) -> Self {
        // Only a safeguard: without a timeout a failing test would never end.
        Self::try_connect(port, client_id, Duration::from_secs(60)).unwrap()
    }

    /// The same, at a broker that may be away, with the longest wait for an answer.
    pub fn try_connect(port: u16, client_id: &str, within: Duration) -> io::Result<Self> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(within))?;
        stream.set_write_timeout(Some(within))?;
        let mut body = b"\x00\x04MQTT\x04\x02\x00\x00".to_vec();
        body.extend_from_slice(&(client_id.len() as u16).to_be_bytes());
        body.extend_from_slice(client_id.as_bytes());
        let mut packet = vec![0x10, u8::try_from(body.len()).unwrap()];
        packet.extend_from_slice(&body);
        stream.write_all(&packet)?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer)?;
        assert_eq!(answer, [0x20, 2, 0, 0], "CONNACK");
        Ok(Self {
            stream,
            input: Vec::new(),
            next_id: 1,
            acknowledged: 0,
            in_flight: 0,
        })
    }

    /// Publishes messages in one write.
    pub fn publish(&mut self, topic: &str, payloads: impl Iterator<Item = String>) {
        self.try_publish(topic, payloads).unwrap();
    }

    /// The same, on a connection that may be lost.
    pub fn try_publish(
        &mut self,
        topic: &str,
        payloads: impl Iterator<Item = String>,
    ) -> io::Result<()> {
        let mut packets = Vec::new();
        for payload in payloads {
            let length = 2 + topic.len() + 2 + payload.len();
            // Two bytes of length at most.
            assert!(length < 1 << 14);
            let (low, high) = ((length % 128) as u8, (length / 128) as u8);
            packets.push(0x32);
            match high {
                0 => packets.push(low),
                high => packets.extend_from_slice(&[low | 0x80, high]),
            }
            packets.extend_from_slice(&(topic.len() as u16).to_be_bytes());
            packets.extend_from_slice(topic.as_bytes());
            packets.extend_from_slice(&self.next_id.to_be_bytes());
            packets.extend_from_slice(payload.as_bytes());
            self.next_id = self.next_id.checked_add(1).unwrap_or(1);
            self.in_flight += 1;
        }
        self.stream.write_all(&packets)
    }

    /// Waits until at most `in_flight_max` messages are in flight.
    pub fn settle(&mut self, in_flight_max: u64) {
        self.try_settle(in_flight_max).unwrap();
    }

    /// The same, on a connection that may be lost.
    pub fn try_settle(&mut self, in_flight_max: u64) -> io::Result<()> {
        while self.in_flight > in_flight_max {
            let mut buffer = [0; 4096];
            let read = self.stream.read(&mut buffer)?;
            if read == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            self.input.extend_from_slice(&buffer[..read]);
            let whole = self.input.len() / 4;
            for packet in self.input.chunks_exact(4) {
                assert_eq!(packet[..2], [0x40, 2], "PUBACK");
            }
            self.acknowledged += whole as u64;
            self.in_flight -= whole as u64;
            self.input.drain(..4 * whole);
        }
        Ok(())
    }
}

/// A subscriber of all topics, and the messages that it received.
pub struct Subscriber {
    got: Arc<Mutex<Vec<(String, String)>>>,
}

impl Subscriber {
    /// MQTT 3.1.1, QoS 1: connects, subscribes to `#`, acknowledges.
    pub fn start(port: u16) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream
            .write_all(b"\x10\x0f\x00\x04MQTT\x04\x02\x00\x00\x00\x03sub")
            .unwrap();
        stream.write_all(b"\x82\x06\x00\x01\x00\x01#\x01").unwrap();
        let mut start = [0; 9];
        stream.read_exact(&mut start).unwrap();
        assert_eq!(start, *b"\x20\x02\x00\x00\x90\x03\x00\x01\x01");
        let got = Arc::new(Mutex::new(Vec::new()));
        let theirs = Arc::clone(&got);
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            loop {
                let mut first = [0];
                if reader.read_exact(&mut first).is_err() {
                    return;
                }
                let (mut length, mut shift) = (0usize, 0);
                loop {
                    let mut byte = [0];
                    reader.read_exact(&mut byte).unwrap();
                    length |= usize::from(byte[0] & 0x7f) << shift;
                    shift += 7;
                    if byte[0] & 0x80 == 0 {
                        break;
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                if first[0] >> 4 != 3 {
                    continue;
                }
                let topic_bytes = usize::from(u16::from_be_bytes([body[0], body[1]]));
                let topic = String::from_utf8(body[2..2 + topic_bytes].to_vec()).unwrap();
                let id = &body[2 + topic_bytes..4 + topic_bytes];
                let ack = [0x40, 2, id[0], id[1]];
                if stream.write_all(&ack).is_err() {
                    return;
                }
                let payload = String::from_utf8(body[4 + topic_bytes..].to_vec()).unwrap();
                theirs.lock().unwrap().push((topic, payload));
            }
        });
        Self { got }
    }

    pub fn all(&self) -> Vec<(String, String)> {
        self.got.lock().unwrap().clone()
    }
}
