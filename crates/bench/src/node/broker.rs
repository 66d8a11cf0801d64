//! The broker: a mosquitto of this run alone, on a free loopback port, ended by its own process number.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Messages that the broker keeps for one session; beyond it, it drops. Never reached: the publisher waits first.
pub(crate) const QUEUED_MESSAGES_MAX: u32 = 1_000_000;

/// Longest wait for the broker to listen.
const START_MAX: Duration = Duration::from_secs(10);

/// Where a mosquitto may lie that is not in `PATH` of an ordinary user.
const BESIDE_PATH: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];

/// A running broker. Dropping it ends it.
pub(crate) struct Broker {
    child: Child,
    address: SocketAddr,
}

/// The broker's program, when it is installed.
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

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // Nothing of it is kept, so there is nothing to end gently.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A loopback port that nobody listens on at the moment.
pub(crate) fn free_address() -> std::io::Result<SocketAddr> {
    TcpListener::bind(("127.0.0.1", 0))?.local_addr()
}
