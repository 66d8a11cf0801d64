//! TLS for a reader and a writer at once.
//!
//! Records must be sent in the order in which they were made. So `sending` is held from making them to the last byte
//! sent, and the connection itself only while they are made: the reader needs no more than the connection.

use super::Shared;
use rustls::ClientConnection;
use std::io::{self, Read, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Ciphertext that is read at once.
const INCOMING_BYTES: usize = 32 << 10;

/// Plaintext that is made into records at once: the connection is locked no longer than that takes.
const OUTGOING_BYTES: usize = 32 << 10;

/// A connection with TLS.
pub(super) struct Secure {
    connection: Mutex<ClientConnection>,
    /// Records made and not sent yet.
    sending: Mutex<Vec<u8>>,
}

/// Ciphertext that was read and not taken apart yet.
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
    /// Of a connection whose handshake is over.
    pub(super) fn new(connection: ClientConnection) -> Self {
        Self {
            connection: Mutex::new(connection),
            sending: Mutex::default(),
        }
    }

    fn connection(&self) -> MutexGuard<'_, ClientConnection> {
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn read(
        &self,
        shared: &Shared,
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
                self.say_why(shared);
            }
            match taken {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
            // A record that comes byte by byte is no byte of what it holds.
            if shared.read_max.is_some_and(|max| begun.elapsed() >= max) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let count = shared.receive(&mut incoming.buffer)?;
            (incoming.start, incoming.end) = (0, count);
            if count == 0 {
                // Frames mark their own ends, so a connection that ends without a word is only an end.
                return Ok(0);
            }
        }
    }

    /// What can be read without the socket; [`io::ErrorKind::WouldBlock`]: nothing.
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

    /// Sends the alert that is waiting, unless somebody is sending: the connection ends anyway.
    fn say_why(&self, shared: &Shared) {
        if let Ok(mut records) = self.sending.try_lock() {
            let _ = Self::make(&mut self.connection(), &mut records);
            let _ = shared.send(&records);
            records.clear();
        }
    }

    pub(super) fn write(&self, shared: &Shared, bytes: &[u8]) -> io::Result<()> {
        let mut records = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        for mut piece in bytes.chunks(OUTGOING_BYTES) {
            while !piece.is_empty() {
                records.clear();
                let mut connection = self.connection();
                let count = connection.writer().write(piece)?;
                piece = &piece[count..];
                Self::make(&mut connection, &mut records)?;
                drop(connection);
                shared.send(&records)?;
            }
        }
        Ok(())
    }

    /// Moves all records that wait into a buffer.
    fn make(connection: &mut ClientConnection, records: &mut Vec<u8>) -> io::Result<()> {
        while connection.wants_write() {
            connection.write_tls(records)?;
        }
        Ok(())
    }
}
