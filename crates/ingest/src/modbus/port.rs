//! Serial ports.

use std::fs::File;
use std::io::{self, Read};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use rustix::termios::{
    ControlModes, InputModes, OptionalActions, QueueSelector, tcflush, tcgetattr, tcsetattr,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::unix::pipe::{Receiver, Sender};

use super::options::{Parity, Serial};

/// Size of one read of bytes that are thrown away.
const DISCARD_BYTES: usize = 512;

/// Reads of one call of [`Port::discard`], at most: a device that never stops to send must not hold up the others.
const DISCARD_READS_MAX: usize = 8;

/// An open port. Clones are the same port.
#[derive(Clone, Debug)]
pub(super) struct Port(Arc<Ends>);

/// tokio has no type for a terminal; the ends of a pipe do with its file what is needed. The locks are never waited
/// for: one request is under way at a time.
#[derive(Debug)]
struct Ends {
    reads: Mutex<Receiver>,
    writes: Mutex<Sender>,
    /// The last of the three to be closed.
    tty: Tty,
}

#[derive(Debug)]
struct Tty(File);

impl Drop for Tty {
    fn drop(&mut self) {
        // Otherwise closing waits for bytes that a line without power never takes.
        let _ = tcflush(&self.0, QueueSelector::IOFlush);
    }
}

fn held<T>(end: &Mutex<T>) -> MutexGuard<'_, T> {
    end.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns how long a line must be silent between two messages: 3.5 characters of 11 bits. Above 19,200 bits per second
/// the standard says 1.75 ms.
pub(super) fn silence(baud: u32) -> Duration {
    let micros = 38_500_000 / u64::from(baud.max(1));
    Duration::from_micros(micros.max(1_750))
}

impl Port {
    /// Opens and sets up a port. Must be called on a runtime.
    ///
    /// # Errors
    /// What is wrong, as text.
    pub(super) fn open(options: &Serial) -> Result<Self, String> {
        let said = |what: &str, error: Errno| {
            let error = io::Error::from(error);
            format!("{what}: {}", base::error::io_text(&error))
        };
        // Without NONBLOCK, opening waits for a modem on some ports.
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = open(options.path.as_path(), flags, Mode::empty())
            .map_err(|error| said("the port cannot be opened", error))?;
        let mut settings = tcgetattr(&file).map_err(|error| match error {
            Errno::NOTTY => "it is no serial port".to_owned(),
            other => said("its settings cannot be read", other),
        })?;
        let lock = FlockOperation::NonBlockingLockExclusive;
        flock(&file, lock).map_err(|error| match error {
            Errno::WOULDBLOCK => "another program has the port".to_owned(),
            other => said("the port cannot be locked", other),
        })?;
        // Only now: its end throws away what is on its way, which would be that of the other program.
        let tty = Tty(File::from(file));
        settings.make_raw();
        // Neither of the two is part of that: characters that stop the sender are data here.
        settings
            .input_modes
            .remove(InputModes::IXOFF | InputModes::INPCK);
        let modes = &mut settings.control_modes;
        modes.remove(
            ControlModes::PARENB
                | ControlModes::PARODD
                | ControlModes::CSTOPB
                | ControlModes::CSIZE
                | ControlModes::CRTSCTS,
        );
        modes.insert(ControlModes::CS8 | ControlModes::CREAD | ControlModes::CLOCAL);
        match options.parity {
            Parity::None => {}
            Parity::Even => modes.insert(ControlModes::PARENB),
            Parity::Odd => modes.insert(ControlModes::PARENB | ControlModes::PARODD),
        }
        if options.stop_bits == 2 {
            modes.insert(ControlModes::CSTOPB);
        }
        settings
            .set_speed(options.baud)
            .and_then(|()| tcsetattr(&tty.0, OptionalActions::Now, &settings))
            .map_err(|error| said("the port does not take these settings", error))?;
        let ends = |tty: &File| -> io::Result<_> {
            let reads = Receiver::from_file_unchecked(tty.try_clone()?)?;
            let writes = Sender::from_file_unchecked(tty.try_clone()?)?;
            Ok((Mutex::new(reads), Mutex::new(writes)))
        };
        let (reads, writes) = ends(&tty.0).map_err(|error| {
            let error = base::error::io_text(&error);
            format!("the port cannot be waited for: {error}")
        })?;
        Ok(Self(Arc::new(Ends { reads, writes, tty })))
    }

    /// Throws away the bytes that have come. Returns how many.
    ///
    /// # Errors
    /// The port has failed.
    pub(super) fn discard(&self) -> io::Result<usize> {
        let mut space = [0; DISCARD_BYTES];
        let mut total = 0;
        for _ in 0..DISCARD_READS_MAX {
            match (&self.0.tty.0).read(&mut space) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => total += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(total)
    }
}

impl AsyncRead for Port {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *held(&self.0.reads)).poll_read(context, buffer)
    }
}

impl AsyncWrite for Port {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *held(&self.0.writes)).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_silent_for_three_and_a_half_characters() {
        let micros = |baud| silence(baud).as_micros();
        assert_eq!(micros(9_600), 4_010);
        assert_eq!(micros(19_200), 2_005);
        assert_eq!(micros(115_200), 1_750);
        assert_eq!(micros(0), 38_500_000);
    }

    #[test]
    fn paths_that_are_no_port_are_refused() {
        let port = |path: &str| Serial {
            path: path.into(),
            baud: 9_600,
            parity: Parity::None,
            stop_bits: 1,
        };
        let refused = |path| Port::open(&port(path)).unwrap_err();
        assert_eq!(refused("/dev/null"), "it is no serial port");
        let text = refused("/dev/there-is-no-such-port");
        assert!(
            text.starts_with("the port cannot be opened: No such file"),
            "{text}"
        );
    }
}
