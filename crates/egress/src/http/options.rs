//! Options of the HTTP side, and its fixed limits.

use std::net::SocketAddr;
use std::sync::Arc;

use super::access::Tokens;

/// Largest size of a request's head (request line and headers), in bytes.
pub(crate) const HEAD_BYTES_MAX: usize = 16 << 10;
/// Largest number of headers of a request.
pub(crate) const HEADERS_MAX: usize = 64;
/// Timeout for a request's head.
pub(crate) const HEAD_SECONDS_MAX: u64 = 5;
/// A connection that is idle between two requests for this time is closed.
pub(crate) const IDLE_SECONDS_MAX: u64 = 60;
/// A connection that does not read its answers for this time is closed.
pub(crate) const STALLED_SECONDS_MAX: u64 = 30;
/// Send buffer of a connection that does not read, in bytes; the kernel doubles it.
pub(crate) const SEND_BUFFER_BYTES: u32 = 128 << 10;
/// Reads of history at the same time; others wait for their turn.
pub(crate) const HISTORY_READS_MAX: usize = 2;
/// Largest number of requests that wait for a read of history.
pub(crate) const HISTORY_WAITING_MAX: usize = 16;
/// Number of objects processed before other tasks get their turn.
pub(crate) const SLICE_OBJECTS: u32 = 2048;

/// Largest number of bodies at the same time that options may allow.
pub(crate) const WRITES_MAX: u32 = 64;
/// A body of which nothing has come for this time is refused.
pub(crate) const BODY_SILENT_SECONDS_MAX: u64 = 10;
/// Timeout for a whole body.
pub(crate) const BODY_SECONDS_MAX: u64 = 60;
/// Bytes of a refused body that are read and dropped, so that its sender gets to the answer, and the timeout.
pub(crate) const DRAINED_BYTES_MAX: u64 = 32 << 20;
pub(crate) const DRAINED_SECONDS_MAX: u64 = 10;

/// Limits of requests that write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteLimits {
    /// Largest number of bodies that are received or taken at the same time; at most 64.
    pub writes_max: u32,
    /// Size of the largest body in bytes, as it comes and unpacked.
    pub body_bytes_max: u32,
}

/// Options of the HTTP side.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// Address and port.
    pub listen: SocketAddr,
    /// Encrypts connections; without it, they are plain.
    pub tls: Option<Arc<tls::Server>>,
    /// Tokens of permitted clients; none: every client that reaches the address.
    pub tokens: Tokens,
    /// Whether clients without a token may read at an address that is not local to this machine; they never write
    /// there.
    pub anonymous: bool,
    /// Host names that browsers may use for this node if there are no tokens, besides addresses and `localhost`.
    pub hosts: Vec<String>,
    /// Largest number of connections.
    pub connections_max: u32,
    /// Largest number of streams, in total and per client address.
    pub streams_max: u32,
    /// See [`streams_max`](Self::streams_max).
    pub streams_per_client_max: u32,
    /// Largest number of bytes that wait for one reader of the stream.
    pub stream_bytes_max: u32,
    /// Period of the search for changes.
    pub stream_period_ms: u32,
    /// Largest number of requests per second, over all connections.
    pub requests_per_second_max: u32,
    /// Largest number of bytes of log that one query for history may read.
    pub history_bytes_max: u64,
    /// Limits of requests that write; without them nothing can be written.
    pub write: Option<WriteLimits>,
}

/// Why options cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// Every client that reaches the address could read everything.
    #[error("{0} can be reached from other machines, and there are no tokens")]
    Open(SocketAddr),
    /// Every client that reaches the address could write readings.
    #[error("{0} can be reached from other machines, and there are no tokens for writing")]
    OpenToWriters(SocketAddr),
    /// A limit of 0.
    #[error("{0} is 0")]
    Zero(&'static str),
}

impl HttpOptions {
    /// Returns the defaults for an address.
    #[must_use]
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            tls: None,
            tokens: Tokens::default(),
            anonymous: false,
            hosts: Vec::new(),
            connections_max: 64,
            streams_max: 16,
            streams_per_client_max: 4,
            stream_bytes_max: 256 << 10,
            stream_period_ms: 250,
            requests_per_second_max: 100,
            history_bytes_max: 64 << 20,
            write: None,
        }
    }

    /// Refuses options that are certainly a mistake.
    ///
    /// # Errors
    /// [`OptionError`]
    pub fn check(&self) -> Result<(), OptionError> {
        let limits = [
            ("connections_max", u64::from(self.connections_max)),
            ("streams_max", u64::from(self.streams_max)),
            (
                "streams_per_client_max",
                u64::from(self.streams_per_client_max),
            ),
            ("stream_bytes_max", u64::from(self.stream_bytes_max)),
            ("stream_period_ms", u64::from(self.stream_period_ms)),
            (
                "requests_per_second_max",
                u64::from(self.requests_per_second_max),
            ),
            ("history_bytes_max", self.history_bytes_max),
        ];
        let of_writes = self.write.into_iter().flat_map(|write| {
            [
                ("writes_max", u64::from(write.writes_max)),
                ("write_kibibytes_max", u64::from(write.body_bytes_max)),
            ]
        });
        let limits: Vec<(&'static str, u64)> = limits.into_iter().chain(of_writes).collect();
        if let Some((name, _)) = limits.iter().find(|(_, limit)| *limit == 0) {
            return Err(OptionError::Zero(name));
        }
        let is_local = self.listen.ip().is_loopback();
        if !is_local && self.tokens.is_empty() && !self.anonymous {
            return Err(OptionError::Open(self.listen));
        }
        if !is_local && self.tokens.is_empty() && self.write.is_some() {
            return Err(OptionError::OpenToWriters(self.listen));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_others_needs_tokens() {
        let at = |address: &str| HttpOptions::new(address.parse().unwrap());
        for local in ["127.0.0.1:80", "[::1]:80", "127.9.9.9:80"] {
            at(local).check().unwrap();
        }
        for open in ["0.0.0.0:80", "[::]:80", "192.168.1.10:80"] {
            let mut options = at(open);
            assert_eq!(options.check(), Err(OptionError::Open(options.listen)));
            options.anonymous = true;
            options.check().unwrap();
            options.write = Some(WriteLimits {
                writes_max: 1,
                body_bytes_max: 1,
            });
            let open = OptionError::OpenToWriters(options.listen);
            assert_eq!(options.check(), Err(open));
            options.anonymous = false;
            options.tokens = Tokens::parse("phone 0123456789abcdef").unwrap();
            options.check().unwrap();
        }
    }

    #[test]
    fn a_limit_of_nothing_is_refused() {
        let mut options = HttpOptions::new("127.0.0.1:80".parse().unwrap());
        options.streams_max = 0;
        assert_eq!(options.check(), Err(OptionError::Zero("streams_max")));
        let mut options = HttpOptions::new("127.0.0.1:80".parse().unwrap());
        options.write = Some(WriteLimits {
            writes_max: 0,
            body_bytes_max: 1,
        });
        assert_eq!(options.check(), Err(OptionError::Zero("writes_max")));
    }
}
