//! The latest values in shared memory: a region that this process attaches for reading.

use super::error::failed;
use crate::error::CliError;
use base::clock::SystemClock;
use db::VALUE_BYTES_LIMIT;
use db::shared::{SharedError, TableReader};
use db::table::Now;
use libkeel::protocol::{Failure, Kind, Latest, Nanoseconds, Shown};
use libkeel::whereabouts::{AT, Whereabouts, path_beside, run_text};
use mem::Attachment;
use node::regions::region_error;
use node::{no_such_key, unreadable};
use std::path::{Path, PathBuf};

/// The location of the values, and the run that owns them.
pub(super) struct Values {
    region: PathBuf,
    table: String,
    /// The run that must serve them; `None` if any run may.
    run: Option<String>,
}

/// Why the values give no answer.
pub(super) enum NoAnswer {
    /// The values are usable, and this is their answer about the key.
    Refused(CliError),
    /// The values are not usable, or no node serves them: the node itself must be asked.
    Unusable(CliError),
}

impl Values {
    pub(super) fn named(region: &Path, table: &str) -> Self {
        Self {
            region: region.to_path_buf(),
            table: table.to_owned(),
            run: None,
        }
    }

    /// Returns the values that the node of this socket announces.
    pub(super) fn beside(socket: &Path) -> Result<Option<Self>, CliError> {
        let found = Whereabouts::beside(socket).map_err(|error| {
            CliError::io(path_beside(socket).display(), &error)
                .with_remedy("join the group that it belongs to, or run as a user with read access")
        })?;
        Ok(found.map(|found| Self {
            region: found.region.into(),
            table: found.table,
            run: Some(found.run),
        }))
    }

    /// Returns the latest value of a key, as a node answers it.
    pub(super) fn get(&self, key: &str) -> Result<serde_json::Value, NoAnswer> {
        let unusable = |error: &mem::Error| NoAnswer::Unusable(region_error(&self.region, error));
        let attachment =
            Attachment::open(&self.region, AT, false).map_err(|error| unusable(&error))?;
        let reader = TableReader::open(&attachment, &self.table)
            .map_err(|error| NoAnswer::Unusable(self.table_error(&error)))?;
        let found = self.look(&reader, key);
        // Check this after the read: then the value was valid while the node was alive.
        let is_the_one = match (&self.run, reader.run()) {
            (Some(wanted), Some(run)) => *wanted == run_text(run),
            (wanted, _) => wanted.is_none(),
        };
        if !(is_the_one && reader.is_live()) {
            return Err(NoAnswer::Unusable(self.over()));
        }
        match found {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(refused)) => Err(NoAnswer::Refused(failed(&refused, Some(Kind::Get)))),
            Err(error) => Err(NoAnswer::Unusable(self.table_error(&error.into()))),
        }
    }

    /// Reads a value. The outer error: it cannot be read; the inner one: there is none.
    fn look(
        &self,
        reader: &TableReader<'_>,
        key: &str,
    ) -> Result<Result<serde_json::Value, Failure>, db::Error> {
        let Some(id) = reader.lookup(key) else {
            return Ok(Err(no_such_key(key)));
        };
        let mut bytes = [0; VALUE_BYTES_LIMIT];
        let read = match reader.read(id, &mut bytes) {
            Err(error @ db::Error::NoValue) => return Ok(Err(unreadable(key, &error))),
            other => other?,
        };
        let now = Now::of(&SystemClock::new());
        let age_ns = now.age_ns(read.time, read.node_time, read.arrival_ns, read.boot_tag);
        let (validity_ms, temporal) = reader.validity(id);
        let (value, kind) = Shown::of(&bytes[..read.value_bytes]);
        let latest = Latest {
            key,
            value,
            value_text: value.digits(),
            kind,
            time_ms: read.time.ms(),
            time_ns: Nanoseconds::beside_ms(read.time),
            age_ms: age_ns / 1_000_000,
            fresh: read.is_fresh(age_ns),
            validity_ms,
            temporal,
            node_time: read.node_time,
            clock_trusted: read.wall_trusted,
            this_boot: read.boot_tag == now.boot_tag,
            retained: read.retained,
        };
        // Plain structures always convert to JSON.
        Ok(Ok(serde_json::to_value(&latest).unwrap_or_default()))
    }

    fn shown(&self) -> String {
        format!("{}: {}", self.region.display(), self.table)
    }

    fn over(&self) -> CliError {
        CliError::failure(
            self.shown(),
            "the node that kept its values there has ended",
            "start it again, or ask another with --node",
        )
    }

    fn table_error(&self, error: &SharedError) -> CliError {
        let remedy = "ask the node through its socket with --via socket";
        match error {
            SharedError::Region(mem::Error::NotFound) => {
                CliError::failure(self.shown(), "no node keeps its values there", remedy)
            }
            SharedError::Region(error) => region_error(&self.region, error),
            other => CliError::failure(self.shown(), other, remedy),
        }
    }
}
