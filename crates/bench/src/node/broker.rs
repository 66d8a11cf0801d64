//! The broker: a mosquitto process for this run only, on a free loopback port. It is ended by its own process ID.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The number of messages that the broker keeps for one session; it drops further ones. This limit is never reached:
/// the publisher waits first.
pub(crate) const QUEUED_MESSAGES_MAX: u32 = 1_000_000;

/// Timeout for the broker to start listening.
const START_MAX: Duration = Duration::from_secs(10);

/// Folders that may contain mosquitto although an ordinary user's `PATH` lacks them.
const BESIDE_PATH: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];

/// A running broker. Dropping it ends the process.
pub(crate) struct Broker {
    child: Child,
    address: SocketAddr,
}

/// Returns the path of the broker's program if it is installed.
pub(crate) fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(BESIDE_PATH.iter().map(PathBuf::from))
        .map(|folder| folder.join("mosquitto"))
        .find(|program| program.is_file())
}

impl Broker {
    /// Starts `program` with its files in `folder` and waits until it listens.
    pub(crate) fn start(program: &Path, folder: &Path) -> Result<Self, String> {
        let failed = |what: &str, error: std::io::Error| format!("mosquitto: {what}: {error}");
        let address = free_address().map_err(|error| failed("no free port", error))?;
        let configuration = folder.join("mosquitto.conf");
        let text = format!(
            "listener {} 127.0.0.1\nallow_anonymous true\npersistence false\nuser root\n\
             max_inflight_messages 0\nmax_queued_messages {QUEUED_MESSAGES_MAX}\nmax_queued_bytes 0\n\
             log_type error\nlog_dest file {}\n",
            address.port(),
            folder.join("mosquitto.log").display()
        );
        fs::write(&configuration, text).map_err(|error| failed("configuration", error))?;
        let child = Command::new(program)
            .arg("-c")
            .arg(&configuration)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| failed("start", error))?;
        let mut broker = Self { child, address };
        let begin = Instant::now();
        while TcpStream::connect(address).is_err() {
            if let Ok(Some(status)) = broker.child.try_wait() {
                return Err(format!("mosquitto ended at its start: {status}"));
            }
            if begin.elapsed() > START_MAX {
                return Err(format!("mosquitto does not listen on {address}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(broker)
    }

    /// Returns the address on which the broker listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // The broker's data is discarded, so a graceful shutdown is not needed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a loopback address whose port is unused at the moment.
pub(crate) fn free_address() -> std::io::Result<SocketAddr> {
    TcpListener::bind(("127.0.0.1", 0))?.local_addr()
}
