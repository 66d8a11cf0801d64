//! The systems under measurement, each in its own process that takes readings from the broker.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::consumer::KEEP_ALIVE_SECONDS;
use super::process::Process;
use super::publisher::Publisher;
use super::socket::{PUBACK_BYTES, Sockets};
use crate::figures::OURS;

/// The loss window: maximum time from a reading to its commit, for every system, in milliseconds.
pub(crate) const COMMIT_INTERVAL_MS: u32 = 250;

/// Timeout for a system to subscribe, and then to acknowledge.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// A connection without traffic for this time is taken to have subscribed.
const SETTLED: Duration = Duration::from_millis(400);

/// One of the systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum System {
    /// `keel run`, the whole node.
    Keel,
    /// Our session, decoding and database without the rest of the node; for diagnosis, not a peer.
    KeelParts,
    /// Our session and decoding, with SQLite and one lean table.
    Sqlite,
    /// As `Sqlite`, with an index of key and time.
    SqliteIndexed,
    /// The MQTT library's client as documented, with SQLite and one lean table.
    SqliteStock,
}

impl System {
    /// Returns the name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Keel => OURS,
            Self::KeelParts => "keel-parts",
            Self::Sqlite => "sqlite",
            Self::SqliteIndexed => "sqlite-indexed",
            Self::SqliteStock => "sqlite-stock",
        }
    }

    /// Returns the first level of its topics, which is also the name of its session; all have equal length.
    fn prefix(self) -> &'static str {
        match self {
            Self::Keel => "k0",
            Self::KeelParts => "k1",
            Self::Sqlite => "s0",
            Self::SqliteIndexed => "s1",
            Self::SqliteStock => "s2",
        }
    }

    /// Returns the topic of a sensor, which is also its key.
    pub(crate) fn key(self, sensor: u32) -> String {
        super::publisher::topic(self.prefix(), sensor)
    }
}

/// What is needed to start a system.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) broker: SocketAddr,
    /// The program `keel`.
    pub(crate) keel: Option<PathBuf>,
    /// Size of the image that our node creates, in MiB.
    pub(crate) image_mebibytes: u64,
}

/// Returns the path of our image in the folder of a system.
pub(crate) fn image_path(folder: &Path) -> PathBuf {
    folder.join("keel.img")
}

/// Returns a configuration with only the paths and addresses set. All else is default, so that every part of the node
/// is active.
fn configuration(place: &Place, system: System) -> Result<String, String> {
    let (address, mebibytes, prefix) = (place.broker, place.image_mebibytes, system.prefix());
    let lines = super::broker::free_address().map_err(|error| error.to_string())?;
    Ok(format!(
        "[node]\nsocket = \"keel.sock\"\n\n\
         [store]\nimage = \"keel.img\"\ncreate_mebibytes = {mebibytes}\n\
         commit_interval_ms = {COMMIT_INTERVAL_MS}\n\n\
         [keys]\nauto_create = true\n\n\
         [mqtt]\naddress = \"{address}\"\nversion = \"3.1.1\"\nclient_id = \"{prefix}\"\n\
         keep_alive_seconds = {KEEP_ALIVE_SECONDS}\n\n\
         [[mqtt.subscribe]]\nfilter = \"{prefix}/#\"\nqos = 1\npayload = \"number\"\nkey = \"{{topic}}\"\n\n\
         [line]\ntcp_listen = \"{lines}\"\nunix_socket = \"line.sock\"\n"
    ))
}

/// Starts the program of `system` with its files in `folder`.
pub(crate) fn spawn(system: System, place: &Place, folder: &Path) -> Result<Process, String> {
    let mut command = if system == System::Keel {
        let file = folder.join("keel.toml");
        fs::write(&file, configuration(place, system)?)
            .map_err(|error| format!("{}: {error}", file.display()))?;
        let mut command = Command::new(place.keel.as_ref().ok_or("keel: no such program")?);
        command.arg("run").arg("-c").arg(file);
        command
    } else {
        if system == System::KeelParts {
            format_image(place, folder)?;
        }
        let (storage, front) = match system {
            System::Keel | System::KeelParts => ("keel", "node"),
            System::Sqlite => ("sqlite", "node"),
            System::SqliteIndexed => ("sqlite-indexed", "node"),
            System::SqliteStock => ("sqlite", "stock"),
        };
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.args([
            "consumer",
            "--storage",
            storage,
            "--front",
            front,
            "--prefix",
            system.prefix(),
        ]);
        command
            .args(["--broker", &place.broker.to_string()])
            .arg("--folder")
            .arg(folder);
        command.args(["--commit-interval-ms", &COMMIT_INTERVAL_MS.to_string()]);
        command
    };
    Process::spawn(
        system.name(),
        &mut command,
        &folder.join(format!("{}.log", system.name())),
    )
}

