//! A device's end of a connection, as given by the arguments of `keel stream mount` and `keel stream pin`.

use super::identity::failure;
use super::storage::FlashStorage;
use super::store_error::shell_word;
use crate::argument::size;
use crate::descriptors::too_few_behind;
use crate::error::CliError;
use crate::mem_cmd::shown;
use clap::{ArgGroup, Args};
use config::{read_regular, without_mark};
use node::stores::open_alone;
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stream::device::cache::{BlockCache, CACHE_BYTES_MIN, CacheOptions, UnusableCache};
use stream::device::{
    Cache, CacheError, Device, DeviceError, FailureKind, MANIFEST_DAMAGED, Publisher, Settings,
};
use stream::manifest::PublicKey;
use stream::tls;
use stream::wire::Refusal;

/// Options of the device's end of a connection.
#[derive(Clone, Debug, Args)]
#[command(group(ArgGroup::new("trust").required(true).args(["identity", "insecure"])))]
pub(crate) struct LinkArgs {
    /// Folder with this device's certificate
    #[arg(long, value_name = "DIR")]
    pub(super) identity: Option<PathBuf>,
    /// Use no TLS and no certificates: only to a loopback address
    #[arg(long)]
    pub(super) insecure: bool,
    /// Public key of the publisher, or a file that contains it [default: the key of the first manifest's signature,
    /// from then on]
    #[arg(long, value_name = "KEY")]
    pub(super) publisher: Option<String>,
    /// Directory, or image of a flash store, that keeps the received blocks
    #[arg(long, value_name = "PLACE")]
    pub(super) cache: Option<PathBuf>,
    /// Maximum size of the cache, in bytes or with K, M, G or T
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size, requires = "cache")]
    pub(super) cache_size: u64,
    /// Folder for the highest version seen and the publisher's key; the cache notes them as well
    #[arg(long, value_name = "DIR")]
    pub(super) state: Option<PathBuf>,
}

/// Whether a command needs the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Optional: without it all blocks are fetched each time.
    May,
    /// Required: the command fills it.
    Must,
}

/// Programs that one message names, at most.
const PROGRAMS_TOLD_MAX: usize = 8;

/// Bytes of a file that holds a public key, at most.
const KEY_FILE_BYTES_MAX: u64 = 4096;

/// Returns the settings of a device that talks to `server`, with the cache opened.
pub(super) fn settings(
    server: &str,
    arguments: &LinkArgs,
    need: Need,
) -> Result<Settings, CliError> {
    let publisher = match &arguments.publisher {
        Some(text) => Publisher::Key(key(text)?),
        None => Publisher::FirstSeen,
    };
    let mut settings = Settings::new(server, publisher);
    check_server(server, arguments)?;
    check_cache(arguments)?;
    settings.tls.clone_from(&arguments.identity);
    settings.state.clone_from(&arguments.state);
    if let Some(folder) = &arguments.state {
        std::fs::create_dir_all(folder).map_err(|error| match folder.is_file() {
            true => CliError::failure(folder.display(), "is a file", "name a folder with --state"),
            false => CliError::io(folder.display(), &error),
        })?;
    }
    if let Some(place) = &arguments.cache {
        settings.cache = Some(open_cache(place, arguments.cache_size, need)?);
    }
    Ok(settings)
}

/// Checks the server's address before any attempt to connect.
fn check_server(server: &str, arguments: &LinkArgs) -> Result<(), CliError> {
    let (host, port) = server.rsplit_once(':').unwrap_or((server, ""));
    let is_in_brackets = host.starts_with('[') && host.ends_with(']');
    let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let remedy = "give the host and the port, such as plant.example:7007";
    if host.contains(':') && !is_in_brackets {
        return Err(CliError::usage(
            server,
            "is no host and port: an address of IPv6 stands in brackets",
            "give the host and the port, such as [::1]:7007",
        ));
    }
    match port.parse::<u16>() {
        Ok(1..) if host.is_empty() => return Err(CliError::usage(server, "names no host", remedy)),
        Ok(1..) => {}
        Err(_) if is_number => {
            return Err(CliError::usage(server, "no port is above 65535", remedy));
        }
        _ => return Err(CliError::usage(server, "names no port", remedy)),
    }
    match (&arguments.identity, server.parse::<SocketAddr>()) {
        (None, Ok(address)) if !address.ip().is_loopback() => Err(CliError::usage(
            server,
            "is not on this machine, and without an identity the connection is not encrypted",
            "name this device's certificate with --identity",
        )),
        (None, _) => Ok(()),
        (Some(folder), _) => tls::device_config(folder, server)
            .map(|_| ())
            .map_err(failure),
    }
}

