//! Passwords and tokens that the node presents to brokers and servers.

use std::fmt;
use std::path::{Path, PathBuf};

/// A secret that a broker or server requires.
#[derive(Clone)]
pub enum Secret {
    /// The text itself.
    Text(String),
    /// The content of a file, which is read for each connection: the file may be created after the node's start, and
    /// may change.
    File {
        /// Its path.
        path: PathBuf,
        /// Reads the file, or returns in one line why that is not possible. It must not block.
        read: fn(&Path) -> Result<String, String>,
    },
}

impl Secret {
    /// Returns the current secret.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&self) -> Result<String, String> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::File { path, read } => read(path),
        }
    }
}

impl PartialEq for Secret {
    /// Compares the path or the text, not the content of files.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Text(one), Self::Text(other)) => one == other,
            (Self::File { path: one, .. }, Self::File { path: other, .. }) => one == other,
            _ => false,
        }
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The secret itself is not shown.
            Self::Text(_) => f.write_str("Secret"),
            Self::File { path, .. } => write!(f, "Secret({})", path.display()),
        }
    }
}

/// Returns the current user and password.
pub(crate) fn login(of: Option<&(String, Secret)>) -> Result<Option<(String, String)>, String> {
    of.map(|(user, secret)| Ok((user.clone(), secret.read()?)))
        .transpose()
}
