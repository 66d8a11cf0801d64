//! A hand-written HTTP client, so that it can also violate the protocol.

use super::node::Node;
use super::wait_until;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// The configuration of a small node with an HTTP server, at a port that the system chooses.
pub const HTTP: &str = "
[store]
create_mebibytes = 16
[line]
tcp_listen = \"\"
unix_socket = \"line.sock\"
[http]
listen = \"127.0.0.1:0\"
";

/// Returns the address of a node's HTTP server, from its log.
pub fn address(node: &Node) -> String {
    let mut found = None;
    wait_until("the address of the HTTP side", || {
        let log = node.log();
        found = log
            .split("serving http://")
            .nth(1)
            .and_then(|rest| rest.split_whitespace().next())
            .map(str::to_owned);
        found.is_some()
    });
    found.unwrap()
}

/// An HTTP response.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// A connection.
pub fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    // Only a safeguard: without a timeout a failing test would never end.
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    stream
}

/// Sends a GET request with further header lines.
pub fn get_with(address: &str, path: &str, headers: &str) -> Answer {
    let mut stream = connect(address);
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n{headers}connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    answer(&mut stream)
}

pub fn get(address: &str, path: &str) -> Answer {
    get_with(address, path, "")
}

/// Sends a body with POST, with further header lines.
pub fn post(address: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
    let mut stream = connect(address);
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {}\r\n{headers}connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    // A node that refuses the head may have ended the connection already.
    stream.write_all(body).ok();
    answer(&mut stream)
}

/// The same, for a request that must succeed; returns the JSON of the response.
pub fn json(address: &str, path: &str) -> Value {
    let answer = get(address, path);
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer.json()
}

/// Returns all bytes until the end of the connection.
pub fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 65536];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return bytes,
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return bytes,
            Err(error) => panic!("no end: {error}"),
        }
    }
}

/// Returns the response on a connection that ends with it.
pub fn answer(stream: &mut TcpStream) -> Answer {
    let bytes = rest(stream);
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    let Some(end) = end else {
        panic!("no head: {:?}", String::from_utf8_lossy(&bytes));
    };
    let head = std::str::from_utf8(&bytes[..end]).unwrap();
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap();
    let headers: BTreeMap<String, String> = lines
        .map(|line| {
            let (name, value) = line.split_once(':').unwrap();
            (name.to_ascii_lowercase(), value.trim().to_owned())
        })
        .collect();
    let body = &bytes[end + 4..];
    let body = if headers
        .get("transfer-encoding")
        .is_some_and(|how| how == "chunked")
    {
        unchunked(body)
    } else {
        body.to_vec()
    };
    Answer {
        status: status.parse().unwrap(),
        headers,
        body,
    }
}

fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|two| two == b"\r\n").unwrap();
        let length = std::str::from_utf8(&rest[..end]).unwrap();
        let length = usize::from_str_radix(length, 16).unwrap();
        if length == 0 {
            return body;
        }
        body.extend_from_slice(&rest[end + 2..end + 2 + length]);
        rest = &rest[end + 2 + length + 2..];
    }
}

/// A stream of events, read as they arrive.
pub struct Events {
    stream: TcpStream,
    raw: Vec<u8>,
    text: String,
    has_head: bool,
}

impl Events {
    pub fn begin(address: &str, path: &str, headers: &str) -> Self {
        Self::on(connect(address), address, path, headers)
    }

    pub fn on(mut stream: TcpStream, address: &str, path: &str, headers: &str) -> Self {
        let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        Self {
            stream,
            raw: Vec::new(),
            text: String::new(),
            has_head: false,
        }
    }

    /// Returns the next event, its id and its data; `None` at the end of the stream.
    pub fn next(&mut self) -> Option<(String, String, Value)> {
        loop {
            if let Some(end) = self.text.find("\n\n") {
                let block: String = self.text.drain(..end + 2).collect();
                let field = |name: &str| {
                    let line = block.lines().find_map(|line| line.strip_prefix(name));
                    line.unwrap_or_default().to_owned()
                };
                let data = field("data: ");
                if data.is_empty() {
                    continue;
                }
                let data = serde_json::from_str(&data).unwrap();
                return Some((field("event: "), field("id: "), data));
            }
            let mut buffer = [0; 65536];
            let count = match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no event: {error}"),
            };
            self.raw.extend_from_slice(&buffer[..count]);
            self.unchunk();
        }
    }

    fn unchunk(&mut self) {
        if !self.has_head {
            let Some(end) = self.raw.windows(4).position(|four| four == b"\r\n\r\n") else {
                return;
            };
            let head: Vec<u8> = self.raw.drain(..end + 4).collect();
            let head = String::from_utf8(head).unwrap();
            assert!(head.starts_with("HTTP/1.1 200"), "{head}");
            assert!(head.contains("text/event-stream"), "{head}");
            self.has_head = true;
        }
        while let Some(end) = self.raw.windows(2).position(|two| two == b"\r\n") {
            let length = std::str::from_utf8(&self.raw[..end]).unwrap();
            let length = usize::from_str_radix(length, 16).unwrap();
            if self.raw.len() < end + 2 + length + 2 {
                return;
            }
            let piece = &self.raw[end + 2..end + 2 + length];
            self.text.push_str(std::str::from_utf8(piece).unwrap());
            self.raw.drain(..end + 2 + length + 2);
        }
    }

    /// Reads until an event satisfies `is_it`.
    pub fn until(&mut self, what: &str, mut is_it: impl FnMut(&str, &Value) -> bool) -> Value {
        loop {
            let Some((event, _, data)) = self.next() else {
                panic!("the stream ended before {what}");
            };
            if is_it(&event, &data) {
                return data;
            }
        }
    }
}