/// Checks the arguments of the cache before anything is created.
fn check_cache(arguments: &LinkArgs) -> Result<(), CliError> {
    let Some(place) = &arguments.cache else {
        return Ok(());
    };
    if arguments.cache_size < CACHE_BYTES_MIN {
        return Err(CliError::usage(
            "--cache-size",
            format!("a cache has at least {} MiB", CACHE_BYTES_MIN >> 20),
            format!("give {}M or more", CACHE_BYTES_MIN >> 20),
        ));
    }
    if let Ok(found) = place.metadata()
        && !found.is_dir()
        && !found.is_file()
    {
        return Err(CliError::failure(
            place.display(),
            "is neither a directory nor the image of a flash store",
            "name one of them with --cache",
        ));
    }
    // The name shows that an image was meant, but a directory would be created.
    let is_image = place.extension().is_some_and(|end| end == "img");
    if is_image && matches!(place.try_exists(), Ok(false)) {
        let word = shell_word(place);
        return Err(CliError::failure(
            place.display(),
            "is not there",
            format!("make it with `keel flash format {word} --size 256M`, or name a directory"),
        ));
    }
    Ok(())
}

/// Refuses a cache or notes in the directory that the mount covers: the directory would not be empty, and the mount
/// would hide them.
pub(super) fn check_places(directory: &Path, arguments: &LinkArgs) -> Result<(), CliError> {
    let covered = whole_path(directory);
    let places = [("--cache", &arguments.cache), ("--state", &arguments.state)];
    for (option, place) in places {
        if let Some(place) = place
            && whole_path(place).starts_with(&covered)
        {
            let directory = directory.display();
            return Err(CliError::usage(
                place.display(),
                format!("lies in {directory}, which the mount covers"),
                format!("name a place elsewhere with {option}"),
            ));
        }
    }
    Ok(())
}

/// Returns a path with links resolved, as far as it exists.
fn whole_path(path: &Path) -> PathBuf {
    for there in path.ancestors() {
        let named = if there.as_os_str().is_empty() {
            Path::new(".")
        } else {
            there
        };
        if let Ok(whole) = named.canonicalize() {
            let rest = path.strip_prefix(there).unwrap_or(Path::new(""));
            return match rest.as_os_str().is_empty() {
                true => whole,
                false => whole.join(rest),
            };
        }
    }
    path.to_owned()
}

/// Opens a directory, or the image of a flash store, as the cache.
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
        // If the disk cannot be read or written, only the cache is lost, not the start; `failure` reports it.
        Err(error @ CacheError::Io { .. }) if need == Need::May => {
            Ok(Arc::new(UnusableCache::new(error.to_string())))
        }
        Err(error) => Err(cache_error(place, &error, need)),
    }
}

/// Warns of the cache's failures so far, and if any publisher is trusted. A missing reader of the warnings stops
/// nothing.
pub(super) fn warn(server: &str, arguments: &LinkArgs, device: &Device) {
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
    tell_trust(server, arguments, device);
}

/// Returns whether the publisher and the version seen are kept for the next start.
pub(super) fn is_noted(arguments: &LinkArgs, device: &Device) -> bool {
    arguments.state.is_some() || (arguments.cache.is_some() && device.counters().notes_failed == 0)
}

/// Reports which publisher this device trusts from now on, if none was known before; or that it trusts any publisher.
pub(super) fn tell_trust(server: &str, arguments: &LinkArgs, device: &Device) {
    let is_noted = is_noted(arguments, device);
    let mut out = std::io::stderr();
    let said = match device.first_seen() {
        Some(key) if is_noted => writeln!(
            out,
            "keel: {server}: no publisher was known; {key} is trusted from now on; name the key with --publisher to \
             set it beforehand"
        ),
        _ if arguments.publisher.is_none() && !is_noted => writeln!(
            out,
            "keel: {server}: any publisher is trusted, in any version, at each start; name the key with \
             --publisher, and a place to note the version with --state or --cache"
        ),
        _ => Ok(()),
    };
    // A missing reader of the message stops nothing.
    said.ok();
}

/// Names known programs of this device that the cache does not have as a whole.
///
/// If no server has answered, these are all such programs. Else they are those of `before`, which the cache had as a
/// whole in the version before. A missing reader of the message stops nothing.
pub(super) fn tell_lacking(server: &str, device: &Device, before: &[Vec<u8>]) {
    let has_server = device.counters().connects > 0;
    if has_server && before.is_empty() {
        return;
    }
    let mut lacking = device.programs_lacking();
    lacking.retain(|program| !has_server || before.contains(program));
    if let Some(text) = lacking_text(device.manifest().version, &lacking, has_server) {
        writeln!(std::io::stderr(), "keel: {server}: {text}").ok();
    }
}

