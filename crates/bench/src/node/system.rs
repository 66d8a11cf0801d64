//! The systems that are measured, each a process of its own that takes readings from the broker.

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

/// The loss window: longest time from a reading to its commit, of every system.
pub(crate) const COMMIT_INTERVAL_MS: u32 = 250;

/// Longest wait for a system to subscribe, and for one that has it to acknowledge.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// A connection on which nothing more is said for so long has subscribed.
const SETTLED: Duration = Duration::from_millis(400);

/// One of the systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum System {
    /// `keel run`, whole.
    Keel,
    /// Our session, decoding and database without the node around them; a diagnosis, no peer.
    KeelParts,
    /// Our session and decoding, SQLite with one lean table.
    Sqlite,
    /// The same with an index of key and time.
    SqliteIndexed,
    /// The MQTT library's client as documented, SQLite with one lean table.
    SqliteStock,
}

impl System {
    /// The name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Keel => OURS,
            Self::KeelParts => "keel-parts",
            Self::Sqlite => "sqlite",
            Self::SqliteIndexed => "sqlite-indexed",
            Self::SqliteStock => "sqlite-stock",
        }
    }

    /// First level of its topics and name of its session; of equal length for all.
    fn prefix(self) -> &'static str {
        match self {
            Self::Keel => "k0",
            Self::KeelParts => "k1",
            Self::Sqlite => "s0",
            Self::SqliteIndexed => "s1",
            Self::SqliteStock => "s2",
        }
    }

    /// The topic that is also the key of a sensor.
    pub(crate) fn key(self, sensor: u32) -> String {
        super::publisher::topic(self.prefix(), sensor)
    }
}

/// What starting a system needs.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) broker: SocketAddr,
    /// The program `keel`.
    pub(crate) keel: Option<PathBuf>,
    /// Size of the image that ours makes, MiB.
    pub(crate) image_mebibytes: u64,
}

/// Our image in the folder of a system.
pub(crate) fn image_path(folder: &Path) -> PathBuf {
    folder.join("keel.img")
}

/// Defaults throughout, so all that a node has is there; only the places of things are chosen.
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

/// Makes our image where there is none.
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

/// A system that has subscribed, with its own publisher.
pub(crate) struct Running {
    pub(crate) system: System,
    pub(crate) process: Process,
    pub(crate) publisher: Publisher,
    pub(crate) watch: Watch,
    log: PathBuf,
}

/// How many publications a system has acknowledged, as the kernel counts.
pub(crate) struct Watch {
    sockets: Sockets,
    broker_port: u16,
    port: u16,
    /// What it had sent before its first acknowledgement.
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

    /// Publishes `count` readings as fast as they are acknowledged; returns once the last one has been.
    pub(crate) fn burst(&mut self, count: u64) -> Result<(), String> {
        let (watch, publisher) = (&mut self.watch, &mut self.publisher);
        publisher.burst(count, &mut || watch.acknowledged())?;
        self.drain()
    }

    /// Waits until everything published has been acknowledged, and no more than that.
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

    /// Ends it, and asks the broker whether anything was left unacknowledged.
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
    /// Waits until the process has a connection to the broker on which nothing more is said.
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

    /// Publications acknowledged since the connection was made.
    pub(crate) fn acknowledged(&mut self) -> Result<u64, String> {
        let found = self.sockets.list(self.broker_port, self.port)?;
        let found = found
            .iter()
            .find(|connection| connection.remote_port == self.port);
        let connection = found.ok_or("a connection to the broker was lost")?;
        Ok((connection.bytes_received - self.greeting_bytes) / PUBACK_BYTES)
    }
}

/// Waits for the first acknowledgement of a process that has just been started; `greeting_bytes` as it was sent by
/// the same program before.
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

/// `error` with what the program said last.
fn with_log(error: &str, log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    match text.lines().last() {
        Some(line) => format!("{error}: {line}"),
        None => error.to_owned(),
    }
}
