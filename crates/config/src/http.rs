//! `[http]`: what is served over HTTP, and what may be written.

use super::certificates;
use super::reader::Section;
use super::values::{PATH_BYTES_MAX, TEXT_BYTES_MAX};
use command::error::CliError;
use egress::http::Tokens;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tls::ServerOptions;

/// Bytes of the largest file of tokens.
const TOKEN_FILE_BYTES_MAX: u64 = 65_536;
/// Default listener.
const HTTP_LISTEN: &str = "127.0.0.1:8095";

/// `[http]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpConfig {
    /// Address and port.
    pub listen: SocketAddr,
    /// Certificates; without them, connections are plain.
    pub tls: Option<ServerOptions>,
    /// File of names and tokens.
    pub token_file: Option<PathBuf>,
    /// Whether anonymous reads are allowed at an address that other machines can reach. Writing takes tokens there.
    pub anonymous: bool,
    /// Names by which browsers may address this node if there are no tokens.
    pub hosts: Vec<String>,
    /// The most connections at once.
    pub connections_max: u32,
    /// The most readers of the live stream at once, in total.
    pub streams_max: u32,
    /// The most readers of the live stream at once from one address.
    pub streams_per_client_max: u32,
    /// Largest backlog of one reader of the stream.
    pub stream_kibibytes_max: u32,
    /// Time between two messages of the stream.
    pub stream_period_ms: u32,
    /// Requests per second, over all connections.
    pub requests_per_second_max: u32,
    /// The most log that one history request reads.
    pub history_mebibytes_max: u32,
    /// Whether clients may send readings.
    pub write: bool,
    /// The most bodies at once.
    pub writes_max: u32,
    /// The largest body, as it comes and unpacked.
    pub write_kibibytes_max: u32,
}

impl HttpConfig {
    /// Returns the scheme of the listener's addresses.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        self.tls.as_ref().map_or("http", |_| "https")
    }

    /// Returns whether each client must have a certificate.
    #[must_use]
    pub fn asks_certificates(&self) -> bool {
        let tls = self.tls.as_ref();
        tls.is_some_and(|tls| tls.client_ca_file.is_some())
    }

    /// Returns the tokens, read from their file now; none without a file.
    ///
    /// # Errors
    /// The file cannot be read, or is none of tokens.
    pub fn tokens(&self) -> Result<Tokens, CliError> {
        let Some(path) = &self.token_file else {
            return Ok(Tokens::default());
        };
        let text = super::read_bounded(path, TOKEN_FILE_BYTES_MAX)?;
        Tokens::parse(&text).map_err(|error| {
            let thing = match error.line {
                0 => path.display().to_string(),
                line => format!("{}:{line}", path.display()),
            };
            let remedy = "write a name, a token of 16 letters or more and its rights in each line";
            CliError::failure(thing, error.wrong, remedy)
        })
    }
}

/// Reads the section.
pub(super) fn http(section: Section<'_, '_>, base_dir: &Path) -> HttpConfig {
    let number = |key, default, range| section.integer(key, default, range) as u32;
    let at = section.text("listen", TEXT_BYTES_MAX);
    let (line, given) = at.map_or((section.line(), HTTP_LISTEN.to_owned()), |at| {
        (at.line, at.value)
    });
    let listen = given.parse().unwrap_or_else(|_| {
        let remedy = "give address:port, such as \"127.0.0.1:8095\"";
        section.wrong(line, "listen", &format!("is \"{given}\""), remedy);
        SocketAddr::from(([127, 0, 0, 1], 0))
    });
    let token_file = section.text("token_file", PATH_BYTES_MAX);
    let hosts = section.text_or_empty("hosts", TEXT_BYTES_MAX);
    let hosts = hosts.map_or(String::new(), |at| at.value);
    let http = HttpConfig {
        listen,
        tls: certificates::server(&section, base_dir),
        token_file: token_file.map(|at| base_dir.join(at.value)),
        anonymous: section.boolean("anonymous", false),
        hosts: hosts.split_whitespace().map(str::to_owned).collect(),
        connections_max: number("connections_max", 64, (1, 1024)),
        streams_max: number("streams_max", 16, (1, 256)),
        streams_per_client_max: number("streams_per_client_max", 4, (1, 256)),
        stream_kibibytes_max: number("stream_kibibytes_max", 256, (16, 16_384)),
        stream_period_ms: number("stream_period_ms", 250, (50, 10_000)),
        requests_per_second_max: number("requests_per_second_max", 100, (1, 10_000)),
        history_mebibytes_max: number("history_mebibytes_max", 64, (1, 65_536)),
        write: section.boolean("write", false),
        writes_max: number("writes_max", 4, (1, 64)),
        write_kibibytes_max: number("write_kibibytes_max", 4096, (16, 65_536)),
    };
    let is_open = !http.listen.ip().is_loopback() && http.token_file.is_none();
    if is_open && http.write {
        let wrong = format!(
            "is {}, which other machines reach, and http.write is true without tokens",
            http.listen
        );
        let remedy = "name a token_file with a token that has the right to write; anonymous = true is for reading only";
        section.wrong(line, "listen", &wrong, remedy);
    } else if is_open && !http.anonymous && !http.asks_certificates() {
        let wrong = format!(
            "is {}, which other machines reach, and there are no tokens",
            http.listen
        );
        let remedy = "name a token_file or client_ca_file, or set anonymous = true if every client there may read \
                      everything";
        section.wrong(line, "listen", &wrong, remedy);
    }
    section.finish();
    http
}
