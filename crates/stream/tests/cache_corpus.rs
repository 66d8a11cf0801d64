//! The committed corpus of the fuzz target of the cache, replayed on the stable toolchain.

#[path = "../../../fuzz/src/stream/cache.rs"]
mod entry;

#[test]
fn stream_cache() {
    crate::replay::replay("stream_cache", entry::stream_cache);
}
