//! The upstream: a server on loopback that accepts line protocol by POST and counts lines. It implements only the part
//! of HTTP that one client needs.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The largest request body, in bytes.
const BODY_BYTES_MAX: usize = 16 << 20;

/// Idle timeout of a connection.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// What has arrived.
#[derive(Default)]
pub(super) struct Arrived {
    pub(super) lines: AtomicU64,
    /// The lines as received, each once.
    pub(super) distinct: Mutex<HashSet<Box<str>>>,
}

pub(super) struct Sink {
    pub(super) address: SocketAddr,
    pub(super) arrived: Arc<Arrived>,
    stop: Arc<AtomicBool>,
}

impl Sink {
    pub(super) fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let arrived = Arc::new(Arrived::default());
        let stop = Arc::new(AtomicBool::new(false));
        let (theirs, ends) = (Arc::clone(&arrived), Arc::clone(&stop));
        std::thread::Builder::new()
            .name("upstream".into())
            .spawn(move || {
                for stream in listener.incoming().map_while(Result::ok) {
                    if ends.load(Ordering::Relaxed) {
                        return;
                    }
                    let arrived = Arc::clone(&theirs);
                    let serve = move || drop(serve(stream, &arrived));
                    drop(
                        std::thread::Builder::new()
                            .name("upstream".into())
                            .spawn(serve),
                    );
                }
            })?;
        Ok(Self {
            address,
            arrived,
            stop,
        })
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The listener checks the flag only after a connection.
        drop(TcpStream::connect(self.address));
    }
}

fn serve(stream: TcpStream, arrived: &Arrived) -> std::io::Result<()> {
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    loop {
        let mut length = 0_usize;
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        while line.trim_end() != "" {
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().unwrap_or(usize::MAX);
            }
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
        }
        if length > BODY_BYTES_MAX {
            return Ok(());
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let body = String::from_utf8_lossy(&body);
        {
            let mut distinct = arrived
                .distinct
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            for one in body.lines().filter(|line| !line.is_empty()) {
                arrived.lines.fetch_add(1, Ordering::Relaxed);
                distinct.insert(one.into());
            }
        }
        // Answer only after the lines are recorded.
        reader
            .get_mut()
            .write_all(b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n")?;
    }
}
