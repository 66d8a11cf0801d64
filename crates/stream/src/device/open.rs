//! The start of a device. It gets the manifest from the server or the cache, verifies it, and refuses one that is older
//! than any seen before.

use super::Cache;
use super::counters::{Counts, add};
use super::disk::notes::{self, Seen};
use super::error::DeviceError;
use super::settings::{CONNECTIONS_MAX, Publisher, Settings};
use super::transport::{CONNECT_MAX, Ended, FailureKind, Greeted, ServerFailure, Transport, greet};
use crate::link::LinkSettings;
use crate::manifest::{self, Manifest, ManifestError, PublicKey};
use crate::tls;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// If a cached manifest exists: how long the start waits for a connection, and then for the greeting on it. The first
/// timeout includes the name lookup and the TLS handshake.
const CONNECT_MAX_CACHED: Duration = Duration::from_secs(1);
const GREET_MAX_CACHED: Duration = Duration::from_secs(3);

/// The text of [`DeviceError::NoServerNorCache`] for a cache that has had a manifest of the server.
pub const MANIFEST_DAMAGED: &str = "the cache's manifest of this server is damaged";

/// A manifest that may be used.
pub(super) struct Opened {
    pub manifest: Manifest,
    /// The blake3 hash of the signed manifest.
    pub hash: [u8; 32],
    /// The key of its publisher, if no publisher was known for this server before.
    pub first_seen: Option<PublicKey>,
    /// The manifest that the cache had before, if the server has a newer version.
    pub before: Option<Manifest>,
    /// The connection on which it was received or confirmed. `None`: it is the cached manifest.
    pub greeted: Option<Greeted>,
}

/// Checks the settings.
pub(super) fn check(settings: &Settings) -> Result<(), DeviceError> {
    let refuse = |what: &str| Err(DeviceError::Settings(what.to_owned()));
    if settings.connections == 0 || settings.connections > CONNECTIONS_MAX {
        return refuse("there must be 1 to 64 connections");
    }
    if settings.deadline < Duration::from_millis(10) {
        return refuse("the deadline must be at least 10 ms");
    }
    Ok(())
}

/// Returns the settings of the links, with TLS if the settings name an identity.
pub(super) fn link(settings: &Settings) -> Result<LinkSettings, DeviceError> {
    let mut link = Transport::link_settings(settings);
    if let Some(folder) = &settings.tls {
        let identity = tls::device_config(folder, &settings.server);
        link.tls = Some(identity.map_err(|error| DeviceError::Identity(error.to_string()))?);
    }
    Ok(link)
}

struct Opening<'a> {
    settings: &'a Settings,
    counts: &'a Counts,
    seen: Option<Seen>,
}

impl Opening<'_> {
    /// Verifies a signed manifest. Returns the manifest and its hash.
    fn verify(&mut self, signed: &[u8]) -> Result<(Manifest, [u8; 32]), DeviceError> {
        let server = || self.settings.server.clone();
        let refused = |source| DeviceError::Manifest {
            server: server(),
            source,
        };
        let publisher = match (&self.settings.publisher, &self.seen) {
            (Publisher::Key(key), _) => *key,
            (Publisher::FirstSeen, Some(seen)) => seen.publisher,
            (Publisher::FirstSeen, None) => {
                manifest::publisher(signed).ok_or(refused(ManifestError::NotAManifest))?
            }
        };
        let manifest = manifest::verify(signed, &publisher).map_err(refused)?;
        let highest = self.seen.filter(|seen| seen.publisher == publisher);
        let hash = *blake3::hash(signed).as_bytes();
        if let Some(highest) = highest {
            if manifest.version < highest.version {
                return Err(DeviceError::Older {
                    found: manifest.version,
                    highest: highest.version,
                });
            }
            let is_same = highest.manifest.is_none_or(|noted| noted == hash);
            if manifest.version == highest.version && !is_same {
                return Err(DeviceError::OtherTree {
                    version: manifest.version,
                });
            }
        }
        // The note must be on the disk before the manifest is used: otherwise an older manifest could be accepted after
        // a crash.
        let seen = Seen {
            publisher,
            version: manifest.version,
            manifest: Some(hash),
        };
        let lacks_hash =
            highest.is_some_and(|noted| noted.version == seen.version && noted.manifest.is_none());
        let (state, cache) = (
            self.settings.state.as_deref(),
            self.settings.cache.as_deref(),
        );
        // One of several places may have lost the note. A place that still has it is not written again.
        if self.seen != Some(seen) || cache.is_some() {
            match notes::set_seen(state, cache, &self.settings.server, &seen) {
                // The cache is optional, so its failure is no error. A state folder in the settings keeps the note
                // durably.
                Err(DeviceError::Cache(_)) => add(&self.counts.notes_failed, 1),
                // A note of an older device already has this version, which protects against older ones.
                Err(DeviceError::State { .. }) if lacks_hash => add(&self.counts.notes_failed, 1),
                noted => noted?,
            }
        }
        self.seen = Some(seen);
        Ok((manifest, hash))
    }
}

