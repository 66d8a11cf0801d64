//! A node under test: it is started with a configuration in its own directory, used through its socket, and ended.

use super::{TempDir, keel, signal, wait_until};
use base::wire::{self, Decoded};
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Output, Stdio};
use std::time::Duration;

pub const GET: u16 = 1;
pub const PUT: u16 = 2;
pub const WATCH: u16 = 3;
pub const HISTORY: u16 = 4;
pub const STATUS: u16 = 5;
pub const TASK: u16 = 6;
pub const TOGETHER: u16 = 9;
pub const KEYS_RELEASE: u16 = 12;
pub const VALUE: u16 = 257;
pub const STORED: u16 = 258;
pub const UPDATES: u16 = 259;
pub const READINGS: u16 = 260;
pub const STATE: u16 = 261;
pub const END: u16 = 262;
pub const TASK_DECLARED: u16 = 263;
pub const QOS_STATE: u16 = 265;
pub const BACKUP_BEGUN: u16 = 266;
pub const KEY_LIST: u16 = 270;
pub const ERROR: u16 = 511;

/// A configuration with a small store, and without a listener that could conflict with other tests.
pub const SMALL: &str = "
[store]
create_mebibytes = 16
[line]
tcp_listen = \"\"
unix_socket = \"line.sock\"
";

/// A directory with a configuration, and the node that runs in it.
pub struct Node {
    pub dir: TempDir,
    /// Environment variables of the node.
    pub variables: Vec<(&'static str, String)>,
    child: Option<Child>,
    starts: u32,
}

impl Node {
    /// Starts a node and waits until it is ready.
    pub fn start(config: &str) -> Self {
        let mut node = Self::prepare(config);
        node.restart();
        node
    }

    /// Creates the directory without a node.
    pub fn prepare(config: &str) -> Self {
        let dir = TempDir::new();
        std::fs::write(dir.file("keel.toml"), config).unwrap();
        Self {
            dir,
            variables: Vec::new(),
            child: None,
            starts: 0,
        }
    }

    /// Starts a node if none runs, and waits until it is ready.
    pub fn restart(&mut self) {
        self.spawn();
        self.wait_ready();
    }

    /// Waits until a started node is ready.
    pub fn wait_ready(&mut self) {
        wait_until("the ready line", || {
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", self.log());
            self.is_ready()
        });
    }

    /// Whether the node has said since its last start that it is ready.
    pub fn is_ready(&self) -> bool {
        self.log().contains(" ready: ")
    }

    /// Whether a started node has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.child.as_mut().unwrap().try_wait().unwrap().is_some()
    }

    /// Starts a node without waiting.
    pub fn spawn(&mut self) {
        assert!(self.child.is_none());
        self.starts += 1;
        let log = File::create(self.log_path()).unwrap();
        let child = keel()
            .args(["run", "-c", "keel.toml"])
            .envs(self.variables.iter().map(|(name, value)| (*name, value)))
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.child = Some(child.unwrap());
    }

    fn log_path(&self) -> PathBuf {
        self.dir.file(&format!("log.{}", self.starts))
    }

    /// Returns the node's log since its last start.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    pub fn signal(&self, number: libc::c_int) {
        signal(self.child.as_ref().unwrap(), number);
    }

    /// Ends the node with SIGKILL.
    pub fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Ends the node with SIGTERM and waits for its end.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(libc::SIGTERM);
        self.ended()
    }

    /// Waits for the node's end.
    pub fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the end of the node", || {
            status = self.child.as_mut().unwrap().try_wait().unwrap();
            status.is_some()
        });
        self.child = None;
        status.unwrap()
    }

    /// Runs a command of `keel` in its directory.
    pub fn run(&self, arguments: &[&str]) -> Output {
        keel()
            .args(arguments)
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// The same, for a command that must succeed; returns standard output.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The same; returns standard output as one JSON value.
    pub fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.ok(arguments)).unwrap()
    }

    /// Returns standard output as one JSON value, with any exit status: it says whether the node is degraded.
    pub fn json_degraded(&self, arguments: &[&str]) -> Value {
        serde_json::from_slice(&self.run(arguments).stdout).unwrap()
    }

    /// The same, for a command that must fail with this status and one line; returns the line.
    pub fn fails(&self, arguments: &[&str], status: i32) -> String {
        let output = self.run(arguments);
        assert_eq!(
            output.status.code(),
            Some(status),
            "{arguments:?}: {output:?}"
        );
        super::one_line(&output.stderr)
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.file("keel-data/keel.sock")
    }

    /// Opens a connection to its socket.
    pub fn connect(&self) -> Raw {
        Raw::new(UnixStream::connect(self.socket()).unwrap())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// A connection that implements the node's protocol as specified, independently of the program's own client.
pub struct Raw {
    pub stream: UnixStream,
    input: Vec<u8>,
}

/// Encodes a frame.
pub fn frame(kind: u16, version: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; wire::frame_bytes(payload.len())];
    wire::encode(kind, version, payload, &mut bytes).unwrap();
    bytes
}

impl Raw {
    pub fn new(stream: UnixStream) -> Self {
        // Only a safeguard: without a timeout a failing test would never end.
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        Self {
            stream,
            input: Vec::new(),
        }
    }

    pub fn send(&mut self, kind: u16, message: &Value) {
        self.stream
            .write_all(&frame(kind, 1, message.to_string().as_bytes()))
            .unwrap();
    }

    /// Returns the next answer; `None` if the node has closed the connection.
    pub fn answer(&mut self) -> Option<(u16, Value)> {
        let (kind, payload) = self.bytes()?;
        Some((kind, serde_json::from_slice(&payload).unwrap()))
    }

    /// Returns the next answer as raw bytes.
    pub fn bytes(&mut self) -> Option<(u16, Vec<u8>)> {
        loop {
            if let Decoded::Frame(frame) = wire::decode(&self.input, 256 << 10).unwrap() {
                assert_eq!(frame.version, 1);
                let found = (frame.kind, frame.payload.to_vec());
                let consumed = frame.consumed;
                self.input.drain(..consumed);
                return Some(found);
            }
            let mut buffer = [0; 65536];
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(read) => self.input.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no answer: {error}"),
            }
        }
    }

    pub fn ask(&mut self, kind: u16, message: &Value) -> (u16, Value) {
        self.send(kind, message);
        self.answer().expect("an answer")
    }
}
