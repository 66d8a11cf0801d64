//! A device's end of a connection, as the arguments of `keel stream mount` and `keel stream pin` say it.

use super::identity::failure;
use super::storage::FlashStorage;
use crate::cli::StreamLinkArgs;
use crate::error::{CliError, describe};
use crate::flash_cmd::open_alone;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use stream::device::cache::{BlockCache, CacheOptions};
use stream::device::{Cache, CacheError, DeviceError, Publisher, Settings};
use stream::manifest::PublicKey;
use stream::tls;

/// The settings of a device that talks to `server`, with the cache opened.
pub(super) fn settings(server: &str, arguments: &StreamLinkArgs) -> Result<Settings, CliError> {
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
        settings.cache = Some(open_cache(place, arguments.cache_size)?);
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
fn open_cache(place: &Path, bytes_max: u64) -> Result<Arc<dyn Cache>, CliError> {
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
    cache
        .map(|cache| Arc::new(cache) as Arc<dyn Cache>)
        .map_err(|error| cache_error(place, &error))
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
        DeviceError::NoServer(_) | DeviceError::Late(_) => {
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
