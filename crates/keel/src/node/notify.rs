//! Messages to the service manager (`sd_notify(3)`): that the node is ready, reloads or stops, its status, and, for its
//! watchdog, that data flow.
//!
//! **Invariants:** `READY=1` is sent once the log is recovered and the sources are open. `WATCHDOG=1` is sent by the
//! thread that talks to the network, and only while the commit thread completes rounds or is idle. So it is not sent
//! when either thread hangs, when the device does not answer, or when the log has failed. Without a manager
//! (`NOTIFY_SOCKET` is not set) notification costs nothing.

use super::{Node, log};
use crate::status::{Report, State};
use db::Pulse;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

/// Timeout of the manager for receiving a message.
const SEND_MAX: Duration = Duration::from_secs(1);

/// Messages per watchdog interval of the manager.
const MESSAGES_PER_WATCHDOG: u32 = 4;

/// The longest status line, in bytes.
const STATUS_BYTES_MAX: usize = 300;

/// The connection to the service manager, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Notify {
    socket: Option<UnixDatagram>,
    /// The watchdog interval: the manager expects to hear within it that data flow.
    watchdog: Option<Duration>,
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

    fn send(&self, message: &str) {
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

/// Checks repeatedly whether data flow.
#[derive(Debug, Default)]
struct Flow {
    rounds: u64,
    /// Since when something has been waiting without a completed round.
    stuck_since: Option<Instant>,
}

impl Flow {
    /// Returns whether data flow. `patience`: how long something may wait without a completed round.
    fn goes_on(&mut self, pulse: &Pulse, now: Instant, patience: Duration) -> bool {
        if pulse.is_over {
            return false;
        }
        if !pulse.is_waiting || pulse.rounds != self.rounds {
            self.rounds = pulse.rounds;
            self.stuck_since = None;
            return true;
        }
        let since = *self.stuck_since.get_or_insert(now);
        now.duration_since(since) < patience
    }
}

/// Feeds the watchdog while data flow. Never returns.
pub(crate) async fn feed(node: &Node) {
    let Some(watchdog) = node.notify.watchdog else {
        return std::future::pending().await;
    };
    let period = watchdog / MESSAGES_PER_WATCHDOG;
    let mut ticks = tokio::time::interval(period.max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut flow = Flow::default();
    let mut goes_on = true;
    loop {
        ticks.tick().await;
        let commit_interval_ms = node.config.borrow().store.commit_interval_ms;
        // A reading may wait for its commit for the configured interval, and a commit may wait for a slow card.
        let patience = Duration::from_millis(u64::from(commit_interval_ms)) + watchdog / 2;
        let flows = flow.goes_on(&node.db.pulse(), Instant::now(), patience);
        if flows {
            node.notify.send("WATCHDOG=1");
        }
        if flows != goes_on {
            goes_on = flows;
            let text = if flows {
                "data flow again, and the watchdog is fed"
            } else {
                "no reading becomes durable: the watchdog is no longer fed"
            };
            log::event("watchdog", text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_secs(1);

    fn pulse(rounds: u64, is_waiting: bool) -> Pulse {
        Pulse {
            rounds,
            is_waiting,
            is_over: false,
        }
    }

    #[test]
    fn data_flow_while_rounds_end_or_nothing_waits() {
        let mut flow = Flow::default();
        let start = Instant::now();
        let mut at = |tick: u32, pulse: &Pulse| flow.goes_on(pulse, start + TICK * tick, TICK * 3);
        // Idle, for any time.
        assert!(at(0, &pulse(0, false)) && at(100, &pulse(0, false)));
        // Always something to do, and always completed.
        assert!((101..200).all(|tick| at(tick, &pulse(u64::from(tick), true))));
        // A long flush does not count as stuck.
        assert!(at(200, &pulse(199, true)) && at(202, &pulse(199, true)));
        // A flush that does not end does.
        assert!(!at(203, &pulse(199, true)) && !at(300, &pulse(199, true)));
        // Until it ends after all.
        assert!(at(301, &pulse(200, true)));
        let over = Pulse {
            is_over: true,
            ..pulse(201, false)
        };
        assert!(!at(302, &over));
    }

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
