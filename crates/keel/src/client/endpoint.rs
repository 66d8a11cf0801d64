//! The endpoint of the node: its socket, as named by the arguments or a configuration.

use crate::error::{CliError, describe};
use clap::Args;
use config::Config;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// The usual places of a configuration.
const CONFIG_PLACES: [&str; 2] = ["keel.toml", "/etc/keel/keel.toml"];

/// The default socket of a configuration.
const SOCKET_BY_DEFAULT: &str = "keel-data/keel.sock";

/// Bytes read of a configuration with a mistake, at most; the node accepts no longer one.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// Lines with TOML errors that are skipped while searching for the socket's name, at most.
const LINES_PASSED_OVER_MAX: u32 = 32;

/// The node that a command connects to.
#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    /// Socket of the node [default: the socket that the configuration names]
    #[arg(long, value_name = "PATH", conflicts_with = "config")]
    pub(crate) node: Option<PathBuf>,
    /// Configuration of the node [default: ./keel.toml, else /etc/keel/keel.toml]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// The socket of a node, and the source of this information.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) socket: PathBuf,
    /// The configuration that names it; `None` if the arguments do.
    config: Option<PathBuf>,
}

/// Returns the configuration at one of the usual places. An existing file that cannot be read is an error, not a reason
/// to take another one.
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

/// Returns the named configuration, else the one at a usual place.
pub(crate) fn find_config(named: Option<&Path>) -> Result<PathBuf, CliError> {
    let found = named.map(Path::to_path_buf);
    let found = found.or_else(|| config_in_place().map(Path::to_path_buf));
    found.ok_or_else(|| no_config("name its configuration with -c FILE"))
}

impl Endpoint {
    /// Returns the node that the arguments name. A mistake in the configuration is reported on standard error, but
    /// accepted if the socket can still be determined. The running node keeps its former configuration, and its clients
    /// must be able to query the reason.
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

    /// Returns the node with this socket.
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

    /// Returns the socket's name in errors.
    pub(super) fn shown(&self) -> String {
        self.socket.display().to_string()
    }

    /// Returns the remedy if no process serves the socket.
    fn start_hint(&self) -> String {
        match &self.config {
            Some(config) => format!(
                "start it with `keel run -c {}`, or name another with --node",
                config.display()
            ),
            None => "start the node with this socket, or name another with --node or -c".to_owned(),
        }
    }

    /// Returns the remedy if the socket does not behave like a node's.
    pub(super) fn look_hint(&self) -> &'static str {
        match self.config {
            Some(_) => "look at its process",
            None => "look at its process, and whether --node names a node's socket",
        }
    }

    /// Returns why there is no connection.
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

/// Returns the socket of a configuration with mistakes; `None` if it cannot be determined.
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
    // Relative to the directory of the configuration, like every path in it.
    Some(config.parent().unwrap_or(Path::new("")).join(socket))
}

/// Returns `node.socket` of a text that may contain TOML errors.
fn socket_of(text: &str) -> Option<String> {
    let mut text = text.to_owned();
    for _ in 0..LINES_PASSED_OVER_MAX {
        let (top, errors) = DeTable::parse_recoverable(&text);
        if let Some(named) = named_by(top.get_ref()) {
            return named;
        }
        // An invalid line may have consumed the next one: without it, the next line may be readable.
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

/// Returns the value at `node.socket`, if there is one; `Some(None)` if it is no path.
fn named_by(top: &DeTable<'_>) -> Option<Option<String>> {
    let DeValue::Table(node) = top.get("node")?.get_ref() else {
        return Some(None);
    };
    match node.get("socket")?.get_ref() {
        DeValue::String(socket) if !socket.is_empty() => Some(Some(socket.to_string())),
        _ => Some(None),
    }
}

/// Returns the line where a mistake begins, without its end; `None` if there is nothing to remove.
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
