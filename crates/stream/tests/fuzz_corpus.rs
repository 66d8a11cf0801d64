//! The committed corpora of the fuzz targets of streaming, replayed on the stable toolchain.

#[path = "../../../fuzz/src/stream/mod.rs"]
mod entries;

#[path = "../../../fuzz/src/stream_actions.rs"]
mod actions;

#[path = "../../../fuzz/src/stream_manifest.rs"]
mod manifest;

use crate::replay::replay;

#[test]
fn the_corpus_of_stream_manifest_holds() {
    replay("stream_manifest", manifest::stream_manifest);
}

#[test]
fn the_corpus_of_stream_request_holds() {
    replay("stream_request", entries::stream_request);
}

#[test]
fn the_corpus_of_stream_answer_holds() {
    replay("stream_answer", entries::stream_answer);
}

#[test]
fn the_corpus_of_stream_actions_holds() {
    replay("stream_actions", actions::stream_actions);
}
