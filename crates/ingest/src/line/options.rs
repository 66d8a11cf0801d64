//! Listening addresses for lines, and the limits of a sender.

use std::path::PathBuf;

use crate::Error;

/// Listening addresses and limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineOptions {
    /// `host:port`, or none.
    pub tcp_listen: Option<String>,
    /// Path of a Unix socket, or none.
    pub unix_socket: Option<PathBuf>,
    /// Permissions of that socket's file: a process that may write to it may send lines.
    pub unix_mode: u32,
    /// Largest number of connections, of both kinds together, 1 to 4096. For one more, the connection that has been
    /// idle longest is closed. If none is idle, the new one gets an error and is closed.
    pub connections_max: u32,
    /// Size of a line without its end in bytes, 64 to 1 MiB. A connection holds one buffer of this size, at least 8
    /// KiB.
    pub line_bytes_max: usize,
    /// Timeout in seconds after which a connection that sends nothing and waits for nothing is closed; 0: never.
    pub idle_seconds_max: u64,
    /// Seconds that a connection which has sent something must have been idle before it may be closed for a new one.
    pub make_room_seconds_min: u64,
}

impl Default for LineOptions {
    fn default() -> Self {
        Self {
            tcp_listen: None,
            unix_socket: None,
            unix_mode: 0o660,
            connections_max: 64,
            line_bytes_max: 16 << 10,
            idle_seconds_max: 600,
            make_room_seconds_min: 10,
        }
    }
}

impl LineOptions {
    /// Checks every number against its range.
    ///
    /// # Errors
    /// [`Error::OptionRange`] names the first that is out of range.
    pub fn check(&self) -> Result<(), Error> {
        let ranges = [
            ("connections_max", u64::from(self.connections_max), 1, 4096),
            ("line_bytes_max", self.line_bytes_max as u64, 64, 1 << 20),
            ("idle_seconds_max", self.idle_seconds_max, 0, 366 * 86_400),
            (
                "make_room_seconds_min",
                self.make_room_seconds_min,
                0,
                366 * 86_400,
            ),
            ("unix_mode", u64::from(self.unix_mode), 0, 0o777),
        ];
        for (name, value, low, high) in ranges {
            if !(low..=high).contains(&value) {
                return Err(Error::OptionRange {
                    name,
                    value,
                    low,
                    high,
                });
            }
        }
        Ok(())
    }
}