/// Gets a manifest that may be used.
///
/// # Errors
/// The server's manifest is refused; or there is no server, and no manifest in the cache.
pub(super) fn open(
    settings: &Settings,
    transport: &Arc<Transport>,
    counts: &Arc<Counts>,
) -> Result<Opened, DeviceError> {
    let cache = settings.cache.as_deref();
    let seen = notes::seen(settings.state.as_deref(), cache, &settings.server)?;
    let mut opening = Opening {
        settings,
        counts,
        seen,
    };
    let is_first = seen.is_none() && settings.publisher == Publisher::FirstSeen;
    let name = notes::manifest_name(&settings.server);
    // A note that is no manifest of the publisher, or too old, counts as missing.
    let noted = cache
        .filter(|_| seen.is_some() || settings.publisher != Publisher::FirstSeen)
        .and_then(|cache| cache.note(&name));
    let (cached, cache_refused) = match noted.map(|signed| opening.verify(&signed)) {
        Some(Ok(found)) => (Some(found), None),
        Some(Err(error)) => (None, Some(error.to_string())),
        None => {
            let noted = notes::seen(None, cache, &settings.server);
            let has_seen = noted.is_ok_and(|noted| noted.is_some());
            (
                None,
                cache.and_then(|cache| why_no_manifest(cache, has_seen)),
            )
        }
    };
    let held = cached.as_ref().map(|(_, hash)| *hash);
    let deadline = Instant::now() + settings.start_wait;
    let mut pause = Duration::ZERO;
    let last = loop {
        let time = settings
            .start_wait
            .min(CONNECT_MAX)
            .max(settings.deadline / 3);
        let greeted = match held {
            Some(held) => greet_soon(transport, counts, held, time),
            None => greet(transport, counts, None, None, time, || {}),
        };
        match greeted {
            Ok(mut greeted) => {
                let Some(signed) = greeted.signed.take() else {
                    return match cached {
                        Some((manifest, hash)) if manifest.version == greeted.version => {
                            Ok(Opened {
                                manifest,
                                hash,
                                first_seen: None,
                                before: None,
                                greeted: Some(greeted),
                            })
                        }
                        _ => Err(refused("it confirms a manifest that it was not asked for")),
                    };
                };
                let (manifest, hash) = opening.verify(&signed)?;
                if manifest.version != greeted.version {
                    return Err(refused("its manifest is of another version than it says"));
                }
                // If this fails, only a later start without a server is impossible; everything else works.
                if let Some(cache) = cache
                    && cache.set_note(&name, &signed).is_err()
                {
                    add(&counts.notes_failed, 1);
                }
                return Ok(Opened {
                    manifest,
                    hash,
                    first_seen: manifest::publisher(&signed).filter(|_| is_first),
                    before: cached.map(|(before, _)| before),
                    greeted: Some(greeted),
                });
            }
            Err(ended) => {
                if let Ended::Wrong(reason) = &ended {
                    counts.reject(*reason);
                }
                pause = Transport::next_pause(pause);
                let failure = ServerFailure::of(&ended, settings.tls.is_some(), None);
                // A device that is refused access is also refused a moment later, so a retry is useless.
                let is_final = failure.is_final();
                if cached.is_some() || is_final || Instant::now() + pause >= deadline {
                    // Set it here too, because the name lookup may still be running.
                    transport.failed(failure.clone());
                    break failure;
                }
                transport.pause(pause);
            }
        }
    };
    match cached {
        Some((manifest, hash)) => Ok(Opened {
            manifest,
            hash,
            first_seen: None,
            before: None,
            greeted: None,
        }),
        None => Err(match cache_refused {
            Some(cache) => DeviceError::NoServerNorCache {
                server: last,
                cache,
            },
            None => DeviceError::NoServer(last),
        }),
    }
}

