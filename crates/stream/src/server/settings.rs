//! The settings of a server.

use crate::predict::Mode;
use crate::predict::paper::SEG_MAX;
use crate::provide::Arm;
use crate::tls::Identity;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Writes to the operator: one line without its end.
pub type Say = Arc<dyn Fn(&str) + Send + Sync>;

/// The settings of a server. Each limit is per server unless it says otherwise.
#[derive(Clone)]
pub struct Settings {
    /// The store.
    pub store: PathBuf,
    /// The address to listen on; port 0 means any port.
    pub listen: SocketAddr,
    /// `None` means no TLS, which is allowed on a loopback address only. All devices are then the tenant `local`.
    pub identity: Option<Identity>,
    /// The address for metrics; `None` if they are not served.
    pub metrics: Option<SocketAddr>,
    /// The prediction mode.
    pub predict: Mode,
    /// The number of blocks in a segment in the mode `paper`, [`SEG_MAX_MIN`](crate::predict::paper::SEG_MAX_MIN) to
    /// [`SEG_MAX_MAX`](crate::predict::paper::SEG_MAX_MAX); above 32 an action is matched at three places.
    pub seg_max: u32,
    /// What is loaded into memory before it is requested.
    pub provide: Arm,
    /// Segments with a normalised variance above this are read at the start.
    pub variance_min: f64,
    /// The maximum size of content in memory, in bytes.
    pub memory_bytes_max: u64,
    /// The maximum size of compressed pieces in memory, in bytes.
    pub bundle_bytes_max: u64,
    /// The zstd level for compression of pieces in the background; 3 or lower disables it.
    pub bundle_level: i32,
    /// The maximum number of devices at the same time.
    pub clients_max: usize,
    /// The maximum number of devices at the same time with one certificate, so that one certificate cannot take all
    /// places. Without TLS it does not apply: devices cannot be told apart then, and all of them are on this machine.
    pub clients_of_certificate_max: usize,
    /// The maximum number of connections of a device.
    pub connections_max: usize,
    /// The maximum number of connections without a complete `Hello`. When there are more, the oldest one is closed.
    pub half_open_max: usize,
    /// The maximum number of tenants in memory.
    pub tenants_max: usize,
    /// The maximum number of tasks of a device at the same time.
    pub tasks_max: usize,
    /// The maximum number of waiting requests of a connection; the server then reads no more.
    pub requests_max: usize,
    /// The maximum number of waiting blocks of `Fetch` of a connection; more are refused.
    pub fetch_blocks_max: usize,
    /// The deadline of a new connection for TLS and `Hello`.
    pub handshake_deadline: Duration,
    /// The maximum time between the first and the last byte of a message.
    pub message_deadline: Duration,
    /// The maximum time for which a device may read nothing of what is sent.
    pub write_deadline: Duration,
    /// The maximum time for which a device may send nothing.
    pub idle_deadline: Duration,
    /// The delay between a change and writing learned actions.
    pub save_after: Duration,
    /// The size of the kernel's send buffer of a connection, in bytes; `None` for the kernel's default.
    pub send_buffer_bytes: Option<u32>,
    /// Receives the lines for the operator.
    pub say: Say,
}

impl Settings {
    /// Returns settings for a store and an address, without TLS, and with the defaults for everything else.
    #[must_use]
    pub fn new(store: PathBuf, listen: SocketAddr) -> Self {
        Self {
            store,
            listen,
            identity: None,
            metrics: None,
            predict: Mode::default(),
            seg_max: SEG_MAX,
            provide: Arm::default(),
            variance_min: 1.0,
            memory_bytes_max: 192 << 20,
            bundle_bytes_max: 64 << 20,
            bundle_level: 19,
            clients_max: 1024,
            clients_of_certificate_max: 16,
            connections_max: 16,
            half_open_max: 256,
            tenants_max: 256,
            tasks_max: 64,
            requests_max: 256,
            fetch_blocks_max: 1 << 16,
            handshake_deadline: Duration::from_secs(5),
            message_deadline: Duration::from_secs(30),
            write_deadline: Duration::from_secs(60),
            idle_deadline: Duration::from_secs(600),
            save_after: Duration::from_secs(2),
            send_buffer_bytes: None,
            say: Arc::new(|_| {}),
        }
    }

    /// Passes a line to the operator.
    pub(super) fn log(&self, line: &str) {
        (self.say)(line);
    }
}
