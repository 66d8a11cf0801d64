//! TLS for a concurrent reader and writer.
//!
//! Records must be sent in the order in which they were made. So the writer holds `sending` from making them until the
//! last byte is sent. It holds the connection only while it makes them, and the reader needs only the connection.

use super::socket::Socket;
use crate::sync::locked;
use rustls::ClientConnection;
use std::io::{self, Read, Write};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

/// The size of the buffer for ciphertext, in bytes.
const INCOMING_BYTES: usize = 32 << 10;

/// The maximum plaintext encrypted in one step, in bytes. It limits how long the connection is locked.
const OUTGOING_BYTES: usize = 32 << 10;

/// A connection with TLS.
pub(super) struct Secure {
    connection: Mutex<ClientConnection>,
    /// Records that were made and not sent yet.
    sending: Mutex<Vec<u8>>,
}

/// Ciphertext that was read and not decrypted yet.
pub(super) struct Incoming {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Incoming {
    pub(super) fn new(is_secure: bool) -> Self {
        Self {
            buffer: vec![0; if is_secure { INCOMING_BYTES } else { 0 }].into(),
            start: 0,
            end: 0,
        }
    }
}

impl Secure {
    /// Wraps a connection whose handshake is complete.
    pub(super) fn new(connection: ClientConnection) -> Self {
        Self {
            connection: Mutex::new(connection),
            sending: Mutex::default(),
        }
    }

    fn connection(&self) -> MutexGuard<'_, ClientConnection> {
        locked(&self.connection)
    }

    pub(super) fn read(
        &self,
        socket: &Socket,
        incoming: &mut Incoming,
        into: &mut [u8],
    ) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        let begun = Instant::now();
        loop {
            let taken = self.take(incoming, into);
            if let Err(error) = &taken
                && error.kind() == io::ErrorKind::InvalidData
            {
                self.say_why(socket);
            }
            match taken {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
            // Bytes of an incomplete record do not extend the timeout.
            if socket.read_max.is_some_and(|max| begun.elapsed() >= max) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let count = socket.receive(&mut incoming.buffer)?;
            (incoming.start, incoming.end) = (0, count);
            if count == 0 {
                // Frames carry their length, so a connection that ends without a TLS close is only an end.
                return Ok(0);
            }
        }
    }

    /// Reads plaintext without the socket; [`io::ErrorKind::WouldBlock`] if there is none.
    fn take(&self, incoming: &mut Incoming, into: &mut [u8]) -> io::Result<usize> {
        let mut connection = self.connection();
        loop {
            match connection.reader().read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
            let mut rest = &incoming.buffer[incoming.start..incoming.end];
            if rest.is_empty() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            incoming.start += connection.read_tls(&mut rest)?;
            connection
                .process_new_packets()
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }

    /// Sends the pending alert, unless another thread is sending: the connection ends anyway.
    fn say_why(&self, socket: &Socket) {
        if let Ok(mut records) = self.sending.try_lock() {
            let _ = Self::make(&mut self.connection(), &mut records);
            let _ = socket.send(&records);
            records.clear();
        }
    }

    pub(super) fn write(&self, socket: &Socket, bytes: &[u8]) -> io::Result<()> {
        let mut records = locked(&self.sending);
        for mut piece in bytes.chunks(OUTGOING_BYTES) {
            while !piece.is_empty() {
                records.clear();
                let mut connection = self.connection();
                let count = connection.writer().write(piece)?;
                piece = &piece[count..];
                Self::make(&mut connection, &mut records)?;
                drop(connection);
                socket.send(&records)?;
            }
        }
        Ok(())
    }

    /// Moves all pending records into a buffer.
    fn make(connection: &mut ClientConnection, records: &mut Vec<u8>) -> io::Result<()> {
        while connection.wants_write() {
            connection.write_tls(records)?;
        }
        Ok(())
    }
}
