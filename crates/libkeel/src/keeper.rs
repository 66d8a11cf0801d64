//! The thread that keeps a client going: it takes the answers of all connections, and checks ten times a second whether
//! the node still serves its values. Threads that read and put never do that themselves.

use crate::error::Error;
use crate::node::Inner;
use crate::pipe::Receiver;
use base::clock::{Clock, SystemClock};
use base::error::Code;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak, mpsc};
use std::time::Duration;

/// Interval of the checks whether the node lives.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Queue of new connections for the keeper. When its last copy is dropped, the keeper ends.
#[derive(Clone)]
pub(crate) struct Inbox {
    receivers: mpsc::Sender<Receiver>,
    bell: Arc<UnixStream>,
}

/// The keeper's end of an inbox.
pub(crate) struct Outbox {
    receivers: mpsc::Receiver<Receiver>,
    bell: UnixStream,
}

pub(crate) fn inbox() -> Result<(Inbox, Outbox), Error> {
    let (near, far) = UnixStream::pair().map_err(|error| system("a pair of sockets", &error))?;
    for end in [&near, &far] {
        end.set_nonblocking(true)
            .map_err(|error| system("a socket", &error))?;
    }
    let (to, from) = mpsc::channel();
    let inbox = Inbox {
        receivers: to,
        bell: Arc::new(near),
    };
    let outbox = Outbox {
        receivers: from,
        bell: far,
    };
    Ok((inbox, outbox))
}

fn system(what: &str, error: &std::io::Error) -> Error {
    let remedy = "the process has too many descriptors or threads: close some";
    Error::new(Code::from_io(error), what, error, remedy)
}

impl Inbox {
    pub(crate) fn add(&self, receiver: Receiver) -> Result<(), Error> {
        let gone = |_| {
            let wrong = "the thread that takes answers has ended";
            Error::new(Code::Gone, "node", wrong, "attach again")
        };
        self.receivers.send(receiver).map_err(gone)?;
        self.ring();
        Ok(())
    }

    /// Wakes the keeper, so that it updates what it waits for.
    pub(crate) fn ring(&self) {
        // If the bell's buffer is full, the keeper is being woken already.
        (&*self.bell).write_all(&[1]).ok();
    }
}

impl Outbox {
    /// Starts the thread. It ends soon after the last copy of the inbox.
    pub(crate) fn start(self, inner: Weak<Inner>) -> Result<(), Error> {
        let thread = std::thread::Builder::new().name("keel-client".to_owned());
        // Signals are for the program's own threads. A new thread inherits the signal mask of its creator.
        let before = block_signals();
        let spawned = thread.spawn(move || self.run(&inner));
        restore_signals(&before);
        spawned
            .map(drop)
            .map_err(|error| system("a thread", &error))
    }

    fn run(mut self, inner: &Weak<Inner>) {
        let clock = SystemClock::new();
        let mut receivers: Vec<Receiver> = Vec::new();
        let mut polled = Vec::new();
        let interval_ns = LOOK_INTERVAL.as_nanos() as u64;
        let mut next_look_ns = clock.monotonic_ns();
        loop {
            receivers.extend(self.receivers.try_iter());
            let now_ns = clock.monotonic_ns();
            if now_ns >= next_look_ns {
                let Some(inner) = inner.upgrade() else { return };
                inner.look();
                next_look_ns = now_ns + interval_ns;
            }
            polled.clear();
            polled.push(libc::pollfd {
                fd: self.bell.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            });
            polled.extend(receivers.iter().map(Receiver::polled));
            let left_ms = next_look_ns.saturating_sub(now_ns).div_ceil(1_000_000);
            // SAFETY: the array outlives the call, and its length is given.
            let ready = unsafe {
                libc::poll(
                    polled.as_mut_ptr(),
                    polled.len() as libc::nfds_t,
                    i32::try_from(left_ms).unwrap_or(i32::MAX),
                )
            };
            if ready <= 0 {
                continue;
            }
            if polled[0].revents != 0 && !self.has_rung() {
                // Dropping the receivers reports an error to all that still wait.
                return;
            }
            let mut events = polled[1..].iter().map(|one| one.revents);
            receivers.retain_mut(|receiver| match events.next() {
                Some(0) | None => true,
                Some(events) => receiver.serve(events),
            });
        }
    }

    /// Empties the bell; `false` once all inboxes are gone.
    fn has_rung(&mut self) -> bool {
        let mut bytes = [0; 64];
        loop {
            match self.bell.read(&mut bytes) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
            }
        }
    }
}

fn block_signals() -> libc::sigset_t {
    // SAFETY: plain data, for which all zeros are a value, filled and passed to calls that keep nothing of it.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    }
}

fn restore_signals(before: &libc::sigset_t) {
    // SAFETY: a mask that this thread had, in a call that keeps nothing of it.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
}
