//! A connection that can be disturbed: cut, stalled, closed or corrupted in the middle.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The disturbance of the bytes from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// No bytes pass in either direction, without notice to the ends.
    Stall,
    /// Existing and new connections are closed.
    Cut,
    /// The byte with this number, counted from when this was set, is changed.
    Flip(u64),
    /// Connections are closed after this number of further bytes.
    CloseAfter(u64),
    /// No bytes pass after this number of further bytes.
    StallAfter(u64),
}

struct Shared {
    fault: Mutex<Fault>,
    passed: AtomicU64,
    is_over: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

/// Forwards connections to a server until it is dropped.
pub struct Proxy {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

impl Proxy {
    pub fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            fault: Mutex::new(Fault::None),
            passed: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            open: Mutex::default(),
        });
        let theirs = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if theirs.is_over.load(Ordering::SeqCst) {
                    return;
                }
                if *theirs.fault.lock().unwrap() == Fault::Cut {
                    continue;
                }
                if let Ok(server) = TcpStream::connect(server) {
                    pass(&theirs, &client, &server);
                }
            }
        });
        Self { address, shared }
    }

    /// The number of bytes from the server since the disturbance was set.
    pub fn passed(&self) -> u64 {
        self.shared.passed.load(Ordering::SeqCst)
    }

    pub fn set(&self, fault: Fault) {
        let mut current = self.shared.fault.lock().unwrap();
        *current = fault;
        self.shared.passed.store(0, Ordering::SeqCst);
        drop(current);
        if fault == Fault::Cut {
            self.close_all();
        }
    }

    fn close_all(&self) {
        for stream in self.shared.open.lock().unwrap().drain(..) {
            stream.shutdown(Shutdown::Both).ok();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        self.close_all();
        TcpStream::connect(self.address).ok();
    }
}

fn pass(shared: &Arc<Shared>, client: &TcpStream, server: &TcpStream) {
    let mut open = shared.open.lock().unwrap();
    for stream in [client, server] {
        stream.set_nodelay(true).ok();
        open.push(stream.try_clone().unwrap());
    }
    drop(open);
    for (from, to, is_answer) in [(client, server, false), (server, client, true)] {
        let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        let shared = Arc::clone(shared);
        std::thread::spawn(move || {
            copy(&shared, from, to, is_answer);
        });
    }
}

fn copy(shared: &Shared, mut from: TcpStream, mut to: TcpStream, is_answer: bool) {
    let mut buffer = [0; 4096];
    while let Ok(count) = from.read(&mut buffer) {
        if count == 0 {
            break;
        }
        let mut closes = false;
        loop {
            match *shared.fault.lock().unwrap() {
                Fault::Stall if !shared.is_over.load(Ordering::SeqCst) => {}
                Fault::StallAfter(after)
                    if shared.passed.load(Ordering::SeqCst) >= after
                        && !shared.is_over.load(Ordering::SeqCst) => {}
                fault => {
                    if is_answer {
                        closes = spoil(shared, fault, &mut buffer[..count]);
                    }
                    break;
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        if closes || to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    from.shutdown(Shutdown::Both).ok();
    to.shutdown(Shutdown::Both).ok();
}

/// Applies the disturbance to bytes. Returns whether the connection must be closed.
fn spoil(shared: &Shared, fault: Fault, bytes: &mut [u8]) -> bool {
    let count = bytes.len() as u64;
    let before = shared.passed.fetch_add(count, Ordering::SeqCst);
    match fault {
        Fault::Flip(at) if (before..before + count).contains(&at) => {
            bytes[(at - before) as usize] ^= 0x20;
            false
        }
        Fault::CloseAfter(at) => before + count > at,
        _ => false,
    }
}
