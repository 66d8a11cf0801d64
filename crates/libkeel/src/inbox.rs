//! A queue to a thread that waits for sockets: adding to it wakes the thread.

use crate::error::Error;
use base::error::Code;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};

/// The end that threads add to.
pub(crate) struct Inbox<T> {
    queue: mpsc::Sender<T>,
    bell: Arc<UnixStream>,
}

/// The end of the thread that takes what is added.
pub(crate) struct Outbox<T> {
    queue: mpsc::Receiver<T>,
    bell: UnixStream,
}

/// Creates a queue.
pub(crate) fn pair<T>() -> Result<(Inbox<T>, Outbox<T>), Error> {
    let (near, far) = UnixStream::pair().map_err(|error| system("a pair of sockets", &error))?;
    for end in [&near, &far] {
        end.set_nonblocking(true)
            .map_err(|error| system("a socket", &error))?;
    }
    let (to, from) = mpsc::channel();
    let inbox = Inbox {
        queue: to,
        bell: Arc::new(near),
    };
    let outbox = Outbox {
        queue: from,
        bell: far,
    };
    Ok((inbox, outbox))
}

/// Returns the error for a descriptor or thread that the system does not give.
pub(crate) fn system(what: &str, error: &std::io::Error) -> Error {
    let remedy = "the process has too many descriptors or threads: close some";
    Error::new(Code::from_io(error), what, error, remedy)
}

// A derived implementation would demand that `T` can be cloned.
impl<T> Clone for Inbox<T> {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue.clone(),
            bell: Arc::clone(&self.bell),
        }
    }
}

impl<T> Inbox<T> {
    /// Adds to the queue.
    pub(crate) fn add(&self, one: T) -> Result<(), Error> {
        let gone = |_| {
            let wrong = "the thread that takes answers has ended";
            Error::new(Code::Gone, "node", wrong, "attach again")
        };
        self.queue.send(one).map_err(gone)?;
        self.ring();
        Ok(())
    }

    /// Wakes the thread, so that it updates what it waits for.
    pub(crate) fn ring(&self) {
        // If the bell's buffer is full, the thread is being woken already.
        (&*self.bell).write_all(&[1]).ok();
    }
}

impl<T> Outbox<T> {
    /// Returns what was added since the last call.
    pub(crate) fn added(&self) -> impl Iterator<Item = T> + '_ {
        self.queue.try_iter()
    }

    /// Returns the descriptor that can be read once the thread is woken.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    /// Empties the bell; `false` once all inboxes are gone.
    pub(crate) fn has_rung(&mut self) -> bool {
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
