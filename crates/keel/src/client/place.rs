//! Where the node is: its socket, as the arguments or a configuration name it.

use crate::cli::NodeArgs;
use crate::config::Config;
use crate::error::{CliError, describe};
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// Where a configuration is looked for when none is named.
const CONFIG_PLACES: [&str; 2] = ["keel.toml", "/etc/keel/keel.toml"];

/// The socket of a configuration that names none.
const SOCKET_BY_DEFAULT: &str = "keel-data/keel.sock";

/// Bytes of a configuration that are looked at when it has a mistake; the node takes no longer one.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// Lines that are no TOML, passed over on the way to the socket's name.
const LINES_PASSED_OVER_MAX: u32 = 32;

/// The socket of a node, and who says that it is there.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) socket: PathBuf,
    /// The configuration that names it; `None` when the arguments do.
    config: Option<PathBuf>,
}

/// The configuration at one of the usual places. A file that is there and cannot be read is an error, not a reason to
/// take another.
pub(crate) fn config_in_place() -> Option<&'static Path> {
    let mut places = CONFIG_PLACES.map(Path::new).into_iter();
    places.find(|config| config.try_exists().unwrap_or(true))
}

fn no_config(remedy: &str) -> CliError {
    let wrong = format!(
        "neither {} nor {} says where it is",
        CONFIG_PLACES[0], CONFIG_PLACES[1]
    );
    CliError::usage("node", wrong, remedy)
}

/// The configuration that is named, else the one at a usual place.
pub(crate) fn find_config(named: Option<&Path>) -> Result<PathBuf, CliError> {
    let found = named.map(Path::to_path_buf);
    let found = found.or_else(|| config_in_place().map(Path::to_path_buf));
    found.ok_or_else(|| no_config("name its configuration with -c FILE"))
}

impl Place {
    /// The node that the arguments name. A configuration with a mistake is told on standard error, and is good
    /// enough when it says where the socket is: a node goes on with the configuration that it has, and its clients
    /// must be able to ask it why.
    pub(super) fn of(arguments: &NodeArgs) -> Result<Self, CliError> {
        if let Some(socket) = &arguments.node {
            return Ok(Self::named(socket));
        }
        if let Some(config) = &arguments.config {
            return Self::by_config(config);
        }
        match config_in_place() {
            Some(config) => Self::by_config(config),
            None => Err(no_config(
                "name its socket with --node PATH or its configuration with -c FILE",
            )),
        }
    }

    /// The node with this socket.
    pub(super) fn named(socket: &Path) -> Self {
        Self {
            socket: socket.to_path_buf(),
            config: None,
        }
    }

    fn by_config(config: &Path) -> Result<Self, CliError> {
        let socket = match Config::load(config) {
            Ok(found) => found.node.socket,
            Err(error) => {
                let Some(socket) = socket_in_spite(config) else {
                    return Err(error);
                };
                eprintln!("keel: warning: the configuration has a mistake: {error}");
                socket
            }
        };
        Ok(Self {
            socket,
            config: Some(config.to_path_buf()),
        })
    }

    /// The socket as errors name it.
    pub(super) fn shown(&self) -> String {
        self.socket.display().to_string()
    }

    /// What to do when nobody serves the socket.
    fn start_hint(&self) -> String {
        match &self.config {
            Some(config) => format!(
                "start it with `keel run -c {}`, or name another with --node",
                config.display()
            ),
            None => "start the node with this socket, or name another with --node or -c".to_owned(),
        }
    }

    /// What to do when the socket does not behave as a node's.
    pub(super) fn look_hint(&self) -> &'static str {
        match self.config {
            Some(_) => "look at its process",
            None => "look at its process, and whether --node names a node's socket",
        }
    }

    /// Why there is no connection.
    pub(super) fn unreachable(&self, error: &io::Error) -> CliError {
        let shown = self.shown();
        let found = std::fs::metadata(&self.socket);
        if found.is_ok_and(|found| !found.file_type().is_socket()) {
            let remedy = match &self.config {
                Some(config) => format!("mend node.socket in {}", config.display()),
                None => {
                    "name the socket of a node with --node, or its configuration with -c".to_owned()
                }
            };
            return CliError::failure(shown, "is no socket", remedy);
        }
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ECONNREFUSED) => {
                CliError::failure(shown, "no node answers", self.start_hint())
            }
            Some(libc::EACCES | libc::EPERM) => CliError::failure(
                shown,
                describe(error),
                "run as the node's user, or as a member of its group",
            ),
            _ => CliError::io(shown, error),
        }
    }
}

