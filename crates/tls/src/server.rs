//! The server's side: handshakes with clients, within limits.

use crate::Error;
use crate::acceptance;
use crate::files::{self, Identity, Stamp};
use crate::places::Places;
use crate::reason;
use crate::wall::WallTime;
use base::clock::Clock;
use base::error::Code;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// An encrypted connection of a client.
pub type ServerStream<S> = tokio_rustls::server::TlsStream<S>;

/// Longest handshake.
pub const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(5);
/// Largest number of handshakes at once; beyond it, the oldest one ends whose client has sent nothing, or the oldest.
pub const HANDSHAKES_MAX: usize = 16;

/// The pause before files that could not be used, and have not changed since, are read again: 1 s.
const REFUSED_PAUSE_NS: u64 = 1_000_000_000;

/// How long a verdict on the server's own certificate is used, on the wall clock: 1 min.
const VERDICT_MS_MAX: u64 = 60_000;

/// The identity of a server, and the clients that it admits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// The server's certificate and its key.
    pub identity: Identity,
    /// The certificates of the authorities that sign those of clients; without it, clients need no certificate.
    pub client_ca_file: Option<PathBuf>,
}

impl ServerOptions {
    /// Reads the files as a server would.
    ///
    /// # Errors
    /// A file cannot be used, or no client accepts the certificate.
    pub fn check(&self, clock: &Arc<dyn Clock>) -> Result<(), Error> {
        let (_, own) = load(self, clock)?;
        match acceptance::refused(&self.identity.certificate_file, &own, clock) {
            Some(refused) => Err(refused),
            None => Ok(()),
        }
    }

    fn stamps(&self) -> Vec<Option<Stamp>> {
        let own = [
            self.identity.certificate_file.as_path(),
            self.identity.key_file.as_path(),
        ];
        let clients = self.client_ca_file.as_deref();
        own.into_iter().chain(clients).map(files::stamp).collect()
    }
}

/// Why a client gets no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It did not finish its handshake in time.
    Slow,
    /// Later clients had need of its place.
    Evicted,
    /// Its certificate is missing, or is not accepted.
    Certificate,
    /// It speaks without TLS.
    Plain,
    /// There are more handshakes a second than the server does.
    Busy,
    /// It has left, offers versions or ciphers that are too old, or does not accept the server's certificate.
    Failed,
}

/// Accepts encrypted connections.
pub struct Server {
    options: ServerOptions,
    clock: Arc<dyn Clock>,
    say: fn(&str),
    places: Places,
    loaded: Mutex<Loaded>,
}

type LoadedFiles = (Arc<ServerConfig>, Vec<CertificateDer<'static>>);

struct Loaded {
    stamps: Vec<Option<Stamp>>,
    config: Arc<ServerConfig>,
    /// The certificate of `config`, and those between it and its authority.
    own: Vec<CertificateDer<'static>>,
    /// The last verdict on `own`.
    verdict: Option<Verdict>,
    /// Why the files as they are now cannot be used.
    problem: Option<String>,
    /// The files that could not be used, and when, on the monotonic clock.
    refused: Option<(Vec<Option<Stamp>>, u64)>,
}

/// Why no client accepts a certificate, if that is so, and when it was judged, on the wall clock.
struct Verdict {
    refused: Option<String>,
    wall_ms: i64,
    /// Whether the clock was trusted then: otherwise dates were not judged.
    is_time_trusted: bool,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Server").field(&self.options).finish()
    }
}

