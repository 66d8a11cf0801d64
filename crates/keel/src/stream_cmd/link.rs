//! A device's end of a connection, as the arguments of `keel stream mount` and `keel stream pin` say it.

use super::identity::failure;
use super::storage::FlashStorage;
use crate::cli::StreamLinkArgs;
use crate::error::{CliError, describe};
use crate::flash_cmd::open_alone;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use stream::device::cache::{BlockCache, CacheOptions, UnusableCache};
use stream::device::{Cache, CacheError, Device, DeviceError, Publisher, Settings};
use stream::manifest::PublicKey;
use stream::tls;

/// What a cache is to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// A help: without it all is fetched each time.
    May,
    /// What it is about.
    Must,
}

/// The settings of a device that talks to `server`, with the cache opened.
pub(super) fn settings(
    server: &str,
    arguments: &StreamLinkArgs,
    need: Need,
) -> Result<Settings, CliError> {
    let publisher = match &arguments.publisher {
        Some(text) => Publisher::Key(key(text)?),
        None => Publisher::FirstSeen,
    };
    let mut settings = Settings::new(server, publisher);
    check_server(server, arguments)?;
    settings.tls.clone_from(&arguments.identity);
    settings.state.clone_from(&arguments.state);
    if let Some(folder) = &arguments.state {
        std::fs::create_dir_all(folder).map_err(|error| CliError::io(folder.display(), &error))?;
    }
    if let Some(place) = &arguments.cache {
        settings.cache = Some(open_cache(place, arguments.cache_size, need)?);
    }
    Ok(settings)
}

/// What no connection has to be tried for.
fn check_server(server: &str, arguments: &StreamLinkArgs) -> Result<(), CliError> {
    let port = server.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
    if !matches!(port, Some(Ok(1..))) {
        let remedy = "give the host and the port, such as plant.example:7007";
        return Err(CliError::usage(server, "names no port", remedy));
    }
    match (&arguments.identity, server.parse::<SocketAddr>()) {
        (None, Ok(address)) if !address.ip().is_loopback() => Err(CliError::usage(
            server,
            "is not on this machine, and without an identity anybody on the way could read along",
            "name this device's certificate with --identity",
        )),
        (None, _) => Ok(()),
        (Some(folder), _) => tls::device_config(folder, server)
            .map(|_| ())
            .map_err(failure),
    }
}

/// A directory, or the image of a flash store.
fn open_cache(place: &Path, bytes_max: u64, need: Need) -> Result<Arc<dyn Cache>, CliError> {
    let options = CacheOptions {
        bytes_max,
        ..CacheOptions::default()
    };
    let cache = if place.is_file() {
        let store = open_alone(place, true)?;
        BlockCache::open(Box::new(FlashStorage::new(store)), &options)
    } else {
        BlockCache::in_directory(place, &options)
    };
    match cache {
        Ok(cache) => Ok(Arc::new(cache)),
        // A disk that cannot be read or written to costs what is kept, not the start; `failure` says so.
        Err(error @ CacheError::Io { .. }) if need == Need::May => {
            Ok(Arc::new(UnusableCache::new(error.to_string())))
        }
        Err(error) => Err(cache_error(place, &error)),
    }
}

/// Says what the cache has failed to do until now, and that nobody's manifests are told apart. Who does not listen
/// stops nothing.
pub(super) fn warn(server: &str, arguments: &StreamLinkArgs, device: &Device) {
    let mut out = std::io::stderr();
    if let (Some(place), Some(failure)) = (&arguments.cache, device.cache_failure()) {
        let place = place.display();
        writeln!(
            out,
            "keel: {place}: the cache fails: {failure}; what it does not keep is fetched each time"
        )
        .ok();
        if arguments.state.is_none() && device.counters().notes_failed > 0 {
            writeln!(
                out,
                "keel: {server}: nothing keeps which version was seen, so an older one may be believed next time; name \
                 a place for that with --state"
            )
            .ok();
        }
    }
    if arguments.publisher.is_none() && arguments.cache.is_none() && arguments.state.is_none() {
        writeln!(
            out,
            "keel: {server}: whoever publishes there is believed, in any version, at each start; name the key with \
             --publisher, and a place to note the version with --state or --cache"
        )
        .ok();
    }
}

fn cache_error(place: &Path, error: &CacheError) -> CliError {
    let remedy = match error {
        CacheError::Refused(_) => "choose another place or size with --cache and --cache-size",
        _ => "choose another place with --cache, or leave it out",
    };
    CliError::failure(place.display(), error, remedy)
}

/// A key, or the file that holds one.
fn key(text: &str) -> Result<PublicKey, CliError> {
    if let Ok(key) = text.parse() {
        return Ok(key);
    }
    let path = Path::new(text);
    let remedy = "give the 64 digits that `keel stream key` prints, or the file that holds them";
    let held = std::fs::read_to_string(path)
        .map_err(|error| CliError::failure(path.display(), describe(&error), remedy))?;
    held.trim()
        .parse()
        .map_err(|error| CliError::failure(path.display(), error, remedy))
}

/// How the reason begins where a server was there and went.
const ENDED: &str = "the connection ended";

/// How it begins where the server does not let this device in, and where it has no place for it.
const NOT_LET_IN: &str = "the server refuses this device's certificate";
const AT_A_LIMIT: &str = "the server is at a limit";

/// Why a device did not start, or not do what it was asked for.
pub(super) fn device_error(server: &str, error: &DeviceError) -> CliError {
    let remedy = match error {
        DeviceError::NoServer(why) if why.starts_with(ENDED) => {
            "a server takes devices of its list alone, with --identity, or with --insecure if it was started so"
        }
        DeviceError::NoServer(why) if why.starts_with(NOT_LET_IN) => {
            "make the device an identity of the server's authority with `keel stream identity device`"
        }
        DeviceError::NoServer(why) if why.starts_with(AT_A_LIMIT) => {
            "end mounts that are not needed, or raise the server's --clients-max or --clients-max-per-device"
        }
        DeviceError::NoServer(_) | DeviceError::Offline { .. } | DeviceError::Late(_) => {
            "start the server, or look at address and network"
        }
        DeviceError::Manifest { .. } => {
            "look at --publisher; if the publisher has a new key, remove the note of the old one (--state)"
        }
        DeviceError::Older { .. } => {
            "somebody may be offering an old version; if it was taken back on purpose, remove the note (--state)"
        }
        DeviceError::Identity(_) => "make one with `keel stream identity device`",
        DeviceError::NoPlan => "run it once from a mount, or pin --all",
        _ => "see docs/stream.md",
    };
    CliError::coded(error.code(), server, error, remedy)
}