/// Returns why a cache has no manifest of this server; `None` if it is empty. `has_seen`: another note of it
/// says that it has had one. A damaged record may be of another server, or of none.
fn why_no_manifest(cache: &dyn Cache, has_seen: bool) -> Option<String> {
    cache.failure().or_else(|| {
        let counters = cache.counters();
        let blocks = counters.blocks;
        match (blocks > 0, has_seen) {
            (true, true) => Some(MANIFEST_DAMAGED.to_owned()),
            (true, false) => {
                let plural = if blocks == 1 { "" } else { "s" };
                let damaged = match counters.damaged {
                    0 => "",
                    _ => "; parts of the cache are damaged",
                };
                Some(format!(
                    "{blocks} block{plural}, and no manifest of this server{damaged}"
                ))
            }
            (false, _) => None,
        }
    })
}

/// Greets a server whose manifest is cached, with a short timeout.
fn greet_soon(
    transport: &Arc<Transport>,
    counts: &Arc<Counts>,
    held: [u8; 32],
    time: Duration,
) -> Result<Greeted, Ended> {
    let late = || Ended::Socket(io::ErrorKind::TimedOut.into());
    let (tell_connected, connected) = channel();
    let (tell_greeted, greeted) = channel();
    let (transport, counts) = (Arc::clone(transport), Arc::clone(counts));
    // A separate thread, because a name lookup has no timeout. The thread ends with its attempt.
    let thread = thread::Builder::new().name("stream-greeter".to_owned());
    let run = move || {
        let on_connected = || {
            tell_connected.send(()).ok();
        };
        let time = time.min(GREET_MAX_CACHED);
        let result = greet(&transport, &counts, None, Some(held), time, on_connected);
        // If the receiver is gone, the connection is dropped with the message.
        tell_greeted.send(result).ok();
    };
    thread.spawn(run).map_err(Ended::Socket)?;
    match connected.recv_timeout(CONNECT_MAX_CACHED) {
        // From here on the wait is bounded: the greeting ends in time, or there is no connection.
        Ok(()) | Err(RecvTimeoutError::Disconnected) => {
            greeted.recv().unwrap_or_else(|_| Err(late()))
        }
        Err(RecvTimeoutError::Timeout) => Err(late()),
    }
}

fn refused(why: &str) -> DeviceError {
    let text = format!("the server is not to be believed: {why}");
    DeviceError::NoServer(ServerFailure::new(FailureKind::Lied, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::BlockHash;
    use crate::device::{CacheCounters, CacheError};

    /// A cache without notes.
    struct Counted(CacheCounters);

    impl Cache for Counted {
        fn get(&self, _hash: &BlockHash, _bytes: usize) -> Option<Arc<[u8]>> {
            None
        }

        fn has(&self, _hash: &BlockHash) -> bool {
            false
        }

        fn put(&self, _hash: &BlockHash, _bytes: &Arc<[u8]>) {}

        fn expect(&self, _hashes: &[BlockHash]) {}

        fn note(&self, _name: &str) -> Option<Vec<u8>> {
            None
        }

        fn set_note(&self, _name: &str, _bytes: &[u8]) -> Result<(), CacheError> {
            Ok(())
        }

        fn counters(&self) -> CacheCounters {
            self.0
        }

        fn flush(&self) {}
    }

    #[test]
    fn only_a_cache_that_has_had_a_manifest_has_a_damaged_one() {
        let why = |blocks, damaged, has_seen| {
            let counters = CacheCounters {
                blocks,
                damaged,
                ..CacheCounters::default()
            };
            why_no_manifest(&Counted(counters), has_seen)
        };
        assert_eq!(why(0, 0, false), None);
        assert_eq!(why(7, 0, true).as_deref(), Some(MANIFEST_DAMAGED));
        assert_eq!(why(7, 3, true).as_deref(), Some(MANIFEST_DAMAGED));
        // A record of any kind is damaged, and the cache may be that of another server.
        let said = why(7, 3, false).unwrap();
        assert_eq!(
            said,
            "7 blocks, and no manifest of this server; parts of the cache are damaged"
        );
    }
}
