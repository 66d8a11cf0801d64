//! Authentication of connections: an authority signs the certificates of servers and devices, and keeps a list of
//! devices.
//!
//! A device verifies its server by the authority's signature and the name or address that it connected to. A server
//! verifies a device by the authority's signature and the list, which also names the device's tenant. A device that is
//! removed from the list is refused. Certificates do not expire: clocks of devices may be wrong, and no one renews
//! certificates on them.
//!
//! `authority.rs` creates identities, `devices.rs` is the list, `config.rs` the rustls configuration, `listed.rs` how a
//! server looks up a connecting device, `files.rs` how everything is stored.

mod authority;
mod config;
mod devices;
mod files;
mod listed;

pub use authority::Authority;
pub use config::{device_config, fingerprint, server_config, server_name};
pub use devices::{DEVICES_MAX, Device, Devices, check_name};
pub use listed::Identity;
pub(crate) use listed::{ListedDevices, is_unlisted, why_refused};

use base::error::Code;
use std::io;
use std::path::{Path, PathBuf};

/// The certificate of a server or device, in its folder; with [`KEY_FILE`] and [`AUTHORITY_FILE`].
pub const CERTIFICATE_FILE: &str = "cert.pem";
/// Its private key.
pub const KEY_FILE: &str = "key.pem";
/// The certificate of the authority, in every folder.
pub const AUTHORITY_FILE: &str = "ca.pem";
/// The private key of the authority, in its folder only.
pub const AUTHORITY_KEY_FILE: &str = "ca.key";
/// The list of devices, in the authority's folder.
pub const DEVICES_FILE: &str = "devices";

/// Why an identity cannot be made or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file or folder cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("{}: {problem}", path.display())]
    Damaged {
        /// The file or folder.
        path: PathBuf,
        /// The damage.
        problem: String,
    },
    /// A name is invalid.
    #[error("{0:?} is no name: 1 to 64 of a-z, 0-9, dot, underscore and hyphen")]
    Name(String),
    /// A name or address of a server is invalid.
    #[error("{0:?} is neither a host name nor an address")]
    Host(String),
    /// The folder has an identity already.
    #[error("{0} is there already")]
    Exists(String),
    /// A device of this name is on the list already.
    #[error("a device called {0} is on the list already")]
    Listed(String),
    /// No device has this name.
    #[error("no device is called {0}")]
    NoSuchDevice(String),
    /// The list of devices is full.
    #[error("the list has {DEVICES_MAX} devices already")]
    Full,
    /// Another process is changing the authority's folder.
    #[error("{}: another process is changing it", .0.display())]
    Busy(PathBuf),
    /// The certificate of a server was expected.
    #[error("{}: is the certificate of a device, not of a server", .0.display())]
    NotAServer(PathBuf),
    /// Keys could not be created, or do not match each other.
    #[error("{}: {problem}", path.display())]
    Cryptography {
        /// The folder of the identity or the authority.
        path: PathBuf,
        /// The error of the library.
        problem: String,
    },
}

impl TlsError {
    /// Returns the error code that this error maps to; see [`base::error`].
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::File { source, .. } => Code::from_io(source),
            Self::Damaged { .. } | Self::Cryptography { .. } => Code::Corrupt,
            Self::Name(_) | Self::Host(_) | Self::NotAServer(_) => Code::Invalid,
            Self::Exists(_) | Self::Listed(_) => Code::Exists,
            Self::NoSuchDevice(_) => Code::NotFound,
            Self::Full => Code::Full,
            Self::Busy(_) => Code::Busy,
        }
    }

    fn file(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::File { path, source }
    }

    fn damaged(path: &Path, problem: impl ToString) -> Self {
        Self::Damaged {
            path: path.to_path_buf(),
            problem: problem.to_string(),
        }
    }

    fn cryptography(path: &Path, problem: &impl ToString) -> Self {
        Self::Cryptography {
            path: path.to_path_buf(),
            problem: problem.to_string(),
        }
    }
}