/// Creates our image if there is none.
fn format_image(place: &Place, folder: &Path) -> Result<(), String> {
    let path = image_path(folder);
    if !path.exists() {
        crate::store::write_through(&path, place.image_mebibytes << 20, |_, chunk| chunk.fill(0))?;
        let options = flash::FormatOptions {
            files_max: 1024,
            name_bytes_max: 64,
            uuid: [1; 16],
            hash_key: [2; 16],
        };
        let store = flash::Store::format(crate::store::open_direct(&path)?, &options);
        store
            .and_then(flash::Store::close)
            .map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// A subscribed system, with its own publisher.
pub(crate) struct Running {
    pub(crate) system: System,
    pub(crate) process: Process,
    pub(crate) publisher: Publisher,
    pub(crate) watch: Watch,
    log: PathBuf,
}

/// Counts the publications that a system has acknowledged, as the kernel sees them.
pub(crate) struct Watch {
    sockets: Sockets,
    broker_port: u16,
    port: u16,
    /// Bytes that the system had sent before its first acknowledgement.
    pub(crate) greeting_bytes: u64,
}

impl Running {
    /// Starts a system and waits until it has subscribed.
    pub(crate) fn start(system: System, place: &Place, folder: &Path) -> Result<Self, String> {
        let mut process = spawn(system, place, folder)?;
        let log = folder.join(format!("{}.log", system.name()));
        let watch = Watch::settle(&mut process, place.broker.port())
            .map_err(|error| with_log(&error, &log))?;
        Ok(Self {
            system,
            process,
            publisher: Publisher::connect(place.broker, system.prefix())?,
            watch,
            log,
        })
    }

    /// Publishes `count` readings as fast as they are acknowledged. Returns once the last one is acknowledged.
    pub(crate) fn burst(&mut self, count: u64) -> Result<(), String> {
        let (watch, publisher) = (&mut self.watch, &mut self.publisher);
        publisher.burst(count, &mut || watch.acknowledged())?;
        self.drain()
    }

    /// Waits until exactly the published readings have been acknowledged, and no more.
    pub(crate) fn drain(&mut self) -> Result<(), String> {
        let begin = Instant::now();
        loop {
            let (sent, acknowledged) = (self.publisher.sent(), self.watch.acknowledged()?);
            if acknowledged == sent {
                return Ok(());
            }
            self.process
                .check_alive()
                .map_err(|error| with_log(&error, &self.log))?;
            if acknowledged > sent || begin.elapsed() > WAIT_MAX {
                let name = self.system.name();
                return Err(format!(
                    "{name}: {sent} readings published, {acknowledged} acknowledged"
                ));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends the system. Then asks the broker whether any publication is left unacknowledged.
    pub(crate) fn end(self, place: &Place) -> Result<(), String> {
        let name = self.system.name();
        self.process.end()?;
        match super::publisher::left_in_session(place.broker, self.system.prefix())? {
            0 => Ok(()),
            left => Err(format!(
                "{name}: the broker still holds {left} readings of its session"
            )),
        }
    }
}

impl Watch {
    /// Waits until the process has a connection to the broker without further traffic.
    pub(crate) fn settle(process: &mut Process, broker_port: u16) -> Result<Self, String> {
        let mut sockets = Sockets::open()?;
        let begin = Instant::now();
        let (mut last, mut since) = ((0, 0), Instant::now());
        loop {
            process.check_alive()?;
            let now = sockets.of_process(process.id(), broker_port)?;
            let now = now.map_or((0, 0), |connection| {
                (connection.remote_port, connection.bytes_received)
            });
            if now != last {
                (last, since) = (now, Instant::now());
            } else if now.1 > 0 && since.elapsed() > SETTLED {
                return Ok(Self {
                    sockets,
                    broker_port,
                    port: now.0,
                    greeting_bytes: now.1,
                });
            }
            if begin.elapsed() > WAIT_MAX {
                return Err("does not subscribe".to_owned());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The number of publications acknowledged since the connection was made.
    pub(crate) fn acknowledged(&mut self) -> Result<u64, String> {
        let found = self.sockets.list(self.broker_port, self.port)?;
        let found = found
            .iter()
            .find(|connection| connection.remote_port == self.port);
        let connection = found.ok_or("a connection to the broker was lost")?;
        Ok((connection.bytes_received - self.greeting_bytes) / PUBACK_BYTES)
    }
}

/// Waits for the first acknowledgement of a process that has just been started. `greeting_bytes` is what the same
/// program sent before its first acknowledgement in an earlier start.
pub(crate) fn first_acknowledgement(
    process: &mut Process,
    broker_port: u16,
    greeting_bytes: u64,
) -> Result<(), String> {
    let mut sockets = Sockets::open()?;
    let begin = Instant::now();
    loop {
        let connection = sockets.of_process(process.id(), broker_port)?;
        if connection
            .is_some_and(|connection| connection.bytes_received >= greeting_bytes + PUBACK_BYTES)
        {
            return Ok(());
        }
        process.check_alive()?;
        if begin.elapsed() > WAIT_MAX {
            return Err("acknowledges nothing".to_owned());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns `error` with the last output of the program.
fn with_log(error: &str, log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    match text.lines().last() {
        Some(line) => format!("{error}: {line}"),
        None => error.to_owned(),
    }
}
