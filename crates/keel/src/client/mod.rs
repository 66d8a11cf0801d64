//! The commands that talk to a running node: `get`, `put`, `watch`, `history` and `status`.

mod get;
mod history;
mod put;
mod status;
mod watch;

use crate::cli::{ClientCommand, NodeArgs};
use crate::config::Config;
use crate::error::{CliError, describe};
use crate::node::protocol::{self, ANSWER_BYTES_MAX, Failure, Kind, REQUEST_BYTES_MAX};
use base::error::Code;
use base::wire::{self, Decoded};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Display;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Where a configuration is looked for when none is named.
const CONFIG_PLACES: [&str; 2] = ["keel.toml", "/etc/keel/keel.toml"];

/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;

/// Runs one command; the answer is the exit status.
pub(crate) fn run(command: &ClientCommand) -> Result<u8, CliError> {
    match command {
        ClientCommand::Get(arguments) => get::run(arguments),
        ClientCommand::Put(arguments) => put::run(arguments),
        ClientCommand::Watch(arguments) => watch::run(arguments),
        ClientCommand::History(arguments) => history::run(arguments),
        ClientCommand::Status(arguments) => status::run(arguments),
    }
}

/// The socket of the node that the arguments name.
fn socket(arguments: &NodeArgs) -> Result<PathBuf, CliError> {
    if let Some(path) = &arguments.node {
        return Ok(path.clone());
    }
    if let Some(path) = &arguments.config {
        return Ok(Config::load(path)?.node.socket);
    }
    for path in CONFIG_PLACES.map(Path::new) {
        // A file that is there and cannot be read is an error, not a reason to take another.
        if path.try_exists().unwrap_or(true) {
            return Ok(Config::load(path)?.node.socket);
        }
    }
    Err(CliError::usage(
        "node",
        format!(
            "neither {} nor {} says where it is",
            CONFIG_PLACES[0], CONFIG_PLACES[1]
        ),
        "name its socket with --node PATH or its configuration with -c FILE",
    ))
}

/// A connection to a node.
struct Connection {
    stream: UnixStream,
    shown: String,
    input: Vec<u8>,
    /// Bytes of `input` that belong to the answer given last.
    taken: usize,
}

/// One answer.
struct Answer<'c> {
    kind: Kind,
    payload: &'c [u8],
    shown: &'c str,
}

impl Answer<'_> {
    fn read<T: DeserializeOwned>(&self) -> Result<T, CliError> {
        serde_json::from_slice(self.payload).map_err(|error| strange(self.shown, error))
    }
}

fn strange(shown: &str, wrong: impl Display) -> CliError {
    let wrong = format!("the answer is not what this version expects ({wrong})");
    CliError::failure(shown, wrong, "use keel of the node's version")
}

impl Connection {
    fn open(arguments: &NodeArgs) -> Result<Self, CliError> {
        let path = socket(arguments)?;
        let shown = path.display().to_string();
        let stream = UnixStream::connect(&path).map_err(|error| no_node(&shown, &error))?;
        Ok(Self {
            stream,
            shown,
            input: Vec::new(),
            taken: 0,
        })
    }

    /// Sends a request.
    fn send(&mut self, kind: Kind, message: &impl Serialize) -> Result<(), CliError> {
        let frame = protocol::frame(kind, message, REQUEST_BYTES_MAX).ok_or_else(|| {
            let wrong = format!("has more than {REQUEST_BYTES_MAX} bytes");
            CliError::usage("request", wrong, "shorten key and value")
        })?;
        // A node that refuses the connection says why and closes it; what it said can still be read.
        match self.stream.write_all(&frame) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(self.lost(&error)),
            _ => Ok(()),
        }
    }

    /// Waits for the next answer. One that is an error becomes the command's.
    fn answer(&mut self) -> Result<Answer<'_>, CliError> {
        self.input.drain(..self.taken);
        self.taken = 0;
        let (kind, range) = loop {
            match wire::decode(&self.input, ANSWER_BYTES_MAX) {
                Err(error) => return Err(strange(&self.shown, error)),
                Ok(Decoded::NeedMore(_)) => self.receive()?,
                Ok(Decoded::Frame(frame)) => {
                    self.taken = frame.consumed;
                    if frame.version != protocol::VERSION {
                        return Err(strange(&self.shown, format!("version {}", frame.version)));
                    }
                    let end = frame.consumed;
                    break (frame.kind, end - frame.payload.len()..end);
                }
            }
        };
        let answer = Answer {
            kind: Kind::of(kind).ok_or_else(|| strange(&self.shown, format!("kind {kind}")))?,
            payload: self.input.get(range).unwrap_or_default(),
            shown: &self.shown,
        };
        if answer.kind == Kind::Error {
            return Err(failed(&answer.read()?));
        }
        Ok(answer)
    }

    /// Sends a request that has one answer, of this kind.
    fn ask<T: DeserializeOwned>(
        &mut self,
        kind: Kind,
        message: &impl Serialize,
        expected: Kind,
    ) -> Result<T, CliError> {
        self.send(kind, message)?;
        let answer = self.answer()?;
        if answer.kind == expected {
            answer.read()
        } else {
            Err(strange(answer.shown, format!("{:?}", answer.kind)))
        }
    }

    fn receive(&mut self) -> Result<(), CliError> {
        let before = self.input.len();
        self.input.resize(before + READ_BYTES, 0);
        let read = loop {
            match self.stream.read(&mut self.input[before..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        self.input.truncate(before + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => Err(CliError::failure(
                &self.shown,
                "the node has closed the connection",
                "look at what it says, or whether it runs, then try again",
            )),
            Ok(_) => Ok(()),
            Err(error) => Err(self.lost(&error)),
        }
    }

    fn lost(&self, error: &io::Error) -> CliError {
        let wrong = format!("the connection to the node broke ({})", describe(error));
        CliError::failure(
            &self.shown,
            wrong,
            "look whether the node runs, then try again",
        )
    }
}

fn no_node(shown: &str, error: &io::Error) -> CliError {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ECONNREFUSED) => CliError::failure(
            shown,
            "no node answers",
            "start it with `keel run -c keel.toml`, or name another with --node",
        ),
        Some(libc::EACCES | libc::EPERM) => CliError::failure(
            shown,
            describe(error),
            "run as the node's user, or as a member of its group",
        ),
        _ => CliError::io(shown, error),
    }
}

fn failed(failure: &Failure) -> CliError {
    let code = Code::ALL
        .into_iter()
        .find(|code| code.name() == failure.code)
        .unwrap_or(Code::Io);
    CliError::coded(code, &failure.thing, &failure.wrong, &failure.remedy)
}

/// A value as people write it.
fn value_text(value: &serde_json::Value, kind: &str) -> String {
    use db::value::Value;
    use serde_json::Value as Json;
    match value {
        Json::Number(number) => match (kind, number.as_f64()) {
            ("float", Some(float)) => Value::Float(float).to_string(),
            _ => number.to_string(),
        },
        Json::String(text) => text.clone(),
        Json::Null => format!("({kind})"),
        other => other.to_string(),
    }
}

/// A text without what could act on a terminal.
fn printable(text: &str) -> String {
    let escape = |letter: char| -> String {
        if letter.is_control() {
            letter.escape_default().to_string()
        } else {
            letter.to_string()
        }
    };
    text.chars().map(escape).collect()
}

/// A time that the user has written.
fn time(text: &str) -> Result<i64, CliError> {
    let now_ms = base::clock::Clock::wall_ms(&base::clock::SystemClock::new());
    crate::time_text::parse(text, now_ms)
        .map_err(|forms| CliError::usage(text, "is no time", forms))
}