impl Server {
    /// Reads the files. `say` gets a line when they are read again, and when that fails.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn open(
        options: ServerOptions,
        clock: Arc<dyn Clock>,
        say: fn(&str),
    ) -> Result<Self, Error> {
        let stamps = options.stamps();
        let (config, own) = load(&options, &clock)?;
        Ok(Self {
            options,
            clock,
            say,
            places: Places::new(HANDSHAKES_MAX),
            loaded: Mutex::new(Loaded {
                stamps,
                config,
                own,
                verdict: None,
                problem: None,
                refused: None,
            }),
        })
    }

    fn loaded(&self) -> MutexGuard<'_, Loaded> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns why changed files are not used, so that the ones before them still are; or why no client accepts the
    /// certificate that is used. The latter is judged once a minute, and when the certificate is read again.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let mut loaded = self.loaded();
        if let Some(problem) = &loaded.problem {
            return Some(format!("the files before are used: {problem}"));
        }
        self.unaccepted(&mut loaded)
    }

    /// Returns why no client accepts the certificate that is used. The dates are judged now or within the last minute,
    /// not when the certificate was read. Only the wall clock counts: a clock that is set, or is trusted from now on,
    /// gives a new verdict.
    fn unaccepted(&self, loaded: &mut Loaded) -> Option<String> {
        let wall_ms = self.clock.wall_ms();
        let is_time_trusted = self.clock.wall_is_trusted();
        if let Some(last) = &loaded.verdict
            && last.is_time_trusted == is_time_trusted
            && wall_ms.abs_diff(last.wall_ms) < VERDICT_MS_MAX
        {
            return last.refused.clone();
        }
        let file = &self.options.identity.certificate_file;
        let refused = acceptance::refused(file, &loaded.own, &self.clock);
        let refused = refused.map(|refused| refused.to_string());
        loaded.verdict = Some(Verdict {
            refused: refused.clone(),
            wall_ms,
            is_time_trusted,
        });
        refused
    }

    /// Returns the number of handshakes that are in progress.
    #[must_use]
    pub fn handshakes(&self) -> usize {
        self.places.count()
    }

    /// Encrypts a connection that `opens` hands over once the client has sent something. The limits count from the
    /// call; dropping the future closes the connection.
    ///
    /// # Errors
    /// The refusal of `opens`, or why the handshake failed.
    pub async fn accept<S>(
        &self,
        opens: impl Future<Output = Result<S, Refusal>>,
    ) -> Result<ServerStream<S>, Refusal>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let place = self.places.take();
        let shakes = async {
            let stream = opens.await?;
            place.begin();
            let accepting = TlsAcceptor::from(self.config()).accept(stream);
            accepting.await.map_err(|error| refusal(&error))
        };
        tokio::select! {
            shaken = timeout(HANDSHAKE_TIME_MAX, shakes) => shaken.unwrap_or(Err(Refusal::Slow)),
            () = place.lost() => Err(Refusal::Evicted),
        }
    }

    /// Returns the library's options, made of the files as they are now. If those cannot be used, the options before
    /// them stay: a half-written file must not end the service.
    fn config(&self) -> Arc<ServerConfig> {
        let stamps = self.options.stamps();
        let mut loaded = self.loaded();
        if loaded.stamps == stamps {
            // Files that could not be used may be back as they were.
            loaded.problem = None;
            loaded.refused = None;
        } else if !self.was_just_refused(&loaded, &stamps) {
            match load(&self.options, &self.clock) {
                Ok((config, own)) => {
                    loaded.stamps = stamps;
                    loaded.config = config;
                    loaded.own = own;
                    loaded.verdict = None;
                    loaded.problem = None;
                    loaded.refused = None;
                    let certificate = self.options.identity.certificate_file.display();
                    (self.say)(&format!("{certificate} is read again, for new connections"));
                    // At the start, the configuration's warnings have it.
                    if let Some(warning) = self.options.identity.warning() {
                        (self.say)(&warning);
                    }
                    if let Some(why) = self.unaccepted(&mut loaded) {
                        (self.say)(&format!("no client accepts it: {why}"));
                    }
                }
                Err(error) => {
                    let problem = error.to_string();
                    if loaded.problem.as_ref() != Some(&problem) {
                        (self.say)(&format!(
                            "{problem}; until then the certificate before it is used"
                        ));
                    }
                    loaded.problem = Some(problem);
                    loaded.refused = Some((stamps, self.clock.monotonic_ns()));
                }
            }
        }
        Arc::clone(&loaded.config)
    }

    /// Returns whether these files could not be used within the last second. Then clients make the server read nothing.
    /// A file can become readable without a change of its own, so the pause is short.
    fn was_just_refused(&self, loaded: &Loaded, stamps: &[Option<Stamp>]) -> bool {
        let refused = loaded.refused.as_ref();
        refused.is_some_and(|(files, since_ns)| {
            let pause_ns = self.clock.monotonic_ns().saturating_sub(*since_ns);
            files == stamps && pause_ns < REFUSED_PAUSE_NS
        })
    }
}

fn refusal(error: &io::Error) -> Refusal {
    match reason::find(error) {
        Some(rustls::Error::NoCertificatesPresented | rustls::Error::InvalidCertificate(_)) => {
            Refusal::Certificate
        }
        _ => Refusal::Failed,
    }
}

/// Returns the library's options, and the certificates in them.
fn load(options: &ServerOptions, clock: &Arc<dyn Clock>) -> Result<LoadedFiles, Error> {
    let provider = files::provider();
    let (certificates, key) = options.identity.read()?;
    let own = certificates.clone();
    let time = Arc::new(WallTime(Arc::clone(clock)));
    let builder = ServerConfig::builder_with_details(Arc::clone(&provider), time)
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| Error::library(&error))?;
    let builder = match &options.client_ca_file {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let authorities = files::authorities(path).map_err(of_clients)?;
            let authorities = Arc::new(authorities);
            let verifier = WebPkiClientVerifier::builder_with_provider(authorities, provider)
                .build()
                .map_err(|_| unusable(path))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder
        .with_single_cert(certificates, key)
        .map_err(|error| options.identity.refused(&error))?;
    // A resumed session would skip the check of the client's certificate.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok((Arc::new(config), own))
}

fn unusable(path: &Path) -> Error {
    let remedy = "write the certificates of the authorities of clients there";
    of_clients(Error::new(
        Code::Corrupt,
        path.display(),
        "holds no authority that can be used",
        remedy,
    ))
}

/// Says that a file is the one of the authorities of clients: its name alone does not tell.
fn of_clients(error: Error) -> Error {
    Error {
        thing: format!("client_ca_file {}", error.thing),
        ..error
    }
}

/// Returns whether bytes of a client have come with the end of its handshake, and can be read. A record of which only a
/// part has come has none yet.
#[must_use]
pub fn has_unread<S>(stream: &ServerStream<S>) -> bool {
    // The library wants no more while something waits, nor after the client's end.
    let (_, session) = stream.get_ref();
    !session.wants_read()
}