fn lacking_text(version: u64, programs: &[Vec<u8>], has_server: bool) -> Option<String> {
    if programs.is_empty() {
        return None;
    }
    let named = programs.iter().take(PROGRAMS_TOLD_MAX);
    let mut names = named.map(|name| shown(name)).collect::<Vec<_>>().join(", ");
    if programs.len() > PROGRAMS_TOLD_MAX {
        names.push_str(&format!(" and {} more", programs.len() - PROGRAMS_TOLD_MAX));
    }
    Some(match has_server {
        true => format!(
            "version {version} is new here, and the cache does not have all of it for programs that it had as a whole: \
             {names}; they may not start without a network until they have run, or `keel stream pin` has fetched them"
        ),
        false => format!(
            "the cache does not have all of version {version} for programs that have run here: {names}; they may not \
             start now; fetch them with `keel stream pin` when the network is back"
        ),
    })
}

fn cache_error(place: &Path, error: &CacheError, need: Need) -> CliError {
    if let Some(told) = too_few_behind(error) {
        return told;
    }
    let remedy = match (error, need) {
        (CacheError::Refused(_), _) => "choose another place or size with --cache and --cache-size",
        (CacheError::Full(_), _) => "make it larger with --cache-size",
        (_, Need::May) => "choose another place with --cache, or leave it out",
        (_, Need::Must) => "choose a place that can be written and has room with --cache",
    };
    CliError::failure(place.display(), error, remedy)
}

/// Parses a key, or reads the file that contains one.
fn key(text: &str) -> Result<PublicKey, CliError> {
    if let Ok(key) = text.parse() {
        return Ok(key);
    }
    let path = Path::new(text);
    let remedy = "give the 64 digits that `keel stream key` prints, or the file that holds them";
    let bytes =
        read_regular(path, KEY_FILE_BYTES_MAX).map_err(|error| error.with_remedy(remedy))?;
    let held = String::from_utf8(bytes).map_err(|_| {
        let remedy =
            "give the file beside a key that has .pub behind its name, or the digits in it";
        CliError::failure(path.display(), "holds no public key", remedy)
    })?;
    without_mark(&held)
        .trim()
        .parse()
        .map_err(|error| CliError::failure(path.display(), error, remedy))
}

/// Returns the remedy if there is no server.
pub(super) fn server_remedy(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::Name => {
            "reach it by a name of its certificate, or make it one with `keel stream identity server --name`"
        }
        FailureKind::Authority => {
            "name an identity of the server's authority with --identity, or check which server answers at this address"
        }
        FailureKind::NotADevice => {
            "name the folder that `keel stream identity device` made with --identity, not that of a server"
        }
        FailureKind::NotLetIn => {
            "make the device an identity of the server's authority with `keel stream identity device`"
        }
        FailureKind::NoTls => {
            "look at the address: another service answers there, or a server that was started with --insecure"
        }
        FailureKind::ClosedPlain => {
            "a server that was started with --identity takes no --insecure: name this device's own folder with \
             --identity; else look at the address, and upgrade a server that is older than this device"
        }
        FailureKind::ClosedListed => {
            "look at what the server prints, as it may not be able to read its list of devices, and upgrade a server \
             that is older than this device"
        }
        FailureKind::NoList => {
            "look at what the server prints; `keel stream identity list` says what is wrong with a list"
        }
        FailureKind::OtherService => {
            "look at the address: another service may answer there, or a keel of another version"
        }
        FailureKind::OtherTree => {
            "mount anew if another store is served there on purpose, else check which server answers there"
        }
        FailureKind::VersionGone => {
            "mount anew; if it was not pruned, check which server answers there, and name the key with --publisher"
        }
        FailureKind::Limit => {
            "end mounts that are not needed, or raise the server's --clients-max or --clients-max-per-device"
        }
        FailureKind::Damaged => "run `keel stream check` on the server's store",
        FailureKind::Lied => {
            "run `keel stream check` on the server's store, and check which server answers at this address"
        }
        _ => "start the server, or look at address and network",
    }
}

/// Returns the remedy if a device has no server.
pub(super) fn remedy_of(device: &Device, kind: FailureKind) -> &'static str {
    later_remedy(kind, device.counters().connects > 0)
}

/// Returns the remedy if there is no server. `has_connected`: a connection with these settings succeeded before, so
/// that they are right and a connection that ends says nothing of them.
fn later_remedy(kind: FailureKind, has_connected: bool) -> &'static str {
    match kind {
        FailureKind::ClosedPlain | FailureKind::ClosedListed if has_connected => {
            server_remedy(FailureKind::Unreachable)
        }
        kind => server_remedy(kind),
    }
}

