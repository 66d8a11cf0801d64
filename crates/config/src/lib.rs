//! The configuration of a node: the file `keel.toml`.
//!
//! **Holds:** the content ([`Config`]) with its defaults and ranges, and what `keel config check` says of it
//! ([`check()`]). What a running node takes of a changed file is here, too ([`reload()`]). So are the example with
//! every key ([`example()`]) and the files of quality of service ([`qos`]).
//!
//! **Must not know:** how a node runs, its status, the command line.
//!
//! **Invariants:** one reader reads all sections. A key that it does not ask for is unknown. A value outside its range
//! is refused with its line and the remedy. Relative paths are relative to the directory of the file. A secret is a
//! path here; its file is read when it is needed.
//!
//! **Files:** `settings.rs` the content, `reader.rs` a document key by key, `sections.rs` from a document to the
//! content; `alarm.rs`, `http.rs`, `modbus.rs`, `programs.rs`, `subscribe.rs` and `upstream.rs` sections of their own;
//! `values.rs` values that several sections hold, `certificates.rs` certificates and keys of a section, `files.rs`
//! files that the configuration names, `tls_files.rs` those for TLS, `check.rs` what a file means, `sharing.rs` what
//! must not be shared, `user.rs` what the user of a node lacks, `tags.rs` what `{tags}` stands for, `reload.rs` the
//! difference of two configurations, `kernel.rs` the kinds of jobs, `qos/` files and texts of quality of service,
//! `example.rs` the example file.

mod alarm;
mod certificates;
mod check;
mod example;
mod files;
mod http;
mod kernel;
mod modbus;
mod programs;
#[cfg(test)]
mod programs_tests;
pub mod qos;
mod reader;
mod reload;
mod sections;
mod settings;
mod sharing;
mod subscribe;
#[cfg(test)]
mod subscribe_tests;
mod tags;
#[cfg(test)]
mod tests;
mod tls_files;
#[cfg(test)]
mod tls_tests;
mod upstream;
mod user;
mod values;

pub use alarm::{ActuatorConfig, AlarmConfig, BrokerConfig, RoomOptions, UrgentConfig};
pub use check::check;
pub use example::example;
pub use files::{files_are_listed, read_bounded, read_regular, without_mark};
pub use http::HttpConfig;
pub use kernel::Kernel;
pub use programs::{MountConfig, Start, TaskConfig, cores_text, ms};
pub use reload::{Changes, reload};
pub use sections::{REGION_TABLE, VALIDITY_MS};
pub use settings::{
    ACTUATORS, ActuatorKind, Config, JobConfig, KeyConfig, KeysConfig, LineConfig, MODES,
    MqttConfig, MqttVersion, NodeConfig, QosConfig, RegionConfig, StoreConfig, SystemCalls,
    TimeConfig, beside, quality_name,
};
pub use subscribe::{Lines, SubscribeConfig};
pub use upstream::{UpstreamConfig, UpstreamKind};

pub(crate) use files::secret;
pub(crate) use settings::QUALITIES;

use base::error::Code;
use command::error::CliError;
use reader::{Document, Problem};
use std::io::Read;
use std::path::Path;

/// Bytes of the largest configuration file.
const FILE_BYTES_MAX: u64 = 1 << 20;

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// One line with file, line, key and remedy; exit status 1.
    pub fn load(path: &Path) -> Result<Self, CliError> {
        let text = read(path)?;
        Self::parse(&text, &path.display().to_string(), directory(path))
    }

    /// Reads the configuration that a node hands over, which comes from this file.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn from_reader(reader: impl Read, path: &Path) -> Result<Self, CliError> {
        let mut text = String::new();
        let read = reader.take(FILE_BYTES_MAX).read_to_string(&mut text);
        read.map_err(|error| CliError::io(path.display(), &error))?;
        Self::parse(&text, &path.display().to_string(), directory(path))
    }

    /// Reads a text. `origin` is named in errors; relative paths are relative to `base_dir`.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn parse(text: &str, origin: &str, base_dir: &Path) -> Result<Self, CliError> {
        Self::parse_all(text, base_dir).map_err(|problems| first_of(&problems, origin))
    }

    /// Reads a text.
    ///
    /// # Errors
    /// Everything that is wrong with it, the most telling first.
    pub(crate) fn parse_all(text: &str, base_dir: &Path) -> Result<Self, Vec<Problem>> {
        let document = Document::new(text);
        let config = sections::config(&document, base_dir);
        let (problems, _) = document.finish();
        match config {
            Some(config) if problems.is_empty() => Ok(config),
            _ => Err(problems),
        }
    }
}

/// Returns the directory that relative paths in this file start from.
fn directory(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

/// Returns the text of a configuration file.
fn read(path: &Path) -> Result<String, CliError> {
    read_bounded(path, FILE_BYTES_MAX)
}

impl Problem {
    /// Returns the problem as a one-line error.
    fn error(&self, origin: &str) -> CliError {
        CliError::failure(format!("{origin}:{}", self.line), &self.wrong, &self.remedy)
    }
}

/// Returns the first problem as a one-line error.
fn first_of(problems: &[Problem], origin: &str) -> CliError {
    match problems {
        [] => CliError::coded(Code::Io, origin, "cannot be read", ""),
        [first, rest @ ..] => {
            let error = first.error(origin);
            let more = match rest.len() {
                0 => return error,
                1 => "1 more problem".to_owned(),
                more => format!("{more} more problems"),
            };
            error.with_remedy(format!(
                "{} (and {more}; keel config check names all)",
                first.remedy
            ))
        }
    }
}