/// The socket that a configuration with mistakes names all the same; `None` when it cannot be told.
fn socket_in_spite(config: &Path) -> Option<PathBuf> {
    // Opening a FIFO would wait for its other end.
    if !std::fs::metadata(config).ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    let file = File::open(config).ok()?;
    file.take(CONFIG_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .ok()?;
    if bytes.len() as u64 > CONFIG_BYTES_MAX {
        return None;
    }
    let socket = socket_of(&String::from_utf8_lossy(&bytes))?;
    // As everywhere in the configuration: relative to its directory.
    Some(config.parent().unwrap_or(Path::new("")).join(socket))
}

/// `node.socket` of a text that need not be TOML everywhere.
fn socket_of(text: &str) -> Option<String> {
    let mut text = text.to_owned();
    for _ in 0..LINES_PASSED_OVER_MAX {
        let (top, errors) = DeTable::parse_recoverable(&text);
        if let Some(named) = named_by(top.get_ref()) {
            return named;
        }
        // A line that is no TOML may have taken the next with it: without that line, the next may be read.
        let Some(line) = errors
            .first()
            .and_then(|error| line_at(&text, error.span()))
        else {
            break;
        };
        text.replace_range(line, "");
    }
    Some(SOCKET_BY_DEFAULT.to_owned())
}

/// What the table has at `node.socket`, if it has anything there; `Some(None)` for what is no path.
fn named_by(top: &DeTable<'_>) -> Option<Option<String>> {
    let DeValue::Table(node) = top.get("node")?.get_ref() else {
        return Some(None);
    };
    match node.get("socket")?.get_ref() {
        DeValue::String(socket) if !socket.is_empty() => Some(Some(socket.to_string())),
        _ => Some(None),
    }
}

/// The line where a mistake begins, without its end; `None` if it holds nothing that could be taken away.
fn line_at(text: &str, mistake: Option<Range<usize>>) -> Option<Range<usize>> {
    let at = mistake?.start;
    let begin = text.get(..at)?.rfind('\n').map_or(0, |end| end + 1);
    let end = text[at..].find('\n').map_or(text.len(), |end| at + end);
    (begin < end).then_some(begin..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_that_of_the_configuration() {
        let config = Config::parse("", "keel.toml", Path::new("")).unwrap();
        assert_eq!(config.node.socket, Path::new(SOCKET_BY_DEFAULT));
    }

    #[test]
    fn a_mistake_elsewhere_does_not_hide_the_socket() {
        for text in [
            "[node]\nsocket = \"a.sock\"\n[keys]\nauto_creat = true\n",
            "[node]\nconnections_max = \"many\"\nsocket = \"a.sock\"\n",
            "[node]\nsocket = 'a.sock'\n[keys\nkeys_max = 5\n",
            "[keys]\nkeys_max =\n[node]\nsocket = \"a.sock\"\n",
            "[keys]\nkeys_max = = 5\nkeys_max = \"\n[node]\nsocket = \"a.sock\"\n",
            "nonsense\nnode.socket = \"a.sock\"\n",
            "[node]\nnonsense\nsocket = \"a.sock\"\n",
            "no\nno\n[node]\nno no\n\nsocket = \"a.sock\"\nno\n",
        ] {
            assert!(Config::parse(text, "keel.toml", Path::new("")).is_err());
            assert_eq!(socket_of(text).as_deref(), Some("a.sock"), "{text}");
        }
        for text in ["[keys\n", "[node]\nsokcet = \"a.sock\"\n", "\u{fffd}"] {
            assert_eq!(socket_of(text).as_deref(), Some(SOCKET_BY_DEFAULT));
        }
        for text in ["node = 5", "[node]\nsocket = 5", "[node]\nsocket = \"\""] {
            assert_eq!(socket_of(text), None, "{text}");
        }
    }
}
