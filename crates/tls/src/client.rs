//! The client's side: connections to brokers and upstreams.

use crate::Error;
use crate::files::{self, Identity, SYSTEM_AUTHORITIES, Stamp};
use crate::reason::{self, View};
use crate::wall::WallTime;
use base::clock::Clock;
use base::error::Code;
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::version::{TLS12, TLS13};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

/// An encrypted connection to a server.
pub type ClientStream<S> = tokio_rustls::client::TlsStream<S>;

/// The authorities that a client trusts, and its own identity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientOptions {
    /// The certificates of the authorities that may sign the server's; without it, those of the system
    /// ([`SYSTEM_AUTHORITIES`]).
    pub ca_file: Option<PathBuf>,
    /// The node's own certificate, for servers that ask for one.
    pub identity: Option<Identity>,
    /// The name in the server's certificate; without it, the host of its address.
    pub server_name: Option<String>,
}

impl ClientOptions {
    /// Reads the files as a connection would.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn check(&self, clock: &Arc<dyn Clock>) -> Result<(), Error> {
        load(self, clock).map(drop)
    }

    fn authorities(&self) -> &Path {
        self.ca_file
            .as_deref()
            .unwrap_or(Path::new(SYSTEM_AUTHORITIES))
    }

    fn stamps(&self) -> Vec<Option<Stamp>> {
        let own = self.identity.iter();
        let own = own.flat_map(|own| [own.certificate_file.as_path(), own.key_file.as_path()]);
        let all = std::iter::once(self.authorities()).chain(own);
        all.map(files::stamp).collect()
    }
}

/// Returns whether a certificate can have this name.
#[must_use]
pub fn is_server_name(name: &str) -> bool {
    ServerName::try_from(name).is_ok()
}

/// Makes encrypted connections. Clones share the files that were read.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    options: ClientOptions,
    clock: Arc<dyn Clock>,
    /// Gets a line about a new key that others can read.
    say: OnceLock<fn(&str)>,
    loaded: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The files as they were read last; `None` if they could not be used.
    files: Option<Loaded>,
    /// Whether they could be used once.
    was_read: bool,
}

struct Loaded {
    stamps: Vec<Option<Stamp>>,
    config: Arc<ClientConfig>,
}

impl PartialEq for Client {
    /// Compares the options, not the content of files.
    fn eq(&self, other: &Self) -> bool {
        self.0.options == other.0.options
    }
}

impl Eq for Client {}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client").field(&self.0.options).finish()
    }
}

impl Client {
    /// Creates a client. Files are read when it connects: they may come later, and may change. Certificates are judged
    /// by this clock.
    #[must_use]
    pub fn new(options: ClientOptions, clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Inner {
            options,
            clock,
            say: OnceLock::new(),
            loaded: Mutex::default(),
        }))
    }

    /// From now on `say` gets a line when a key has been replaced by one that every user of the machine can read.
    pub fn say_with(&self, say: fn(&str)) {
        // One that was given before does the same.
        let _ = self.0.say.set(say);
    }

    /// Encrypts a connection to the server at this `host:port`. The caller sets the timeout; dropping the future closes
    /// the connection.
    ///
    /// # Errors
    /// A file cannot be used, or the handshake fails: the server's certificate is not of a known authority, has
    /// expired, or has another name.
    pub async fn connect<S>(&self, stream: S, address: &str) -> Result<ClientStream<S>, Error>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let config = self.config()?;
        let name = self.server_name(address)?;
        let connecting = TlsConnector::from(config).connect(name, stream);
        connecting.await.map_err(|error| {
            let Inner { options, clock, .. } = &*self.0;
            let view = View {
                address,
                authorities: options.authorities().display().to_string(),
                clock_trusted: clock.wall_is_trusted(),
                has_identity: options.identity.is_some(),
            };
            reason::of_handshake(&view, &error)
        })
    }

    fn server_name(&self, address: &str) -> Result<ServerName<'static>, Error> {
        let name = match &self.0.options.server_name {
            Some(name) => name.as_str(),
            None => host(address),
        };
        ServerName::try_from(name.to_owned()).map_err(|_| {
            let wrong = format!("no certificate can have the name \"{name}\"");
            let remedy = "set server_name to the name in the server's certificate";
            Error::new(Code::Invalid, address, wrong, remedy)
        })
    }

    /// Returns the library's options, made of the files as they are now.
    fn config(&self) -> Result<Arc<ClientConfig>, Error> {
        let Inner {
            options,
            clock,
            loaded,
            ..
        } = &*self.0;
        // Taken before the files are read: a change meanwhile is seen at the next connection.
        let stamps = options.stamps();
        let mut loaded = loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &loaded.files
            && known.stamps == stamps
        {
            return Ok(Arc::clone(&known.config));
        }
        loaded.files = None;
        let config = load(options, clock)?;
        loaded.files = Some(Loaded {
            stamps,
            config: Arc::clone(&config),
        });
        // At the start, the configuration's warnings have it.
        if std::mem::replace(&mut loaded.was_read, true) {
            self.warn();
        }
        Ok(config)
    }

    fn warn(&self) {
        let Inner { options, say, .. } = &*self.0;
        let warning = options.identity.as_ref().and_then(Identity::warning);
        if let (Some(warning), Some(say)) = (warning, say.get()) {
            say(&warning);
        }
    }
}

fn load(options: &ClientOptions, clock: &Arc<dyn Clock>) -> Result<Arc<ClientConfig>, Error> {
    let roots = match &options.ca_file {
        Some(path) => Arc::new(files::authorities(path)?),
        None => files::system_authorities()?,
    };
    let time = Arc::new(WallTime(Arc::clone(clock)));
    let builder = ClientConfig::builder_with_details(files::provider(), time)
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(|error| Error::library(&error))?
        .with_root_certificates(roots);
    let mut config = match &options.identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let (certificates, key) = identity.read()?;
            builder
                .with_client_auth_cert(certificates, key)
                .map_err(|error| identity.refused(&error))?
        }
    };
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Returns the host of `host:port` or `[address]:port`.
fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_an_address_is_the_name_that_is_checked() {
        for (address, name) in [
            ("broker.example:8883", "broker.example"),
            ("192.168.1.10:8883", "192.168.1.10"),
            ("[::1]:8883", "::1"),
        ] {
            assert_eq!(host(address), name);
            assert!(is_server_name(name), "{name}");
        }
        for name in ["", "a b", "a/b"] {
            assert!(!is_server_name(name), "{name}");
        }
    }
}
