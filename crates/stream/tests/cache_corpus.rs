//! The committed corpus of the fuzz target of the cache, replayed on the stable toolchain.

#[path = "../../../fuzz/src/stream/cache.rs"]
mod entry;

#[path = "../../../fuzz/src/replay.rs"]
mod replay;

#[test]
fn stream_cache() {
    replay::replay("stream_cache", entry::stream_cache);
}
