//! Messages to the service manager (`sd_notify(3)`): that the node is ready, reloads or stops, and its status.
//!
//! **Invariants:** `READY=1` is sent once the log is recovered and the sources are open. Without a manager
//! (`NOTIFY_SOCKET` is not set) notification costs nothing.

use super::log;
use crate::status::{Report, State};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Timeout of the manager for receiving a message.
const SEND_MAX: Duration = Duration::from_secs(1);

/// The longest status line, in bytes.
const STATUS_BYTES_MAX: usize = 300;

/// The connection to the service manager, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Notify {
    socket: Option<UnixDatagram>,
    /// The watchdog interval: the manager expects to hear within it that data flow.
    pub(super) watchdog: Option<Duration>,
}

impl Notify {
    /// Configures it from the environment. A manager that cannot be reached is logged once.
    pub(crate) fn from_environment() -> Self {
        let Some(address) = std::env::var_os("NOTIFY_SOCKET") else {
            return Self::default();
        };
        let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
        // The variables may be meant for the parent process.
        let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|_| is_ours);
        match connect(address.as_encoded_bytes()) {
            Ok(socket) => Self {
                socket: Some(socket),
                watchdog: watchdog
                    .filter(|microseconds| *microseconds > 0)
                    .map(Duration::from_micros),
            },
            Err(error) => {
                let shown = address.to_string_lossy().into_owned();
                log::event("warning", format!("service manager: {shown}: {error}"));
                Self::default()
            }
        }
    }

    /// Sends a message; without a manager this does nothing.
    pub(super) fn send(&self, message: &str) {
        if let Some(socket) = &self.socket {
            // A manager that does not take the message acts as if it was never sent, and nothing better is possible.
            socket.send(message.as_bytes()).ok();
        }
    }

    /// Reports that the store is being opened or made.
    pub(crate) fn starting(&self) {
        self.send("STATUS=opening the store");
    }

    /// Reports that the node serves.
    pub(crate) fn ready(&self) {
        self.send("READY=1\nSTATUS=ready");
    }

    /// Reports that the configuration is being read again; [`ready`](Self::ready) ends this state.
    pub(crate) fn reloading(&self) {
        self.send("RELOADING=1");
    }

    /// Reports that the node is stopping.
    pub(crate) fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=stopping");
    }

    /// Sends one line for `systemctl status`.
    pub(crate) fn status(&self, report: &Report) {
        if self.socket.is_some() {
            self.send(&format!("STATUS={}", status_line(report)));
        }
    }
}

/// Connects to a socket of the manager: a path, or, after `@`, an abstract name.
fn connect(address: &[u8]) -> io::Result<UnixDatagram> {
    let address = match address {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => {
            use std::os::unix::ffi::OsStrExt;
            SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path))?
        }
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_write_timeout(Some(SEND_MAX))?;
    Ok(socket)
}

fn status_line(report: &Report) -> String {
    let figures = &report.figures;
    let mut line = report.state.name().to_owned();
    if report.state != State::Ok {
        let reasons = report.reasons.iter().map(|reason| reason.code.as_str());
        let mut reasons: Vec<&str> = reasons.collect();
        reasons.dedup();
        line = format!("{line} ({})", reasons.join(", "));
    }
    let line = format!(
        "{line}: {} keys, {} readings on flash, {} waiting",
        figures.keys.count, figures.log.readings_durable, figures.log.readings_outstanding
    );
    line.chars()
        .filter(|letter| !letter.is_control())
        .take(STATUS_BYTES_MAX)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_addresses_are_reached() {
        let path = std::env::temp_dir().join(format!("keel-notify-{}", std::process::id()));
        let by_path = UnixDatagram::bind(&path).unwrap();
        let name = format!("keel-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let by_name = UnixDatagram::bind_addr(&address).unwrap();
        let at = format!("@{name}");
        for (address, socket) in [(path.to_str().unwrap(), by_path), (&*at, by_name)] {
            let notify = Notify {
                socket: Some(connect(address.as_bytes()).unwrap()),
                watchdog: None,
            };
            notify.stopping();
            let mut bytes = [0; 64];
            let read = socket.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..read], b"STOPPING=1\nSTATUS=stopping");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(connect(path.to_str().unwrap().as_bytes()).is_err());
    }

    #[test]
    fn the_status_is_one_line() {
        let report = Report::new(crate::status::NodeFigures::default());
        let line = status_line(&report);
        assert!(!line.contains('\n') && line.contains("0 keys"), "{line}");
    }
}