/// Returns the remedy if there is no server, and the cache cannot be used alone.
fn cache_remedy(kind: FailureKind, cache: &str) -> String {
    let server = server_remedy(kind);
    match cache {
        MANIFEST_DAMAGED => format!("{server}; the first start that reaches it repairs the cache"),
        _ => format!("{server}; and look at --cache and --publisher, if it should start without"),
    }
}

/// Returns why a device did not start, or did not do what was requested.
pub(super) fn device_error(server: &str, arguments: &LinkArgs, error: &DeviceError) -> CliError {
    if let Some(told) = too_few_behind(error) {
        return told;
    }
    let remedy = match (error, &arguments.cache) {
        (DeviceError::Cache(error), Some(place)) => return cache_error(place, error, Need::Must),
        (DeviceError::NoServer(why), _) => server_remedy(why.kind).to_owned(),
        (DeviceError::NoServerNorCache { server, cache }, _) => cache_remedy(server.kind, cache),
        (DeviceError::Offline { .. } | DeviceError::Late(_), _) => {
            server_remedy(FailureKind::Unreachable).to_owned()
        }
        (DeviceError::Refused(Refusal::Damaged) | DeviceError::Damaged { .. }, _) => {
            server_remedy(FailureKind::Damaged).to_owned()
        }
        (DeviceError::Manifest { .. }, _) if arguments.publisher.is_some() => {
            "check --publisher: it must be the key that signs the tree of this server".to_owned()
        }
        (DeviceError::Manifest { .. }, _) => {
            "the publisher has changed; if that is meant, name the new key with --publisher"
                .to_owned()
        }
        (
            DeviceError::Older {
                highest: version, ..
            }
            | DeviceError::OtherTree { version },
            _,
        ) => {
            let meant = match error {
                DeviceError::Older { .. } => "going back",
                _ => "another store",
            };
            format!(
                "publish the tree anew with `keel stream pack --version-min {}`, or, if {meant} is meant, remove {}",
                version.saturating_add(1),
                noted_in(arguments)
            )
        }
        (DeviceError::State { source, .. }, _) => match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free some space there",
            ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => {
                "name a place that can be written with --state"
            }
            _ => {
                "put back a copy of it; or remove it, if any version that the server has now is to be accepted; or \
                 name another place with --state"
            }
        }
        .to_owned(),
        (DeviceError::Identity(_), _) => "make one with `keel stream identity device`".to_owned(),
        (DeviceError::NoPlan, _) => "run it once from a mount, or pin --all".to_owned(),
        _ => "see docs/stream.md".to_owned(),
    };
    CliError::coded(error.code(), server, error, remedy)
}

/// Returns where the version seen is noted.
fn noted_in(arguments: &LinkArgs) -> String {
    match (&arguments.state, &arguments.cache) {
        (Some(folder), Some(cache)) => format!(
            "both notes of it, in {} (--state) and in the cache {}",
            folder.display(),
            cache.display()
        ),
        (Some(folder), None) => format!("the note of it in {} (--state)", folder.display()),
        (None, Some(cache)) => format!("the cache {}, which notes it", cache.display()),
        (None, None) => "the note of it".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_are_not_whole_are_named_on_one_line() {
        assert_eq!(lacking_text(2, &[], true), None);
        let programs: Vec<Vec<u8>> = (0..10).map(|at| format!("bin/{at}\n").into()).collect();
        for has_server in [true, false] {
            let text = lacking_text(2, &programs, has_server).unwrap();
            assert!(text.contains("bin/7") && !text.contains("bin/8"), "{text}");
            assert!(text.contains(" and 2 more"), "{text}");
            assert!(!text.contains(char::is_control), "{text}");
        }
    }

    #[test]
    fn a_reset_of_settings_that_worked_before_blames_no_option() {
        let kind = FailureKind::ClosedPlain;
        assert!(later_remedy(kind, false).contains("takes no --insecure"));
        assert!(later_remedy(kind, true).contains("start the server"));
        let limit = FailureKind::Limit;
        assert_eq!(later_remedy(limit, true), server_remedy(limit));
    }

    #[test]
    fn a_key_is_read_from_its_file_without_a_byte_order_mark() {
        let name = format!("keel-marked-key-{}", std::process::id());
        let file = std::env::temp_dir().join(name);
        let digits = "0123456789abcdef".repeat(4);
        std::fs::write(&file, format!("\u{feff}{digits}\n")).unwrap();
        let held = key(&file.display().to_string());
        std::fs::remove_file(&file).unwrap();
        assert_eq!(held.unwrap(), digits.parse().unwrap());
    }
}
