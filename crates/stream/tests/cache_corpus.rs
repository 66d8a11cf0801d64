//! The committed corpus of the fuzz target of the cache, replayed on the stable toolchain.

#[path = "../../../fuzz/src/stream/cache.rs"]
mod entry;

#[test]
fn the_corpus_of_stream_cache_holds() {
    crate::replay::replay("stream_cache", entry::stream_cache);
}
