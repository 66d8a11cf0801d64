//! A server that takes line protocol over HTTP, counts the lines and confirms them: the upstream of this bench.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The response to each request.
pub(crate) const ANSWER: &[u8] = b"HTTP/1.1 204 No Content\r\n\r\n";

/// Maximum size of a body, in bytes; larger than the limit of any sender here.
const BODY_BYTES_MAX: usize = 16 << 20;

/// The server; it runs until the process ends.
pub(crate) struct Sink {
    address: SocketAddr,
    seen: Arc<Seen>,
}

/// What has arrived.
#[derive(Default)]
struct Seen {
    lines: AtomicU64,
    /// Bytes of all bodies.
    bytes: AtomicU64,
    /// How often each numbered reading has arrived, if readings are numbered.
    numbered: Vec<AtomicU64>,
    others: AtomicU64,
}

impl Sink {
    /// Starts a server that counts lines.
    pub(crate) fn start() -> Result<Self, String> {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self::listen(any, Seen::default())
    }

    /// Starts a server that also tracks which of `count` numbered readings arrive: those with keys below `hall/`, whose
    /// value is their number.
    pub(crate) fn numbered(address: SocketAddr, count: u64) -> Result<Self, String> {
        // Two bits per reading: "once" and "again".
        let words = (count as usize).div_ceil(32);
        let seen = Seen {
            numbered: (0..words).map(|_| AtomicU64::new(0)).collect(),
            ..Seen::default()
        };
        Self::listen(address, seen)
    }

    fn listen(address: SocketAddr, seen: Seen) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("upstream: {error}");
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let seen = Arc::new(seen);
        let theirs = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let seen = Arc::clone(&theirs);
                // If a connection fails, the sender must make a new one.
                std::thread::spawn(move || serve(stream, &seen).ok());
            }
        });
        Ok(Self { address, seen })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The number of lines so far.
    pub(crate) fn lines(&self) -> u64 {
        self.seen.lines.load(Ordering::SeqCst)
    }

    /// The number of bytes in all bodies so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.seen.bytes.load(Ordering::SeqCst)
    }

    /// The number of lines with other keys than the numbered ones.
    pub(crate) fn others(&self) -> u64 {
        self.seen.others.load(Ordering::SeqCst)
    }

    /// Returns how many numbered readings have arrived, and how many of them more than once.
    pub(crate) fn once_and_again(&self) -> (u64, u64) {
        let words = self
            .seen
            .numbered
            .iter()
            .map(|word| word.load(Ordering::SeqCst));
        words.fold((0, 0), |(once, again), word| {
            let count = |bits: u64| u64::from(bits.count_ones());
            (once + count(word & ONCE), again + count(word & !ONCE))
        })
    }
}

/// The lower bit of each pair.
const ONCE: u64 = 0x5555_5555_5555_5555;

fn serve(mut stream: TcpStream, seen: &Seen) -> std::io::Result<()> {
    let mut reader = BufReader::with_capacity(64 << 10, stream.try_clone()?);
    let (mut line, mut body) = (String::new(), Vec::new());
    loop {
        let mut length: usize = 0;
        loop {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if line == "\r\n" {
                break;
            }
            let lower = line.to_ascii_lowercase();
            if let Some(value) = lower.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        body.resize(length.min(BODY_BYTES_MAX), 0);
        reader.read_exact(&mut body)?;
        take(&body, seen);
        stream.write_all(ANSWER)?;
    }
}

fn take(body: &[u8], seen: &Seen) {
    let mut lines = 0;
    if seen.numbered.is_empty() {
        lines = body.iter().filter(|byte| **byte == b'\n').count() as u64;
    } else {
        for line in body
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
        {
            lines += 1;
            match number(line).filter(|number| *number < seen.numbered.len() as u64 * 32) {
                Some(number) => {
                    let (word, place) = ((number / 32) as usize, number % 32 * 2);
                    let before = seen.numbered[word].fetch_or(1 << place, Ordering::SeqCst);
                    if before >> place & 1 == 1 {
                        seen.numbered[word].fetch_or(2 << place, Ordering::SeqCst);
                    }
                }
                None => {
                    seen.others.fetch_add(1, Ordering::SeqCst);
                }
            }
        }
    }
    seen.bytes.fetch_add(body.len() as u64, Ordering::SeqCst);
    seen.lines.fetch_add(lines, Ordering::SeqCst);
}

/// Parses the number in `keel,key=hall/17/number value=4711 1767225600000`.
fn number(line: &[u8]) -> Option<u64> {
    let line = std::str::from_utf8(line).ok()?;
    let rest = line.strip_prefix("keel,key=hall/")?;
    let value = rest.split(' ').nth(1)?.strip_prefix("value=")?;
    let value: f64 = value.parse().ok()?;
    (value >= 0.0 && value.fract() == 0.0).then_some(value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_are_told_apart_by_their_number() {
        let count = 40;
        let seen = Seen {
            numbered: (0..2).map(|_| AtomicU64::new(0)).collect(),
            ..Seen::default()
        };
        let mut body = String::new();
        for number in (0..count).chain([39, 7]) {
            body.push_str(&format!(
                "keel,key=hall/{number}/number value={number} 17\n"
            ));
        }
        body.push_str("keel,key=probe value=3 17\nkeel,key=hall/1/number value=0.5 17\n");
        take(body.as_bytes(), &seen);
        let sink = Sink {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            seen: Arc::new(seen),
        };
        assert_eq!(sink.once_and_again(), (40, 2));
        assert_eq!((sink.lines(), sink.others()), (44, 2));
        assert_eq!(sink.bytes(), body.len() as u64);
    }
}
