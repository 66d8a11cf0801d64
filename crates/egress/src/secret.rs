//! Passwords and tokens that the node shows to brokers and servers.

use std::fmt;
use std::path::{Path, PathBuf};

/// What somebody wants to see before he takes anything.
#[derive(Clone)]
pub enum Secret {
    /// As it is.
    Text(String),
    /// In a file, which is read for each connection: it may come later than the node, and change.
    File {
        /// Its path.
        path: PathBuf,
        /// What reads it, and says in one line why that is not possible. It must not wait for anybody.
        read: fn(&Path) -> Result<String, String>,
    },
}

impl Secret {
    /// What is to be shown now.
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
    /// Whether both stand at the same place, or are the same text.
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
            // Not what it is.
            Self::Text(_) => f.write_str("Secret"),
            Self::File { path, .. } => write!(f, "Secret({})", path.display()),
        }
    }
}

/// User and password as they are now.
pub(crate) fn login(of: Option<&(String, Secret)>) -> Result<Option<(String, String)>, String> {
    of.map(|(user, secret)| Ok((user.clone(), secret.read()?)))
        .transpose()
}
